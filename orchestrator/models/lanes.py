"""How fast an endpoint may be asked: requests at a time, requests and tokens per minute. First come, first served."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from orchestrator.eventloops import Bell, PerLoop

if TYPE_CHECKING:
    from asyncio_throttle.throttler import Throttler


@dataclass(slots=True)
class Reserved:
    """What one request counts against the tokens of its minute: an estimate, until its usage is known."""

    tokens: int
    at: float


class Lanes:
    """The way to one endpoint, shared by all that ask it.

    Args:
        concurrency: Requests at a time.
        rpm: Requests per minute; 0: no limit.
        tpm: Tokens per minute; 0: no limit.
        minute: Its length in seconds, for tests.
    """

    def __init__(self, concurrency: int = 8, rpm: int = 0, tpm: int = 0, *, minute: float = 60.0) -> None:
        self.rpm, self.tpm = rpm, tpm
        self.quiet_until = 0.0
        """Moment until which the server asked not to be asked, on the clock of who set it."""
        self._minute = minute
        self._slots = PerLoop(lambda: asyncio.Semaphore(concurrency))
        self._line = PerLoop(asyncio.Lock)
        self._reserved: deque[Reserved] = deque()
        self._corrected = Bell()

    @asynccontextmanager
    async def turn(self, tokens: int = 0) -> AsyncIterator[Reserved]:
        """Wait for a turn and hold it; its `tokens`, set within, correct what the request counts.

        Args:
            tokens: What the request may use at most, as far as one can tell.
        """
        async with self._slots.get():
            reserved = await self._counted(tokens) if self.rpm or self.tpm else Reserved(0, 0)
            try:
                yield reserved
            finally:
                self._corrected.ring()

    async def _counted(self, tokens: int) -> Reserved:
        """Count a request as soon as the minute has room for it. Only the first in line looks at the clock."""
        async with self._line.get():
            if self.tpm:
                await self._room_for(tokens)
            if self.rpm:
                await self._throttler.acquire()
            reserved = Reserved(tokens, time.monotonic())
            if self.tpm:
                self._reserved.append(reserved)
        return reserved

    async def _room_for(self, tokens: int) -> None:
        """Wait until so many tokens fit into the minute; more than a minute's go alone."""
        while self._used() and self._used() + tokens > self.tpm:
            await self._corrected.wait(self._reserved[0].at + self._minute - time.monotonic())

    def _used(self) -> int:
        start = time.monotonic() - self._minute
        while self._reserved and (self._reserved[0].at <= start or not self._reserved[0].tokens):
            self._reserved.popleft()
        return sum(reserved.tokens for reserved in self._reserved)

    @cached_property
    def _throttler(self) -> Throttler:
        from asyncio_throttle.throttler import Throttler

        return Throttler(self.rpm, period=self._minute)
