"""A log that lives as long as its process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from decimal import Decimal

from orchestrator.codec import payload
from orchestrator.errors import JournalError
from orchestrator.events import (
    ApprovalAsked,
    Event,
    ModelReplied,
    RunEnded,
    RunResumed,
    RunStarted,
    ToolReturned,
    VariableSet,
)
from orchestrator.journal import RunInfo, Signal, find_run, open_status, unknown_run
from orchestrator.journal.watchers import Watchers
from orchestrator.messages import Usage


class MemoryJournal:
    """Keeps events in lists.

    Args:
        keep: How many ended runs are remembered; beyond that the one that ended first is forgotten.
    """

    durable = False

    def __init__(self, *, keep: int = 1000) -> None:
        self._keep = keep
        self._runs: dict[str, list[Event]] = {}
        self._ended: dict[str, None] = {}
        self._owned: set[str] = set()
        self._signals: dict[str, list[Signal]] = {}
        self._watchers = Watchers()

    def write(self, event: Event) -> None:
        """Take an event."""
        self._runs.setdefault(event.run, []).append(event)
        if isinstance(event, RunResumed):
            self._ended.pop(event.run, None)
        elif isinstance(event, RunEnded):
            self._ended[event.run] = None
            if len(self._ended) > self._keep:
                oldest = next(iter(self._ended))
                del self._ended[oldest], self._runs[oldest]
                self._signals.pop(oldest, None)

    async def commit(self) -> None:
        """Do nothing: memory is as durable as it gets."""

    async def events(self, run: str, after: int = 0) -> Sequence[Event]:
        """Return a run's events in order, those after a number."""
        if run not in self._runs:
            raise unknown_run(run, list(self._runs))
        return tuple(event for event in self._runs[run] if event.seq > after)

    async def runs(self) -> Sequence[RunInfo]:
        """Return all runs, the newest first."""
        infos = [
            _info(started, events, run in self._owned, len(self._open(run)))
            for run, events in reversed(self._runs.items())
            if isinstance(started := events[0], RunStarted)
        ]
        return sorted(infos, key=lambda info: info.started, reverse=True)

    async def info(self, run: str) -> RunInfo:
        """Return the line of one run."""
        for info in await self.runs():
            if info.run == run:
                return info
        raise unknown_run(run, list(self._runs))

    async def delete(self, run: str) -> int:
        """Forget a run, and return how many bytes of data it had."""
        self._ended.pop(run, None)
        self._signals.pop(run, None)
        return sum(len(payload(event)) for event in self._runs.pop(run, ()))

    async def session(self, session: str, user: str | None) -> Sequence[Event]:
        """Return starts, ends and variables of the runs of a user's session, in order."""
        runs = [
            events
            for events in self._runs.values()
            if isinstance(start := events[0], RunStarted) and (start.session, start.user) == (session, user)
        ]
        return [event for events in runs for event in events if isinstance(event, RunStarted | RunEnded | VariableSet)]

    async def cost(self, since: float) -> Decimal:
        """Return the money spent on model calls of all runs since a moment."""
        recent = [event for events in self._runs.values() if events[-1].at >= since for event in events]
        replies = [event for event in recent if isinstance(event, ModelReplied)]
        paid = [event.usage.cost for event in replies if event.at >= since and not event.replayed]
        return sum((cost for cost in paid if cost is not None), Decimal(0))

    async def resolve(self, prefix: str) -> str:
        """Return the id of the one run whose id starts with this."""
        return find_run(prefix, list(self._runs))

    async def send(self, signal: Signal) -> Signal:
        """Keep a signal unless its call has one already, and return the one that counts."""
        of_run = self._signals.setdefault(signal.run, [])
        standing = next((other for other in of_run if other.key == signal.key and signal.kind != "cancel"), None)
        if standing is None:
            of_run.append(signal)
            self._watchers.tell()
        return standing or signal

    async def signals(self, run: str) -> Sequence[Signal]:
        """Return the signals of a run in the order they came."""
        return tuple(self._signals.get(run, ()))

    def watch(self, changed: Callable[[], None]) -> AbstractContextManager[None]:
        """Call back soon after a signal came, in the running event loop."""
        return self._watchers.watch(changed)

    async def questions(self, run: str | None = None) -> Sequence[ApprovalAsked]:
        """Return the calls that wait for a person's word, of one run or of all, the oldest first."""
        questions = [question for each in self._runs if run in (None, each) for question in self._open(each)]
        return sorted(questions, key=lambda question: question.at)

    def _open(self, run: str) -> list[ApprovalAsked]:
        asked: dict[str, ApprovalAsked] = {}
        for event in self._runs[run]:
            if isinstance(event, ApprovalAsked):
                asked[event.key] = event
            elif isinstance(event, ToolReturned):
                asked.pop(event.key, None)
            elif isinstance(event, RunEnded):
                asked.clear()
        answered = {signal.key for signal in self._signals.get(run, ())}
        return [question for key, question in asked.items() if key not in answered]

    @asynccontextmanager
    async def own(self, run: str) -> AsyncIterator[None]:
        """Be the only one who works on a run."""
        if run in self._owned:
            raise JournalError(f"run {run} is already being worked on in this process")
        self._owned.add(run)
        try:
            yield
        finally:
            self._owned.discard(run)

    async def aclose(self) -> None:
        """Do nothing: the runs stay readable."""


def _info(started: RunStarted, events: Sequence[Event], owned: bool, waiting: int) -> RunInfo:
    usage, end = Usage(), None
    for event in events:
        if isinstance(event, ModelReplied):
            usage += event.usage
        elif isinstance(event, RunEnded):
            end = event
        elif isinstance(event, RunResumed):
            end = None
    if end is not None:
        usage = end.result.usage
    return RunInfo(
        run=started.run,
        goal=started.goal,
        status=end.result.status if end else open_status(owned, waiting),
        started=started.at,
        ended=end.at if end else None,
        cost=None if usage.cost is None else str(usage.cost),
        tokens=usage.tokens,
        waiting=waiting,
        session=started.session,
        user=started.user,
    )
