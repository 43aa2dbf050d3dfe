"""A run that was cut off at any of its commits goes on to the same end, and asks for nothing twice."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import SecretStr

from orchestrator import Limits, Orchestrator, Role, RunResult, ToolContext, tool
from orchestrator.errors import ConfigError, ToolError
from orchestrator.events import ArtifactStored, ChangesUndone, Event, ModelReplied, RunResumed, ToolReturned
from orchestrator.journal.memory import MemoryJournal
from orchestrator.messages import Message
from orchestrator.past import Past
from orchestrator.plan import Subtask
from orchestrator.review import Verdict
from orchestrator.role import Review
from orchestrator.settings import ModelSettings
from orchestrator.testing import Answer, ScriptedServer, call, hang, text
from orchestrator.tool import Tool
from tests.engine import FILTERED, ORI, WORKER, delegate, orchestrator, statuses, subtask

Script = dict[str, list[Answer]]


class Commits(MemoryJournal):
    """Notes how much was written at each commit: what a crash can leave."""

    def __init__(self) -> None:
        super().__init__()
        self.marks: list[int] = []

    async def commit(self) -> None:
        self.marks.append(sum(map(len, self._runs.values())))


def holding(events: Sequence[Event]) -> MemoryJournal:
    journal = MemoryJournal()
    for event in events:
        journal.write(event)
    return journal


def by_turn(script: Script) -> Callable[[dict[str, Any]], Answer]:
    """Answer a conversation by how many answers are in it: the same request gets the same reply, however often."""

    def answer(request: dict[str, Any]) -> Answer:
        said = "\n".join(str(m["content"]) for m in request["messages"] if m["role"] in ("system", "user"))
        turn = sum(m["role"] == "assistant" for m in request["messages"])
        key = next(key for key in script if key in said)
        reply: Answer = script[key][turn]
        return reply

    return answer


async def every_cut(
    script: Script | Callable[[dict[str, Any]], Answer],
    roles: Iterable[Role],
    tools: Iterable[Tool] = (),
    *,
    window: int = 128_000,
    exact: bool = True,
    **options: Any,
) -> tuple[RunResult, int]:
    """Run once, then again from each commit of that run, and hold each end against the first one."""
    roles, tools = list(roles), list(tools)
    async with ScriptedServer(script if callable(script) else by_turn(script)) as server:
        journal = Commits()
        model = ModelSettings(model="m", base_url=server.base_url, api_key=SecretStr("k"), window=window)
        made = Orchestrator(models={"default": model}, roles=roles, tools=tools, journal=journal)
        whole = await made.solve("goal", **options)
        events = await journal.events(whole.run_id)
        calls = len(server.requests)
        ends = len(events)
        for mark in sorted(set(journal.marks)):
            if mark >= ends:
                continue
            before = len(server.requests)
            left = holding(events[:mark])
            for event in events[mark:]:
                if isinstance(event, ArtifactStored):
                    (Path(whole.workspace or "") / event.file).unlink(missing_ok=True)
            made = Orchestrator(models={"default": model}, roles=roles, tools=tools, journal=left)
            result = await made.resume(whole.run_id)
            assert told(result) == told(whole), f"cut after event {mark}: {events[mark - 1]}"
            replied = sum(isinstance(e, ModelReplied) for e in events[:mark])
            assert not exact or result.usage.calls == whole.usage.calls
            assert not exact or len(server.requests) - before == calls - replied, f"cut after event {mark}"
            after = await left.events(whole.run_id)
            assert [e.seq for e in after] == list(range(1, len(after) + 1))
            assert not exact or conversations(after) == conversations(events)
            twice = [k for k, n in Counter(e.key for e in after if isinstance(e, ToolReturned)).items() if n > 1]
            assert not twice
        return whole, calls


def told(result: RunResult) -> tuple[Any, ...]:
    outcomes = {
        id: (o.status, o.stop_reason, o.answer, o.value, o.attempts, o.artifacts) for id, o in result.outcomes.items()
    }
    whole = (result.status, result.stop_reason, result.answer, result.value, result.failure)
    return (*whole, outcomes)


def conversations(events: Sequence[Event]) -> dict[str, list[Any]]:
    def said(message: Message) -> Any:
        return message.role, message.content, [(call.name, call.arguments) for call in message.calls]

    loops = Past.of(events).loops
    return {path: [said(message) for message in loop.conversation.messages] for path, loop in loops.items()}


@tool(effect="read")
async def look(name: str) -> str:
    """Look something up. Use it for facts. Returns the fact."""
    return f"{name} is 42"


LOOKER = WORKER.model_copy(update={"tools": ("look",)})


class TestEveryCut:
    async def test_a_plan_whose_workers_call_tools(self) -> None:
        plan = delegate(subtask("a"), subtask("b"), subtask("c", "a b"))
        work = [call("look", {"name": "x"}), text("x is 42")]
        script = {ORI: [plan, text("all is 42")], "do a": work, "do b": work, "do c": work}
        whole, calls = await every_cut(script, [LOOKER], [look])
        assert (whole.status, calls) == ("done", 8)

    async def test_attempts_and_a_fallback(self) -> None:
        slow = text("", finish_reason="content_filter")
        plan = delegate(
            subtask("a", on_failure="retry"), subtask("b", on_failure={"goal": "do it otherwise"}), subtask("c", "a b")
        )
        script = {
            ORI: [plan, text("done")],
            "do a": [slow],
            "do b": [slow],
            "do c": [text("c")],
            "otherwise": [text("b")],
        }
        whole, _ = await every_cut(script, [WORKER])
        assert (whole.outcomes["a"].attempts, whole.outcomes["b"].attempts) == (2, 2)
        assert whole.outcomes["c"].status == "skipped"

    async def test_reviews_that_send_a_result_back(self) -> None:
        reviewer = Role(name="reviewer", description="Reviews.", prompt="You review.", output=Verdict)
        reviewed = WORKER.model_copy(update={"review": Review(by="reviewer", rounds=3), "tools": ("look",)})
        verdicts = {"first": False, "second": False, "third": True}
        script = {
            ORI: [delegate(subtask("a")), text("done")],
            "You review": [],
            "do a": [text("first"), call("look", {"name": "x"}), text("second"), text("third")],
        }

        def answer(request: dict[str, Any]) -> Answer:
            whole = str(request["messages"])
            if "You review" in whole:
                said = next(word for word in verdicts if f">\\n{word}\\n<" in whole)
                return text(orjson.dumps({"accepted": verdicts[said], "feedback": f"not {said}"}).decode())
            return by_turn(script)(request)

        whole, _ = await every_cut(answer, [reviewed, reviewer], [look])
        assert (whole.outcomes["a"].answer, whole.status) == ("third", "done")

    async def test_a_loop_that_sums_up_at_its_limit(self) -> None:
        again = [call("look", {"name": str(n)}) for n in range(3)]
        limited = LOOKER.model_copy(update={"limits": Limits(max_turns=3)})
        script = {
            ORI: [delegate(subtask("a"), subtask("b")), text("half")],
            "do a": [*again, text("so far")],
            "do b": again,
        }
        script["do b"] = [text("b")]
        whole, _ = await every_cut(script, [limited], [look])
        outcome = whole.outcomes["a"]
        assert (outcome.status, outcome.stop_reason, outcome.answer) == ("partial", "max_turns", "so far")

    async def test_a_loop_that_repeats_itself_and_one_whose_tool_fails(self) -> None:
        @tool(effect="read")
        async def broken(name: str) -> str:
            """Look something up. Use it for facts. Returns the fact."""
            raise ToolError(f"no {name}")

        repeating = [call("look", {"name": "x"})] * 5
        failing = [call("broken", {"name": str(n)}) for n in range(3)]
        both = WORKER.model_copy(update={"tools": ("look", "broken")})
        script = {
            ORI: [delegate(subtask("a"), subtask("b")), text("half")],
            "do a": [*repeating, text("stuck")],
            "do b": [*failing, text("no luck")],
        }
        whole, _ = await every_cut(script, [both], [look, broken])
        assert {o.stop_reason for o in whole.outcomes.values()} == {"repeated_calls", "tool_failures"}

    async def test_a_tool_without_a_model_whose_value_others_use(self) -> None:
        @tool(effect="idempotent")
        async def measure(name: str) -> dict[str, int]:
            """Measure something. Use it for sizes. Returns its length."""
            return {"length": len(name)}

        measuring = WORKER.model_copy(update={"tools": ("measure",)})
        plan = delegate(
            subtask("m", tool="measure", args={"name": "abc"}),
            subtask("n", "m", tool="measure", args={"name": "${outcomes.m.value.length} and ${outcomes.m.answer}"}),
            subtask("w", "n"),
        )
        whole, _ = await every_cut({ORI: [plan, text("done")], "do w": [text("w")]}, [measuring], [measure])
        assert whole.outcomes["n"].value == {"length": 18}

    async def test_a_planner_below_the_planner(self) -> None:
        lead = Role(
            name="lead", description="Leads.", prompt="You lead.", tools=("delegate",), may_delegate=("worker",)
        )
        script = {
            ORI: [delegate(subtask("l", role="lead"), subtask("z")), text("all")],
            "You lead": [delegate(subtask("x"), subtask("y", "x")), text("both")],
            "do z": [text("z")],
            "do x": [call("look", {"name": "x"}), text("x")],
            "do y": [text("y")],
        }
        whole, _ = await every_cut(script, [lead, LOOKER], [look])
        assert whole.outcomes["l"].answer == "both"

    async def test_a_structured_result_that_is_mended(self) -> None:
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        script = {
            ORI: [delegate(subtask("a", output=schema)), text("done")],
            "do a": [call("submit_result", {"m": 1}), call("look", {"name": "x"}), call("submit_result", {"n": 1})],
        }
        whole, _ = await every_cut(script, [LOOKER], [look])
        assert whole.outcomes["a"].value == {"n": 1}

    async def test_a_second_plan_that_replaces_what_failed(self) -> None:
        script = {
            ORI: [
                delegate(subtask("a"), subtask("b", "a"), subtask("c")),
                delegate(subtask("a2", replaces="a"), subtask("c")),
                text("done"),
            ],
            "do a2": [text("a2")],
            "do a": [FILTERED],
            "do b": [text("b")],
            "do c": [text("c")],
        }
        whole, _ = await every_cut(script, [WORKER])
        assert (whole.status, whole.outcomes["b"].status) == ("done", "done")

    async def test_wrong_plans_before_a_right_one(self) -> None:
        wrong = delegate(subtask("a", "b"), subtask("b", "a"))
        script = {ORI: [wrong, wrong, delegate(subtask("a")), text("done")], "do a": [text("a")]}
        whole, _ = await every_cut(script, [WORKER])
        assert whole.status == "done"

    async def test_a_ready_made_plan(self) -> None:
        plan = [Subtask(id="a", role="worker", goal="do a"), Subtask(id="b", role="worker", goal="do b", after=("a",))]
        script = {ORI: [text("done")], "do a": [call("look", {"name": "x"}), text("a")], "do b": [text("b")]}
        whole, _ = await every_cut(script, [LOOKER], [look], plan=plan)
        assert whole.answer == "done"

    async def test_empty_and_cut_answers(self) -> None:
        script = {
            ORI: [delegate(subtask("a"), subtask("b"), subtask("c")), text("done")],
            "do a": [text("begin ", finish_reason="length"), text("end")],
            "do b": [call("look", {"name": "x"}), text("thinking"), text("FINAL_ANSWER: b")],
            "do c": [text("c")],
        }
        marked = LOOKER.model_copy(update={"final_marker": "required"})
        plain = LOOKER.model_copy(update={"name": "plain"})
        script[ORI][0] = delegate(subtask("a", role="plain"), subtask("b"), subtask("c", role="plain"))
        whole, _ = await every_cut(script, [marked, plain], [look])
        assert (whole.outcomes["a"].answer, whole.outcomes["b"].answer) == ("begin end", "b")

    async def test_files_and_variables(self, tmp_path: Path) -> None:
        @tool(effect="idempotent")
        async def note(name: str, ctx: ToolContext) -> str:
            """Note something. Use it for notes. Returns what was there."""
            before = str(ctx.variables.get("last", "nothing"))
            ctx.variables["last"] = name
            await ctx.artifact(f"{name}.txt", name)
            return before

        noting = WORKER.model_copy(update={"tools": ("note",)})
        plan = delegate(subtask("a"), subtask("b", "a"))
        script = {
            ORI: [plan, text("done")],
            "do a": [call("note", {"name": "a"}), text("a")],
            "do b": [call("note", {"name": "b"}), text("b")],
        }
        whole, _ = await every_cut(script, [noting], [note], workspace=tmp_path)
        assert [a.path for a in whole.artifacts] == ["a.txt", "b.txt"]

    async def test_a_conversation_that_is_summed_up(self) -> None:
        @tool(effect="read")
        async def page(n: int) -> str:
            """Read a page. Use it for the report. Returns its text."""
            return f"page {n} says " + f"something {n} " * 300

        def answer(request: dict[str, Any]) -> Answer:
            whole = str(request["messages"])
            if "You are the planner" in whole:
                return text("done") if "outcome" in whole else delegate(subtask("a"))
            seen = max(map(int, re.findall(r"page (\d+) says", whole)), default=0)
            if "page" not in str([t["function"]["name"] for t in request.get("tools", [])]):
                return text(f"page {seen} says so")
            return call("page", {"n": seen + 1}) if seen < 16 else text("read")

        planner = Role(name="ori", description="Plans.", prompt="You are the planner.", tools=("delegate",))
        reader = WORKER.model_copy(update={"tools": ("page",)})
        # where it is summed up depends on what the process has learned of how the model counts
        whole, calls = await every_cut(answer, [planner, reader], [page], window=9_000, exact=False)
        assert (whole.status, whole.outcomes["a"].answer) == ("done", "read")
        assert calls > 19, "nothing was summed up"


class TestRetry:
    async def test_what_was_never_finished_is_done_when_a_message_came_between(self) -> None:
        started = asyncio.Event()

        @tool(effect="read")
        async def wait() -> str:
            """Wait the first time. Use it never. Returns nothing."""
            if not started.is_set():
                started.set()
                await asyncio.Event().wait()
            return "over"

        script = {
            ORI: [delegate(subtask("a"), subtask("b", "a")), text("hello"), text("all done")],
            "do a": [call("wait", {}), text("a")],
            "do b": [text("b")],
        }
        async with ScriptedServer(by_turn(script)) as server:
            made = orchestrator(server, [WORKER.model_copy(update={"tools": ("wait",)})], [wait])
            async with made.start("goal") as handle:
                await started.wait()
                cancelled = await handle.cancel()
            answered = await made.resume(cancelled.run_id, "Just say hello.")
            assert (answered.answer, statuses(answered)) == ("hello", {})
            retried = await made.retry(cancelled.run_id)
            events = await made.journal.events(cancelled.run_id)
        assert (retried.answer, statuses(retried)) == ("all done", {"a": "done", "b": "done"})
        assert [event.again for event in events if isinstance(event, RunResumed)] == [0, 1]


class TestAMessage:
    @pytest.mark.parametrize("words", [None, "And tomorrow?"], ids=["resumed", "with another message"])
    async def test_that_came_before_the_run_was_stopped_again_is_not_lost(self, words: str | None) -> None:
        """Stopped before its loop had heard it, the run went on as if nobody had said a word."""

        def reply(request: dict[str, Any]) -> Answer:
            asked = str(request["messages"])
            return hang() if "something long" in asked else text("rainy" if "And now?" in asked else "sunny")

        async with ScriptedServer(reply) as server:
            made = orchestrator(server, max_runs=1)
            result = await made.solve("How is the weather?")
            async with made.start("something long") as other:
                async for event in other:
                    if event.type == "model.called":
                        break
                async with made.start_resumed(result.run_id, "And now?") as waiting:
                    assert (await waiting.cancel()).status == "cancelled"
            assert (await made.resume(result.run_id, words)).answer == "rainy"
            said = [m["content"] for m in server.requests[-1]["messages"] if m["role"] == "user"]
        assert said[1:] == ["\n\n".join(filter(None, ["And now?", words]))]


class TestUndo:
    """R14: what a run, or a subtask, changed can be put back; what cannot is listed."""

    async def written(self, server: ScriptedServer) -> tuple[Orchestrator, RunResult]:
        @tool(effect="idempotent")
        async def note(name: str, ctx: ToolContext) -> str:
            """Note something. Use it for notes. Returns that it is noted."""
            await ctx.artifact(f"{name}.txt", name)
            return "noted"

        @tool(effect="once")
        async def send(name: str) -> str:
            """Send something. Use it once. Returns that it is sent."""
            return "sent"

        both = WORKER.model_copy(update={"tools": ("note", "send")})
        made = orchestrator(server, [both], [note, send])
        return made, await made.solve("goal")

    def script(self) -> Script:
        return {
            ORI: [delegate(subtask("a"), subtask("b", "a")), text("done"), text("again")],
            "do a": [call("note", {"name": "a"}), text("a")],
            "do b": [call("note", {"name": "b"}), call("send", {"name": "b"}), text("b")],
        }

    async def test_a_subtask_is_undone_and_what_cannot_be_is_told(self) -> None:
        async with ScriptedServer(by_turn(self.script())) as server:
            made, result = await self.written(server)
            undone = await made.undo(result.run_id, "b")
            assert (undone.deleted, undone.calls) == (("b.txt",), ('send {"name": "b"}',))
            assert [path.name for path in Path(result.workspace or "").iterdir()] == ["a.txt"]
            with pytest.raises(ConfigError, match="no subtask 'c'"):
                await made.undo(result.run_id, "c")

    async def test_it_is_in_the_log_so_that_the_run_goes_on_without_those_files(self) -> None:
        async with ScriptedServer(by_turn(self.script())) as server:
            made, result = await self.written(server)
            await made.undo(result.run_id)
            again = await made.undo(result.run_id)
            assert again.files == ()
            resumed = await made.resume(result.run_id, "And now?")
            assert (resumed.answer, resumed.artifacts) == ("again", ())
            events = await made.journal.events(result.run_id)
            [event] = [event for event in events if isinstance(event, RunResumed)]
            assert event.changed == ()

    async def test_an_undo_on_another_day_takes_none_of_the_runs_time(self) -> None:
        async with ScriptedServer(by_turn(self.script())) as server:
            made, result = await self.written(server)
            await made.undo(result.run_id)
            *events, last = await made.journal.events(result.run_id)
            assert isinstance(last, ChangesUndone)
            assert Past.of([*events, replace(last, at=last.at + 86_400)]).active() < 600
