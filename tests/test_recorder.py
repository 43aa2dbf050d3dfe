"""Recordings of real runs, replayed with tools and without."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Limits, Orchestrator, RunResult
from orchestrator.models.recorder import record
from orchestrator.models.replay import Recording
from orchestrator.serve.cli import main
from orchestrator.testing import Answer, ScriptedServer, call, fault, text
from tests.engine import ORI, delegate, orchestrator, serving, statuses, subtask
from tests.loops import look
from tests.loops import orchestrator as loop

SECRET = "hunter2-hunter2-hunter2"
TOOLS = f'''
from pathlib import Path

from orchestrator import ToolContext, tool

HERE = Path(__file__).parent


@tool(effect="once", outward=False)
async def stamp(word: str, ctx: ToolContext) -> str:
    """Stamp a word. Use it once. Returns where it was stamped."""
    with (HERE / "stamped").open("a") as file:
        file.write(word)
    await ctx.artifact("out/印.txt", "stamped " + word + " with {SECRET}")
    ctx.variables["stamp"] = [word]
    return str(ctx.workspace.root / "out") + " opened with {SECRET}"


@tool(effect="once", approval=True)
async def send(to: str) -> str:
    """Send it. Use it at the end. Returns nothing."""
    raise RuntimeError("must not run")


@tool(effect="read", untrusted=True)
async def fetch(url: str) -> str:
    """Fetch a page. Use it for pages. Returns its text."""
    return "page " * 5000
'''
ROLE = """
description: Stamps.
tools: [stamp, send, fetch]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "项目"
    for name, content in {
        "ori.yaml": "",
        "roles/stamper.yaml": ROLE,
        "prompts/stamper.md": "You stamp.",
        "tools/stamps.py": TOOLS,
        "in.txt": "in",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, "utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    return folder


async def ran(project: Path) -> RunResult:
    """Run the role once for real; its log is in the project."""
    place = str(project / ".ori")
    replies = [
        call("stamp", {"word": "seal"}) + call("fetch", {"url": "http://a.test"}),
        call("send", {"to": "x"}),
        text(f"Done in {place}, opened with {SECRET}."),
    ]
    async with ScriptedServer(replies) as server:
        (project / "ori.yaml").write_text(
            f"models: {{default: {{model: m, base_url: '{server.base_url}', api_key: '${{OPENAI_API_KEY}}'}}}}"
        )
        async with Orchestrator.from_project(project, approve=_deny) as orchestrator:
            result = await orchestrator.run_role("stamper", "stamp it", inputs=[project / "in.txt"], params={"n": 1})
    (project / "ori.yaml").write_text("")
    return result


async def _deny(*_: Any) -> bool:
    return False


def recorded(run: str, *options: str) -> list[dict[str, Any]]:
    assert main(["record", run, "-o", "run.jsonl", *options]) == 0
    return [json.loads(line) for line in Path("run.jsonl").read_text("utf-8").splitlines()]


async def replayed(project: Path, file: str, **options: Any) -> RunResult:
    async with (
        Orchestrator.from_project(project, journal="memory") as orchestrator,
        orchestrator.start_replay(file, tools=True, **options) as handle,
    ):
        return await handle.result()


@pytest.fixture
async def first(project: Path) -> RunResult:
    return await ran(project)


async def test_a_recording_holds_no_secret_and_no_place_of_this_machine(project: Path, first: RunResult) -> None:
    """B53: what leaves the machine as a recording is redacted, in the files it holds, too."""
    assert first.status == "done", first
    lines = await asyncio.to_thread(recorded, first.run_id, "--tools")
    written = (project / "run.jsonl").read_text("utf-8")
    assert SECRET not in written
    [stamp] = [line for line in Recording.load(project / "run.jsonl").tools.values() if line.tool == "stamp"]
    assert stamp.text == "/workspace/out opened with [redacted]"
    assert stamp.files == {"out/印.txt": b"stamped seal with [redacted]"}
    assert stamp.variables == {"stamp": ["seal"]}
    assert lines[0]["asked"]["inputs"] == ["in.txt"]
    assert f"runs/{first.run_id}" not in written


async def test_with_recorded_tools_none_runs_and_the_run_is_the_same(project: Path, first: RunResult) -> None:
    await asyncio.to_thread(recorded, first.run_id, "--tools")
    result = await replayed(project, "run.jsonl", workspace=project / "again")
    assert (result.status, result.answer) == ("done", first.answer.replace(SECRET, "[redacted]"))
    assert (project / "tools/stamped").read_text() == "seal"
    assert (project / "again/out/印.txt").read_text("utf-8") == "stamped seal with [redacted]"
    assert result.usage.calls == 3


async def test_a_call_with_other_arguments_is_a_loud_miss_that_shows_both(project: Path, first: RunResult) -> None:
    await asyncio.to_thread(recorded, first.run_id, "--tools")
    file = project / "run.jsonl"
    file.write_text(
        file.read_text("utf-8").replace('"arguments":"{\\"word\\": \\"seal', '"arguments":"{\\"word\\": \\"deal', 1)
    )
    result = await replayed(project, "run.jsonl")
    assert result.failure and result.failure.kind == "replay_miss"
    assert "seal" in result.failure.message and "deal" in result.failure.message
    assert (project / "tools/stamped").read_text() == "seal"


async def test_a_recording_without_results_says_how_to_get_them(project: Path, first: RunResult) -> None:
    await asyncio.to_thread(recorded, first.run_id)
    result = await replayed(project, "run.jsonl")
    assert result.failure and "`ori record --tools`" in result.failure.message


README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
[EXAMPLE] = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "replay(" in block]
"""What the README shows, beside tests that cannot pass."""
TESTS = f"""
import asyncio

{EXAMPLE}

def test_that_it_works_in_its_own_folder(replay):
    replayed = replay("recordings/orders.jsonl", tools="recorded")
    assert (replayed.workspace / "out/印.txt").exists() and replayed.events[0].goal == "stamp it"


def test_that_misses(replay):
    replay("recordings/other.jsonl", tools="recorded")


def test_that_is_mistyped(replay):
    replay("recordings/orders.jsonl", tools="recoded")


async def work(replay):
    replay("recordings/orders.jsonl")


def test_that_is_async(replay):
    asyncio.run(work(replay))
"""


