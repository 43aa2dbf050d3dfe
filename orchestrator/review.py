"""Reviews: a second role looks at a result, and it is accepted or sent back. Bounded; fails closed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.answers import Ending
from orchestrator.role import Role


class Verdict(BaseModel):
    """A reviewer's word on a result."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)

    accepted: bool
    """Whether the result is right and complete."""
    feedback: str = ""
    """What is wrong, and how to put it right."""
    confidence: float | None = Field(None, ge=0, le=1)
    """How sure the reviewer is, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a review comes to."""

    accepted: bool
    feedback: str
    confidence: float | None = None


def judge(ending: Ending, reviewer: Role) -> Judgement:
    """Read a reviewer's ending; whatever is no clear acceptance is a rejection."""
    if ending.status != "done":
        why = ending.failure.message if ending.failure else ending.stop_reason
        return Judgement(False, f"the reviewer came to no verdict: {why}")
    try:
        verdict = Verdict.model_validate(ending.value)
    except ValidationError:
        return Judgement(False, f"the reviewer gave no verdict: {ending.answer[:500]}")
    return Judgement(verdict.accepted, verdict.feedback, verdict.confidence)


def is_unsure(confidence: float | None, reviewer: Role) -> bool:
    """Whether a reviewer is less sure of an acceptance than its role asks for."""
    least = reviewer.min_confidence
    return least is not None and (confidence is None or confidence < least)


def verdict_schema(reviewer: Role) -> dict[str, Any]:
    """Return the schema of the reviewer's result."""
    return reviewer.output or Verdict.model_json_schema()


def find_reviewer(roles: Iterable[Role]) -> str | None:
    """Return the first role whose result is a verdict: who reviews where no reviewer is named."""
    return next((r.name for r in roles if r.output and "accepted" in r.output.get("properties", {})), None)
