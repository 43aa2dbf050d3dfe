"""What a run makes of an endpoint that is down, and how runs share what is scarce."""

import asyncio
from contextlib import AsyncExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Limits, Orchestrator, RunResult, tool
from orchestrator.events import BreakerChanged, SubtaskStarted, Warned
from orchestrator.models.endpoint import Endpoint
from orchestrator.models.openai import OpenAIModel
from orchestrator.settings import ModelSettings
from orchestrator.testing import Answer, ScriptedServer, call, drop, fault, hang, route, text
from tests.clock import Clock
from tests.engine import ORI, WORKER, delegate, logged, served, subtask

DOWN = fault(503)


def described(server: ScriptedServer, **more: Any) -> ModelSettings:
    return ModelSettings.model_validate({"model": "m", "base_url": server.base_url, "attempts": 1, **more})


def orchestrator(server: ScriptedServer, **more: Any) -> Orchestrator:
    return Orchestrator(models={"default": described(server, **more)}, roles=[WORKER])


async def test_an_outage_ends_the_run_as_failed_and_is_not_replanned() -> None:
    plan = delegate(subtask("a"), subtask("b"), subtask("c", "a"))
    async with ScriptedServer(route({ORI: [plan], "You are a worker": lambda request: DOWN})) as server:
        made = orchestrator(server)
        result = await made.solve("go")
        planned = [r for r in server.requests if ORI in str(r["messages"][0])]
    assert (result.status, result.stop_reason) == ("failed", "model_unavailable")
    assert result.failure and "503" in result.failure.message
    assert len(planned) == 1
    assert {event.id for event in await logged(made, result, SubtaskStarted)} <= {"a", "b"}


async def test_a_breaker_that_one_run_opened_is_seen_by_the_next_whose_log_tells_it() -> None:
    async with ScriptedServer([DOWN] * 5) as server:
        made = orchestrator(server, when_open="fail")
        failed = [await made.solve("go") for _ in range(5)]
        result = await made.solve("go")
    assert result.status == "failed" and result.failure and "5 requests in a row failed" in result.failure.message
    assert [event.state for event in await logged(made, result, BreakerChanged)] == ["open"]
    assert [event.state for event in await logged(made, failed[-1], BreakerChanged)] == ["open"]
    assert await logged(made, failed[0], BreakerChanged) == []


async def test_a_breaker_that_one_worker_opened_is_seen_by_the_others() -> None:
    clock = Clock(instant=True)
    plan = delegate(*(subtask(id) for id in "abcdef"))
    answers = iter([DOWN] * 5)
    script = route({ORI: [plan, text("all done")], "You are a worker": lambda request: next(answers, text("done"))})
    async with ScriptedServer(script) as server:
        model = OpenAIModel("m", base_url=server.base_url, api_key="none")
        made = Orchestrator(model=Endpoint(model, attempts=9, clock=clock, sleep=clock.sleep), roles=[WORKER])
        result = await made.solve("go")
    assert (result.status, result.answer) == ("done", "all done")
    assert [event.state for event in await logged(made, result, BreakerChanged)] == ["open", "half_open", "closed"]
    assert any("asking again" in event.text for event in await logged(made, result, Warned))


@pytest.mark.parametrize("price", [None, {"input": 1, "output": 100}], ids=["unknown", "higher"])
async def test_a_limit_on_money_counts_what_the_fallback_costs(price: dict[str, int] | None) -> None:
    @tool
    async def look() -> str:
        """Look. Use it always. Returns nothing."""
        return "nothing"

    answer = call("look", {}, usage={"prompt_tokens": 100, "completion_tokens": 5000})
    async with ScriptedServer(lambda request: DOWN) as server, ScriptedServer(lambda request: answer) as other:
        cheap, own = {"input": 1, "output": 1}, {"price": price} if price else {}
        models = {
            "default": described(server, fallback=["other"], price=cheap),
            "other": described(other, model="other", **own),
        }
        made = Orchestrator(models=models, roles=[WORKER.model_copy(update={"tools": ["look"]})], tools=[look])
        result = await made.run_role("worker", "go", limits=Limits(cost=Decimal("0.6"), max_turns=4))
    said = [event.text for event in await logged(made, result, Warned) if "has no `price`" in event.text]
    if price:
        assert result.stop_reason == "budget" and not said
        assert all(request["max_tokens"] <= 1000 for request in other.requests[1:])  # 0.1 was left
    else:
        assert ["'other'" in text for text in said] == [True]


