"""What real providers refuse in a request, so that a test can refuse it first. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Literal

from orchestrator.messages import Json

Profile = Literal["openai", "mistral", "deepseek_thinking", "moonshot", "gemini", "groq", "vllm_text"]
"""Whose rules apply."""

Complaint = tuple[str, str]
"""A code, and the words of the refusal."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MISTRAL_ID = re.compile(r"[a-zA-Z0-9]{9}")
_GEMINI_REFUSES = frozenset(
    {
        "$schema",
        "$ref",
        "$defs",
        "additionalProperties",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "const",
        "oneOf",
        "allOf",
        "not",
        "if",
        "patternProperties",
        "propertyNames",
        "uniqueItems",
        "multipleOf",
        "contains",
        "unevaluatedProperties",
    }
)


def lint(request: Mapping[str, Any], profile: Profile = "openai") -> list[Complaint]:
    """Return what a provider would refuse in the body of a chat request, in the provider's words."""
    messages, tools = request.get("messages") or [], request.get("tools") or []
    return [
        *_pairing(messages),
        *_messages(messages, profile),
        *_order(messages, profile),
        *([("empty_tools", "tools is an empty array")] if "tools" in request and not tools else ()),
        *_tools(tools),
        *_schemas(tools, profile),
        *_surrogates(messages, "messages"),
    ]


def _pairing(messages: list[Any]) -> Iterator[Complaint]:
    """Every call is answered once, at once, under an id that the conversation has only once."""
    waiting: list[Any] = []
    seen: set[Any] = set()
    for i, message in enumerate(messages):
        role = message.get("role")
        if role == "tool":
            if not message.get("tool_call_id"):
                yield "missing_tool_call_id", f"messages[{i}]: missing field tool_call_id"
            elif message["tool_call_id"] in waiting:
                waiting.remove(message["tool_call_id"])
            else:
                yield "orphan_tool", f"messages[{i}]: role 'tool' must respond to a preceding message with 'tool_calls'"
            continue
        if waiting:
            yield "missing_tool_reply", f"messages[{i}]: tool_call_ids without a reply: {waiting}"
            waiting = []
        for call in _calls(message):
            if call.get("id") in seen:
                yield "dup_call_id", f"tool call id {call.get('id')} is duplicated"
            seen.add(call.get("id"))
            waiting.append(call.get("id"))
    if waiting:
        yield "missing_tool_reply", f"end of messages: no reply for {waiting}"


def _messages(messages: list[Any], profile: Profile) -> Iterator[Complaint]:
    """Each message is whole by itself."""
    if not messages:
        yield "empty_messages", "messages must not be empty"
    elif messages[-1].get("role") == "assistant":
        yield "last_is_assistant", "last role must be user or tool"
    for i, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if role == "tool":
            if content is None:
                yield "null_tool_content", f"messages[{i}]: tool content is null"
            if isinstance(content, list) and any(part.get("type") != "text" for part in content):
                yield "image_in_tool", f"messages[{i}]: only text parts are allowed in role 'tool'"
        elif role == "assistant":
            if message.get("tool_calls") == []:
                yield "empty_tool_calls", f"messages[{i}]: tool_calls is an empty array"
            if not message.get("tool_calls") and content in (None, "", []):
                yield "empty_assistant", f"messages[{i}]: assistant has neither content nor tool_calls"
            for call in _calls(message):
                yield from _call(call, i)
        elif role not in ("user", "system", "developer"):
            yield "bad_role", f"messages[{i}]: role {role!r}"
        if role == "developer" and profile != "openai":
            yield "developer_role", f"messages[{i}]: role developer not supported"


def _call(call: Mapping[str, Any], i: int) -> Iterator[Complaint]:
    function = call.get("function", {})
    if not call.get("id"):
        yield "empty_call_id", f"messages[{i}]: tool_calls.id required"
    if call.get("type") != "function":
        yield "call_type", f"messages[{i}]: tool_calls.type required"
    if not isinstance(function.get("arguments"), str):
        yield "args_not_string", f"messages[{i}]: function.arguments must be a string"
    if not _NAME.fullmatch(function.get("name") or ""):
        yield "bad_call_name", f"messages[{i}]: bad function name {function.get('name')!r}"


