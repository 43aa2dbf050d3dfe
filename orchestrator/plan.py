"""The plan: subtasks and what they come after. Checks, readiness, critical path, diff. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_serializer, model_validator

from orchestrator.errors import ConfigError, nearest
from orchestrator.results import Outcome

ID_PATTERN = r"^\w[\w-]{0,39}$"


def _number_to_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Id = Annotated[str, BeforeValidator(_number_to_text), Field(pattern=ID_PATTERN)]
Ref = Annotated[str, BeforeValidator(_number_to_text)]


class Fallback(BaseModel):
    """What is tried once in place of a failed subtask: another role or goal, or a value that is taken instead."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

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


class Subtask(BaseModel):
    """One node of the plan."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

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


class FormattedGoal(BaseModel):
    """The goal, as the planner reads it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    task_type: str = ""
    entities: tuple[str, ...] | dict[str, Any] = ()
    expected_output: str = ""


class Delegate(BaseModel):
    """The arguments of `delegate`: what a plan file and a scenario's `plan` hold, too."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

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


@dataclass(frozen=True, slots=True)
class Rules:
    """What a plan may use."""

    roles: Collection[str]
    tools: Collection[str] = ()
    max_subtasks: int = 50
    files: Collection[str] = ()
    """Files of the workspace: names that a weak planner puts into `after`."""
    wrong_schema: Callable[[dict[str, Any]], tuple[str, object] | None] = lambda schema: None
    """Says why the schema of a result is none, and where in it."""


@dataclass(frozen=True, slots=True)
class Addition:
    """A checked set of subtasks, ready to be added."""

    new: tuple[Subtask, ...]
    reused: tuple[str, ...] = ()
    """Ids named again whose results stand."""
    mended: tuple[str, ...] = ()
    """What was put right, a sentence each."""

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids that the call asked for."""
        return (*self.reused, *(s.id for s in self.new))


class PlanFaults(Exception):
    """A proposed plan is wrong.

    Args:
        faults: Every fault, a sentence each.
        corrected: The same plan with the faults put right as well as can be guessed.
    """

    def __init__(self, faults: Sequence[str], corrected: Sequence[Subtask] = ()) -> None:
        self.faults, self.corrected = tuple(faults), tuple(corrected)
        super().__init__("; ".join(faults))


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

    def check(self, proposed: Sequence[Subtask], rules: Rules) -> Addition:
        """Check subtasks against the rules and this plan, mending what is safe to mend.

        Raises:
            PlanFaults: Something is wrong; all faults at once, with a corrected plan.
        """
        return _Check(self, proposed, rules).run()

    def add(self, addition: Addition) -> list[str]:
        """Take checked subtasks in, and return the ids that open again: skipped because of what is replaced now."""
        opened: list[str] = []
        for subtask in addition.new:
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
        """Return the ids to try again: those that did not succeed, or one and all that come after it.

        Raises:
            ConfigError: There is no such subtask.
        """
        if first is None:
            return tuple(id for id, o in self.outcomes.items() if o.status != "done" and id not in self.replaced)
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
        """Return the outcomes that keep the run from being a success: not done, not replaced, not tolerated."""
        return [
            outcome
            for id, outcome in self.outcomes.items()
            if outcome.status != "done" and id not in self.replaced and not self.subtasks[id].tolerated
        ]


