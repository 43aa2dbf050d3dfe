"""What people say to runs with the command, in processes of their own."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import pytest
from filelock import BaseFileLock

from orchestrator import Orchestrator
from orchestrator.journal import Signal, owner
from orchestrator.journal.signals import SignalTable
from tests.command import Ori, spawn

TOOLS = '''
import sys
import time
from pathlib import Path

from orchestrator import tool

SENT = Path(__file__).parent.parent / "sent.txt"


@tool(approval=True)
def deliver(to: str) -> str:
    """Deliver. Use it to deliver. Returns to whom."""
    with SENT.open("a") as file:
        file.write(f"{to}\\n")
    return f"delivered to {to}"


@tool(effect="read", timeout=None)
def block() -> str:
    """Block. Use it to wait. Returns nothing."""
    print("blocking", file=sys.stderr, flush=True)
    time.sleep(60)
    return ""
'''
SCENARIOS = {
    "post": """
goal: Deliver.
plan: [{id: send, tool: deliver, args: {to: ann}}]
answer: send
recording: recordings/empty.jsonl
""",
    "blocked": """
goal: Wait.
plan: [{id: wait, tool: block}, {id: next, tool: block, after: [wait]}]
answer: wait
recording: recordings/empty.jsonl
""",
}


def sent(project: Path) -> list[str]:
    file = project / "sent.txt"
    return file.read_text().split() if file.exists() else []


def parked(ori: Ori) -> str:
    """Run the scenario until it waits, and return the run."""
    status, out, err = ori("run", "post", "--json")
    assert status == 3
    result = json.loads(out)
    assert (result["status"], result["stop_reason"]) == ("needs_review", "needs_person")
    assert f"ori approve {result['run_id']} ori/send:1:tool.0" in err
    return str(result["run_id"])


def resume(project: Path, run: str) -> str:
    async def go_on() -> str:
        async with Orchestrator.from_project(project) as orchestrator:
            return (await orchestrator.resume(run)).status

    return asyncio.run(go_on())


def test_a_call_waits_in_the_inbox_with_the_commands_that_answer(project: Path, ori: Ori) -> None:
    run = parked(ori)
    _, out, _ = ori("inbox")
    assert 'deliver {"to":"ann"}' in out
    assert "it needs a person's approval" in out
    assert f"ori approve {run} ori/send:1:tool.0 [--edit JSON]" in out
    assert f"ori deny {run} ori/send:1:tool.0 --why WHY" in out
    _, out, err = ori("runs")
    assert "needs_review" in out
    assert "1 call waits for a person: ori inbox" in err
    _, out, _ = ori("show", run)
    assert f"ori approve {run} ori/send:1:tool.0" in out
    assert sent(project) == []


def test_a_clock_that_was_set_back_makes_no_negative_time(
    project: Path, ori: Ori, monkeypatch: pytest.MonkeyPatch
) -> None:
    parked(ori)
    earlier = time.time() - 1000
    monkeypatch.setattr(time, "time", lambda: earlier)
    assert "(for 0s)" in ori("inbox").out


@pytest.mark.parametrize(
    ("word", "delivered"),
    [(["approve"], ["ann"]), (["approve", "--edit", '{"to": "bob"}'], ["bob"]), (["deny", "--why", "no"], [])],
    ids=["approve", "edit", "deny"],
)
def test_the_run_goes_on_when_somebody_has_said_a_word(
    project: Path, ori: Ori, word: list[str], delivered: list[str]
) -> None:
    run = parked(ori)
    command, *rest = word
    status, out, _ = ori(command, run, "send:1:tool.0", *rest)
    assert status == 0
    assert f"ori resume {run}" in out
    assert ori("inbox")[2] == "nothing waits for a person\n"
    assert "ori approve" not in ori("show", run).out
    resume(project, run)
    assert sent(project) == delivered
    if "--edit" in word:
        assert f"approved by {getpass.getuser()} {rest[-1]}" in ori("show", run).out


def test_a_word_that_comes_while_the_run_ends_is_not_lost(
    project: Path, ori: Ori, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever gave it saw that the run is being worked on: the run's own process has to say what comes next."""
    release = owner._release

    def a_word_before(lock: BaseFileLock) -> None:
        word = Signal(run=Path(lock.lock_file).stem, key="ori/send:1:tool.0", kind="approve", by="ann", at=1.0)
        SignalTable(project / ".ori" / "runs.db", 1.0).send(word)
        release(lock)

    monkeypatch.setattr(owner, "_release", a_word_before)
    status, out, err = ori("run", "post", "--json")
    assert status == 3
    assert f"next: ori resume {json.loads(out)['run_id']}" in err


