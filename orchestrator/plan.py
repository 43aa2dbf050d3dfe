"""The plan: subtasks and what they come after, what is ready of it, and its critical path. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_serializer, model_validator

from orchestrator.errors import ConfigError, nearest
from orchestrator.results import Outcome
from orchestrator.strict import Strict

ID_PATTERN = r"^\w[\w-]{0,39}$"


def _number_to_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Id = Annotated[str, BeforeValidator(_number_to_text), Field(pattern=ID_PATTERN)]
Ref = Annotated[str, BeforeValidator(_number_to_text)]


class Fallback(Strict):
    """What is tried once in place of a failed subtask: another role or goal, or a value that is taken instead."""

    role: str | None = None
    goal: str | None = None
    value: Any = None

    @model_validator(mode="after")
    def _says_something(self) -> Fallback:
        if not self.model_fields_set:
            raise ValueError("a fallback names a role, a goal or a value")
        return self

    @model_serializer
    def _what_it_says(self) -> dict[str, Any]:
        """Leave out what was not said: null is a value, and no value is none."""
        return {name: getattr(self, name) for name in Fallback.model_fields if name in self.model_fields_set}


class Subtask(Strict):
    """One node of the plan."""

    id: Id
    """Short name, unique in the plan."""
    role: str | None = None
    """Who does it."""
    tool: str | None = None
    """Instead of a role: a tool that is called with `args`, without a model."""
    goal: str = ""
    """What to do. The worker sees only this and the results of `after`: name the files and copy exact values."""
    after: tuple[Ref, ...] = ()
    """Ids whose results it needs, often []. It starts when they are done."""
    files: tuple[str, ...] = ()
    """Files it reads."""
    expect: str = ""
    """What a good result looks like."""
    output: dict[str, Any] | None = None
    """JSON Schema of the result, where a structured one is needed."""
    args: dict[str, Any] = {}
    """Arguments of `tool`; `${outcomes.<id>.value.x}`, `${outcomes.<id>.answer}` and `${params.x}` are filled in."""
    effort: float = Field(1.0, gt=0)
    """Expected length, relative to the others."""
    on_failure: Literal["skip", "continue", "retry", "needs_review", "rollback"] | Fallback = "skip"
    """What follows its failure: skip what comes after it, go on regardless, try again, or a fallback."""
    tolerant: bool = False
    """It goes on although something it comes after failed; its own failure does not spoil the run."""
    replaces: Ref | None = None
    """Id of a failed subtask that this one stands in for."""
    review: bool = False
    """A reviewer checks the result."""

    @model_validator(mode="after")
    def _role_or_tool(self) -> Subtask:
        if (self.role is None) == (self.tool is None):
            raise ValueError("a subtask has either a role or a tool")
        if self.role is not None and not self.goal.strip():
            raise ValueError("a subtask for a role needs a goal")
        if self.role is not None and self.args:
            raise ValueError("args belong to a subtask with a tool; a role gets a goal")
        return self

    @property
    def performer(self) -> str:
        """The role, or the tool."""
        return self.role or self.tool or ""

    @property
    def tolerated(self) -> bool:
        """Whether its failure leaves the run a success."""
        return self.tolerant or self.on_failure == "continue"


class FormattedGoal(Strict):
    """The goal, as the planner reads it."""

    task_type: str = ""
    entities: tuple[str, ...] | dict[str, Any] = ()
    expected_output: str = ""


class Delegate(Strict):
    """The arguments of `delegate`: what a plan file and a scenario's `plan` hold, too."""

    subtasks: tuple[Subtask, ...] = ()
    """The plan: the fewest subtasks that do the job."""
    constraints: tuple[str, ...] = ()
    """Words of the user that every worker must keep to, quoted exactly."""
    formatted_goal: FormattedGoal | None = None
    """The goal, parsed."""
    template: str | None = None
    """Instead of subtasks: the name of a process template to run."""
    params: dict[str, Any] = {}
    """Parameters of the template."""


