"""What models put into their text that is no text: reasoning, and calls in disguise. Pure."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Iterator
from typing import Any, Literal

from orchestrator.messages import Delta, ToolCall
from orchestrator.models.wire import encode

_OPEN, _CLOSE = "<think>", "</think>"
_CANDIDATES = 50
"""Places of one text that are looked at; keeps the cost bounded for a text made of brackets."""
_LONGEST = 100_000
"""Characters of a call that is written as in Python; likewise."""


def split_think(content: str) -> tuple[str, str]:
    """Split a leading `<think>…</think>` off; the opening tag may be missing, where the prompt ended with it.

    Returns:
        The reasoning and the rest. A block that never ends is all reasoning.
    """
    text = content.lstrip()
    reasoning, closed, rest = text.removeprefix(_OPEN).partition(_CLOSE)
    if not text.startswith(_OPEN) and (not closed or _OPEN in reasoning):
        return "", content
    return reasoning.strip(), rest.lstrip()


class ThinkFilter:
    """Sorts the pieces of a streamed text into reasoning and answer, as `split_think` does with the whole."""

    def __init__(self) -> None:
        self._state: Literal["head", "reasoning", "gap", "text"] = "head"
        self._held = ""

    def feed(self, piece: str) -> Iterator[Delta]:
        """Take the next piece and yield what can be told by now; what may be half a tag is held back."""
        text = self._held + piece
        self._held = ""
        if self._state == "head":
            head = text.lstrip()
            if len(head) < len(_OPEN) and _OPEN.startswith(head):
                self._held = text
                return
            self._state = "reasoning" if head.startswith(_OPEN) else "text"
            text = head.removeprefix(_OPEN) if self._state == "reasoning" else text
        if self._state == "reasoning":
            reasoning, closed, text = text.partition(_CLOSE)
            if closed:
                self._state = "gap"
            else:
                keep = next(n for n in range(len(_CLOSE) - 1, -1, -1) if reasoning.endswith(_CLOSE[:n]))
                self._held = reasoning[len(reasoning) - keep :]
                reasoning = reasoning[: len(reasoning) - keep]
            if reasoning:
                yield Delta("reasoning", reasoning)
        if self._state == "gap":
            text = text.lstrip()
        if text:
            self._state = "text"
            yield Delta("text", text)


def salvage(content: str, offered: Collection[str]) -> tuple[str, tuple[ToolCall, ...]]:
    """Find calls of offered tools that a model wrote as text.

    Known forms, each at the start of a line, fenced, in `<tool_call>` tags or bare: `{"name": …, "arguments": …}`,
    the same in one more pair of braces (as Qwen 2.5's own template shows it), `name {json}`, `name(key="value")`,
    `functions.name: {json}`, and parameters in tags. One that names itself a call but is cut off or malformed is a call
    with malformed arguments, which nobody runs; others like that stay text.

    Returns:
        The text without them, and the calls (with empty ids).
    """
    if not any(name in content for name in offered):
        return content, ()
    calls: list[ToolCall] = []
    kept: list[str] = []
    end = 0
    for count, place in enumerate(_places(offered).finditer(content)):
        if count == _CANDIDATES:
            break
        if place.start() < end:
            continue
        found, stop = _read(content, place, offered)
        if found:
            calls += found
            kept.append(content[end : place.start("call")])
            fence = re.match(r"\s*```", content[stop:]) if "```" in place["call"] else None
            end = stop + fence.end() if fence else stop
    if not calls:
        return content, ()
    return _without_wrappers("".join(kept) + content[end:]), tuple(calls)


def _places(offered: Collection[str]) -> re.Pattern[str]:
    names = "|".join(sorted(map(re.escape, offered), key=len, reverse=True))
    return re.compile(
        r"^[ \t`]*(?:(?:<tool_call>|(?:<\|\w+\|>)+|\[TOOL_CALLS\])\s*)?"
        r"(?P<call>(?P<doubled>\{(?=\{))?(?P<json>[{\[])"
        rf"|(?:<function=|functions?\.)?(?P<name>{names})(?::\d+)?(?:\s*[:>=])?\s*(?:<\|\w+\|>)?(?:```\w*\s*)?"
        r"(?P<open>[({]|<(?=parameter=|arg_key>|/function>|/tool_call>)))",
        re.MULTILINE,
    )


def _read(content: str, place: re.Match[str], offered: Collection[str]) -> tuple[list[ToolCall], int]:
    """Return the calls that begin at this place, and where they end."""
    if place["json"]:
        value, end = _json_at(content, place.start("json"))
        if value is None:
            return _malformed_at(content, end, offered)
        doubled = re.compile(r"\s*\}").match(content, end) if place["doubled"] else None
        return _calls_in(value, offered), doubled.end() if doubled else end
    if place["open"] == "{":
        value, end = _json_at(content, place.start("open"))
        return ([_call(place["name"], value)] if isinstance(value, dict) else []), end
    if place["open"] == "<":
        tagged, end = _tagged_at(content, place.start("open"))
        return [_call(place["name"], tagged)], end
    arguments, end = _keywords_at(content, place.start("open"))
    return ([_call(place["name"], arguments)] if arguments is not None else []), end


def _json_at(text: str, start: int) -> tuple[Any, int]:
    try:
        return json.JSONDecoder(strict=False).raw_decode(text, start)
    except (ValueError, RecursionError):
        return None, start


def _malformed_at(text: str, start: int, offered: Collection[str]) -> tuple[list[ToolCall], int]:
    """Read a `{"name": …, "arguments": …` that is no JSON, up to what ends it."""
    head = _HEAD.match(text, start)
    if head is None or head["name"] not in offered:
        return [], start
    tail = _TAIL.search(text, head.end())
    end = tail.start() if tail else len(text)
    arguments = text[head.end() : end].strip()
    whole, _ = _json_at(arguments, 0)
    return [_call(head["name"], whole if isinstance(whole, dict) else arguments.removesuffix("}"))], end


_HEAD = re.compile(r'\{\s*"name"\s*:\s*"(?:functions\.)?(?P<name>[^"]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*')
_TAIL = re.compile(r"</tool_call>|^[ \t]*```|<\|\w+\|>", re.MULTILINE)


def _tagged_at(text: str, start: int) -> tuple[dict[str, Any] | str, int]:
    """Read parameters that stand in tags, each a JSON value or text; where one is cut off, what comes is malformed."""
    arguments: dict[str, Any] = {}
    while found := _PARAMETER.match(text, start):
        name, value = found["name"] or found["key"], found["text"] if found["name"] else found["value"]
        value = value.removeprefix("\n").removesuffix("\n")
        arguments[name.strip()] = _json_at(value, 0)[0] if value[:1] in ("{", "[") else value
        start = found.end()
    closed = re.compile(r"\s*</(?:function|tool_call)>").match(text, start)
    return (arguments, start) if closed else ("{", len(text))


_PARAMETER = re.compile(
    r"\s*(?:<parameter=(?P<name>[^>\n]+)>(?P<text>.*?)</parameter>"
    r"|<arg_key>(?P<key>[^<]+)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>)",
    re.DOTALL,
)


def _calls_in(value: Any, offered: Collection[str]) -> list[ToolCall]:
    """Read `{"name", "arguments"}`, also one level down in `function`, or a list of such."""
    found = []
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, dict):
            return []
        inner = item.get("function")
        item = inner if isinstance(inner, dict) else item
        name = item.get("name")
        name = name.removeprefix("functions.") if isinstance(name, str) else ""
        if name not in offered or not {"arguments", "parameters"} & item.keys():
            return []
        found.append(_call(name, item.get("arguments", item.get("parameters"))))
    return found


def _keywords_at(text: str, start: int) -> tuple[dict[str, Any] | None, int]:
    """Read `(key=literal, …)` as Python would, where nothing else follows on the line: `name() does …` is prose."""
    end = _closing(text, start)
    if end is None or not re.match(r"[`;\s]*?($|\n|<)", text[end:]):
        return None, start
    try:
        call = ast.parse("f" + text[start:end], mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            return None, start
        arguments = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
        json.dumps(arguments)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None, start
    return (None, start) if None in arguments else ({str(k): v for k, v in arguments.items()}, end)


def _closing(text: str, start: int) -> int | None:
    """Return the position after the bracket that closes the one at `start`, strings respected."""
    depth = 0
    for token in _STRING_OR_BRACKET.finditer(text, start, start + _LONGEST):
        if token[0] in ("'", '"'):  # it never ends
            return None
        depth += (token[0] in "([{") - (token[0] in ")]}")
        if depth == 0:
            return token.end()
    return None


_STRING_OR_BRACKET = re.compile(
    r"""(?s:(?P<long>\"{3}|'{3})(?:\\.|[^\\])*?(?P=long))|(?P<quote>["'])(?:\\.|(?!(?P=quote))[^\\\n])*(?P=quote)|["'()\[\]{}]"""
)
"""Of Python; a mark of a string that never ends stands alone."""


def _call(name: str, arguments: Any) -> ToolCall:
    return ToolCall("", name, arguments if isinstance(arguments, str) else encode(arguments or {}).decode())


def _without_wrappers(text: str) -> str:
    """Remove what was left around the calls: tags, and fences with nothing in them."""
    text = re.sub(r"</?tool_calls?>|</function>|<\|\w+\|>|\[TOOL_CALLS\]", "", text)
    return re.sub(r"```[\w-]*\s*```|(?<!`)``(?!`)", "", text).strip()
