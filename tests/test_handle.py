"""A run from outside: its start, its events, its end, and every way to stop it."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from orchestrator import ConfigError, Limits, Orchestrator, Role, tool
from orchestrator.errors import JournalError, RunStopped
from orchestrator.events import (
    PASSING,
    Event,
    ModelCalled,
    RunEnded,
    RunStarted,
    SubtaskEnded,
    SubtaskStarted,
    TextDelta,
    ToolStarted,
)
from orchestrator.journal.memory import MemoryJournal
from orchestrator.order import named_as_targets
from orchestrator.testing import call, fault, hang, text
from tests.engine import (
    FILTERED,
    ORI,
    WORKER,
    delegate,
    logged,
    orchestrator,
    said_to,
    served,
    serving,
    statuses,
    subtask,
)


def tasks_besides(before: set[asyncio.Task[object]]) -> set[asyncio.Task[object]]:
    """Return the tasks that were not there before, the scripted server's left out."""
    return {t for t in asyncio.all_tasks() - before if "ScriptedServer" not in str(t.get_coro())}


class TestStopping:
    async def test_cancel_stops_everything_within_two_seconds_and_keeps_what_is_finished(self) -> None:
        replies = {ORI: [delegate(subtask("a"), subtask("b"))], "do a": text("apple"), "do b": hang()}
        async with serving(replies) as server:
            made = orchestrator(server)
            async with made.start("goal") as handle:
                async for event in handle:
                    if isinstance(event, SubtaskEnded):
                        break
                started = time.monotonic()
                result = await handle.cancel()
                assert time.monotonic() - started < 15
            await server.until(lambda s: s.in_flight == 0)
        assert (result.status, result.stop_reason) == ("cancelled", "cancelled")
        assert (statuses(result), result.outcomes["a"].answer) == ({"a": "done", "b": "cancelled"}, "apple")
        [info] = await made.journal.runs()
        assert (info.status, info.run) == ("cancelled", result.run_id)

    async def test_cancel_does_not_wait_for_a_tool_that_blocks_its_thread(self) -> None:
        release = threading.Event()

        @tool(effect="read")
        def block() -> str:
            """Block. Use it never. Returns a word."""
            release.wait(20)
            return "late"

        stuck = Role(name="stuck", description="Blocks.", prompt="You are stuck.", tools=("block",))
        replies = {ORI: [delegate(subtask("a", role="stuck"))], "do a": call("block", {})}
        async with serving(replies) as server, orchestrator(server, [stuck], [block]).start("goal") as handle:
            async for event in handle:
                if isinstance(event, ToolStarted) and event.name == "block":
                    break
            started = time.monotonic()
            result = await handle.cancel()
            assert time.monotonic() - started < 15
        release.set()
        assert result.status == "cancelled"

    async def test_cancel_stops_a_loop_whose_tool_takes_the_cancellation_for_itself(self) -> None:
        @tool(effect="read")
        async def swallow() -> str:
            """Wait. Use it never. Returns a word."""
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "interrupted"
            return "done"

        role = Role(name="waits", description="Waits.", prompt="You wait.", tools=("swallow",))
        plan = delegate(subtask("a", role="waits"), subtask("b", "a"))
        async with (
            serving({ORI: [plan], "do a": [call("swallow", {})]}) as server,
            orchestrator(server, [role, WORKER], [swallow]).start("goal") as handle,
        ):
            async for event in handle:
                if isinstance(event, ToolStarted) and event.name == "swallow":
                    break
            result = await handle.cancel()
        assert (result.status, len(server.requests)) == ("cancelled", 2)

    async def test_cancel_works_at_once_and_again_and_after_the_end(self) -> None:
        async with serving({ORI: [hang()]}) as server, orchestrator(server).start("goal") as handle:
            first = await handle.cancel()
            second = await handle.cancel()
        assert first == second and first.status == "cancelled"
        async with serving({ORI: [text("4")]}) as server, orchestrator(server).start("goal") as handle:
            done = await handle.result()
            assert await handle.cancel() == done and done.status == "done"

    async def test_a_second_cancel_while_the_end_is_recorded_gets_the_same_result(self) -> None:
        recording, recorded = asyncio.Event(), asyncio.Event()

        class Slow(MemoryJournal):
            async def commit(self) -> None:
                if any(isinstance(events[-1], RunEnded) for events in self._runs.values()):
                    recording.set()
                    await recorded.wait()

        async with (
            serving({ORI: [hang()]}) as server,
            orchestrator(server, journal=Slow()).start("goal") as handle,
            asyncio.TaskGroup() as group,
        ):
            one = group.create_task(handle.cancel())
            await recording.wait()
            other = group.create_task(handle.cancel())
            await asyncio.sleep(0)
            recorded.set()
        assert one.result() == other.result() and one.result().status == "cancelled"

    async def test_leaving_early_stops_every_task_and_the_run_counts_as_interrupted(self) -> None:
        before = asyncio.all_tasks()
        replies = {ORI: [delegate(subtask("a"), subtask("b"))], "You are a worker": hang()}
        async with serving(replies) as server:
            made = orchestrator(server)
            async with made:
                async with made.start("goal") as handle:
                    await server.until(lambda s: s.in_flight == 2)
                assert tasks_besides(before) == set()
                await server.until(lambda s: s.in_flight == 0)
            [info] = await made.journal.runs()
            assert info.status == "interrupted"
            assert not any(isinstance(e, RunEnded) for e in await made.journal.events(handle.run_id))
            with pytest.raises(RunStopped, match="left before it ended"):
                await handle.result()

    async def test_breaking_out_of_the_events_stops_the_run_when_the_block_is_left(self) -> None:
        before = asyncio.all_tasks()
        async with serving({ORI: hang(text("a long answer that never ends"))}) as server:
            async with orchestrator(server).stream("goal") as handle:
                async for event in handle:
                    if isinstance(event, TextDelta):
                        break
            assert tasks_besides(before) == set()
            await server.until(lambda s: s.in_flight == 0)

    async def test_a_cancel_from_outside_leaves_no_end_in_the_log(self) -> None:
        async with serving({ORI: [hang()]}) as server:
            made = orchestrator(server)
            async with asyncio.TaskGroup() as group:
                solving = group.create_task(made.solve("goal"))
                await server.until(lambda s: s.in_flight == 1)
                solving.cancel()
        assert solving.cancelled()
        [info] = await made.journal.runs()
        assert info.status == "interrupted"

    async def test_an_error_in_the_block_comes_out_as_it_is(self) -> None:
        async with serving({ORI: [hang()]}) as server:
            with pytest.raises(ZeroDivisionError):
                async with orchestrator(server).start("goal"):
                    raise ZeroDivisionError

    async def test_a_handle_that_was_not_entered_says_so(self) -> None:
        handle = Orchestrator(model="m", base_url="http://127.0.0.1:9/v1").start("goal")
        with pytest.raises(ConfigError, match="has not begun"):
            await handle.result()

    async def test_iterating_over_a_run_that_was_not_entered_runs_it(self) -> None:
        async with serving({ORI: text("yes")}) as server:
            handle = orchestrator(server).stream("goal")
            kinds = [event.type async for event in handle]
            assert (kinds[0], kinds[-1], (await handle.result()).answer) == ("run.started", "run.ended", "yes")

    async def test_breaking_out_of_such_an_iteration_stops_all_its_tasks(self) -> None:
        before = asyncio.all_tasks()
        async with serving({ORI: hang(text("half an answer"))}) as server:
            async for event in orchestrator(server).stream("goal"):
                if isinstance(event, TextDelta):
                    break
            async with asyncio.timeout(5):
                await server.until(lambda s: s.connections == 0)
                for task in tasks_besides(before):
                    await task


