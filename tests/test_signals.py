from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import JournalError
from orchestrator.events import ApprovalAsked, Event, RunEnded, RunStarted, ToolReturned
from orchestrator.journal import Journal, Signal
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.journal.watchers import Watchers
from orchestrator.results import RunResult

CALL = "ori/send:1:tool.0"
ANOTHER_PROCESS = """
import asyncio, sys
from orchestrator.journal import Signal
from orchestrator.journal.sqlite import SqliteJournal

async def main(path, kind, key):
    print((await SqliteJournal(path).send(Signal(run="r1", key=key, kind=kind, by="somebody", at=9.0))).by)

asyncio.run(main(*sys.argv[1:]))
"""


def started(run: str = "r1", seq: int = 1) -> RunStarted:
    return RunStarted(
        run=run, seq=seq, at=1.0, goal="g", root="ori", params={}, inputs=(), workspace="/w", limits={},
        roles={}, tools={}, models={},
    )  # fmt: skip


def asked(run: str = "r1", seq: int = 2, key: str = CALL) -> ApprovalAsked:
    return ApprovalAsked(
        run=run, seq=seq, at=2.0 + seq, path="ori/send", key=key, name="send", arguments="{}", why="it goes outside"
    )


def approve(by: str = "ann", key: str = CALL, run: str = "r1") -> Signal:
    return Signal(run=run, key=key, kind="approve", by=by, at=3.0, data={"arguments": {"to": "王"}})


def ended(seq: int) -> RunEnded:
    return RunEnded(
        run="r1", seq=seq, at=9.0, result=RunResult(run_id="r1", status="cancelled", stop_reason="cancelled")
    )


@pytest.fixture(params=["memory", "sqlite"])
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Journal:
    made: Journal = MemoryJournal() if request.param == "memory" else SqliteJournal(tmp_path / "runs.db")
    await write(made, started(), asked())
    return made


async def write(journal: Journal, *events: Event) -> None:
    for event in events:
        journal.write(event)
    await journal.commit()


class TestTheFirstWordCounts:
    async def test_a_second_one_for_the_same_call_is_not_kept_and_its_sender_gets_the_first(
        self, journal: Journal
    ) -> None:
        first, second = approve("ann"), Signal(run="r1", key=CALL, kind="deny", by="bob", at=4.0)
        assert await journal.send(first) == first
        assert await journal.send(second) == first
        assert list(await journal.signals("r1")) == [first]

    async def test_calls_and_runs_are_told_apart(self, journal: Journal) -> None:
        await write(journal, started("r2"))
        words = [approve(), approve(key="ori:1:tool.1"), approve(run="r2")]
        for word in words:
            await journal.send(word)
        assert list(await journal.signals("r1")) == words[:2]
        assert list(await journal.signals("r2")) == words[2:]

    async def test_a_run_that_went_on_can_be_cancelled_again(self, journal: Journal) -> None:
        cancel = Signal(run="r1", kind="cancel", by="ann", at=3.0)
        await journal.send(cancel)
        await journal.send(cancel)
        assert list(await journal.signals("r1")) == [cancel, cancel]

    async def test_of_many_processes_at_once_one_is_first(self, tmp_path: Path) -> None:
        path = tmp_path / "runs.db"
        await write(SqliteJournal(path), started(), asked())
        command = [sys.executable, "-c", ANOTHER_PROCESS, str(path)]
        senders = [subprocess.Popen([*command, kind, CALL], stdout=subprocess.PIPE) for kind in ("approve", "deny")]
        assert [sender.wait() for sender in senders] == [0, 0]
        for sender in senders:
            sender.communicate()
        assert len(await SqliteJournal(path).signals("r1")) == 1

    async def test_without_a_database_there_is_nothing_to_answer(self, tmp_path: Path) -> None:
        with pytest.raises(JournalError, match=r"cannot write the log .*runs\.db"):
            await SqliteJournal(tmp_path / "runs.db").send(approve())

    @pytest.mark.parametrize(
        ("change", "fault"),
        [("signal = 'frobnicate'", "no such signal"), ("data = '{'", "unexpected end")],
        ids=["kind", "data"],
    )
    async def test_a_word_that_cannot_be_read_is_named_and_allows_nothing(
        self, tmp_path: Path, change: str, fault: str
    ) -> None:
        journal = SqliteJournal(tmp_path / "runs.db")
        await write(journal, started(), asked())
        await journal.send(approve())
        with closing(sqlite3.connect(journal.path)) as db:
            db.execute(f"UPDATE signal SET {change}")
            db.commit()
        with pytest.raises(JournalError, match=rf"the signal .* for {CALL} of run r1 cannot be read: .*{fault}"):
            await journal.signals("r1")


