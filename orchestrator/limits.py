"""Limits, and the budgets that are reserved before each model call. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

from pydantic import Field

from orchestrator.messages import Usage
from orchestrator.strict import Strict


class Limits(Strict):
    """Upper bounds. Where several apply (project, scenario, role, subtask, call), the smallest that is set counts."""

    max_turns: int = Field(30, ge=1)
    """Model calls of one loop."""
    timeout: float | None = Field(None, gt=0)
    """Seconds of one loop."""
    max_parallel: int = Field(4, ge=1)
    """Subtasks that work at the same time in one run."""
    max_subtasks: int = Field(50, ge=1)
    """Subtasks of one planner."""
    tokens: int = Field(500_000, ge=1)
    """Tokens read and written by one run; as a limit of a role: by one subtask and all below it."""
    cost: Decimal | None = Field(None, gt=0)
    """Money spent likewise, in the currency of the models' prices."""
    model_calls: int = Field(200, ge=1)
    """Model calls, counted likewise."""
    time: float = Field(3600, gt=0)
    """Seconds of one run."""

    @classmethod
    def combine(cls, *limits: Limits | None) -> Limits:
        """Return the smallest of what is set in any of them; what nobody sets keeps its default."""
        if wrong := [x for x in limits if not isinstance(x, cls | None)]:
            raise TypeError(f"limits is {wrong[0]!r}; write Limits(tokens=50_000)")
        chosen: dict[str, object] = {}
        for name in cls.model_fields:
            values = [v for x in limits if x and name in x.model_fields_set and (v := getattr(x, name)) is not None]
            if values:
                chosen[name] = min(values)
        return cls.model_validate(chosen)


SPARE_SECONDS = 60.0
SPARE_SHARE = 0.1
"""Part of a loop's time (at most `SPARE_SECONDS`) and of its budget that is kept for summing up."""
LEAST_OUTPUT = 256
"""Tokens of an answer; a call that could not have so many is not made."""

Moment = Literal["first", "next", "last"]
"""Which call of its loop it is; in the last one it sums up."""


