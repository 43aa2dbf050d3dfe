"""A proposed plan: what it may use, what is wrong with it, and what is mended. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

from orchestrator.errors import nearest
from orchestrator.plan import Fallback, Plan, Subtask
from orchestrator.text.placeholders import names, texts


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


def check_plan(plan: Plan, proposed: Sequence[Subtask], rules: Rules) -> Addition:
    """Check subtasks against the rules and the plan that they are added to, mending what is safe to mend.

    Raises:
        PlanFaults: Something is wrong; all faults at once, with a corrected plan.
    """
    return _Check(plan, proposed, rules).run()


class _Check:
    """One check of one proposal."""

    def __init__(self, plan: Plan, proposed: Sequence[Subtask], rules: Rules) -> None:
        self.plan, self.proposed, self.rules = plan, proposed, rules
        self.faults: list[str] = []
        self.mended: list[str] = []
        self.grown = Plan(replaced=dict(plan.replaced))
        self.taken = set(plan.subtasks) | {s.id for s in proposed}

    def run(self) -> Addition:
        if not self.proposed:
            self.faults.append("the plan has no subtasks; give at least one, or answer without a plan")
        reused, new = self._ids()
        known = set(self.plan.subtasks) | {s.id for s in new}
        new = [self._output(self._fallback(self._performer(self._replaces(s)))) for s in new]
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
                stands_in = self.plan.outcomes.get(self.grown.current(subtask.id))
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
                if field_name == "role" and options:
                    return subtask.model_copy(update={"role": _closest(name, options)})
                if close := difflib.get_close_matches(name, options, n=1):  # no other than the tool that was meant
                    return subtask.model_copy(update={"tool": close[0]})
        return subtask

    def _fallback(self, subtask: Subtask) -> Subtask:
        """Check who does what when it fails; a value that is taken instead needs nobody."""
        fallback = subtask.on_failure
        if not isinstance(fallback, Fallback) or "value" in fallback.model_fields_set:
            return subtask
        role, goal, options = fallback.role or subtask.role, fallback.goal or subtask.goal, sorted(self.rules.roles)
        if role in options and goal:
            return subtask
        if role is None or not goal:
            self.faults.append(f"the on_failure of {subtask.id!r} needs a role and a goal, as its tool has none")
            return subtask.model_copy(update={"on_failure": "skip"})
        self.faults.append(f"the on_failure of {subtask.id!r} has the unknown role {role!r}{nearest(role, options)}")
        named = fallback.model_copy(update={"role": _closest(role, options)}) if options else "skip"
        return subtask.model_copy(update={"on_failure": named})

    def _output(self, subtask: Subtask) -> Subtask:
        if subtask.output is None or not (fault := self.rules.wrong_schema(subtask.output)):
            return subtask
        self.faults.append(f"the output of {subtask.id!r} is no JSON Schema: {fault[0]}")
        return subtask.model_copy(update={"output": None})

    def _replaces(self, subtask: Subtask) -> Subtask:
        if subtask.replaces is None:
            return subtask
        old = self.grown.current(subtask.replaces)  # what was replaced before means what stands in for it now
        outcome = self.plan.outcomes.get(old)
        if outcome is None or outcome.status == "done":
            named = subtask.replaces
            self.faults.append(f"{subtask.id!r} replaces {named!r}, which is no subtask that ended without success")
            return subtask.model_copy(update={"replaces": None})
        self.grown.replaced[old] = subtask.id
        return subtask.model_copy(update={"replaces": old})

    def _after(self, subtask: Subtask, new: Sequence[Subtask], known: Collection[str]) -> Subtask:
        after: list[str] = []
        for need in subtask.after:
            if need in known and self.grown.current(need) == subtask.id:
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
        for named in _outcomes_in(subtask):
            if named not in known or named == subtask.id:
                others = sorted(set(known) - {subtask.id})
                self.faults.append(
                    f"the args of {subtask.id!r} name the unknown outcome {named!r}{nearest(named, others)}"
                )
            elif named not in after:
                self.mended.append(f"the args of {subtask.id!r} name the outcome of {named!r}; made it come after that")
                after.append(named)
        return subtask.model_copy(update={"after": tuple(dict.fromkeys(after))})

    def _possible(self, new: Sequence[Subtask]) -> list[Subtask]:
        """Leave out what nobody can do and what is too much, and all waiting for it."""
        most = max(0, self.rules.max_subtasks - len(self.plan.subtasks))
        if len(new) > most:
            self.faults.append(f"{len(new)} new subtasks are too many: {most} of {self.rules.max_subtasks} left")
        kept = [s for s in new if s.role in self.rules.roles or s.tool in self.rules.tools][:most]
        self.grown.replaced = self.plan.replaced | {s.replaces: s.id for s in kept if s.replaces}
        known = set(self.plan.subtasks) | {s.id for s in kept}
        return [s.model_copy(update={"after": tuple(need for need in s.after if need in known)}) for s in kept]

    def _circles(self, new: Sequence[Subtask]) -> list[Subtask]:
        """Report each circle by its ids, and break it at an edge of a new subtask."""
        subtasks = (*self.plan.subtasks.values(), *new)
        needs = {s.id: list(dict.fromkeys(self.grown.current(need) for need in s.after)) for s in subtasks}
        fresh = {s.id for s in new}
        while circle := _circle(needs):
            self.faults.append("the subtasks wait for each other in a circle: " + " → ".join(circle))
            waits, need = next(edge for edge in pairwise(circle) if edge[0] in fresh)
            needs[waits].remove(need)
        unbroken = {s.id: tuple(n for n in s.after if self.grown.current(n) in needs[s.id]) for s in new}
        return [s.model_copy(update={"after": unbroken[s.id]}) for s in new]


def _outcomes_in(subtask: Subtask) -> list[str]:
    """Return the ids whose outcomes the arguments of a tool name."""
    named = [name.split(".") for _, text in texts(subtask.args) for name in names(text)]
    return list(dict.fromkeys(parts[1] for parts in named if parts[0] == "outcomes" and len(parts) > 1))


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
