"""A loop's time at work: how long it has worked, how long it may, and the slot that it holds meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from orchestrator.errors import LoopStopped
from orchestrator.failure import Failure, FailureKind
from orchestrator.limits import Deadline
from orchestrator.schedule import Ticket


class Shift:
    """The time of one loop and of all below it. Its clock stands while all of that waits for people.

    Args:
        deadline: In seconds of this clock.
        above: Of the planner that it works for; None: the root's.
        ticket: Its working slot.
        worked: Seconds before the run was interrupted.
        stopped: Called when the clock stops.
    """

    def __init__(
        self,
        deadline: Deadline,
        above: Shift | None = None,
        *,
        ticket: Ticket | None = None,
        worked: float = 0.0,
        stopped: Callable[[], object] = lambda: None,
    ) -> None:
        self.deadline, self._above, self._ticket, self._stopped = deadline, above, ticket, stopped
        self._at_work = 1
        self._seconds, self._since = worked, time.monotonic()
        self._limits: set[asyncio.Timeout] = set()

    @property
    def worked(self) -> float:
        """Seconds so far."""
        return self._seconds + (time.monotonic() - self._since if self._at_work else 0.0)

    @property
    def running(self) -> bool:
        """Whether the loop, or anything below it, works."""
        return self._at_work > 0

    @property
    def left(self) -> float:
        """Seconds until it has to sum up."""
        return self.deadline.soft - self.worked

    @property
    def for_a_tool(self) -> float:
        """Seconds that a tool may take, so that the loop can still sum up."""
        return self.left if self.left > 0 else (self.deadline.hard - self.worked) / 2

    def below(self, seconds: float | None, *, ticket: Ticket | None = None, worked: float = 0.0) -> Shift:
        """Return the time of a loop that works for this one; it must end before this one sums up.

        Args:
            seconds: What it may take; None: what is left.
            ticket: Its working slot.
            worked: Seconds before the run was interrupted.
        """
        most = self.left + worked
        deadline = Deadline.after(most if seconds is None else min(seconds, most))
        return Shift(deadline, self, ticket=ticket, worked=worked)

    def begin(self) -> None:
        """Count one more that works: the loop itself, or one below it."""
        self._at_work += 1
        if self._at_work == 1:
            if self._above:
                self._above.begin()
            self._since = time.monotonic()
            self._arm()

    def pause(self) -> None:
        """Count one less."""
        self._at_work -= 1
        if self._at_work == 0:
            self._seconds += time.monotonic() - self._since
            self._arm()
            if self._above:
                self._above.pause()
            self._stopped()

    @asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Wait inside the block for a person: hold no slot, and let the clock stand."""
        async with self.slot_lent():
            self.pause()
            try:
                yield
            finally:
                self.begin()

    def slot_lent(self) -> AbstractAsyncContextManager[None]:
        """Hold no slot inside the block."""
        return self._ticket.lent() if self._ticket else nullcontext()

    @asynccontextmanager
    async def limited(self) -> AsyncIterator[None]:
        """Stop what is inside when its time is up.

        Raises:
            LoopStopped: It was stopped.
        """
        try:
            async with asyncio.timeout(None) as limit:
                self._limits.add(limit)
                self._arm()
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            words = f"stopped after {self.worked:.0f} s, its time limit"
            raise LoopStopped("deadline", Failure(FailureKind.tool_timeout, words)) from None
        finally:
            self._limits.discard(limit)

    def _arm(self) -> None:
        left = self.deadline.hard - self.worked
        when = asyncio.get_running_loop().time() + left if self._at_work else None
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(when)
