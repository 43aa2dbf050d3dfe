"""What a plan will about cost, from what earlier subtasks of the same roles took. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter

from orchestrator.plan import Subtask
from orchestrator.results import Outcome


@dataclass(frozen=True, slots=True)
class Cost:
    """What one subtask takes."""

    calls: float
    tokens: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a plan takes; the planner's own turns are not in it."""

    calls: int
    """Model calls."""
    tokens: int
    seconds: float
    """Along the longest chain."""
    chain: tuple[str, ...]
    """Ids that come after each other and take longest."""
    past: int
    """How many earlier subtasks it rests on; 0: on a rule of thumb."""


RULE_OF_THUMB = Cost(calls=3, tokens=6000, seconds=20)
"""A subtask of a role nobody has seen at work: look, act, answer."""
_TOOL = Cost(calls=0, tokens=0, seconds=1)


def estimate(subtasks: Sequence[Subtask], past: Iterable[Outcome]) -> Estimate:
    """Estimate what running a checked plan takes.

    Args:
        subtasks: The plan.
        past: How earlier subtasks ended; those that were not done do not count.
    """
    seen: defaultdict[str, list[Cost]] = defaultdict(list)
    for outcome in past:
        if outcome.status == "done":
            usage = outcome.usage
            seen[outcome.role].append(Cost(usage.calls, usage.tokens, outcome.ended - outcome.started))
    costs = {s.id: _expected(s, seen) for s in subtasks}
    chains = _chains(subtasks, costs)
    seconds, chain = max(chains.values(), default=(0.0, ()))
    return Estimate(
        calls=round(sum(cost.calls for cost in costs.values())),
        tokens=round(sum(cost.tokens for cost in costs.values())),
        seconds=seconds,
        chain=chain,
        past=sum(len(seen[name]) for name in {s.performer for s in subtasks}),
    )


def _expected(subtask: Subtask, seen: dict[str, list[Cost]]) -> Cost:
    known = seen.get(subtask.performer)
    if known:
        return Cost(
            calls=sum(c.calls for c in known) / len(known),
            tokens=sum(c.tokens for c in known) / len(known),
            seconds=sum(c.seconds for c in known) / len(known),
        )
    return _TOOL if subtask.tool else RULE_OF_THUMB


def _chains(subtasks: Sequence[Subtask], costs: dict[str, Cost]) -> dict[str, tuple[float, tuple[str, ...]]]:
    """Return for each id the seconds until it ends at the earliest, and the chain that takes them."""
    after = {s.id: [need for need in s.after if need in costs] for s in subtasks}
    chains: dict[str, tuple[float, tuple[str, ...]]] = {}
    for id in TopologicalSorter(after).static_order():
        before, chain = max((chains[need] for need in after[id]), default=(0.0, ()))
        chains[id] = (before + costs[id].seconds, (*chain, id))
    return chains
