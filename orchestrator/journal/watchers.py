"""Who wants to know when a word from outside came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from orchestrator.eventloops import call_soon

_Watcher = tuple[asyncio.AbstractEventLoop, Callable[[], None]]


class Watchers:
    """Who wants to know of new signals, each in an event loop of its own. Safe to use from threads."""

    def __init__(self) -> None:
        self._all: set[_Watcher] = set()

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
        for watcher in tuple(self._all):
            call_soon(watcher[0], self._call, watcher)

    def _call(self, watcher: _Watcher) -> None:
        if watcher in self._all:  # still, now that its turn has come
            watcher[1]()
