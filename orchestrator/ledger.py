"""What one run spends: reserved before each model call, settled after it, by everybody who works in it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

from orchestrator.errors import OutOfBudget
from orchestrator.eventloops import Bell
from orchestrator.events import BudgetReached, Warned
from orchestrator.limits import Budget, Exhausted, Limits, Moment, Need
from orchestrator.messages import Usage
from orchestrator.models.tokens import Price

if TYPE_CHECKING:
    from orchestrator.journal import Journal
    from orchestrator.journal.log import RunLog
    from orchestrator.models import Model

_READ_AGAIN = 60.0
"""Seconds after which the log is asked again for what other processes have spent."""


@dataclass(slots=True)
class Call:
    """One model call that was let through."""

    max_output: int | None
    """Tokens that it may write; None: as many as it asked for."""
    usage: Usage | None = None
    """What it took, once it is known."""


class Ledger:
    """Counts what a run spends, and lets model calls through while its budgets last.

    Args:
        limits: Of the run.
        root: Path of the root loop, which sums up when the run's budget ends.
        log: Of the run.
        today: What all runs may spend in a day.
        spent: What was spent before the run was interrupted, by path.
    """

    def __init__(
        self,
        limits: Limits,
        root: str,
        log: RunLog,
        today: Today | None = None,
        *,
        spent: Mapping[str, Usage] | None = None,
    ) -> None:
        self._usage: dict[str, Usage] = dict(spent or {})
        self._run = Budget.of_run(limits, above=today.budget if today else None)
        self._run.begin_at(self.usage(root))
        self._budgets = {root: self._run}  # by the path of the loop that owns it
        self._log = log
        self._today = today
        self._settled = today.settled if today else Bell()
        self._told: set[object] = set()

    @property
    def spent(self) -> Usage:
        """What the run has spent so far."""
        return self._run.spent

    def usage(self, path: str) -> Usage:
        """Return what a loop and everything below it has spent: its attempts, reviews and children."""
        total = Usage()
        for other, usage in self._usage.items():
            if other == path or other.startswith((f"{path}/", f"{path}~")):
                total += usage
        return total

    def limit(self, path: str, limits: Limits) -> None:
        """Limit what a loop below the root and everything below it may spend; attempts of one role share that."""
        place = _first_attempt(path)
        above, _ = self._budget(place.rpartition("/")[0])
        budget = Budget.of_part(limits, above)
        if budget is None:
            self._budgets.pop(place, None)
        elif not ((known := self._budgets.get(place)) and known.has_limits_of(budget)):
            if known is None:
                budget.begin_at(self.usage(place))
            self._budgets[place] = budget

    def set_aside(self, path: str, model: Model, prompt: int, output: int) -> None:
        """Keep what a loop needs to sum up, if it has a budget of its own."""
        budget, owner = self._budget(path)
        if owner:
            budget.set_aside(_need(model, prompt, output))

    def expect(self, path: str, tokens: int) -> None:
        """Keep more for summing up: so many tokens will be in the loop's next prompt."""
        budget, owner = self._budget(path)
        if owner:
            budget.expect(tokens)

    def within_sight(self, path: str) -> list[str]:
        """Say what is left of each limit that is more than half used, as `300 of 1000 tokens`."""
        return list(self._budget(path)[0].within_sight())

    @asynccontextmanager
    async def call(
        self, path: str, model: Model, prompt: int, output: int, moment: Moment = "next"
    ) -> AsyncIterator[Call]:
        """Wait until a model call fits into the budgets, and hold for it what it may take.

        Args:
            path: The loop.
            model: Whom it asks.
            prompt: Tokens it reads, as estimated.
            output: Tokens it may write.
            moment: Which call of the loop it is.

        Raises:
            OutOfBudget: It does not fit, even if all others took nothing.
        """
        budget, owner = self._budget(path)
        need = _need(model, prompt, output)
        self._warn_without_price(budget, model)
        if self._today:
            await self._today.read()
        if owner and moment == "next":
            budget.set_aside(need)
        while (granted := budget.reserve(need, moment, owner=owner)) is None:
            await self._settled.wait()
        if isinstance(granted, Exhausted):
            self._tell(path, granted)
            raise OutOfBudget(granted.limit, own=owner and granted.by is budget)
        call = Call(granted.output if granted.output < output else None)
        try:
            yield call
        finally:
            budget.settle(granted, call.usage)
            if call.usage:
                self._usage[path] = self._usage.get(path, Usage()) + call.usage
            self._settled.ring()

    def _budget(self, path: str) -> tuple[Budget, bool]:
        """Return the nearest budget of a loop, and whether the loop owns it."""
        place = _first_attempt(path)
        owner = place in self._budgets
        while place not in self._budgets:
            place = _first_attempt(place.rpartition("/")[0])
        return self._budgets[place], owner

    def _tell(self, path: str, exhausted: Exhausted) -> None:
        if self._first((exhausted.limit.partition(":")[0], id(exhausted.by))):
            self._log.add(BudgetReached(path=path, limit=exhausted.limit))

    def _warn_without_price(self, budget: Budget, model: Model) -> None:
        unknown = _price(model) is None and not getattr(model, "replayed", False)
        name = getattr(model, "answering", model).name
        if unknown and budget.counts_money and self._first(name):
            text = f"model {name!r} has no `price` in ori.yaml: its calls count for limits on tokens only"
            self._log.add(Warned(text=text))

    def _first(self, told: object) -> bool:
        known = told in self._told
        self._told.add(told)
        return not known


class Today:
    """What all runs that share a log may spend in a day, from midnight to midnight, local time.

    Args:
        limit: Money.
        journal: Knows what was spent, also by other processes.
        clock: Gives seconds since the epoch.
    """

    def __init__(self, limit: Decimal, journal: Journal, *, clock: Callable[[], float] = time.time) -> None:
        self.budget = Budget(cost=limit, cost_name="cost_per_day")
        self.settled = Bell()
        self._journal, self._clock = journal, clock
        self._reading = False
        self._until = 0.0  # what was read holds until then

    async def read(self) -> None:
        """Learn from the log what was spent, unless that was read a short while ago."""
        while self._reading:
            await self.settled.wait()
        now = self._clock()
        if now < self._until:
            return
        midnight = datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0)
        self._reading, before = True, self._spent
        try:
            read = await self._journal.cost(midnight.timestamp())
            self.budget.spent = Usage(cost=read + self._spent - before)  # what was settled meanwhile, to be safe
            self._until = min(now + _READ_AGAIN, (midnight + timedelta(days=1)).timestamp())
        finally:
            self._reading = False
            self.settled.ring()

    @property
    def _spent(self) -> Decimal:
        return self.budget.spent.cost or Decimal(0)


def _first_attempt(path: str) -> str:
    above, slash, node = path.rpartition("/")
    return f"{above}{slash}{node.partition('~')[0]}"


def _price(model: Model) -> Price | None:
    price = getattr(model, "price", None)
    return price if isinstance(price, Price) else None


def _need(model: Model, prompt: int, output: int) -> Need:
    price = _price(model)
    if price is None:
        return Need(prompt, output)
    return Need(prompt, output, price.cost(1, 0, 0), price.cost(0, 0, 1))
