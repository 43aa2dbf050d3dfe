"""A log in a SQLite database that many processes may share.

Events gather in memory; `commit` wakes the one thread that writes, and everything that waits shares a transaction.
What was written after the last commit is not stored with it: what a task writes between two of its waits is in the
database as a whole or not at all. Readers use connections of their own, which only undo what a killed process left
half done.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, closing
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from orchestrator.errors import JournalError
from orchestrator.journal import RunInfo, Signal, find_run, queries, runtable, unknown_run
from orchestrator.journal.owner import Owners
from orchestrator.journal.signals import SignalTable, of_run
from orchestrator.text.jsonable import well_formed

if TYPE_CHECKING:
    from orchestrator.events import ApprovalAsked, Event

_VERSION = 2
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS event(
    run TEXT NOT NULL, seq INTEGER NOT NULL, at REAL NOT NULL, type TEXT NOT NULL,
    path TEXT NOT NULL, key TEXT NOT NULL, hash TEXT NOT NULL, data TEXT NOT NULL,
    PRIMARY KEY (run, seq)
);
CREATE INDEX IF NOT EXISTS event_type ON event(type, run, seq);
CREATE INDEX IF NOT EXISTS event_replied ON event(type, at) WHERE type = 'model.replied';
CREATE TABLE IF NOT EXISTS blob(sha256 TEXT PRIMARY KEY, bytes BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS signal(
    id INTEGER PRIMARY KEY, run TEXT NOT NULL, key TEXT NOT NULL, signal TEXT NOT NULL,
    by TEXT NOT NULL, at REAL NOT NULL, data TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS signal_run ON signal(run);
{runtable.SCHEMA}"""
"""Also brings version 1 up to date, which had no table of runs."""
_BLOB = 256_000
"""Bytes of data beyond which a row holds the SHA-256 of a blob."""

T = TypeVar("T")


class _Row(NamedTuple):
    """What is stored of an event."""

    run: str
    seq: int
    at: float
    type: str
    path: str
    key: str
    hash: str
    data: bytes


class _Job(NamedTuple):
    """What the writing thread is asked to do."""

    done: Future[None]
    rows: int
    """Store this many of all rows ever written."""
    last: bool
    """And end."""


