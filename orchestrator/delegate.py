"""The planner's tool. Its arguments are the plan; running it runs the plan; its result is the table of outcomes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from orchestrator.content.scenario import Scenario
from orchestrator.context import RunContext
from orchestrator.errors import ConfigError, LoopStopped, nearest
from orchestrator.events import PlanAdded, PlanProposed, PlanRejected, SubtaskEnded
from orchestrator.failure import RULES, Failure, FailureKind
from orchestrator.fences import LEAST, show_outcome, sources_of
from orchestrator.messages import Json
from orchestrator.models.tokens import estimate_tokens
from orchestrator.plan import Delegate, Plan, Subtask
from orchestrator.proposal import Addition, PlanFaults, Rules, check_plan
from orchestrator.results import Outcome
from orchestrator.schedule import Ticket
from orchestrator.schedule import run as run_plan
from orchestrator.schema import wrong_schema
from orchestrator.shift import Shift
from orchestrator.text.relevance import content_words, gist
from orchestrator.tool import Tool, ToolContext, ToolResult

NAME = "delegate"
WRONG_PLANS = 3
"""A plan that is wrong this often in a row ends the planner's loop (R3)."""
SHORT_FIELDS = ("id", "role", "goal", "after", "files")
"""What a small model is shown of a subtask."""
OUTCOMES_SHARE = 0.25
"""Part of the planner's window that the outcomes of one call may fill together."""


