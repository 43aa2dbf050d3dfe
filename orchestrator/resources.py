"""What tools keep open between calls: a container, a browser, a connection. Opened on first use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from contextlib import AbstractAsyncContextManager
from typing import Any, Self, TypeVar

from orchestrator.bounded import GRACE

T = TypeVar("T")

CLOSING = 5.0
"""Seconds that closing may take; what is not closed then is cancelled."""


class Resources:
    """What one scope keeps open, by key. Leaving the context closes all of it, within a bound.

    Each resource is entered and left in one task of its own: libraries built on anyio and Playwright demand it, and a
    cancelled call takes nothing from its siblings.

    Args:
        closing: Seconds that closing may take.
    """

    def __init__(self, *, closing: float = CLOSING) -> None:
        self._closing = closing
        self._held: dict[Hashable, _Held] = {}

    async def get(self, key: Hashable, open: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """Return what is kept under a key; the first caller's `open` makes it, others wait for that.

        What could not be opened is tried anew by the next caller.
        """
        held = self._held.get(key)
        if held is None or held.failed:
            held = self._held[key] = _Held(open)
        value: T = await asyncio.shield(held.opened)
        return value

    def held(self, key: Hashable) -> Any:
        """Return what is open under a key, or None."""
        held = self._held.get(key)
        return held.opened.result() if held and held.opened.done() and not held.failed else None

    async def drop(self, key: Hashable) -> None:
        """Close what is kept under a key, if there is anything; the next `get` opens it anew."""
        if held := self._held.pop(key, None):
            await _close([held], self._closing)

    async def aclose(self) -> None:
        """Close everything, all at once."""
        held, self._held = list(self._held.values()), {}
        await _close(held, self._closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


class _Held:
    """One open resource, and the task that owns it."""

    def __init__(self, open: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[Any] = loop.create_future()
        self.closing = asyncio.Event()
        # not in a TaskGroup: the resource outlives the call that opened it, and its end must be bounded
        self.task = loop.create_task(self._own(open))

    @property
    def failed(self) -> bool:
        return self.opened.done() and (self.opened.cancelled() or self.opened.exception() is not None)

    async def _own(self, open: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        try:
            async with open() as value:
                self.opened.set_result(value)
                await self.closing.wait()
        except BaseException as error:
            if self.opened.done():
                raise
            if isinstance(error, asyncio.CancelledError):
                self.opened.cancel()
                raise
            self.opened.set_exception(error)
            self.opened.exception()  # told to whoever waits; nobody has to


async def _close(all_held: list[_Held], seconds: float) -> None:
    for held in all_held:
        if held.opened.done():
            held.closing.set()
        else:
            held.task.cancel()
    tasks = {held.task for held in all_held}
    for limit in (seconds, GRACE):
        if tasks:
            done, tasks = await asyncio.wait(tasks, timeout=limit)
            for task in done:
                if not task.cancelled():
                    task.exception()  # what fails while it is closed is gone all the same
            for task in tasks:
                task.cancel()
