"""Replays of runs in which people had a part: their words, and how they let a run go on after its end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Orchestrator, Role, RunResult
from orchestrator.errors import ConfigError
from orchestrator.events import ApprovalAsked, Event, SignalTaken
from orchestrator.inbox import give_word
from orchestrator.models.recorder import record
from orchestrator.models.replay import Recording
from orchestrator.testing import Answer, ScriptedServer, call, fault, text
from orchestrator.tool import Tool
from tests.engine import FILTERED, ORI, WORKER, delegate, orchestrator, serving, statuses, subtask
from tests.test_approvals import SENDS, Post, clerk, of
from tests.test_review import JUDGE, JUDGED, MADE, MAKER, verdict

REAL_OR_RECORDED = pytest.mark.parametrize("recorded", [False, True], ids=["real tools", "recorded tools"])


async def replayed(
    events: Sequence[Event],
    folder: Path,
    roles: Iterable[Role] = (WORKER,),
    tools: Iterable[Tool] = (),
    *,
    recorded: bool = True,
) -> tuple[RunResult, Sequence[Event]]:
    """Replay a run from its log, where nobody can be asked."""
    file = folder / "rec.jsonl"
    file.write_text(record(events, content=lambda change: None).dump(), "utf-8")
    player = Orchestrator(roles=roles, tools=tools)
    async with player.start_replay(file, tools=recorded) as handle:
        result = await handle.result()
    return result, await player.journal.events(result.run_id)


def said(events: Sequence[Event]) -> list[Any]:
    """Return what people were asked and said, without times."""
    asked = [(e.key, e.arguments, e.why) for e in of(events, ApprovalAsked)]
    return asked + [(e.key, e.signal, e.by, e.data) for e in of(events, SignalTaken)]


@REAL_OR_RECORDED
@pytest.mark.parametrize(
    "word", [True, False, "not her", {"to": "bob", "text": "hi"}], ids=["yes", "no", "no and why", "edited"]
)
async def test_a_word_on_a_call_is_heeded_again(word: Any, recorded: bool, tmp_path: Path) -> None:
    async def approve(question: ApprovalAsked) -> Any:
        return word

    post, again = Post(), Post()
    async with ScriptedServer([SENDS, text("over")]) as server:
        made = orchestrator(server, [clerk(post.tool)], [post.tool], approve=approve)
        result = await made.run_role("clerk", "send it")
        events = await made.journal.events(result.run_id)
    replay, repeated = await replayed(events, tmp_path, [clerk(again.tool)], [again.tool], recorded=recorded)
    assert (replay.status, replay.answer) == (result.status, result.answer) == ("done", "over")
    assert again.sent == ([] if recorded else post.sent)
    assert said(repeated) == ([] if recorded else said(events))


async def test_calls_run_in_the_order_in_which_people_allowed_them(tmp_path: Path) -> None:
    """Their observations stand in the conversation in that order."""
    post, again = Post(), Post()
    two = call("send", {"to": "a", "text": ""}) + call("send", {"to": "b", "text": ""})
    async with ScriptedServer([two, text("over")]) as server:
        made = orchestrator(server, [clerk(post.tool)], [post.tool], journal=tmp_path / "runs.db")
        result = await made.run_role("clerk", "send it")
        for number in (1, 0):
            await give_word(made.journal, result.run_id, f"tool.{number}", "approve", "ann")
            result = await made.resume(result.run_id)
        events = await made.journal.events(result.run_id)
    replay, _ = await replayed(events, tmp_path, [clerk(again.tool)], [again.tool], recorded=False)
    assert (replay.status, replay.answer, again.sent) == ("done", "over", ["b: ", "a: "])


@REAL_OR_RECORDED
async def test_a_person_s_answer_is_given_again(recorded: bool, tmp_path: Path) -> None:
    async def approve(question: ApprovalAsked) -> Any:
        return "红色"

    async with ScriptedServer([call("ask_person", {"question": "which colour?"}), text("red it is")]) as server:
        made = orchestrator(server, [clerk("ask_person")], approve=approve)
        result = await made.run_role("clerk", "paint it")
        events = await made.journal.events(result.run_id)
    replay, _ = await replayed(events, tmp_path, [clerk("ask_person")], recorded=recorded)
    assert (replay.status, replay.answer) == ("done", "red it is")


@REAL_OR_RECORDED
@pytest.mark.parametrize("word", [True, "43", False], ids=["accepted", "another", "refused"])
async def test_a_result_that_a_person_judged_is_judged_so_again(word: Any, recorded: bool, tmp_path: Path) -> None:
    async def approve(question: ApprovalAsked) -> Any:
        return word

    replies = {
        ORI: [delegate(subtask("a", role="maker")), text("ok")],
        MADE: [text("41"), text("42")],
        JUDGED: [verdict(False, "wrong")] * 2,
    }
    async with serving(replies) as server:
        made = orchestrator(server, [MAKER, JUDGE], approve=approve)
        first = await made.solve("goal")
        events = await made.journal.events(first.run_id)
    replay, repeated = await replayed(events, tmp_path, [MAKER, JUDGE], recorded=recorded)
    assert (replay.status, statuses(replay)) == (first.status, statuses(first))
    assert replay.outcomes["a"].answer == first.outcomes["a"].answer
    assert said(repeated) == said(events)


async def test_a_question_that_nobody_had_answered_yet_waits_again(tmp_path: Path) -> None:
    post = Post()
    two = call("send", {"to": "a", "text": ""}) + call("send", {"to": "b", "text": ""})
    async with ScriptedServer([two]) as server:
        made = orchestrator(server, [clerk(post.tool)], [post.tool], journal=tmp_path / "runs.db")
        result = await made.run_role("clerk", "send it")
        await give_word(made.journal, result.run_id, "tool.0", "approve", "ann")
        await made.resume(result.run_id)
        events = await made.journal.events(result.run_id)
    replay, _ = await replayed(events, tmp_path, [clerk(post.tool)], [post.tool], recorded=False)
    assert (replay.status, replay.stop_reason) == ("needs_review", "needs_person")


class TestARunThatWentOnAfterItsEnd:
    async def test_messages_are_said_again(self, tmp_path: Path) -> None:
        script = [text("red"), text("blue"), delegate(subtask("a")), text("green")]
        async with serving({ORI: script, "do a": text("mixed")}) as server:
            made = orchestrator(server)
            result = await made.solve("which colour?")
            for word in ("another one", "不行, one more"):
                result = await made.resume(result.run_id, word)
            events = await made.journal.events(result.run_id)
        replay, repeated = await replayed(events, tmp_path)
        assert (replay.status, replay.answer, statuses(replay)) == ("done", "green", {"a": "done"})
        assert [e.type for e in repeated] == [e.type for e in events]

    @pytest.mark.parametrize("first", [None, "a"], ids=["what failed", "from a subtask on"])
    async def test_what_was_tried_again_is_tried_again(self, first: str | None, tmp_path: Path) -> None:
        script: dict[str, list[Answer]] = {
            ORI: [delegate(subtask("a"), subtask("b", "a"), subtask("c")), text("half"), text("whole")],
            "do a": [text("fine") if first else FILTERED, text("fine now")],
            "do b": [text("built"), text("built anew")] if first else [text("built")],
            "do c": [text("c")],
        }
        async with serving(script) as server:
            made = orchestrator(server)
            result = await made.solve("goal")
            again = await made.retry(result.run_id, first=first)
            events = await made.journal.events(result.run_id)
        replay, _ = await replayed(events, tmp_path)
        assert (again.status, again.answer, statuses(again)["b"]) == ("done", "whole", "done")
        assert (replay.status, replay.answer, statuses(replay)) == (again.status, again.answer, statuses(again))
        assert {id: o.answer for id, o in replay.outcomes.items()} == {id: o.answer for id, o in again.outcomes.items()}

    async def test_an_outage_is_not_repeated(self, tmp_path: Path) -> None:
        """A run that stopped without a fault of its own, and was resumed, replays as if nothing had been."""
        refused = fault(401, {"error": {"message": "no", "type": "auth"}})
        async with serving({ORI: [delegate(subtask("a")), refused, text("here")], "do a": text("x")}) as server:
            made = orchestrator(server)
            result = await made.solve("goal")
            assert result.stop_reason == "model_unavailable"
            assert (await made.resume(result.run_id)).answer == "here"
            events = await made.journal.events(result.run_id)
        replay, _ = await replayed(events, tmp_path)
        assert (replay.status, replay.answer) == ("done", "here")

    async def test_what_was_cut_off_before_a_message_is_named(self, tmp_path: Path) -> None:
        refused = fault(401, {"error": {"message": "no", "type": "auth"}})
        async with ScriptedServer([refused, text("here")]) as server:
            made = orchestrator(server)
            result = await made.solve("goal")
            await made.resume(result.run_id, "go on")
            events = await made.journal.events(result.run_id)
        with pytest.raises(ConfigError, match=r"went on from where it was stopped \(model_unavailable\)"):
            record(events)

    async def test_what_was_undone_before_a_message_is_named(self) -> None:
        async with ScriptedServer([text("a"), text("b")]) as server:
            made = orchestrator(server)
            result = await made.solve("goal")
            await made.undo(result.run_id)
            await made.resume(result.run_id, "go on")
            events = await made.journal.events(result.run_id)
        with pytest.raises(ConfigError, match="went on from where it was undone"):
            record(events)

    async def test_a_replay_that_goes_another_way_ends_there(self, tmp_path: Path) -> None:
        async with ScriptedServer([text("red"), text("blue")]) as server:
            made = orchestrator(server)
            result = await made.solve("which colour?")
            await made.resume(result.run_id, "another one")
            events = await made.journal.events(result.run_id)
        recording = record(events)
        lines = {key: line for key, line in recording.lines.items() if key != "ori:1:model"}
        file = tmp_path / "rec.jsonl"
        file.write_text(Recording(recording.header, lines, further=recording.further).dump(), "utf-8")
        async with Orchestrator().start_replay(file) as handle:
            replay = await handle.result()
        assert replay.failure and "it has no reply for 'ori:1:model'" in replay.failure.message
