"""Many calls at once against a server of whose answers three in ten are faults of every kind.

`ORI_SOAK_CALLS` sets how many; benchmarks/soak.py makes 5,000.
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from orchestrator.errors import ModelError
from orchestrator.events import BreakerChanged, Event
from orchestrator.failure import RULES, FailureKind
from orchestrator.messages import Delta, Message, Request, ToolSpec
from orchestrator.models.breaker import Breaker
from orchestrator.models.endpoint import Endpoint
from orchestrator.models.lanes import Lanes
from orchestrator.models.openai import OpenAIModel
from orchestrator.testing import Answer, ScriptedServer, call, cut, drop, fault, html, text
from tests.clock import Clock

CALLS = int(os.environ.get("ORI_SOAK_CALLS", 1000))
SLOTS = 8
WINDOW = 8192
LOOK = ToolSpec("look", "Look at a number.", {"type": "object", "properties": {"n": {"type": "integer"}}})
OVERFLOW = f"This model's maximum context length is {WINDOW} tokens. However, your messages resulted in 9000 tokens."
FILTERED = "The response was filtered due to the prompt triggering Azure OpenAI's content management policy."


def words(n: int) -> str:
    return f"the answer to {n}, in a few pieces"


def good(n: int) -> Answer:
    """Answer call n: half of the calls that are streamed, and half of those that are not, get a tool call."""
    return call("look", {"n": n}) if n % 4 < 2 else text(words(n))


def error(message: str, **fields: Any) -> dict[str, Any]:
    return {"error": {"message": message, **fields}}


# What the server answers, what a call ends as that meets nothing else, and how many requests such a call costs.
FAULTS: dict[str, tuple[Answer, str, int]] = {
    "429": (fault(429), "rate_limited", 3),
    "429 with a wait": (fault(429, headers={"retry-after": "7"}), "rate_limited", 3),
    "429 with a wait of a day": (fault(429, headers={"retry-after": "86400"}), "rate_limited", 1),
    "no quota": (fault(429, error("You exceeded your current quota", code="insufficient_quota")), "quota", 1),
    "500": (fault(500), "overloaded", 3),
    "503": (fault(503), "overloaded", 3),
    "503 with a wait": (fault(503, headers={"retry-after-ms": "1500"}), "overloaded", 3),
    "529": (fault(529, error("Overloaded", type="overloaded_error")), "overloaded", 3),
    "408": (fault(408), "timeout", 3),
    "a proxy's web page": (html("<title>502 Bad Gateway</title>", 502), "overloaded", 3),
    "a web page": (html(), "not_json", 1),
    "an empty body": (fault(200, ""), "truncated_stream", 3),
    "no choices": (fault(200, {"id": "x", "choices": []}), "overloaded", 3),
    "an error with 200": (fault(200, error("upstream gave up", code=502)), "overloaded", 3),
    "an error within a stream": (
        fault(200, 'data: {"error": {"message": "upstream gave up"}}\n\n', {"content-type": "text/event-stream"}),
        "overloaded",
        3,
    ),
    "no answer": (drop(), "connection", 3),
    "half an answer": (cut(good(3)), "truncated_stream", 3),
    "half a tool call": (cut(good(1)), "truncated_stream", 3),
    "a break in the answer": (drop(good(3)), "truncated_stream", 3),
    "a break in a tool call": (drop(good(1)), "truncated_stream", 3),
    "400": (fault(400), "invalid_request", 1),
    "401": (fault(401, error("Incorrect API key provided", code="invalid_api_key")), "auth", 1),
    "404": (fault(404, error("The model `m` does not exist", code="model_not_found")), "auth", 1),
    "404 of another server": (html("<title>Not Found</title>", 404), "not_json", 1),
    "content filter": (fault(400, error(FILTERED, code="content_filter")), "content_filter", 1),
    "context overflow": (fault(400, error(OVERFLOW, code="context_length_exceeded")), "context_overflow", 1),
    "unparsable tool call": (
        fault(400, error("no call", code="tool_use_failed")),
        "bad_model_output",
        3,
    ),
}


def script(n: int, share: float) -> tuple[str | None, ...]:
    """Return what call n meets, request by request; None: a good answer."""
    random = Random(f"call {n}")
    return tuple(random.choice(list(FAULTS)) if random.random() < share else None for _ in range(3))


def expected(n: int, share: float) -> tuple[int, str]:
    """Return how many requests call n costs, and how it ends."""
    for number, name in enumerate(script(n, share), 1):
        if name is None:
            return number, "right"
        _, kind, requests = FAULTS[name]
        if number >= requests:
            return number, kind
    raise AssertionError("a fault of the table costs more than three requests")


def open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


@dataclass
class Soak:
    """Calls through one endpoint, and what became of them."""

    calls: int
    share: float = 0.3
    """Of answers that are faults."""
    breaker: Breaker = field(default_factory=Breaker)
    ends: dict[int, str] = field(default_factory=dict)
    """By call: "right", or the kind of its failure."""
    asked: Counter[int] = field(default_factory=Counter)
    """Requests that the server saw, by call."""
    met: Counter[tuple[str | None, bool]] = field(default_factory=Counter)
    """What the server answered, and whether it was to be streamed."""
    told: list[Event] = field(default_factory=list)

    async def run(self) -> None:
        """Make all calls, twice as many at a time as there are slots, and see that nothing of them is left."""
        tasks, files, clock = asyncio.all_tasks(), open_files(), Clock(instant=True)
        async with ScriptedServer(self.answer) as self.server:
            model = OpenAIModel("m", base_url=self.server.base_url, api_key="none", window=WINDOW)
            self.endpoint = Endpoint(model, breaker=self.breaker, lanes=Lanes(SLOTS), clock=clock, sleep=clock.sleep)
            waiting = iter(range(self.calls))
            async with asyncio.TaskGroup() as group:
                for _ in range(2 * SLOTS):
                    group.create_task(self.work(waiting))
            await self.see_that_every_slot_is_free()
            assert self.server.connections <= SLOTS
            assert (model.window, model.refused) == (WINDOW, set()), "no fault says anything about the server"
            await self.endpoint.aclose()
            await self.server.until(lambda server: server.connections == 0)
        for _ in range(3):
            await asyncio.sleep(0)  # what was closed leaves the event loop
        assert (asyncio.all_tasks(), open_files()) == (tasks, files)

    async def work(self, waiting: Iterator[int]) -> None:
        for n in waiting:
            self.ends[n] = await self.make(n)

    async def make(self, n: int) -> str:
        """Make call n and say how it ended."""
        heard: list[Delta] = []
        request = Request(key=f"ori:{n}:model", messages=(Message("user", str(n)),), tools=(LOOK,))
        try:
            reply = await self.endpoint.generate(request, heard.append if n % 2 else None, tell=self.told.append)
        except ModelError as error:
            assert not standing(heard), "what was heard of a failed answer is taken back"
            asked = self.asked[n]
            assert (f"asked {asked} times" in str(error)) == (asked > 1)
            return error.failure.kind
        calls = [(c.name, json.loads(c.arguments)) for c in reply.calls]
        assert (reply.content, calls) == (("", [("look", {"n": n})]) if n % 4 < 2 else (words(n), []))
        assert standing(heard) == ((reply.content or reply.calls[0].arguments) if n % 2 else "")
        return "right"

    async def see_that_every_slot_is_free(self) -> None:
        self.together = asyncio.Barrier(SLOTS)
        assert await self.make(self.calls) == "right"  # closes the breaker
        async with asyncio.TaskGroup() as group:
            ends = [group.create_task(self.make(self.calls + 1 + i)) for i in range(SLOTS)]
        assert {end.result() for end in ends} == {"right"}

    async def answer(self, request: dict[str, Any]) -> Answer:
        n = int(request["messages"][-1]["content"])
        if n > self.calls:
            await self.together.wait()
        name = script(n, self.share)[self.asked[n]] if n < self.calls else None
        self.asked[n] += 1
        self.met[name, bool(request.get("stream"))] += 1
        return FAULTS[name][0] if name else good(n)


def standing(heard: list[Delta]) -> str:
    """Return the text that was heard and not taken back."""
    last = max((i for i, delta in enumerate(heard) if delta.kind == "reset"), default=-1)
    return "".join(delta.text for delta in heard[last + 1 :])


async def test_each_call_ends_right_or_as_its_fault_and_costs_the_requests_of_the_table() -> None:
    soak = Soak(CALLS, breaker=Breaker(threshold=CALLS * 3))
    await soak.run()
    assert {n: (soak.asked[n], end) for n, end in soak.ends.items()} == {n: expected(n, 0.3) for n in range(CALLS)}
    assert sum(soak.asked.values()) == sum(expected(n, 0.3)[0] for n in range(CALLS)) + SLOTS + 1
    faults = sum(times for (name, _), times in soak.met.items() if name)
    assert 0.25 < faults / sum(soak.met.values()) < 0.35
    assert soak.met.keys() >= {(name, streams) for name in FAULTS for streams in (True, False)}


async def test_a_breaker_that_opens_again_and_again_costs_no_request_more_and_no_slot() -> None:
    soak = Soak(CALLS // 4, share=0.9)
    await soak.run()
    assert [event.state for event in soak.told if isinstance(event, BreakerChanged)].count("open") > 3
    for n, end in soak.ends.items():
        requests, usual = expected(n, 0.9)
        assert soak.asked[n] <= requests
        if soak.asked[n] == requests:
            assert end == usual
        else:
            assert end != "right" and RULES[FailureKind(end)].retry
