"""A run that was cut off at any of its commits goes on to the same end, and asks for nothing twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from orchestrator import Role, RunResult, tool
from orchestrator.events import Event, ModelReplied, ToolReturned
from orchestrator.journal.memory import MemoryJournal
from orchestrator.messages import Message
from orchestrator.past import Past
from orchestrator.testing import Answer, ScriptedServer, call, text
from orchestrator.tool import Tool
from tests.engine import ORI, WORKER, delegate, orchestrator, subtask


class Commits(MemoryJournal):
    """Notes how much was written at each commit: what a crash can leave."""

    def __init__(self) -> None:
        super().__init__()
        self.marks: list[int] = []

    async def commit(self) -> None:
        self.marks.append(sum(map(len, self._runs.values())))


def holding(events: Sequence[Event]) -> MemoryJournal:
    journal = MemoryJournal()
    for event in events:
        journal.write(event)
    return journal


def by_turn(script: dict[str, list[Answer]]) -> Callable[[dict[str, Any]], Answer]:
    """Answer a conversation by how many answers are in it: the same request gets the same reply, however often."""

    def answer(request: dict[str, Any]) -> Answer:
        said = "\n".join(str(m["content"]) for m in request["messages"] if m["role"] in ("system", "user"))
        turn = sum(m["role"] == "assistant" for m in request["messages"])
        key = next(key for key in script if key in said)
        reply: Answer = script[key][turn]
        return reply

    return answer


async def every_cut(
    script: dict[str, list[Answer]], roles: Iterable[Role], tools: Iterable[Tool] = (), **options: Any
) -> tuple[RunResult, int]:
    """Run once, then again from each commit of that run, and hold each end against the first one."""
    roles, tools = list(roles), list(tools)
    async with ScriptedServer(by_turn(script)) as server:
        journal = Commits()
        whole = await orchestrator(server, roles, tools, journal=journal).solve("goal", **options)
        events = await journal.events(whole.run_id)
        calls = len(server.requests)
        ends = len(events)
        for mark in sorted(set(journal.marks)):
            if mark >= ends:
                continue
            before = len(server.requests)
            left = holding(events[:mark])
            made = orchestrator(server, roles, tools, journal=left)
            result = await made.resume(whole.run_id)
            assert told(result) == told(whole), f"cut after event {mark}: {events[mark - 1]}"
            replied = sum(isinstance(e, ModelReplied) for e in events[:mark])
            assert len(server.requests) - before == calls - replied, f"cut after event {mark}"
            after = await left.events(whole.run_id)
            assert [e.seq for e in after] == list(range(1, len(after) + 1))
            assert conversations(after) == conversations(events)
            twice = [k for k, n in Counter(e.key for e in after if isinstance(e, ToolReturned)).items() if n > 1]
            assert not twice
        return whole, calls


def told(result: RunResult) -> tuple[Any, ...]:
    outcomes = {
        id: (o.status, o.stop_reason, o.answer, o.value, o.attempts, o.usage.calls, o.artifacts)
        for id, o in result.outcomes.items()
    }
    whole = (result.status, result.stop_reason, result.answer, result.value, result.usage.calls, result.failure)
    return (*whole, outcomes)


def conversations(events: Sequence[Event]) -> dict[str, list[Any]]:
    def said(message: Message) -> Any:
        return message.role, message.content, [(call.name, call.arguments) for call in message.calls]

    loops = Past.of(events).loops
    return {path: [said(message) for message in loop.conversation.messages] for path, loop in loops.items()}


@tool(effect="read")
async def look(name: str) -> str:
    """Look something up. Use it for facts. Returns the fact."""
    return f"{name} is 42"


LOOKER = WORKER.model_copy(update={"tools": ("look",)})


class TestEveryCut:
    async def test_a_plan_whose_workers_call_tools(self) -> None:
        plan = delegate(subtask("a"), subtask("b"), subtask("c", "a b"))
        work = [call("look", {"name": "x"}), text("x is 42")]
        script = {ORI: [plan, text("all is 42")], "do a": work, "do b": work, "do c": work}
        whole, calls = await every_cut(script, [LOOKER], [look])
        assert (whole.status, calls) == ("done", 8)