class TestEvents:
    async def test_a_stream_has_text_as_it_arrives_and_a_start_has_lasting_events_only(self) -> None:
        async with serving({ORI: text("It is forty-two, as always.")}) as server:
            made = orchestrator(server)
            kinds: dict[str, list[Event]] = {}
            for handle in (made.stream("goal"), made.start("goal")):
                async with handle:
                    kinds[handle.run_id] = [event async for event in handle]
        streamed, started = kinds.values()
        assert "".join(e.text for e in streamed if isinstance(e, TextDelta)) == "It is forty-two, as always."
        assert not any(isinstance(e, PASSING) for e in started)
        for events in (streamed, started):
            assert isinstance(events[0], RunStarted) and isinstance(events[-1], RunEnded)
            lasting = [e for e in events if e.seq]
            assert [e.seq for e in lasting] == list(range(1, len(lasting) + 1))
        assert tuple(started) == tuple(await made.journal.events(handle.run_id))
        assert [bool(r.get("stream")) for r in server.requests] == [True, False]

    async def test_events_end_by_themselves_and_the_result_is_there(self) -> None:
        async with serving({ORI: text("4")}) as server, orchestrator(server).stream("goal") as handle:
            last = [event async for event in handle][-1]
            assert isinstance(last, RunEnded) and last.result == await handle.result()


