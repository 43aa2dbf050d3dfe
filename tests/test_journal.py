from __future__ import annotations

import asyncio
import fcntl
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError, JournalError
from orchestrator.events import (
    ArtifactStored,
    Event,
    MessageAppended,
    ModelCalled,
    ModelReplied,
    RunEnded,
    RunResumed,
    RunStarted,
    VariableSet,
    Warned,
)
from orchestrator.journal import Journal, Signal, open_journal, queries
from orchestrator.journal.log import RunLog
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.owner import Owners
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.messages import Message, ToolCall, Usage
from orchestrator.results import RunResult

USAGE = Usage(calls=1, prompt=100, cached=20, completion=10, cost=Decimal("0.0015"))


def started(run: str = "r1", at: float = 1.0, goal: str = "统计 sales.csv") -> RunStarted:
    return RunStarted(
        run=run, seq=1, at=at, goal=goal, root="ori", params={}, inputs=("sales.csv",), workspace="/w", limits={},
        roles={}, tools={}, models={},
    )  # fmt: skip


def ended(run: str = "r1", seq: int = 2, at: float = 5.0, **fields: Any) -> RunEnded:
    result = {"status": "done", "stop_reason": "answer", "usage": USAGE + USAGE, **fields}
    return RunEnded(run=run, seq=seq, at=at, result=RunResult(run_id=run, **result))


def called(run: str, seq: int) -> ModelCalled:
    return ModelCalled(run=run, seq=seq, at=2.0, model="m", messages=2, hash="abc")


def replied(run: str, seq: int) -> ModelReplied:
    return ModelReplied(run=run, seq=seq, at=2.0, model="m", finish_reason="stop", usage=USAGE, seconds=0.1)


def note(run: str, seq: int, text: str = "x") -> Warned:
    return Warned(run=run, seq=seq, at=2.0, text=text)


@pytest.fixture(params=["memory", "sqlite"])
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Journal]:
    opened = open_journal(request.param, tmp_path / "新 run?" / "runs.db")
    yield opened
    await opened.aclose()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def query(path: Path, sql: str, *values: object) -> list[Any]:
    with closing(sqlite3.connect(path)) as db, db:
        return db.execute(sql, values).fetchall()


# Both stores


async def test_events_come_back_as_they_were_and_in_order(journal: Journal) -> None:
    message = Message("assistant", "看", (ToolCall("c1", "read_file", '{"path": "a"}'),), extra={"reasoning": "…"})
    events: list[Event] = [
        started(),
        MessageAppended(run="r1", seq=2, at=1.5, path="ori", key="ori:1:model", message=message, hash="abc"),
        VariableSet(run="r1", seq=3, at=1.6, name="total", value={"华东": [1, 2.5, None, 2**70]}),
        ArtifactStored(run="r1", seq=4, at=1.7, file="a/报告.md", size=3, sha256="00", media_type="text/markdown"),
        replied("r1", 5),
        ended(seq=6, value={"a": [1]}, outcomes={}),
    ]
    for event in events:
        journal.write(event)
    await journal.commit()
    assert list(await journal.events("r1")) == events


async def test_a_text_that_no_file_can_hold_stops_nobody(journal: Journal) -> None:
    journal.write(Warned(run="r1", seq=1, at=1.0, path="\udcff", key="\udcff", text="\udcff"))
    await journal.commit()
    journal.write(Warned(run="r1", seq=2, at=2.0, text="next"))
    assert [event.seq for event in await journal.events("r1")] == [1, 2]


async def test_what_is_written_can_be_read_at_once(journal: Journal) -> None:
    journal.write(started())
    assert len(await journal.events("r1")) == 1
    assert [info.run for info in await journal.runs()] == ["r1"]


async def test_a_lone_surrogate_does_no_harm(journal: Journal) -> None:
    message = Message("tool", "half \ud83d of a pair", call_id="c")
    journal.write(started())
    journal.write(MessageAppended(run="r1", seq=2, message=message, hash="h"))
    journal.write(ended(seq=3, answer="\udc00", value={"\ud800": 1}))
    await journal.commit()
    assert len(await journal.events("r1")) == 3
    assert (await journal.runs())[0].status == "done"


