"""What goes out: conversations as the OpenAI protocol wants them, and JSON both ways. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any

import orjson

from orchestrator.messages import Image, Json, Message, ToolCall, ToolSpec
from orchestrator.models.narrow import narrow, with_items
from orchestrator.text.jsonable import well_formed

MOST_TOOLS = 128
"""Tools that a request may offer."""
_DEEPEST = 200
"""Levels of JSON that are read: orjson writes 254, and what comes in is written into a request and into the log."""
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MADE = re.compile(r".*_x[0-9a-f]{10}")
"""What a name that stands for another one looks like."""


def wire_messages(messages: Sequence[Message], *, origin: str = "", vision: bool = False) -> list[dict[str, Any]]:
    """Shape a conversation for the wire; a longer conversation begins with the same messages.

    Neighbouring user texts become one message, and notes and data join the message before them, as many servers
    refuse a user message after another or after a tool message. Images of tools follow all tool messages of a turn.

    Args:
        messages: The conversation.
        origin: The endpoint it goes to; fields that only another one understands stay here.
        vision: Whether images can be seen there; else a note names them.
    """
    wire: list[dict[str, Any]] = []
    seen: list[Image] = []
    for message in messages:
        if seen and message.role in ("assistant", "user"):
            _show(seen, wire)
        if message.role == "assistant":
            if _is_sent(message):
                wire.append(_assistant(message, origin))
            continue
        content = _with_notes(message, vision) if message.images else message.content
        if message.role == "tool":
            wire.append({"role": "tool", "tool_call_id": message.call_id, "content": content})
        elif message.role == "system":
            wire.append({"role": "system", "content": content})
        elif wire and wire[-1]["role"] in (("user",) if message.role == "user" else ("user", "tool")):
            _join(wire[-1], content)
        else:
            wire.append({"role": "user", "content": content})
        if vision and message.images:
            seen += [image for image in message.images if image.data]
    _show(seen, wire)
    return wire


class Transcript:
    """One conversation as one server is sent it, in JSON. Each message is written once: a request repeats the text."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        """Of all calls."""
        self._form: object = None
        self._written: list[orjson.Fragment] = []
        self._held: tuple[Message, ...] = ()  # those that are written

    def write(
        self, messages: tuple[Message, ...], shape: Callable[[Sequence[Message]], list[dict[str, Any]]], form: object
    ) -> list[orjson.Fragment]:
        """Return all messages, for the list of a request.

        Args:
            messages: The conversation; what is written already is used where it begins as it did.
            shape: Shapes a part for the wire: what begins with an assistant message does not depend on what is before.
            form: What the shape depends on; with another one, everything is written anew.
        """
        if form != self._form or messages[: len(self._held)] != self._held:
            self._form, self._written, self._held = form, [], ()
        start = len(self._held)
        self.ids.update(call.id for message in messages[start:] for call in message.calls)
        for end in range(start + 1, len(messages)):
            if messages[end].role == "assistant" and _is_sent(messages[end]):  # nothing can join what is before
                self._written += _fragment(shape(messages[start:end]))
                start = end
        self._held = messages[:start]
        return self._written + _fragment(shape(messages[start:]))


def _fragment(wire: list[dict[str, Any]]) -> list[orjson.Fragment]:
    """Write messages as a part of a list."""
    return [orjson.Fragment(encode(wire)[1:-1])] if wire else []


def _is_sent(message: Message) -> bool:
    return bool(message.content or message.calls)


def _assistant(message: Message, origin: str) -> dict[str, Any]:
    # content stays "" beside calls: a null is what more servers refuse
    at_home = message.origin == origin
    wire: dict[str, Any] = {"role": "assistant", "content": message.content}
    if at_home and message.extra:
        wire |= message.extra
    if message.calls:
        wire["tool_calls"] = [_call(call, at_home) for call in message.calls]
    return wire


def _call(call: ToolCall, at_home: bool) -> dict[str, Any]:
    """Some servers answer 500 to every request that repeats a model's malformed call: it goes back mended."""
    function = {"name": wire_name(call.name), "arguments": wire_arguments(call.arguments)}
    wire = {"id": call.id, "type": "function", "function": function}
    return {**wire, **call.extra} if at_home and call.extra else wire


