"""What an endpoint's refusal means: status, headers and body become one `Failure`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any

from orchestrator.errors import ModelError
from orchestrator.failure import Failure, FailureKind
from orchestrator.models.wire import decode

_QUOTE = 300
"""Characters of the server's own words that a message repeats."""
_READ = 100_000
"""Characters of a refusal that are looked at."""

_BY_CODE = {
    "insufficient_quota": FailureKind.quota,
    "context_length_exceeded": FailureKind.context_overflow,
    "content_filter": FailureKind.content_filter,
    "tool_use_failed": FailureKind.bad_model_output,
    "rate_limit_exceeded": FailureKind.rate_limited,
    "model_not_found": FailureKind.auth,
    "invalid_api_key": FailureKind.auth,
}
"""By the error's own `code` or `type`, where they say what they mean."""

_BY_TEXT = [
    (
        FailureKind.context_overflow,
        r"context.?(length|size|window)|maximum (model|context) length|input tokens? exceed|prompt is too long"
        r"|too many (input )?tokens|input is too long|range of input length|reduce the length of the messages"
        r"|request too large|上下文|输入.{0,6}(超出|超过).{0,6}长度|(输入|prompt).{0,4}(过|超)长",
    ),
    (FailureKind.bad_model_output, r"failed to (call a function|parse (tool call|input))"),
    (
        FailureKind.content_filter,
        r"content[_ ](filter|management policy|exists risk)|responsible.?ai|data.?inspection|敏感(内容|词)",
    ),
    (FailureKind.quota, r"per[ _-]?day|(每|当|今)[日天]"),
    (
        FailureKind.rate_limited,
        r"per[ _-]?(min|sec)|(try again|retry) in|too many requests|throttl"
        r"|过于频繁|降低.{0,4}频率|限流|速率限制",
    ),
    (
        FailureKind.quota,
        r"insufficient.(quota|balance|credit)|exceeded.{0,20}quota|credit balance|requires more credits"
        r"|arrearage|billing|欠费|余额不足",
    ),
    (
        FailureKind.overloaded,
        r"overload|provider.?unavailable|loading model|server is busy|temporarily unavailable|繁忙|稍后(再|重)试",
    ),
    (
        FailureKind.auth,
        r"(incorrect|invalid).{0,10}api.?key|model.{0,80}(does not exist|not found)"
        r"|api.?key.{0,4}(无效|错误|不正确|过期)|(无效|错误).{0,2}api.?key|模型.{0,20}不存在",
    ),
]
"""By the server's words, the first match counts: a quota per minute is a rate limit, one per day is not."""

_BY_STATUS = {
    401: FailureKind.auth,
    402: FailureKind.quota,
    403: FailureKind.auth,
    407: FailureKind.auth,
    408: FailureKind.timeout,
    409: FailureKind.overloaded,
    413: FailureKind.context_overflow,
    425: FailureKind.overloaded,
    429: FailureKind.rate_limited,
    498: FailureKind.overloaded,
}

_NO_PLACE = (404, 405)
"""Status of what does not know the place that it was asked at."""

_ADVICE = {
    FailureKind.auth: "check `api_key` and `model` of this model in ori.yaml (or OPENAI_API_KEY)",
    FailureKind.quota: "the account has no quota left: check its plan and billing",
    FailureKind.not_json: "check `base_url`: it must name an OpenAI-compatible API, and usually ends in /v1",
    FailureKind.context_overflow: "the conversation does not fit the model's window: check `window` in ori.yaml",
}


@dataclass(frozen=True, slots=True)
class _Error:
    """What an error body says, wherever it says it."""

    message: str
    code: str
    type: str
    raw: str


class Answered(ModelError):
    """A server answered a request with a refusal.

    Args:
        failure: What it means.
        status: HTTP status.
        said: The whole body.
    """

    def __init__(self, failure: Failure, status: int, said: str) -> None:
        super().__init__(failure)
        self.status, self.said = status, said


def refusal(status: int, headers: Mapping[str, str], body: str) -> Answered:
    """Return the error that an answer without a reply is; takes what `classify` takes."""
    body = body[:_READ]
    return Answered(classify(status, headers, body), status, body)


