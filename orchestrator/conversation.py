"""The messages of one loop: hashed as they come, every call paired with its answer, replaced only by a compaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from hashlib import sha256
from typing import Any

import orjson

from orchestrator.events import Compacted
from orchestrator.messages import Message, ToolCall
from orchestrator.models.tokens import NOTHING, Counts, count, together
from orchestrator.models.wire import encode, wire_arguments
from orchestrator.text.jsonable import well_formed


def counts_of(message: Message) -> Counts:
    """Count what a message is made of, as it goes over the wire."""
    parts = [count(message.content, messages=1, images=len(message.images))]
    parts += [count(f"{call.name}{wire_arguments(call.arguments)}", messages=1) for call in message.calls]
    parts += [count(encode(extra)) for extra in (message.extra, *(call.extra for call in message.calls)) if extra]
    return together(*parts)


class Conversation:
    """What one loop has said and seen. Grows between compactions, so that a prefix cache keeps hitting."""

    __slots__ = ("_hash", "_keys", "_messages", "_observed", "history", "scratch", "sources", "system")

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self.sources: dict[str, None] = {}
        """Outside the run: whose words are in it, or were before a compaction; in the order they came."""
        self._clear()
        for message in messages:
            self.append(message)

    def _clear(self) -> None:
        self._messages: list[Message] = []
        self._keys: list[str] = []
        self._observed: list[str] = []
        self._hash = ""
        self.scratch: dict[Any, Any] = {}
        """See `Request.scratch`."""
        self.system: Counts = NOTHING
        """What the system prompt is made of."""
        self.history: Counts = NOTHING
        """What everything else is made of."""

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def messages(self) -> tuple[Message, ...]:
        """Everything so far."""
        return tuple(self._messages)

    @property
    def keys(self) -> tuple[str, ...]:
        """The address of each message's record, as `ori/collect:3:tool.0`; empty where there is none."""
        return tuple(self._keys)

    @property
    def hash(self) -> str:
        """Chained over all messages: equal hashes mean equal conversations."""
        return self._hash

    def append(self, message: Message, key: str = "") -> Message:
        """Add a message at the end, and return it as it is kept: lone surrogates are replaced.

        Args:
            message: What was said.
            key: The address of its record.
        """
        try:
            data = orjson.dumps(message)
        except TypeError:  # a lone surrogate, or a number that is too large for orjson
            message = replace(message, content=well_formed(message.content))
            data = repr(message).encode("utf-8", "replace")
        self._messages.append(message)
        self._keys.append(key)
        if message.role == "assistant":
            self._observed.clear()
        elif message.role in ("tool", "data"):
            self._observed.append(message.content)
        self.sources |= dict.fromkeys(message.untrusted)
        if message.role == "system":
            self.system = together(self.system, counts_of(message))
        else:
            self.history = together(self.history, counts_of(message))
        self._hash = sha256(self._hash.encode() + data).hexdigest()
        return message

    def open_calls(self) -> dict[int, ToolCall]:
        """Return the calls of the last assistant message that have no answer yet, by their number."""
        answered: Counter[str | None] = Counter()
        for message in reversed(self._messages):
            if message.role == "assistant":
                calls = enumerate(message.calls)
                return {number: call for number, call in calls if not _taken(answered, call.id)}
            answered[message.call_id] += message.role == "tool"
        return {}

    def observed(self) -> str:
        """Return what tools and other loops said since the last assistant message, whatever was compacted."""
        return "\n\n".join(self._observed)

    def compact(self, change: Compacted) -> None:
        """Become what a compaction makes of it."""
        messages, keys, observed = self._messages, self._keys, self._observed
        for index, content in change.shortened:
            messages[index] = replace(messages[index], content=content, images=())
        became = [(messages[m], keys[m]) if isinstance(m, int) else (m, change.key) for m in change.became]
        messages[change.start : change.end] = [message for message, _ in became]
        keys[change.start : change.end] = [key for _, key in became]
        self._clear()
        for message, key in zip(messages, keys, strict=True):
            self.append(message, key)
        self._observed = observed

    def last_text(self) -> str:
        """Return the text of the last assistant message that has any, or an empty string."""
        return next((m.content for m in reversed(self._messages) if m.role == "assistant" and m.content), "")


def _taken(answered: Counter[str | None], id: str) -> bool:
    """Use up one answer, if there is one: a model may give two calls the same id."""
    answered[id] -= 1
    return answered[id] >= 0
