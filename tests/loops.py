"""What the tests of one loop share: a role at work against a script, and what was said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from orchestrator import Orchestrator, Role, RunResult, tool
from orchestrator.events import Event, MessageAppended
from orchestrator.settings import ModelSettings
from orchestrator.testing import Replies, ScriptedServer
from orchestrator.tool import Tool

E = TypeVar("E", bound=Event)

API_KEY = "sk-0123456789-secret"


@tool(effect="read")
async def look(name: str = "x") -> str:
    """Look something up. Use it for facts. Returns the fact."""
    return f"{name} is 42"


@dataclass(frozen=True, slots=True)
class Ran:
    """A run of one loop that has ended."""

    result: RunResult
    requests: list[dict[str, Any]]
    events: Sequence[Event]

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def said(self, role: str) -> list[str]:
        """Return the texts of the messages of one role, in order."""
        return [event.message.content for event in self.of(MessageAppended) if event.message.role == role]

    @property
    def observations(self) -> list[str]:
        """What the tools gave back, as the conversation holds it."""
        return self.said("tool")

    @property
    def choices(self) -> list[str | None]:
        """The `tool_choice` of each request."""
        return [request.get("tool_choice") for request in self.requests]

    @property
    def ending(self) -> tuple[str, str]:
        """How it ended: status and stop reason."""
        return self.result.status, self.result.stop_reason

    def answers(self) -> list[tuple[str, list[str]]]:
        """Return each call by its tool's name, in order, with every tool message that answers it."""
        messages = [event.message for event in self.of(MessageAppended)]
        return [
            (call.name, [m.content for m in messages if m.role == "tool" and m.call_id == call.id])
            for message in messages
            for call in message.calls
        ]


def agent(tools: Sequence[Tool | str] = (), **more: Any) -> Role:
    """Return the role at work: it may call these tools."""
    names = tuple(tool if isinstance(tool, str) else tool.name for tool in tools)
    return Role(**{"name": "agent", "description": "Works.", "prompt": "You are an agent.", "tools": names, **more})


def orchestrator(
    server: ScriptedServer,
    tools: Sequence[Tool | str] = (),
    *,
    role: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    **options: Any,
) -> Orchestrator:
    """Return an orchestrator with one role, whose model is a scripted server.

    Args:
        server: The server.
        tools: What the role may call; shipped ones by name.
        role: More fields of the role.
        model: More settings of the model.
        options: More arguments of the orchestrator.
    """
    settings = ModelSettings.model_validate(
        {"model": "m", "base_url": server.base_url, "api_key": API_KEY, **(model or {})}
    )
    made = [tool for tool in tools if isinstance(tool, Tool)]
    return Orchestrator(models={"default": settings}, roles=[agent(tools, **(role or {}))], tools=made, **options)


async def run(
    replies: Replies,
    *tools: Tool | str,
    task: str = "the task",
    role: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    deps: Any = None,
    **options: Any,
) -> Ran:
    """Run one loop against a script to its end. Every request must be one that real providers would accept."""
    async with ScriptedServer(replies) as server:
        orchestrated = orchestrator(server, tools, role=role, model=model, deps=deps)
        result = await orchestrated.run_role("agent", task, **options)
        return Ran(result, server.requests, await orchestrated.journal.events(result.run_id))
