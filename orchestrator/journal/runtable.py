"""A line for each run, in a table of its own: kept at each write, so that the list of runs reads no events."""

from __future__ import annotations

import json
import sqlite3

from orchestrator.journal.queries import READ, unreadable

SCHEMA = """
CREATE TABLE run(
    run TEXT PRIMARY KEY, goal TEXT NOT NULL, session TEXT, user TEXT, started REAL NOT NULL,
    ended REAL, status TEXT, cost TEXT, tokens INTEGER
);
CREATE INDEX run_session ON run(session, user);
"""
"""What stands in the second line is that of an end which stands; a run that goes on has none."""


def fill(db: sqlite3.Connection) -> None:
    """Make the lines of runs that were stored before there was this table."""
    events = f"{READ} WHERE type IN ('run.started', 'run.ended', 'run.resumed') ORDER BY event.rowid"
    for run, seq, at, type_, _, _, data in db.execute(events).fetchall():
        try:
            note(db, run, at, type_, data)
        except ValueError as error:
            raise unreadable(run, seq, error)


def note(db: sqlite3.Connection, run: str, at: float, type_: str, data: bytes) -> None:
    """Note what an event that is stored means for the line of its run; most mean nothing."""
    if type_ == "run.started":
        start = json.loads(data)
        row = (run, start["goal"], start.get("session"), start.get("user"), at)
        db.execute("INSERT OR IGNORE INTO run(run, goal, session, user, started) VALUES (?, ?, ?, ?, ?)", row)
    elif type_ == "run.ended":
        result = json.loads(data)["result"]
        usage = result["usage"]
        _end(db, run, at, result["status"], usage["cost"], usage["prompt"] + usage["completion"])
    elif type_ == "run.resumed":
        _end(db, run, None, None, None, None)


def _end(db: sqlite3.Connection, run: str, *end: float | str | None) -> None:
    db.execute("UPDATE run SET ended = ?, status = ?, cost = ?, tokens = ? WHERE run = ?", (*end, run))