@dataclass(frozen=True, slots=True)
class Need:
    """What one model call may take."""

    prompt: int
    """Tokens it reads, as estimated."""
    output: int
    """Tokens it may write."""
    read_cost: Decimal = Decimal(0)
    """Of one token read; 0: the price is unknown, and nothing can be held."""
    write_cost: Decimal = Decimal(0)
    """Of one token written."""

    @property
    def tokens(self) -> int:
        """Tokens read and written."""
        return self.prompt + self.output

    @property
    def cost(self) -> Decimal:
        """Money for all of them."""
        return self.prompt * self.read_cost + self.output * self.write_cost


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The answer to a call that does not fit."""

    limit: str
    """What leaves no room for it, as `tokens: 1200 of 1000`."""
    by: Budget
    """Whose limit it is: the budget that was asked, or one above it."""


@dataclass(frozen=True, slots=True)
class _Amount:
    """One limit, and what a call needs of it."""

    name: str
    limit: int | Decimal
    spent: int | Decimal
    held: int | Decimal
    """By calls that have not ended."""
    aside: int | Decimal
    prompt: int | Decimal
    """What the call takes before it writes."""
    each: int | Decimal
    """What each token takes that it writes."""

    @property
    def free(self) -> int | Decimal:
        """What is left for writing if the calls that have not ended take nothing."""
        return self.limit - self.spent - self.aside - self.prompt

    def output(self, most: int) -> int:
        """Return how many tokens can be written then; -1: not even the prompt fits."""
        if self.free < 0 or (self.free == 0 and not self.each):
            return -1
        return min(most, int(self.free // self.each)) if self.each else most

    def __str__(self) -> str:
        least = self.prompt + LEAST_OUTPUT * self.each + self.aside
        more = f"; going on takes {_text(least)} or more" if self.spent < self.limit else ""
        return f"{self.name}: {_text(self.spent)} of {_text(self.limit)}{more}"


@dataclass(slots=True)
class Budget:
    """What may be spent and what was: by a run, or by a loop and all below it.

    A call is reserved before it begins, with the longest answer it may get, and settled afterwards with what it took;
    it counts in the budgets above, too. So calls at the same time cannot overshoot together, and none is refused while
    others only hold what they may not use. Where less is left than the longest answer takes, a shorter one is granted.
    """

    tokens: int | None = None
    cost: Decimal | None = None
    calls: int | None = None
    above: Budget | None = None
    cost_name: str = "cost"
    spent: Usage = Usage()
    begun: int = 0
    """Model calls, those that have not ended included."""
    aside: Need | None = None
    """Kept for the call in which the owner, the loop that the budget belongs to, sums up."""
    held_tokens: int = 0
    held_cost: Decimal = Decimal(0)

    @classmethod
    def of_run(cls, limits: Limits, above: Budget | None = None) -> Budget:
        """Return the budget of a run."""
        return cls(limits.tokens, limits.cost, limits.model_calls, above)

    @classmethod
    def of_part(cls, limits: Limits, above: Budget) -> Budget | None:
        """Return the budget of a loop and all below it; None when no limit is set for them."""
        own = {name: getattr(limits, name) for name in limits.model_fields_set & {"tokens", "cost", "model_calls"}}
        return cls(own.get("tokens"), own.get("cost"), own.get("model_calls"), above) if own else None

    def begin_at(self, spent: Usage) -> None:
        """Count on from what was spent before."""
        self.spent, self.begun = spent, spent.calls

    def reserve(self, need: Need, moment: Moment = "next", *, owner: bool = False) -> Need | Exhausted | None:
        """Hold what a call may take, here and above.

        Args:
            need: What it takes.
            moment: The owner's first and last calls may take what is set aside. Its last one always gets a short
                answer: where that overshoots, estimates were too low.
            owner: It is the owner's call.

        Returns:
            What the call gets, to be settled; None: it has to wait until another call is settled.
        """
        output, amounts = need.output, []
        for budget in reversed(tuple(self._chain())):
            own = owner and budget is self
            aside = None if own and moment != "next" else budget.aside
            if budget.calls is not None and budget.begun + 1 + (aside is not None) > budget.calls:
                return Exhausted(f"model_calls: {budget.begun} of {budget.calls}", budget)
            for amount in budget._amounts(need, aside):
                room, least = amount.output(need.output), min(LEAST_OUTPUT, need.output)
                if own and moment == "last":
                    room = max(room, least)
                if room < least:
                    return Exhausted(str(amount), budget)
                output = min(output, room)
                amounts.append(amount)
        if any(amount.held and amount.held + output * amount.each > amount.free for amount in amounts):
            return None
        granted = need if output == need.output else replace(need, output=output)
        for budget in self._chain():
            budget.begun += 1
            budget._hold(granted, 1)
        return granted

    def settle(self, granted: Need, usage: Usage | None) -> None:
        """Take what a call really took for what was held; None: it failed."""
        for budget in self._chain():
            budget._hold(granted, -1)
            if usage is not None:
                budget.spent += usage

    def set_aside(self, need: Need) -> None:
        """Keep what a last call would take; of a small budget only a part for its answer."""
        output = need.output
        if self.tokens is not None:
            output = min(output, int(self.tokens * SPARE_SHARE))
        if self.cost is not None and need.write_cost:
            output = min(output, int(self.cost * Decimal(SPARE_SHARE) / need.write_cost))
        output = max(output, min(LEAST_OUTPUT, need.output))
        self.aside = need if output == need.output else replace(need, output=output)

    def expect(self, tokens: int) -> None:
        """Keep more for the last call: so many tokens will be in its prompt."""
        if self.aside is not None:
            self.aside = replace(self.aside, prompt=self.aside.prompt + tokens)

    def within_sight(self) -> Iterator[str]:
        """Say what is left, here and above, of each limit that is more than half used, as `300 of 1000 tokens`."""
        for budget in self._chain():
            for amount in budget._amounts(Need(0, 0), budget.aside):
                if 2 * amount.free < amount.limit:
                    yield f"{_text(max(amount.free, 0))} of {_text(amount.limit)} {amount.name}"
            left = (budget.calls or 0) - budget.begun - (budget.aside is not None)
            if budget.calls is not None and 2 * left < budget.calls:
                yield f"{max(left, 0)} of {budget.calls} model calls"

    def has_limits_of(self, other: Budget) -> bool:
        """Whether both have the same limits."""
        return (self.tokens, self.cost, self.calls) == (other.tokens, other.cost, other.calls)

    @property
    def counts_money(self) -> bool:
        """Whether here or above money is limited."""
        return any(budget.cost is not None for budget in self._chain())

    def _chain(self) -> Iterator[Budget]:
        budget: Budget | None = self
        while budget is not None:
            yield budget
            budget = budget.above

    def _amounts(self, need: Need, aside: Need | None) -> Iterator[_Amount]:
        aside = aside or Need(0, 0)
        if self.tokens is not None:
            yield _Amount("tokens", self.tokens, self.spent.tokens, self.held_tokens, aside.tokens, need.prompt, 1)
        if self.cost is not None:
            spent, prompt = self.spent.cost or Decimal(0), need.prompt * need.read_cost
            yield _Amount(self.cost_name, self.cost, spent, self.held_cost, aside.cost, prompt, need.write_cost)

    def _hold(self, need: Need, sign: int) -> None:
        self.held_tokens += sign * need.tokens
        self.held_cost += sign * need.cost


def _text(amount: int | Decimal) -> str:
    return f"{round(amount, 6).normalize():f}" if isinstance(amount, Decimal) else str(amount)


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a loop has to sum up, and when it is stopped. In seconds of its work."""

    soft: float
    hard: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the deadline of something that may take so many seconds."""
        return cls(seconds - min(SPARE_SECONDS, SPARE_SHARE * seconds), seconds)
