"""What is asked of a log's database. The list of runs loads no events: `ori runs` is a short look.

Whoever calls has opened the database.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

import orjson

from orchestrator.errors import JournalError
from orchestrator.journal import RunInfo, open_status
from orchestrator.journal.owner import Owners

if TYPE_CHECKING:
    from orchestrator.events import ApprovalAsked, Event

READ = """
SELECT event.run, seq, at, type, path, key, CAST(coalesce(blob.bytes, data) AS BLOB)
FROM event LEFT JOIN blob ON blob.sha256 = data
"""


def events(db: sqlite3.Connection, run: str, after: int) -> Iterator[Event]:
    """Yield a run's events in order, those after a number."""
    rows = db.execute(f"{READ} WHERE run = ? AND seq > ? ORDER BY seq", (run, after))
    for number, row in enumerate(rows, start=after + 1):
        if row[1] != number:
            raise JournalError(f"event {number} of run {run} is missing")
        yield _event(*row)


def _event(run: str, seq: int, at: float, type_: str, path: str, key: str, data: bytes) -> Event:
    from orchestrator.codec import decode

    envelope = orjson.dumps({"run": run, "seq": seq, "at": at, "type": type_, "path": path, "key": key})
    try:
        return decode(envelope[:-1] + (b"," if len(data) > 2 else b"") + data[1:])
    except ValueError as error:
        raise unreadable(run, seq, error)


def questions(db: sqlite3.Connection, run: str | None) -> list[ApprovalAsked]:
    """Return the calls that wait for a person, the oldest first."""
    rows = db.execute(f"{READ} {_OPEN_QUESTIONS} ORDER BY at, seq", (run, run))
    return [cast("ApprovalAsked", _event(*row)) for row in rows]


def unreadable(run: str, seq: int, error: ValueError) -> JournalError:
    """Return the error for an event that is not stored as it was written."""
    from pydantic import ValidationError

    why = str(error)
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        why = f"{'.'.join(map(str, first['loc']))} {first['msg']}".strip()
    return JournalError(f"event {seq} of run {run} cannot be read: {why}")


def runs(db: sqlite3.Connection, owners: Owners, only: str | None = None) -> list[RunInfo]:
    """Return the lines of all runs, the newest first, or of one."""
    open = db.execute(_OPEN, (only, only)).fetchall()
    left = {run for (run,) in open if not owners.held(run)}  # first: then what they wrote in the end is read, too
    waiting = Counter(run for (run,) in db.execute(f"SELECT run FROM event {_OPEN_QUESTIONS}", (only, only)))
    infos = []
    for run, goal, session, user, started, ended, status, cost, tokens in db.execute(_LINES, (only, only)).fetchall():
        if ended is None:
            status = open_status(run not in left, waiting[run])
            cost, tokens = _used(db, run)
        infos.append(RunInfo(run, goal, status, started, ended, cost, tokens, waiting[run], session, user))
    return infos


def _used(db: sqlite3.Connection, run: str) -> tuple[str | None, int]:
    """Return what the model calls of a run without an end have cost, and their tokens."""
    usages = [reply["usage"] for reply in _load(db, "WHERE type = 'model.replied' AND run = ?", run)]
    costs = [Decimal(usage["cost"]) for usage in usages if usage["cost"] is not None]
    return str(sum(costs)) if costs else None, sum(usage["prompt"] + usage["completion"] for usage in usages)


def session(db: sqlite3.Connection, session: str, user: str | None) -> list[Event]:
    """Return starts, ends and variables of the runs of a user's session, in order."""
    rows = db.execute(f"{READ} {OF_SESSION}", (session, user))
    return [_event(*row) for row in rows]


def cost(db: sqlite3.Connection, since: float) -> Decimal:
    """Return the money spent on model calls of all runs since a moment."""
    replies = list(_load(db, "WHERE type = 'model.replied' AND at >= ?", since))
    paid = [reply["usage"]["cost"] for reply in replies if not reply.get("replayed")]
    return sum((Decimal(cost) for cost in paid if cost is not None), Decimal(0))


def _load(db: sqlite3.Connection, where: str, *values: str | float | None) -> Iterator[Any]:
    for run, seq, _, _, _, _, data in db.execute(f"{READ} {where}", values):
        try:
            yield orjson.loads(data)
        except ValueError as error:
            raise unreadable(run, seq, error)


_OPEN = "SELECT run FROM run WHERE ended IS NULL AND (? IS NULL OR run = ?)"
_LINES = """
SELECT run, goal, session, user, started, ended, status, cost, tokens FROM run
WHERE ? IS NULL OR run = ? ORDER BY started DESC, rowid DESC
"""
OF_SESSION = """
WHERE event.run IN (SELECT run FROM run WHERE session = ? AND user IS ?)
AND type IN ('run.started', 'variable.set', 'run.ended') ORDER BY at, event.rowid
"""
_OPEN_QUESTIONS = """
WHERE type = 'approval.asked' AND NOT EXISTS (
    SELECT 1 FROM signal WHERE signal.run = event.run AND signal.key = event.key
) AND NOT EXISTS (
    SELECT 1 FROM event AS later WHERE later.run = event.run AND later.seq > event.seq
    AND (later.type = 'run.ended' OR later.key = event.key AND later.type = 'tool.returned')
) AND (? IS NULL OR event.run = ?)
"""
