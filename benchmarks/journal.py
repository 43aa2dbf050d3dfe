"""What the log costs, and what it bears: as ratios within one run, and as records a second.

Bounds: a run whose model takes 50 ms a call, with the SQLite log 1.06 times one without; 250 durable records a second
from 64 runs of one process; 8 processes on one database without a lock error and without a loss; `ori runs` on 100,000
events within twice the time of `ori --help`.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from _scripted import serving

from orchestrator import Limits, Orchestrator, Role, RunResult, tool
from orchestrator.events import MessageAppended, ModelCalled, ModelReplied, RunEnded, RunStarted, Warned
from orchestrator.journal.log import RunLog
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.messages import Message, Usage
from orchestrator.settings import ModelSettings
from orchestrator.testing import Answer, call, text

TURNS = 40
ROUNDS = 7
LATENCY = 0.05
"""Seconds that the model takes."""
RUNS, RECORDS = 64, 20
PROCESSES, EACH = 8, 200
EVENTS, EVENTS_EACH = 100_000, 50
FROZEN = {"writer": "what a role is and its tools take " * 350}
"""12 kB, as much as a start of the shipped scenarios holds of roles and tools."""
LIMITS = Limits(max_turns=TURNS + 1)
WORKER = Role(name="worker", description="Works.", prompt="You are a worker.", tools=("step",), limits=LIMITS)


@tool(effect="read")
async def step(number: int) -> str:
    """Take a step. Use it for each step. Returns that it is taken."""
    return f"step {number} is taken"


async def model(request: dict[str, Any]) -> Answer:
    turn = sum(message["role"] == "assistant" for message in request["messages"])
    return call("step", {"number": turn}, latency=LATENCY) if turn < TURNS else text("done", latency=LATENCY)


async def overhead(base_url: str, folder: Path) -> float:
    """Return how much longer a run takes with a log, runs with and without it in turns."""
    settings = ModelSettings.model_validate({"model": "m", "base_url": base_url, "api_key": "k"})
    seconds: dict[str, list[float]] = {"memory": [], str(folder / "overhead.db"): []}
    for number in range(ROUNDS + 1):
        for journal, taken in seconds.items():
            made = Orchestrator(models={"default": settings}, roles=[WORKER], tools=[step], journal=journal)
            begin = time.perf_counter()
            result: RunResult = await made.run_role("worker", f"run {number}")
            assert result.status == "done", result
            if number:  # the first ones load what is loaded once
                taken.append(time.perf_counter() - begin)
    without, with_log = map(statistics.median, seconds.values())
    return with_log / without


async def records(folder: Path) -> float:
    """Return how many records a second are durable, each waited for by its run."""
    journal = SqliteJournal(folder / "records.db")

    async def run(name: str) -> None:
        log = RunLog(name, journal)
        for _ in range(RECORDS):
            log.add(Warned(text="x" * 500))
            await log.commit()

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(RUNS):
            group.create_task(run(f"r{number}"))
    taken = time.perf_counter() - begin
    await journal.aclose()
    return RUNS * RECORDS / taken


WRITER = """
import asyncio, sys
from orchestrator.events import Warned
from orchestrator.journal.log import RunLog
from orchestrator.journal.sqlite import SqliteJournal

async def main(path, run, count):
    journal = SqliteJournal(path)
    log = RunLog(run, journal)
    for _ in range(count):
        log.add(Warned(text="x" * 500))
        await log.commit()
    await journal.aclose()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def processes(folder: Path) -> tuple[int, int]:
    """Return how many of several processes on one database failed, and how many records were lost."""
    path = folder / "shared.db"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), f"r{number}", str(EACH)])
        for number in range(PROCESSES)
    ]
    failed = sum(writer.wait() != 0 for writer in writers)
    with closing(sqlite3.connect(path)) as database:
        (stored,) = database.execute("SELECT count(*) FROM event").fetchone()
    return failed, PROCESSES * EACH - stored


async def fill(project: Path) -> None:
    """Give a project a log of many events."""
    journal = SqliteJournal(project / ".ori" / "runs.db")
    nothing: dict[str, Any] = {}
    for number in range(EVENTS // EVENTS_EACH):
        log = RunLog(f"260101-{number:06}-00000000", journal)
        log.add(
            RunStarted(
                goal=f"goal {number}",
                root="ori",
                params=nothing,
                inputs=(),
                workspace="/w",
                limits=nothing,
                roles=FROZEN,
                tools=nothing,
                models={},
            )
        )
        for turn in range((EVENTS_EACH - 2) // 3):
            log.add(ModelCalled(model="m", messages=2 * turn, hash="0" * 64))
            log.add(ModelReplied(model="m", finish_reason="stop", usage=Usage(calls=1, prompt=10), seconds=0.1))
            log.add(MessageAppended(message=Message("assistant", "a word " * 100), hash="0" * 64))
        if number % 20:  # the others were interrupted
            log.add(
                RunEnded(result=RunResult(run_id=log.run, status="done", stop_reason="answer", answer="word " * 50))
            )
        await journal.commit()
    await journal.aclose()


def listing(folder: Path) -> tuple[float, float]:
    """Return how much longer `ori runs` takes on many events than `ori --help`, and than on none."""
    for project in ("full", "empty"):
        (folder / project).mkdir()
        (folder / project / "ori.yaml").touch()
    asyncio.run(fill(folder / "full"))
    seconds: dict[tuple[str, str], list[float]] = {("full", "--help"): [], ("full", "runs"): [], ("empty", "runs"): []}
    for _ in range(ROUNDS):
        for (project, argument), taken in seconds.items():
            begin = time.perf_counter()
            command = [sys.executable, "-m", "orchestrator.serve.cli", argument]
            quiet = subprocess.DEVNULL
            subprocess.run(command, cwd=folder / project, check=True, stdout=quiet, stderr=quiet, env=_environment())
            taken.append(time.perf_counter() - begin)
    help_, full, empty = map(min, seconds.values())
    return full / help_, full / empty


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="ori-journal-") as name:
        folder = Path(name)
        with serving(model) as base_url:
            ratio = asyncio.run(overhead(base_url, folder))
        durable = asyncio.run(records(folder))
        failed, lost = processes(folder)
        than_help, than_none = listing(folder)
    print(f"a run at {LATENCY * 1000:.0f} ms a model call, with the log to without: {ratio:.3f} (bound: 1.06)")
    print(f"durable records a second from {RUNS} runs: {durable:.0f} (bound: 250)")
    print(f"{PROCESSES} processes on one database: {failed} failed, {lost} records lost (bound: 0, 0)")
    print(
        f"ori runs on {EVENTS:,} events to ori --help: {than_help:.2f} (bound: 2); to ori runs on none: {than_none:.2f}"
    )
    return int(ratio > 1.06 or durable < 250 or failed > 0 or lost != 0 or than_help > 2)


if __name__ == "__main__":
    sys.exit(main())
