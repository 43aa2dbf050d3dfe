"""The closed set of things that can happen in a run. Pure.

Each event is a small frozen value. `run`, `seq` and `at` are stamped when it enters the log. Lasting events are
numbered from 1 within their run; passing ones (`seq` 0) reach subscribers only and are never stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal, Union

from orchestrator.failure import Failure, StopReason
from orchestrator.messages import Delta, Message, Usage
from orchestrator.results import Outcome, RunResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What all events share."""

    run: str = ""
    seq: int = 0
    """Number within the run, from 1; 0 for a passing event."""
    at: float = 0.0
    """Seconds since the epoch."""
    path: str = ""
    """Path of the loop it happened in."""
    key: str = ""
    """Address of the record, `path:turn:kind[.n]`, where it has one."""
    type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """A run begins; freezes what the run is. Its key is its session, by which the session's runs are found."""

    type: Literal["run.started"] = "run.started"
    goal: str
    root: str
    """Role of the root loop."""
    params: dict[str, Any]
    inputs: tuple[str, ...]
    workspace: str
    limits: dict[str, Any]
    roles: dict[str, Any]
    """Every role of the run by name, as `Role.model_dump()`."""
    tools: dict[str, Any]
    """`description` and `parameters` of every tool that a role of the run names."""
    models: dict[str, str]
    """Model name by key of `ori.yaml`."""
    windows: dict[str, int] = field(default_factory=dict)
    """Tokens of each model's window, by the same key."""
    order: dict[str, Any] = field(default_factory=dict)
    """The rest of what the run was asked to do, as `Order.frozen()`."""
    delegable: tuple[str, ...] = ()
    """Roles that planners may use."""
    read_only: tuple[str, ...] = ()
    """Files of the workspace that no loop may change."""
    scenario: str | None = None
    session: str | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(Event):
    """A run is over."""

    type: Literal["run.ended"] = "run.ended"
    result: RunResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed(Event):
    """A run that was interrupted, or had ended, goes on."""

    type: Literal["run.resumed"] = "run.resumed"
    reused: int
    """Finished model and tool calls that are not made again."""
    again: int
    """Calls that were begun, and are made anew."""
    paid_twice: int
    """Model calls among them, which the model's server may have finished, and billed."""
    changed: tuple[str, ...] = ()
    """Files of the workspace that are not as the log says."""
    message: str | None = None
    """What the user added."""
    limits: dict[str, Any] = field(default_factory=dict)
    """With the fields below: what loops that begin from now on are, where today's files are used."""
    roles: dict[str, Any] = field(default_factory=dict)
    tools: dict[str, Any] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    delegable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProposed(Event):
    """A planner called `delegate`."""

    type: Literal["plan.proposed"] = "plan.proposed"
    plan: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRejected(Event):
    """A proposed plan has faults; they were told back."""

    type: Literal["plan.rejected"] = "plan.rejected"
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAdded(Event):
    """Subtasks were added to a planner's plan."""

    type: Literal["plan.added"] = "plan.added"
    subtasks: tuple[dict[str, Any], ...]
    """The new ones, as `Subtask.model_dump(exclude_unset=True)`: a fallback whose value is not set has none."""
    asked: tuple[tuple[str, ...], ...] = ()
    """Ids whose outcomes each of the calls gets."""
    reused: tuple[str, ...] = ()
    """Ids that were named again and whose results stand."""
    replaced: dict[str, str] = field(default_factory=dict)
    """New id by the id that it replaces."""
    mended: tuple[str, ...] = ()
    """What was put right without asking, a sentence each."""
    constraints: tuple[str, ...] = ()
    """Words of the goal that every worker is given from now on."""
    formatted_goal: dict[str, Any] | None = None
    template: str | None = None