async def test_an_unknown_run_is_an_error_that_names_a_close_one(journal: Journal) -> None:
    with pytest.raises(JournalError, match="no run 'run-a'"):
        await journal.events("run-a")
    journal.write(started("run-ab"))
    with pytest.raises(JournalError, match="did you mean 'run-ab'"):
        await journal.events("run-a")


async def test_a_run_is_found_by_the_start_of_its_id(journal: Journal) -> None:
    for run in ("a1", "a12", "b2"):
        journal.write(started(run))
    assert await journal.resolve("b") == "b2"
    assert await journal.resolve("a1") == "a1"
    with pytest.raises(JournalError, match="'a' fits 2 runs, such as a1, a12"):
        await journal.resolve("a")
    with pytest.raises(JournalError, match="no run 'b22' in the log; did you mean 'b2'"):
        await journal.resolve("b22")


async def test_runs_are_listed_with_the_newest_first(journal: Journal) -> None:
    journal.write(started("old", at=1.0, goal="老"))
    journal.write(started("new", at=9.0))
    journal.write(started("mid", at=5.0))
    journal.write(ended("old", at=7.0, status="partial"))
    runs = await journal.runs()
    assert [info.run for info in runs] == ["new", "mid", "old"]
    old = runs[-1]
    assert (old.goal, old.status, old.started, old.ended) == ("老", "partial", 1.0, 7.0)
    assert (old.cost, old.tokens) == ("0.0030", 220)


async def test_a_run_without_an_end_is_running_while_it_has_an_owner(journal: Journal) -> None:
    for event in (started(), called("r1", 2), replied("r1", 3), called("r1", 4), replied("r1", 5), called("r1", 6)):
        journal.write(event)
    async with journal.own("r1"):
        assert (await journal.runs())[0].status == "running"
    (info,) = await journal.runs()
    assert (info.status, info.ended) == ("interrupted", None)
    assert (info.cost, info.tokens) == ("0.0030", 220)


async def test_a_cost_nobody_knows_is_not_shown_as_nothing(journal: Journal) -> None:
    journal.write(started())
    journal.write(replace(replied("r1", 2), usage=Usage(calls=1, prompt=5)))
    (info,) = await journal.runs()
    assert (info.cost, info.tokens) == (None, 5)


async def test_an_end_stands_until_the_run_goes_on(journal: Journal) -> None:
    journal.write(started())
    journal.write(ended(seq=2, status="failed"))
    journal.write(note("r1", 3, "undone"))
    assert (await journal.runs())[0].status == "failed"
    journal.write(RunResumed(run="r1", seq=4, at=4.0, reused=1, again=0, paid_twice=0))
    assert (await journal.runs())[0].status == "interrupted"
    journal.write(ended(seq=5))
    assert (await journal.runs())[0].status == "done"


async def test_a_deleted_run_leaves_nothing_and_others_keep_what_they_share(journal: Journal) -> None:
    shared = "x" * 300_000
    for run in ("r1", "r2"):
        journal.write(started(run))
        journal.write(note(run, 2, shared))
    journal.write(note("r1", 3, "y" * 300_000))
    await journal.commit()
    await journal.send(Signal(run="r1", kind="cancel", by="me", at=1.0))
    async with journal.own("r1"):
        assert await journal.delete("r1") > 300_000
    with pytest.raises(JournalError, match="no run 'r1'"):
        await journal.info("r1")
    assert not await journal.signals("r1")
    assert (await journal.info("r2")).run == "r2"
    [*_, kept] = await journal.events("r2")
    assert isinstance(kept, Warned) and kept.text == shared
    if isinstance(journal, SqliteJournal):
        assert query(journal.path, "SELECT count(*) FROM blob") == [(1,)]
        assert query(journal.path, "PRAGMA freelist_count") == [(0,)], "the file can become smaller"


async def test_only_what_came_after_an_event_is_read(journal: Journal) -> None:
    for event in (started(), note("r1", 2), note("r1", 3)):
        journal.write(event)
    assert [event.seq for event in await journal.events("r1", 2)] == [3]
    assert not await journal.events("r1", 3)


