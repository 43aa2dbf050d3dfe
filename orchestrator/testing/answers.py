"""What a scripted server answers, and how it looks on the wire. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, Unpack

from orchestrator.messages import Json
from orchestrator.models.tokens import estimate_tokens

_PIECE = 12
"""Characters of one streamed piece."""


class Options(TypedDict, total=False):
    """What every kind of answer can be told besides."""

    latency: float
    """Seconds until the first byte."""
    finish_reason: str
    """Instead of the one that fits."""
    usage: Mapping[str, Json] | Literal["counted"] | None
    """Reported as it is; `counted` (the default): from the texts; None: none is reported."""
    reasoning: str
    """Sent as `reasoning_content`."""
    model: str
    """The model that says it answered; left out: the one that was asked."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server answers to one request. Made by `text`, `call` and the others; `+` joins two into one."""

    content: str = ""
    calls: tuple[tuple[str, str, str | None], ...] = ()
    """Name, arguments as JSON text, and id (None: a fresh one)."""
    latency: float = 0.0
    finish_reason: str = ""
    usage: Mapping[str, Json] | Literal["counted"] | None = "counted"
    reasoning: str = ""
    model: str = ""
    ending: Literal["whole", "cut", "drop", "hang"] = "whole"
    page: tuple[int, str, Mapping[str, str]] | None = None
    """Sent instead: status, body, headers."""
    silent: bool = False
    """It ends before its first byte."""

    def __add__(self, other: Answer) -> Answer:
        """Return one answer with the texts and calls of both, and the options of the first."""
        return replace(self, content=self.content + other.content, calls=self.calls + other.calls)


def text(content: str, **options: Unpack[Options]) -> Answer:
    """Answer with text."""
    return Answer(content, **options)


def call(
    tool: str,
    arguments: Mapping[str, Json] | str,
    *,
    id: str | None = None,
    **options: Unpack[Options],
) -> Answer:
    """Answer with one tool call; join several, and text, with `+`.

    Args:
        tool: Its name.
        arguments: An object, or text that is sent as it is, for malformed ones.
        id: Of the call; None: a fresh one, unique on this server.
        options: See `Options`.
    """
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return Answer(calls=((tool, written, id),), **options)


def empty(**options: Unpack[Options]) -> Answer:
    """Answer with neither text nor calls."""
    return Answer(**options)


def fault(status: int, body: Json = None, headers: Mapping[str, str] | None = None, *, latency: float = 0.0) -> Answer:
    """Answer with an HTTP status and any body.

    Args:
        status: 200 too.
        body: A JSON value, or text that is sent as it is; None: an error object.
        headers: Sent besides; `content-type` is JSON unless given.
        latency: Seconds until the first byte.
    """
    if body is None:
        body = {"error": {"message": f"scripted fault {status}", "type": "scripted", "code": None}}
    written = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    return Answer(page=(status, written, {"content-type": "application/json", **(headers or {})}), latency=latency)


def html(page: str = "<!doctype html><title>Welcome</title>", status: int = 200) -> Answer:
    """Answer with a web page, as what is no API does."""
    return fault(status, page, {"content-type": "text/html"})


def cut(answer: Answer) -> Answer:
    """Stop in the middle of the body, but end the HTTP answer well: half a JSON text, or half a stream."""
    return replace(answer, ending="cut")


def drop(answer: Answer | None = None) -> Answer:
    """Close the connection in the middle of an answer; without one, before its first byte."""
    return replace(answer or Answer(silent=True), ending="drop")


def hang(answer: Answer | None = None) -> Answer:
    """Fall silent in the middle of an answer; without one, before its first byte. The connection stays open."""
    return replace(answer or Answer(silent=True), ending="hang")


def rendered(answer: Answer, request: Mapping[str, Any], fresh_id: Callable[[], str]) -> list[bytes]:
    """Return the bytes of the HTTP answer to a request: its head, and its body in the pieces it arrives in."""
    if answer.silent:
        return []
    calls = [(name, arguments, fresh_id() if id_ is None else id_) for name, arguments, id_ in answer.calls]
    if answer.page is None and request.get("stream"):
        return _streamed(answer, *_events(answer, calls, request))
    headers: Mapping[str, str]
    if answer.page is None:
        status, written, headers = 200, _plain(answer, calls, request), {"content-type": "application/json"}
    else:
        status, written, headers = answer.page
    body = written.encode("utf-8", "surrogatepass")
    sent = body if answer.ending == "whole" else body[: len(body) // 2]
    length = len(sent) if answer.ending == "cut" else len(body)
    return [_head(status, {**headers, "content-length": str(length)}), sent]


def _streamed(answer: Answer, first: list[bytes], last: list[bytes]) -> list[bytes]:
    events = first + last if answer.ending == "whole" else first[: (len(first) + 1) // 2]
    chunks = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
    end = b"" if answer.ending in ("drop", "hang") else b"0\r\n\r\n"
    return [_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}), *chunks, end]


def _plain(answer: Answer, calls: list[tuple[str, str, str]], request: Mapping[str, Any]) -> str:
    """Return the JSON of a whole answer."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.content}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if calls:
        message["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments, id_ in calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": _finish(answer)}
    body = {**_envelope(answer, request, "chat.completion"), "choices": [choice]}
    usage = _usage(answer, request)
    return json.dumps(body if usage is None else {**body, "usage": usage}, ensure_ascii=False)


def _events(
    answer: Answer, calls: list[tuple[str, str, str]], request: Mapping[str, Any]
) -> tuple[list[bytes], list[bytes]]:
    """Return the events of a streamed answer: its pieces, and those that say that it is whole."""
    envelope = _envelope(answer, request, "chat.completion.chunk")

    def event(delta: dict[str, Any], finish: str | None = None) -> bytes:
        return _event({**envelope, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    first = [event({"role": "assistant", "content": ""})]
    first += [event({"reasoning_content": piece}) for piece in _pieces(answer.reasoning)]
    first += [event({"content": piece}) for piece in _pieces(answer.content)]
    for index, (name, arguments, id_) in enumerate(calls):
        opening = {"index": index, "id": id_, "type": "function", "function": {"name": name, "arguments": ""}}
        first.append(event({"tool_calls": [opening]}))
        for piece in _pieces(arguments):
            first.append(event({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}))
    last = [event({}, _finish(answer))]
    usage = _usage(answer, request)
    if usage is not None and (request.get("stream_options") or {}).get("include_usage"):
        last.append(_event({**envelope, "choices": [], "usage": usage}))
    return first, [*last, b"data: [DONE]\n\n"]


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _envelope(answer: Answer, request: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return {"id": "scripted", "object": kind, "created": 1, "model": answer.model or request.get("model", "")}


def _event(data: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % json.dumps(data, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _pieces(text: str) -> list[str]:
    return [text[i : i + _PIECE] for i in range(0, len(text), _PIECE)]


def _finish(answer: Answer) -> str:
    return answer.finish_reason or ("tool_calls" if answer.calls else "stop")


def _usage(answer: Answer, request: Mapping[str, Any]) -> Mapping[str, Json] | None:
    if answer.usage != "counted":
        return answer.usage
    written = answer.content + answer.reasoning + "".join(name + arguments for name, arguments, _ in answer.calls)
    read = json.dumps([request["messages"], request.get("tools", ())], ensure_ascii=False)
    prompt, completion = estimate_tokens(read), estimate_tokens(written)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