class TestTheEnd:
    async def test_a_run_in_which_everything_failed_has_failed_whatever_the_planner_says(self) -> None:
        replies = {ORI: [delegate(subtask("a"), subtask("b", "a")), text("Great success!")], "do a": FILTERED}
        async with serving(replies) as server:
            result = await orchestrator(server).solve("goal")
        assert (result.status, result.answer, result.stop_reason) == ("failed", "Great success!", "model_unavailable")
        assert result.failure and "content filter" in result.failure.message

    @pytest.mark.parametrize("status", [401, 403])
    async def test_a_server_that_refuses_ends_the_run_and_nobody_is_asked_to_plan_again(self, status: int) -> None:
        replies = {
            ORI: [delegate(subtask("a"), subtask("b", "a"), subtask("c", "a"))],
            "do a": fault(status, {"error": {"message": "Incorrect API key provided", "code": "invalid_api_key"}}),
        }
        async with serving(replies) as server:
            made = orchestrator(server)
            result = await made.solve("goal")
        assert (result.status, result.stop_reason) == ("failed", "model_unavailable")
        assert result.failure and (result.failure.kind, "Incorrect API key" in result.failure.message) == ("auth", True)
        assert len(server.requests) == 2

    async def test_an_outage_keeps_what_was_finished_before(self) -> None:
        plan = delegate(subtask("a"), subtask("b", "a"))
        replies = {ORI: [plan], "do a": text("apple"), "do b": fault(401)}
        async with serving(replies) as server:
            result = await orchestrator(server).solve("goal")
        assert (result.status, statuses(result)) == ("failed", {"a": "done"})

    async def test_an_outage_below_a_nested_planner_ends_the_run_too(self) -> None:
        lead = Role(name="lead", description="Leads.", prompt="You are a lead.", tools=("delegate",))
        replies = {
            ORI: [delegate(subtask("big", role="lead"))],
            "You are a lead": [delegate(subtask("part"))],
            "do part": fault(401),
        }
        async with serving(replies) as server:
            result = await orchestrator(server, [WORKER, lead]).solve("goal")
        assert (result.status, result.stop_reason, len(server.requests)) == ("failed", "model_unavailable", 3)

    async def test_a_result_has_the_type_that_was_asked_for(self) -> None:
        class Total(BaseModel):
            total: int

        async with serving({ORI: call("submit_result", {"total": 42})}) as server:
            result = await orchestrator(server).solve("goal", output=Total)
        assert result.value == Total(total=42)

    async def test_a_result_that_its_type_refuses_is_a_failure_in_the_log_too(self) -> None:
        class Total(BaseModel):
            total: int

            @field_validator("total")
            @classmethod
            def _even(cls, value: int) -> int:
                if value % 2:
                    raise ValueError("must be even")
                return value

        async with serving({ORI: call("submit_result", {"total": 41})}) as server:
            made = orchestrator(server)
            result = await made.solve("goal", output=Total)
        assert (result.status, result.stop_reason) == ("failed", "invalid_output")
        assert result.failure and "must be even" in result.failure.message
        [ended] = await logged(made, result, RunEnded)
        assert ended.result.status == "failed"

    async def test_a_log_that_cannot_be_written_is_told_to_who_waits(self) -> None:
        class Full(MemoryJournal):
            async def commit(self) -> None:
                raise JournalError("the disk is full")

        async with serving({ORI: text("4")}) as server:
            made = orchestrator(server, journal=Full())
            with pytest.raises(JournalError, match="the disk is full"):
                await made.solve("goal")
            assert not server.requests

    async def test_a_log_that_cannot_be_written_below_the_planner_is_told_as_well(self) -> None:
        class Filling(MemoryJournal):
            async def commit(self) -> None:
                if any(isinstance(e, SubtaskStarted) for run in self._runs.values() for e in run):
                    raise JournalError("the disk is full")

        plan = delegate(subtask("a", tool="look", args={"name": "x"}))
        looker = WORKER.model_copy(update={"tools": ("look",)})

        @tool(effect="read")
        async def look(name: str) -> str:
            """Look something up. Use it for facts. Returns the fact."""
            return name

        async with serving({ORI: [plan]}) as server:
            with pytest.raises(JournalError, match="the disk is full"):
                await orchestrator(server, [looker], [look], journal=Filling()).solve("goal")


