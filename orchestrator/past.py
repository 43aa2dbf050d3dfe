"""Where an interrupted run stands: the fold of its events from which every loop, plan and counter goes on. Pure.

A new run has an empty past, and there is one code path for both: a loop continues a conversation, a planner a plan, the
ledger a sum. What a task writes between two of its waits is in the log as a whole or not at all (see `journal.sqlite`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from orchestrator.conversation import Conversation
from orchestrator.events import (
    ApprovalAsked,
    ArtifactStored,
    ChangesUndone,
    Compacted,
    Event,
    LoopClosing,
    MessageAppended,
    ModelCalled,
    ModelReplied,
    PlanAdded,
    PlanRejected,
    PlanReopened,
    ReviewDone,
    RunEnded,
    RunResumed,
    RunStarted,
    SignalTaken,
    SubtaskEnded,
    SubtaskStarted,
    ToolReturned,
    ToolStarted,
    VariableSet,
)
from orchestrator.messages import Json, Message, Reply, Usage
from orchestrator.plan import Plan, Subtask


class Returned(NamedTuple):
    """A tool call that has its observation."""

    event: ToolReturned
    message: Message
    """What entered the conversation."""


@dataclass(slots=True)
class TurnPast:
    """A reply of a model, and whether the loop has gone on from it."""

    number: int
    reply: Reply
    closing: LoopClosing | None
    """Why the loop was asked to sum up, if it was."""
    followed: Literal["", "note", "asked", "reply"] = ""
    """What came after its tools had answered; nothing: what follows from the turn is still open."""


@dataclass(slots=True)
class LoopPast:
    """What one loop said, saw and did."""

    began: float
    """Seconds since the epoch."""
    frozen: RunStarted | RunResumed
    """What roles and tools were when it began."""
    conversation: Conversation = field(default_factory=Conversation)
    turns: list[TurnPast] = field(default_factory=list)
    closing: LoopClosing | None = None


@dataclass(slots=True)
class PlanPast:
    """The plan of one planner."""

    plan: Plan = field(default_factory=Plan)
    open: PlanAdded | None = None
    """What was added last, while its outcomes have not been told."""
    reopened: tuple[str, ...] = ()
    """What is tried again, while its outcomes have not been told."""
    rejected: int = 0


@dataclass(slots=True)
class Past:
    """What happened in a run so far. Empty for a new run."""

    started: RunStarted | None = None
    message: str | None = None
    """What the user added, while it is not in a conversation."""
    frozen: RunStarted | RunResumed | None = None
    """Who said last what roles, tools, models and limits are."""
    ended: RunEnded | None = None
    loops: dict[str, LoopPast] = field(default_factory=dict)
    """By path; those of subtasks without a model hold their one observation."""
    plans: dict[str, PlanPast] = field(default_factory=dict)
    """By the path of the planner's loop."""
    attempts: dict[str, SubtaskStarted] = field(default_factory=dict)
    """The latest one of each subtask that has not ended, by the subtask's path."""
    tried: dict[str, int] = field(default_factory=dict)
    """How many attempts each subtask has had, by the subtask's path."""
    first: dict[str, float] = field(default_factory=dict)
    """When each subtask began, in seconds since the epoch."""
    reviews: dict[str, list[ReviewDone]] = field(default_factory=dict)
    """By the path of the loop that was reviewed."""
    intents: dict[str, ToolStarted] = field(default_factory=dict)
    """Tool calls without an observation, by key."""
    questions: dict[str, str] = field(default_factory=dict)
    """Paths of the loops that wait for a person's word, by key of the call; no word on it was acted on."""
    returned: dict[str, Returned] = field(default_factory=dict)
    """Tool calls with an observation, by key."""
    once: list[ToolStarted] = field(default_factory=list)
    """Calls that must not be repeated and were begun."""
    usage: dict[str, Usage] = field(default_factory=dict)
    """By path."""
    changes: list[ArtifactStored] = field(default_factory=list)
    variables: dict[str, VariableSet] = field(default_factory=dict)
    constraints: tuple[str, ...] = ()
    formatted_goal: dict[str, Json] | None = None
    said: dict[tuple[str, str], str] = field(default_factory=dict)
    """Answers to calls of the engine's own, which are no turns, by key and hash of the prompt."""
    replies: int = 0
    """Model calls that were answered."""
    seq: int = 0
    """Number of the last event."""
    at: float = 0.0
    """When it happened."""
    _asked: dict[str, str] = field(default_factory=dict)
    """Hash of the prompt by key of each model call."""
    _stretches: list[tuple[float, float]] = field(default_factory=list)
    """When somebody worked on the run, from and to."""

    @classmethod
    def of(cls, events: Sequence[Event]) -> Past:
        """Fold the events of a run, in their order."""
        past = cls()
        for event in events:
            past.apply(event)
        return past

    def active(self, since: float = 0.0) -> float:
        """Return for how many seconds somebody has worked on the run since a moment."""
        return sum(max(0.0, end - max(start, since)) for start, end in self._stretches)

    @property
    def asking(self) -> list[str]:
        """Paths of the loops that may have had a model call under way: what they were told last is not in the log.

        Also those whose tools were running: results ride with the next commit, which is that of the next reply.
        """
        if self.started is None or self.ended:
            return []
        held = {intent.path for intent in self.intents.values() if intent.effect == "once"}
        held |= {path for path, of in self.plans.items() if of.plan.subtasks.keys() - of.plan.outcomes.keys()}
        at_work = {self.started.root, *(attempt.path for attempt in self.attempts.values())}
        return [p for p, loop in self.loops.items() if self._judged(p) in at_work - held and self._goes_on(loop)]

    def _judged(self, path: str) -> str:
        """Return whose work a loop does: its own, or, for a review that has no verdict yet, that of the judged one."""
        of, _, number = path.partition("/@review")
        return path if number and int(number) <= len(self.reviews.get(of, ())) else of

    def _goes_on(self, loop: LoopPast) -> bool:
        return not loop.turns or bool(loop.turns[-1].followed or loop.turns[-1].reply.calls)

    def apply(self, event: Event) -> None:
        """Take the next event in."""
        if not self._stretches or isinstance(event, RunResumed):
            self._stretches.append((event.at, event.at))
        if not isinstance(event, ChangesUndone):  # which may come days later, when nobody works on the run
            self._stretches[-1] = (self._stretches[-1][0], event.at)
        self.seq, self.at = event.seq, event.at
        match event:
            case RunStarted():
                self.started = self.frozen = event
            case RunEnded():
                self.ended = event
            case RunResumed():
                self._resume(event)
            case MessageAppended() | LoopClosing() | Compacted():
                self._say(event)
            case ModelCalled(key=key, hash=hash):
                self._asked[key] = hash
            case ModelReplied():
                self._model(event)
            case ApprovalAsked(key=key, path=path):
                self.questions[key] = path
            case SignalTaken(key=key):
                self.questions.pop(key, None)
            case ToolStarted() | ToolReturned():
                self._tool(event)
            case PlanAdded() | PlanRejected() | PlanReopened():
                self._plan(event)
            case SubtaskStarted() | SubtaskEnded() | ReviewDone():
                self._subtask(event)
            case ArtifactStored():
                self.changes.append(event)
            case ChangesUndone(files=files, loops=loops):
                self.changes = [c for c in self.changes if not (c.file in files and c.path in loops)]
            case VariableSet():
                self.variables[event.name] = event
                if event.deleted:
                    del self.variables[event.name]

    def _loop(self, event: Event) -> LoopPast:
        if event.path not in self.loops:
            assert self.frozen is not None
            self.loops[event.path] = LoopPast(event.at, self.frozen)
        return self.loops[event.path]

    def _say(self, event: MessageAppended | LoopClosing | Compacted) -> None:
        loop = self._loop(event)
        match event:
            case LoopClosing():
                loop.closing = event
            case Compacted():
                loop.conversation.compact(event)
            case MessageAppended(message=message):
                loop.conversation.append(message, event.key)
                self._follow(loop, event, message)

    def _follow(self, loop: LoopPast, event: Event, message: Message) -> None:
        """See which turn a message belongs to, or that the loop has gone on from it."""
        if message.role == "tool":
            if returned := self.returned.get(event.key):
                self.returned[event.key] = returned._replace(message=message)
        elif message.role == "assistant":
            if loop.turns and event.key:  # an example has no key
                turn = loop.turns[-1]
                turn.reply = replace(turn.reply, content=message.content, calls=message.calls)
        elif loop.turns:
            turn = loop.turns[-1]
            if message.role == "note":
                turn.followed = turn.followed or "note"
            else:
                turn.followed, loop.closing = "asked", None
        if message.role == "user":
            self.message = None
        if message.role == "data" and (plan := self.plans.get(event.path)):
            plan.open, plan.reopened = None, ()  # the outcomes of a ready-made plan are given as data

    def _model(self, event: ModelReplied) -> None:
        self.replies += 1
        self.usage[event.path] = self.usage.get(event.path, Usage()) + event.usage
        _, number, kind = event.key.rsplit(":", 2)
        if kind != "model":
            self.said[event.key, self._asked.get(event.key, "")] = event.content
        else:
            loop = self._loop(event)
            reply = Reply(finish_reason=event.finish_reason, usage=event.usage, model=event.model)
            if loop.turns:
                loop.turns[-1].followed = loop.turns[-1].followed or "reply"
            loop.turns.append(TurnPast(int(number), reply, loop.closing))

    def _tool(self, event: ToolStarted | ToolReturned) -> None:
        if isinstance(event, ToolStarted):
            self.intents[event.key] = event
            if event.effect == "once":
                self.once.append(event)
            return
        self.intents.pop(event.key, None)
        self.returned[event.key] = Returned(event, Message("tool"))
        if plan := self.plans.get(event.path):
            plan.open = None

    def _resume(self, event: RunResumed) -> None:
        self.ended = None
        self.message = "\n\n".join(filter(None, [self.message, event.message])) or None  # one may not be heard yet
        self.frozen = event if event.roles else self.frozen
        if event.message and self.started and (plan := self.plans.get(self.started.root)):
            plan.open = None  # whatever was going on, the user wants something else

    def _plan(self, event: PlanAdded | PlanRejected | PlanReopened) -> None:
        past = self.plans.setdefault(event.path, PlanPast())
        if isinstance(event, PlanRejected):
            past.rejected += 1
            return
        if isinstance(event, PlanReopened):
            past.plan.reopen(event.ids)
            past.reopened = event.ids
            return
        new = tuple(Subtask.model_validate(subtask) for subtask in event.subtasks)
        past.plan.add(new)
        past.open, past.rejected = event, 0
        self.constraints = tuple(dict.fromkeys((*self.constraints, *event.constraints)))
        self.formatted_goal = self.formatted_goal or event.formatted_goal

    def _subtask(self, event: SubtaskStarted | SubtaskEnded | ReviewDone) -> None:
        match event:
            case SubtaskStarted():
                path = event.path.removesuffix(f"~{event.attempt}")
                self.attempts[path], self.tried[path] = event, event.attempt
                self.first.setdefault(path, event.at)
            case SubtaskEnded(path=path, outcome=outcome):
                self.attempts.pop(path, None)
                plan = self.plans[path.rpartition("/")[0]].plan
                plan.outcomes[outcome.id] = outcome
                plan.started.add(outcome.id)
                for key in [key for key in self.intents if key.startswith((f"{path}:", f"{path}/", f"{path}~"))]:
                    del self.intents[key]  # it was stopped while they ran
            case ReviewDone():
                self.reviews.setdefault(event.path, []).append(event)