class SqliteJournal:
    """Keeps events in a SQLite database, made at the first use.

    Args:
        path: The database file.
        busy_timeout: Seconds to wait for another process that writes.
    """

    durable = True

    def __init__(self, path: str | Path, *, busy_timeout: float = 10.0) -> None:
        self.path = Path(path)
        self._busy_timeout = busy_timeout
        self._owners = Owners(self.path.with_name(f"{self.path.name}.locks"))
        self._signals = SignalTable(self.path, busy_timeout)
        self._rows: list[_Row] = []  # written, not yet durable
        self._stored = 0  # rows that are durable
        self._unwritable: str | None = None
        self._storing = threading.Lock()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._jobs: SimpleQueue[_Job] = SimpleQueue()

    def write(self, event: Event) -> None:
        """Take an event; it is durable only after a `commit` that was called later."""
        from orchestrator.codec import payload

        try:
            data = payload(event)
        except (TypeError, ValueError, RecursionError) as error:
            self._unwritable = f"event {event.seq} ({event.type}) of run {event.run} is no JSON: {error}"
            return
        hash_ = getattr(event, "hash", "")
        path, key = well_formed(event.path), well_formed(event.key)  # what cannot be stored would stop all that follows
        self._rows.append(_Row(event.run, event.seq, event.at, event.type, path, key, hash_, data))

    async def commit(self) -> None:
        """Wait until everything written so far is durable."""
        if self._rows:
            await asyncio.wrap_future(self._flush())
        if self._unwritable:
            raise JournalError(self._unwritable)

    async def events(self, run: str, after: int = 0) -> Sequence[Event]:
        """Return a run's events in order, those after a number."""
        nothing: list[Event] = []
        events = await self._read(lambda db: list(queries.events(db, run, after)), nothing)
        if not events and not after:
            raise unknown_run(run, await self._run_ids())
        return events

    async def runs(self) -> Sequence[RunInfo]:
        """Return all runs, the newest first."""
        return await self._read(lambda db: queries.runs(db, self._owners), [])

    async def info(self, run: str) -> RunInfo:
        """Return the line of one run."""
        nothing: list[RunInfo] = []
        infos = await self._read(lambda db: queries.runs(db, self._owners, run), nothing)
        if not infos:
            raise unknown_run(run, await self._run_ids())
        return infos[0]

    async def delete(self, run: str) -> int:
        """Forget a run, and return how many bytes of data it had; the file becomes smaller by and by."""
        await self.commit()
        return await asyncio.to_thread(self._delete, run)

    async def session(self, session: str, user: str | None) -> Sequence[Event]:
        """Return starts, ends and variables of the runs of a user's session, in order."""
        return await self._read(lambda db: queries.session(db, session, user), [])

    async def cost(self, since: float) -> Decimal:
        """Return the money spent on model calls of all runs since a moment."""
        return await self._read(lambda db: queries.cost(db, since), Decimal(0))

    async def resolve(self, prefix: str) -> str:
        """Return the id of the one run whose id starts with this."""
        return find_run(prefix, await self._run_ids())

    async def send(self, signal: Signal) -> Signal:
        """Store a signal durably unless its call has one already, and return the one that counts."""
        return await asyncio.to_thread(self._signals.send, signal)

    async def signals(self, run: str) -> Sequence[Signal]:
        """Return the signals of a run in the order they came."""
        return await self._read(lambda db: of_run(db, run), [])

    def watch(self, changed: Callable[[], None]) -> AbstractContextManager[None]:
        """Call back soon after a signal came, from whichever process, in the running event loop."""
        return self._signals.watch(changed)

    async def questions(self, run: str | None = None) -> Sequence[ApprovalAsked]:
        """Return the calls that wait for a person's word, of one run or of all, the oldest first."""
        return await self._read(lambda db: queries.questions(db, run), [])

    def own(self, run: str) -> AbstractAsyncContextManager[None]:
        """Be the only one who works on a run, across processes."""
        return self._owners.own(run)

    async def aclose(self) -> None:
        """Write what is left, end the thread and close the database."""
        if self._thread or self._rows:
            await asyncio.wrap_future(self._flush(last=True))
        if self._unwritable:
            raise JournalError(self._unwritable)

    async def _run_ids(self) -> list[str]:
        query = "SELECT run FROM run"
        return await self._read(lambda db: [run for (run,) in db.execute(query)], [])

    async def _read(self, query: Callable[[sqlite3.Connection], T], nothing: T) -> T:
        await self.commit()
        return await asyncio.to_thread(self._query, query, nothing)

    def _query(self, query: Callable[[sqlite3.Connection], T], nothing: T) -> T:
        if not self.path.exists():
            return nothing
        address = f"{self.path.absolute().as_uri()}?mode=rw"
        try:
            with closing(sqlite3.connect(address, uri=True, timeout=self._busy_timeout)) as db:
                if _is_set_up(db, self.path):
                    return query(db)
                if not db.execute("SELECT 1 FROM sqlite_master").fetchone():
                    return nothing
            with closing(_open(self.path, self._busy_timeout)) as db:  # brings it up to date
                return query(db)
        except sqlite3.Error as error:
            raise JournalError(f"cannot read the log {self.path}: {error}")

    def _delete(self, run: str) -> int:
        try:
            with closing(_open(self.path, self._busy_timeout)) as db:
                db.execute("BEGIN IMMEDIATE")
                size: int = db.execute(_SIZE, (run,)).fetchone()[0]
                blobs: list[tuple[str, int]] = db.execute(_BLOBS_OF_ONE, (run, run)).fetchall()
                db.executemany("DELETE FROM blob WHERE sha256 = ?", [(name,) for name, _ in blobs])
                for table in ("event", "signal", "run"):
                    db.execute(f"DELETE FROM {table} WHERE run = ?", (run,))
                db.execute("COMMIT")
                db.executescript("PRAGMA incremental_vacuum")  # `execute` would free one page only
        except sqlite3.Error as error:
            raise JournalError(f"cannot write the log {self.path}: {error}")
        return size + sum(length for _, length in blobs)

    def _flush(self, *, last: bool = False) -> Future[None]:
        """Ask the thread to store the rows (and to end, if this is the last job), and start it if there is none."""
        done: Future[None] = Future()
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._jobs = SimpleQueue()
                self._thread = threading.Thread(target=self._work, args=(self._jobs,), name="journal", daemon=True)
                self._thread.start()
            self._jobs.put(_Job(done, self._stored + len(self._rows), last))
            if last:
                self._thread = None
        return done

    def _work(self, jobs: SimpleQueue[_Job]) -> None:
        db: sqlite3.Connection | None = None
        last = False
        while not last:
            waiting = [jobs.get()]
            while not jobs.empty():
                waiting.append(jobs.get())
            last = waiting[-1].last
            problem: str | None = f"the thread that writes the log {self.path} died"
            try:
                db = db or _open(self.path, self._busy_timeout)
                self._store(db, waiting[-1].rows)
                problem = None
            except JournalError as error:
                problem = str(error)
            except (sqlite3.Error, OSError) as error:
                problem = f"cannot write the log {self.path}: {error}; {len(self._rows)} events wait for the next try"
            finally:
                if db and (problem or last):
                    db.close()  # undoes a half transaction
                    db = None
                for job in waiting:
                    _settle(job.done, problem)

    def _store(self, db: sqlite3.Connection, upto: int) -> None:
        with self._storing:
            rows = self._rows[: max(0, upto - self._stored)]
            if not rows:
                return
            db.execute("BEGIN IMMEDIATE")
            for row in rows:
                data = row.data.decode()
                if len(row.data) > _BLOB:
                    data = sha256(row.data).hexdigest()
                    db.execute("INSERT OR IGNORE INTO blob VALUES (?, ?)", (data, row.data))
                db.execute("INSERT INTO event VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*row[:-1], data))
                runtable.note(db, row.run, row.at, row.type, row.data)
            db.execute("COMMIT")
            with self._starting:
                del self._rows[: len(rows)]
                self._stored += len(rows)


def _settle(done: Future[None], problem: str | None) -> None:
    if not done.set_running_or_notify_cancel():
        return
    if problem:
        done.set_exception(JournalError(problem))
    else:
        done.set_result(None)


def _open(path: Path, busy_timeout: float) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path, timeout=busy_timeout, isolation_level=None)
    try:
        if not _is_set_up(db, path):
            _set_up(db, path, busy_timeout)
        db.execute("PRAGMA synchronous = FULL")
    except BaseException:
        db.close()
        raise
    return db


