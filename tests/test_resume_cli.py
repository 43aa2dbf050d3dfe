"""`ori resume` and `ori retry`, with runs that were killed in processes of their own."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

from orchestrator.events import Event, RunStarted, Warned
from orchestrator.journal.log import RunLog
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.serve.history import follow
from tests.command import HEADER, Ori, begin, spawn

TOOLS = '''
import time
from pathlib import Path

from orchestrator import ToolContext, tool


@tool(effect="idempotent", timeout=60)
def halt(name: str, ctx: ToolContext) -> str:
    """Halt the first time. Use it never. Returns the name."""
    with Path("calls").open("a") as file:
        print(name, ctx.key, file=file)
    if not Path("go").exists():
        print("halted", flush=True)
        time.sleep(60)
    return name


@tool(effect="read")
def pick(ctx: ToolContext) -> str:
    """Pick a word. Use it never. Returns the word."""
    return Path("word").read_text()
'''
SCENARIOS = {
    "halting": """
goal: Halt ${times}.
params: {times: once}
plan:
  - {id: a, tool: write_file, args: {path: a.txt, content: "${params.times}"}}
  - {id: b, tool: halt, args: {name: bee}, after: [a]}
answer: b
checks: [{file: a.txt, contains: "${times}"}, {answer: {contains: bee}}]
recording: recordings/empty.jsonl
""",
    "picking": """
goal: Pick.
plan:
  - {id: a, tool: write_file, args: {path: a.txt, content: a}}
  - {id: p, tool: pick, after: [a]}
  - {id: w, tool: write_file, args: {path: w.txt, content: "${outcomes.p.answer}"}, after: [p]}