async def test_the_fixture_replays_in_a_project_and_fails_loudly_on_a_miss(project: Path, first: RunResult) -> None:
    await asyncio.to_thread(recorded, first.run_id, "--tools")
    lines = (project / "run.jsonl").read_text("utf-8").splitlines(keepends=True)
    (project / "recordings").mkdir()
    (project / "recordings/orders.jsonl").write_text("".join(lines), "utf-8")
    (project / "recordings/other.jsonl").write_text("".join(lines[:2] + lines[3:]), "utf-8")
    (project / "conftest.py").write_text('pytest_plugins = ["orchestrator.testing.plugin"]\n')
    (project / "test_stamps.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "."]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert "3 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "tools is 'recoded'; did you mean 'recorded'?" in done.stdout
    assert "write: await asyncio.to_thread(replay, 'recordings/orders.jsonl')" in done.stdout
    assert "it has no reply for" in done.stdout and "To record anew" in done.stdout


async def again(made: Orchestrator, first: RunResult, tmp_path: Path) -> RunResult:
    """Record a run with its tools, and replay it."""
    file = tmp_path / "rec.jsonl"
    file.write_text(record(await made.journal.events(first.run_id), content=lambda change: None).dump(), "utf-8")
    async with made.start_replay(file, tools=True) as handle:
        return await handle.result()


async def test_a_call_of_a_model_that_failed_fails_again(tmp_path: Path) -> None:
    """Else a run whose planner had coped with it could not be replayed."""
    refused = fault(400, {"error": {"message": "no", "type": "invalid_request_error"}})
    script = {ORI: [delegate(subtask("a"), subtask("b")), text("b it is")], "do a": refused, "do b": text("fine")}
    async with serving(script) as server:
        made = orchestrator(server)
        first = await made.solve("goal")
        replayed = await again(made, first, tmp_path)
    assert statuses(first) == {"a": "failed", "b": "done"}
    assert (replayed.status, replayed.answer, statuses(replayed)) == (first.status, first.answer, statuses(first))
    assert replayed.outcomes["a"].failure == first.outcomes["a"].failure


async def test_a_replay_sums_up_where_the_run_reached_its_budget(tmp_path: Path) -> None:
    """It went on, and called itself done."""

    def reply(request: dict[str, Any]) -> Answer:
        return text("all I know") if request["tool_choice"] == "none" else call("look", {"name": str(next(numbers))})

    numbers = count()
    async with ScriptedServer(reply) as server:
        made = loop(server, [look])
        first = await made.run_role("agent", "look around", limits=Limits(tokens=6_000))
        replayed = await again(made, first, tmp_path)
    assert (first.status, first.stop_reason, first.answer) == ("partial", "budget", "all I know")
    assert (replayed.status, replayed.stop_reason, replayed.answer) == ("partial", "budget", "all I know")


async def test_what_a_run_of_nobody_was_not_offered_its_replay_is_not_either(tmp_path: Path) -> None:
    async with ScriptedServer([call("remember", {"text": "x"}), text("never mind")]) as server:
        made = loop(server, ["remember"])
        first = await made.run_role("agent", "remember it")
        replayed = await again(made, first, tmp_path)
    assert (first.status, replayed.status, replayed.answer) == ("done", "done", "never mind")
