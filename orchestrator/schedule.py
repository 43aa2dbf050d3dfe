"""Runs what is ready of a plan, each subtask the moment its needs are done. Knows nothing of models."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count

from orchestrator.errors import RunStopped
from orchestrator.plan import Plan, Subtask
from orchestrator.results import Outcome


class Slots:
    """A run's pool of working slots. When they are short, the ticket with the highest priority comes first."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiting: list[tuple[float, int, Ticket]] = []
        self._order = count()

    def ticket(self, priority: float) -> Ticket:
        """Stand in line now; `async with ticket` waits for the slot and holds it."""
        ticket = Ticket(self, priority)
        self._enqueue(ticket)
        return ticket

    def _enqueue(self, ticket: Ticket) -> None:
        heapq.heappush(self._waiting, (-ticket.priority, next(self._order), ticket))
        self._grant()

    def _grant(self) -> None:
        while self._free and self._waiting:
            ticket = heapq.heappop(self._waiting)[2]
            if not ticket.left:
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

    async def __aenter__(self) -> Ticket:
        try:
            await self.granted.wait()
        except asyncio.CancelledError:
            self.leave()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        self.leave()

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


async def run(plan: Plan, slots: Slots, execute: Execute, skip: Callable[[Subtask, str], Outcome]) -> None:
    """Run all of the plan that has not ended, until nothing is left that could start.

    Args:
        plan: Gets each outcome as it comes.
        slots: Shared with all other planners of the run.
        execute: Runs one subtask; raises nothing but `CancelledError` and what ends the run.
        skip: Makes the outcome of a subtask that a failed need keeps from running, given the cause.
    """

    def launch() -> None:
        while ready := plan.ready():
            length = plan.remaining()
            for subtask in ready:
                plan.started.add(subtask.id)
                if cause := plan.blocked(subtask):
                    plan.outcomes[subtask.id] = skip(subtask, cause)
                else:
                    group.create_task(one(subtask, slots.ticket(length[subtask.id])), name=subtask.id)

    async def one(subtask: Subtask, ticket: Ticket) -> None:
        async with ticket:
            plan.outcomes[subtask.id] = await execute(subtask, ticket)
            launch()  # before the slot goes back: what became ready competes for it

    try:
        async with asyncio.TaskGroup() as group:
            launch()
    except BaseExceptionGroup as errors:
        stopped, rest = errors.split(RunStopped)
        if stopped is None or rest is not None:
            raise
        raise stopped.exceptions[0] from None
    if (task := asyncio.current_task()) and task.cancelling():  # 3.11 and 3.12: a failing child can swallow it
        raise asyncio.CancelledError
