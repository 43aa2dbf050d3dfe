"""The two ways to a server: a program started here, and HTTP. Both leave a trace of what the protocol does not say."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.settings import McpServer

if TYPE_CHECKING:
    import httpx2
    from mcp.client.session import IncomingMessage

Streams = tuple[Any, Any]
"""Of messages: from the server, and to it."""

_KEPT = 8_000
"""Bytes of a server's stderr that are kept, the last ones."""
_DYING = 1.0
"""Seconds that the last words of a server that has ended may take to arrive."""
_CONNECT, _READ = 30.0, 300.0
"""Seconds to connect, and between two pieces of an answer; a call has a limit of its own."""


class Trace:
    """What becomes known of a server beside its answers."""

    def __init__(self) -> None:
        self.closed = False
        """Nothing comes from it any more."""
        self.stale = True
        """Its tools are not known, or have changed since they were listed."""
        self._refused = ""
        self._noise = ""
        self._stderr = bytearray()
        self.silent = asyncio.Event()
        """It has no stderr, or has closed it."""

    async def heard(self, message: IncomingMessage) -> None:
        """Note what it says unasked."""
        from mcp_types import ToolListChangedNotification
        from pydantic import ValidationError

        if isinstance(message, ToolListChangedNotification):
            self.stale = True
        elif isinstance(message, ValidationError) and not self._noise:
            self._noise = str(message.errors()[0]["input"])[:_KEPT]

    async def answered(self, response: httpx2.Response) -> None:
        """Note how it answers over HTTP; not every server has a stream to GET."""
        if response.request.method == "POST":
            self._refused = f" (HTTP {response.status_code})" if response.is_error else ""

    def with_refusal(self, error: str) -> str:
        """Return what an error says, and the status of the latest answer over HTTP, if that was an error."""
        return error + self._refused

    def read(self, stderr: int) -> None:
        """Take what has come on stderr."""
        if data := os.read(stderr, 65_536):
            self._stderr += data
            del self._stderr[:-_KEPT]
        else:
            asyncio.get_running_loop().remove_reader(stderr)
            self.silent.set()

    async def last_words(self) -> str:
        """Return the end of what it wrote to stderr, and what came on stdout that is not of the protocol."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_DYING):
                await self.silent.wait()
        noise = self._noise and f"(on stdout, where only the protocol belongs) {self._noise}"
        return "\n".join(filter(None, [noise, self._stderr.decode(errors="replace").strip()]))


def reach(server: McpServer, folder: Path, trace: Trace) -> AbstractAsyncContextManager[Streams]:
    """Return the way to a server, as the SDK takes it.

    Args:
        server: Where it is.
        folder: What its working folder is relative to.
        trace: Gets to know what happens.
    """
    return _watched(_ask(server, trace) if server.url else _start(server, folder, trace), trace)


@asynccontextmanager
async def _start(server: McpServer, folder: Path, trace: Trace) -> AsyncIterator[Streams]:
    from mcp import StdioServerParameters, stdio_client

    program = StdioServerParameters(
        command=server.command or "",
        args=list(server.args),
        env={name: value.get_secret_value() for name, value in server.env.items()},
        cwd=folder / (server.cwd or "."),
        encoding_error_handler="replace",
    )
    loop = asyncio.get_running_loop()
    stderr, theirs = os.pipe()
    os.set_blocking(stderr, False)
    loop.add_reader(stderr, trace.read, stderr)
    try:
        async with AsyncExitStack() as stack:
            with os.fdopen(theirs, "w") as errlog:  # closed here once the program has it: its end is then seen
                streams = await stack.enter_async_context(stdio_client(program, errlog))
            yield streams
    finally:
        with suppress(BlockingIOError):
            while not trace.silent.is_set():
                trace.read(stderr)
        loop.remove_reader(stderr)
        trace.silent.set()
        os.close(stderr)


@asynccontextmanager
async def _ask(server: McpServer, trace: Trace) -> AsyncIterator[Streams]:
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    client = httpx2.AsyncClient(
        headers={name: value.get_secret_value() for name, value in server.headers.items()},
        timeout=httpx2.Timeout(_CONNECT, read=max(_READ, server.timeout)),
        event_hooks={"response": [trace.answered]},
    )
    trace.silent.set()
    async with client, streamable_http_client(server.url or "", http_client=client) as streams:
        yield streams


@asynccontextmanager
async def _watched(way: AbstractAsyncContextManager[Streams], trace: Trace) -> AsyncIterator[Streams]:
    """Note when nothing more comes from the server: the SDK says so only to those who wait for an answer then."""
    async with way as (incoming, outgoing):
        yield _Incoming(incoming, trace), outgoing


class _Incoming:
    """The stream of messages from a server; whoever reads it leaves it when it has ended."""

    def __init__(self, stream: Any, trace: Trace) -> None:
        self._stream, self._trace = stream, trace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> AsyncIterator[Any]:
        messages: AsyncIterator[Any] = self._stream.__aiter__()
        return messages

    async def __aenter__(self) -> Any:
        return await self._stream.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        self._trace.closed = True
        await self._stream.__aexit__(*error)
