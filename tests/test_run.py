"""The main job, end to end, over a real HTTP server."""

from __future__ import annotations

from orchestrator import Orchestrator, Role, tool
from orchestrator.testing import Answer, ScriptedServer, call, route, text

READER = Role(name="reader", description="Reads.", prompt="You are a reader.", tools=("look",))
WRITER = Role(name="writer", description="Writes.", prompt="You are a writer.", tools=())


@tool(effect="read")
async def look(name: str) -> str:
    """Look something up. Use it for facts. Returns the fact."""
    return f"{name} is 42"


def orchestrator(server: ScriptedServer) -> Orchestrator:
    return Orchestrator(model="m", base_url=server.base_url, api_key="k", roles=[READER, WRITER], tools=[look])


async def test_a_trivial_goal_is_answered_in_one_call_without_a_plan() -> None:
    async with ScriptedServer([text("4")]) as server:
        result = await orchestrator(server).solve("2 + 2 = ?")
    assert (result.status, result.answer, result.outcomes) == ("done", "4", {})
    assert result.usage.calls == len(server.requests) == 1


async def test_a_goal_becomes_a_plan_workers_run_it_in_parallel_and_the_answer_comes_back() -> None:
    plan = {
        "subtasks": [
            {"id": "a", "role": "reader", "goal": "find a", "after": []},
            {"id": "b", "role": "reader", "goal": "find b", "after": []},
            {"id": "c", "role": "writer", "goal": "put together", "after": ["a", "b"]},
        ]
    }
    replies: dict[str | tuple[str, ...], list[Answer]] = {
        "You are Ori": [call("delegate", plan), text("Both are 42.")],
        "find a": [call("look", {"name": "a"}), text("a = 42")],
        "find b": [call("look", {"name": "b"}), text("b = 42")],
        "put together": [text("a and b are 42")],
    }
    async with ScriptedServer(route(replies)) as server:
        result = await orchestrator(server).solve("What are a and b?")
    assert result.status == "done", result
    assert result.answer == "Both are 42."
    assert {id: o.status for id, o in result.outcomes.items()} == {"a": "done", "b": "done", "c": "done"}
    assert result.usage.calls == 7
    last = next(r for r in server.requests if "put together" in str(r["messages"][1]))
    assert "a = 42" in last["messages"][1]["content"] and "b = 42" in last["messages"][1]["content"]
