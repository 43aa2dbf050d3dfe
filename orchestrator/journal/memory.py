"""A log that lives as long as its process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal

from orchestrator.errors import JournalError
from orchestrator.events import Event, ModelCalled, ModelReplied, RunEnded, RunStarted
from orchestrator.journal import RunInfo, find_run, unknown_run
from orchestrator.messages import Usage


class MemoryJournal:
    """Keeps events in lists.

    Args:
        keep: How many ended runs are remembered; beyond that the one that ended first is forgotten.
    """

    def __init__(self, *, keep: int = 1000) -> None:
        self._keep = keep
        self._runs: dict[str, list[Event]] = {}
        self._ended: dict[str, None] = {}
        self._owned: set[str] = set()

    def write(self, event: Event) -> None:
        """Take an event."""
        self._runs.setdefault(event.run, []).append(event)
        if isinstance(event, ModelCalled):
            self._ended.pop(event.run, None)
        elif isinstance(event, RunEnded):
            self._ended[event.run] = None
            if len(self._ended) > self._keep:
                oldest = next(iter(self._ended))
                del self._ended[oldest], self._runs[oldest]

    async def commit(self) -> None:
        """Do nothing: memory is as durable as it gets."""

    async def events(self, run: str) -> Sequence[Event]:
        """Return a run's events in order."""
        if run not in self._runs:
            raise unknown_run(run, list(self._runs))
        return tuple(self._runs[run])

    async def runs(self) -> Sequence[RunInfo]:
        """Return all runs, the newest first."""
        infos = [
            _info(started, events, run in self._owned)
            for run, events in reversed(self._runs.items())
            if isinstance(started := events[0], RunStarted)
        ]
        return sorted(infos, key=lambda info: info.started, reverse=True)

    async def cost(self, since: float) -> Decimal:
        """Return the money spent on model calls of all runs since a moment."""
        recent = [event for events in self._runs.values() if events[-1].at >= since for event in events]
        replies = [event for event in recent if isinstance(event, ModelReplied)]
        paid = [event.usage.cost for event in replies if event.at >= since and not event.replayed]
        return sum((cost for cost in paid if cost is not None), Decimal(0))

    async def resolve(self, prefix: str) -> str:
        """Return the id of the one run whose id starts with this."""
        return find_run(prefix, list(self._runs))

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


def _info(started: RunStarted, events: Sequence[Event], owned: bool) -> RunInfo:
    usage, end = Usage(), None
    for event in events:
        if isinstance(event, ModelReplied):
            usage += event.usage
        elif isinstance(event, RunEnded):
            end = event
        elif isinstance(event, ModelCalled):
            end = None  # the run went on
    if end is not None:
        usage = end.result.usage
    return RunInfo(
        run=started.run,
        goal=started.goal,
        status=end.result.status if end else "running" if owned else "interrupted",
        started=started.at,
        ended=end.at if end else None,
        cost=None if usage.cost is None else str(usage.cost),
        tokens=usage.tokens,
    )
