"""What the tree of a run is made of: a node for each subtask and review, its turns, and their tool calls. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from orchestrator.events import ModelFailed, ModelReplied, ToolReturned
from orchestrator.messages import Usage


@dataclass(slots=True)
class Call:
    """One tool call."""

    name: str
    arguments: str
    returned: ToolReturned | None = None
    """None: it still runs."""
    said: str = ""
    """How far it says it is."""


@dataclass(slots=True)
class Turn:
    """One model call, and the tool calls it asked for."""

    attempt: int
    number: int
    model: str = ""
    text: str = ""
    """What the model wrote so far."""
    replied: ModelReplied | None = None
    failed: ModelFailed | None = None
    calls: dict[str, Call] = field(default_factory=dict)

    @property
    def doing(self) -> str:
        """What happens in it right now."""
        running = [call for call in self.calls.values() if call.returned is None]
        if running:
            return ", ".join(f"{call.name}: {call.said}" if call.said else call.name for call in running)
        if self.replied or self.failed:
            return ""
        return f"writes ({len(self.text):,} characters)" if self.text else "thinks"


@dataclass(slots=True)
class Saved:
    """What was kept out of prompts so that they fit."""

    cuts: int = 0
    """Results that were too long to enter a conversation whole."""
    characters: int = 0
    """Of them, left out."""
    compactions: int = 0
    tokens: int = 0
    """By which they made prompts shorter, as estimated."""

    def __str__(self) -> str:
        cuts = f"results cut {self.cuts} times, by {self.characters:,} characters" if self.cuts else ""
        compacted = f"compacted {self.compactions} times, by {self.tokens:,} tokens" if self.compactions else ""
        return "; ".join(filter(None, (cuts, compacted)))


@dataclass(slots=True)
class Node:
    """One place of the tree: the root's loop, a subtask, or a review. Attempts of a subtask share it."""

    path: str
    id: str
    role: str = ""
    goal: str = ""
    after: tuple[str, ...] = ()
    state: str = "pending"
    """`pending`, `running`, `waiting`, or how it ended."""
    attempt: int = 1
    started: float | None = None
    """Seconds since the epoch; later by the time that it lay still."""
    ended: float | None = None
    result: str = ""
    """What came of it, or why it waits or failed."""
    usage: Usage = Usage()
    """Of this node and everything below it."""
    turns: dict[str, Turn] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Plans sent back or mended, verdicts of reviewers, what became of a full window."""
    saved: Saved = field(default_factory=Saved)
    children: dict[str, Node] = field(default_factory=dict)

    @property
    def open(self) -> bool:
        """It has not ended."""
        return self.state in ("pending", "running", "waiting")

    def doing(self) -> str:
        """Say what it does right now, as `turn 2: query_table`."""
        turn = next(reversed(self.turns.values()), None)
        parts = [f"attempt {self.attempt}"] if self.attempt > 1 else []
        if turn and turn.number:
            parts.append(f"turn {turn.number}")
        place = ", ".join(parts)
        doing = turn.doing if turn else ""
        return f"{place}: {doing}" if place and doing else place or doing

    def go_on(self, at: float, left: float | None = None) -> None:
        """Begin, or begin again: the time since it ended, or was left by everybody, is none of its own."""
        left = self.ended or left
        if self.started is None:
            self.started = at
        elif left is not None:
            self.started += max(0.0, at - left)
        self.ended = None

    def walk(self) -> Iterator[Node]:
        """Yield this node and all below it."""
        yield self
        for child in self.children.values():
            yield from child.walk()
