"""The data that flows between a loop and a model. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from orchestrator.strict import Strict

Json = Any
"""What `json.loads` can return."""

MessageRole = Literal["system", "user", "assistant", "tool", "note", "data"]
"""Beyond the protocol's four: a `note` is a word of the engine, and `data` is what other loops found. On the wire
both join the message before them (see `models.wire`)."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that a model asks for."""

    id: str
    name: str
    arguments: str
    """JSON text, as the model wrote it."""
    extra: Mapping[str, Json] = field(default_factory=dict, hash=False)
    """Fields that only the server it came from understands, such as a signature."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image that a message shows."""

    path: str
    """Its file in the workspace."""
    media_type: str
    """As `image/png`."""
    data: str
    """Base64; empty: nobody was to see it."""


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of a conversation."""

    role: MessageRole
    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    """Of an assistant message: the calls it asks for."""
    call_id: str | None = None
    """Of a tool message: the call it answers."""
    extra: Mapping[str, Json] = field(default_factory=dict)
    """Of an assistant message: fields that only its own server understands, such as `reasoning_content`."""
    origin: str = ""
    """Of an assistant message: the endpoint that it came from; what is `extra` goes back only there."""
    images: tuple[Image, ...] = ()
    """Of a user or tool message."""
    untrusted: tuple[str, ...] = ()
    """Sources outside the run that its content may carry words of."""


class Usage(Strict):
    """What model calls cost: tokens and money."""

    calls: int = 0
    """Model calls."""
    prompt: int = 0
    """Tokens read, the cached ones included."""
    cached: int = 0
    """Tokens of the prompt that came from the server's cache."""
    completion: int = 0
    """Tokens written, reasoning included."""
    reasoning: int = 0
    """Tokens written as reasoning."""
    cost: Decimal | None = None
    """Money, in the currency of the model's price; None when the price is unknown."""
    estimated_calls: int = 0
    """Calls whose tokens were estimated because the server reported none."""

    @property
    def tokens(self) -> int:
        """Tokens read and written."""
        return self.prompt + self.completion

    def __add__(self, other: Usage) -> Usage:
        """Sum two usages; an unknown cost counts as nothing beside a known one."""
        costs = [u.cost for u in (self, other) if u.cost is not None]
        return Usage(
            calls=self.calls + other.calls,
            prompt=self.prompt + other.prompt,
            cached=self.cached + other.cached,
            completion=self.completion + other.completion,
            reasoning=self.reasoning + other.reasoning,
            cost=sum(costs, Decimal(0)) if costs else None,
            estimated_calls=self.estimated_calls + other.estimated_calls,
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """One whole answer of a model."""

    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    """The model that says it answered."""
    reasoning: str = ""
    extra: Mapping[str, Json] = field(default_factory=dict)
    origin: str = ""
    """The endpoint that answered."""

    def message(self) -> Message:
        """Return the assistant message that enters the conversation."""
        return Message("assistant", self.content, self.calls, extra=self.extra, origin=self.origin)


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model sees it."""

    name: str
    description: str
    parameters: Mapping[str, Json] = field(hash=False)
    """JSON Schema of an object."""


@dataclass(frozen=True, slots=True)
class Request:
    """One model call."""

    key: str
    """Address of the call in the log: `path:turn:model`."""
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: Literal["auto", "none", "required"] = "auto"
    output: Mapping[str, Json] | None = None
    """JSON Schema of an object that the answer must be; tools are not offered beside it."""
    parallel_tool_calls: bool | None = None
    params: Mapping[str, Json] = field(default_factory=dict)
    """Generation parameters that override the model's own (`temperature`, `top_p`, `max_tokens`, …)."""
    max_output: int | None = None
    """Tokens that the answer may have, where a budget leaves less than the parameters say."""
    scratch: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    """Where a model keeps what it made of earlier messages; lives as long as the conversation."""
    observed: str = ""
    """What tools and other loops said since the reply before, the workspace's path left out; a replay compares it."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a reply as it arrives."""

    kind: Literal["text", "reasoning", "call", "reset"]
    """`call`: arguments of a tool call; `reset`: all pieces so far are withdrawn."""
    text: str = ""
    name: str = ""
    """Of a call: its tool."""