async def test_a_run_has_one_owner(journal: Journal) -> None:
    async with journal.own("r1"), journal.own("r2"):
        with pytest.raises(JournalError, match="run r1 is already being worked on"):
            async with journal.own("r1"):
                pytest.fail("there must be one owner")
    async with journal.own("r1"):
        pass


async def test_a_closed_journal_opens_again_at_the_next_use(journal: Journal) -> None:
    journal.write(started())
    await journal.aclose()
    journal.write(note("r1", 2))
    await journal.aclose()
    await journal.aclose()
    assert len(await journal.events("r1")) == 2


async def test_an_unused_journal_holds_no_runs(journal: Journal) -> None:
    await journal.commit()
    assert list(await journal.runs()) == []
    await journal.aclose()


def test_a_journal_serves_one_event_loop_after_another(path: Path) -> None:
    journal = SqliteJournal(path)

    async def one(seq: int) -> None:
        journal.write(started() if seq == 1 else note("r1", seq))
        await journal.commit()

    for seq in range(1, 4):
        asyncio.run(one(seq))
    assert len(asyncio.run(journal.events("r1"))) == 3
    asyncio.run(journal.aclose())


# Memory


async def test_memory_forgets_the_run_that_ended_first(path: Path) -> None:
    journal = MemoryJournal(keep=2)
    for run in ("a", "b", "c"):
        journal.write(started(run))
    for run in ("b", "a", "c"):
        journal.write(ended(run))
    assert sorted([info.run for info in await journal.runs()]) == ["a", "c"]


# SQLite


async def test_nothing_is_made_before_the_first_event(path: Path) -> None:
    journal = SqliteJournal(path)
    await journal.runs()
    await journal.commit()
    await journal.aclose()
    assert not path.exists()


async def test_the_tables_are_those_of_the_contract(path: Path) -> None:
    journal = SqliteJournal(path)
    journal.write(started())
    journal.write(replace(called("r1", 2), path="ori/a", key="ori/a:1:model"))
    await journal.aclose()
    names = ("event", "blob", "signal", "run")
    tables = {name: [c[1] for c in query(path, f"PRAGMA table_info({name})")] for name in names}
    assert tables["event"] == ["run", "seq", "at", "type", "path", "key", "hash", "data"]
    assert tables["blob"] == ["sha256", "bytes"]
    assert tables["signal"] and tables["run"]
    assert query(path, "SELECT count(*) FROM sqlite_master WHERE type = 'table'") == [(4,)]
    assert query(path, "PRAGMA journal_mode") == [("wal",)]
    assert query(path, "SELECT run, seq, at, type, path, key, hash FROM event") == [
        ("r1", 1, 1.0, "run.started", "", "", ""),
        ("r1", 2, 2.0, "model.called", "ori/a", "ori/a:1:model", "abc"),
    ]


async def test_an_event_is_durable_when_its_commit_returns(path: Path) -> None:
    journal = SqliteJournal(path)
    journal.write(started())
    await journal.commit()
    assert query(path, "SELECT count(*) FROM event") == [(1,)]
    await journal.aclose()


async def test_what_waits_together_shares_a_transaction(path: Path) -> None:
    journal = SqliteJournal(path)

    async def run(name: str) -> None:
        journal.write(started(name))
        await journal.commit()

    async with asyncio.TaskGroup() as group:
        for i in range(64):
            group.create_task(run(f"r{i}"))
    await journal.aclose()
    assert query(path, "SELECT count(*) FROM event") == [(64,)]


async def test_a_large_value_is_a_blob_named_by_its_content(path: Path) -> None:
    journal = SqliteJournal(path)
    text = "大" * 200_000
    journal.write(started(goal=text))
    journal.write(note("r1", 2, text))
    await journal.commit()
    assert (await journal.events("r1"))[1] == note("r1", 2, text)
    assert (await journal.runs())[0].goal == text
    assert query(path, "SELECT max(length(data)) FROM event") == [(64,)]
    assert query(path, "SELECT count(*) FROM blob JOIN event ON sha256 = data") == [(2,)]
    query(path, "DELETE FROM blob")
    with pytest.raises(JournalError, match="event 1 of run r1 cannot be read"):
        await journal.events("r1")
    await journal.aclose()


