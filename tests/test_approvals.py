from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Limits, Orchestrator, Role, RunResult, tool
from orchestrator.errors import ConfigError
from orchestrator.events import ApprovalAsked, Event, RunResumed, SignalTaken, SubtaskWaiting, ToolStarted, Warned
from orchestrator.handle import RunHandle
from orchestrator.inbox import give_word
from orchestrator.journal import Signal
from orchestrator.journal.memory import MemoryJournal
from orchestrator.review import Verdict
from orchestrator.role import Review
from orchestrator.testing import Answer, ScriptedServer, call, text
from orchestrator.tool import Tool
from tests.engine import ORI, WORKER, delegate, orchestrator, serving, statuses, subtask

SENDS = call("send", {"to": "ann", "text": "hello"})


class Post:
    """A tool that sends, and what was sent."""

    def __init__(self, **options: Any) -> None:
        self.sent: list[str] = []

        @tool(approval=True, **options)
        async def send(to: str, text: str) -> str:
            """Send a message. Use it when asked to. Returns that it was sent."""
            self.sent.append(f"{to}: {text}")
            return "sent"

        self.tool = send


def clerk(*tools: Tool | str, **more: Any) -> Role:
    names = tuple(tool if isinstance(tool, str) else tool.name for tool in tools)
    return Role(**{"name": "clerk", "description": "Sends.", "prompt": "You are a clerk.", "tools": names, **more})


async def solo(
    server: ScriptedServer, post: Post, journal: Path | None = None, **options: Any
) -> tuple[RunResult, Sequence[Event]]:
    """Let a clerk work without a planner."""
    made = orchestrator(server, [clerk(post.tool)], [post.tool], journal=journal, **options)
    result = await made.run_role("clerk", "send it")
    return result, await made.journal.events(result.run_id)


