"""Who wants to know when a word from outside came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Watchers:
    """Who wants to know of new signals, each in an event loop of its own. Safe to use from threads."""

    def __init__(self) -> None:
        self._all: set[tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = set()

    def __bool__(self) -> bool:
        return bool(self._all)

    @contextmanager
    def watch(self, changed: Callable[[], None]) -> Iterator[None]:
        """Call back soon after a signal came, in the running event loop, until the context ends."""
        watcher = (asyncio.get_running_loop(), changed)
        self._all.add(watcher)
        try:
            yield
        finally:
            self._all.discard(watcher)

    def tell(self) -> None:
        """Call everybody back."""
        for loop, changed in tuple(self._all):
            if not loop.is_closed():
                loop.call_soon_threadsafe(changed)