@pytest.mark.parametrize(
    "fault",
    [
        'UPDATE event SET data = \'{"text": "x\' WHERE seq = 2',
        "UPDATE event SET data = '{}' WHERE seq = 2",
        "UPDATE event SET data = '' WHERE seq = 2",
        "UPDATE event SET data = CAST(X'7BFF7D' AS TEXT) WHERE seq = 2",
        "UPDATE event SET type = 'no.such' WHERE seq = 2",
        "UPDATE event SET at = 'noon' WHERE seq = 2",
    ],
)
async def test_an_unreadable_row_is_named(path: Path, fault: str) -> None:
    """B48: an unreadable stored value is a loud error, never a silent None."""
    journal = SqliteJournal(path)
    for event in (started(), note("r1", 2), note("r1", 3)):
        journal.write(event)
    await journal.aclose()
    query(path, fault)
    with pytest.raises(JournalError, match="event 2 of run r1 cannot be read: ") as caught:
        await journal.events("r1")
    assert len(str(caught.value)) < 700


async def test_an_unreadable_row_is_named_in_the_list_too(path: Path) -> None:
    journal = SqliteJournal(path)
    journal.write(started())
    journal.write(replied("r1", 2))
    await journal.aclose()
    query(path, "UPDATE event SET data = '{' WHERE seq = 2")
    with pytest.raises(JournalError, match="event 2 of run r1 cannot be read: "):
        await journal.runs()


async def test_a_missing_row_is_named(path: Path) -> None:
    journal = SqliteJournal(path)
    for event in (started(), note("r1", 2), note("r1", 3)):
        journal.write(event)
    await journal.aclose()
    query(path, "DELETE FROM event WHERE seq = 2")
    with pytest.raises(JournalError, match="event 2 of run r1 is missing"):
        await journal.events("r1")


async def test_another_schema_version_is_refused_with_both_named(path: Path) -> None:
    query(path, "PRAGMA user_version = 7")
    journal = SqliteJournal(path)
    with pytest.raises(JournalError, match="has schema version 7, expected 2"):
        await journal.runs()
    journal.write(started())
    with pytest.raises(JournalError, match="has schema version 7, expected 2"):
        await journal.commit()
    with pytest.raises(JournalError):
        await journal.aclose()


async def test_the_runs_of_a_session_are_found_by_an_index(path: Path) -> None:
    journal = SqliteJournal(path)
    journal.write(started())
    await journal.aclose()
    steps = [row[-1] for row in query(path, f"EXPLAIN QUERY PLAN {queries.READ} {queries.OF_SESSION}", "s", None)]
    assert "SEARCH run USING INDEX run_session (session=? AND user=?)" in steps
    assert "SEARCH event USING INDEX event_type (type=? AND run=?)" in steps


@pytest.mark.parametrize("first", ["read", "write"])
async def test_a_log_without_a_table_of_runs_is_given_one(path: Path, first: str) -> None:
    journal = SqliteJournal(path)
    for run in ("old", "new", "open"):
        journal.write(started(run, at=len(run)))
    for run in ("old", "new"):
        journal.write(ended(run, seq=2))
    journal.write(RunResumed(run="new", seq=3, at=6.0, reused=0, again=0, paid_twice=0))
    await journal.aclose()
    before = await journal.runs()
    query(path, "DROP TABLE run")
    query(path, "PRAGMA user_version = 1")
    if first == "write":
        journal.write(note("old", 3))
        await journal.aclose()
    assert await journal.runs() == before
    assert [info.status for info in before] == ["interrupted", "interrupted", "done"]


