"""`ori mcp`, asked by the SDK's client as a program of its own."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from orchestrator import Orchestrator
from orchestrator.testing import ScriptedServer, call, hang, text

ROOT = Path(__file__).parent.parent
COMMAND = [sys.executable, "-m", "orchestrator.serve.cli", "mcp"]
SCENARIOS = {
    "hello": "goal: Say hello to ${name}.\nparams: {name: Ada}\nchecks: [{answer: {contains: Hello}}]\n"
    "recording: recordings/hello.jsonl\n",
    "chatty": "goal: Print.\nplan: [{id: talk, tool: chat}]\nanswer: talk\nrecording: recordings/hello.jsonl\n",
}
HELLO = (
    '{"recording": 1, "scenario": "x", "model": "hand", "scripted": true}\n'
    '{"key": "ori:1:model", "reply": {"content": "Hello, Ada."}}\n'
)
TOOL = '''
import os
from orchestrator import tool

@tool(effect="read")
def chat() -> str:
    """Print to stdout, which tools should not. Use it never. Returns a word."""
    print("noise")
    os.write(1, b"more noise\\n")
    return "quiet"
'''


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "scenarios/recordings").mkdir(parents=True)
    (tmp_path / "tools").mkdir()
    (tmp_path / "ori.yaml").touch()
    for name, yaml in SCENARIOS.items():
        (tmp_path / f"scenarios/{name}.yaml").write_text(yaml)
    (tmp_path / "scenarios/recordings/hello.jsonl").write_text(HELLO)
    (tmp_path / "tools/noisy.py").write_text(TOOL)
    return tmp_path


def environment(model: ScriptedServer | None = None) -> dict[str, str]:
    return {"PYTHONPATH": str(ROOT), **({"OPENAI_BASE_URL": model.base_url} if model else {})}


@asynccontextmanager
async def client(project: Path, model: ScriptedServer | None = None) -> AsyncIterator[Client]:
    server = StdioServerParameters(command=COMMAND[0], args=COMMAND[1:], env=environment(model), cwd=project)
    async with Client(server) as asked:
        yield asked


class Told(list[str]):
    """The messages of progress notifications."""

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        assert progress == len(self) + 1
        self.append(str(message))


def said(result: Any) -> str:
    return str(result.content[0].text)


async def test_a_client_finds_and_runs_a_scenario(project: Path) -> None:
    told = Told()
    async with client(project) as asked:
        offered = {tool.name: tool for tool in (await asked.list_tools()).tools}
        listed = await asked.call_tool("list_scenarios")
        result = await asked.call_tool("run_scenario", {"name": "hello"}, progress_callback=told)
        unknown = await asked.call_tool("run_scenario", {"name": "helo"})
        wrong = await asked.call_tool("solve", {"gaol": "x"})
    assert set(offered) == {"solve", "run_scenario", "list_scenarios"}
    assert offered["solve"].input_schema["required"] == ["goal"]
    scenarios = {one["name"]: one for one in listed.structured_content["scenarios"]}
    assert scenarios["hello"] == {"name": "hello", "goal": "Say hello to Ada.", "params": {"name": "Ada"}}
    assert (result.is_error, result.structured_content["status"]) == (False, "done")
    assert "no model is configured: replaying replies scripted by hand" in said(result)
    assert "Hello, Ada." in said(result)
    assert "checks: 2 passed, 0 failed" in said(result)
    assert "ori done" in told[-1]
    assert (unknown.is_error, said(unknown)) == (True, "there is no scenario 'helo'; did you mean 'hello'?")
    assert wrong.is_error
    assert "gaol: there is no such name; did you mean 'goal'?" in said(wrong)


async def test_a_goal_is_solved_with_files_of_the_client(project: Path, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("42")
    replies = [call("list_files", {}), text("note.txt is there")]
    async with ScriptedServer(replies) as model, client(project, model) as asked:
        result = await asked.call_tool("solve", {"goal": "what is there?", "inputs": [str(tmp_path / "note.txt")]})
    assert (result.is_error, result.structured_content["answer"]) == (False, "note.txt is there")
    assert "note.txt" in model.requests[-1]["messages"][-1]["content"]


async def test_cancelling_a_call_cancels_its_run(project: Path) -> None:
    async with ScriptedServer([hang(), text("2")]) as model, client(project, model) as asked:
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(asked.call_tool("solve", {"goal": "1 + 1"}))
            await model.until(lambda server: server.in_flight == 1)
            waiting.cancel()
            await model.until(lambda server: server.in_flight == 0)
        after = await asked.call_tool("solve", {"goal": "1 + 1"})
    assert after.structured_content["answer"] == "2"
    runs = await Orchestrator.from_project(project).journal.runs()
    assert sorted(run.status for run in runs) == ["cancelled", "done"]


def test_nothing_but_the_protocol_stands_on_stdout(project: Path) -> None:
    """A tool prints, from Python and past it: stdout still holds one message a line."""
    client_info = {"name": "t", "version": "1"}
    asked = [
        ("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client_info}),
        ("tools/call", {"name": "run_scenario", "arguments": {"name": "chatty"}}),
    ]
    lines = [
        {"jsonrpc": "2.0", "id": n, "method": method, "params": params} for n, (method, params) in enumerate(asked)
    ]
    lines.insert(1, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    process = subprocess.Popen(
        COMMAND,
        cwd=project,
        env={**os.environ, **environment()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdin.write("".join(json.dumps(line) + "\n" for line in lines))
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in asked]
        process.stdin.close()
        assert process.stdout.read() == ""
        noise = process.stderr.read()
    assert [answer["id"] for answer in answers] == [0, 1]
    assert answers[1]["result"]["structuredContent"]["answer"] == "quiet"
    assert "noise" in noise
    assert "more noise" in noise
    assert process.returncode == 0
