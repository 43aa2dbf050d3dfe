"""What a model needs so that it works well: data, chosen by `profile:` in `ori.yaml`. Pure.

Source of the values: trials with a 1.5B model over 8 goals (prefix caching, plan shapes, loop detection).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Profile:
    """Switches of the engine for one kind of model."""

    warn_at: int | None = 3
    """Warn when the same call has come back with the same result this often; None: never (small models ignore it)."""
    stop_at: int = 5
    """Force a wrap-up when it has come back this often."""
    example: bool = False
    """Show a planner a worked example as messages before the goal."""
    reminder: bool = False
    """Repeat the goal after each turn of good observations."""
    evidence: bool = False
    """A worker that has tools counts as done only after a successful call, with none failing last."""
    structured: Literal["tool", "json_schema", "text"] = "tool"
    """How it hands in a structured result: by a tool, held to the schema by its server, or in words."""
    fault_by_fault: bool = False
    """Tell only one fault of a structured result at a time, and each place once; else all of them, twice."""
    image_size: int = 1024
    """Pixels of the longest side of an image that it is shown; 0: it sees none."""
    short_plan: bool = False
    """Offer a planner only the fields of a subtask that a small model uses well."""


PROFILES: dict[Literal["small", "standard"], Profile] = {
    "standard": Profile(),
    "small": Profile(
        warn_at=None,
        stop_at=2,
        example=True,
        reminder=True,
        evidence=True,
        structured="json_schema",
        fault_by_fault=True,
        short_plan=True,
    ),
}
