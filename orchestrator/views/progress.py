"""A run as it stands: the fold of its events that the live tree and `ori show` draw. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from orchestrator.events import (
    ApprovalAsked,
    BreakerChanged,
    BudgetReached,
    ChangesUndone,
    Compacted,
    DeltaReset,
    Event,
    MessageAppended,
    ModelCalled,
    ModelFailed,
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
    SubtaskWaiting,
    TextDelta,
    ToolProgress,
    ToolReturned,
    ToolStarted,
    Warned,
)
from orchestrator.journal import DONE_BY
from orchestrator.messages import Usage
from orchestrator.results import Outcome, RunResult
from orchestrator.views.node import Call, Node, Saved, Turn


@dataclass(slots=True)
class Progress:
    """The state of one run, as far as its events tell it."""

    run: str = ""
    goal: str = ""
    workspace: str = ""
    scenario: str | None = None
    models: dict[str, str] = field(default_factory=dict)
    root: Node = field(default_factory=lambda: Node("", ""))
    by_role: dict[str, Usage] = field(default_factory=dict)
    prompts: Counter[str] = field(default_factory=Counter)
    """Estimated tokens of all prompts: `system`, `history`, `tools`."""
    saved: Saved = field(default_factory=Saved)
    warnings: list[str] = field(default_factory=list)
    questions: dict[str, ApprovalAsked] = field(default_factory=dict)
    """What waits for a person, by key."""
    result: RunResult | None = None
    now: float = 0.0
    """When the latest event happened, in seconds since the epoch."""
    changes: int = 0
    """How many events came."""
    _nodes: dict[str, Node] = field(default_factory=dict)
    _roles: dict[str, Any] = field(default_factory=dict)

    def apply(self, event: Event) -> None:
        """Take the next event in."""
        before, self.now = self.now, max(self.now, event.at)
        self.changes += 1
        match event:
            case RunStarted() | RunEnded():
                self._run(event)
            case RunResumed():
                self._resume(event, before)
            case PlanAdded() | PlanRejected() | PlanReopened():
                self._plan(event)
            case SubtaskStarted() | SubtaskWaiting() | SubtaskEnded() | ReviewDone():
                self._subtask(event)
            case ModelCalled() | ModelReplied() | ModelFailed() | TextDelta() | DeltaReset() | MessageAppended():
                self._model(event)
            case ToolStarted() | ToolReturned() | ToolProgress():
                self._tool(event)
            case Compacted():
                self._compacted(event)
            case ApprovalAsked():
                self.questions[event.key] = event
            case SignalTaken():
                self._heed(event)
            case BudgetReached(limit=limit):
                self.warnings.append(f"budget reached, {limit}")
            case BreakerChanged(endpoint=endpoint, state=state):
                self.warnings.append(f"endpoint {endpoint}: breaker {state}")
            case Warned(text=text):
                self.warnings.append(text)
            case ChangesUndone():
                self.warnings.append(f"{event.path} rolled back: {event}")

    def _compacted(self, event: Compacted) -> None:
        node, before, after = self.node(event.path), event.tokens_before, event.tokens_after
        became = [f"{len(event.shortened)} shortened"] if event.shortened else []
        if gone := event.end - event.start - sum(isinstance(m, int) for m in event.became):
            became.append(f"{gone} summed up")
        turn = event.key.rsplit(":", 2)[1]
        node.notes.append(f"turn {turn}: messages {', '.join(became)}: {before:,} → {after:,} tokens")
        for saved in (node.saved, self.saved):
            saved.compactions += 1
            saved.tokens += before - after

    def node(self, path: str) -> Node:
        """Return the node of a path, whatever the attempts on the way; a new one hangs below its parent."""
        place, _ = _split(path)
        if place not in self._nodes:
            parent, _, name = place.rpartition("/")
            node = self._nodes[place] = Node(place, name.replace("@review", "review "))
            if not parent:
                self.root = node
                return node
            above = self.node(parent)
            above.children[name] = node
            if name.startswith("@review"):
                node.role = self._reviewer(above.role)
        return self._nodes[place]

    def _reviewer(self, role: str) -> str:
        """Return who reviews a role's results; where it names nobody, that is the role whose result is a verdict."""
        review = self._roles.get(role, {}).get("review")
        judges = (
            name for name, of in self._roles.items() if "accepted" in (of.get("output") or {}).get("properties", {})
        )
        return review["by"] if review else next(judges, "")

    def stop(self, state: str, at: float) -> None:
        """Say how what is still open ended, when no event will."""
        for node in self.root.walk():
            if node.state in ("running", "waiting"):
                node.state, node.ended = state, at

    def _resume(self, event: RunResumed, left: float) -> None:
        self.result, self.root.state = None, "running"
        for node in self.root.walk():
            if node is self.root or (node.started is not None and node.ended is None):
                node.go_on(event.at, left)
        self.warnings.append(_resumed(event))

    def _run(self, event: RunStarted | RunEnded) -> None:
        if isinstance(event, RunStarted):
            self.run, self.goal, self.workspace = event.run, event.goal, event.workspace
            self.scenario, self.models, self._roles = event.scenario, event.models, event.roles
            self.node(event.path or event.root)
            self.root.role, self.root.state, self.root.started = event.root, "running", event.at
        else:
            self.result = event.result
            self.stop("cancelled", event.at)
            self.root.state, self.root.ended = event.result.status, event.at
            self.root.result = _result(event.result)

    def _plan(self, event: PlanAdded | PlanRejected | PlanReopened) -> None:
        planner = self.node(event.path)
        if isinstance(event, PlanReopened):
            for id in event.ids:
                node = self.node(f"{event.path}/{id}")
                node.state, node.result = "pending", ""
            return
        if isinstance(event, PlanRejected):
            planner.notes += [f"plan sent back: {fault}" for fault in event.faults]
            return
        planner.notes += [f"plan mended: {mend}" for mend in event.mended]
        for subtask in event.subtasks:
            node = self.node(f"{event.path}/{subtask['id']}")
            node.role = subtask.get("role") or subtask.get("tool") or ""
            node.goal, node.after = subtask.get("goal") or "", tuple(subtask.get("after") or ())
            node.state, node.result = "pending", ""
        for old, new in event.replaced.items():
            planner.notes.append(f"{new} stands in for {old}")

    def _subtask(self, event: SubtaskStarted | SubtaskWaiting | SubtaskEnded | ReviewDone) -> None:
        node = self.node(event.path)
        match event:
            case SubtaskStarted():
                node.role, node.goal, node.attempt = event.role, event.goal, event.attempt
                node.state, node.result = "running", ""
                node.go_on(event.at)
            case SubtaskWaiting(why=why):
                node.state, node.result = "waiting", why
            case SubtaskEnded(outcome=outcome):
                node.role = node.role or outcome.role
                node.state, node.ended = outcome.status, event.at
                node.attempt, node.result = outcome.attempts, _result(outcome)
            case ReviewDone(round=number, accepted=accepted, feedback=feedback):
                review = self.node(f"{node.path}/@review{number}")
                review.state, review.ended = "done" if accepted else "sent_back", event.at
                review.result = feedback or ("accepted" if accepted else "without a word")

    def _model(
        self, event: ModelCalled | ModelReplied | ModelFailed | TextDelta | DeltaReset | MessageAppended
    ) -> None:
        if not event.key or (isinstance(event, MessageAppended) and event.message.role != "assistant"):
            return
        turn = self._turn(event)
        match event:
            case ModelCalled(model=model):
                self.prompts.update(system=event.system, history=event.history, tools=event.tools)
                turn.model, turn.text, turn.replied, turn.failed = model, "", None, None
            case TextDelta(text=text):
                turn.text += text
            case DeltaReset():
                turn.text = ""
            case MessageAppended(message=message):
                turn.text = message.content
            case ModelFailed():
                turn.failed = event
            case ModelReplied(usage=usage):
                turn.replied = event
                self._spend(event.path, usage)

    def _tool(self, event: ToolStarted | ToolReturned | ToolProgress) -> None:
        calls = self._turn(event).calls
        match event:
            case ToolStarted():
                calls[event.key] = Call(event.name, event.arguments)
            case ToolReturned():
                self.questions.pop(event.key, None)
                calls.setdefault(event.key, Call(event.name, "")).returned = event
                if event.cut:
                    left_out = event.characters - int(event.cut.partition(" ")[0])
                    for saved in (self.node(event.path).saved, self.saved):
                        saved.cuts += 1
                        saved.characters += left_out
            case ToolProgress() if event.key in calls:
                calls[event.key].said = event.text

    def _heed(self, event: SignalTaken) -> None:
        self.questions.pop(event.key, None)
        node = self.node(event.path) if event.path else self.root
        node.notes.append(" ".join((f"{DONE_BY[event.signal]} {event.by}", *map(_said, event.data.values()))))
        if node.state == "waiting":
            node.state, node.result = "running", ""

    def _turn(self, event: Event) -> Turn:
        """Return the turn that a key `path:turn:kind` speaks of."""
        node = self.node(event.path)
        place, number, _ = event.key.rsplit(":", 2)
        _, attempt = _split(place)
        if node.state != "running" and isinstance(event, ModelCalled | ToolStarted):
            node.state, node.result = "running", ""
            node.go_on(event.at)
        node.started = event.at if node.started is None else node.started
        return node.turns.setdefault(f"{place}:{number}", Turn(attempt, int(number)))

    def _spend(self, path: str, usage: Usage) -> None:
        role = self.node(path).role
        self.by_role[role] = self.by_role.get(role, Usage()) + usage
        steps = path.split("/")
        for depth in range(1, len(steps) + 1):
            node = self.node("/".join(steps[:depth]))
            node.usage += usage


def _resumed(event: RunResumed) -> str:
    """Say what an interruption cost."""
    paid = f", {event.paid_twice} of them possibly paid twice" if event.paid_twice else ""
    text = f"resumed: {event.reused} finished call{'s' * (event.reused != 1)} reused, {event.again} made anew{paid}"
    return f"{text}; changed meanwhile: {', '.join(event.changed)}" if event.changed else text


def _split(path: str) -> tuple[str, int]:
    """Tell a path's place in the tree from the attempt of its last step: `ori/a~2/b~3` → `ori/a/b`, 3."""
    attempt = re.search(r"~(\d+)$", path)
    return re.sub(r"~\d+(?=/|$)", "", path), int(attempt[1]) if attempt else 1


def _result(end: Outcome | RunResult) -> str:
    """What came of it: the failure, else the answer, else why it stopped."""
    if end.failure:
        return end.failure.message
    if end.answer:
        return end.answer
    return f"{len(end.artifacts)} files" if end.artifacts else end.stop_reason


def _said(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