@dataclass(slots=True)
class Plan:
    """The DAG of one planner's loop: it only grows, and ids are never used again for something else."""

    subtasks: dict[str, Subtask] = field(default_factory=dict)
    """In plan order."""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)
    replaced: dict[str, str] = field(default_factory=dict)
    """New id by the id it stands in for."""
    remaining: dict[str, float] = field(default_factory=dict)
    """By id, the effort of the longest path from the subtask's start to the end of the plan."""

    def add(self, subtasks: Iterable[Subtask]) -> list[str]:
        """Take checked subtasks in, and return the ids that open again: skipped because of what is replaced now."""
        opened: list[str] = []
        for subtask in subtasks:
            self.subtasks[subtask.id] = subtask
            if subtask.replaces is not None:
                self.replaced[subtask.replaces] = subtask.id
        while revived := [id for id in self.outcomes if self._skipped_in_vain(id)]:
            self.reopen(revived)
            opened += revived
        self.remaining = self._paths()
        return opened

    def reopen(self, ids: Iterable[str]) -> None:
        """Forget how subtasks ended, so that they run again."""
        for id in ids:
            self.outcomes.pop(id, None)
            self.started.discard(id)

    def to_retry(self, first: str | None = None) -> tuple[str, ...]:
        """Return the ids to try again: those that have not succeeded, or one and all that come after it.

        Raises:
            ConfigError: There is no such subtask.
        """
        if first is None:
            done = {id for id, outcome in self.outcomes.items() if outcome.status == "done"}
            return tuple(id for id in self.subtasks if id not in done and id not in self.replaced)
        if first not in self.subtasks:
            raise ConfigError(f"the plan has no subtask {first!r}{nearest(first, self.subtasks)}")
        again = {self.current(first)}
        while more := {s.id for s in self.subtasks.values() if again & set(self.needs(s))} - again:
            again |= more
        return tuple(id for id in self.subtasks if id in again)

    def _skipped_in_vain(self, id: str) -> bool:
        skipped = self.outcomes[id].status == "skipped" and id not in self.replaced
        return skipped and not self.blocked(self.subtasks[id])

    def needs(self, subtask: Subtask) -> tuple[str, ...]:
        """Return the ids it waits for, with those that were replaced exchanged for what stands in for them."""
        return tuple(dict.fromkeys(self.current(need) for need in subtask.after))

    def stood_in_for(self, id: str) -> list[str]:
        """Return the ids that a subtask stands in for, those that were replaced before included."""
        return [old for old in self.replaced if old != id and self.current(old) == self.current(id)]

    def current(self, id: str) -> str:
        """Return the id that stands in for this one now (itself, unless it was replaced)."""
        while id in self.replaced:
            id = self.replaced[id]
        return id

    def ready(self) -> list[Subtask]:
        """Return what can start (or be skipped) now, the longest remaining path first."""
        ready = [
            s
            for s in self.subtasks.values()
            if s.id not in self.started and all(need in self.outcomes for need in self.needs(s))
        ]
        return sorted(ready, key=lambda s: -self.remaining[s.id])

    def blocked(self, subtask: Subtask) -> str | None:
        """Say why an ended need keeps this subtask from running, or None."""
        if subtask.tolerant:
            return None
        for need in self.needs(subtask):
            outcome = self.outcomes.get(need)
            if outcome and outcome.status != "done" and self.subtasks[need].on_failure != "continue":
                cause = outcome.failure.message if outcome.failure else outcome.stop_reason
                return f"it comes after {need!r}, which ended {outcome.status}: {cause}"
        return None

    def _paths(self) -> dict[str, float]:
        after: dict[str, list[str]] = {id: [] for id in self.subtasks}
        for subtask in self.subtasks.values():
            for need in self.needs(subtask):
                after[need].append(subtask.id)
        order = list(TopologicalSorter({s.id: self.needs(s) for s in self.subtasks.values()}).static_order())
        length: dict[str, float] = {}
        for id in reversed(order):
            length[id] = self.subtasks[id].effort + max((length[x] for x in after[id]), default=0.0)
        return length

    def spoiled(self) -> list[Outcome]:
        """Return the outcomes that keep the run from being a success: not done, not replaced, not tolerated.

        They come in plan order: which of two siblings ended first must not decide how the run is said to have ended.
        """
        ended = [(subtask, self.outcomes[id]) for id, subtask in self.subtasks.items() if id in self.outcomes]
        return [
            outcome
            for subtask, outcome in ended
            if outcome.status != "done" and subtask.id not in self.replaced and not subtask.tolerated
        ]
