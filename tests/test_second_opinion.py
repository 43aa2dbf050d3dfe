"""What others think of our manners: servers that we did not write judge the client, over real time."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any
from urllib.request import Request as Post
from urllib.request import urlopen

import pytest

from orchestrator.errors import ModelError
from orchestrator.messages import Delta, Message, Request
from orchestrator.models.endpoint import Endpoint
from orchestrator.models.openai import OpenAIModel, Timeouts
from tests.clock import Clock

LLMOCK = """
import sys
from llmock.testing import LLMockServer

with LLMockServer() as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""


class Judge:
    """A chaos server in a process of its own, which breaks each model's answers as it is told and watches."""

    def __init__(self, url: str) -> None:
        self.url = url

    def _ask(self, path: str, body: Any = None) -> Any:
        with urlopen(Post(self.url + path, body and json.dumps(body).encode()), timeout=10) as answer:
            return json.load(answer)

    def script(self, faults: dict[str, list[dict[str, Any]]]) -> None:
        """Queue faults, by the model that is asked."""
        behaviors = [{**fault, "match": {"model": model}} for model, queue in faults.items() for fault in queue]
        self._ask("/_llmock/scenario", {"behaviors": behaviors})

    def requests(self) -> dict[str, int]:
        """Count the requests it saw, by model."""
        seen = [request["model"] for request in self._ask("/_llmock/requests")["requests"]]
        return {model: seen.count(model) for model in seen}

    def verdict(self) -> Any:
        return self._ask("/_llmock/verdict")


@pytest.fixture
def judge() -> Iterator[Judge]:
    if not find_spec("llmock"):
        pytest.skip("llmock is not installed")
    command = [sys.executable, "-c", LLMOCK]
    paced = {**os.environ, "LLMOCK_STREAM_CHUNK_DELAY_MS": "100"}  # else a stream is all sent before one can hang up
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=paced) as server:
        assert server.stdout
        yield Judge(server.stdout.readline().strip())
        server.communicate()


async def end_of(judge: Judge, model: str, **options: Any) -> str:
    """Make one call, streamed if the model's name says so, and say how it ended."""
    heard: list[Delta] = []
    asked = OpenAIModel(model, base_url=f"{judge.url}/v1", api_key="none", timeout=Timeouts(read=0.5))
    endpoint = Endpoint(asked, **options)
    try:
        request = Request(key="ori:1:model", messages=(Message("user", "hello"),))
        reply = await endpoint.generate(request, heard.append if model.startswith("stream") else None)
        return "right" if reply.content else "empty"
    except ModelError as error:
        return error.failure.kind
    finally:
        await endpoint.aclose()


def fails(status: int, times: int | None = 1, **fields: Any) -> dict[str, Any]:
    return {"type": "fail", "status": status, "times": times, **fields}


def breaks(kind: str, times: int = 1) -> dict[str, Any]:
    return {"type": "stream_fault", "kind": kind, "after_chunks": 2, "times": times}


# By model: what it meets, how the call ends, and how many requests that takes.
CALLS: dict[str, tuple[list[dict[str, Any]], str, int]] = {
    "well": ([], "right", 1),
    "limited": ([fails(429, 2, retry_after=1.5)], "right", 3),
    "briefly limited": ([fails(429, retry_after=0.3)], "right", 2),
    **{f"status {status}": ([fails(status)], "right", 2) for status in (408, 409, 429, 500, 502, 503, 504, 529)},
    "slow to mend": ([fails(503, 2)], "right", 3),
    "down": ([fails(503, None)], "overloaded", 3),
    "refused": ([fails(400, None)], "invalid_request", 1),
    "forbidden": ([fails(401, None)], "auth", 1),
    "closed": ([fails(403, None)], "auth", 1),
    "malformed": ([fails(422, None)], "invalid_request", 1),
    "overflowing": ([fails(400, None, code="context_length_exceeded")], "context_overflow", 1),
    "stream limited": ([fails(429, retry_after=1)], "right", 2),
    "stream down": ([fails(500, None)], "overloaded", 3),
    "stream dropped": ([breaks("disconnect")], "right", 2),
    "stream cut": ([breaks("truncate", 2)], "right", 3),
    "stream garbled": ([breaks("malformed")], "right", 2),
    "stream stalled": ([{**breaks("stall"), "stall_seconds": 5}], "right", 2),
}


async def test_llmock_finds_no_fault_with_how_we_try_again(judge: Judge) -> None:
    judge.script({model: faults for model, (faults, _, _) in CALLS.items() if faults})
    async with asyncio.TaskGroup() as group:
        ends = {model: group.create_task(end_of(judge, model)) for model in CALLS}
    assert {model: end.result() for model, end in ends.items()} == {model: end for model, (_, end, _) in CALLS.items()}
    assert await asyncio.to_thread(judge.requests) == {model: number for model, (_, _, number) in CALLS.items()}
    verdict = await asyncio.to_thread(judge.verdict)
    assert (verdict["passed"], verdict["findings"]) == (True, [])


async def test_llmock_would_say_so_if_we_did_not_wait(judge: Judge) -> None:
    clock = Clock(instant=True)
    judge.script({"limited": [fails(429, retry_after=1)]})
    assert await end_of(judge, "limited", clock=clock, sleep=clock.sleep) == "right"
    (finding,) = (await asyncio.to_thread(judge.verdict))["findings"]
    assert finding["code"] == "retry_after_ignored"