class _Check:
    """One check of one proposal."""

    def __init__(self, plan: Plan, proposed: Sequence[Subtask], rules: Rules) -> None:
        self.plan, self.proposed, self.rules = plan, proposed, rules
        self.faults: list[str] = []
        self.mended: list[str] = []
        self.stands_in = dict(plan.replaced)
        self.taken = set(plan.subtasks) | {s.id for s in proposed}

    def run(self) -> Addition:
        if not self.proposed:
            self.faults.append("the plan has no subtasks; give at least one, or answer without a plan")
        reused, new = self._ids()
        known = set(self.plan.subtasks) | {s.id for s in new}
        new = [self._output(self._performer(self._replaces(s))) for s in new]
        new = self._circles(self._possible([self._after(s, new, known) for s in new]))
        if self.faults:
            raise PlanFaults(self.faults, new)
        return Addition(tuple(new), tuple(reused), tuple(self.mended))

    def _ids(self) -> tuple[list[str], list[Subtask]]:
        """Tell references to finished work from new subtasks; give double ids a free one."""
        reused: list[str] = []
        new: list[Subtask] = []
        seen: set[str] = set()
        for subtask in self.proposed:
            earlier = self.plan.subtasks.get(subtask.id)
            if subtask.id in seen:
                self.faults.append(f"the id {subtask.id!r} is there twice; ids are unique")
                subtask = subtask.model_copy(update={"id": self._free(subtask.id)})
            elif earlier is not None:
                outcome = self.plan.outcomes.get(subtask.id)
                same = earlier == subtask.model_copy(update={"after": earlier.after})  # which may have been mended
                if same and outcome and outcome.status == "done":
                    reused.append(subtask.id)
                    continue
                free = self._free(subtask.id)
                self.faults.append(f"the id {subtask.id!r} is used already; take a new one, such as {free!r}")
                stands_in = self.plan.outcomes.get(self._current(subtask.id))
                replaces = stands_in.id if stands_in and stands_in.status != "done" else subtask.replaces
                subtask = subtask.model_copy(update={"id": free, "replaces": replaces})
            seen.add(subtask.id)
            new.append(subtask)
        return reused, new

    def _free(self, id: str) -> str:
        number = 2
        while (free := f"{id[:36]}-{number}") in self.taken:
            number += 1
        self.taken.add(free)
        return free

    def _performer(self, subtask: Subtask) -> Subtask:
        for field_name, allowed in (("role", self.rules.roles), ("tool", self.rules.tools)):
            name = getattr(subtask, field_name)
            if name is not None and name not in allowed:
                options = sorted(allowed)
                self.faults.append(f"{subtask.id!r} has the unknown {field_name} {name!r}{nearest(name, options)}")
                if options:
                    return subtask.model_copy(update={field_name: _closest(name, options)})
        return subtask

    def _output(self, subtask: Subtask) -> Subtask:
        if subtask.output is None or not (fault := self.rules.wrong_schema(subtask.output)):
            return subtask
        self.faults.append(f"the output of {subtask.id!r} is no JSON Schema: {fault[0]}")
        return subtask.model_copy(update={"output": None})

    def _replaces(self, subtask: Subtask) -> Subtask:
        if subtask.replaces is None:
            return subtask
        old = self._current(subtask.replaces)  # what was replaced before means what stands in for it now
        outcome = self.plan.outcomes.get(old)
        if outcome is None or outcome.status == "done":
            named = subtask.replaces
            self.faults.append(f"{subtask.id!r} replaces {named!r}, which is no subtask that ended without success")
            return subtask.model_copy(update={"replaces": None})
        self.stands_in[old] = subtask.id
        return subtask.model_copy(update={"replaces": old})

    def _after(self, subtask: Subtask, new: Sequence[Subtask], known: Collection[str]) -> Subtask:
        after: list[str] = []
        for need in subtask.after:
            if need in known and self._current(need) == subtask.id:
                self.mended.append(f"{subtask.id!r} came after itself; dropped")
            elif need in known:
                after.append(need)
            elif makers := [s.id for s in new if s.id != subtask.id and _names(s, need)]:
                self.mended.append(f"{subtask.id!r} came after {need!r}, which is no subtask; made it {makers[-1]!r}")
                after.append(makers[-1])
            elif _is_file(need, self.rules.files):
                self.mended.append(f"{subtask.id!r} came after the file {need!r}; a file needs no waiting, dropped")
            else:
                self.faults.append(f"{subtask.id!r} comes after the unknown id {need!r}{nearest(need, sorted(known))}")
        return subtask.model_copy(update={"after": tuple(dict.fromkeys(after))})

    def _possible(self, new: Sequence[Subtask]) -> list[Subtask]:
        """Leave out what nobody can do and what is too much, and all waiting for it."""
        most = max(0, self.rules.max_subtasks - len(self.plan.subtasks))
        if len(new) > most:
            self.faults.append(f"{len(new)} new subtasks are too many: {most} of {self.rules.max_subtasks} left")
        kept = [s for s in new if s.role in self.rules.roles or s.tool in self.rules.tools][:most]
        self.stands_in = self.plan.replaced | {s.replaces: s.id for s in kept if s.replaces}
        known = set(self.plan.subtasks) | {s.id for s in kept}
        return [s.model_copy(update={"after": tuple(need for need in s.after if need in known)}) for s in kept]

    def _circles(self, new: Sequence[Subtask]) -> list[Subtask]:
        """Report each circle by its ids, and break it at an edge of a new subtask."""
        subtasks = (*self.plan.subtasks.values(), *new)
        needs = {s.id: list(dict.fromkeys(self._current(need) for need in s.after)) for s in subtasks}
        fresh = {s.id for s in new}
        dropped: dict[str, set[str]] = {}
        while circle := _circle(needs):
            self.faults.append("the subtasks wait for each other in a circle: " + " → ".join(circle))
            waits, need = next(edge for edge in pairwise(circle) if edge[0] in fresh)
            needs[waits].remove(need)
            dropped.setdefault(waits, set()).add(need)
        return [
            s.model_copy(update={"after": tuple(n for n in s.after if self._current(n) not in dropped.get(s.id, ()))})
            for s in new
        ]

    def _current(self, id: str) -> str:
        while id in self.stands_in:
            id = self.stands_in[id]
        return id


def _names(subtask: Subtask, name: str) -> bool:
    """Whether a subtask names a file, in its list or as a word of its goal."""
    if name in subtask.files:
        return True
    return re.search(rf"(?<![\w.]){re.escape(name)}(?![\w])", subtask.goal) is not None


def _is_file(name: str, files: Collection[str]) -> bool:
    suffix = PurePosixPath(name).suffix
    return name in files or (len(suffix) > 1 and suffix[1:].isalnum()) or "/" in name


def _closest(value: str, options: Sequence[str]) -> str:
    return (difflib.get_close_matches(value, options, n=1, cutoff=0.0) or options)[0]


def _circle(needs: Mapping[str, Sequence[str]]) -> list[str] | None:
    """Return one circle, its first id again at the end, each waiting for the next; None when there is none."""
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle[::-1]
    return None
