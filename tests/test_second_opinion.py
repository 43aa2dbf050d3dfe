"""What others think of our manners: servers that we did not write judge the client, over real time."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import Request as Post
from urllib.request import urlopen

import pytest

from orchestrator.errors import ModelError
from orchestrator.messages import Delta, Message, Request
from orchestrator.models.endpoint import Endpoint
from orchestrator.models.openai import OpenAIModel
from orchestrator.models.server import Timeouts
from orchestrator.testing import Answer, ScriptedServer, drop, fault, text
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


async def end_of(url: str, model: str, **options: Any) -> str:
    """Make one call, streamed if the model's name says so, and say how it ended."""
    heard: list[Delta] = []
    asked = OpenAIModel(
        model, base_url=f"{url}/v1", api_key="none", timeout=Timeouts(read=2 if "stalled" in model else 60)
    )
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
    "stream stalled": ([{**breaks("stall"), "stall_seconds": 9}], "right", 2),
}


async def test_llmock_finds_no_fault_with_how_we_try_again(judge: Judge) -> None:
    judge.script({model: faults for model, (faults, _, _) in CALLS.items() if faults})
    async with asyncio.TaskGroup() as group:
        ends = {model: group.create_task(end_of(judge.url, model)) for model in CALLS}
    assert {model: end.result() for model, end in ends.items()} == {model: end for model, (_, end, _) in CALLS.items()}
    assert await asyncio.to_thread(judge.requests) == {model: number for model, (_, _, number) in CALLS.items()}
    verdict = await asyncio.to_thread(judge.verdict)
    assert (verdict["passed"], verdict["findings"]) == (True, [])


async def test_llmock_would_say_so_if_we_did_not_wait(judge: Judge) -> None:
    clock = Clock(instant=True)
    judge.script({"limited": [fails(429, retry_after=1)]})
    assert await end_of(judge.url, "limited", clock=clock, sleep=clock.sleep) == "right"
    (finding,) = (await asyncio.to_thread(judge.verdict))["findings"]
    assert finding["code"] == "retry_after_ignored"


# litellm: a proxy that many put before their models; it has ways of its own to pass faults on

TOO_LONG = fault(400, {"error": {"message": "This model's maximum context length is 128000 tokens."}})
WELL = text("all is well, and has been for a while")
PROXIED: dict[str, tuple[list[Answer], str]] = {
    "well": ([WELL], "right"),
    "limited": ([fault(429, headers={"retry-after": "1"}), WELL], "right"),
    "ill": ([fault(503), WELL], "right"),
    "down": ([fault(503)] * 3, "overloaded"),
    "refused": ([fault(400)], "invalid_request"),
    "forbidden": ([fault(401)], "auth"),
    "overflowing": ([TOO_LONG], "context_overflow"),
    "silent": ([drop(), WELL], "right"),
    "dropped": ([drop(WELL), WELL], "right"),
}
"""By model: what the server answers behind the proxy, one request after another, and how the call ends.

Half a stream that ends well is missing: litellm puts a finish reason of its own on it, so nobody behind it can tell.
"""


@asynccontextmanager
async def litellm(upstream: str, home: Path) -> AsyncIterator[str]:
    """Put litellm before a server, every model by its own name, with no retries of the proxy's own."""
    program = shutil.which("litellm")
    if not program:
        pytest.skip("litellm[proxy] is not installed (an environment of its own does, with its bin on PATH)")
    params = {"model": "openai/*", "api_base": upstream, "api_key": "none"}
    config = {
        "model_list": [{"model_name": "*", "litellm_params": params}],
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
        "general_settings": {"dangerously_permit_weak_or_unset_master_key": True},
    }
    file = home / "litellm.yaml"
    file.write_text(json.dumps(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = await asyncio.create_subprocess_exec(
        *(program, "--config", str(file), "--host", "127.0.0.1", "--port", str(port)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )
    assert server.stdout
    while b"Uvicorn running" not in (line := await server.stdout.readline()):
        assert line, "litellm did not start"
    async with asyncio.TaskGroup() as group:
        group.create_task(server.stdout.read())  # a full pipe would stop it
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            await server.wait()


async def test_faults_are_told_apart_through_litellm(tmp_path: Path) -> None:
    models = {f"{way}-{name}": called for name, called in PROXIED.items() for way in ("plain", "stream")}
    waiting = {model: list(answers) for model, (answers, _) in models.items()}
    async with ScriptedServer(lambda request: waiting[request["model"]].pop(0)) as server:
        async with litellm(server.base_url, tmp_path) as url, asyncio.TaskGroup() as group:
            ends = {model: group.create_task(end_of(url, model)) for model in models}
        assert {model: end.result() for model, end in ends.items()} == {m: end for m, (_, end) in models.items()}
    assert Counter(request["model"] for request in server.requests) == {m: len(a) for m, (a, _) in models.items()}
