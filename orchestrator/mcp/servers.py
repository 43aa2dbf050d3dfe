"""The MCP servers of a project, and their tools as tools of ours."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError, ToolError, nearest
from orchestrator.mcp.connection import LAST_WORDS, Connection, Definition, ServerGone, connect
from orchestrator.mcp.names import EVERYTHING, SEPARATOR, shown_name, wire_name
from orchestrator.mcp.results import to_tool_result
from orchestrator.resources import Resources
from orchestrator.role import Role
from orchestrator.settings import Settings
from orchestrator.text.redact import Redactor
from orchestrator.tool import Tool, ToolContext

_DESTINATION = re.compile(
    r"(?i)(^|_)(urls?|uris?|href|link|endpoint|webhook|host(name)?|domain|(e-?mail|address)(es)?|to|recipients?)$"
    r"|(Url|URL|Uri|URI|Host|Email)s?$"
)
"""Names of parameters that mostly say where data goes; the protocol has no way to declare that."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What there is of the tools that whitelists name."""

    tools: Mapping[str, Tool] = field(default_factory=dict)
    """By the name that people use: `server/tool`."""
    missing: tuple[str, ...] = ()
    """What there is not, and why, a sentence each."""

    def names(self, whitelist: Iterable[str]) -> tuple[str, ...]:
        """Return a whitelist in which each tool of a server that is there stands by its own name."""
        return tuple(dict.fromkeys(name for entry in whitelist for name in self._named(entry)))

    def to(self, role: Role) -> Role:
        """Return a role whose whitelists name each tool.

        Raises:
            ConfigError: A model could not tell one of them from another tool of the role.
        """
        tools = self.names(role.tools)
        for name in tools:
            if name in self.tools and self.tools[name].name in tools:
                twice = f"{name!r} and {self.tools[name].name!r} would be one name to a model"
                raise ConfigError(f"role {role.name!r}: {twice}; call the server otherwise in ori.yaml")
        return role.model_copy(update={"tools": tools, "approval": self.names(role.approval)})

    def as_told(self, told: Mapping[str, Mapping[str, Any]]) -> Offer:
        """Return the offer to a resumed run: its tools are what they were when it began.

        Args:
            told: Terms of tools by name.
        """
        return replace(self, tools={name: replace(tool, **told.get(name, {})) for name, tool in self.tools.items()})

    def changed(self, tool: Tool) -> Offer:
        """Return the offer after a person has accepted a tool as it is now."""
        return replace(self, tools={**self.tools, tool.title: tool})

    def _named(self, entry: str) -> Iterator[str]:
        server, separator, tool = entry.partition(SEPARATOR)
        if not separator or entry in self.tools:
            yield entry
        elif tool == EVERYTHING:
            yield from (name for name in self.tools if name.startswith(server + SEPARATOR))


