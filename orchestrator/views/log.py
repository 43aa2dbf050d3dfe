"""A run as log lines: each lasting event one structlog line. The library is silent until somebody asks for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from orchestrator.events import (
    PASSING,
    BreakerChanged,
    BudgetReached,
    Compacted,
    Event,
    MessageAppended,
    ModelCalled,
    ModelFailed,
    ModelReplied,
    PlanProposed,
    PlanRejected,
    ReviewDone,
    RunEnded,
    RunResumed,
    RunStarted,
    SubtaskEnded,
    ToolReturned,
    ToolStarted,
    VariableSet,
    Warned,
    particulars,
)
from orchestrator.results import Outcome, RunResult

Level = Literal["debug", "info", "warning", "error"]
_DEBUG = (MessageAppended, ModelCalled, ModelReplied, ToolStarted, VariableSet, PlanProposed, Compacted)
_WARNING = (Warned, BudgetReached, BreakerChanged, PlanRejected)
_HEAD, _TAIL = 1500, 500
"""Characters that are kept of a long text."""


def log_to(logger: Any, redact: Callable[[str], str] = lambda text: text) -> Callable[[Event], None]:
    """Return a function that logs events; prompts and replies are logged at level `debug`.

    Args:
        logger: A structlog logger, or one that takes the same calls: `logger.info(event, **fields)`.
        redact: Takes secrets out of a text.
    """

    def log(event: Event) -> None:
        if isinstance(event, PASSING):
            return
        place = {name: value for name in ("run", "seq", "path", "key") if (value := getattr(event, name))}
        at = datetime.fromtimestamp(event.at, UTC).isoformat(timespec="milliseconds")
        said = {name: _short(value, redact) for name, value in _said(event).items()}
        getattr(logger, level(event))(event.type, timestamp=at, **place, **said)

    return log


def stream_logger(file: TextIO, verbose: bool = False) -> Any:
    """Return a logger with processors of its own: JSON lines, or `key=value` for a person at a terminal.

    `ORI_LOG=json` and `ORI_LOG=console` choose one.

    Args:
        file: Where the lines go.
        verbose: Log prompts, replies and other details, too.
    """
    import structlog

    wanted = os.environ.get("ORI_LOG") or ("console" if file.isatty() else "json")
    renderer: Any
    if wanted == "json":
        renderer = structlog.processors.JSONRenderer(ensure_ascii=False, default=str)
    else:
        colors = file.isatty() and not os.environ.get("NO_COLOR")
        renderer = structlog.dev.ConsoleRenderer(colors=colors, repr_native_str=True, pad_event_to=16)
    return structlog.wrap_logger(
        structlog.PrintLogger(file),
        processors=[structlog.processors.add_log_level, renderer],
        wrapper_class=structlog.make_filtering_bound_logger("debug" if verbose else "info"),
    )


def level(event: Event) -> Level:
    """Return how much an event matters."""
    match event:
        case ModelFailed() | RunEnded(result=RunResult(status="failed")):
            return "error"
        case SubtaskEnded(outcome=Outcome(status=status)) if status not in ("done", "skipped"):
            return "warning"
        case ToolReturned(ok=False) | ReviewDone(accepted=False):
            return "warning"
    if isinstance(event, _WARNING):
        return "warning"
    return "debug" if isinstance(event, _DEBUG) else "info"


def _said(event: Event) -> dict[str, Any]:
    """Return what only this event holds, without what would fill pages."""
    match event:
        case RunStarted():
            kept = ("goal", "root", "scenario", "params", "inputs", "workspace", "models", "limits")
            said = {name: getattr(event, name) for name in kept}
        case RunResumed():
            said = {name: getattr(event, name) for name in ("reused", "again", "paid_twice", "changed", "message")}
        case RunEnded(result=end) | SubtaskEnded(outcome=end):
            said = {"status": end.status, "stop_reason": end.stop_reason, "answer": end.answer}
            said |= {"failure": end.failure, "tokens": end.usage.tokens, "cost": end.usage.cost}
        case MessageAppended(message=message):
            said = {"role": message.role, "content": message.content, "calls": message.calls}
        case ModelReplied(usage=usage):
            said = {"model": event.model, "finish_reason": event.finish_reason, "seconds": event.seconds}
            said |= usage.model_dump(exclude_defaults=True)
        case _:
            said = particulars(event)
    return {name: value for name, value in said.items() if value not in (None, "", (), {})}


def _short(value: Any, redact: Callable[[str], str]) -> Any:
    """Make a value fit for a log line: redacted, and long texts cut."""
    if isinstance(value, str):
        text = redact(value)
        if len(text) <= _HEAD + _TAIL:
            return text
        return f"{text[:_HEAD]} … ({_HEAD + _TAIL} of {len(text)} characters) … {text[-_TAIL:]}"
    if is_dataclass(value) and not isinstance(value, type):
        return _short(asdict(value), redact)
    if isinstance(value, Mapping):
        return {name: _short(item, redact) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(item, redact) for item in value]
    return value
