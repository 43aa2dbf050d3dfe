"""Work that has to end: at its time limit, or with whoever waits for it, whatever it does with a cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

GRACE = 1.0
"""Seconds that cancelled work may take; what does not heed it is left behind."""


class Overdue(Exception):
    """Work did not end in time.

    Args:
        stopped: It has ended by now; False: it was left behind.
    """

    def __init__(self, *, stopped: bool) -> None:
        super().__init__()
        self.stopped = stopped


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run work in an event loop of its own, as `asyncio.run` does, which would wait for ever for what swallows that."""
    runner, left = asyncio.Runner(), set[asyncio.Task[Any]]()

    async def ended() -> T:
        try:
            return await work
        finally:
            left.update(await _end([task for task in asyncio.all_tasks() if task is not asyncio.current_task()]))

    try:
        return runner.run(ended())
    finally:
        if not left:  # closing waits for all tasks
            runner.close()


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """Cancel what still runs, and return what does not heed that."""
    for task in tasks:
        task.cancel()
    return (await asyncio.wait(tasks, timeout=GRACE))[1] if tasks else set()


async def bounded(work: Coroutine[Any, Any, T], seconds: float | None) -> T:
    """Return what comes of work, which runs in a task of its own, or raise what it raises.

    Args:
        work: What is to be done.
        seconds: How long it may take; None: as long as it likes.

    Raises:
        Overdue: It took longer.
    """
    # not in a TaskGroup, and not under asyncio.timeout: both wait for ever for work that swallows its cancellation
    task = asyncio.get_running_loop().create_task(work)
    try:
        done, _ = await asyncio.wait([task], timeout=seconds)
    except asyncio.CancelledError:
        await _stop(task)
        raise
    if not done:
        raise Overdue(stopped=await _stop(task))
    return task.result()


async def _stop(task: asyncio.Task[Any]) -> bool:
    task.cancel()
    task.add_done_callback(_take)
    done, _ = await asyncio.wait([task], timeout=GRACE)
    return bool(done)


def _take(task: asyncio.Task[Any]) -> None:
    """Take what came too late for anybody to hear of, or asyncio would print it."""
    if not task.cancelled():
        task.exception()