class TestTheStart:
    @pytest.mark.parametrize("goal", ["", " \n\t"])
    async def test_an_empty_goal_is_refused_before_anything_is_recorded(self, goal: str) -> None:
        async with serving({}) as server:
            made = orchestrator(server)
            with pytest.raises(ConfigError, match="the goal is empty"):
                await made.solve(goal)
        assert await made.journal.runs() == []

    async def test_a_goal_of_100_000_characters_arrives_whole(self) -> None:
        goal = "数据 data " * 12_500 + "."
        plan = delegate(subtask("a"), constraints=["data 数据"])
        async with serving({ORI: [plan, text("ok")], "You are a worker": text("fine")}) as server:
            result = await orchestrator(server, limits=Limits(tokens=10**7)).solve(goal)
        assert result.status == "done"
        assert all(goal in said for said in said_to(server, "data"))

    async def test_a_missing_input_is_told_with_the_nearest_name(self, tmp_path: Path) -> None:
        (tmp_path / "sales.csv").write_text("x")
        async with serving({}) as server:
            made = orchestrator(server)
            with pytest.raises(ConfigError, match=r"'.*seles\.csv' does not exist; did you mean 'sales\.csv'"):
                await made.solve("goal", inputs=[tmp_path / "seles.csv"], workspace=tmp_path / "w")
        assert await made.journal.runs() == []

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"inputs": "sales.csv"}, r"inputs is 'sales\.csv', one alone; write a list: inputs=\['sales\.csv'\]"),
            ({"roles": "worker"}, "roles is 'worker', one alone"),
            ({"session": "\udcff"}, r"session is '\\udcff', which is no text"),
            ({"user": "\udcff"}, r"user is '\\udcff', which is no text"),
            ({"output": int}, "output is int, which is neither a pydantic model nor a JSON Schema"),
            ({"limits": {"tokens": 5}}, r"limits is {'tokens': 5}; write Limits\(tokens=50_000\)"),
        ],
        ids=["one input", "one role", "bytes of no session", "bytes of no user", "a plain type", "limits as a mapping"],
    )
    async def test_a_value_of_the_wrong_kind_is_named(self, options: dict[str, Any], said: str) -> None:
        async with serving({}) as server:
            with pytest.raises((ConfigError, TypeError), match=said):
                await orchestrator(server).solve("goal", **options)

    async def test_a_file_is_no_workspace(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("x")
        async with serving({}) as server:
            with pytest.raises(ConfigError, match=r"notes\.txt: the workspace is a file; name a folder"):
                await orchestrator(server).solve("goal", workspace=tmp_path / "notes.txt")

    @pytest.mark.parametrize(
        ("goal", "targets", "changed"),
        [
            ("Sum up notes.txt", [], False),
            ("Append the sum to notes.txt", [], True),
            ("把总数写入 notes.txt", [], True),
            ("Sum up", ["notes.txt"], True),
        ],
        ids=["only read", "named in English", "named in Chinese", "given as a target"],
    )
    async def test_an_input_is_read_only_unless_the_goal_or_the_caller_names_it(
        self, tmp_path: Path, goal: str, targets: list[str], changed: bool
    ) -> None:
        (tmp_path / "notes.txt").write_text("old")
        writer = Role(name="writer", description="Writes.", prompt="You are a writer.", tools=("write_file",))
        writing = call("write_file", {"path": "notes.txt", "content": "new"})
        replies = {
            ORI: [delegate(subtask("a", role="writer", goal="go on")), text("ok")],
            "You are a writer": [writing, text("fine")],
        }
        workspace = tmp_path / "w"
        async with serving(replies) as server:
            made = orchestrator(server, [writer])
            await made.solve(goal, inputs=[tmp_path / "notes.txt"], targets=targets, workspace=workspace)
        assert (workspace / "notes.txt").read_text() == ("new" if changed else "old")
        assert (tmp_path / "notes.txt").read_text() == "old"
        assert ("read-only" in str(server.requests)) is not changed

    async def test_a_workspace_with_a_space_and_chinese_in_its_path_makes_no_difference(self, tmp_path: Path) -> None:
        workspace = tmp_path / "我的 项目"
        (tmp_path / "数据 1.txt").write_text("四十二")
        both = Role(name="both", description="Both.", prompt="You are both.", tools=("read_file", "write_file"))
        replies = {
            ORI: [delegate(subtask("a", role="both")), text("ok")],
            "do a": [
                call("read_file", {"path": "数据 1.txt"}),
                call("write_file", {"path": "报告/一 份.md", "content": "四十二"}),
                text("fine"),
            ],
        }
        async with serving(replies) as server:
            result = await orchestrator(server, [both]).solve(
                "goal", inputs=[tmp_path / "数据 1.txt"], workspace=workspace
            )
        assert (result.status, [a.path for a in result.artifacts]) == ("done", ["报告/一 份.md"])
        assert (workspace / "报告/一 份.md").read_text() == "四十二"
        assert result.workspace == str(workspace)

    @pytest.mark.parametrize(
        ("file", "content", "words"),
        [
            ("roles/worker2.yaml", "description: Works.\ntools: [nope]", "nope"),
            ("scenarios/bad.yaml", "goal: x\nwhen: never\nplan: [{id: a, role: nobody, goal: x}]", "nobody"),
            ("tools/broken.py", "from orchestrator import tool\n1 / 0\n@tool\ndef broken() -> str: ...", "broken.py:2"),
        ],
        ids=["role", "template", "tool"],
    )
    async def test_wrong_content_is_told_before_anything_runs(
        self, tmp_path: Path, file: str, content: str, words: str
    ) -> None:
        for folder in ("roles", "prompts", "scenarios", "tools"):
            (tmp_path / folder).mkdir()
        (tmp_path / file).write_text(content)
        (tmp_path / "prompts/worker2.md").write_text("You are a second worker.")
        roles = [WORKER.model_copy(update={"tools": ("broken",)})] if "tools" in file else []
        async with serving({}) as server:
            made = orchestrator(server, roles, project=tmp_path, journal="memory")
            with pytest.raises(ConfigError, match=words):
                await made.solve("goal")
        assert await made.journal.runs() == []

    async def test_a_ready_made_plan_that_does_not_fit_ends_the_run_with_its_faults(self) -> None:
        from orchestrator.plan import Subtask

        async with serving({}) as server:
            plan = [Subtask(id="a", role="wroker", goal="x"), Subtask(id="b", role="worker", goal="x", after=("c",))]
            result = await orchestrator(server).solve("goal", plan=plan)
        assert (result.status, result.stop_reason) == ("failed", "plan_invalid")
        assert result.failure and "did you mean 'worker'" in result.failure.message
        assert "unknown id 'c'" in result.failure.message


class TestApart:
    async def test_two_runs_at_once_never_see_each_others_variables(self) -> None:
        both: asyncio.Barrier = asyncio.Barrier(2)

        @tool(effect="read")
        async def meet() -> str:
            """Wait for the other run. Use it once. Returns a word."""
            await both.wait()
            return "met"

        keeper = Role(
            name="keeper",
            description="Keeps.",
            prompt="You are a keeper.",
            tools=("set_variable", "get_variable", "meet"),
        )
        plan = delegate(subtask("a", role="keeper"))

        def script(colour: str) -> list[object]:
            setting = call("set_variable", {"name": "colour", "value": colour})
            return [setting, call("meet", {}), call("get_variable", {"name": "colour"}), text("got")]

        replies = {
            (ORI, "paint it red"): [plan, text("ok")],
            (ORI, "paint it blue"): [plan, text("ok")],
            ("You are a keeper", "paint it red"): script("red"),
            ("You are a keeper", "paint it blue"): script("blue"),
        }
        async with serving(replies) as server:
            made = orchestrator(server, [keeper], [meet])
            async with asyncio.TaskGroup() as group:
                for colour in ("red", "blue"):
                    group.create_task(made.solve(f"paint it {colour}"))
        for colour, other in (("red", "blue"), ("blue", "red")):
            [last] = [r for r in server.requests if len(r["messages"]) == 8 and f"paint it {colour}" in str(r)]
            assert colour in last["messages"][-1]["content"] and other not in str(last["messages"])

    async def test_one_run_never_goes_on_with_the_variables_of_the_one_before(self) -> None:
        keeper = Role(
            name="keeper", description="Keeps.", prompt="You are a keeper.", tools=("set_variable", "get_variable")
        )
        replies = {
            "You are a keeper": [
                call("set_variable", {"name": "colour", "value": "blue"}),
                text("set"),
                call("get_variable", {"name": "colour"}),
                text("there is none"),
            ]
        }
        async with serving(replies) as server:
            made = orchestrator(server, [keeper])
            await made.run_role("keeper", "keep it")
            await made.run_role("keeper", "give it")
        assert "blue" not in server.requests[-1]["messages"][-1]["content"]

    def test_solve_sync_works_twice(self) -> None:
        with served([text("4"), text("5")]) as server:
            made = orchestrator(server)
            assert [made.solve_sync("2 + 2").answer, made.solve_sync("2 + 3").answer] == ["4", "5"]

    async def test_many_runs_at_once_each_get_their_own_answer(self) -> None:
        def own(request: dict[str, object]) -> object:
            return text(str(request["messages"])[-30:])  # the goal stands last

        async with serving({ORI: own}) as server:
            made = orchestrator(server)
            async with made, asyncio.TaskGroup() as group:
                tasks = {n: group.create_task(made.solve(f"goal number {n:04}")) for n in range(50)}
        assert all(f"number {n:04}" in task.result().answer for n, task in tasks.items())
        assert len({task.result().run_id for task in tasks.values()}) == 50

    async def test_max_parallel_holds_for_all_planners_of_a_run_together(self) -> None:
        lead = Role(name="lead", description="Leads.", prompt="You are a lead.", tools=("delegate",))
        most = 0

        async def watch(request: dict[str, object]) -> object:
            nonlocal most
            most = max(most, server.in_flight)
            return text("fine", latency=0.02)

        def leads(request: dict[str, object]) -> object:
            planned = "tool_call_id" in str(request["messages"])
            return text("done") if planned else delegate(*map(subtask, "pqr"))

        plan = delegate(*(subtask(f"big{n}", role="lead") for n in range(3)), *map(subtask, "xyz"))
        replies = {ORI: [plan, text("ok")], "You are a lead": leads, "You are a worker": watch}
        async with serving(replies) as server:
            made = orchestrator(server, [WORKER, lead], limits=Limits(max_parallel=2))
            result = await made.solve("goal")
        assert result.status == "done" and len(await logged(made, result, ModelCalled)) == 2 + 6 + 9 + 3
        assert most == 2


@pytest.mark.parametrize(
    ("goal", "named"),
    [
        ("Read notes.txt and write out.md", set()),
        ("Fix the bug in `app.py`", {"app.py"}),
        ("Update app.py and write to notes.txt", {"app.py", "notes.txt"}),
        ("修改 notes.txt，不要动 app.py", {"notes.txt"}),
        ("write notes.txt.bak", set()),
        ("Compare app.py to notes.txt", set()),
        ("Total the amounts according to notes.txt", set()),
        ("Do not change notes.txt; never delete app.py", set()),
        ("在 notes.txt 中统计，不要修改 app.py", set()),
    ],
)
def test_a_target_is_what_the_goal_says_is_to_be_changed(goal: str, named: set[str]) -> None:
    assert named_as_targets(goal, ["notes.txt", "app.py"]) == named
