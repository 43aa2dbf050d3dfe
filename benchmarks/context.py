"""Long conversations: what a late turn costs to an early one, what part of a request repeats, what memory 50 MB take.

The first two ask a model in this process, so that encoding and sending are not counted; the last asks a server in a
process of its own, which refuses what real providers refuse and what does not fit its window.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from _scripted import serving

from orchestrator import Limits, Orchestrator, Role, RunResult, tool
from orchestrator.events import Compacted
from orchestrator.messages import Delta, Reply, Request, ToolCall, Usage
from orchestrator.models.openai import OpenAIModel
from orchestrator.models.tokens import default_output, estimate_tokens
from orchestrator.models.wire import encode
from orchestrator.settings import ModelSettings
from orchestrator.testing import Answer, call, text

LATE, EARLY, AROUND = 300, 10, 8
"""Turns that are compared: the median of so many before and after each."""
DEARER = 1.3
"""What a late turn may cost, in early ones."""
REPEATED = 0.97
"""Part of a request that the next one repeats, on average over 100 turns with two compactions."""
TURNS, READ = 500, 100_000
"""Of the run that reads 50 MB, and characters of each result."""
GROWTH = 100
"""MB."""
WINDOW = 128_000
LIMITS = Limits(max_turns=1000, tokens=10**9, model_calls=2000)
WORDS = "The depot was quiet, and 12 pallets came in at 07:40 from Suzhou. "


@tool(effect="read")
async def read(number: int, size: int) -> str:
    """Read a page. Use it for facts. Returns the page."""
    return (f"page {number}: " + WORDS * (size // len(WORDS) + 1))[:size]


READER = Role(name="reader", description="Reads.", prompt="You read page after page.", tools=("read",), limits=LIMITS)


class Reader:
    """A model in this process: asks for page after page, then answers.

    Args:
        turns: How many.
        window: Tokens.
        seen: Called with each request of a turn.
    """

    name = "reader"

    def __init__(self, turns: int, window: int, seen: Callable[[Request], None] = lambda request: None) -> None:
        self.turns, self.window, self.max_output, self.seen = turns, window, default_output(window), seen
        self.cpu: list[float] = []
        self._since = 0.0

    async def generate(self, request: Request, on_delta: Callable[[Delta], None] | None = None) -> Reply:
        if not request.key.endswith(":model"):
            return Reply("## Facts\n- nothing", usage=Usage(calls=1))
        self.cpu.append(time.process_time() - self._since)
        self.seen(request)
        turn = len(self.cpu)
        arguments = f'{{"number": {turn}, "size": 4000}}'
        calls = (ToolCall(f"call_{turn}", "read", arguments),) if turn <= self.turns else ()
        reply = Reply("" if calls else "done", calls, usage=Usage(calls=1, prompt=1, estimated_calls=1))
        self._since = time.process_time()
        return reply

    async def aclose(self) -> None:
        pass


async def run(model: Reader | ModelSettings, folder: Path, journal: str | Path = "memory") -> tuple[RunResult, int]:
    """Return the result of a run, and how often it was compacted."""
    async with Orchestrator(models={"default": model}, roles=[READER], tools=[read], journal=journal) as made:
        result = await made.run_role("reader", "Read.", workspace=folder / "work", limits=LIMITS)
        events = await made.journal.events(result.run_id)
    assert result.status == "done", result.failure
    return result, sum(isinstance(event, Compacted) for event in events)


async def cost_of_a_late_turn(folder: Path) -> bool:
    """Compare turns without any compaction, the worst case, and with them."""
    holds = True
    for window, name in ((10_000_000, "nothing compacted"), (WINDOW, f"window of {WINDOW:,}")):
        ratios = []
        for _ in range(7):
            model = Reader(LATE + AROUND, window)
            _, compacted = await run(model, folder)
            late, early = (statistics.median(model.cpu[turn - AROUND : turn + AROUND]) for turn in (LATE, EARLY))
            ratios.append(late / early)
        ratio = statistics.median(ratios)
        holds = holds and ratio <= DEARER
        print(
            f"CPU of turn {LATE} to turn {EARLY}, {name}, {compacted} compactions: {ratio:.2f} x "
            f"({early * 1000:.2f} ms)  bound {DEARER} x"
        )
    return holds


async def repeated(folder: Path) -> bool:
    wire, bodies = OpenAIModel("m", base_url="http://127.0.0.1/v1"), []

    def keep(request: Request) -> None:
        bodies.append(encode(wire.body(request, stream=False)))

    _, compacted = await run(Reader(100, 110_000, keep), folder)
    shares = [_same(one, other) for one, other in pairwise(bodies)]
    share = statistics.mean(shares)
    print(f"bytes of a request that the next one repeats, {compacted} compactions: {share:.1%}  bound {REPEATED:.0%}")
    return share >= REPEATED and compacted == 2


def _same(one: bytes, other: bytes) -> float:
    end = one.rindex(b'],"tool_choice"')
    return next((n for n, (a, b) in enumerate(zip(one[:end], other, strict=False)) if a != b), end) / end


def read_on(request: dict[str, Any]) -> Answer:
    """Ask for the next page, in the server's process; what does not fit the window is an error of the script."""
    tokens = estimate_tokens(json.dumps([request["messages"], request.get("tools")], ensure_ascii=False))
    if tokens + request["max_tokens"] > WINDOW:
        raise ValueError(f"a request of {tokens} tokens and an answer of {request['max_tokens']} do not fit {WINDOW}")
    calls = [c for message in request["messages"] for c in message.get("tool_calls", ())]
    if not request.get("tools"):
        return text("## Facts\n- 12 pallets came in at 07:40")
    last = json.loads(calls[-1]["function"]["arguments"])["number"] if calls else 0
    return call("read", {"number": last + 1, "size": READ}) if last < TURNS else text("done")


async def memory(folder: Path) -> bool:
    with serving(read_on) as url:
        settings = ModelSettings(model="m", base_url=url, window=WINDOW)
        await run(Reader(3, WINDOW), folder)
        before = _peak()
        result, compacted = await run(settings, folder, folder / "runs.db")
        growth = _peak() - before
    print(
        f"{TURNS} turns that read {TURNS * READ / 1e6:.0f} MB, {compacted} compactions, {result.usage.calls} calls, "
        f"all inside the window and clean: peak memory grew by {growth:.0f} MB  bound {GROWTH} MB"
    )
    return growth < GROWTH


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def measure() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        return all([await figure(Path(folder)) for figure in (memory, cost_of_a_late_turn, repeated)])


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(measure()) else 1)