Way = Literal["first", "again", "fallback"]
"""What an attempt at a subtask is: the first one, the same again, or what the plan names for when that fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReopened(Event):
    """Subtasks that have ended are tried again."""

    type: Literal["plan.reopened"] = "plan.reopened"
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskStarted(Event):
    """A subtask got its slot and works."""

    type: Literal["subtask.started"] = "subtask.started"
    id: str
    role: str
    goal: str
    attempt: int = 1
    way: Way = "first"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopClosing(Event):
    """A loop has reached a limit and is asked to sum up."""

    type: Literal["loop.closing"] = "loop.closing"
    stop_reason: StopReason
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskWaiting(Event):
    """A subtask waits for a person and holds no slot."""

    type: Literal["subtask.waiting"] = "subtask.waiting"
    id: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskEnded(Event):
    """A subtask ended."""

    type: Literal["subtask.ended"] = "subtask.ended"
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageAppended(Event):
    """A message entered the conversation of the loop at `path`. The only place where its text is stored."""

    type: Literal["message.appended"] = "message.appended"
    message: Message
    hash: str
    """Chained over the conversation so far: equal hashes mean equal conversations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCalled(Event):
    """A request goes to a model."""

    type: Literal["model.called"] = "model.called"
    model: str
    messages: int
    """How many of the conversation's messages it carries."""
    hash: str
    """Of the conversation at that point."""
    tool_choice: str = "auto"
    turn: int = 0
    system: int = 0
    """Estimated tokens of the system prompt."""
    history: int = 0
    """Estimated tokens of the messages behind it."""
    tools: int = 0
    """Estimated tokens of the offered tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReplied(Event):
    """A model answered; the text itself is in the `message.appended` that follows with the same key."""

    type: Literal["model.replied"] = "model.replied"
    model: str
    """The model that says it answered."""
    finish_reason: str
    usage: Usage
    seconds: float
    observed: str = ""
    """Hash of the observations since the reply before; a replay compares it."""
    replayed: bool = False
    """The reply comes from a recording; no tokens were paid."""
    content: str = ""
    """The text of a reply that enters no conversation, such as a summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFailed(Event):
    """A model call failed for good."""

    type: Literal["model.failed"] = "model.failed"
    failure: Failure
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted(Event):
    """A tool call is about to run: the intent."""

    type: Literal["tool.started"] = "tool.started"
    call_id: str
    name: str
    arguments: str
    effect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReturned(Event):
    """A tool call has its observation; the text itself is in a `message.appended`."""

    type: Literal["tool.returned"] = "tool.returned"
    call_id: str
    name: str
    ok: bool
    seconds: float
    characters: int
    """Length of the whole observation."""
    cut: str | None = None
    """`m of n characters` when the conversation holds only a part."""
    handle: str | None = None
    """Where the whole of a cut observation can be read."""
    failure: Failure | None = None
    counted: bool = True
    """Whether repetition and failure counters see it."""
    final: bool = False
    """The loop ends with it."""
    value: Any = None
    """What programs read, where one does: a result that is final, or of a subtask without a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted(Event):
    """A part of a conversation was replaced to fit the window. Says what it became: see `Conversation.compact`."""

    type: Literal["compacted"] = "compacted"
    shortened: tuple[tuple[int, str], ...] = ()
    """Messages that keep their place with less content: index and what is left. Their images are gone."""
    start: int = 0
    end: int = 0
    """Messages of this range, counted before the change, were replaced by what they `became`: a number stands for the
    message at that index, which stays."""
    became: tuple[int | Message, ...] = ()
    tokens_before: int
    """Estimate of the whole prompt."""
    tokens_after: int
    hash: str
    """Of the conversation that it became."""

    @property
    def messages(self) -> int:
        """How many messages were shortened or replaced."""
        return len(self.shortened) + self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableSet(Event):
    """A variable of the run has a new value."""

    type: Literal["variable.set"] = "variable.set"
    name: str
    value: Any
    deleted: bool = False
    sources: tuple[str, ...] = ()
    """What strangers may have written that the value may come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactStored(Event):
    """A file of the workspace was written, overwritten or deleted."""

    type: Literal["artifact.stored"] = "artifact.stored"
    file: str
    """Relative to the workspace."""
    size: int | None
    """Bytes; None: it was deleted."""
    sha256: str | None
    media_type: str
    before: str | None = None
    """SHA-256 of the kept content that was there before this run's first change; None: see `created`."""
    created: bool = False
    """The file did not exist before."""
    sources: tuple[str, ...] = ()
    """What strangers may have written that its content may come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesUndone(Event):
    """What loops changed in the workspace was put back."""

    type: Literal["changes.undone"] = "changes.undone"
    files: tuple[str, ...]
    """All that are as they were before."""
    loops: tuple[str, ...]
    """Paths of the loops whose changes these were."""
    restored: tuple[str, ...]
    """Files that have their old content again."""
    deleted: tuple[str, ...]
    """Files that were created, and are gone now."""
    left: tuple[str, ...]
    """Files that were left alone, each with the reason, as `report.md: …`."""
    calls: tuple[str, ...]
    """What cannot be undone: calls that must not be repeated, each with its arguments."""

    def __str__(self) -> str:
        parts = {"restored": self.restored, "deleted": self.deleted, "left alone": self.left}
        parts["cannot be undone"] = self.calls
        return "; ".join(f"{what} {', '.join(of)}" for what, of in parts.items() if of) or "nothing was changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewDone(Event):
    """A reviewer judged a result."""

    type: Literal["review.done"] = "review.done"
    id: str
    round: int
    accepted: bool
    feedback: str
    confidence: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAsked(Event):
    """A call waits for a person's word."""

    type: Literal["approval.asked"] = "approval.asked"
    name: str
    """The tool, or `result` where a subtask's result waits."""
    arguments: str
    """JSON text of the call's arguments, or the result."""
    parameters: dict[str, Any] | None = None
    """JSON Schema of the arguments; None: there are none that a person could change."""
    why: str
    expects: Literal["approval", "answer", "either"] = "approval"
    """`either`: an answer takes the place of what would come of the call."""
    destination: str = ""
    """Where data would go."""
    sources: tuple[str, ...] = ()
    """What strangers may have written that the loop has read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalTaken(Event):
    """A word from outside (approve, deny, answer, cancel) was taken."""

    type: Literal["signal.taken"] = "signal.taken"
    signal: str
    by: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetReached(Event):
    """A limit of the run, or of a loop and all below it, leaves no room for another model call."""

    type: Literal["budget.reached"] = "budget.reached"
    limit: str
    """As `tokens: 1200 of 1000`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerChanged(Event):
    """The circuit breaker of an endpoint changed its state."""

    type: Literal["breaker.changed"] = "breaker.changed"
    endpoint: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Event):
    """Something a person may want to know; the run goes on."""

    type: Literal["warned"] = "warned"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta(Event):
    """Passing: text of an answer as it arrives."""

    type: Literal["text.delta"] = "text.delta"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningDelta(Event):
    """Passing: reasoning as it arrives."""

    type: Literal["reasoning.delta"] = "reasoning.delta"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDelta(Event):
    """Passing: arguments of a tool call as the model writes them."""

    type: Literal["call.delta"] = "call.delta"
    name: str
    """The tool."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProgress(Event):
    """Passing: a running tool says how far it is."""

    type: Literal["tool.progress"] = "tool.progress"
    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaReset(Event):
    """Passing: the deltas since the last `model.called` of this key are withdrawn."""

    type: Literal["delta.reset"] = "delta.reset"


def delta_event(delta: Delta, path: str, key: str) -> Event:
    """Return the event that a piece of a model's answer is."""
    match delta.kind:
        case "text":
            return TextDelta(path=path, key=key, text=delta.text)
        case "reasoning":
            return ReasoningDelta(path=path, key=key, text=delta.text)
        case "call":
            return CallDelta(path=path, key=key, name=delta.name, text=delta.text)
        case "reset":
            return DeltaReset(path=path, key=key)


PASSING: tuple[type[Event], ...] = (TextDelta, ReasoningDelta, CallDelta, ToolProgress, DeltaReset)
"""Events without a number."""

AnyEvent = Union[  # noqa: UP007 - built at run time for the decoder
    RunStarted,
    RunEnded,
    RunResumed,
    PlanProposed,
    PlanRejected,
    PlanAdded,
    PlanReopened,
    SubtaskStarted,
    LoopClosing,
    SubtaskWaiting,
    SubtaskEnded,
    MessageAppended,
    ModelCalled,
    ModelReplied,
    ModelFailed,
    ToolStarted,
    ToolReturned,
    Compacted,
    VariableSet,
    ArtifactStored,
    ChangesUndone,
    ReviewDone,
    ApprovalAsked,
    SignalTaken,
    BudgetReached,
    BreakerChanged,
    Warned,
    TextDelta,
    ReasoningDelta,
    CallDelta,
    ToolProgress,
    DeltaReset,
]

_ENVELOPE = frozenset(f.name for f in fields(Event))


def particulars(event: Event) -> dict[str, Any]:
    """Return what only this kind of event holds, by field."""
    return {name: getattr(event, name) for name in event.__dataclass_fields__ if name not in _ENVELOPE}
