"""`ori mcp`: the orchestrator as an MCP server over stdin and stdout, for any client of that protocol."""

from __future__ import annotations

import asyncio
import sys
import traceback
from argparse import Namespace
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, redirect_stdout
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import orjson

from orchestrator.binding import bind
from orchestrator.content.scenario import Scenario
from orchestrator.errors import ConfigError, OriError, nearest
from orchestrator.handle import RunHandle
from orchestrator.mcp.connection import NOT_INSTALLED
from orchestrator.messages import Json
from orchestrator.run import Orchestrator
from orchestrator.serve.interrupt import Interrupt
from orchestrator.serve.report import Report
from orchestrator.serve.running import checked, replays, summary
from orchestrator.tool import tool
from orchestrator.views.progress import Progress

if TYPE_CHECKING:
    from mcp.server import ServerRequestContext
    from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams

INSTRUCTIONS = "Plans and runs larger goals with several agents; a call may take minutes, and tells how far it is."

Tell = Callable[[str], Awaitable[None]]


def serve(args: Namespace) -> Report:
    """Serve until the client goes."""
    if find_spec("mcp") is None:
        raise ConfigError(NOT_INSTALLED)
    orchestrator = Orchestrator.from_project(args.project)
    Interrupt().run(_serve(orchestrator))
    return Report(data=None)


async def _serve(orchestrator: Orchestrator) -> None:
    from mcp.server import Server
    from mcp.server.stdio import stdio_server

    async with orchestrator, asyncio.TaskGroup() as group, AsyncExitStack() as stack:
        service = Service(orchestrator, group)
        server = Server(
            "ori", instructions=INSTRUCTIONS, on_list_tools=service.list_tools, on_call_tool=service.call_tool
        )
        with redirect_stdout(sys.__stdout__):  # the protocol takes it over; what prints goes to stderr as before
            incoming, outgoing = await stack.enter_async_context(stdio_server())
        await server.run(incoming, outgoing, server.create_initialization_options())


@dataclass(frozen=True, slots=True)
class Started:
    """A run to follow, and the scenario whose checks it is held against."""

    handle: RunHandle
    scenario: Scenario | None = None
    note: str = ""
    """What the client should know before."""


class Service:
    """What clients can call.

    Args:
        orchestrator: Runs what they ask for.
        group: Holds the runs: a call that is cancelled lets its run end in order.
    """

    def __init__(self, orchestrator: Orchestrator, group: asyncio.TaskGroup) -> None:
        self._orchestrator, self._group = orchestrator, group
        offered = (tool(self.solve), tool(self.run_scenario), tool(effect="read")(self.list_scenarios))
        self._tools = {made.name: made for made in offered}

    # what is offered

    def solve(self, goal: str, inputs: list[str] | None = None) -> Started:
        """Plan a goal, let several agents work on it, and return the answer.

        Use it for goals of many steps, such as reports from data files. Returns the answer and what files were made.

        Args:
            goal: What is wanted, in words.
            inputs: Files and folders to work on: absolute paths.
        """
        return Started(self._orchestrator.start(goal, inputs=inputs or []))

    def run_scenario(self, name: str, params: dict[str, Json] | None = None) -> Started:
        """Run a scenario: a goal that was prepared, with data and checks.

        Use it when `list_scenarios` has one that fits. Returns the answer, and what the checks found.

        Args:
            name: As `list_scenarios` names it.
            params: Values over the scenario's own.
        """
        scenario = self._orchestrator.catalog.scenario(name)
        replay = scenario.recording is not None and not self._orchestrator.settings.configured
        handle = self._orchestrator.start_scenario(scenario, params=params, replay=replay)
        return Started(handle, scenario.bind(params), replays(scenario) if replay else "")

    def list_scenarios(self) -> list[dict[str, Json]]:
        """List the scenarios: their names, goals and parameters. Use it before `run_scenario`."""
        found = self._orchestrator.catalog.scenarios()
        return [{"name": one.name, "goal": one.goal, "params": dict(one.params)} for one in found]

    # the protocol

    async def list_tools(self, context: ServerRequestContext, params: PaginatedRequestParams | None) -> ListToolsResult:
        """Say what is offered."""
        from mcp_types import ListToolsResult, Tool, ToolAnnotations

        return ListToolsResult(
            tools=[
                Tool(
                    name=made.name,
                    description=made.description,
                    input_schema=dict(made.parameters),
                    annotations=ToolAnnotations(read_only_hint=made.effect == "read"),
                )
                for made in self._tools.values()
            ]
        )

    async def call_tool(self, context: ServerRequestContext, params: CallToolRequestParams) -> CallToolResult:
        """Answer a call; one that the client cancels cancels its run."""
        told = 0

        async def tell(text: str) -> None:
            nonlocal told
            told += 1
            await context.session.report_progress(told, message=text)

        answering = self._group.create_task(self._answer(params.name, params.arguments or {}, tell))
        try:
            return await asyncio.shield(answering)
        except asyncio.CancelledError:
            answering.cancel()
            raise

    async def _answer(self, name: str, arguments: dict[str, Json], tell: Tell) -> CallToolResult:
        try:
            if name not in self._tools:
                raise ConfigError(f"there is no tool {name!r}{nearest(name, self._tools)}")
            made = self._tools[name]
            asked = made(**bind(orjson.dumps(arguments).decode(), made))
            if isinstance(asked, Started):
                return await self._followed(asked, tell)
            return _result(orjson.dumps(asked, option=orjson.OPT_INDENT_2).decode(), {"scenarios": asked})
        except OriError as error:
            return _result(str(error), None, failed=True)
        except Exception as error:  # noqa: BLE001 - the program's edge
            traceback.print_exc(file=sys.stderr)
            return _result(f"a bug: {type(error).__name__}: {error}", None, failed=True)

    async def _followed(self, started: Started, tell: Tell) -> CallToolResult:
        """Run to the end, telling what happens."""
        from orchestrator.serve.terminal import line

        progress = Progress()
        if started.note:
            await tell(started.note)
        async with started.handle as handle:
            try:
                async for event in handle:
                    progress.apply(event)
                    if said := line(progress, event):
                        await tell(said)
                result = await handle.result()
            except asyncio.CancelledError:
                await handle.cancel()  # on record: who asked for it does not want it any more
                raise
        checks = await checked(self._orchestrator, result, started.scenario) if started.scenario else []
        text = "\n\n".join(filter(None, [started.note, result.answer, "\n".join(summary(result, checks))]))
        data = result.model_dump(mode="json") | {"checks": [asdict(check) for check in checks]}
        failed = result.status in ("failed", "cancelled") or not all(check.passed for check in checks)
        return _result(text, data, failed=failed)


def _result(text: str, value: Any, *, failed: bool = False) -> CallToolResult:
    from mcp_types import CallToolResult, TextContent

    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=value, is_error=failed)
