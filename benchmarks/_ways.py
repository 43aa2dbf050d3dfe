"""Two ways to do the same work: the engine, and the least that does it."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from orchestrator import Limits, Orchestrator, Role, ToolContext, tool
from orchestrator.journal.memory import MemoryJournal
from orchestrator.messages import Json
from orchestrator.plan import Subtask
from orchestrator.settings import ModelSettings

AGENTS = 64
RUNS = 1000
PLENTY = 1_000_000_000
LIMITS = Limits(
    max_turns=PLENTY, tokens=PLENTY, model_calls=PLENTY, max_parallel=AGENTS, max_subtasks=AGENTS, time=PLENTY
)
WORKER = Role(
    name="worker", description="Works.", prompt="You are a worker. Take the steps.", tools=("step",), limits=LIMITS
)
WAITER = Role(name="waiter", description="Waits.", prompt="You wait.")


@dataclass
class Work:
    """What the tool does: counts its calls, and remembers the CPU that was used by then."""

    padding: str = ""
    cpu: list[float] = field(default_factory=list)

    def step(self, number: int) -> str:
        self.cpu.append(time.process_time())
        return f"step {number} is taken; go on {self.padding}"


@tool(effect="read")
async def step(number: int, ctx: ToolContext) -> str:
    """Take one step. Use it for each step. Returns the result of the step.

    Args:
        number: Which one.
    """
    return ctx.deps.step(number)


class Engine:
    """What is measured."""

    def __init__(self, root: str, folder: Path, work: Work, journal: str | None = None) -> None:
        self._root, self._folder, self._work, self._journal = root, folder, work, journal
        self._made: dict[str, Orchestrator] = {}
        self._stack = AsyncExitStack()

    async def at(self, path: str) -> Orchestrator:
        """Return the orchestrator whose model is at a path of the server; its connections stay open."""
        if path not in self._made:
            address = f"{self._root}/{path}/v1"
            orchestrator = Orchestrator(
                models={"default": ModelSettings(model="m", base_url=address, api_key="none", concurrency=RUNS)},
                roles=[WORKER, WAITER],
                tools=[step],
                limits=LIMITS,
                journal=self._journal or MemoryJournal(keep=1),  # else the collector walks earlier rounds
                deps=self._work,
            )
            self._made[path] = await self._stack.enter_async_context(orchestrator)
        return self._made[path]

    async def aclose(self) -> None:
        await self._stack.aclose()

    async def work(self, path: str) -> None:
        result = await (await self.at(path)).run_role("worker", "Do it.", workspace=self._folder)
        assert result.status == "done", result

    async def work_at_once(self, path: str) -> None:
        plan = [Subtask(id=f"s{number}", role="worker", goal="Do it.") for number in range(AGENTS)]
        result = await (await self.at(path)).solve("Do all of it.", plan=plan, workspace=self._folder)
        assert result.status == "done", result


class Floor:
    """The least that does the same."""

    def __init__(self, root: str, work: Work) -> None:
        self._root, self._work = root, work
        self._clients: dict[str, Any] = {}

    def client(self, path: str) -> Any:
        from openai import AsyncOpenAI, DefaultAioHttpClient

        if path not in self._clients:
            self._clients[path] = AsyncOpenAI(
                base_url=f"{self._root}/{path}/v1", api_key="none", max_retries=0, http_client=DefaultAioHttpClient()
            )
        return self._clients[path]

    async def aclose(self) -> None:
        for client in self._clients.values():
            await client.close()

    async def work(self, path: str, *, typed: bool = False) -> None:
        ask = self._typed if typed else self._raw
        messages: list[Json] = [{"role": "system", "content": WORKER.prompt}, {"role": "user", "content": "Do it."}]
        while True:
            body = {"model": "m", "max_tokens": 8192, "tools": [TOOL], "messages": messages, "tool_choice": "auto"}
            message = (await ask(self.client(path), body))["choices"][0]["message"]
            messages.append(message)
            if not message.get("tool_calls"):
                return
            for call in message["tool_calls"]:
                content = self._work.step(**orjson.loads(call["function"]["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})

    async def work_at_once(self, path: str) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(AGENTS):
                group.create_task(self.work(path))
        await self._raw(self.client(path), {"messages": []})  # as the planner's last word

    async def _raw(self, client: Any, body: Json) -> Json:
        import httpx2

        response = await client.post("/chat/completions", cast_to=httpx2.Response, content=orjson.dumps(body))
        return orjson.loads(response.content)

    async def _typed(self, client: Any, body: Json) -> Json:
        return (await client.chat.completions.create(**body)).model_dump(exclude_none=True)

    async def stream(self, path: str) -> int:
        stream = await self.client(path).chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Do it."}], stream=True
        )
        return sum([1 async for chunk in stream if chunk.choices[0].delta.content])


TOOL = {
    "type": "function",
    "function": {"name": "step", "description": step.description, "parameters": dict(step.parameters)},
}
