"""The log: where events go and come from.

`Journal` is the protocol; `memory` and `sqlite` are its two stores, `log` is one run's way into them. Nothing
outside this package writes SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from orchestrator.errors import ConfigError, JournalError, nearest

if TYPE_CHECKING:  # the list of runs needs no events, and they take long to import
    from orchestrator.events import ApprovalAsked, Event
    from orchestrator.messages import Json

ENGINE_FOLDER = ".ori"
"""Holds a project's runs; no tool looks into it."""
SignalKind = Literal["approve", "deny", "answer", "cancel"]
DONE_BY = {"approve": "approved by", "deny": "denied by", "answer": "answered by", "cancel": "cancelled by"}
"""What people read of a signal, before the name of who sent it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A word from outside about a run: written by any process, once, twice or late; the first for a call counts."""

    run: str
    key: str = ""
    """Key of the call that it is about; empty: it is about the whole run (`cancel`)."""
    kind: SignalKind
    by: str
    """Who gave it."""
    at: float
    """Seconds since the epoch."""
    data: Mapping[str, Json] = field(default_factory=dict)
    """`arguments` of an approval that changes them, `why` of a denial, `text` of an answer."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One line of the list of runs."""

    run: str
    goal: str
    status: str
    """As in `RunResult.status`. A run without an end, or that went on after it, is `running` while somebody owns it,
    else `needs_review` where calls wait for a person, else `interrupted`."""
    started: float
    """Seconds since the epoch."""
    ended: float | None
    cost: str | None
    tokens: int
    waiting: int = 0
    """Calls that wait for a person."""
    session: str | None = None
    user: str | None = None


class Journal(Protocol):
    """An append-only store of events. Safe to use from several event loops, one after another."""

    durable: bool
    """What it holds outlives the process, so that a run can end and wait there for a person's word."""

    def write(self, event: Event) -> None:
        """Take an event; it is durable only after a `commit` that was called later. Raises nothing: see `commit`."""

    async def commit(self) -> None:
        """Wait until everything written so far is durable.

        Raises:
            JournalError: The store cannot be written. What was written is kept and tried again at the next commit.
        """

    async def events(self, run: str, after: int = 0) -> Sequence[Event]:
        """Return a run's events in order, those after a number.

        Raises:
            JournalError: There is no such run, or a row cannot be read.
        """

    async def runs(self) -> Sequence[RunInfo]:
        """Return all runs, the newest first."""

    async def info(self, run: str) -> RunInfo:
        """Return the line of one run.

        Raises:
            JournalError: There is no such run.
        """

    async def delete(self, run: str) -> int:
        """Forget a run, its signals and the blobs that no other run has; return how many bytes of data that were.

        The caller must own it.
        """

    async def session(self, session: str, user: str | None) -> Sequence[Event]:
        """Return starts, ends and variables of the runs of a user's session, in order."""

    async def cost(self, since: float) -> Decimal:
        """Return the money spent on model calls of all runs since a moment; replayed ones cost nothing.

        Args:
            since: Seconds since the epoch.
        """

    async def resolve(self, prefix: str) -> str:
        """Return the id of the one run whose id starts with this.

        Raises:
            JournalError: No run fits, or several do.
        """

    async def send(self, signal: Signal) -> Signal:
        """Store a signal durably unless its call has one already, and return the one that counts.

        Raises:
            JournalError: The store cannot be written.
        """

    async def signals(self, run: str) -> Sequence[Signal]:
        """Return the signals of a run in the order they came."""

    def watch(self, changed: Callable[[], None]) -> AbstractContextManager[None]:
        """Call back soon after a signal came, from whichever process, in the running event loop."""

    async def questions(self, run: str | None = None) -> Sequence[ApprovalAsked]:
        """Return the calls that wait for a person's word, of one run or of all, the oldest first."""

    def own(self, run: str) -> AbstractAsyncContextManager[None]:
        """Be the only one who works on a run, across processes, until the context ends or the process dies.

        Raises:
            JournalError: Somebody else works on it.
        """

    async def aclose(self) -> None:
        """Write what is left and let go of the store; a closed journal opens again at the next use."""


def open_journal(journal: str | Path | Journal, default: Path) -> Journal:
    """Return the journal that a setting names.

    Args:
        journal: `"memory"`, `"sqlite"`, the path of a database, or a journal of one's own.
        default: The database that `"sqlite"` stands for.

    Raises:
        ConfigError: A word that is neither a known name nor looks like a path.
    """
    if not isinstance(journal, str | Path):
        return journal
    if journal == "memory":
        from orchestrator.journal.memory import MemoryJournal

        return MemoryJournal()
    from orchestrator.journal.sqlite import SqliteJournal

    if journal == "sqlite":
        return SqliteJournal(default)
    path = Path(journal).expanduser()
    if isinstance(journal, str) and path.name == journal and not path.suffix:
        hint = nearest(journal, ("memory", "sqlite"))
        raise ConfigError(
            f"journal {journal!r} is not known{hint}; a path needs a folder or a suffix, as in './runs.db'"
        )
    return SqliteJournal(path)


def find_run(prefix: str, runs: Sequence[str]) -> str:
    """Return the one run that the beginning of its id means, or any part that no other id has.

    Raises:
        JournalError: No run fits, or several do.
    """
    found = [run for run in runs if run.startswith(prefix)] or [run for run in runs if prefix in run]
    if prefix in found:
        return prefix
    if not found:
        raise unknown_run(prefix, runs)
    if len(found) > 1:
        raise JournalError(f"{prefix!r} fits {len(found)} runs, such as {', '.join(found[:5])}; give more of the id")
    return found[0]


def unknown_run(run: str, runs: Sequence[str]) -> JournalError:
    """Return the error for a run that the log does not hold."""
    return JournalError(f"there is no run {run!r} in the log{nearest(run, sorted(runs)[-5:])}; `ori runs` lists them")


def open_status(owned: bool, waiting: int) -> str:
    """Return the status of a run that has no end."""
    return "running" if owned else "needs_review" if waiting else "interrupted"
