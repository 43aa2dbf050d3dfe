"""What comes back: artifacts, outcomes of subtasks, and the result of a run. Pure."""

from __future__ import annotations

from typing import Any, Literal

from orchestrator.failure import Failure, StopReason
from orchestrator.messages import Usage
from orchestrator.strict import Strict

OutcomeStatus = Literal["done", "partial", "failed", "skipped", "cancelled", "needs_review"]
RunStatus = Literal["done", "partial", "failed", "cancelled", "needs_review", "running", "interrupted"]


class Artifact(Strict):
    """A file of the workspace that belongs to a result."""

    path: str
    """Relative to the workspace, with forward slashes."""
    size: int
    """Bytes."""
    sha256: str
    media_type: str
    by: str
    """Path of the loop that wrote it."""
    untrusted: bool = False
    """Its content may come from outside."""


class Outcome(Strict):
    """How one subtask ended. Read from the loop's structure, never from its prose."""

    id: str
    path: str
    """Path of the loop, as `ori/collect`."""
    role: str
    """The role, or the tool of a subtask without a model."""
    status: OutcomeStatus
    stop_reason: StopReason
    answer: str = ""
    value: Any = None
    """The structured result, where one was asked for or a tool gave one."""
    failure: Failure | None = None
    artifacts: tuple[Artifact, ...] = ()
    untrusted: tuple[str, ...] = ()
    """Sources outside the run that the answer may carry words of."""
    usage: Usage = Usage()
    """Of this path and everything below it: attempts, reviews, children."""
    attempts: int = 1
    started: float = 0.0
    """Seconds since the epoch."""
    ended: float = 0.0


class RunResult(Strict):
    """How a run ended."""

    run_id: str
    status: RunStatus
    stop_reason: StopReason
    answer: str = ""
    value: Any = None
    formatted_goal: dict[str, Any] | None = None
    """The planner's reading of the goal: `task_type`, `entities`, `expected_output`."""
    outcomes: dict[str, Outcome] = {}
    """The top planner's subtasks by id, in plan order."""
    artifacts: tuple[Artifact, ...] = ()
    untrusted: tuple[str, ...] = ()
    """Sources outside the run that the answer may carry words of."""
    usage: Usage = Usage()
    failure: Failure | None = None
    workspace: str | None = None
    """Folder that holds the artifacts; None when no tool used one."""
