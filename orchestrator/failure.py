"""The one taxonomy of what can go wrong, and what each kind leads to. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Ends = Literal["nothing", "call", "subtask", "run"]
StopReason = Literal[
    "answer",
    "max_turns",
    "repeated_calls",
    "tool_failures",
    "empty_replies",
    "cut",
    "invalid_output",
    "plan_invalid",
    "budget",
    "deadline",
    "cancelled",
    "need_failed",
    "rejected",
    "model_unavailable",
    "needs_person",
    "bug",
]
"""Why a loop ended, or was asked to sum up."""


class FailureKind(StrEnum):
    """What went wrong."""

    rate_limited = "rate_limited"
    overloaded = "overloaded"
    timeout = "timeout"
    connection = "connection"
    not_json = "not_json"
    truncated_stream = "truncated_stream"
    auth = "auth"
    quota = "quota"
    invalid_request = "invalid_request"
    context_overflow = "context_overflow"
    content_filter = "content_filter"
    bad_model_output = "bad_model_output"
    tool_error = "tool_error"
    tool_timeout = "tool_timeout"
    budget = "budget"
    cancelled = "cancelled"
    needs_person = "needs_person"
    replay_miss = "replay_miss"
    bug = "bug"


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that went wrong, in words that a person can act on."""

    kind: FailureKind
    message: str
    retry_after: float | None = None
    """Seconds that the server asks to wait before the next request, if it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What one kind of failure leads to: first at the endpoint, then above it."""

    retry: bool = False
    """The same request may go better in a moment."""
    breaker: bool = False
    """It says that the endpoint is ill: so many in a row, and nothing is sent to it for a while."""
    fallback: bool = False
    """Another model may answer instead."""
    ends: Ends
    """The largest thing that ends because of it."""
    again: bool = False
    """A new attempt at the same subtask may go better."""
    advice: str = ""
    """What the planner is told it can do about it."""


_OUTAGE = "the model endpoint does not answer properly; nothing in the plan can change that"
_ILL = Rule(retry=True, breaker=True, fallback=True, ends="run", advice=_OUTAGE)
_REFUSED = Rule(fallback=True, ends="run", advice=_OUTAGE)
RULES: dict[FailureKind, Rule] = {
    FailureKind.rate_limited: Rule(retry=True, fallback=True, ends="run", advice=_OUTAGE),
    FailureKind.overloaded: _ILL,
    FailureKind.timeout: _ILL,
    FailureKind.connection: _ILL,
    FailureKind.not_json: _REFUSED,
    FailureKind.truncated_stream: _ILL,
    FailureKind.auth: _REFUSED,
    FailureKind.quota: _REFUSED,
    FailureKind.invalid_request: Rule(ends="subtask", advice="give the subtask a shorter or simpler goal"),
    FailureKind.context_overflow: Rule(ends="subtask", advice="split the subtask into smaller ones"),
    FailureKind.content_filter: Rule(ends="subtask", advice="word the goal differently"),
    FailureKind.bad_model_output: Rule(
        retry=True, ends="subtask", again=True, advice="word the goal more simply, or use another role"
    ),
    FailureKind.tool_error: Rule(ends="subtask", again=True, advice="check the names in the goal, or use another role"),
    FailureKind.tool_timeout: Rule(ends="subtask", advice="ask for less in one step"),
    FailureKind.budget: Rule(ends="run", advice="finish with what there is"),
    FailureKind.cancelled: Rule(ends="subtask"),
    FailureKind.needs_person: Rule(ends="subtask", advice="a person has to look at it"),
    FailureKind.replay_miss: Rule(ends="run", advice="record the run anew"),
    FailureKind.bug: Rule(ends="subtask", advice="use another role or another way"),
}
"""One row per kind."""
