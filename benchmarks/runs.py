"""A thousand runs of one role at once in one process: do all finish, with their own answers, and what does one weigh?

The server holds each run's third reply back until all runs have asked for theirs, so that all are in flight together.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from _scripted import serving

from orchestrator import Orchestrator, Role, RunResult, tool
from orchestrator.settings import ModelSettings
from orchestrator.testing import Answer, call, text

RUNS = 1000
WARMING = 20
"""Runs before, so that what is loaded once does not count."""
WEIGHT = 150
"""A run in flight may weigh so many kB."""
READER = Role(name="reader", description="Reads.", prompt="You are a reader. Look twice.", tools=("look",))


def secret(name: str) -> str:
    return sha256(name.encode()).hexdigest()


@tool(effect="read")
async def look(name: str) -> str:
    """Look something up. Use it for facts. Returns the fact."""
    return f"the secret of {name} is {secret(name)}"


class Script:
    """Two calls for each run, then an answer from what its own conversation holds."""

    def __init__(self, together: int) -> None:
        self.together, self.asking = together, 0
        self.all_ask: asyncio.Event | None = None

    async def __call__(self, request: dict[str, Any]) -> Answer:
        messages = request["messages"]
        name = next(m["content"] for m in messages if m["role"] == "user").split()[-1]
        observed = [m["content"] for m in messages if m["role"] == "tool"]
        if len(observed) < 2:
            return call("look", {"name": f"{name}-{len(observed)}"})
        await self.all_there()
        return text(" and ".join(observed))

    async def all_there(self) -> None:
        """Wait until the last of them is here."""
        self.all_ask = self.all_ask or asyncio.Event()
        self.asking += 1
        if self.asking == self.together:
            self.all_ask.set()
        await self.all_ask.wait()


@asynccontextmanager
async def orchestrator(url: str) -> AsyncIterator[Orchestrator]:
    settings = ModelSettings(model="scripted", base_url=url, concurrency=RUNS)
    async with Orchestrator(models={"default": settings}, roles=[READER], tools=[look], journal="memory") as made:
        yield made


async def run_all(made: Orchestrator, names: list[str]) -> list[RunResult]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(made.run_role("reader", f"Find the secrets of {name}")) for name in names]
    return [task.result() for task in tasks]


def resident() -> int:
    """Return the memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Peak:
    """The most memory that this process has while the context lasts."""

    async def __aenter__(self) -> Peak:
        gc.collect()
        self.before = self.most = resident()
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        self._task = self._group.create_task(self._watch())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()
        await self._group.__aexit__(None, None, None)

    async def _watch(self) -> None:
        while True:
            self.most = max(self.most, resident())
            await asyncio.sleep(0.02)


async def measured(url: str, warming_url: str) -> int:
    async with orchestrator(warming_url) as made:
        await run_all(made, [f"w{number}" for number in range(WARMING)])
    names = [f"r{number}" for number in range(RUNS)]
    async with orchestrator(url) as made, Peak() as peak:
        began = time.perf_counter()
        results = await run_all(made, names)
        seconds = time.perf_counter() - began
    done = sum(result.status == "done" for result in results)
    right = sum(
        result.answer
        == f"the secret of {name}-0 is {secret(f'{name}-0')} and the secret of {name}-1 is {secret(f'{name}-1')}"
        for name, result in zip(names, results, strict=True)
    )
    weight = (peak.most - peak.before) / RUNS / 1000
    held = {"finished": done == RUNS, "own answers": right == RUNS, "kB a run in flight": weight < WEIGHT}
    figures = {"finished": f"{done}", "own answers": f"{right}", "kB a run in flight": f"{weight:.0f}"}
    bounds = {"finished": f"{RUNS}", "own answers": f"{RUNS}", "kB a run in flight": f"< {WEIGHT}"}
    print(f"{RUNS} runs at once, 3 turns each, in {seconds:.1f} s")
    print(f"{'':30}{'figure':>10}{'bound':>10}")
    for name, figure in figures.items():
        print(f"{name:30}{figure:>10}{bounds[name]:>10}  {'ok' if held[name] else 'missed'}")
    return int(not all(held.values()))


def main() -> int:
    with serving(Script(RUNS)) as url, serving(Script(WARMING)) as warming_url:
        return asyncio.run(measured(url, warming_url))


if __name__ == "__main__":
    sys.exit(main())
