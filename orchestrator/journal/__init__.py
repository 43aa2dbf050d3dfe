"""The log: where events go and come from.

`Journal` is the protocol; `memory` and `sqlite` are its two stores. Nothing outside this package writes SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.events import Event


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One line of the list of runs."""

    run: str
    goal: str
    status: str
    """As in `RunResult.status`; `running` until `run.ended` is there (or `interrupted`, when its owner is gone)."""
    started: float
    """Seconds since the epoch."""
    ended: float | None
    cost: str | None
    tokens: int


class Journal(Protocol):
    """An append-only store of events. Safe to use from several event loops, one after another."""

    def write(self, event: Event) -> None:
        """Take an event; it is durable only after a `commit` that was called later. Raises nothing: see `commit`."""

    async def commit(self) -> None:
        """Wait until everything written so far is durable.

        Raises:
            JournalError: The store cannot be written; what was written before is kept.
        """

    async def events(self, run: str) -> Sequence[Event]:
        """Return a run's events in order.

        Raises:
            JournalError: There is no such run, or a row cannot be read.
        """

    async def runs(self) -> Sequence[RunInfo]:
        """Return all runs, the newest first."""

    async def aclose(self) -> None:
        """Write what is left and let go of the store; a closed journal opens again at the next use."""