answer: w
recording: recordings/picking.jsonl
""",
}
LOCKER = """
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
time.sleep(2)
"""
STARTED = RunStarted(
    goal="g", root="ori", params={}, inputs=(), workspace="/w", limits={}, roles={}, tools={}, models={}
)
LINES = "".join(f'{{"key": "ori:{turn}:model", "reply": {{"content": "answer {turn}"}}}}\n' for turn in (1, 2))
RECORDINGS = {"picking": HEADER + LINES}


def killed(*argv: str) -> None:
    process = begin(*argv, until="halted")
    process.kill()
    process.communicate()


def test_a_killed_run_goes_on_and_its_checks_are_held(project: Path, ori: Ori) -> None:
    killed("run", "halting", "--set", "times=twice")
    (project / "go").touch()
    said = ori("resume")
    assert (said.status, said.out) == (0, "bee\n")
    assert "resumed: 1 finished call reused, 1 made anew" in said.err
    assert "checks: 4 passed, 0 failed" in said.err
    [run] = ori("runs", "--json").json
    assert run["status"] == "done"
    assert "resumed: 1 finished call reused" in ori("show", run["run"]).out
    first, second = (project / "calls").read_text().splitlines()
    assert first == second, "the same call has the same idempotency key"


def test_a_run_whose_tool_is_gone_waits_for_it_and_fails_nothing(project: Path, ori: Ori) -> None:
    killed("run", "halting")
    (project / "go").touch()
    tools = (project / "tools/own.py").rename(project / "own.txt")
    status, _, err = ori("resume")
    assert status == 2
    assert "cannot go on: there is no tool 'halt'" in err
    tools.rename(project / "tools/own.py")
    assert ori("resume").status == 0


def test_nothing_to_resume_is_wrong_usage_that_says_what_there_is(ori: Ori) -> None:
    assert ori("resume").status == 2
    ori("run", "picking")
    assert "no run of" in ori("resume").err
    assert "there is no run 'x'" in ori("resume", "x").err
    assert ori("resume", "--all", "--message", "x").status == 2
    assert ori("resume", "--all").out == "no run was interrupted\n"


def test_a_live_run_has_one_owner_and_showing_it_disturbs_nothing(project: Path, ori: Ori) -> None:
    process = begin("run", "halting", until="halted")
    try:
        [run] = ori("runs", "--json").json
        assert run["status"] == "running"
        assert ori("show", run["run"]).status == 0
        said = ori("resume", run["run"])
        assert said.status == 1 and f"is already being worked on (pid {process.pid})" in said.err
    finally:
        process.kill()
        process.communicate()


def test_a_run_of_another_process_is_followed_to_its_end(project: Path, ori: Ori) -> None:
    process = begin("run", "halting", until="halted")
    [run] = ori("runs", "--json").json
    follower = spawn("show", run["run"], "--follow", stdout=subprocess.PIPE)
    process.kill()
    process.communicate()
    out, _ = follower.communicate(timeout=30)
    assert follower.returncode == 0 and "⊘ b" in out


async def next_of(news: AsyncIterator[Event]) -> Event:
    return await anext(news)


async def test_who_follows_a_run_gets_what_comes_until_nobody_works_on_it(tmp_path: Path) -> None:
    writer, reader = SqliteJournal(tmp_path / "runs.db"), SqliteJournal(tmp_path / "runs.db")
    log = RunLog("r1", writer)
    log.add(STARTED)
    async with writer.own("r1"):
        await log.commit()
        news = follow(reader, "r1", after=1)
        log.add(Warned(text="one"))
        await log.commit()
        assert (await anext(news)).seq == 2
        async with asyncio.TaskGroup() as group:
            coming = group.create_task(next_of(news))
            log.add(Warned(text="two"))
            await log.commit()
        assert coming.result().seq == 3
    assert [event async for event in news] == []
    await writer.aclose()


def test_what_can_go_on_is_deleted_only_on_demand_and_a_live_run_never(project: Path, ori: Ori) -> None:
    killed("run", "halting")
    [dead] = ori("runs", "--json").json
    process = begin("run", "halting", until="halted")
    try:
        assert ori("gc", "--older", "0h").out == "nothing to delete\n"
        assert ori("gc", "--older", "0h", "--all", "--json").json["deleted"] == [dead["run"]]
        [live] = ori("runs", "--json").json
        assert (live["run"] != dead["run"], live["status"]) == (True, "running")
        assert [folder.name for folder in (project / ".ori/runs").iterdir()] == [live["run"]]
    finally:
        process.kill()
        process.communicate()


def test_a_stopped_process_is_still_the_owner(project: Path, ori: Ori) -> None:
    process = begin("run", "halting", until="halted")
    try:
        process.send_signal(signal.SIGSTOP)
        [run] = ori("runs", "--json").json
        said = ori("resume", run["run"])
        assert (said.status, run["status"]) == (1, "running")
    finally:
        process.kill()
        process.communicate()
    (project / "go").touch()
    assert ori("resume").status == 0


def test_of_two_resumes_at_once_one_is_refused(project: Path, ori: Ori) -> None:
    killed("run", "halting")
    first = begin("resume", until="halted")
    with spawn("resume", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as second:
        _, err = second.communicate(timeout=30)
    assert second.returncode in (1, 2)
    assert "is already being worked on" in err or "no run" in err
    first.kill()
    first.communicate()
    begun = [line.split()[0] for line in (project / "calls").read_text().splitlines()]
    assert begun == ["bee", "bee"], "by the first run and by one of the resumes"


def test_all_runs_go_on_and_one_that_cannot_is_told(project: Path, ori: Ori) -> None:
    """B46: trouble with one run is told, and the others go on."""
    for _ in range(3):
        killed("run", "halting")
    runs = [run["run"] for run in ori("runs", "--json").json]
    with closing(sqlite3.connect(project / ".ori" / "runs.db")) as database, database:
        database.execute("UPDATE event SET data = '{' WHERE run = ? AND type = 'plan.added'", (runs[1],))
    (project / "go").touch()
    said = ori("resume", "--all", "--json")
    assert said.status == 1
    by_run = {one["run"]: one for one in said.json}
    assert [by_run[run]["status"] for run in runs] == ["done", "", "done"]
    assert "cannot be read" in by_run[runs[1]]["error"]


def test_a_store_that_is_locked_for_a_while_is_waited_for(project: Path, ori: Ori) -> None:
    """B46: a hiccup of the store during `resume --all` loses no run."""
    killed("run", "halting")
    (project / "go").touch()
    process = subprocess.Popen([sys.executable, "-c", LOCKER, ".ori/runs.db"], stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline() == b"locked\n"
    said = ori("resume", "--all")
    process.communicate()
    assert said.status == 0 and said.out.endswith(" done\n")


def test_a_changed_file_is_named(project: Path, ori: Ori) -> None:
    killed("run", "halting")
    [file] = project.glob(".ori/runs/*/workspace/a.txt")
    file.write_text("once and otherwise")
    (project / "go").touch()
    assert "changed meanwhile: a.txt" in ori("resume").err


def test_what_failed_is_tried_again_and_the_planner_answers_anew(project: Path, ori: Ori) -> None:
    said = ori("run", "picking", "--json")
    run = said.json["run_id"]
    assert (said.status, said.json["outcomes"]["p"]["status"], said.json["answer"]) == (3, "failed", "answer 1")
    (project / "word").write_text("seven")
    again = ori("retry", run, "--json")
    assert (again.status, again.json["answer"]) == (0, "answer 2")
    assert (again.json["outcomes"]["p"]["answer"], again.json["outcomes"]["p"]["attempts"]) == ("seven", 3)
    assert again.json["outcomes"]["a"]["attempts"] == 1
    [w] = project.glob(".ori/runs/*/workspace/w.txt")
    assert w.read_text() == "seven"


def test_one_subtask_and_what_comes_after_it_is_tried_again(project: Path, ori: Ori) -> None:
    (project / "word").write_text("six")
    run = ori("run", "picking", "--json").json["run_id"]
    (project / "word").write_text("seven")
    assert "no subtask 'q'" in ori("retry", run, "--from", "q").err
    assert "is done, and so are all its subtasks; --from SUBTASK" in ori("retry", run).err
    again = ori("retry", run, "--from", "p", "--json").json
    assert {id: outcome["attempts"] for id, outcome in again["outcomes"].items()} == {"a": 1, "p": 2, "w": 2}
    [w] = project.glob(".ori/runs/*/workspace/w.txt")
    assert w.read_text() == "seven"


def test_a_message_makes_a_finished_run_go_on(project: Path, ori: Ori) -> None:
    (project / "word").write_text("six")
    run = ori("run", "picking", "--json").json["run_id"]
    assert "a message makes it go on" in ori("resume", run).err
    said = ori("resume", run, "--message", "And now?")
    assert (said.status, said.out) == (0, "answer 1\n")
    said = ori("resume", run, "--message", "And then?")
    assert (said.status, said.out) == (0, "answer 2\n")
