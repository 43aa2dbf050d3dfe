"""What goes out: conversations as the OpenAI protocol wants them, and JSON both ways. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from orchestrator.messages import Json, Message, ToolCall, ToolSpec

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def wire_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Shape a conversation for the wire; a longer conversation begins with the same messages.

    Neighbouring user texts become one message, and notes and data join the message before them, as many servers
    refuse a user message after another or after a tool message.
    """
    wire: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "assistant":
            if message.content or message.calls:
                wire.append(_assistant(message))
            continue
        role = message.role if message.role in ("system", "tool") else "user"
        joins = ("user",) if message.role == "user" else ("user", "tool")
        if role == "user" and wire and wire[-1]["role"] in joins:
            wire[-1]["content"] += f"\n\n{message.content}"
        elif role == "tool":
            wire.append({"role": role, "tool_call_id": message.call_id, "content": message.content})
        else:
            wire.append({"role": role, "content": message.content})
    return wire


def _assistant(message: Message) -> dict[str, Any]:
    # content stays "" beside calls: a null is what more servers refuse
    wire: dict[str, Any] = {"role": "assistant", "content": message.content, **message.extra}
    if message.calls:
        wire["tool_calls"] = [_call(call) for call in message.calls]
    return wire


def _call(call: ToolCall) -> dict[str, Any]:
    """Some servers answer 500 to every request that repeats a model's malformed call: it goes back mended."""
    name = call.name if _NAME.fullmatch(call.name) else re.sub(r"[^a-zA-Z0-9_-]", "_", call.name)[:64] or "unnamed"
    arguments = wire_arguments(call.arguments)
    return {"id": call.id, "type": "function", "function": {"name": name, "arguments": arguments}}


def wire_arguments(text: str) -> str:
    """Return a call's arguments as they go back: what is no JSON object as an empty one."""
    return text if _is_object(text) else "{}"


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except ValueError:
        return False


def wire_tools(tools: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """Shape the offered tools for the wire, in their order."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)},
        }
        for tool in tools
    ]


def encode(body: Json) -> bytes:
    """Write JSON, always the same bytes for the same value; lone surrogates are replaced."""
    try:
        return orjson.dumps(body)
    except TypeError:  # orjson refuses lone surrogates
        return json.dumps(_scrubbed(body), ensure_ascii=False, separators=(",", ":")).encode()


def decode(data: bytes) -> Json:
    """Read JSON as servers write it: control characters in strings and bad UTF-8 pass, lone surrogates are replaced.

    Raises:
        ValueError: It is no JSON.
    """
    try:
        return orjson.loads(data)
    except ValueError:
        try:
            return _scrubbed(json.loads(data.decode("utf-8", "replace"), strict=False))
        except RecursionError:
            raise ValueError("nested too deeply") from None


def _scrubbed(value: Json) -> Json:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_scrubbed(k): _scrubbed(v) for k, v in value.items()}
    return [_scrubbed(item) for item in value] if isinstance(value, (list, tuple)) else value
