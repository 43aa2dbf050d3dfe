"""Whether roles and scenarios name only what there is. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from orchestrator.content.checks import OutcomesCheck, ToolsCheck
from orchestrator.content.scenario import Scenario
from orchestrator.document import Place
from orchestrator.errors import ConfigError, nearest
from orchestrator.plan import Plan
from orchestrator.policy import ALL
from orchestrator.proposal import PlanFaults, Rules, check_plan
from orchestrator.role import Role
from orchestrator.schema import wrong_schema

PLANNING_TOOL = "delegate"
Fault = tuple[str, Place]
"""What is wrong, and where in the file."""


@dataclass(frozen=True, slots=True)
class Names:
    """What there is to name."""

    roles: Collection[str]
    tools: Collection[str]
    elsewhere: Collection[str] = ()
    """Names, or patterns as `server/*`, of tools that no file defines."""
    models: Collection[str] | None = None
    """None: not known, so anything goes."""

    def has_elsewhere(self, tool: str) -> bool:
        """Whether a tool that no file defines may be there."""
        return any(fnmatchcase(tool, pattern) for pattern in self.elsewhere)


def role_faults(role: Role, names: Names) -> Iterator[Fault]:
    """Say what a role names that does not exist, or must not name."""
    yield from _tools(role.tools, names, ("tools",))
    for index, name in enumerate(role.approval):
        if name != ALL and name not in role.tools and not any(fnmatchcase(name, allowed) for allowed in role.tools):
            yield f"{name!r} is none of the role's tools{nearest(name, role.tools)}", ("approval", index)
    if names.models is not None and role.model not in (known := {"default", *names.models}):
        yield f"unknown model {role.model!r}{nearest(role.model, sorted(known))}", ("model",)
    if role.review is not None:
        if role.review.by == role.name:
            yield "a role cannot review itself; name another one", ("review", "by")
        yield from _roles([role.review.by], names, ("review", "by"))
    if role.may_delegate is not None and PLANNING_TOOL not in role.tools:
        yield f"may_delegate needs {PLANNING_TOOL!r} in the role's tools", ("may_delegate",)
    yield from _roles(role.may_delegate or (), names, ("may_delegate",))


def schema_faults(role: Role) -> Iterator[Fault]:
    """Say why the schema of a role's result is none. Loads a library, so it is not a part of every run."""
    if role.output is not None and (fault := wrong_schema(role.output)):
        yield f"is no JSON Schema: {fault[0]}", ("output", *fault[1])


def scenario_faults(scenario: Scenario, names: Names) -> Iterator[ConfigError]:
    """Say what a scenario names that does not exist, and what is wrong with its plan."""
    faults = [
        *_roles(scenario.roles or (), names, ("roles",)),
        *_plan(scenario, names),
        *_checked_names(scenario, names),
    ]
    for key, model in scenario.models.items():
        if names.models is not None and model not in names.models:
            faults.append((f"unknown model {model!r}{nearest(model, names.models)}", ("models", key)))
    yield from (scenario.error(message, place) for message, place in faults)


def _roles(wanted: Sequence[str], names: Names, place: Place) -> Iterator[Fault]:
    for index, name in enumerate(wanted):
        if name not in names.roles:
            yield f"unknown role {name!r}{nearest(name, names.roles)}", (*place, index)


def _tools(wanted: Sequence[str], names: Names, place: Place) -> Iterator[Fault]:
    known = [*names.tools, *names.elsewhere]
    for index, name in enumerate(wanted):
        if name not in names.tools and not names.has_elsewhere(name):
            yield f"unknown tool {name!r}{nearest(name, known)}", (*place, index)
        elif name in wanted[:index]:
            yield f"the tool {name!r} stands there twice", (*place, index)


def _plan(scenario: Scenario, names: Names) -> Iterator[Fault]:
    roles = names.roles if scenario.roles is None else scenario.roles
    try:
        if scenario.plan:
            tools = [*names.tools, *(s.tool for s in scenario.plan if s.tool and names.has_elsewhere(s.tool))]
            check_plan(Plan(), scenario.plan, Rules(roles, tools, scenario.limits.max_subtasks))
    except PlanFaults as error:
        for message in error.faults:
            named = (index for index, subtask in enumerate(scenario.plan) if repr(subtask.id) in message)
            yield message, ("plan", index) if (index := next(named, None)) is not None else ("plan",)


def _checked_names(scenario: Scenario, names: Names) -> Iterator[Fault]:
    ids = [subtask.id for subtask in scenario.plan]
    for index, check in enumerate(scenario.checks):
        if isinstance(check, ToolsCheck):
            yield from _tools(check.tools.called, names, ("checks", index, "tools", "called"))
        elif isinstance(check, OutcomesCheck) and ids:
            for id in check.outcomes:
                if id not in ids:
                    yield f"unknown subtask {id!r}{nearest(id, ids)}", ("checks", index, "outcomes", id)
