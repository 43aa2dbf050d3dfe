"""One tool call: on its way to the tool, and what the model gets of it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.events import ApprovalAsked
from orchestrator.failure import Failure, FailureKind
from orchestrator.messages import Json, Message, ToolCall
from orchestrator.models.replay import ToolLine
from orchestrator.policy import destinations
from orchestrator.tool import Tool, ToolResult


@dataclass(frozen=True, slots=True)
class Observation:
    """What came of one call."""

    key: str
    """Address of the call's record."""
    call: ToolCall
    text: str
    ok: bool
    message: Message
    """As it enters the conversation."""
    value: Json = None
    final: bool = False
    counted: bool = True
    """Whether repetition and failure counters see it."""
    failure: Failure | None = None

    @property
    def untrusted(self) -> tuple[str, ...]:
        """Sources outside the run that it may carry words of."""
        return self.message.untrusted


@dataclass(slots=True)
class Job:
    """A call on its way: bound to its tool, or with the reason why it cannot be."""

    call: ToolCall
    key: str
    tool: Tool | None = None
    arguments: dict[str, Any] | None = None
    result: ToolResult | None = None
    kind: FailureKind = FailureKind.tool_error
    """What a failed result is."""
    seconds: float = 0.0
    refused: bool = False
    question: ApprovalAsked | None = None
    """What a person is asked before it is run."""
    text: str = ""
    """Its arguments as JSON: the model's, or a person's."""
    answer: str = ""
    note: str = ""
    """What the model is told besides the result."""
    recorded: ToolLine | None = None
    """What a recording says came of it."""
    read: dict[str, None] = field(default_factory=dict)
    """What strangers may have written of what the tool has read within the run."""

    def refuse(self, why: str) -> None:
        """Answer it without running it; counters do not see it."""
        self.fail(why)
        self.refused = True

    @property
    def name(self) -> str:
        """What people call the tool."""
        return self.tool.title or self.tool.name if self.tool else self.call.name

    @property
    def sources(self) -> tuple[str, ...]:
        """Where its result comes from, when strangers may have written it."""
        said = self.result.untrusted if self.result else None
        if said is None and self.tool and self.tool.untrusted and self.arguments is not None:
            said = " ".join(destinations(self.arguments, self.tool.destinations)) or self.tool.name
        return tuple(dict.fromkeys((*((said,) if isinstance(said, str) else said or ()), *self.read)))

    def fail(self, text: str, kind: FailureKind = FailureKind.tool_error) -> None:
        """Let it end with an error that the model is told."""
        self.result, self.kind = failed(text), kind


def failed(text: str) -> ToolResult:
    """Return an error as the model is told it."""
    return ToolResult(f"Error: {text}", error=True)


def told(error: BaseException) -> str:
    """Say what was raised; a group by what is in it."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(told, error.exceptions))
    said = traceback.TracebackException(type(error), error, None)  # also where its __str__ raises
    return f"{type(error).__name__}: {said}"


def stretches(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Split calls into stretches that run together; everything else stands alone."""
    stretch: list[Job] = []
    for job in jobs:
        if stretch and not _joins(stretch[-1], job):
            yield stretch
            stretch = []
        stretch.append(job)
    if stretch:
        yield stretch


def _joins(one: Job, other: Job) -> bool:
    if one.tool is None or other.tool is None or bool(one.question) != bool(other.question):
        return False
    if one.question:
        return True
    if one.tool.together:
        return one.tool is other.tool
    return one.tool.effect == other.tool.effect == "read" and other.tool.together is None
