"""What a command has to say; only `cli.main` prints it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DONE, FAILED, WRONG_USE, NEEDS_A_LOOK, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit statuses."""
STDOUT = Path("-")
"""What `-o -` names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of a command, for people and for programs."""

    data: Any
    """The one JSON document that `--json` prints."""
    text: str = ""
    """What stands on stdout without `--json`."""
    draw: Callable[[int, bool], str] | None = None
    """Makes the text instead: so many columns wide, and in colours or not."""
    note: str = ""
    """What goes to stderr, either way."""
    status: int = DONE


def write(file: Path, text: str) -> None:
    """Write a file that a command was asked for; its folder need not exist."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")


def one_line(text: str, most: int = 2000) -> str:
    """Make text safe to show in one line: no breaks, no control characters."""
    shown = " ".join(text[:most].split())
    if not shown.isprintable():
        shown = "".join(c for c in shown if c.isprintable())
    return shown if len(text) <= most else f"{shown} …"
