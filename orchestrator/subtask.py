"""Runs one subtask: a loop or a tool, its attempts, its review and its fallback, and makes the outcome."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from orchestrator.answers import Ending
from orchestrator.context import RunContext
from orchestrator.conversation import Conversation
from orchestrator.delegate import NAME as DELEGATE
from orchestrator.delegate import Planner, fenced, show_outcome
from orchestrator.errors import JournalError, RunStopped
from orchestrator.events import ArtifactStored, ReviewDone, SubtaskEnded, SubtaskStarted, Warned
from orchestrator.failure import RULES, Failure, FailureKind
from orchestrator.limits import Limits
from orchestrator.loop import AgentLoop
from orchestrator.messages import Json, Message, ToolCall
from orchestrator.placeholders import fill, fill_tree, names, texts
from orchestrator.plan import Fallback, Subtask
from orchestrator.results import Outcome
from orchestrator.review import find_reviewer, judge, verdict_schema
from orchestrator.role import Review, Role
from orchestrator.schedule import Ticket
from orchestrator.schema import RESULT_TOOL, result_schema, result_tool
from orchestrator.tool import Tool, to_result
from orchestrator.toolbox import Toolbox
from orchestrator.workspace import LoopWorkspace, Undone

MAX_DEPTH = 2
"""Planners below each other, the root included."""
NEED_CHARACTERS = 8_000
"""Of one outcome, in the first message of what comes after it."""
NEEDS_SHARE = 0.3
"""Part of a loop's window that the outcomes it comes after may fill together."""


@dataclass(frozen=True, slots=True)
class _Job:
    """One subtask on its way."""

    planner: Planner
    subtask: Subtask
    path: str
    ticket: Ticket
    started: float

    @property
    def needs(self) -> list[Outcome]:
        """The outcomes it comes after."""
        plan = self.planner.plan
        return [plan.outcomes[need] for need in plan.needs(self.subtask)]