class Servers:
    """Starts the servers of a project when somebody needs them, and again when they have ended.

    Args:
        settings: Of the project.
        folder: What the servers' working folders are relative to.
        resources: Where connections are kept.
        redact: Takes secrets out of what servers print.
    """

    def __init__(
        self, settings: Settings, folder: Path, resources: Callable[[], Resources], redact: Callable[[str], str]
    ) -> None:
        self._settings, self._folder, self._resources, self._redact = settings, folder, resources, redact

    async def offer(self, wanted: Iterable[str]) -> Offer:
        """Return the tools that names and patterns such as `server/*` stand for; those of no server are passed over."""
        entries = sorted({entry for entry in wanted if SEPARATOR in entry})
        servers = {entry.partition(SEPARATOR)[0] for entry in entries}
        listed: dict[str, dict[str, Tool]] = {}
        missing: list[str] = []

        async def list_one(server: str) -> None:
            try:
                listed[server] = await self.tools(server)
            except (ConfigError, ToolError) as error:
                missing.append(f"the tools of the MCP server {server!r} are missing: {error}")

        async with asyncio.TaskGroup() as group:
            for server in servers:
                group.create_task(list_one(server))
        found: dict[str, Tool] = {}
        for entry in entries:
            server, _, tool = entry.partition(SEPARATOR)
            tools = listed.get(server, {})
            if tool == EVERYTHING:
                found |= tools
            elif entry in tools:
                found[entry] = tools[entry]
            elif server in listed:
                missing.append(f"there is no tool {entry!r}{nearest(entry, tools)}")
        return Offer(dict(sorted(found.items())), tuple(sorted(missing)))

    async def tools(self, server: str) -> dict[str, Tool]:
        """Return all tools of a server by the names that people use.

        Raises:
            ConfigError: There is no such server, or it lacks a setting.
            ToolError: It cannot be reached.
        """
        connection = await self._connection(server, anew=True)
        made = (self._tool(server, definition) for definition in connection.definitions.values())
        return {tool.title: tool for tool in made}

    async def about(self, server: str) -> str:
        """Return what a server is and how many tools it has, or why it cannot be reached."""
        try:
            connection = await self._connection(server)
        except (ConfigError, ToolError) as error:
            return str(error)
        return f"{connection.about}, {len(connection.definitions)} tool{'s' * (len(connection.definitions) != 1)}"

    async def _connection(self, server: str, *, anew: bool = False) -> Connection:
        """Return an open connection that knows what the server offers now."""
        settings, key, resources = self._settings.mcp_server(server), ("mcp", server), self._resources()
        open = partial(connect, settings, self._folder, self._redact)
        connection: Connection = await resources.get(key, open)
        if connection.closed:
            await resources.drop(key)
            connection = await resources.get(key, open)
        try:
            async with asyncio.timeout(settings.start_timeout):
                await connection.refresh(anew=anew)
        except TimeoutError:
            raise ToolError(f"it did not list its tools within {settings.start_timeout:g} s") from None
        return connection

    def _tool(self, server: str, definition: Definition) -> Tool:
        schema = definition.parameters
        there = [name for name in schema["properties"] if _DESTINATION.search(name)] if definition.open_world else []
        return Tool(
            name=wire_name(server, definition.name),
            title=shown_name(server, definition.name),
            description=definition.description,
            parameters=schema,
            invoke=partial(self._call, server, definition),
            validate=dict,  # fitted to the schema before; what else it says, the server judges
            effect=definition.effect,
            timeout=self._settings.mcp[server].timeout,
            untrusted=definition.open_world,
            destinations=tuple(there),
            source=f"MCP server {server}",
            current=partial(self._current, server, definition.name),
        )

    async def _current(self, server: str, name: str) -> Tool:
        """Return a tool as it is by now."""
        _, definition = await self._reach(server, name)
        return self._tool(server, definition)

    async def _reach(self, server: str, name: str) -> tuple[Connection, Definition]:
        """Return the connection for a call of a tool, and what the tool is by now.

        Raises:
            ToolError: The server cannot be reached, or has no such tool any more.
        """
        shown = shown_name(server, name)
        try:
            connection = await self._connection(server)
        except ToolError as error:
            raise ToolError(f"{shown} was not called: {error}") from None
        if (definition := connection.definitions.get(name)) is None:
            offered = [shown_name(server, other) for other in connection.definitions]
            raise ToolError(f"{shown} was not called: the server no longer has it{nearest(shown, offered)}")
        return connection, definition

    async def _call(self, server: str, known: Definition, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Call a tool, if it is still what was agreed to."""
        shown = shown_name(server, known.name)
        connection, now = await self._reach(server, known.name)
        if now != known:
            raise ToolError(f"{shown} was not called: its server has just changed it; call it again to ask a person")

        async def tell(progress: float, total: float | None, message: str | None) -> None:
            share = f"{progress:g}" if total is None else f"{progress:g}/{total:g}"
            await context.progress(f"{share} {message or ''}".strip())

        try:
            result = await connection.call(known.name, arguments, tell)
        except ServerGone as error:
            words = self._redact(await connection.last_words())[-LAST_WORDS:]
            said = f" It said: {words}" if words else ""
            unknown = "" if known.effect == "read" else " Whether the call took effect is not known."
            raise ToolError(f"{shown} failed: {error}. The next call connects anew.{unknown}{said}") from None
        source = f"the MCP server {server!r}" if known.open_world else None
        return await to_tool_result(result, context, f"mcp/{server}", source)


@asynccontextmanager
async def opened(settings: Settings, folder: Path) -> AsyncIterator[Servers]:
    """Give the servers of a project outside of any run; those that were started end with this."""
    async with Resources() as resources:
        yield Servers(settings, folder, lambda: resources, Redactor(settings.secrets()).text)
