"""What a server's refusal says about the server: what to leave out from now on, and how much it takes. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from orchestrator.messages import Json
from orchestrator.models.narrow import BASIC, has, nodes
from orchestrator.models.quirks import SHORT_ID
from orchestrator.models.wire import decode

Body = Mapping[str, Any]
Saying = tuple[str, str, Callable[[Body], bool]]
"""What is refused, the words that say so, and whether the request had it."""

_REFUSING = (
    r"(?:un|not[ _])support|unrecognized|unknown|unexpected|unavailable|not available|incompatible|deprecated"
    r"|extra[ _](?:inputs?|fields?|forbid)|(?:not|n't)(?: \w+)? (?:permitted|allowed|support|accept|compatible)"
    r"|only supports?|only [^.]{1,40} (?:is|are) (?:allowed|supported)|no endpoints found|cannot find field"
    r"|\binvalid\b|不(?:被)?支持|不合法|非法|无效|未知|(?:不|无法)识别|不允许|不可用"
)
_NEAR = 160
"""Characters between a name and the words that refuse it."""
_LONGEST_NUMBER = 12
"""Digits of a count of tokens that are read."""
_NEVER_LEFT_OUT = frozenset({"model", "messages", "tools"})
_OWN_FIELDS = frozenset({"role", "content", "tool_calls"})
_ALSO_WORDS = frozenset({"not", "if", "format", "default", "const", "contains", "title", "examples"})
"""Keywords that any sentence may have: they count only in quotes."""


def refused(said: str, body: Body) -> set[str]:
    """Return what a refusal is about, in the words of `quirks`; only what the request really had.

    Args:
        said: The whole answer of the server.
        body: The request it answers.
    """
    said = _plain(said)
    if word := _said(_SAYINGS, said, body):
        return {word}
    if re.search(r"schema|grammar|unknown name", said, re.IGNORECASE) and (words := set(_keywords(said, body))):
        return words
    if word := _said(_ABOUT_SCHEMAS, said, body):
        return {word}
    found = {f"assistant.{field}" for field in _assistant_fields(body) if _is_refused(re.escape(field), said)}
    fields = (field for field in body.keys() - _NEVER_LEFT_OUT if _is_refused(re.escape(field), said))
    return found | {_worded(field, body) for field in fields}


def window(said: str) -> int | None:
    """Return the tokens of the window that a refusal names."""
    return _number(_WINDOW, _plain(said))


def longest_answer(said: str) -> int | None:
    """Return the most tokens of an answer that a refusal names."""
    return _number(_ANSWER, _plain(said))


def _plain(said: str) -> str:
    """Return what a body says without the marks of JSON, which may be in a string of another one."""
    try:
        return " ".join(_leaves(decode(said.encode("utf-8", "replace")))).replace("\\", "")
    except (ValueError, RecursionError):
        return said


def _leaves(value: Json) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield str(value)


_COUNT = r"\D{0,20}?\b(\d[\d,]{2,})"
_WINDOW = (
    rf"n_ctx{_COUNT}",
    rf"maximum context length (?:is|of){_COUNT}",
    rf"maximum model length of{_COUNT}",
    rf"context (?:size|window|length){_COUNT} tokens",
    r"tokens > (\d[\d,]{2,}) maximum",
    rf"limit of{_COUNT} tokens",
    rf"上下文(?:长度|窗口){_COUNT}",
    rf"range of input length should be \[\d+,{_COUNT}",
)
_ANSWER = (
    r"at most (\d[\d,]{2,}) (?:completion|output) tokens",
    r"max_(?:completion_|new_|output_)?tokens[^.]{0,60}?\[\d+, ?(\d[\d,]{2,})\]",
    r"max_(?:completion_|new_|output_)?tokens\W{0,3} must be (?:less than or equal to|at most|<=) \W?(\d[\d,]{2,})",
    r"max_(?:completion_|new_|output_)?tokens[^.]{0,20}?(?:不(?:能|得|可)(?:超过|大于)|小于等于|最大(?:值)?为)\D{0,5}(\d[\d,]{2,})",
    r"max_(?:completion_|new_|output_)?tokens: \d+ > (\d[\d,]{2,})",
)


def _number(patterns: Sequence[str], said: str) -> int | None:
    for pattern in patterns:
        if found := re.search(pattern, said, re.IGNORECASE):
            return int(found[1].replace(",", "")[:_LONGEST_NUMBER])
    return None


def _said(sayings: Sequence[Saying], said: str, body: Body) -> str | None:
    """Return the first thing that is refused in these words."""
    return next((word for word, words, had in sayings if re.search(words, said, _FLAGS) and had(body)), None)


_FLAGS = re.IGNORECASE | re.DOTALL


def _is_refused(name: str, said: str) -> bool:
    name = rf"(?<![a-z0-9_.-])(?:{name})(?![a-z0-9_-])"  # Chinese stands right beside it
    near = rf"{name}.{{0,{_NEAR}}}?(?:{_REFUSING})|(?:{_REFUSING}).{{0,{_NEAR}}}?{name}"
    return re.search(near, said, _FLAGS) is not None


def _worded(field: str, body: Body) -> str:
    """Name only the value of a field where another value may do."""
    value = body[field]
    if field == "tool_choice" and value != "auto":
        return f"tool_choice={value}"
    if field == "response_format" and value.get("type") == "json_schema":
        return "response_format=json_schema"
    return field


def _keywords(said: str, body: Body) -> Iterator[str]:
    """Name the keywords of JSON Schema that are refused."""
    schemas = _schemas(body)
    for keyword in {keyword for node in nodes(schemas) for keyword in node} - BASIC:
        quoted = rf"['\"`]{re.escape(keyword)}['\"`]"
        plain = rf"(?<![\w$]){re.escape(keyword)}(?!\w)"
        if re.search(quoted if keyword in _ALSO_WORDS else plain, said, re.IGNORECASE):
            yield f"schema.{keyword}"
    if re.search(r"cannot start list", said) and has(schemas, "type-list"):
        yield "schema.type-list"
    if re.search(r"\benum\b", said) and has(schemas, "enum-of-other"):
        yield "schema.enum-of-other"


# what a request had


def _of(body: Body, role: str) -> Iterator[Mapping[str, Any]]:
    return (message for message in body["messages"] if message["role"] == role)


def _calls(body: Body) -> Iterator[Mapping[str, Any]]:
    return (call for message in _of(body, "assistant") for call in message.get("tool_calls", ()))


def _assistant_fields(body: Body) -> set[str]:
    return {field for message in _of(body, "assistant") for field in message} - _OWN_FIELDS


def _json_schema(body: Body) -> Mapping[str, Any]:
    return dict(body.get("response_format", {}).get("json_schema", {}))


def _schemas(body: Body) -> list[Any]:
    tools = [tool["function"]["parameters"] for tool in body.get("tools", ())]
    return [*tools, *([_json_schema(body)["schema"]] if _json_schema(body) else ())]


_SAYINGS: Sequence[Saying] = (
    (
        "plain",
        r"(?:仅|只)支持流式|only supports? stream|must be set to false for non-streaming|requires? stream(ing)?\b",
        lambda body: not body.get("stream"),
    ),
    (
        "image_url",
        r"image_url|(image|vision|multimodal).{0,40}(not|n't) support|(not|n't) support.{0,40}(image|vision|multimodal)"
        r"|endpoints found that support image",
        lambda body: any(isinstance(message["content"], list) for message in _of(body, "user")),
    ),
    (
        "system",
        r"不支持.{0,4}system|(not|n't) support '?system'?|system (role|messages?) (is |are )?not (support|allow)",
        lambda body: any(_of(body, "system")),
    ),
    (
        "long ids",
        r"tool.?call.?id.{0,120}(length of 9|a-z, ?A-Z, ?0-9)",
        lambda body: any(not SHORT_ID.fullmatch(call["id"]) for call in _calls(body)),
    ),
    (
        "user after tool",
        r"unexpected role .?user.? after role .?tool",
        lambda body: any(_of(body, "tool")),
    ),
    (
        "no reasoning_content",
        r"reasoning_content.{0,80}(must be passed|missing)|missing.{0,20}reasoning_content",
        lambda body: any(not message.get("reasoning_content") for message in _of(body, "assistant")),
    ),
    (
        "no thought_signature",
        r"missing an?.{0,3}thought_signature",
        lambda body: any("extra_content" not in call for call in _calls(body)),
    ),
    (
        "empty content",
        r"content.{0,60}(must be non-?empty|(must|can) ?not be empty)",
        lambda body: any(message.get("content") == "" for message in _of(body, "assistant")),
    ),
    (
        "strict",
        r"(?<!\w)strict(?!\w)|invalid schema for response_format",
        lambda body: "strict" in _json_schema(body),
    ),
)
_ABOUT_SCHEMAS: Sequence[Saying] = (
    (
        "response_format=json_schema",
        rf"(json_schema|structured outputs?|guided|xgrammar).{{0,{_NEAR}}}?({_REFUSING})"
        rf"|({_REFUSING}).{{0,{_NEAR}}}?(json_schema|structured outputs?|guided|xgrammar)",
        lambda body: bool(_json_schema(body)),
    ),
    (
        "schema.all but basic",
        r"invalid schema|not a valid [\w ]*schema|(grammar|schema).{0,20}(fail|error)|fail.{0,20}(grammar|schema)",
        lambda body: has(_schemas(body), "all but basic"),
    ),
)
"""Looked at when no keyword is named."""
