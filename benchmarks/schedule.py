"""How well plans are scheduled, as ratios to what could be done without an engine.

Part one is real: 12 subtasks of uneven length against a server that takes 100 ms for each reply, run by the engine, by
a plain loop over the same client that starts each subtask when its needs are done, and by the same loop in waves. They
take turns; each figure is a median, the ratios of those within a round.

Part two is simulated, in an event loop whose clock jumps: 150 random plans on 4 slots, against a list schedule that
knows all lengths.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import selectors
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import truediv
from typing import Any

from _scripted import serving

from orchestrator import Limits, Orchestrator, Role, tool
from orchestrator.events import PlanAdded, SubtaskEnded
from orchestrator.messages import Message, Request
from orchestrator.models.openai import OpenAIModel
from orchestrator.plan import Plan, Subtask
from orchestrator.proposal import Rules, check_plan
from orchestrator.results import Outcome
from orchestrator.schedule import Slots, Ticket
from orchestrator.schedule import run as run_plan
from orchestrator.settings import ModelSettings
from orchestrator.testing import Answer, call, text

ROUNDS = 9
LATENCY = 0.1
"""Seconds of one model call."""
OVERHEAD = 1.02
"""The engine may take so much longer than the plain loop."""
TURNS = {"a": 2, "b": 5, "c": 1, "d": 3, "e": 1, "f": 4, "g": 2, "h": 1, "i": 3, "j": 2, "k": 5, "l": 1}
AFTER = {"d": "a", "e": "a", "f": "b", "g": "c", "h": "de", "i": "g", "j": "f", "k": "gh", "l": "ijk"}
"""What each subtask comes after."""
WORKER = Role(name="worker", description="Works.", prompt="You are a worker. Take the steps.", tools=("step",))


@tool(effect="read")
async def step(number: int) -> str:
    """Take one step. Use it for each step. Returns the result of the step."""
    return f"step {number} is taken; go on"


# part one


def script(request: dict[str, Any]) -> Answer:
    """Take as many turns for a subtask as its goal says; answer the planner at once."""
    said = str(next(m["content"] for m in request["messages"] if m["role"] == "user"))
    if "turns=" not in said:
        return text("All is done.", latency=LATENCY)
    turns = int(said.partition("turns=")[2].split()[0])
    number = sum(m["role"] == "assistant" for m in request["messages"]) + 1
    if number < turns:
        return call("step", {"number": number}, latency=LATENCY)
    return text(f"It took {turns} turns.", latency=LATENCY)


def goal(id: str) -> str:
    return f"Do {id}, turns={TURNS[id]} long."


async def by_engine(orchestrator: Orchestrator, model: OpenAIModel) -> float:
    plan = [Subtask(id=id, role="worker", goal=goal(id), after=tuple(AFTER.get(id, ""))) for id in TURNS]
    result = await orchestrator.solve("Do all of it.", plan=plan)
    assert [outcome.status for outcome in result.outcomes.values()] == ["done"] * len(TURNS), result
    events = await orchestrator.journal.events(result.run_id)
    began = next(event.at for event in events if isinstance(event, PlanAdded))
    return max(event.at for event in events if isinstance(event, SubtaskEnded)) - began


async def by_plain_loop(orchestrator: Orchestrator, model: OpenAIModel) -> float:
    began = time.perf_counter()
    done = {id: asyncio.Event() for id in TURNS}

    async def one(id: str) -> None:
        for need in AFTER.get(id, ""):
            await done[need].wait()
        await work(model, id)
        done[id].set()

    async with asyncio.TaskGroup() as group:
        for id in TURNS:
            group.create_task(one(id))
    return time.perf_counter() - began


async def by_waves(orchestrator: Orchestrator, model: OpenAIModel) -> float:
    began = time.perf_counter()
    for wave in waves({id: tuple(AFTER.get(id, "")) for id in TURNS}):
        async with asyncio.TaskGroup() as group:
            for id in wave:
                group.create_task(work(model, id))
    return time.perf_counter() - began


async def work(model: OpenAIModel, id: str) -> None:
    """Do one subtask with the least that can be done."""
    messages = [Message("system", WORKER.prompt), Message("user", goal(id))]
    for turn in range(1, TURNS[id] + 1):
        reply = await model.generate(Request(f"{id}:{turn}:model", tuple(messages), (step.spec(),)))
        messages.append(reply.message())
        for asked in reply.calls:
            messages.append(Message("tool", f"step {turn} is taken; go on", call_id=asked.id))


def waves(after: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Split a plan into waves: what has all its needs in earlier ones."""
    left = dict(after)
    while left:
        wave = [id for id, needs in left.items() if not any(need in left for need in needs)]
        yield wave
        for id in wave:
            del left[id]


async def real(url: str) -> Mapping[str, list[float]]:
    """Return the seconds of each round, by way."""
    ways: dict[str, Callable[[Orchestrator, OpenAIModel], Awaitable[float]]]
    ways = {"plain loop": by_plain_loop, "engine": by_engine, "waves": by_waves}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    orchestrator = Orchestrator(
        models={"default": ModelSettings(model="scripted", base_url=url, concurrency=len(TURNS))},
        roles=[WORKER],
        tools=[step],
        limits=Limits(max_parallel=len(TURNS)),
        journal="memory",
    )
    model = OpenAIModel("scripted", base_url=url)
    async with orchestrator:
        for number in range(ROUNDS + 1):
            for name, way in ways.items():
                took = await way(orchestrator, model)
                if number:  # the first round only warms up
                    seconds[name].append(took)
    await model.aclose()
    return seconds