def of(events: Sequence[Event], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


class TestWithSomebodyInTheProgram:
    @pytest.mark.parametrize(
        ("said", "sent", "told"),
        [
            (True, ["ann: hello"], "sent"),
            (False, [], "Error: not run: the program did not allow this call."),
            ("ask her first", [], "Error: not run: the program did not allow this call. ask her first"),
            (
                {"to": "bob", "text": "hi"},
                ["bob: hi"],
                "(the program allowed this call with other arguments, and it was made with these: "
                '{"to":"bob","text":"hi"})\nsent',
            ),
        ],
        ids=["yes", "no", "no-and-why", "changed"],
    )
    async def test_a_word_decides(self, said: Any, sent: list[str], told: str) -> None:
        post, asked = Post(), []

        async def approve(question: ApprovalAsked) -> Any:
            asked.append((question.key, question.name, question.arguments, question.why, post.sent.copy()))
            return said

        async with ScriptedServer([SENDS, text("done")]) as server:
            result, events = await solo(server, post, approve=approve)
            assert (result.status, post.sent) == ("done", sent)
            assert asked == [("clerk:1:tool.0", "send", '{"to": "ann", "text": "hello"}', asked[0][3], [])]
            assert server.requests[1]["messages"][-1]["content"] == told
        assert [e.by for e in of(events, SignalTaken)] == ["the program"]

    async def test_the_log_says_what_was_really_called(self) -> None:
        async def approve(question: ApprovalAsked) -> Any:
            return {"to": "bob", "text": "hi"}

        async with ScriptedServer([SENDS, text("done")]) as server:
            _, events = await solo(server, Post(), approve=approve)
        [started] = of(events, ToolStarted)
        assert started.arguments == '{"to":"bob","text":"hi"}'

    @pytest.mark.parametrize(
        ("said", "fault"),
        [
            (ConnectionError("the chat is down"), "ConnectionError: the chat is down"),
            ({"to": {"ann", "bob"}, "text": "x"}, "ConfigError: the word cannot be kept as JSON: Type is not"),
            ("\ud800", "ConfigError: the word cannot be kept as JSON: str is not valid"),
        ],
        ids=["error", "no-json", "no-text"],
    )
    async def test_a_program_that_cannot_answer_leaves_the_call_to_others(
        self, said: Any, fault: str, tmp_path: Path
    ) -> None:
        post = Post()

        async def approve(question: ApprovalAsked) -> Any:
            if isinstance(said, Exception):
                raise said
            return said

        async with ScriptedServer([SENDS, text("done")]) as server:
            result, events = await solo(server, post, database(tmp_path), approve=approve)
            [warned] = of(events, Warned)
            assert (result.status, post.sent) == ("needs_review", [])
            assert warned.text.startswith(f"approve failed for clerk:1:tool.0: {fault}")
            made = orchestrator(server, [clerk(post.tool)], [post.tool], journal=database(tmp_path))
            await give_word(made.journal, result.run_id, "tool.0", "approve", "ann")
            assert ((await made.resume(result.run_id)).status, post.sent) == ("done", ["ann: hello"])

    async def test_all_questions_of_a_message_come_before_anything_of_it_runs(self) -> None:
        post, ready = Post(), asyncio.Event()
        asked: list[str] = []

        async def approve(question: ApprovalAsked) -> bool:
            asked.append(question.key)
            if len(asked) == 3:
                assert post.sent == []
                ready.set()
            await ready.wait()
            return True

        three = sum((call("send", {"to": who, "text": "x"}) for who in "bc"), call("send", {"to": "a", "text": "x"}))
        async with ScriptedServer([three, text("done")]) as server:
            await solo(server, post, approve=approve)
        assert sorted(post.sent) == ["a: x", "b: x", "c: x"]

    async def test_calls_run_as_they_are_allowed_and_are_observed_each_once(self) -> None:
        post, order = Post(), iter("bca")
        turns = {who: asyncio.Event() for who in "abc"}

        async def approve(question: ApprovalAsked) -> bool:
            who = question.arguments[8]
            await turns[who].wait()
            return True

        def release() -> None:
            turns[next(order)].set()

        release()

        @tool(approval=True)
        async def send(to: str) -> str:
            """Send. Use it to send. Returns to whom."""
            post.sent.append(to)
            if to != "a":
                release()
            return f"sent to {to}"

        post.tool = send
        three = sum((call("send", {"to": who}) for who in "bc"), call("send", {"to": "a"}))
        async with ScriptedServer([three, text("done")]) as server:
            await solo(server, post, approve=approve)
            answers = {m["tool_call_id"]: m["content"] for m in server.requests[1]["messages"] if m["role"] == "tool"}
        assert post.sent == ["b", "c", "a"]
        assert sorted(answers.values()) == ["sent to a", "sent to b", "sent to c"]


class TestWithNobody:
    async def test_a_log_in_memory_refuses_with_the_reason(self) -> None:
        post = Post()
        async with ScriptedServer([SENDS, text("I could not.")]) as server:
            result, events = await solo(server, post)
            told = server.requests[1]["messages"][-1]["content"]
        assert (result.status, post.sent, of(events, ApprovalAsked)) == ("done", [], [])
        assert "it needs a person's approval" in told
        assert "nobody can be asked here" in told


class TestAQuestion:
    ASKS = call("ask_person", {"question": "Which colour?", "options": ["red", "blue"]})

    async def test_is_answered_in_words(self) -> None:
        async def approve(question: ApprovalAsked) -> str:
            assert (question.expects, question.name) == ("answer", "ask_person")
            return "blue, please"

        async with ScriptedServer([self.ASKS, text("blue it is")]) as server:
            result = await orchestrator(server, [clerk("ask_person")], approve=approve).run_role("clerk", "paint it")
            assert server.requests[1]["messages"][-1]["content"] == "blue, please"
        assert result.answer == "blue it is"

    async def test_nobody_can_answer_is_said(self) -> None:
        async with ScriptedServer([self.ASKS, text("red then")]) as server:
            await orchestrator(server, [clerk("ask_person")]).run_role("clerk", "paint it")
            assert "nobody can be asked here" in server.requests[1]["messages"][-1]["content"]


def started(made: Orchestrator) -> RunHandle:
    """Return the run of a clerk without a planner."""
    handle = made.start("send it")
    handle.order = replace(handle.order, root="clerk")
    return handle


def database(tmp_path: Path) -> Path:
    return tmp_path / "log" / "runs.db"


class TestWithALogOnDisk:
    async def test_the_run_ends_as_needs_review_and_goes_on_when_somebody_has_said_yes(self, tmp_path: Path) -> None:
        """B44: approved while nobody worked on it, the call is made once, and nothing is asked again."""
        post = Post()
        async with ScriptedServer([SENDS, text("done")]) as server:
            made = orchestrator(server, [clerk(post.tool)], [post.tool], journal=database(tmp_path))
            result = await made.run_role("clerk", "send it")
            assert (result.status, result.stop_reason, post.sent) == ("needs_review", "needs_person", [])
            assert result.failure and "ori inbox" in result.failure.message
            [info] = await made.journal.runs()
            assert (info.status, info.waiting) == ("needs_review", 1)
            await give_word(made.journal, result.run_id, "clerk:1:tool.0", "approve", "ann")
            done = await made.resume(result.run_id)
            assert (done.status, done.answer, post.sent) == ("done", "done", ["ann: hello"])
            events = await made.journal.events(result.run_id)
        assert len(of(events, ApprovalAsked)) == len(of(events, SignalTaken)) == len(of(events, ToolStarted)) == 1
        assert len(server.requests) == 2
        [resumed] = of(events, RunResumed)
        assert (resumed.again, resumed.paid_twice) == (0, 0), "nothing was under way"

    async def test_resumed_without_a_word_it_waits_again_and_asks_nothing_new(self, tmp_path: Path) -> None:
        post = Post()
        async with ScriptedServer([SENDS, text("done")]) as server:
            made = orchestrator(server, [clerk(post.tool)], [post.tool], journal=database(tmp_path))
            result = await made.run_role("clerk", "send it")
            again = await made.resume(result.run_id)
            events = await made.journal.events(result.run_id)
        assert (again.status, post.sent, len(of(events, ApprovalAsked))) == ("needs_review", [], 1)

    async def test_of_several_only_what_was_answered_goes_on(self, tmp_path: Path) -> None:
        """B45: one of three waiting calls is answered; the others are neither made nor asked about again."""
        post = Post()
        three = call("send", {"to": "a", "text": ""}) + call("send", {"to": "b", "text": ""})
        three += call("send", {"to": "c", "text": ""})
        async with ScriptedServer([three, text("done")]) as server:
            made = orchestrator(server, [clerk(post.tool)], [post.tool], journal=database(tmp_path))
            result = await made.run_role("clerk", "send it")
            for call_, sent in (("tool.1", ["b: "]), ("tool.2", ["b: ", "c: "]), ("tool.0", ["b: ", "c: ", "a: "])):
                await give_word(made.journal, result.run_id, call_, "approve", "ann")
                result = await made.resume(result.run_id)
                assert post.sent == sent
            assert (result.status, len(server.requests)) == ("done", 2)
            events = await made.journal.events(result.run_id)
        assert len(of(events, ApprovalAsked)) == 3

    async def test_what_came_before_a_question_is_not_done_again(self, tmp_path: Path) -> None:
        """B43: a call with an effect before an approval, and two more approvals after it; each is made once."""
        post, made_up = Post(), []

        @tool(effect="once", outward=False)
        async def note(text: str) -> str:
            """Note something. Use it to note. Returns that it is noted."""
            made_up.append(text)
            return "noted"

        script = [call("note", {"text": "x"}) + SENDS, SENDS, SENDS, text("done")]
        async with ScriptedServer(script) as server:
            roles = [clerk("note", "send")]
            made = orchestrator(server, roles, [note, post.tool], journal=database(tmp_path))
            result = await made.run_role("clerk", "send it")
            for waiting in ("1:tool.1", "2:tool.0", "3:tool.0"):
                await give_word(made.journal, result.run_id, waiting, "approve", "ann")
                result = await made.resume(result.run_id)
            assert (result.status, made_up, len(post.sent), len(server.requests)) == ("done", ["x"], 3, 4)

    async def test_siblings_go_on_with_the_slot_of_one_that_waits(self, tmp_path: Path) -> None:
        post = Post()
        script = {
            ORI: [delegate(subtask("a", role="clerk"), subtask("b", role="clerk"), subtask("c", "a", role="clerk"))],
            "do a": [SENDS],
            "do b": [text("b is done")],
        }
        async with serving(script) as server:
            made = orchestrator(
                server, [clerk(post.tool)], [post.tool], journal=database(tmp_path), limits=Limits(max_parallel=1)
            )
            result = await made.solve("do it")
            events = await made.journal.events(result.run_id)
        assert (result.status, result.outcomes["b"].answer) == ("needs_review", "b is done")
        assert "c" not in result.outcomes
        [waiting] = of(events, SubtaskWaiting)
        assert (waiting.path, waiting.id, waiting.why) == ("ori/a", "a", "send: it needs a person's approval")

    async def test_a_plan_goes_on_where_it_waited(self, tmp_path: Path) -> None:
        post = Post()
        script = {
            ORI: [delegate(subtask("a", role="clerk"), subtask("b", "a", role="clerk")), text("all done")],
            "do a": [SENDS, text("a is done")],
            "do b": [text("b is done")],
        }
        async with serving(script) as server:
            made = orchestrator(server, [clerk(post.tool)], [post.tool], journal=database(tmp_path))
            result = await made.solve("do it")
            await give_word(made.journal, result.run_id, "a:1:tool.0", "deny", "ann", why="not today")
            done = await made.resume(result.run_id)
        assert (done.status, done.answer, statuses(done), post.sent) == (
            "done",
            "all done",
            {"a": "done", "b": "done"},
            [],
        )

    async def test_a_tool_without_a_model_waits_too(self, tmp_path: Path) -> None:
        post = Post()
        plan = delegate(subtask("a", tool="send", args={"to": "ann", "text": "hi"}))
        async with serving({ORI: [plan, text("sent")]}) as server:
            made = orchestrator(server, [clerk(post.tool)], [post.tool], journal=database(tmp_path))
            result = await made.solve("do it")
            assert (result.status, post.sent) == ("needs_review", [])
            await give_word(made.journal, result.run_id, "ori/a:1:tool.0", "approve", "ann")
            done = await made.resume(result.run_id)
        assert (done.status, post.sent) == ("done", ["ann: hi"])


class TestTheHandle:
    async def test_who_follows_the_events_answers_and_the_run_goes_on(self) -> None:
        post = Post()
        async with ScriptedServer([SENDS, text("done")]) as server:
            made = orchestrator(server, [clerk(post.tool)], [post.tool])
            async with started(made) as handle:
                async for event in handle:
                    if isinstance(event, ApprovalAsked):
                        word = await handle.approve(event.key, {"to": "bob", "text": "hi"}, by="ann")
                        late = await handle.deny(event.key, "too late")
                        assert (word.by, late) == ("ann", word)
                result = await handle.result()
        assert (result.status, post.sent) == ("done", ["bob: hi"])

    @pytest.mark.parametrize(
        ("give", "fault"),
        [
            (lambda handle: handle.approve("clerk:9:tool.0"), "has no call 'clerk:9:tool.0' that waits; did you mean"),
            (lambda handle: handle.approve("tool.0", {"to": 3}), r"do not fit send: .*text is required"),
            (lambda handle: handle.deny("tool.0", "\ud800"), "the word cannot be kept as JSON: str is not valid UTF-8"),
            (lambda handle: handle.answer("tool.0", "yes"), "waits for another word: approve or deny"),
        ],
        ids=["unknown", "arguments", "text", "kind"],
    )
    async def test_a_word_that_does_not_fit_is_refused_and_the_call_waits_on(
        self, give: Callable[[RunHandle], Any], fault: str
    ) -> None:
        post = Post()
        async with ScriptedServer([SENDS, text("done")]) as server:
            made = orchestrator(server, [clerk(post.tool)], [post.tool])
            async with started(made) as handle:
                async for event in handle:
                    if isinstance(event, ApprovalAsked):
                        with pytest.raises(ConfigError, match=fault):
                            await give(handle)
                        await handle.approve(event.key)
                assert (await handle.result()).status == "done"
        assert post.sent == ["ann: hello"]

    async def test_a_run_that_is_cancelled_while_it_is_made_ready_does_nothing(self) -> None:
        class Hasty(MemoryJournal):
            async def commit(self) -> None:
                for run in self._runs:
                    if not await self.signals(run):
                        await self.send(Signal(run=run, kind="cancel", by="ann", at=1.0))
                        for _ in range(10):  # the run hears of it
                            await asyncio.sleep(0)

        async with ScriptedServer([]) as server:
            result = await orchestrator(server, [clerk()], journal=Hasty()).run_role("clerk", "send it")
        assert (result.status, server.requests) == ("cancelled", [])

    async def test_a_run_that_waits_can_be_cancelled(self) -> None:
        post = Post()
        async with ScriptedServer([SENDS]) as server:
            made = orchestrator(server, [clerk(post.tool)], [post.tool])
            async with started(made) as handle:
                async for event in handle:
                    if isinstance(event, ApprovalAsked):
                        result = await handle.cancel()
        assert (result.status, post.sent) == ("cancelled", [])


JUDGE = Role(
    name="judge",
    description="Judges.",
    prompt="You are a judge.",
    output=Verdict,
    min_confidence=0.8,
)
MAKER = Role(name="maker", description="Makes.", prompt="You are a maker.", review=Review(by="judge", rounds=1))
UNSURE = call("submit_result", {"accepted": True, "feedback": "looks fine", "confidence": 0.4})
REJECTED = call("submit_result", {"accepted": False, "feedback": "too short", "confidence": 0.9})


class TestAResultThatAReviewerDoesNotLetPass:
    def script(self, verdict: Answer) -> Any:
        plan = delegate(subtask("a", role="maker"), subtask("b", "a"))
        return {
            ORI: [plan, text("all done")],
            "You are a maker": [text("42")],
            "You are a judge": [verdict],
            "do b": [text("b is done")],
        }

    @pytest.mark.parametrize(
        ("verdict", "why"),
        [(UNSURE, "the reviewer is not sure enough: looks fine"), (REJECTED, "not accepted in 1 reviews: too short")],
        ids=["unsure", "rejected"],
    )
    async def test_waits_in_the_inbox_and_is_done_when_somebody_accepts_it(
        self, tmp_path: Path, verdict: Answer, why: str
    ) -> None:
        async with serving(self.script(verdict)) as server:
            made = orchestrator(server, [MAKER, JUDGE, WORKER], journal=database(tmp_path))
            result = await made.solve("do it")
            [question] = await made.journal.questions()
            assert (question.name, question.arguments, question.why) == ("result", "42", why)
            assert result.status == "needs_review"
            await give_word(made.journal, result.run_id, question.key, "approve", "ann")
            done = await made.resume(result.run_id)
        assert (done.status, done.outcomes["a"].answer, statuses(done)) == ("done", "42", {"a": "done", "b": "done"})

    async def test_another_result_can_be_put_in_its_place(self, tmp_path: Path) -> None:
        async with serving(self.script(REJECTED)) as server:
            made = orchestrator(server, [MAKER, JUDGE, WORKER], journal=database(tmp_path))
            result = await made.solve("do it")
            await give_word(made.journal, result.run_id, "person", "answer", "ann", text="43")
            done = await made.resume(result.run_id)
        assert (done.status, done.outcomes["a"].answer) == ("done", "43")

    async def test_it_stays_open_when_somebody_says_no(self, tmp_path: Path) -> None:
        async with serving(self.script(REJECTED)) as server:
            made = orchestrator(server, [MAKER, JUDGE, WORKER], journal=database(tmp_path))
            result = await made.solve("do it")
            await give_word(made.journal, result.run_id, "person", "deny", "ann", why="still too short")
            done = await made.resume(result.run_id)
        assert (done.status, statuses(done)) == ("needs_review", {"a": "needs_review", "b": "skipped"})
        assert done.failure and done.failure.message == "ann did not accept it: still too short"


def stuck_at_first(post: Post, begun: asyncio.Event, **options: Any) -> Tool:
    """Return a tool whose first call takes effect and never returns."""

    @tool(**options)
    async def send(to: str) -> str:
        """Send. Use it to send. Returns that it was sent."""
        post.sent.append(to)
        if len(post.sent) == 1:
            begun.set()
            await asyncio.Event().wait()
        return "sent"

    return send


class TestACallThatWasInterrupted:
    """Killed between its effect and its record, a call that must not be repeated is in doubt."""

    async def interrupted(self, server: ScriptedServer, post: Post, tmp_path: Path, **options: Any) -> Any:
        """Leave a run while its call is being made; return the orchestrator and the run."""
        begun = asyncio.Event()
        send = stuck_at_first(post, begun, **options)
        made = orchestrator(server, [clerk(send)], [send], journal=database(tmp_path))
        async with started(made) as handle:
            await begun.wait()
        return made, handle.run_id

    @pytest.mark.parametrize(
        ("word", "sent", "told"),
        [
            (("approve", {}), ["ann", "ann"], "sent"),
            (("deny", {"why": "it got lost"}), ["ann"], "Error: not run: bob did not allow this call. it got lost"),
            (("answer", {"text": "sent at noon"}), ["ann"], "sent at noon"),
        ],
        ids=["again", "failed", "done"],
    )
    async def test_is_not_made_again_until_a_person_says_so(
        self, tmp_path: Path, word: Any, sent: list[str], told: str
    ) -> None:
        post = Post()
        async with ScriptedServer([call("send", {"to": "ann"}), text("done")]) as server:
            made, run = await self.interrupted(server, post, tmp_path)
            waits = await made.resume(run)
            assert (waits.status, post.sent) == ("needs_review", ["ann"])
            [question] = await made.journal.questions(run)
            kind, data = word
            await give_word(made.journal, run, question.key, kind, "bob", **data)
            assert (await made.resume(run)).status == "done"
            assert server.requests[1]["messages"][-1]["content"] == told
        assert post.sent == sent

    async def test_that_was_allowed_before_is_asked_about_again(self, tmp_path: Path) -> None:
        post = Post()
        async with ScriptedServer([call("send", {"to": "ann"}), text("done")]) as server:
            made, run = await self.interrupted_after_a_yes(server, post, tmp_path)
            waits = await made.resume(run)
            assert (waits.status, post.sent) == ("needs_review", ["bob"])
            [question] = await made.journal.questions(run)
            await give_word(made.journal, run, question.key, "approve", "ann")
            assert (await made.resume(run)).status == "done"
        assert post.sent == ["bob", "bob"]

    async def interrupted_after_a_yes(self, server: ScriptedServer, post: Post, tmp_path: Path) -> Any:
        begun = asyncio.Event()
        send = stuck_at_first(post, begun, approval=True)
        made = orchestrator(server, [clerk(send)], [send], journal=database(tmp_path))
        result = await made.run_role("clerk", "send it")
        await give_word(made.journal, result.run_id, "tool.0", "approve", "ann", arguments={"to": "bob"})
        async with made.start_resumed(result.run_id):
            await begun.wait()
        return made, result.run_id

    @pytest.mark.parametrize(
        ("found", "sent", "told"),
        [(True, 1, "It took effect before the run was interrupted."), ("at noon", 1, "at noon"), (None, 2, "sent")],
        ids=["it-did", "with-its-result", "it-did-not"],
    )
    async def test_is_settled_by_its_tool_where_that_can_tell(
        self, tmp_path: Path, found: Any, sent: int, told: str
    ) -> None:
        post, keys = Post(), []

        async def verify(key: str) -> Any:
            keys.append(key)
            return found

        async with ScriptedServer([call("send", {"to": "ann"}), text("done")]) as server:
            made, run = await self.interrupted(server, post, tmp_path, verify=verify)
            assert (await made.resume(run)).status == "done"
            assert server.requests[1]["messages"][-1]["content"] == told
        assert (len(post.sent), len(keys)) == (sent, 1)

    @pytest.mark.parametrize("error", [OSError("down"), asyncio.CancelledError()], ids=["error", "cancelled"])
    async def test_is_left_to_a_person_where_its_tool_cannot_tell(self, tmp_path: Path, error: BaseException) -> None:
        """Whatever its own code raises: of a subtask without a model nothing was left when that was a cancellation."""
        post, begun = Post(), asyncio.Event()

        async def verify(key: str) -> Any:
            raise error

        send = stuck_at_first(post, begun, verify=verify)
        plan = delegate(subtask("a", tool="send", args={"to": "ann"}))
        async with serving({ORI: [plan, text("ok")]}) as server:
            made = orchestrator(server, [WORKER, clerk(send)], [send], journal=database(tmp_path))
            async with made.start("do it") as handle:
                await begun.wait()
            waits = await made.resume(handle.run_id)
            assert (waits.status, post.sent) == ("needs_review", ["ann"])
            [warned] = of(await made.journal.events(handle.run_id), Warned)
        assert warned.text.startswith("send cannot tell: ")