class TestWatching:
    async def test_who_watches_is_told_of_a_word_in_the_same_process(self, journal: Journal) -> None:
        told = asyncio.Event()
        with journal.watch(told.set):
            await journal.send(approve())
            await told.wait()

    async def test_who_watches_is_told_of_a_word_from_another_process_within_a_moment(self, tmp_path: Path) -> None:
        path, told = tmp_path / "runs.db", asyncio.Event()
        journal = SqliteJournal(path)
        await write(journal, started(), asked())
        with journal.watch(told.set):
            sender = subprocess.Popen([sys.executable, "-c", ANOTHER_PROCESS, str(path), "approve", CALL])
            await asyncio.to_thread(sender.wait)
            async with asyncio.timeout(5):
                await told.wait()
        assert [signal.by for signal in await journal.signals("r1")] == ["somebody"]

    async def test_it_may_begin_before_there_is_a_database(self, tmp_path: Path) -> None:
        journal, told = SqliteJournal(tmp_path / "runs.db"), asyncio.Event()
        with journal.watch(told.set):
            await write(journal, started())
            await journal.send(approve())
            await told.wait()

    async def test_one_thread_looks_for_all_and_ends_when_nobody_watches(self, tmp_path: Path) -> None:
        journal, before = SqliteJournal(tmp_path / "runs.db"), looking()
        with journal.watch(lambda: None), journal.watch(lambda: None):
            [thread] = looking() - before
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive()
        with journal.watch(lambda: None):
            assert looking() - before

    async def test_a_log_in_memory_needs_no_thread(self) -> None:
        before = looking()
        with MemoryJournal().watch(lambda: None):
            assert not looking() - before

    async def test_an_event_loop_that_closes_just_then_does_not_keep_others_from_being_told(self) -> None:
        watchers, told = Watchers(), asyncio.Event()

        class Closing(asyncio.SelectorEventLoop):
            def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
                self.close()
                return super().call_soon_threadsafe(callback, *args, context=context)

        async def watch() -> None:
            stack.enter_context(watchers.watch(lambda: None))

        with ExitStack() as stack:
            for _ in range(3):  # in a set: one of them may come after ours
                await asyncio.to_thread(Closing().run_until_complete, watch())
            stack.enter_context(watchers.watch(told.set))
            watchers.tell()
            await told.wait()


def looking() -> set[threading.Thread]:
    """Return the threads that look for signals; one of an earlier test may be about to end."""
    return {thread for thread in threading.enumerate() if thread.name == "signals"}


class TestWhatWaits:
    async def test_a_call_waits_until_somebody_says_a_word(self, journal: Journal) -> None:
        await write(journal, asked(seq=3, key="ori:1:tool.1"))
        assert [question.key for question in await journal.questions()] == [CALL, "ori:1:tool.1"]
        await journal.send(approve())
        assert [question.key for question in await journal.questions("r1")] == ["ori:1:tool.1"]
        assert await journal.questions("r2") == []

    @pytest.mark.parametrize("kind", ["returned", "ended"])
    async def test_a_call_waits_no_longer_when_it_has_its_result_or_its_run_is_over(
        self, journal: Journal, kind: str
    ) -> None:
        returned = ToolReturned(
            run="r1",
            seq=3,
            at=5.0,
            path="ori/send",
            key=CALL,
            call_id="c",
            name="send",
            ok=False,
            seconds=0,
            characters=1,
        )
        await write(journal, returned if kind == "returned" else ended(3))
        assert await journal.questions() == []

    async def test_the_list_of_runs_tells_that_a_run_waits_for_a_person(self, journal: Journal) -> None:
        [info] = await journal.runs()
        assert (info.status, info.waiting) == ("needs_review", 1)
        async with journal.own("r1"):
            [info] = await journal.runs()
            assert (info.status, info.waiting) == ("running", 1)
        await journal.send(approve())
        [info] = await journal.runs()
        assert (info.status, info.waiting) == ("interrupted", 0)