async def test_a_database_of_something_else_is_left_alone(path: Path) -> None:
    query(path, "CREATE TABLE bookmark(url)")
    journal = SqliteJournal(path)
    journal.write(started())
    with pytest.raises(JournalError, match="not a log of runs"):
        await journal.commit()
    with pytest.raises(JournalError):
        await journal.aclose()
    assert query(path, "SELECT name FROM sqlite_master") == [("bookmark",)]


@pytest.mark.parametrize("spoil", [lambda p: p.write_text("no database" * 100), Path.mkdir], ids=["text", "folder"])
async def test_a_file_that_is_no_database_is_named(path: Path, spoil: Callable[[Path], object]) -> None:
    spoil(path)
    journal = SqliteJournal(path)
    with pytest.raises(JournalError, match=r"cannot read the log .*runs\.db: "):
        await journal.runs()
    journal.write(started())
    with pytest.raises(JournalError, match=r"cannot write the log .*runs\.db: "):
        await journal.aclose()


async def test_a_locked_database_fails_the_commit_and_the_next_one_brings_everything(path: Path) -> None:
    """B46: trouble with the store is reported, and nothing is lost silently."""
    journal = SqliteJournal(path, busy_timeout=0.01)
    journal.write(started())
    await journal.commit()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        journal.write(note("r1", 2))
        for _ in range(2):
            with pytest.raises(JournalError, match=r"runs\.db: database is locked; 1 events wait"):
                await journal.commit()
        other.execute("ROLLBACK")
    journal.write(note("r1", 3))
    await journal.commit()
    assert [event.seq for event in await journal.events("r1")] == [1, 2, 3]
    await journal.aclose()


async def test_a_full_disk_fails_every_commit_and_keeps_what_was_stored(path: Path) -> None:
    journal = SqliteJournal(path)
    journal.write(started())
    await journal.aclose()
    full = _Full(path)
    full.write(note("r1", 2, "x" * 100_000))
    for _ in range(2):
        with pytest.raises(JournalError, match=r"runs\.db: database or disk is full"):
            await full.commit()
    with pytest.raises(JournalError, match="full"):
        await full.aclose()
    assert len(await SqliteJournal(path).events("r1")) == 1


class _Full(SqliteJournal):
    """Its database may not grow."""

    def _store(self, db: sqlite3.Connection, upto: int) -> None:
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count = {pages}")
        super()._store(db, upto)


async def test_a_database_that_can_only_be_read_is_read_and_named_when_written(path: Path) -> None:
    journal = _ReadOnly(path)
    SqliteJournal.write(journal, started())
    await SqliteJournal.aclose(journal)
    journal.locked = True
    journal.write(note("r1", 2))
    with pytest.raises(JournalError, match=r"cannot write the log .*runs\.db: attempt to write a readonly database"):
        await journal.aclose()
    assert len(await SqliteJournal(path).events("r1")) == 1


class _ReadOnly(SqliteJournal):
    """Its database may only be read once it is locked: permissions would not hold for root."""

    locked = False

    def _store(self, db: sqlite3.Connection, upto: int) -> None:
        db.execute(f"PRAGMA query_only = {self.locked}")
        super()._store(db, upto)


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal = SqliteJournal(tmp_path / "file" / "runs.db")
    journal.write(started())
    with pytest.raises(JournalError, match=r"cannot write the log .*file"):
        await journal.aclose()
    with pytest.raises(JournalError, match="cannot lock run r1"):
        async with journal.own("r1"):
            pass


async def test_an_event_that_is_no_json_fails_the_commit(path: Path) -> None:
    journal = SqliteJournal(path)
    circle: list[Any] = []
    circle.append(circle)
    journal.write(started())
    journal.write(VariableSet(run="r1", seq=2, name="v", value=circle))
    for _ in range(2):
        with pytest.raises(JournalError, match=r"event 2 \(variable.set\) of run r1 is no JSON"):
            await journal.commit()
    with pytest.raises(JournalError, match="event 2"):
        await journal.aclose()


async def test_a_cancelled_commit_stores_all_the_same(path: Path) -> None:
    journal = SqliteJournal(path, busy_timeout=30)
    journal.write(started())
    await journal.commit()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        journal.write(note("r1", 2))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await journal.commit()
        other.execute("ROLLBACK")
    await journal.aclose()
    assert query(path, "SELECT count(*) FROM event") == [(2,)]