class Workers:
    """Opens loops, and runs subtasks for the planners of one run."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.planners: dict[str, Planner] = {}
        """By the path of the planner's loop."""
        self.acted_once: set[str] = set()
        """Paths of loops in which a call that must not be repeated went through."""

    def open(
        self,
        role: Role,
        path: str,
        *,
        goal: str,
        output: dict[str, Any] | None = None,
        parent: Planner | None = None,
        ticket: Ticket | None = None,
        needs: Sequence[str] = (),
    ) -> AgentLoop:
        """Make the loop of a role, with its tools and, where it may plan, its plan.

        Args:
            role: The role.
            path: Where in the run the loop stands.
            goal: What it is asked, for reminders.
            output: JSON Schema of the result, over the role's own.
            parent: The planner it works for; None: the root loop.
            ticket: Its working slot.
            needs: Paths of the loops whose files it may overwrite once they have ended.
        """
        context = self.context
        if parent:
            context.ledger.limit(path, role.limits)
        role = role.model_copy(update={"limits": Limits.combine(role.limits, context.limits)})
        output = output or role.output
        model, profile = context.models(role.model)
        deadline = (parent.deadline if parent else context.deadline).within(time.monotonic(), role.limits.timeout)
        tools: dict[str, Tool] = {name: context.tool(name) for name in role.tools if name != DELEGATE}
        depth = parent.depth + 1 if parent else 1
        if DELEGATE in role.tools and depth <= MAX_DEPTH:
            planner = Planner(
                context,
                path,
                roles=self._may_delegate(role),
                execute=self.execute,
                deadline=deadline,
                depth=depth,
                window=model.window,
                short=profile.short_plan,
                ticket=ticket,
            )
            self.planners[path] = planner
            tools = {DELEGATE: planner.tool(), **tools}
        if output is not None and profile.structured == "tool":
            tools[RESULT_TOOL] = result_tool(output, context.text("submit_result"))
        workspace = self._workspace(path, needs)
        toolbox = Toolbox(context, path, tools, workspace, window=model.window)
        loop = AgentLoop(context, path, role, Conversation(), toolbox, deadline, output=output, goal=goal)
        prompt = self._prompt(role, DELEGATE in tools)
        if output is not None and RESULT_TOOL not in tools:
            prompt += "\n\n" + context.text("answer_in_json", schema=orjson.dumps(result_schema(output)).decode())
        loop.begin(prompt, self._examples(role) if profile.example else ())
        return loop

    def _examples(self, role: Role) -> Iterator[Message]:
        """Word a planner's examples as messages: as prose in the prompt, small models print the call as text."""
        may = set(self._may_delegate(role))
        for number, example in enumerate(e for e in role.examples if e.roles <= may):
            yield Message("user", self.context.text("planner_task", goal=example.goal, date="", files="", templates=""))
            if example.plan:
                call = ToolCall(f"example_{number}", DELEGATE, orjson.dumps({"subtasks": example.plan}).decode())
                yield Message("assistant", calls=(call,))
                shown = [fenced(s["id"], s["role"], "done", example.outcomes.get(s["id"], "")) for s in example.plan]
                yield Message("tool", "\n\n".join(shown), call_id=call.id)
            yield Message("assistant", example.answer)

    def _may_delegate(self, role: Role) -> list[str]:
        allowed = role.may_delegate if role.may_delegate is not None else self.context.delegable
        return [name for name in allowed if name in self.context.delegable and name != role.name]

    def _prompt(self, role: Role, plans: bool) -> str:
        listed = [self.context.role(name) for name in self._may_delegate(role)] if plans else []
        return fill(role.prompt, {"roles": "\n".join(f"- {r.name}: {r.description}" for r in listed)})

    def _workspace(self, path: str, needs: Sequence[str]) -> LoopWorkspace:
        def may_take(owner: str) -> bool:
            return any(within(owner, need) for need in needs)

        def stored(change: ArtifactStored) -> None:
            self.context.log.add(change)

        return self.context.workspace.for_loop(path, may_take, stored)

    # one subtask

    async def execute(self, planner: Planner, subtask: Subtask, ticket: Ticket) -> Outcome:
        """Run a subtask to its outcome.

        Raises:
            RunStopped: The run as a whole cannot go on.
            JournalError: The log cannot be written.
        """
        job = _Job(planner, subtask, f"{planner.path}/{subtask.id}", ticket, self.context.log.now())
        try:
            ending, attempts = await self._tries(job)
        except (RunStopped, JournalError):
            raise
        except Exception as error:  # noqa: BLE001 - a fault of ours must not take the siblings down
            self.context.log.add(Warned(path=job.path, text=self.context.redact(traceback.format_exc())))
            failure = Failure(FailureKind.bug, self.context.redact(f"{type(error).__name__}: {error}"))
            ending, attempts = Ending("failed", "bug", failure=failure), 1
        outcome = self._outcome(job, ending, attempts)
        self.context.log.add(SubtaskEnded(path=job.path, outcome=outcome))
        return outcome

    async def _tries(self, job: _Job) -> tuple[Ending, int]:
        """Try once, again where that may help, and the fallback where there is one."""
        subtask, on_failure, count = job.subtask, job.subtask.on_failure, 1
        ending = await self._try(job, subtask, count)
        if ending.status == "failed" and (on_failure == "retry" or self._may_go_better(job, ending)):
            count += 1
            ending = await self._try(job, subtask, count)
        if ending.status != "failed":
            return ending, count
        if isinstance(on_failure, Fallback):
            if "value" in on_failure.model_fields_set:
                return Ending("done", "answer", _as_text(on_failure.value), on_failure.value), count
            changes = {k: v for k in ("role", "goal") if (v := getattr(on_failure, k)) is not None}
            count += 1
            ending = await self._try(job, subtask.model_copy(update={**changes, "tool": None}), count)
        elif on_failure == "needs_review":
            ending = Ending("needs_review", "needs_person", ending.answer, ending.value, ending.failure)
        elif on_failure == "rollback":
            self._roll_back(job)
        return ending, count

    def _may_go_better(self, job: _Job, ending: Ending) -> bool:
        again = ending.failure is not None and RULES[ending.failure.kind].again
        return again and not any(within(path, job.path) for path in self.acted_once)

    async def _try(self, job: _Job, subtask: Subtask, count: int) -> Ending:
        path = job.path if count == 1 else f"{job.path}~{count}"
        self.context.log.add(
            SubtaskStarted(
                path=path,
                id=subtask.id,
                role=subtask.performer,
                goal=subtask.goal or _as_text(subtask.args),
                attempt=count,
            )
        )
        if subtask.tool is not None:
            return await self._call_tool(job, subtask, path)
        role = self.context.role(subtask.role or "")
        loop = self.open(
            role,
            path,
            goal=subtask.goal,
            output=subtask.output,
            parent=job.planner,
            ticket=job.ticket,
            needs=[job.path, *(need.path for need in job.needs)],
        )
        loop.say(self._task(subtask))
        self._give(loop, job.needs)
        return await self._reviewed(job, subtask, loop)

    def _task(self, subtask: Subtask) -> str:
        """Word the first message of a worker: it sees nothing else of the run."""
        return self.context.text(
            "worker_task",
            goal=subtask.goal,
            files=", ".join(subtask.files),
            expect=subtask.expect,
            constraints="\n".join(f"- {c}" for c in self.context.constraints),
            request=self.context.goal,
        )

    def _give(self, loop: AgentLoop, needs: Sequence[Outcome]) -> None:
        """Put the outcomes a loop may use into its conversation, fenced as data, cut so that together they fit."""
        if needs:
            room = int(loop.model.window * NEEDS_SHARE * 2)  # two characters a token: between English and Chinese
            each = min(NEED_CHARACTERS, room // len(needs))
            shown = "\n\n".join(show_outcome(self.context, need, each) for need in needs)
            loop.give(shown, introduced=self.context.text("worker_results"))

    # a tool without a model

    async def _call_tool(self, job: _Job, subtask: Subtask, path: str) -> Ending:
        name = subtask.tool or ""
        tool = self.context.tool(name)
        values = _Values(job, self.context)
        if unknown := [n for _, text in texts(subtask.args) for n in names(text) if n not in values]:
            message = f"the arguments name {', '.join(f'${{{n}}}' for n in unknown)}, which the outcomes do not have"
            return Ending("failed", "tool_failures", failure=Failure(FailureKind.tool_error, message))
        arguments = fill_tree(subtask.args, values)
        workspace = self._workspace(path, [job.path, *(need.path for need in job.needs)])
        toolbox = Toolbox(self.context, path, {name: tool}, workspace, window=job.planner.window)
        call = ToolCall("call", name, orjson.dumps(arguments).decode())
        [seen] = await toolbox.run([call], 1)
        if tool.effect == "once":  # also when it failed: it may have got far enough
            self.acted_once.add(path)
        if seen.ok:
            return Ending("done", "answer", seen.text, seen.value)
        return Ending("failed", "tool_failures", seen.text, failure=seen.failure)

    # review

    async def _work(self, loop: AgentLoop) -> Ending:
        ending = await loop.run()
        if loop.acted_once:
            self.acted_once.add(loop.path)
        return ending

    async def _reviewed(self, job: _Job, subtask: Subtask, loop: AgentLoop) -> Ending:
        """Let a loop work, have a done result checked, and send it back while there are rounds left."""
        ending = await self._work(loop)
        review = loop.role.review
        if review is None and subtask.review:
            by = find_reviewer(self.context.roles.values())
            if by is None:
                failure = Failure(FailureKind.needs_person, "a review is asked for, and no role of the run reviews")
                return Ending("needs_review", "rejected", ending.answer, ending.value, failure)
            review = Review(by=by)
        if review is None:
            return ending
        feedback = ""
        for number in range(1, review.rounds + 1):
            if ending.status != "done":
                return ending
            reviewer = self.context.role(review.by)
            judgement = judge(await self._review(job, subtask, loop, ending, reviewer, number), reviewer)
            feedback = judgement.feedback
            self.context.log.add(
                ReviewDone(
                    path=loop.path,
                    id=subtask.id,
                    round=number,
                    accepted=judgement.accepted,
                    feedback=feedback,
                    confidence=judgement.confidence,
                )
            )
            if judgement.unsure:
                failure = Failure(FailureKind.needs_person, f"the reviewer is not sure enough: {feedback}")
                return Ending("needs_review", "needs_person", ending.answer, ending.value, failure)
            if judgement.accepted:
                return ending
            if number < review.rounds:
                loop.say(self.context.text("review_feedback", feedback=feedback))
                ending = await self._work(loop)
        failure = Failure(FailureKind.needs_person, f"not accepted in {review.rounds} reviews: {feedback}")
        return Ending("needs_review", "rejected", ending.answer, ending.value, failure)

    async def _review(
        self, job: _Job, subtask: Subtask, loop: AgentLoop, ending: Ending, reviewer: Role, number: int
    ) -> Ending:
        path = f"{loop.path}/@review{number}"
        checker = self.open(
            reviewer,
            path,
            goal=subtask.goal,
            output=verdict_schema(reviewer),
            parent=job.planner,
            ticket=job.ticket,
        )
        task = self.context.text(
            "review_task",
            goal=subtask.goal,
            expect=subtask.expect,
            constraints="\n".join(f"- {c}" for c in self.context.constraints),
        )
        checker.say(task)
        self._give(checker, [*job.needs, self._outcome(job, ending, 1)])
        return await checker.run()

    # the outcome

    def _outcome(self, job: _Job, ending: Ending, attempts: int) -> Outcome:
        status, stop_reason, failure = ending.status, ending.stop_reason, ending.failure
        value = ending.value if ending.value is not None else _json(ending.answer)
        if status == "done" and isinstance(value, dict) and to_result(value).error:
            status, stop_reason = "failed", "tool_failures"  # its structure counts, however cheerful the words
            failure = Failure(FailureKind.tool_error, f"the result itself says that it failed: {ending.answer[:300]}")
        return Outcome(
            id=job.subtask.id,
            path=job.path,
            role=job.subtask.performer,
            status=status,
            stop_reason=stop_reason,
            answer=ending.answer,
            value=ending.value,
            failure=failure,
            artifacts=tuple(a for a in self.context.workspace.artifacts() if within(a.by, job.path)),
            usage=self.context.ledger.usage(job.path),
            attempts=attempts,
            started=job.started,
            ended=self.context.log.now(),
        )

    def _roll_back(self, job: _Job) -> None:
        """Undo what a failed subtask changed in the workspace."""
        changes = [c for c in self.context.workspace.changes() if within(c.path, job.path)]
        undone = self.context.workspace.undo(changes)
        self.context.log.add(Warned(path=job.path, text=f"rolled back: {_told(undone)}"))


class _Values(Mapping[str, Json]):
    """What `${…}` in the arguments of a tool subtask can name."""

    def __init__(self, job: _Job, context: RunContext) -> None:
        plan = job.planner.plan
        outcomes = {id: plan.outcomes[plan.current(id)] for id in (*job.subtask.after, *plan.needs(job.subtask))}
        self.trees: dict[str, Any] = {
            "params": dict(context.params),
            "outcomes": {id: {"answer": o.answer, "value": o.value} for id, o in outcomes.items()},
        }

    def __getitem__(self, name: str) -> Json:
        node: Any = self.trees
        for part in name.split("."):
            if isinstance(node, list) and part.isdigit() and int(part) < len(node):
                node = node[int(part)]
            elif isinstance(node, Mapping):
                node = node[part]
            else:
                raise KeyError(name)
        return node

    def __iter__(self) -> Iterator[str]:
        return iter(self.trees)

    def __len__(self) -> int:
        return len(self.trees)


def within(path: str, root: str) -> bool:
    """Whether a loop is another one, an attempt of it, or somewhere below it."""
    return path == root or path.startswith((f"{root}/", f"{root}~"))


def _told(undone: Undone) -> str:
    parts = {"restored": undone.restored, "deleted": undone.deleted, "left alone": undone.left}
    return "; ".join(f"{what} {', '.join(files)}" for what, files in parts.items() if files) or "nothing was changed"


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _json(text: str) -> Json:
    """Read a text that is one JSON object; anything else is None."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
