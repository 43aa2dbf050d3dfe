"""The one taxonomy of what can go wrong, and what each kind leads to. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Ends = Literal["nothing", "call", "subtask", "run"]


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
    bug = "bug"


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that went wrong, in words that a person can act on."""

    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True)
class Rule:
    """What one kind of failure leads to."""

    ends: Ends
    """The largest thing that ends because of it."""
    again: bool = False
    """A new attempt at the same subtask may go better."""
    advice: str = ""
    """What the planner is told it can do about it."""


_OUTAGE = "the model endpoint does not answer properly; nothing in the plan can change that"
RULES: dict[FailureKind, Rule] = {
    FailureKind.rate_limited: Rule("run", advice=_OUTAGE),
    FailureKind.overloaded: Rule("run", advice=_OUTAGE),
    FailureKind.timeout: Rule("run", advice=_OUTAGE),
    FailureKind.connection: Rule("run", advice=_OUTAGE),
    FailureKind.not_json: Rule("run", advice=_OUTAGE),
    FailureKind.truncated_stream: Rule("run", advice=_OUTAGE),
    FailureKind.auth: Rule("run", advice=_OUTAGE),
    FailureKind.quota: Rule("run", advice=_OUTAGE),
    FailureKind.invalid_request: Rule("subtask", advice="give the subtask a shorter or simpler goal"),
    FailureKind.context_overflow: Rule("subtask", advice="split the subtask into smaller ones"),
    FailureKind.content_filter: Rule("subtask", advice="word the goal differently"),
    FailureKind.bad_model_output: Rule("subtask", again=True, advice="word the goal more simply, or use another role"),
    FailureKind.tool_error: Rule("subtask", again=True, advice="check the names in the goal, or use another role"),
    FailureKind.tool_timeout: Rule("subtask", advice="ask for less in one step"),
    FailureKind.budget: Rule("run", advice="finish with what there is"),
    FailureKind.cancelled: Rule("subtask"),
    FailureKind.needs_person: Rule("subtask", advice="a person has to look at it"),
    FailureKind.bug: Rule("subtask", advice="use another role or another way"),
}
"""One row per kind. Retries of the request itself, the breaker and fallback models belong to the endpoint."""