def wire_arguments(text: str) -> str:
    """Return a call's arguments as they go back: what is no JSON object as an empty one."""
    return text if _is_object(text) else "{}"


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except ValueError:
        return False


def _join(wire: dict[str, Any], text: str) -> None:
    if isinstance(wire["content"], str):
        wire["content"] += f"\n\n{text}"
    else:
        wire["content"].append({"type": "text", "text": text})


def _show(images: list[Image], wire: list[dict[str, Any]]) -> None:
    """Put images into a user message, each behind its name."""
    if not images:
        return
    parts: list[dict[str, Any]] = []
    for image in images:
        url = f"data:{image.media_type};base64,{image.data}"
        parts += [{"type": "text", "text": f"[{image.path}]"}, {"type": "image_url", "image_url": {"url": url}}]
    images.clear()
    if wire and wire[-1]["role"] == "user":
        before = wire.pop()["content"]
        parts = [*([{"type": "text", "text": before}] if isinstance(before, str) else before), *parts]
    wire.append({"role": "user", "content": parts})


def _with_notes(message: Message, vision: bool) -> str:
    unseen = [image for image in message.images if not (vision and image.data)]
    notes = [f"[{image.path}: an image ({image.media_type}), which this model cannot see]" for image in unseen]
    return "\n\n".join([message.content, *notes])


def wire_tools(tools: Iterable[ToolSpec], refused: frozenset[str] = frozenset()) -> list[dict[str, Any]]:
    """Shape the offered tools for the wire, in their order.

    Args:
        tools: What is offered.
        refused: What their schemas may not have, in the words of `narrow`.
    """
    return [_tool(tool, refused) for tool in tools]


@lru_cache(maxsize=1024)  # the same tools go out with every request of a conversation
def _tool(tool: ToolSpec, refused: frozenset[str]) -> dict[str, Any]:
    parameters = with_items(tool.parameters)
    function = {
        "name": wire_name(tool.name),
        "description": tool.description,
        "parameters": narrow(parameters, refused) if refused else parameters,
    }
    return {"type": "function", "function": function}


@lru_cache(maxsize=1024)
def wire_name(name: str) -> str:
    """Return the name that stands for a tool on the wire: its own where the protocol allows that.

    Different names stay different: one that is changed ends in a hash, and one that only looks like such is changed.
    """
    if _NAME.fullmatch(name) and not _MADE.fullmatch(name):
        return name
    readable = re.sub(r"[^a-zA-Z0-9_-]+", "_", name)[:50] or "tool"
    return f"{readable}_x{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:10]}"


def encode(body: Json) -> bytes:
    """Write JSON, always the same bytes for the same value; lone surrogates are replaced."""
    try:
        return orjson.dumps(body)
    except TypeError:  # orjson refuses lone surrogates
        return json.dumps(scrubbed(body), ensure_ascii=False, separators=(",", ":")).encode()


def decode(data: bytes) -> Json:
    """Read JSON as servers write it: a BOM, control characters in strings, bad UTF-8 pass; no lone surrogate stays.

    Raises:
        ValueError: It is no JSON.
    """
    try:
        value = orjson.loads(data)
    except ValueError:
        try:
            value = scrubbed(json.loads(data.decode("utf-8-sig", "replace"), strict=False))
        except RecursionError:
            raise ValueError("nested too deeply") from None
    if data.count(b"{") + data.count(b"[") > _DEEPEST and _depth(value) > _DEEPEST:
        raise ValueError("nested too deeply")
    return value


def _depth(value: Json) -> int:
    """Count the levels of a value."""
    level, depth = [value], 0
    while level:
        inner = (v.values() if isinstance(v, dict) else v for v in level if isinstance(v, (dict, list)))
        level, depth = [item for items in inner for item in items], depth + 1
    return depth


def scrubbed(value: Json) -> Json:
    """Replace lone surrogates, which no UTF-8 can carry."""
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {scrubbed(k): scrubbed(v) for k, v in value.items()}
    return [scrubbed(item) for item in value] if isinstance(value, (list, tuple)) else value