def test_the_second_word_does_not_count_and_says_so(project: Path, ori: Ori) -> None:
    run = parked(ori)
    assert ori("deny", run, "tool.0", "--why", "no")[0] == 0
    status, _, err = ori("approve", run, "tool.0")
    assert status == 1
    assert "somebody was quicker: it was denied by" in err
    resume(project, run)
    assert sent(project) == []


def test_a_word_said_again_after_the_end_asks_for_nothing_more(project: Path, ori: Ori) -> None:
    run = parked(ori)
    ori("approve", run, "tool.0")
    resume(project, run)
    status, out, _ = ori("approve", run, "tool.0")
    assert (status, len(out.splitlines())) == (0, 1)
    assert "ori resume" not in out


def test_words_from_two_processes_at_once_make_one_call(project: Path, ori: Ori) -> None:
    run = parked(ori)
    both = [spawn("approve", run, "tool.0", "--edit", json.dumps({"to": who})) for who in ("ann", "bob")]
    assert sorted(process.wait() for process in both) == [0, 1]
    resume(project, run)
    assert len(sent(project)) == 1


@pytest.mark.parametrize(
    ("argv", "fault"),
    [
        (["approve", "RUN", "tool.7"], "has no call 'tool.7' that waits"),
        (["approve", "RUN", "tool.0", "--edit", "{"], "--edit is no JSON"),
        (["approve", "RUN", "tool.0", "--edit", "3"], "--edit takes a JSON object"),
        (["approve", "RUN", "tool.0", "--edit", "{}"], "$.to is required"),
        (["approve", "RUN", "tool.0", "--edit", '{"too": "x"}'], "$.too is unknown; did you mean 'to'?"),
        (["answer", "RUN", "tool.0", "yes"], "waits for another word: approve or deny"),
        (["cancel", "RUN"], "nobody works on run"),
        (["cancel", "no-such-run"], "there is no run 'no-such-run'"),
    ],
    ids=["call", "json", "object", "schema", "unknown", "kind", "cancel", "run"],
)
def test_a_wrong_word_is_refused_and_the_call_waits_on(project: Path, ori: Ori, argv: list[str], fault: str) -> None:
    run = parked(ori)
    status, _, err = ori(*(run if word == "RUN" else word for word in argv))
    assert status == 2
    assert fault in err
    assert len(json.loads(ori("inbox", "--json")[1])) == 1


async def test_a_live_run_notices_a_word_of_another_process(project: Path) -> None:
    async with Orchestrator.from_project(project) as orchestrator:
        scenario = orchestrator.catalog.scenario("post")
        async with orchestrator.start_scenario(scenario, replay=True) as handle:
            handle.attended = True
            async for event in handle:
                if event.type == "approval.asked":
                    process = spawn("approve", handle.run_id, event.key, stdout=subprocess.DEVNULL)
            result = await handle.result()
    assert process.wait() == 0
    assert (result.status, sent(project)) == ("done", ["ann"])


def test_a_run_is_cancelled_from_another_process_and_can_be_resumed(project: Path, ori: Ori) -> None:
    process = spawn("run", "blocked", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stderr and process.stdout
    while "blocking" not in process.stderr.readline():
        pass
    [info] = json.loads(ori("runs", "--json")[1])
    asked = time.monotonic()
    status, out, _ = ori("cancel", info["run"])
    assert (status, time.monotonic() - asked < 30) == (0, True)
    assert f"ori resume {info['run']}" in out
    result = json.loads(process.stdout.read())
    assert process.wait() == 130
    assert result["status"] == "cancelled"
    assert {id: outcome["status"] for id, outcome in result["outcomes"].items()} == {
        "wait": "cancelled",
        "next": "cancelled",
    }
    process.stdout.close()
    process.stderr.close()


def test_who_sits_at_the_terminal_is_asked_there(project: Path) -> None:
    screen, terminal = pty.openpty()
    process = spawn("run", "post", stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    shown = ""
    while "y: yes" not in shown:
        shown += os.read(screen, 10_000).decode("utf-8", "replace")
    os.write(screen, b"y\n")
    try:
        while chunk := os.read(screen, 10_000):
            shown += chunk.decode("utf-8", "replace")
    except OSError:
        pass  # the terminal's other side is gone
    assert process.wait() == 0
    os.close(screen)
    assert sent(project) == ["ann"]
    assert "delivered to ann" in shown


def test_ctrl_c_at_a_question_stops_the_run(project: Path, ori: Ori) -> None:
    screen, terminal = pty.openpty()
    process = spawn("run", "post", stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    shown = ""
    while "y: yes" not in shown:
        shown += os.read(screen, 10_000).decode("utf-8", "replace")
    process.send_signal(signal.SIGINT)
    try:
        while os.read(screen, 10_000):
            pass
    except OSError:
        pass
    assert process.wait() == 130
    os.close(screen)
    assert len(json.loads(ori("inbox", "--json")[1])) == 1
