"""What a hostile tester found: outcomes, limits and files that words or odd inputs could get around."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orchestrator import ConfigError, Limits, Role, tool
from orchestrator.events import SubtaskEnded
from orchestrator.plan import Delegate, Subtask
from orchestrator.testing import call, text
from orchestrator.workspace import Workspace
from tests.engine import FILTERED, ORI, WORKER, delegate, logged, observed, orchestrator, serving, statuses, subtask

MID = Role(name="mid", description="Plans below.", prompt="You are MID.", tools=("delegate",), may_delegate=("worker",))
WRITER = Role(name="writer", description="Writes.", prompt="You are a writer.", tools=("write_file",))


async def test_a_planner_below_cannot_talk_the_failure_of_its_workers_away() -> None:
    replies = {
        ORI: [delegate(subtask("a", role="mid")), text("All good.")],
        "You are MID": [delegate(subtask("x"), subtask("y")), text("Everything went fine.")],
        "You are a worker": FILTERED,
    }
    async with serving(replies) as server:
        result = await orchestrator(server, [WORKER, MID]).solve("do it")
    assert (result.status, statuses(result)) == ("failed", {"a": "failed"})


async def test_a_planner_whose_only_plan_was_refused_has_not_done_the_goal() -> None:
    async with serving({ORI: [delegate(subtask("a", role="wirker")), text("The report was written.")]}) as server:
        result = await orchestrator(server).solve("write a report")
    assert (result.status, result.stop_reason) == ("partial", "plan_invalid")


async def test_what_opens_again_is_told_to_the_planner() -> None:
    replies = {
        ORI: [delegate(subtask("a"), subtask("b", "a")), delegate(subtask("a2", replaces="a")), text("done")],
        "do a2": text("second try"),
        "do b": text("b got its turn"),
        "do a": FILTERED,
    }
    async with serving(replies) as server:
        result = await orchestrator(server).solve("goal")
        assert "b got its turn" in observed(server)
    assert statuses(result) == {"a": "failed", "b": "done", "a2": "done"} and result.status == "done"


async def test_what_replaces_a_failed_subtask_may_overwrite_its_file(tmp_path: Path) -> None:
    def write(content: str) -> Any:
        return call("write_file", {"path": "out.md", "content": content})

    replies = {
        ORI: [
            delegate(subtask("a", role="writer")),
            delegate(subtask("a2", role="writer", replaces="a")),
            text("done"),
        ],
        "do a2": [write("whole"), text("written")],
        "do a": [write("half"), FILTERED],
    }
    async with serving(replies) as server:
        result = await orchestrator(server, [WRITER]).solve("goal", workspace=tmp_path)
    assert (result.status, (tmp_path / "out.md").read_text()) == ("done", "whole")


async def test_the_run_s_time_holds_for_a_ready_plan_of_tools() -> None:
    @tool(effect="read", timeout=None)
    async def wait() -> str:
        """Wait for ever. Use it never. Returns nothing."""
        await asyncio.Event().wait()
        return ""

    waiter = Role(name="waiter", description="Waits.", prompt="You wait.", tools=("wait",))
    plan = Delegate(subtasks=(Subtask(id="w", tool="wait"),))
    async with serving({ORI: text("nothing came")}) as server:
        result = await orchestrator(server, [waiter], [wait]).solve("wait", plan=plan, limits=Limits(time=0.5))
    assert statuses(result) == {"w": "failed"} and result.outcomes["w"].stop_reason == "deadline"
    assert (result.status, result.answer) == ("partial", "nothing came")


async def test_data_with_a_field_called_error_is_no_failure() -> None:
    schema = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
    replies = {
        ORI: [delegate(subtask("a", output=schema)), text("pool exhausted")],
        "do a": call("submit_result", {"error": "pool exhausted"}),
    }
    async with serving(replies) as server:
        result = await orchestrator(server).solve("what was the error?")
    assert result.status == "done" and result.outcomes["a"].value == {"error": "pool exhausted"}


async def test_a_result_that_says_that_it_failed_gets_its_fallback() -> None:
    replies = {
        ORI: [delegate(subtask("a", on_failure={"value": 7})), text("7")],
        "do a": text('{"success": false, "message": "all is well"}'),
    }
    async with serving(replies) as server:
        made = orchestrator(server)
        result = await made.solve("goal")
        [ended] = await logged(made, result, SubtaskEnded)
    assert (ended.outcome.status, ended.outcome.value) == ("done", 7)


async def test_a_mended_subtask_that_is_sent_again_is_a_reference() -> None:
    same = subtask("a", after="sales.csv")
    replies = {
        ORI: [delegate(same), delegate(same, subtask("b", "a")), text("done")],
        "do a": text("1"),
        "do b": text("2"),
    }
    async with serving(replies) as server:
        result = await orchestrator(server).solve("goal")
    assert statuses(result) == {"a": "done", "b": "done"}


def test_a_folder_that_holds_the_workspace_is_copied_once_and_without_keys(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / ".env").write_text("KEY=secret")
    home = tmp_path / ".ori/runs/r"
    workspace = Workspace(home / "workspace", home)
    workspace.copy_inputs(["."], tmp_path)
    assert [file.path for file in workspace.files()] == [f"{tmp_path.name}/a.txt"]
    assert not list((home / "workspace").rglob(".*"))


def test_an_input_does_not_overwrite_another_file_of_the_user_s_folder(tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_text("new")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/sales.csv").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds another 'sales\.csv' already"):
        Workspace(tmp_path / "mine", tmp_path / "home").copy_inputs(["sales.csv"], tmp_path)
    assert (tmp_path / "mine/sales.csv").read_text() == "mine"


async def test_an_output_that_is_no_schema_is_told_back_to_the_planner() -> None:
    replies = {
        ORI: [delegate(subtask("a", output={"amount": "number"})), delegate(subtask("a")), text("42")],
        "do a": text("42"),
    }
    async with serving(replies) as server:
        result = await orchestrator(server).solve("goal")
        told = observed(server, 1)
    assert result.status == "done" and "the output of 'a' is no JSON Schema: it has none of" in told


async def test_an_output_that_is_no_schema_is_refused_before_anything_is_paid() -> None:
    async with serving({ORI: text("42")}) as server:
        with pytest.raises(ConfigError, match=r"output is no JSON Schema: .*'text' is not valid"):
            await orchestrator(server).solve("goal", output={"type": "text"})
    assert not server.requests


def test_event_loops_in_threads_close_their_own_connections() -> None:
    async def serve(threads: int) -> list[str]:
        async with serving({ORI: text("42")}) as server:
            made = orchestrator(server)
            results = [asyncio.to_thread(made.solve_sync, "goal") for _ in range(threads)]
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(result) for result in results]
            await server.until(lambda server: server.connections == 0)
            return [task.result().status for task in tasks]

    assert asyncio.run(serve(4)) == ["done"] * 4