async def test_a_watcher_neither_waits_for_the_writer_nor_disturbs_it(path: Path) -> None:
    """B47: reading while another connection writes is never `database is locked`."""
    journal, watcher = SqliteJournal(path), SqliteJournal(path, busy_timeout=0)
    journal.write(started())
    await journal.commit()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("UPDATE event SET at = 2")
        assert [info.started for info in await watcher.runs()] == [1.0]
        assert len(await watcher.events("r1")) == 1
        other.execute("COMMIT")
    await journal.aclose()


# Several processes

_WORKER = """
import asyncio, sys
from orchestrator.events import Warned
from orchestrator.journal.log import RunLog
from orchestrator.journal.sqlite import SqliteJournal

async def main(path, run, turns):
    for part in range(2):
        journal = SqliteJournal(path)
        log = RunLog(run, journal, seq=part * turns)
        for i in range(turns):
            log.add(Warned(text="x" * 200))
            await log.commit()
        await journal.aclose()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def test_many_processes_share_one_database(path: Path) -> None:
    """B47: two processes on one file: no failure, nothing lost."""
    workers = [
        subprocess.Popen([sys.executable, "-c", _WORKER, path, f"r{i}", "40"], stderr=subprocess.PIPE) for i in range(4)
    ]
    for worker in workers:
        _, errors = worker.communicate(timeout=50)
        assert worker.returncode == 0, errors.decode()
    assert query(path, "SELECT run, count(*), max(seq) FROM event GROUP BY run") == [
        (f"r{i}", 80, 80) for i in range(4)
    ]


@pytest.mark.parametrize("statement", [1, 2])
async def test_another_process_may_set_up_the_database_between_two_looks(
    path: Path, monkeypatch: pytest.MonkeyPatch, statement: int
) -> None:
    """B47: whoever opens a new database while another process makes it, uses what that one made."""
    connect = sqlite3.connect
    seen: list[str] = []

    def other_comes_first(sql: str) -> None:
        seen.append(sql)
        if len(seen) == statement and not path.with_name("runs.db.setup").exists():
            subprocess.run([sys.executable, "-c", _WORKER, path, "r2", "1"], check=True, timeout=50)

    def traced(*args: Any, **options: Any) -> sqlite3.Connection:
        db: sqlite3.Connection = connect(*args, **options)
        db.set_trace_callback(other_comes_first)
        return db

    monkeypatch.setattr(sqlite3, "connect", traced)
    journal = SqliteJournal(path)
    journal.write(started())
    await journal.aclose()
    assert "r1" in {info.run for info in await journal.runs()}


_OWNER = """
import asyncio, sys
from orchestrator.journal.sqlite import SqliteJournal

async def main():
    async with SqliteJournal(sys.argv[1]).own("r1"):
        print("owned", flush=True)
        sys.stdin.read()

asyncio.run(main())
"""


async def test_an_owner_that_was_killed_leaves_the_run_interrupted_and_free(path: Path) -> None:
    journal = SqliteJournal(path)
    journal.write(started())
    await journal.commit()
    owner = subprocess.Popen([sys.executable, "-c", _OWNER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdout and owner.stdout.readline() == b"owned\n"
    assert (await journal.runs())[0].status == "running"
    with pytest.raises(JournalError, match=rf"run r1 is already being worked on \(pid {owner.pid}\)"):
        async with journal.own("r1"):
            pytest.fail("there must be one owner")
    owner.kill()
    owner.communicate()
    assert (await journal.runs())[0].status == "interrupted"
    async with journal.own("r1"):
        assert (await journal.runs())[0].status == "running"
    assert list(path.with_name("runs.db.locks").iterdir()) == []
    await journal.aclose()


async def test_a_look_at_a_run_seems_no_owner_and_keeps_none_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B47: two looks at a run that a dead process left met, and the second said that it is running."""
    monkeypatch.setattr("orchestrator.journal.owner._PAUSE", 0)
    journal = SqliteJournal(path)
    journal.write(started())
    await journal.commit()
    left = path.with_name("runs.db.locks") / "r1.lock"
    left.parent.mkdir()
    left.touch()
    owned = asyncio.Event()

    async def own() -> None:
        async with journal.own("r1"):
            owned.set()

    with left.open() as looked_at:
        fcntl.flock(looked_at, fcntl.LOCK_SH)  # what another process does while it looks
        assert (await journal.info("r1")).status == "interrupted"
        async with asyncio.TaskGroup() as group:
            group.create_task(own())
            for _ in range(20):
                await asyncio.sleep(0)
            assert not owned.is_set()
            looked_at.close()
    assert owned.is_set()
    await journal.aclose()


