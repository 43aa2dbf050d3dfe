"""The words of people in a log's database: any process writes them, and the owner of a run notices within a moment."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import orjson

from orchestrator.errors import JournalError
from orchestrator.journal import DONE_BY, Signal
from orchestrator.journal.watchers import Watchers

POLL = 0.25
"""Seconds between two looks at the database, each of a few microseconds, while a run of this process is live."""
_READ = "SELECT run, key, signal, by, at, data FROM signal"


class SignalTable:
    """The signals of one database, and the one thread that looks out for those of other processes.

    Args:
        path: The database, which holds the tables already when something is sent.
        busy_timeout: Seconds to wait for another process that writes.
    """

    def __init__(self, path: Path, busy_timeout: float) -> None:
        self._path, self._busy_timeout = path, busy_timeout
        self._watchers = Watchers()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._look = threading.Event()

    def send(self, signal: Signal) -> Signal:
        """Store a signal unless its call has one already; return the one that counts."""
        address = f"{self._path.absolute().as_uri()}?mode=rw"
        try:
            with closing(sqlite3.connect(address, uri=True, timeout=self._busy_timeout, isolation_level=None)) as db:
                db.execute("PRAGMA synchronous = FULL")
                db.execute("BEGIN IMMEDIATE")
                standing = None if signal.kind == "cancel" else first_of(db, signal.run, signal.key)
                if standing is None:
                    row = (
                        signal.run,
                        signal.key,
                        signal.kind,
                        signal.by,
                        signal.at,
                        orjson.dumps(signal.data).decode(),
                    )
                    db.execute("INSERT INTO signal(run, key, signal, by, at, data) VALUES (?, ?, ?, ?, ?, ?)", row)
                db.execute("COMMIT")
        except sqlite3.Error as error:
            raise JournalError(f"cannot write the log {self._path}: {error}")
        self._look.set()
        return standing or signal

    @contextmanager
    def watch(self, changed: Callable[[], None]) -> Iterator[None]:
        """Call back soon after a signal came from any process."""
        with self._watchers.watch(changed):
            with self._starting:
                if self._thread is None or not self._thread.is_alive():
                    self._thread = threading.Thread(target=self._poll, name="signals", daemon=True)
                    self._thread.start()
            try:
                yield
            finally:
                self._look.set()

    def _poll(self) -> None:
        """Look for new signals as long as somebody watches; a database that cannot be read is tried again."""
        db: sqlite3.Connection | None = None
        version = last = None
        while True:
            with self._starting:
                if not self._watchers:
                    self._thread = None
                    break
            try:
                if db is None and self._path.exists():
                    address = f"{self._path.absolute().as_uri()}?mode=ro"
                    db = sqlite3.connect(address, uri=True, isolation_level=None)
                if db and (now := db.execute("PRAGMA data_version").fetchone()) != version:
                    newest = db.execute("SELECT max(id) FROM signal").fetchone()
                    version = now
                    if newest != last:
                        last = newest
                        self._watchers.tell()
            except sqlite3.Error:  # not set up yet, or busy
                if db:
                    db.close()
                db = version = None
            self._look.wait(POLL)
            self._look.clear()
        if db:
            db.close()


def first_of(db: sqlite3.Connection, run: str, key: str) -> Signal | None:
    """Return the signal that counts for a call."""
    row = db.execute(f"{_READ} WHERE run = ? AND key = ? ORDER BY id LIMIT 1", (run, key)).fetchone()
    return row and _signal(*row)


def of_run(db: sqlite3.Connection, run: str) -> list[Signal]:
    """Return the signals of a run in the order they came."""
    return [_signal(*row) for row in db.execute(f"{_READ} WHERE run = ? ORDER BY id", (run,))]


def _signal(run: str, key: str, kind: str, by: str, at: float, data: str) -> Signal:
    try:
        if kind not in DONE_BY:
            raise ValueError("there is no such signal")
        return Signal(run=run, key=key, kind=kind, by=by, at=at, data=orjson.loads(data))  # type: ignore[arg-type]
    except ValueError as error:
        raise JournalError(f"the signal {kind} for {key} of run {run} cannot be read: {error}")
