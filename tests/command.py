"""What the tests of the command share: a project to run it in, and what it said."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from orchestrator.serve import cli

ROOT = Path(__file__).parents[1]
HEADER = '{"recording": 1, "scenario": "x", "model": "hand", "scripted": true}\n'
"""The first line of a recording."""


class Said(NamedTuple):
    """What one command said."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Ori = Callable[..., Said]


def command(capture: pytest.CaptureFixture[str]) -> Ori:
    """Return what runs the command in this process: `ori("runs", "--json").json`."""

    def ori(*argv: str) -> Said:
        status = cli.main(argv)
        return Said(status, *capture.readouterr())

    return ori


def spawn(
    *argv: str, program: Sequence[str] = ("-m", "orchestrator.serve.cli"), **options: Any
) -> subprocess.Popen[str]:
    """Start the command in a process of its own."""
    program = [sys.executable, *program, *argv]
    return subprocess.Popen(program, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, **options)


def begin(*argv: str, until: str, **options: Any) -> subprocess.Popen[str]:
    """Start the command in a process of its own and wait until it has said something on stderr."""
    process = spawn(*argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    assert process.stderr is not None
    for line in process.stderr:
        if until in line:
            return process
    raise AssertionError(f"{argv} ended without {until!r}")


def typed(*argv: str, line: str = "") -> tuple[int, str]:
    """Run the command at a terminal, type a line if it asks, and return its status and what it showed."""
    ours, theirs = pty.openpty()
    with spawn(*argv, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
                if line and b"\n> " in shown:
                    os.write(ours, line.encode() + b"\n")
                    line = ""
        except OSError:  # the other end was closed
            pass
        finally:
            os.close(ours)
    return process.returncode, shown.decode()


def enter_project(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    scenarios: Mapping[str, str],
    tools: str,
    recordings: Mapping[str, str],
) -> Path:
    """Make a project of scenarios that need no model, and go into it.

    Args:
        folder: Where it lies.
        monkeypatch: Takes the current directory and the environment back.
        scenarios: By name, each as YAML.
        tools: A tool file.
        recordings: By name; `empty` is there already.
    """
    (folder / "scenarios" / "recordings").mkdir(parents=True)
    (folder / "tools").mkdir()
    (folder / "ori.yaml").touch()
    for name, yaml in scenarios.items():
        (folder / "scenarios" / f"{name}.yaml").write_text(yaml, "utf-8")
    for name, lines in {"empty": HEADER, **recordings}.items():
        (folder / "scenarios/recordings" / f"{name}.jsonl").write_text(lines, "utf-8")
    (folder / "tools" / "own.py").write_text(tools, "utf-8")
    monkeypatch.chdir(folder)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL", "ORI_LOG", "FORCE_COLOR"):
        monkeypatch.setenv(name, "")  # so that what .env sets is taken back, too
        monkeypatch.delenv(name)
    return folder