async def test_a_run_on_its_fallback_ends_right_and_says_so() -> None:
    script: dict[Any, Any] = {ORI: [delegate(subtask("a")), text("all done")], "You are a worker": [text("done")]}
    async with ScriptedServer(lambda request: DOWN) as server, ScriptedServer(route(script)) as other:
        models = {"default": described(server, fallback=["cheap"]), "cheap": described(other, model="cheap")}
        made = Orchestrator(models=models, roles=[WORKER])
        result = await made.solve("go")
        assert len(server.requests) == 3, "each call asks the first model first while its breaker is closed"
    assert (result.status, result.answer) == ("done", "all done")
    warned = [event.text for event in await logged(made, result, Warned)]
    assert len(warned) == 1 and warned[0].startswith("model 'cheap' is asked now") and "503" in warned[0]


@pytest.mark.parametrize("answer", [drop(), hang()])
async def test_a_run_that_is_cancelled_meanwhile_leaves_nothing(answer: Answer) -> None:
    async with ScriptedServer([answer]) as server:
        made = Orchestrator(models={"default": described(server, attempts=3)}, roles=[WORKER])
        async with made.start("go") as handle:
            await server.until(lambda server: len(server.requests) == 1)
            result = await handle.cancel()
        assert result.status == "cancelled"
        await server.until(lambda server: server.connections == 0)
        assert len(server.requests) == 1


# runs at a time


async def test_no_more_than_max_runs_work_at_a_time_and_the_others_wait_in_order() -> None:
    gates = {goal: asyncio.Event() for goal in ("goal-1", "goal-2", "goal-3", "goal-4")}
    begun: list[str] = []

    async def answer(request: dict[str, Any]) -> Answer:
        goal = next(goal for goal in gates if goal in str(request["messages"]))
        begun.append(goal)
        await gates[goal].wait()
        return text(goal)

    async with ScriptedServer(answer) as server, asyncio.TaskGroup() as group:
        made = Orchestrator(models={"default": described(server)}, roles=[WORKER], max_runs=2)
        runs = [group.create_task(made.solve(goal)) for goal in gates]
        await server.until(lambda server: server.in_flight == 2)
        gates["goal-2"].set()
        await server.until(lambda server: len(server.requests) == 3)
        assert begun == ["goal-1", "goal-2", "goal-3"]
        for gate in gates.values():
            gate.set()
    results = [run.result() for run in runs]
    assert [result.answer for result in results] == list(gates)
    assert [len(await logged(made, result, Warned)) for result in results] == [0, 0, 1, 1]


async def test_a_run_that_waits_can_be_cancelled_and_its_time_has_not_begun() -> None:
    async with ScriptedServer([hang()]) as server:
        made = Orchestrator(models={"default": described(server)}, roles=[WORKER], max_runs=1)
        async with made.start("first") as first, made.start("second") as second:
            await server.until(lambda server: server.in_flight == 1)
            assert (await second.cancel()).status == "cancelled"
            assert (await first.cancel()).status == "cancelled"
        assert len(server.requests) == 1


async def test_a_project_says_how_many_runs_work_at_a_time(tmp_path: Path) -> None:
    async with ScriptedServer([hang()]) as server:
        (tmp_path / "ori.yaml").write_text(
            f"models: {{default: {{model: m, base_url: {server.base_url}}}}}\njournal: memory\nmax_runs: 1\n"
        )
        made = Orchestrator.from_project(tmp_path)
        async with made.start("first"), made.start("second") as second:
            async for event in second:
                if isinstance(event, Warned):
                    assert "max_runs" in event.text
                    break
            else:
                pytest.fail("it does not wait")


async def test_a_program_runs_as_many_at_a_time_as_it_likes() -> None:
    async with ScriptedServer(lambda request: hang()) as server, AsyncExitStack() as runs:
        made = Orchestrator(models={"default": described(server)}, roles=[WORKER])
        for _ in range(6):
            await runs.enter_async_context(made.start("go"))
        await server.until(lambda server: server.in_flight == 6)


# one event loop after another


def test_an_orchestrator_solves_in_one_event_loop_after_another_with_every_limit_set() -> None:
    plan = delegate(*(subtask(id) for id in "abcd"))
    script: dict[Any, Any] = {ORI: [plan, text("all done")] * 2, "You are a worker": text("done")}
    with served(route(script)) as server:
        limits = {"concurrency": 1, "rpm": 1000, "tpm": 10_000_000}
        made = Orchestrator(models={"default": described(server, **limits)}, roles=[WORKER], max_runs=1)
        results: list[RunResult] = [made.solve_sync("go") for _ in range(2)]
    assert [(result.status, result.answer) for result in results] == [("done", "all done")] * 2
