"""Runs what is ready of a plan, each subtask the moment its needs are done. Knows nothing of models."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Protocol

from orchestrator.errors import OriError
from orchestrator.plan import Plan, Subtask
from orchestrator.results import Outcome


class Slots:
    """A run's pool of working slots. When they are short, the ticket with the highest priority comes first."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiting: list[tuple[float, int, Ticket]] = []
        self._order = count()

    def ticket(self, priority: float) -> Ticket:
        """Stand in line now; the slot is there when the ticket is `granted`, and is given back by `leave`."""
        ticket = Ticket(self, priority)
        self._enqueue(ticket)
        return ticket

    def _enqueue(self, ticket: Ticket) -> None:
        heapq.heappush(self._waiting, (-ticket.priority, next(self._order), ticket))
        self._grant()

    def _grant(self) -> None:
        while self._free and self._waiting:
            ticket = heapq.heappop(self._waiting)[2]
            if not ticket.left and not ticket.granted.is_set():
                self._free -= 1
                ticket.granted.set()

    def _give_back(self) -> None:
        self._free += 1
        self._grant()


class Ticket:
    """A place in line for a slot, and then the slot itself."""

    def __init__(self, slots: Slots, priority: float) -> None:
        self.slots, self.priority = slots, priority
        self.granted = asyncio.Event()
        self.left = False

    def leave(self) -> None:
        """Give the slot back, or the place in line; harmless when done twice."""
        if not self.left:
            self.left = True
            if self.granted.is_set():
                self.slots._give_back()

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[None]:
        """Hold no slot inside the block: others work while this loop waits for them."""
        self.leave()
        yield
        self.left = False
        self.granted.clear()
        self.slots._enqueue(self)
        await self.granted.wait()


Execute = Callable[[Subtask, Ticket], Awaitable[Outcome]]


class AtWork(Protocol):
    """Counts who works, so that time without anybody at work is not counted."""

    def begin(self) -> None:
        """One more works."""

    def pause(self) -> None:
        """One less works."""


async def run(
    plan: Plan, slots: Slots, execute: Execute, skip: Callable[[Subtask, str], Outcome], at_work: AtWork | None = None
) -> None:
    """Run all of the plan that has not ended, until nothing is left that could start.

    Args:
        plan: Gets each outcome as it comes.
        slots: Shared with all other planners of the run.
        execute: Runs one subtask; raises nothing but `CancelledError` and an `OriError`, which ends the run.
        skip: Makes the outcome of a subtask that a failed need keeps from running, given the cause.
        at_work: Of the planner, who counts as one: its first subtask takes that place, and its last one gives it back.
    """
    running = 0

    def launch() -> None:
        while ready := plan.ready():
            for subtask in ready:
                plan.started.add(subtask.id)
                if cause := plan.blocked(subtask):
                    plan.outcomes[subtask.id] = skip(subtask, cause)
                else:
                    start(subtask, slots.ticket(plan.remaining[subtask.id]))

    def start(subtask: Subtask, ticket: Ticket) -> None:
        nonlocal running
        if running and at_work:
            at_work.begin()
        running += 1
        task = group.create_task(one(subtask, ticket), name=subtask.id)
        task.add_done_callback(lambda _: ended(ticket))  # also when it is cancelled before its first step

    def ended(ticket: Ticket) -> None:
        nonlocal running
        running -= 1
        if running and at_work:
            at_work.pause()
        ticket.leave()

    async def one(subtask: Subtask, ticket: Ticket) -> None:
        await ticket.granted.wait()
        async with starting:  # one in a turn of the event loop: many starts in one would keep it from all else
            await asyncio.sleep(0)
        plan.outcomes[subtask.id] = await execute(subtask, ticket)
        launch()  # before the slot goes back: what became ready competes for it

    starting = asyncio.Lock()
    try:
        async with asyncio.TaskGroup() as group:
            launch()
    except BaseExceptionGroup as errors:
        ends, rest = errors.split(OriError)
        if ends is None or rest is not None:
            raise
        raise ends.exceptions[0] from None
