"""Requests as one server takes them: what it refuses is left out, or said in another way. Pure.

What a server refuses is a set of words, so that it can be compared, printed and given as data:

- `parallel_tool_calls`: a field of the body;
- `tool_choice=none`: one value of a field;
- `assistant.reasoning_content`: a field of assistant messages;
- `schema.oneOf`: a keyword of JSON Schema, or one of the words of `narrow`;
- `strict`: holding the model to a JSON Schema;
- `plain`: an answer that is not streamed;
- `image_url`: images;
- those of `_MESSAGES`: something about the messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from hashlib import sha256
from typing import Any

from orchestrator.messages import Json
from orchestrator.models.narrow import fits_strict, narrow, with_items

INSTEAD = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens", "seed": "random_seed"}
"""Other servers' name of a field; it is left out only where that is refused, too."""
SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")

Body = dict[str, Any]
Messages = list[dict[str, Any]]


def response_format(schema: Mapping[str, Json]) -> Body:
    """Return what asks a server for an answer that fits a schema; it is held to it where the schema allows that."""
    strict = {"strict": True} if fits_strict(schema) else {}
    return {"type": "json_schema", "json_schema": {"name": "result", "schema": dict(with_items(schema)), **strict}}


def shape(body: Body, refused: Collection[str]) -> Body:
    """Return a request's body in the form that a server takes; see `shape_messages` for its messages.

    Args:
        body: The wire copy, whose tools were made without what is refused.
        refused: What the server refuses.
    """
    if not refused:
        return body
    shaped: Body = {}
    for field, value in body.items():
        name = _name(field, refused)
        if name is not None:
            shaped[name] = value
    if isinstance(choice := shaped.get("tool_choice"), str) and f"tool_choice={choice}" in refused:
        shaped["tool_choice"] = "auto"
    if "response_format" in shaped:
        shaped["response_format"] = _response_format(shaped["response_format"], refused)
    return shaped


def shape_messages(messages: Messages, refused: Collection[str]) -> Messages:
    """Return messages in the form that a server takes; they may be changed in place.

    A part that begins with an assistant message becomes the same alone as behind what is before it.

    Args:
        messages: The wire copy of a conversation, or of a part.
        refused: What the server refuses.
    """
    for word, mend in _MESSAGES.items():
        if word in refused:
            messages = mend(messages)
    _drop_fields(messages, _behind("assistant.", refused))
    return messages


def schema_words(refused: Collection[str]) -> frozenset[str]:
    """Return what schemas may not have, in the words of `narrow`."""
    return _behind("schema.", refused)


def _behind(prefix: str, refused: Collection[str]) -> frozenset[str]:
    return frozenset(word.removeprefix(prefix) for word in refused if word.startswith(prefix))


def _name(field: str, refused: Collection[str]) -> str | None:
    """Return what a field is called here; None: it is left out."""
    if field not in refused:
        return field
    other = INSTEAD.get(field)
    return None if other in refused else other


def _response_format(format: Mapping[str, Any], refused: Collection[str]) -> Body:
    if format.get("type") != "json_schema":
        return dict(format)
    if "response_format=json_schema" in refused:
        return {"type": "json_object"}
    asked = dict(format["json_schema"])
    if "strict" in refused:
        asked.pop("strict", None)
    if words := schema_words(refused):
        asked["schema"] = narrow(asked["schema"], words)
    return {**format, "json_schema": asked}


def _drop_fields(messages: Messages, fields: Collection[str]) -> None:
    for message in messages if fields else ():
        if message["role"] == "assistant":
            for field in fields:
                message.pop(field, None)


# what is refused about messages


def _into_user(messages: Messages) -> Messages:
    """Put the system prompt at the head of the first user message."""
    kept = [message for message in messages if message["role"] != "system"]
    prompt = "\n\n".join(message["content"] for message in messages if message["role"] == "system")
    first = next((message for message in kept if message["role"] == "user"), None)
    if first is None:
        return [{"role": "user", "content": prompt}, *kept] if prompt else kept
    content = first["content"]
    if isinstance(content, str):
        first["content"] = f"{prompt}\n\n{content}" if prompt else content
    else:
        first["content"] = [{"type": "text", "text": prompt}, *content]
    return kept


def _short_ids(messages: Messages) -> Messages:
    for message in messages:
        for call in message.get("tool_calls", ()):
            call["id"] = short_id(call["id"])
        if message["role"] == "tool":
            message["tool_call_id"] = short_id(message["tool_call_id"])
    return messages


def short_id(id: str) -> str:
    """Return nine letters and digits that stand for an id; the same ones each time."""
    return id if SHORT_ID.fullmatch(id) else sha256(id.encode("utf-8", "replace")).hexdigest()[:9]


def _bridge(messages: Messages) -> Messages:
    """Let the assistant say a word between what a tool and what a user said."""
    bridged: Messages = []
    for message in messages:
        if message["role"] == "user" and bridged and bridged[-1]["role"] == "tool":
            bridged.append({"role": "assistant", "content": "I see."})
        bridged.append(message)
    return bridged


def _without_empty(messages: Messages) -> Messages:
    for message in messages:
        if message["role"] == "assistant" and not message.get("content"):
            message.pop("content", None)
    return messages


def _with_reasoning(messages: Messages) -> Messages:
    """Fill in the reasoning of messages that another model made; an empty one counts as none with some servers."""
    for message in messages:
        if message["role"] == "assistant" and not message.get("reasoning_content"):
            message["reasoning_content"] = " "
    return messages


def _with_signature(messages: Messages) -> Messages:
    """Mark calls that another model made with what the server's own documentation gives for them."""
    for message in messages:
        calls = message.get("tool_calls", ())
        if calls and not any("extra_content" in call for call in calls):
            calls[0]["extra_content"] = {"google": {"thought_signature": "skip_thought_signature_validator"}}
    return messages


_MESSAGES: Mapping[str, Callable[[Messages], Messages]] = {
    "system": _into_user,
    "long ids": _short_ids,
    "user after tool": _bridge,
    "empty content": _without_empty,
    "no reasoning_content": _with_reasoning,
    "no thought_signature": _with_signature,
}
"""How to do without: a system message, ids that are not 9 letters and digits, a user message right after a tool's,
assistant messages with empty content, with no `reasoning_content`, with calls that have no thought signature."""
