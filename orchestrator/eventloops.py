"""What outlives an event loop: asyncio's own objects work only in the loop they were made in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar, TypeVarTuple

Ts = TypeVarTuple("Ts")
T = TypeVar("T")


class PerLoop(Generic[T]):
    """One value for each event loop, made at its first use there and forgotten when the loop is closed."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: dict[asyncio.AbstractEventLoop, T] = {}

    def get(self) -> T:
        """Return the running loop's value."""
        loop = asyncio.get_running_loop()
        if loop not in self._values:
            self._values = {other: value for other, value in self._values.items() if not other.is_closed()}
            self._values[loop] = self._make()
        return self._values[loop]


class Bell:
    """Wakes all that wait for it, in whichever event loop."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until it rings, but no longer than so many seconds."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait([future], timeout=seconds)
        finally:
            self._waiting.discard(future)

    def ring(self) -> None:
        """Wake all that wait now."""
        for future in tuple(self._waiting):
            call_soon(future.get_loop(), _wake, future)


def call_soon(loop: asyncio.AbstractEventLoop, fn: Callable[[*Ts], object], *args: *Ts) -> None:
    """Call a function soon in an event loop, from any thread; one that is closed by then calls nothing any more."""
    with suppress(RuntimeError):  # looked at before, it could be closed in between
        loop.call_soon_threadsafe(fn, *args)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def is_stray_cancellation() -> bool:
    """Whether a `CancelledError` comes from something that was waited for, and nobody has cancelled this task.

    A task group takes a task that ends with it for one that it cancelled itself: the work would be lost without a word.
    """
    task = asyncio.current_task()
    return task is not None and not task.cancelling()


def refuse_to_block(instead: str) -> None:
    """Refuse a call that blocks where an event loop is running.

    Args:
        instead: What to write there.

    Raises:
        RuntimeError: One is running.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"this blocks, and is called from async code; write: {instead}")
