"""One open connection to an MCP server, and what the server offers over it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ToolError
from orchestrator.mcp.transport import Trace, reach
from orchestrator.settings import McpServer
from orchestrator.tool import Effect

if TYPE_CHECKING:
    from mcp import Client
    from mcp.shared.dispatcher import ProgressFnT
    from mcp_types import CallToolResult, Tool

NOT_INSTALLED = "the MCP SDK is not installed; pip install 'ori-orchestrator[mcp]'"
LAST_WORDS = 1_000
"""Characters of what a server printed that are told when it has ended."""
PAGES = 100
"""Of one list of tools; a server that does not end it is refused."""


class ServerGone(ToolError):
    """The server has ended, or forgotten this connection."""


@dataclass(frozen=True, slots=True)
class Definition:
    """What a server says of one of its tools."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON Schema of the arguments."""
    effect: Effect
    """As its annotations say; without any, calling it may do harm, and twice more."""
    open_world: bool
    """Strangers may have written what it returns."""

    @classmethod
    def of(cls, tool: Tool) -> Definition:
        """Read the protocol's form; what an annotation does not say has the protocol's default."""
        said = tool.annotations
        effect: Effect = "once"
        if said and said.read_only_hint:
            effect = "read"
        elif said and said.idempotent_hint and said.destructive_hint is False:
            effect = "idempotent"
        schema = {"properties": {}, **tool.input_schema, "type": "object"}
        schema.pop("$schema", None)
        description = tool.description or tool.title or (said and said.title) or ""
        return cls(tool.name, description, schema, effect, not said or said.open_world_hint is not False)


class Connection:
    """Knows the tools of one server, and calls them."""

    def __init__(self, client: Client, trace: Trace) -> None:
        self._client, self._trace = client, trace
        self.definitions: dict[str, Definition] = {}
        """By name, as last listed."""

    @property
    def closed(self) -> bool:
        """Nothing can be called any more."""
        return self._trace.closed

    @property
    def about(self) -> str:
        """Name and version of the server, as it says, and version of the protocol."""
        info = self._client.server_info
        named = " ".join(filter(None, (info.name, info.version))) if info else "nameless"
        return f"{named}, protocol {self._client.protocol_version}"

    async def refresh(self, *, anew: bool = False) -> None:
        """List the tools, unless they are known and the server has not said that they changed.

        Args:
            anew: List them all the same: not every server says it.

        Raises:
            ToolError: They cannot be listed.
        """
        if not (self._trace.stale or anew):
            return
        self._trace.stale = False
        found: dict[str, Definition] = {}
        cursor: str | None = None
        with self._in_words():
            for _ in range(PAGES):
                page = await self._client.list_tools(cursor=cursor)
                for tool in page.tools:
                    found.setdefault(tool.name, Definition.of(tool))
                cursor = page.next_cursor
                if cursor is None:
                    self.definitions = found
                    return
        raise ToolError(f"its list of tools does not end after {PAGES} pages")

    async def call(self, tool: str, arguments: dict[str, Any], progress: ProgressFnT) -> CallToolResult:
        """Call a tool. Cancelling this cancels the call at the server.

        Raises:
            ServerGone: The server has ended, before or during the call.
            ToolError: It refuses the call, or its answer is not what it announced.
        """
        with self._in_words():
            return await self._client.call_tool(tool, arguments, progress_callback=progress)

    async def last_words(self) -> str:
        """Return what the server printed in the end; may hold secrets."""
        return await self._trace.last_words()

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR

        try:
            yield
        except MCPError as error:
            why = self._trace.with_refusal(error.message)
            # over HTTP these two are made up by the SDK, when the server has forgotten the session or answers by status
            forgotten = error.message == "Session terminated" or (error.code == INTERNAL_ERROR and why != error.message)
            if error.code == CONNECTION_CLOSED or forgotten:
                self._trace.closed = True
                raise ServerGone(f"the server has ended, or closed the connection: {why}") from error
            raise ToolError(why) from error
        except (RuntimeError, ValueError) as error:  # an answer that its own schema, or the protocol's, does not allow
            raise ToolError(str(error)) from error


@asynccontextmanager
async def connect(
    server: McpServer, folder: Path, redact: Callable[[str], str] = lambda text: text
) -> AsyncIterator[Connection]:
    """Open a connection; leaving it ends a server that was started for it.

    The SDK wants both in one task; `Resources` sees to that.

    Args:
        server: Where the server is.
        folder: What its working folder is relative to.
        redact: Takes secrets out of what a server says when it cannot be reached.

    Raises:
        ToolError: It cannot be reached, does not start in time, or does not speak the protocol.
    """
    if find_spec("mcp") is None:
        raise ToolError(NOT_INSTALLED)
    await asyncio.to_thread(import_module, "mcp")  # takes a second, in which other runs go on
    from httpx2 import HTTPError
    from mcp import Client, MCPError

    if not (logger := logging.getLogger("mcp")).handlers:
        logger.addHandler(logging.NullHandler())  # the SDK logs tracebacks, which nobody asked for, to stderr
    trace = Trace()
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(server.start_timeout) as limit:
                client = Client(reach(server, folder, trace), message_handler=trace.heard, cache=None)
                await stack.enter_async_context(client)
                await _follow_changes(client, stack)
        except (OSError, MCPError, HTTPError, ValueError, ExceptionGroup) as error:
            late = f"it did not start within {server.start_timeout:g} s"
            why = late if limit.expired() else trace.with_refusal(_words(error))
            said = redact(_gist(await trace.last_words()))[-LAST_WORDS:]
            raise ToolError(why + (f"; it said: {said}" if said else "")) from error
        yield Connection(client, trace)


async def _follow_changes(client: Client, stack: AsyncExitStack) -> None:
    """Ask to be told when the tools change, where the protocol's version wants that."""
    from mcp import MCPError
    from mcp.client.subscriptions import ListenNotSupportedError

    tools = client.server_capabilities.tools
    if tools and tools.list_changed:
        with suppress(ListenNotSupportedError, MCPError):
            await stack.enter_async_context(client.listen(tools_list_changed=True))


def _gist(said: str) -> str:
    """Return what a program said, of a traceback only how it ends."""
    before, traceback, rest = said.partition("Traceback (most recent call last):")
    ends = [line for line in rest.splitlines() if line and not line.startswith((" ", "Traceback"))]
    return before + ends[-1] if ends else before + traceback + rest


def _words(error: BaseException) -> str:
    """Say what went wrong, of a group all that is in it."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(map(_words, error.exceptions)))
    if isinstance(error, FileNotFoundError):
        return f"there is no {str(error.filename)!r}; is it installed?"
    return str(error) or type(error).__name__
