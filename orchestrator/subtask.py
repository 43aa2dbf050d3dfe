"""Runs one subtask: a loop or a tool, its attempts, its review and its fallback, and makes the outcome."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from orchestrator import carry
from orchestrator.answers import Ending, by_outcomes
from orchestrator.context import RunContext, record_key, within
from orchestrator.conversation import Conversation
from orchestrator.delegate import Planner
from orchestrator.errors import JournalError, LoopStopped, RunStopped
from orchestrator.eventloops import is_stray_cancellation
from orchestrator.events import ApprovalAsked, ReviewDone, SubtaskEnded, SubtaskStarted, Warned, Way
from orchestrator.failure import RULES, Failure, FailureKind, StopReason
from orchestrator.fences import show_outcome, sources_of
from orchestrator.gate import Gate
from orchestrator.loop import AgentLoop, Given
from orchestrator.messages import Json, ToolCall
from orchestrator.opening import Opening
from orchestrator.plan import Fallback, Subtask
from orchestrator.results import Outcome
from orchestrator.review import find_reviewer, is_unsure, judge, verdict_schema
from orchestrator.role import Review, Role
from orchestrator.schedule import Ticket
from orchestrator.text.placeholders import fill_tree, names, texts
from orchestrator.toolbox import Toolbox
from orchestrator.undo import undo_below

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
    def may_take_from(self) -> list[str]:
        """Paths of the loops whose files it may overwrite: its own attempts, its needs, and what it stands in for."""
        replaced = [f"{self.planner.path}/{id}" for id in self.planner.plan.stood_in_for(self.subtask.id)]
        return [self.path, *replaced, *(need.path for need in self.needs)]

    @property
    def needs(self) -> list[Outcome]:
        """The outcomes it comes after."""
        plan = self.planner.plan
        return [plan.outcomes[need] for need in plan.needs(self.subtask)]


class Workers:
    """Runs subtasks for the planners of one run."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.opening = Opening(context, self.execute)

    async def execute(self, planner: Planner, subtask: Subtask, ticket: Ticket) -> Outcome:
        """Run a subtask to its outcome.

        Raises:
            RunStopped: The run as a whole cannot go on.
            JournalError: The log cannot be written.
        """
        path = f"{planner.path}/{subtask.id}"
        started = self.context.past.first.get(path) or self.context.log.now()
        job = _Job(planner, subtask, path, ticket, started)
        try:
            ending, attempts = await self._tries(job)
        except (RunStopped, JournalError):
            raise
        except (Exception, asyncio.CancelledError) as error:  # a fault of ours must not take the siblings down
            if isinstance(error, asyncio.CancelledError) and not is_stray_cancellation():
                raise
            self.context.log.add(Warned(path=job.path, text=self.context.redact(traceback.format_exc())))
            failure = Failure(FailureKind.bug, self.context.redact(f"{type(error).__name__}: {error}"))
            ending, attempts = Ending("failed", "bug", failure=failure), 1
        outcome = self._outcome(job, ending, attempts)
        self.context.log.add(SubtaskEnded(path=job.path, outcome=outcome))
        await self.context.log.commit()  # before anything builds on it
        return outcome

    async def _tries(self, job: _Job) -> tuple[Ending, int]:
        """Try once, again where that may help, and the fallback where there is one."""
        begun = self.context.past.attempts.get(job.path)
        count, way = (begun.attempt, begun.way) if begun else (self.context.past.tried.get(job.path, 0) + 1, "first")
        ending = await self._try(job, way, count, begun=begun is not None)
        while next_way := self._next_way(job, way, ending):
            way, count = next_way, count + 1
            ending = await self._try(job, way, count)
        if ending.status != "failed":
            return ending, count
        on_failure = job.subtask.on_failure
        if isinstance(on_failure, Fallback) and way != "fallback":
            return Ending("done", "answer", _as_text(on_failure.value), on_failure.value), count
        if on_failure == "needs_review":
            ending = Ending("needs_review", "needs_person", ending.answer, ending.value, ending.failure)
        elif on_failure == "rollback":
            self._roll_back(job)
        return ending, count

    def _next_way(self, job: _Job, way: Way, ending: Ending) -> Way | None:
        """Return what is tried after an attempt, if anything is."""
        if ending.status != "failed":
            return None
        on_failure = job.subtask.on_failure
        if way == "first" and (on_failure == "retry" or self._may_go_better(job, ending)):
            return "again"
        names_value = isinstance(on_failure, Fallback) and "value" in on_failure.model_fields_set
        return "fallback" if isinstance(on_failure, Fallback) and way != "fallback" and not names_value else None

    def _may_go_better(self, job: _Job, ending: Ending) -> bool:
        again = ending.failure is not None and RULES[ending.failure.kind].again
        return again and not any(within(call.path, job.path) for call in self.context.once)

    async def _try(self, job: _Job, way: Way, count: int, *, begun: bool = False) -> Ending:
        """Make one attempt, or go on with the one that was begun before the run was interrupted."""
        path = job.path if count == 1 else f"{job.path}~{count}"
        subtask = _in_place_of(job.subtask) if way == "fallback" else job.subtask
        if not begun:
            self.context.log.add(
                SubtaskStarted(
                    path=path,
                    id=subtask.id,
                    role=subtask.performer,
                    goal=subtask.goal or _as_text(subtask.args),
                    attempt=count,
                    way=way,
                )
            )
        if subtask.tool is not None:
            return await self._call_tool(job, subtask, path)
        role = self.context.role(subtask.role or "")
        memories = [] if path in self.context.past.loops else await carry.recall(self.context, path, subtask.goal)
        loop = await self.opening.open(
            role,
            path,
            goal=subtask.goal,
            output=subtask.output,
            parent=job.planner,
            ticket=job.ticket,
            needs=job.may_take_from,
        )
        if not loop.begun:
            loop.say(self._task(subtask), job.planner.sources)
            self._give(loop, job.needs)
            loop.give(*memories)
        async with loop.toolbox.resources:
            ending = await self._reviewed(job, subtask, loop)
        return replace(ending, untrusted=tuple(loop.conversation.sources))

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
            each = int(loop.model.window * NEEDS_SHARE) // len(needs)
            shown = "\n\n".join(show_outcome(self.context, need, each, NEED_CHARACTERS) for need in needs)
            loop.give(Given(self.context.text("worker_results"), shown, sources_of(needs)))

    # a tool without a model

    async def _call_tool(self, job: _Job, subtask: Subtask, path: str) -> Ending:
        name = subtask.tool or ""
        tool = self.context.tool(name)
        if why := tool.missing():
            return Ending("failed", "tool_failures", failure=Failure(FailureKind.tool_error, why))
        values = _Values(job, self.context)
        if unknown := [n for _, text in texts(subtask.args) for n in names(text) if n not in values]:
            message = f"the arguments name {', '.join(f'${{{n}}}' for n in unknown)}, which the outcomes do not have"
            return Ending("failed", "tool_failures", failure=Failure(FailureKind.tool_error, message))
        arguments = fill_tree(subtask.args, values)
        conversation = Conversation()
        conversation.sources |= dict.fromkeys((*job.planner.sources, *sources_of(job.needs)))
        workspace = self.opening.workspace(path, job.may_take_from, conversation)
        shift = job.planner.shift.below(None, ticket=job.ticket)
        gate = Gate(self.context, path, shift)
        tools, window = {name: tool}, job.planner.window
        toolbox = Toolbox(self.context, path, tools, workspace, conversation, gate, window=window, for_programs=True)
        call = ToolCall("call", name, orjson.dumps(arguments).decode())
        try:
            async with shift.limited(), toolbox.resources:
                [seen] = await toolbox.run([call], 1)
        except LoopStopped as stopped:
            return Ending("failed", stopped.stop_reason, failure=stopped.failure)
        sources = tuple(conversation.sources)
        if seen.ok:
            return Ending("done", "answer", seen.text, seen.event.value, untrusted=sources)
        return Ending("failed", "tool_failures", seen.text, failure=seen.event.failure, untrusted=sources)

    # review

    async def _work(self, loop: AgentLoop) -> Ending:
        """Let a loop run, and judge its ending by its structure: words alone do not make it a success."""
        ending = await loop.run()
        if planner := self.opening.planners.get(loop.path):
            ending = by_outcomes(ending, planner.plan, planner.rejected > 0)
        value = ending.value if ending.value is not None else _json(ending.answer)
        if ending.status == "done" and isinstance(value, dict) and False in (value.get("success"), value.get("ok")):
            failure = Failure(FailureKind.tool_error, f"the result itself says that it failed: {ending.answer[:300]}")
            return replace(ending, status="failed", stop_reason="tool_failures", failure=failure)
        return ending

    async def _reviewed(self, job: _Job, subtask: Subtask, loop: AgentLoop) -> Ending:
        """Let a loop work, have a done result checked, and send it back while there are rounds left."""
        ending = await self._work(loop)
        review = loop.role.review
        if review is None and subtask.review:
            by = find_reviewer(self.context.roles.values())
            if by is None:
                why = "a review is asked for, and no role of the run reviews"
                return await self._decided(loop, ending, "rejected", why)
            review = Review(by=by)
        if review is None:
            return ending
        rounds = self.context.past.reviews.get(loop.path, [])  # before the run was interrupted
        feedback = rounds[-1].feedback if rounds else ""
        reviewer = self.context.role(review.by)
        if rounds and rounds[-1].accepted:
            return await self._accepted(loop, ending, reviewer, feedback, rounds[-1].confidence)
        for number in range(len(rounds) + 1, review.rounds + 1):
            if ending.status != "done":
                return ending
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
            if judgement.accepted:
                return await self._accepted(loop, ending, reviewer, feedback, judgement.confidence)
            if number < review.rounds:
                loop.say(self.context.text("review_feedback", feedback=feedback))
                ending = await self._work(loop)
        return await self._decided(loop, ending, "rejected", f"not accepted in {review.rounds} reviews: {feedback}")

    async def _accepted(
        self, loop: AgentLoop, ending: Ending, reviewer: Role, feedback: str, confidence: float | None
    ) -> Ending:
        """Take a result that a reviewer accepted; a person decides where the reviewer is not sure enough."""
        if is_unsure(confidence, reviewer):
            return await self._decided(loop, ending, "needs_person", f"the reviewer is not sure enough: {feedback}")
        return ending

    async def _decided(self, loop: AgentLoop, ending: Ending, reason: StopReason, why: str) -> Ending:
        """Let a person accept a result, or put another one in its place; where nobody can be asked, it stays open."""
        people, key = self.context.people, record_key(loop.path, loop.turn, "person")
        question = ApprovalAsked(
            path=loop.path,
            key=key,
            name="result",
            arguments=self.context.redact(ending.answer or _as_text(ending.value)),
            why=why,
            expects="either",
            sources=tuple(loop.conversation.sources),
        )
        if people.reachable:
            people.ask(question)
            word = await loop.toolbox.gate.first({key: question})
            if word.kind == "approve":
                return replace(ending, status="done", stop_reason="answer", failure=None)
            if word.kind == "answer":
                return Ending("done", "answer", str(word.data["text"]), _json(str(word.data["text"])))
            why = f"{word.by} did not accept it: {word.data.get('why') or why}"
        failure = Failure(FailureKind.needs_person, why)
        return Ending("needs_review", reason, ending.answer, ending.value, failure)

    async def _review(
        self, job: _Job, subtask: Subtask, loop: AgentLoop, ending: Ending, reviewer: Role, number: int
    ) -> Ending:
        path = f"{loop.path}/@review{number}"
        checker = await self.opening.open(
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
        if not checker.begun:
            checker.say(task)
            work = replace(ending, untrusted=tuple(loop.conversation.sources))
            self._give(checker, [*job.needs, self._outcome(job, work, 1)])
        async with checker.toolbox.resources:
            return await checker.run()

    # the outcome

    def _outcome(self, job: _Job, ending: Ending, attempts: int) -> Outcome:
        return Outcome(
            id=job.subtask.id,
            path=job.path,
            role=job.subtask.performer,
            status=ending.status,
            stop_reason=ending.stop_reason,
            answer=ending.answer,
            value=ending.value,
            failure=ending.failure,
            untrusted=ending.untrusted,
            artifacts=tuple(a for a in self.context.workspace.changes.artifacts() if within(a.by, job.path)),
            usage=self.context.ledger.usage(job.path),
            attempts=attempts,
            started=job.started,
            ended=self.context.log.now(),
        )

    def _roll_back(self, job: _Job) -> None:
        """Undo what a failed subtask changed in the workspace."""
        self.context.log.add(undo_below([job.path], self.context.workspace.changes, self.context.once))


def _in_place_of(subtask: Subtask) -> Subtask:
    """Return what is done instead of a subtask that failed."""
    fallback = subtask.on_failure
    assert isinstance(fallback, Fallback)
    changes = {name: value for name in ("role", "goal") if (value := getattr(fallback, name)) is not None}
    return subtask.model_copy(update={**changes, "tool": None})


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
