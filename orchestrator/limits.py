"""Limits, and the budget that a run spends. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.messages import Usage


class Limits(BaseModel):
    """Upper bounds. Where several apply (project, scenario, role, subtask, call), the smallest that is set counts."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_turns: int = Field(30, ge=1)
    """Model calls of one loop."""
    timeout: float | None = Field(None, gt=0)
    """Seconds of one loop."""
    max_parallel: int = Field(4, ge=1)
    """Subtasks that work at the same time in one run."""
    max_subtasks: int = Field(50, ge=1)
    """Subtasks of one planner."""
    tokens: int = Field(500_000, ge=1)
    """Tokens read and written by one run."""
    cost: Decimal | None = Field(None, gt=0)
    """Money spent by one run, in the currency of the models' prices."""
    model_calls: int = Field(200, ge=1)
    """Model calls of one run."""
    time: float = Field(3600, gt=0)
    """Seconds of one run."""

    @classmethod
    def combine(cls, *limits: Limits | None) -> Limits:
        """Return the smallest of what is set in any of them; what nobody sets keeps its default."""
        chosen: dict[str, object] = {}
        for name in cls.model_fields:
            values = [v for x in limits if x and name in x.model_fields_set and (v := getattr(x, name)) is not None]
            if values:
                chosen[name] = min(values)
        return cls.model_validate(chosen)


@dataclass(slots=True)
class Budget:
    """What one run has spent of its limits. One ledger counts every model call of every loop."""

    limits: Limits
    spent: Usage = Usage()
    started: int = 0
    """Model calls that were begun, the unfinished ones included."""

    def add(self, usage: Usage) -> None:
        """Count a finished model call."""
        self.spent += usage

    @property
    def calls_left(self) -> int:
        """Model calls that may still be begun."""
        return self.limits.model_calls - self.started

    def exhausted(self, elapsed: float, spare_calls: int) -> str | None:
        """Name the limit that leaves no room for another call, or None.

        Args:
            elapsed: Active seconds of the run so far.
            spare_calls: Model calls that are kept for somebody else.
        """
        limits, spent = self.limits, self.spent
        if self.calls_left <= spare_calls:
            return f"model_calls: {self.started} of {limits.model_calls}"
        if spent.tokens >= limits.tokens:
            return f"tokens: {spent.tokens} of {limits.tokens}"
        if limits.cost is not None and spent.cost is not None and spent.cost >= limits.cost:
            return f"cost: {spent.cost} of {limits.cost}"
        if elapsed >= limits.time:
            return f"time: {elapsed:.0f} s of {limits.time:.0f} s"
        return None


SPARE_SECONDS = 60.0
SPARE_SHARE = 0.1
"""A loop stops working this long (the smaller of the two) before its time is up, so that it can sum up."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a loop has to sum up, and when it is stopped. In seconds of one monotonic clock."""

    started: float
    soft: float
    hard: float

    @classmethod
    def after(cls, now: float, seconds: float) -> Deadline:
        """Return the deadline of something that may take so many seconds from now."""
        return cls(now, now + seconds - min(SPARE_SECONDS, SPARE_SHARE * seconds), now + seconds)

    def within(self, now: float, seconds: float | None) -> Deadline:
        """Return the deadline of a child that may take so many seconds, and must end before its parent sums up."""
        left = self.soft - now
        return Deadline.after(now, left if seconds is None else min(seconds, left))

    def elapsed(self, now: float) -> float:
        """Return the seconds since the start."""
        return now - self.started