def classify(status: int, headers: Mapping[str, str], body: str) -> Failure:
    """Tell what went wrong from an answer that holds no reply.

    Args:
        status: HTTP status; 200 too, as errors also come with it, whole or as an event of a stream.
        headers: Looked at for the wait that the server asks for.
        body: JSON of any shape, a web page, plain text, or a part of these.
    """
    if 300 <= status < 400:
        to = next((value for name, value in headers.items() if name.lower() == "location"), "nowhere")
        return Failure(FailureKind.not_json, _worded(FailureKind.not_json, status, f"it sends on to {_short(to)}"))
    failure = _failure(status, body)
    seconds = _asked_wait(headers)
    if seconds is None:
        return failure
    said = f"{failure.message}; the server asks to wait {seconds:g} s"
    return replace(failure, message=said, retry_after=seconds)


def _failure(status: int, body: str) -> Failure:
    try:
        data = decode(body.encode("utf-8", "replace"))
    except ValueError:
        return _no_json(status, body)
    error = _read(data)
    if error is None and status < 400:
        advice = "" if '"choices"' in body else f"; {_ADVICE[FailureKind.not_json]}"
        return Failure(FailureKind.overloaded, f"the answer has no choices: {_short(body)}{advice}")
    if error is None:
        error = _Error(_short(body), "", "", "")
    kind = _kind(status, error)
    said = error.message or error.raw or error.code or error.type or f"status {status}"
    return Failure(kind, _worded(kind, status, _short(said)))


def _kind(status: int, error: _Error) -> FailureKind:
    for name in (error.code, error.type):
        if name in _BY_CODE:
            return _BY_CODE[name]
    words = f"{error.message} {error.code} {error.type} {error.raw}"
    for kind, pattern in _BY_TEXT:
        if re.search(pattern, words, re.IGNORECASE):
            return kind
    if status < 400:  # the error came with 200: its code is the status, if it is one
        status = int(error.code) if re.fullmatch(r"[1-9][0-9]{2}", error.code) else 500
    if status == 404:
        return FailureKind.auth if "model" in words.lower() else FailureKind.not_json
    return _BY_STATUS.get(status, FailureKind.overloaded if status >= 500 else FailureKind.invalid_request)


def _no_json(status: int, body: str) -> Failure:
    text = body.strip()
    if (
        status >= 500
        or status in _BY_STATUS
        or (status >= 400 and status not in _NO_PLACE and not text.startswith("<"))
    ):
        error = _Error("" if text.startswith("<") else text, "", "", "")
        kind = _kind(status, error)
        return Failure(kind, _worded(kind, status, _short(_title(text)) or "an empty answer"))
    if status < 400 and not text:
        return Failure(FailureKind.truncated_stream, "an empty answer")
    if status < 400 and text[0] in "{[":
        return Failure(FailureKind.truncated_stream, f"the answer is cut off: …{text[-80:]}")
    what = "a web page" if text.startswith("<") else "text"
    kind = FailureKind.not_json
    return Failure(kind, _worded(kind, status, f"{what} came back instead of JSON: {_short(_title(text))}"))


def _worded(kind: FailureKind, status: int, said: str) -> str:
    advice = f"; {_ADVICE[kind]}" if kind in _ADVICE else ""
    return f"{said} (status {status}){advice}"


def _read(data: Any) -> _Error | None:
    """Find the error in a body of any of the shapes in use."""
    if isinstance(data, list) and data:
        data = data[0]
    if not isinstance(data, dict):
        return _Error(str(data), "", "", "")
    error = data.get("error") or data.get("detail") or (data if isinstance(data.get("message"), str) else None)
    if error is None:
        return None
    if not isinstance(error, dict):
        return _Error(str(error), "", "", "")
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    return _Error(*(_text(x) for x in (error.get("message"), error.get("code"), error.get("type"), raw)))


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _title(page: str) -> str:
    found = re.search(r"<title>([^<]*)</title>", page, re.IGNORECASE)
    return found[1] if found else page


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _QUOTE else text[:_QUOTE] + "…"


def _asked_wait(headers: Mapping[str, str]) -> float | None:
    """Read the seconds of `Retry-After-Ms`, which is finer and wins, or of `Retry-After`: a number, or a date."""
    lower = {name.lower(): value for name, value in headers.items()}
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(lower[name]) * unit
        except (KeyError, ValueError):
            continue
        if isfinite(seconds):
            return max(0.0, seconds)
    until = _date(lower.get("retry-after", ""))
    now = _date(lower.get("date", "")) or datetime.now(UTC)  # the server's own clock, where it tells it
    return max(0.0, (until - now).total_seconds()) if until else None


def _date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)
