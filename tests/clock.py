"""A clock that only a test moves."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count


class Clock:
    """Time that passes when a test says so, or, with `instant`, as soon as somebody waits for it."""

    def __init__(self, *, instant: bool = False) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        """What was asked for, in order."""
        self._instant = instant
        self._order = count()
        self._sleeping: list[tuple[float, int, asyncio.Future[None]]] = []
        self._changed = asyncio.Event()

    def __call__(self) -> float:
        return self.now

    @property
    def sleeping(self) -> int:
        """How many wait."""
        return sum(not future.done() for _, _, future in self._sleeping)

    async def sleep(self, seconds: float) -> None:
        """Wait for the time to pass."""
        self.slept.append(seconds)
        if self._instant:
            self.now += seconds
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleeping, (self.now + seconds, next(self._order), future))
        self._changed.set()
        await future

    def advance(self, seconds: float) -> None:
        """Let time pass, and wake who has waited long enough, in the order of their times."""
        self.now += seconds
        while self._sleeping and self._sleeping[0][0] <= self.now:
            future = heapq.heappop(self._sleeping)[2]
            if not future.done():
                future.set_result(None)

    async def until_sleeping(self, number: int) -> None:
        """Wait until so many wait."""
        while self.sleeping != number:
            self._changed.clear()
            await self._changed.wait()
