"""The messages of one loop: append-only, hashed as they come, every call paired with its answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from hashlib import sha256

import orjson

from orchestrator.messages import Message, ToolCall
from orchestrator.models.tokens import estimate_tokens
from orchestrator.models.wire import scrubbed, wire_arguments


class Conversation:
    """What one loop has said and seen so far. Only ever grows, so that a server's prefix cache keeps hitting."""

    __slots__ = ("_hash", "_messages", "history_tokens", "system_tokens")

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._messages: list[Message] = []
        self._hash = ""
        self.system_tokens = 0
        """Estimate of what the system prompt weighs."""
        self.history_tokens = 0
        """Estimate of what everything else weighs."""
        for message in messages:
            self.append(message)

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def messages(self) -> tuple[Message, ...]:
        """Everything so far."""
        return tuple(self._messages)

    @property
    def hash(self) -> str:
        """Chained over all messages: equal hashes mean equal conversations."""
        return self._hash

    def append(self, message: Message) -> Message:
        """Add a message at the end, and return it as it is kept: lone surrogates are replaced."""
        try:
            data = orjson.dumps(message)
        except TypeError:  # a lone surrogate, or a number that is too large for orjson
            message = replace(message, content=scrubbed(message.content))
            data = repr(message).encode("utf-8", "replace")
        self._messages.append(message)
        arguments = (wire_arguments(call.arguments) for call in message.calls)
        weight = estimate_tokens(message.content) + sum(map(estimate_tokens, arguments))
        if message.role == "system":
            self.system_tokens += weight
        else:
            self.history_tokens += weight
        self._hash = sha256(self._hash.encode() + data).hexdigest()
        return message

    def open_calls(self) -> tuple[ToolCall, ...]:
        """Return the calls of the last assistant message that have no answer yet, in order."""
        calls = next((m.calls for m in reversed(self._messages) if m.role == "assistant"), ())
        return calls[self.answered() :]

    def answered(self) -> int:
        """Return how many calls of the last assistant message have their answer; answers come in order."""
        count = 0
        for message in reversed(self._messages):
            if message.role == "assistant":
                return count
            count += message.role == "tool"
        return 0

    def observed(self) -> str:
        """Return what tools and other loops said since the last assistant message."""
        texts = []
        for message in reversed(self._messages):
            if message.role == "assistant":
                break
            if message.role in ("tool", "data"):
                texts.append(message.content)
        return "\n\n".join(reversed(texts))

    def last_text(self) -> str:
        """Return the text of the last assistant message that has any, or an empty string."""
        return next((m.content for m in reversed(self._messages) if m.role == "assistant" and m.content), "")
