"""What the tests of whole runs share: roles, plans in a line each, and the log of a run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from orchestrator import Orchestrator, Role, RunResult
from orchestrator.events import Event
from orchestrator.testing import Answer, Replies, ScriptedServer, call, route, text
from orchestrator.tool import Tool

E = TypeVar("E", bound=Event)

ORI = "You are Ori"
"""Stands in the planner's prompt: the key of its script in a route."""
WORKER = Role(name="worker", description="Does one step.", prompt="You are a worker.")
FILTERED = text("", finish_reason="content_filter")
"""Makes a worker fail for good: such a failure is not tried again."""


def serving(replies: Mapping[Any, Any]) -> ScriptedServer:
    """Return a server that answers each conversation from a script of its own; see `route`."""
    return ScriptedServer(route(replies))


@contextmanager
def served(replies: Replies) -> Iterator[ScriptedServer]:
    """Run a server in a thread and an event loop of its own, for what has its own loop too."""
    server, ready, done = ScriptedServer(replies), threading.Event(), threading.Event()

    async def serve() -> None:
        async with server:
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        ready.wait()
        yield server
    finally:
        done.set()
        thread.join()


def orchestrator(
    server: ScriptedServer, roles: Iterable[Role] = (WORKER,), tools: Iterable[Tool] = (), **options: Any
) -> Orchestrator:
    """Return an orchestrator whose default model is a scripted server."""
    return Orchestrator(model="m", base_url=server.base_url, api_key="k", roles=roles, tools=tools, **options)


def subtask(id: str, after: str = "", *, role: str | None = "worker", **more: Any) -> dict[str, Any]:
    """Return one subtask of a plan, as the planner writes it; its goal is `do <id>` unless given."""
    performer = {} if "tool" in more else {"role": role, "goal": f"do {id}"}
    return {"id": id, **performer, "after": after.split(), **more}


def delegate(*subtasks: dict[str, Any], **more: Any) -> Answer:
    """Answer with a plan."""
    return call("delegate", {"subtasks": list(subtasks), **more})


def statuses(result: RunResult) -> dict[str, str]:
    """Return how each subtask ended."""
    return {id: outcome.status for id, outcome in result.outcomes.items()}


async def logged(orchestrator: Orchestrator, result: RunResult, kind: type[E]) -> list[E]:
    """Return the events of one kind in a run's log."""
    return [event for event in await orchestrator.journal.events(result.run_id) if isinstance(event, kind)]


def said_to(server: ScriptedServer, words: str) -> list[str]:
    """Return the first user message of each conversation that has these words in it, in the order of requests."""
    firsts = (next(m["content"] for m in r["messages"] if m["role"] == "user") for r in server.requests)
    return list(dict.fromkeys(first for first in firsts if words in first))


def observed(server: ScriptedServer, request: int = -1) -> str:
    """Return the last tool message that a request carries."""
    messages = server.requests[request]["messages"]
    return str(next(m["content"] for m in reversed(messages) if m["role"] == "tool"))
