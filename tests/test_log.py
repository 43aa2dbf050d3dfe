from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from orchestrator.errors import JournalError
from orchestrator.events import DeltaReset, Event, TextDelta, ToolProgress, Warned
from orchestrator.journal.log import RunLog
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal


@pytest.fixture
def log() -> RunLog:
    return RunLog("r1", MemoryJournal(), clock=iter(range(100_000)).__next__)


async def rest(log: RunLog, events: Any) -> list[Event]:
    log.close()
    return [event async for event in events]


async def test_lasting_events_are_stamped_and_stored() -> None:
    journal = MemoryJournal()
    log = RunLog("r1", journal, clock=lambda: 7.5)
    stamped = log.add(Warned(text="x", path="ori/a"))
    assert stamped == Warned(run="r1", seq=1, at=7.5, path="ori/a", text="x")
    assert log.add(Warned(text="y")).seq == 2
    await log.commit()
    assert [event.seq for event in await journal.events("r1")] == [1, 2]


async def test_a_clock_that_is_set_back_changes_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    log = RunLog("r1", MemoryJournal())
    times = [log.add(Warned(text="before")).at]
    monkeypatch.setattr(time, "time", lambda: 0.0)
    times.append(log.add(Warned(text="after")).at)
    resumed = RunLog("r1", MemoryJournal())
    resumed.go_on(2, times[-1])
    times.append(resumed.add(Warned(text="resumed")).at)
    assert times == sorted(times)


async def test_numbering_goes_on_after_what_is_stored() -> None:
    assert RunLog("r1", MemoryJournal(), seq=41).add(Warned(text="x")).seq == 42


async def test_passing_events_have_no_number_and_are_not_stored() -> None:
    journal = MemoryJournal()
    log = RunLog("r1", journal)
    events = log.subscribe()
    log.add(Warned(text="x"))
    for passing in (TextDelta(text="a"), ToolProgress(name="t", text="b"), DeltaReset()):
        assert log.add(passing).seq == 0
    assert log.add(Warned(text="y")).seq == 2
    assert [event.type for event in await rest(log, events)] == [
        "warned", "text.delta", "tool.progress", "delta.reset", "warned",
    ]  # fmt: skip
    assert len(await journal.events("r1")) == 2


async def test_each_subscriber_reads_at_its_own_pace(log: RunLog) -> None:
    one, other = log.subscribe(), log.subscribe()
    log.add(Warned(text="a"))
    assert (await anext(one)).seq == 1
    log.add(Warned(text="b"))
    assert [event.seq for event in await rest(log, one)] == [2]
    assert [event.seq for event in await rest(log, other)] == [1, 2]


async def test_a_subscriber_waits_for_news(log: RunLog) -> None:
    events = log.subscribe()
    async with asyncio.TaskGroup() as group:
        news = group.create_task(anext(events))
        await asyncio.sleep(0)
        assert not news.done()
        log.add(Warned(text="a"))
    assert news.result().seq == 1


async def test_a_slow_subscriber_loses_passing_events_but_no_lasting_one(log: RunLog) -> None:
    events = log.subscribe()
    for i in range(10_000):
        log.add(TextDelta(text=str(i)))
        if i % 5 == 0:
            log.add(Warned(text="x"))
    got = await rest(log, events)
    deltas = [event.text for event in got if isinstance(event, TextDelta)]
    assert [event.seq for event in got if event.seq] == list(range(1, 2001))
    assert len(deltas) <= 1000 and deltas[-1] == "9999"
    assert [event.at for event in got] == sorted(event.at for event in got)


async def test_a_subscriber_that_keeps_up_loses_nothing(log: RunLog) -> None:
    events = log.subscribe()
    for i in range(3_000):
        log.add(TextDelta(text=str(i)))
        got = await anext(events)
        assert isinstance(got, TextDelta) and got.text == str(i)


async def test_somebody_listens_only_while_passing_events_are_wanted(log: RunLog) -> None:
    lasting = log.subscribe(passing=False)
    log.listen(lambda event: None)
    assert not log.listening
    passing = log.subscribe()
    assert log.listening
    log.add(TextDelta(text="a"))
    await passing.aclose()
    assert not log.listening
    assert await rest(log, lasting) == []


async def test_a_left_subscription_ends_for_its_reader(log: RunLog) -> None:
    events = log.subscribe()
    log.add(Warned(text="a"))
    await events.aclose()
    log.add(Warned(text="b"))
    assert [event async for event in events] == []


async def test_a_closed_log_ends_its_subscriptions_and_takes_no_more(log: RunLog) -> None:
    waiting = log.subscribe()
    async with asyncio.TaskGroup() as group:
        reader = group.create_task(rest(log, waiting))
    assert reader.result() == []
    assert [event async for event in log.subscribe()] == []
    assert not log.listening
    log.add(TextDelta(text="late"))
    with pytest.raises(JournalError, match="run r1 is over: warned came too late"):
        log.add(Warned(text="late"))


async def test_a_callback_sees_events_in_order_until_it_is_stopped(log: RunLog) -> None:
    seen: list[int] = []
    stop = log.listen(lambda event: seen.append(event.seq))
    log.add(Warned(text="a"))
    log.add(TextDelta(text="not wanted"))
    log.add(Warned(text="b"))
    await asyncio.sleep(0)
    stop()
    stop()
    log.add(Warned(text="c"))
    await asyncio.sleep(0)
    assert seen == [1, 2]


async def test_a_broken_callback_is_reported_and_breaks_nothing(log: RunLog) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def broken(event: Event) -> None:
        raise ValueError(event.seq)

    log.listen(broken)
    events = log.subscribe()
    log.add(Warned(text="a"))
    log.add(Warned(text="b"))
    assert [event.seq for event in await rest(log, events)] == [1, 2]
    assert [repr(context["exception"]) for context in reported] == ["ValueError(1)", "ValueError(2)"]


async def test_threads_may_add_events(log: RunLog) -> None:
    events = log.subscribe()
    threads = [threading.Thread(target=lambda: [log.add(Warned(text="x")) for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert [(await anext(events)).seq for _ in range(800)] == list(range(1, 801))
    for thread in threads:
        thread.join()


async def test_a_commit_that_fails_reaches_the_run(tmp_path: Any) -> None:
    (tmp_path / "file").write_text("")
    log = RunLog("r1", SqliteJournal(tmp_path / "file" / "runs.db"))
    log.add(Warned(text="x"))
    with pytest.raises(JournalError, match="cannot write the log"):
        await log.commit()
