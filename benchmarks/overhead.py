"""What a turn costs beside the model: CPU of this process, as ratios to the floor.

The floor is a loop of a few lines over the openai client with raw content (`orjson` bytes in, `orjson` out), which does
the same calls in the same run. Both take turns against a server in a process of its own; figures are medians. Where a
time is the bound itself, it is the first thing to miss on a slow or busy machine; the ratios hold.

`overhead.py NAME …` measures only those whose name begins so.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import orjson
from _raw_server import LATENCY, listen, serving
from _ways import AGENTS, RUNS, Engine, Floor, Work

from orchestrator.events import TextDelta
from orchestrator.messages import Json

ROUNDS = 5
HELD = 10.0
"""Seconds for which the waiting runs are watched."""
PIECES = 800
"""Of a stream; a subscriber that is 1,000 behind loses some."""
PADDING = "r" * 4000
PARTS = (
    "one_agent",
    "long_history",
    "many_agents",
    "many_agents_with_latency",
    "waiting_runs",
    "prefix",
    "streamed",
)


# what is measured


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    name: str
    value: float
    unit: str = "ms"
    floor: float | None = None
    most: float | None = None
    least: bool = False
    """The bound is what must be reached."""
    ratio: float | None = None
    """The same for the ratio to the floor."""

    def __str__(self) -> str:
        ratio = f"{self.value / self.floor:.2f}" if self.floor else ""
        sign = "≥" if self.least else "≤"
        bounds = [f"{sign} {self.most:g} {self.unit}"] if self.most is not None else []
        bounds += [f"{sign} {self.ratio:g} ×"] if self.ratio else []
        verdict = "" if not bounds else "ok" if self.holds else "missed"
        return f"{self.name:52}{self.value:10.3f} {self.unit:8}{ratio:>6}  {', '.join(bounds):22}{verdict}"

    @property
    def holds(self) -> bool:
        """Whether the value and its ratio to the floor keep their bounds."""
        pairs = [(self.value, self.most), (self.value / self.floor if self.floor else 0, self.ratio)]
        return all(bound is None or (x >= bound if self.least else x <= bound) for x, bound in pairs)


class Bench:
    """All measurements against one server."""

    def __init__(self, root: str, folder: Path) -> None:
        self.root, self.folder, self.done = root, folder, Work()
        self.floor = Floor(root, self.done)
        self.engine = Engine(root, folder / "work", self.done)
        self.stored = Engine(root, folder / "work", self.done, str(folder / "runs.db"))

    async def __aenter__(self) -> Bench:
        return self

    async def __aexit__(self, *error: object) -> None:
        for one in (self.floor, self.engine, self.stored):
            await one.aclose()

    async def one_agent(self) -> list[Figure]:
        path, turns = "turns/50", 51
        cpu = await medians(
            {
                "floor": lambda: cpu_of(self.floor.work(path)),
                "engine": lambda: cpu_of(self.engine.work(path)),
                "stored": lambda: cpu_of(self.stored.work(path)),
                "typed": lambda: cpu_of(self.floor.work(path, typed=True)),
            },
            1000 / turns,
        )
        floor = cpu["floor"]
        return [
            Figure("one agent, 50 tool turns, CPU a turn: floor", floor, floor=floor),
            Figure("  engine, log in memory", cpu["engine"], floor=floor, most=1.2, ratio=1.7),
            Figure("  engine, SQLite log", cpu["stored"], floor=floor, most=2.5),
            Figure("  the openai client's typed call", cpu["typed"], floor=floor),
        ]

    async def long_history(self) -> list[Figure]:
        async def last_turns(work: Callable[[str], Awaitable[None]]) -> float:
            self.done.padding = PADDING
            self.done.cpu.clear()
            await work("turns/300")
            self.done.padding = ""
            cpu = self.done.cpu[-20:]
            return statistics.median(after - before for before, after in pairwise(cpu))

        cpu = await medians(
            {"floor": lambda: last_turns(self.floor.work), "engine": lambda: last_turns(self.engine.work)}, 1000
        )
        floor = cpu["floor"]
        return [
            Figure("turn 300 with results of 4 kB, CPU: floor", floor, floor=floor),
            Figure("  engine, log in memory", cpu["engine"], floor=floor, most=2.5),
        ]

    async def many_agents(self) -> list[Figure]:
        path, turns = "turns/9", AGENTS * 10
        seconds = await medians(
            {
                "floor": lambda: wall_of(self.floor.work_at_once(path)),
                "engine": lambda: wall_of(self.engine.work_at_once(path)),
            }
        )
        floor, engine = turns / seconds["floor"], turns / seconds["engine"]
        return [
            Figure(f"{AGENTS} agents × 10 turns at once: floor", floor, "turns/s", floor=floor),
            Figure("  engine, log in memory", engine, "turns/s", floor=floor, least=True, ratio=0.55),
        ]

    async def many_agents_with_latency(self) -> list[Figure]:
        stalls: dict[str, list[float]] = {"floor": [], "engine": []}

        async def watched(name: str, work: Awaitable[None]) -> float:
            async with Stalls() as worst:
                seconds = await wall_of(work)
            stalls[name].append(worst.seconds * 1000)
            return seconds

        seconds = await medians(
            {
                "floor": lambda: watched("floor", self.floor.work_at_once("late/9")),
                "engine": lambda: watched("engine", self.engine.work_at_once("late/9")),
            }
        )
        ideal = 11 * LATENCY  # ten turns, and the planner's last word
        worst = {name: statistics.median(values) for name, values in stalls.items()}
        return [
            Figure("  at 100 ms a reply, to the ideal wall: floor", seconds["floor"], "s", floor=ideal),
            Figure("  engine", seconds["engine"], "s", floor=ideal, ratio=1.3),
            Figure("  worst stall of the event loop: floor", worst["floor"], floor=worst["floor"]),
            Figure("  engine", worst["engine"], floor=worst["floor"], most=60),
        ]

    async def waiting_runs(self) -> list[Figure]:
        orchestrator = await self.engine.at("held/0")
        client = self.floor.client("")

        async def control(path: str) -> Json:
            import httpx2

            return orjson.loads((await client.get(f"{self.root}/{path}", cast_to=httpx2.Response)).content)

        async with asyncio.TaskGroup() as group:
            runs = [
                group.create_task(orchestrator.run_role("waiter", "Wait.", workspace=self.folder / "work"))
                for _ in range(RUNS)
            ]
            while await control("count") < RUNS:
                await asyncio.sleep(0.2)
            share = await cpu_of(asyncio.sleep(HELD)) / HELD
            await control("release")
        assert all(run.result().status == "done" for run in runs)
        return [Figure(f"{RUNS:,} runs waiting for a reply", share * 100, "% a core", most=2)]

    async def prefix(self) -> list[Figure]:
        bodies: list[bytes] = []
        server, root = await listen(bodies)
        async with server:
            engine = Engine(root, self.folder / "work", self.done)
            await engine.work("turns/50")
            await engine.aclose()
        shares = [repeated(one, other) for one, other in pairwise(bodies)]
        return [Figure("bytes of a request that the next one repeats", min(shares) * 100, "%", most=100, least=True)]

    async def streamed(self) -> list[Figure]:
        async def listened(path: str) -> int:
            orchestrator = await self.engine.at(path)
            async with orchestrator.stream("Say it.", workspace=self.folder / "work") as run:
                return sum([1 async for event in run if isinstance(event, TextDelta)])

        async def piece(stream: Callable[[str], Awaitable[int]], kind: str) -> float:
            start = time.process_time()
            assert await stream(f"{kind}/{PIECES}") == PIECES
            middle = time.process_time()
            await stream(f"{kind}/1")
            return (2 * middle - start - time.process_time()) / PIECES

        figures = []
        for kind, words, most in (("chunks", "in a burst", 0.04), ("apart", "1 ms apart", None)):
            cpu = await medians(
                {
                    "floor": lambda kind=kind: piece(self.floor.stream, kind),
                    "engine": lambda kind=kind: piece(listened, kind),
                },
                1000,
            )
            floor = cpu["floor"]
            figures.append(Figure(f"a streamed piece {words}, CPU: the client's stream", floor, floor=floor))
            figures.append(Figure("  engine, to a subscriber", cpu["engine"], floor=floor, most=most))
        return figures


# how it is measured


async def medians(ways: dict[str, Callable[[], Awaitable[float]]], factor: float = 1.0) -> dict[str, float]:
    """Measure the ways in turns; the first round only warms up."""
    values: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS + 1):
        for name, way in ways.items():
            value = await way()
            if number:
                values[name].append(value * factor)
    return {name: statistics.median(found) for name, found in values.items()}


async def cpu_of(work: Awaitable[object]) -> float:
    start = time.process_time()
    await work
    return time.process_time() - start


async def wall_of(work: Awaitable[object]) -> float:
    start = time.perf_counter()
    await work
    return time.perf_counter() - start


class Stalls:
    """Watches for how long the event loop keeps a timer waiting."""

    seconds = 0.0

    async def __aenter__(self) -> Stalls:
        self._watching = asyncio.get_running_loop().create_task(self._watch())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._watching.cancel()

    async def _watch(self) -> None:
        while True:
            due = time.perf_counter() + 0.001
            await asyncio.sleep(0.001)
            self.seconds = max(self.seconds, time.perf_counter() - due)


def repeated(one: bytes, other: bytes) -> float:
    """Return the part of a request, up to the end of its messages, with which the next one begins."""
    end = one.rindex(b'],"tool_choice"')
    same = next((n for n, (a, b) in enumerate(zip(one[:end], other, strict=False)) if a != b), end)
    return same / end


async def measure(root: str, part: str) -> bool:
    """Print one part of the table, and tell whether its bounds hold."""
    with tempfile.TemporaryDirectory() as folder:
        async with Bench(root, Path(folder)) as bench:
            figures = await getattr(bench, part)()
    print(*figures, sep="\n", flush=True)
    return all(figure.holds for figure in figures)


def main(names: Sequence[str]) -> int:
    if len(names) == 1 and names[0] in PARTS:
        with serving() as root:
            return int(not asyncio.run(measure(root, names[0])))
    print(f"{'':52}{'median':>10} {'':8}{'ratio':>6}  bound", flush=True)
    parts = [part for part in PARTS if not names or part.startswith(tuple(names))]
    # a process for each: garbage collection takes longer with what other parts have left
    return max((subprocess.run([sys.executable, __file__, part], check=False).returncode for part in parts), default=2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