def _order(messages: list[Any], profile: Profile) -> Iterator[Complaint]:
    """What only some providers refuse in the order of messages."""
    pairs = list(pairwise(m.get("role") for m in messages if m.get("role") not in ("system", "developer")))
    if profile in ("mistral", "vllm_text") and any(m.get("role") == "system" for m in messages[1:]):
        yield "late_system", "system message must be first"
    if profile == "mistral":
        for first, second in {("tool", "user"), ("user", "tool")} & set(pairs):
            yield "order", f"Unexpected role '{second}' after role '{first}'"
        for message in messages:
            for call in _calls(message):
                if not _MISTRAL_ID.fullmatch(call.get("id") or ""):
                    yield "mistral_id", f"tool call id {call.get('id')!r} must be 9 alphanumerics"
    if profile == "vllm_text" and {("user", "user"), ("assistant", "assistant")} & set(pairs):
        yield "alternate", "conversation roles must alternate user/assistant/..."
    if profile == "deepseek_thinking":
        for i, message in enumerate(messages):
            if _calls(message) and "reasoning_content" not in message:
                yield "reasoning_dropped", f"messages[{i}]: reasoning_content must be passed back"


def _tools(tools: list[Any]) -> Iterator[Complaint]:
    names = [tool.get("function", {}).get("name") for tool in tools]
    if len(tools) > 128:
        yield "too_many_tools", f"array too long: {len(tools)} > 128"
    for name in names:
        if not _NAME.fullmatch(name or ""):
            yield "bad_tool_name", f"tool name {name!r}"
    if len(set(names)) != len(names):
        yield "dup_tool_name", "duplicate tool names"


def _schemas(tools: list[Any], profile: Profile) -> Iterator[Complaint]:
    for tool in tools:
        function = tool.get("function", {})
        name, schema = function.get("name"), function.get("parameters")
        if not isinstance(schema, dict) or schema.get("type") != "object":
            yield "schema_root", f"{name}: parameters must be an object schema"
            continue
        for path, node in _nodes(schema, ""):
            if node.get("type") == "array" and "items" not in node and profile in ("openai", "gemini"):
                yield "array_without_items", f"{name}{path}: array schema missing items"
            if profile == "gemini":
                for keyword in _GEMINI_REFUSES & node.keys():
                    yield "schema_keyword", f"{name}{path}: Unknown name {keyword!r}"
                if any(not isinstance(value, str) for value in node.get("enum", ())):
                    yield "enum_type", f"{name}{path}: enum must be strings"


def _nodes(schema: Json, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Walk a schema and those in it; what stands under `properties` are names, not keywords."""
    if not isinstance(schema, dict):
        return
    yield path, schema
    for keyword, value in schema.items():
        if keyword in ("properties", "$defs", "definitions") and isinstance(value, dict):
            for name, inner in value.items():
                yield from _nodes(inner, f"{path}/{keyword}/{name}")
        elif keyword in ("items", "not", "additionalProperties"):
            yield from _nodes(value, f"{path}/{keyword}")
        elif keyword in ("anyOf", "oneOf", "allOf") and isinstance(value, list):
            for i, inner in enumerate(value):
                yield from _nodes(inner, f"{path}/{keyword}/{i}")


def _surrogates(value: Json, path: str) -> Iterator[Complaint]:
    if isinstance(value, str):
        if any("\ud800" <= character <= "\udfff" for character in value):
            yield "surrogate", f"{path}: lone surrogate"
    elif isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _surrogates(inner, f"{path}/{key}")


def _calls(message: Mapping[str, Any]) -> list[Any]:
    return message.get("tool_calls") or []