# part two

SLOTS = 4
PLANS = 150
FACTOR, SHARE = 1.05, 0.97
"""This part of the plans has to end within this factor of the list schedule."""


class Jumping(selectors.SelectSelector):
    """Waits for nothing: the clock jumps to the next timer."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.now += timeout or 0.0
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which waiting takes no time."""

    def __init__(self) -> None:
        self._jumping = Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


@dataclass(frozen=True)
class Dag:
    """A random plan: lengths, and what each comes after."""

    lengths: dict[str, float]
    after: dict[str, list[str]]


def random_dag(seed: int) -> Dag:
    """Return 10 to 40 subtasks, few long and many short, each after up to three earlier ones that are not far off."""
    chance = random.Random(seed)
    ids = [f"s{number}" for number in range(chance.randint(10, 40))]
    lengths = {id: round(min(10.0, chance.lognormvariate(0.5, 0.8)), 2) + 0.1 for id in ids}
    after = {
        id: sorted(set(chance.choices(ids[max(0, number - 12) : number], k=chance.randint(0, 3)))) if number else []
        for number, id in enumerate(ids)
    }
    return Dag(lengths, after)


def list_schedule(dag: Dag) -> float:
    """Return when a list schedule ends: a free slot takes what is ready and has the longest path before it."""
    path: dict[str, float] = {}
    for id in reversed(dag.lengths):  # ids come in an order that fits the plan
        path[id] = dag.lengths[id] + max((path[x] for x, needs in dag.after.items() if id in needs), default=0.0)
    now, left, done = 0.0, dict(dag.after), set[str]()
    working: list[tuple[float, str]] = []
    while left or working:
        ready = [id for id, needs in left.items() if done.issuperset(needs)]
        ready.sort(key=path.__getitem__, reverse=True)
        for id in ready[: SLOTS - len(working)]:
            heapq.heappush(working, (now + dag.lengths[id], id))
            del left[id]
        now = working[0][0]
        while working and working[0][0] <= now:
            done.add(heapq.heappop(working)[1])
    return now


def wave_schedule(dag: Dag) -> float:
    """Return when waves end, each on all slots, the longest subtask first."""
    now = 0.0
    for wave in waves(dag.after):
        slots = [now] * SLOTS
        for length in sorted((dag.lengths[id] for id in wave), reverse=True):
            heapq.heappush(slots, heapq.heappop(slots) + length)
        now = max(slots)
    return now


def engine_schedule(dag: Dag, *, effort: bool) -> float:
    """Return when the engine ends, with or without knowing the lengths."""

    async def execute(subtask: Subtask, ticket: Ticket) -> Outcome:
        await asyncio.sleep(dag.lengths[subtask.id])
        return Outcome(id=subtask.id, path=subtask.id, role="worker", status="done", stop_reason="answer")

    def skip(subtask: Subtask, cause: str) -> Outcome:
        raise AssertionError(cause)

    async def main() -> float:
        plan = Plan()
        known = dag.lengths if effort else dict.fromkeys(dag.lengths, 1.0)
        subtasks = [Subtask(id=id, role="worker", goal="x", after=dag.after[id], effort=known[id]) for id in known]
        plan.add(check_plan(plan, subtasks, Rules(roles=("worker",))).new)
        await run_plan(plan, Slots(SLOTS), execute, skip)
        assert len(plan.outcomes) == len(subtasks)
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def simulated() -> Mapping[str, list[float]]:
    """Return the ratio to the list schedule of each plan, by way."""
    ways: dict[str, Callable[[Dag], float]] = {
        "engine": lambda dag: engine_schedule(dag, effort=True),
        "engine, without effort": lambda dag: engine_schedule(dag, effort=False),
        "waves": wave_schedule,
    }
    dags = [random_dag(seed) for seed in range(PLANS)]
    return {name: [way(dag) / list_schedule(dag) for dag in dags] for name, way in ways.items()}


def main() -> int:
    with serving(script) as url:
        seconds = asyncio.run(real(url))
    print(f"12 subtasks, {LATENCY * 1000:.0f} ms a model call, 12 slots; medians of {ROUNDS}")
    print(f"{'':30}{'seconds':>10}{'ratio':>8}{'bound':>8}")
    held = []
    for name, values in seconds.items():
        ratio = statistics.median(map(truediv, values, seconds["plain loop"]))
        bound = OVERHEAD if name == "engine" else None
        held.append(bound is None or ratio <= bound)
        print(f"{name:30}{statistics.median(values):10.3f}{ratio:8.3f}" + verdict(bound, held[-1]))
    print(f"\n{PLANS} random plans on {SLOTS} slots, to the list schedule that knows all lengths")
    print(f"{'':30}{'mean':>10}{'worst':>8}{f'≤ {FACTOR}':>8}{'bound':>8}")
    for name, ratios in simulated().items():
        share = sum(ratio <= FACTOR for ratio in ratios) / len(ratios)
        bound = SHARE if name == "engine" else None
        held.append(bound is None or share >= bound)
        print(f"{name:30}{statistics.mean(ratios):10.3f}{max(ratios):8.3f}{share:8.3f}" + verdict(bound, held[-1]))
    return int(not all(held))


def verdict(bound: float | None, held: bool) -> str:
    return "" if bound is None else f"{bound:8.2f}  {'ok' if held else 'missed'}"


if __name__ == "__main__":
    sys.exit(main())
