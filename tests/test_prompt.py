"""The prompt of `ori run`, in a terminal and a process of its own."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from tests.command import Ori, typed

TOOLS = '''
from pathlib import Path

from orchestrator import tool


@tool(effect="once", approval=True)
def stamp(word: str) -> str:
    """Stamp a word. Use it once. Returns the word."""
    with Path("stamped").open("a") as file:
        print(word, file=file)
    return word
'''
SCENARIOS = {
    "stamps": """
goal: Stamp.
plan:
  - {id: a, tool: stamp, args: {word: 印}}
  - {id: b, tool: write_file, args: {path: b.txt, content: here}}
  - {id: c, tool: write_file, args: {path: c.txt, content: "${outcomes.b.answer}"}, after: [b]}
answer: a
recording: recordings/empty.jsonl
""",
}


def test_after_later_the_others_finish_and_the_run_waits_in_the_inbox(project: Path, ori: Ori) -> None:
    """It waited for ever, though nobody was asked any more."""
    status, shown = typed("run", "stamps", line="later")
    assert (status, (project / "stamped").exists()) == (3, False), shown
    [run], [question] = ori("runs", "--json").json, ori("inbox", "--json").json
    assert (run["status"], question["name"]) == ("needs_review", "stamp")
    outcomes = {e["outcome"]["id"] for e in ori("show", run["run"], "--json").json["events"] if "outcome" in e}
    assert outcomes == {"b", "c"}
    assert ori("approve", run["run"], question["key"]).status == 0
    assert ori("resume", run["run"]).status == 0
    assert (project / "stamped").read_text() == "印\n"


@pytest.mark.parametrize(("line", "word"), [("y", "approved"), ("n not now", "denied")], ids=["yes", "no"])
def test_the_log_says_who_decided_at_the_terminal(line: str, word: str, project: Path, ori: Ori) -> None:
    typed("run", "stamps", line=line)  # a second attempt at what was refused would ask for ever
    [run] = ori("runs", "--json").json
    by = [e["by"] for e in ori("show", run["run"], "--json").json["events"] if e["type"] == "signal.taken"]
    assert by == [f"{getpass.getuser()} at the terminal"]
    assert f"{word} by {by[0]}" in ori("show", run["run"]).out