def _set_up(db: sqlite3.Connection, path: Path, busy_timeout: float) -> None:
    from filelock import FileLock

    # Switching to WAL does not wait for others who switch at the same time.
    with FileLock(path.with_name(f"{path.name}.setup"), timeout=busy_timeout) as lock:
        if not _is_set_up(db, path):
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(_SCHEMA)
            runtable.fill(db)
            db.execute(f"PRAGMA user_version = {_VERSION}")
            db.execute("COMMIT")
        Path(lock.lock_file).unlink(missing_ok=True)


def _is_set_up(db: sqlite3.Connection, path: Path) -> bool:
    """Whether the tables are there, all of them.

    Raises:
        JournalError: The database is something else, or of another version.
    """
    version, tables = db.execute(_STATE).fetchone()
    if version == 0 and tables:
        raise JournalError(f"{path} is a database, but not a log of runs; name another file")
    if version > _VERSION:
        raise JournalError(
            f"{path} has schema version {version}, expected {_VERSION}; use the version of ori that wrote it, "
            "or move the file away"
        )
    return bool(version == _VERSION)


_STATE = "SELECT user_version, (SELECT count(*) FROM sqlite_master) FROM pragma_user_version"
"""One statement: in two, another process sets the tables up in between."""
_SIZE = "SELECT coalesce(sum(length(CAST(data AS BLOB))), 0) FROM event WHERE run = ?"
_BLOBS_OF_ONE = """
SELECT sha256, length(bytes) FROM blob WHERE sha256 IN (SELECT data FROM event WHERE run = ?)
AND sha256 NOT IN (SELECT data FROM event WHERE run != ? AND length(data) = 64)
"""