@dataclass(slots=True)
class Planner:
    """The plan of one planner's loop, and the tool that adds to it.

    Args:
        context: The run.
        path: The planner's loop.
        roles: Names of the roles that it may use.
        execute: Runs one subtask for it.
        shift: Of the planner's loop: its subtasks end before it sums up, and have its slot while it waits.
        depth: 1 for the root's planner, 2 for one below it.
        window: Tokens of the planner's model; outcomes are cut so that together they fit.
        short: Show only the fields that a small model uses well.
        sources: What strangers may have written that the planner has read: its plans may come from there.
    """

    context: RunContext
    path: str
    roles: Collection[str]
    execute: Execute
    shift: Shift
    depth: int
    window: int
    short: bool = False
    sources: Mapping[str, None] = field(default_factory=dict)
    plan: Plan = field(default_factory=Plan)
    rejected: int = 0
    open: PlanAdded | None = None
    """What was added last, until its outcomes are told."""
    reopened: tuple[str, ...] = ()
    """What is tried again, until its outcomes are told."""

    def __post_init__(self) -> None:
        if past := self.context.past.plans.get(self.path):
            self.plan, self.rejected, self.open, self.reopened = past.plan, past.rejected, past.open, past.reopened

    @property
    def tools(self) -> set[str]:
        """Tools that a subtask may call without a model: those that one of the roles may call."""
        return {tool for name in self.roles for tool in self.context.role(name).tools} - {NAME}

    @property
    def templates(self) -> dict[str, Scenario]:
        """Process templates that it may choose by name.

        Those that share a word with the goal, and need no other roles and tools than the planner's own.
        """
        about = content_words(self.context.goal)
        return {
            template.name: template
            for template in self.context.catalog.templates()
            if about & content_words(f"{template.name} {template.when}")
            and all(s.role in self.roles or s.tool in self.tools for s in template.plan)
        }

    def tool(self) -> Tool:
        """Return `delegate` as this planner's loop may call it."""
        return Tool(
            name=NAME,
            description=self.context.text("delegate"),
            parameters=self._schema(),
            takes=self._schema(any_name=True),
            invoke=self._invoke,
            validate=lambda arguments: {"call": Delegate.model_validate(arguments)},
            effect="idempotent",
            timeout=None,
            cut=False,
            counted=False,
            together=self._delegate,
            digest=self._digest,
            misused=self._misused,
        )

    async def run_ready(self, call: Delegate, scenario: str | None) -> str:
        """Run a ready-made plan, of a person or of a scenario, and return the table of its outcomes.

        Raises:
            LoopStopped: The plan does not fit the run (an unknown role, a circle, …).
        """
        if self.open is None:
            try:
                addition = check_plan(self.plan, self._subtasks(call), self._rules(self.context.tool_names))
            except PlanFaults as faults:
                message = f"the plan of {scenario or 'the file'} is wrong: " + "; ".join(faults.faults)
                raise LoopStopped("plan_invalid", Failure(FailureKind.bad_model_output, message)) from None
            self._add(addition, call, [addition.ids], call.template or scenario)
        [ids] = await self._outcomes()
        return self._table(ids)

    async def run_reopened(self) -> str:
        """Run what is tried again, and return the table of its outcomes."""
        await self._run()
        ids, self.reopened = self.reopened, ()
        return self._table(ids)

    async def _invoke(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        return (await self._delegate([arguments], context))[0]

    async def _delegate(self, calls: Sequence[dict[str, Any]], context: ToolContext) -> list[ToolResult]:
        """Take neighbouring calls as one addition, run it, and give each call its own outcomes."""
        if self.open is None:
            try:
                self._accept([arguments["call"] for arguments in calls])
            except PlanFaults as faults:
                text = self._reject(faults.faults, faults.corrected)
                return [ToolResult(f"Error: {text}", error=True) for _ in calls]
        assert self.open is not None
        if self.context.preview:
            accepted = _whole(self.open).model_dump(mode="json", exclude_defaults=True)
            return [ToolResult("the plan is accepted", accepted, final=True) for _ in calls]
        notes = self.open.mended
        return [self._result(ids, notes) for ids in await self._outcomes()]

    def _accept(self, plans: Sequence[Delegate]) -> None:
        """Take neighbouring calls in as one addition.

        Raises:
            PlanFaults: It has faults.
        """
        for plan in plans:
            self.context.log.add(PlanProposed(path=self.path, plan=plan.model_dump(mode="json", exclude_defaults=True)))
        asked = [self._subtasks(plan) for plan in plans]
        addition = check_plan(self.plan, [s for subtasks in asked for s in subtasks], self._rules(self.tools))
        ids = [[s.id for s in subtasks] for subtasks in asked]
        template = next((plan.template for plan in plans if plan.template), None)
        self._add(addition, _joint(plans, addition.new), ids, template)

    def _subtasks(self, call: Delegate) -> tuple[Subtask, ...]:
        if call.template is None:
            return call.subtasks
        templates = self.templates
        if call.template not in templates:
            fault = f"there is no template {call.template!r}{nearest(call.template, templates)}"
            raise PlanFaults([fault], call.subtasks)
        try:
            bound = templates[call.template].bind(call.params)
        except ConfigError as error:
            raise PlanFaults([f"template {call.template!r}: {fault.message}" for fault in error.faults]) from None
        return (*bound.plan, *call.subtasks)

    def _rules(self, tools: Collection[str]) -> Rules:
        files = {file.path for file in self.context.workspace.files()}
        return Rules(self.roles, tools, self.context.limits.max_subtasks, files, wrong_schema)

    def _add(self, addition: Addition, call: Delegate, asked: Sequence[Sequence[str]], template: str | None) -> None:
        """Take a checked plan in, and record it.

        Args:
            addition: The plan.
            call: What it says besides the subtasks.
            asked: Ids that each call asked for; the last one is told of earlier subtasks that open again, too.
            template: Where the plan comes from.
        """
        constraints, notes = _quotes(call.constraints, self.context.goal)
        self.context.constraints = tuple(dict.fromkeys((*self.context.constraints, *constraints)))
        if call.formatted_goal and self.context.formatted_goal is None:
            self.context.formatted_goal = call.formatted_goal
        opened = self.plan.add(addition.new)
        self.rejected = 0
        self.open = self.context.log.add(
            PlanAdded(
                path=self.path,
                subtasks=tuple(s.model_dump(mode="json", exclude_unset=True) for s in addition.new),
                asked=(*map(tuple, asked[:-1]), (*asked[-1], *opened)),
                reused=addition.reused,
                replaced={s.replaces: s.id for s in addition.new if s.replaces},
                mended=(*addition.mended, *notes),
                constraints=tuple(constraints),
                formatted_goal=call.formatted_goal.model_dump(mode="json") if call.formatted_goal else None,
                template=template,
            )
        )

    async def _outcomes(self) -> tuple[tuple[str, ...], ...]:
        """Run the plan until it is quiet, and return whose outcomes each call gets."""
        assert self.open is not None
        await self._run()
        asked, self.open = self.open.asked, None
        return asked

    async def _run(self) -> None:
        async def execute(subtask: Subtask, ticket: Ticket) -> Outcome:
            outcome = await self.execute(self, subtask, ticket)
            self.context.ledger.expect(self.path, min(self._room, estimate_tokens(outcome.answer)))
            return outcome

        async with self.shift.slot_lent():
            await run_plan(self.plan, self.context.slots, execute, self._skip, self.shift)

    def _skip(self, subtask: Subtask, cause: str) -> Outcome:
        now = self.context.log.now()
        outcome = Outcome(
            id=subtask.id,
            path=f"{self.path}/{subtask.id}",
            role=subtask.performer,
            status="skipped",
            stop_reason="need_failed",
            failure=Failure(FailureKind.tool_error, cause),
            attempts=0,
            started=now,
            ended=now,
        )
        self.context.log.add(SubtaskEnded(path=outcome.path, outcome=outcome))
        return outcome

    # what the planner reads

    def _misused(self, fault: str) -> str:
        self.context.log.add(PlanProposed(path=self.path, plan={}))
        return self._reject([fault], ())

    def _reject(self, faults: Sequence[str], corrected: Sequence[Subtask]) -> str:
        self.rejected += 1
        self.context.log.add(PlanRejected(path=self.path, faults=tuple(faults)))
        if self.rejected >= WRONG_PLANS:
            message = f"the plan was wrong {WRONG_PLANS} times, at last: " + "; ".join(faults)
            raise LoopStopped("plan_invalid", Failure(FailureKind.bad_model_output, message))
        example = {"subtasks": [s.model_dump(mode="json", exclude_defaults=True) for s in corrected]}
        call = orjson.dumps(example).decode() if corrected else ""
        return self.context.text("plan_refused", faults="\n".join(f"- {f}" for f in faults), corrected=call)

    def _result(self, ids: Sequence[str], mended: Sequence[str]) -> ToolResult:
        outcomes = [self.plan.outcomes[id] for id in ids if id in self.plan.outcomes]
        parts = [self._table(ids)]
        if mended:
            parts.append("Changed in the plan: " + "; ".join(mended))
        if failed := [o for o in outcomes if o.status not in ("done", "skipped")]:
            advice = "\n".join(f"- {o.id}: {_advice(o)}" for o in failed)
            parts.append(self.context.text("failed_outcomes", advice=advice))
        value = {o.id: o.model_dump(mode="json", include={"status", "answer", "value"}) for o in outcomes}
        return ToolResult("\n\n".join(parts), value, untrusted=sources_of(outcomes))

    def _table(self, ids: Sequence[str]) -> str:
        """Show outcomes in plan order, cut so that together they fit the planner's window."""
        outcomes = [self.plan.outcomes[id] for id in self.plan.subtasks if id in ids and id in self.plan.outcomes]
        each = self._room // max(1, len(outcomes))
        return "\n\n".join(show_outcome(self.context, outcome, each) for outcome in outcomes)

    def _digest(self, tokens: int) -> str:
        """Tell the plan and its outcomes, shorter than the conversation did; whole answers are behind their handles."""
        subtasks = self.plan.subtasks.values()
        each = max(LEAST // 2, 2 * tokens // max(1, len(subtasks)))
        return "\n".join(self._told(subtask, each) for subtask in subtasks)

    def _told(self, subtask: Subtask, most: int) -> str:
        after = f", after {', '.join(subtask.after)}" if subtask.after else ""
        told = f"- {subtask.id} ({subtask.performer}{after}): {gist(subtask.goal, most)}"
        if outcome := self.plan.outcomes.get(subtask.id):
            handle = self.context.workspace.outputs.store(f"{outcome.path}:answer", outcome.answer, outcome.untrusted)
            said = " ".join(gist(outcome.answer, most).splitlines())
            files = ", ".join(artifact.path for artifact in outcome.artifacts)
            told += f" → {outcome.status}: {said} ({', '.join(filter(None, (handle, files)))})"
        return told

    @property
    def _room(self) -> int:
        """Tokens that the outcomes of one call may fill together."""
        return int(self.window * OUTCOMES_SHARE)

    def _schema(self, *, any_name: bool = False) -> dict[str, Json]:
        """Return the arguments' JSON Schema, with the roles of this run as the only ones.

        Args:
            any_name: Take other names, too: the check of the plan refuses them, with all else that is wrong.
        """
        schema = _inline(Delegate.model_json_schema())
        subtask = schema["properties"]["subtasks"]["items"]
        fields = subtask["properties"]
        if not self.tools:
            del fields["tool"], fields["args"]
        for name, known in () if any_name else (("role", self.roles), ("tool", self.tools)):
            if known:
                fields[name] = {"enum": sorted(known), "description": fields[name]["description"]}
        if not self.templates:
            del schema["properties"]["template"], schema["properties"]["params"]
            schema["required"] = ["subtasks"]
        if self.short:
            subtask["properties"] = {name: fields[name] for name in SHORT_FIELDS}
            subtask["required"] = ["id", "role", "goal", "after"]
            schema["properties"] = {"subtasks": schema["properties"]["subtasks"]}
        return schema


Execute = Callable[[Planner, Subtask, Ticket], Awaitable[Outcome]]
"""Runs one subtask for a planner."""


def _advice(outcome: Outcome) -> str:
    rule = RULES[outcome.failure.kind] if outcome.failure else None
    return f"ended {outcome.status} ({outcome.stop_reason})" + (f"; {rule.advice}" if rule and rule.advice else "")


def _joint(calls: Sequence[Delegate], subtasks: tuple[Subtask, ...]) -> Delegate:
    """Return one plan with what several calls say besides the subtasks."""
    return Delegate(
        subtasks=subtasks,
        constraints=tuple(c for call in calls for c in call.constraints),
        formatted_goal=next((c.formatted_goal for c in calls if c.formatted_goal), None),
    )


def _whole(added: PlanAdded) -> Delegate:
    """Return a plan that was added as one call."""
    return Delegate.model_validate(
        {"subtasks": added.subtasks, "constraints": added.constraints, "formatted_goal": added.formatted_goal}
    )


def _quotes(constraints: Sequence[str], goal: str) -> tuple[list[str], list[str]]:
    """Split constraints into those that are words of the goal, and notes on those that are not."""

    def folded(text: str) -> str:
        return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text)).strip().casefold()

    whole = folded(goal)
    quoted = [c for c in constraints if folded(c) and folded(c) in whole]
    return quoted, [f"the constraint {c!r} is no quote of the goal; dropped" for c in constraints if c not in quoted]


def _inline(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Put definitions in place and leave titles and defaults out: they only cost tokens."""
    definitions = schema.get("$defs", {})

    def walk(node: Any, names: bool = False) -> Any:
        if isinstance(node, list):
            return [walk(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            rest = {k: v for k, v in node.items() if k != "$ref"}
            return walk({**definitions[node["$ref"].rsplit("/", 1)[-1]], **rest})
        dropped = () if names else ("title", "default", "$defs")
        return {k: walk(v, names=k == "properties" and not names) for k, v in node.items() if k not in dropped}

    return dict(walk(schema))