async def test_a_run_that_ends_while_it_is_looked_at_does_not_seem_interrupted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its line was read before its end, its lock after."""
    journal = SqliteJournal(path)
    journal.write(started())
    await journal.commit()
    held = Owners.held

    async def end() -> None:
        owner = SqliteJournal(path)
        owner.write(ended(seq=2))
        await owner.aclose()

    def ends_before(owners: Owners, run: str) -> bool:
        asyncio.run(end())
        return held(owners, run)

    monkeypatch.setattr(Owners, "held", ends_before)
    assert (await journal.info("r1")).status == "done"
    await journal.aclose()


async def test_a_database_whose_writer_was_killed_can_be_read(path: Path, tmp_path: Path) -> None:
    journal = SqliteJournal(path)
    journal.write(started())
    await journal.commit()
    copy = tmp_path / "copy" / "runs.db"  # what a crash leaves: the log of writes is not folded in
    copy.parent.mkdir()
    for file in tmp_path.glob("runs.db*"):
        if file.is_file() and not file.name.endswith("-shm"):
            shutil.copy(file, copy.parent)
    await journal.aclose()
    assert (copy.parent / "runs.db-wal").stat().st_size
    assert len(await SqliteJournal(copy).events("r1")) == 1


async def test_a_database_whose_setting_up_was_killed_is_an_empty_log(path: Path, tmp_path: Path) -> None:
    """B47: readers that cannot write could not undo the half of it that was on the disk."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript("PRAGMA cache_size = 1; BEGIN; CREATE TABLE event(data)")
        for _ in range(50):  # more than its memory holds: it goes to the disk before its end
            db.execute("INSERT INTO event VALUES (zeroblob(4000))")
        killed = shutil.copytree(tmp_path, tmp_path / "killed")
    assert (killed / "runs.db").stat().st_size and (killed / "runs.db-journal").stat().st_size
    journal = SqliteJournal(killed / "runs.db")
    assert await journal.runs() == []
    journal.write(started())
    await journal.aclose()
    assert len(await journal.runs()) == 1


async def test_the_list_of_a_large_database_is_quick(path: Path) -> None:
    journal = SqliteJournal(path)
    for i in range(100):
        log = RunLog(f"run{i}", journal)
        log.add(started())
        for _ in range(98):
            log.add(replied("", 0))
        if i:
            log.add(ended())
    await journal.aclose()
    begin = time.process_time()
    runs = await journal.runs()
    whole = await journal.events("run0")
    listing = time.process_time() - begin
    assert len(runs) == 100 and len(whole) == 99
    begin = time.process_time()
    for i in range(100):
        await journal.events(f"run{i}")
    assert listing < (time.process_time() - begin) / 5


# Choosing


def test_a_journal_is_chosen_by_name_path_or_object(path: Path) -> None:
    memory = open_journal("memory", path)
    assert isinstance(memory, MemoryJournal)
    assert open_journal(memory, path) is memory
    for named, expected in (("sqlite", path), ("x/runs.db", Path("x/runs.db")), (Path("runs"), Path("runs"))):
        opened = open_journal(named, path)
        assert isinstance(opened, SqliteJournal) and opened.path == expected


def test_a_misspelt_journal_is_not_taken_for_a_file(path: Path) -> None:
    with pytest.raises(ConfigError, match="journal 'sqlit' is not known; did you mean 'sqlite'"):
        open_journal("sqlit", path)
