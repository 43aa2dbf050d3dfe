"""A forward proxy on loopback that lets a program reach checked addresses only, and pages of our own.

Requests are intercepted nowhere else: a browser resolves names and follows redirects by itself, opens WebSockets, and
runs workers. Through this proxy each connection goes to an address that the guard has checked a moment before.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from orchestrator.errors import ToolError
from orchestrator.sandbox.guard import AddressGuard

CONNECTING = 10.0
"""Seconds that reaching a host may take."""
HEAD_SECONDS = 30.0
"""Seconds that a client may take to say what it wants."""
_CHUNK = 65_536
_KEPT_REFUSALS = 200
_HANG_UPS = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
_HOP = {b"connection", b"proxy-connection", b"keep-alive", b"proxy-authorization"}
"""Header fields that concern one connection only (RFC 9110, 7.6.1)."""


@dataclass(frozen=True, slots=True)
class Request:
    """A plain request, as a page of our own is asked for."""

    method: str
    host: str
    target: str
    """Path and query."""
    headers: dict[str, str]
    """Names in lower case."""


@dataclass(frozen=True, slots=True)
class Response:
    """The whole answer to a request."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


Serve = Callable[[Request], Awaitable[Response | None]]
"""Answers a request, or None: it is for another host."""


class _Refused(Exception):
    """The client is told so, with this status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(slots=True)
class Proxy:
    """An open proxy; see `open_proxy`."""

    guard: AddressGuard
    serve: Serve
    url: str = ""
    """What the client is given as its proxy."""
    refusals: dict[str, str] = field(default_factory=dict)
    """Why a connection was refused or failed, by `host:port`; the last ones."""
    reached: bool = False
    """Whether it ever connected to another host."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def why(self, url: str) -> str:
        """Return why the host of a URL could not be reached, or an empty text."""
        with suppress(ValueError):
            parts = urlsplit(url)
            return self.refusals.get(_place(parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)), "")
        return ""

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of the client: one request, or one tunnel."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._answer(reader, writer)
        except _Refused as refused:
            body = f"{refused}\n".encode()
            _send(writer, Response(refused.status, body, (("Content-Type", "text/plain; charset=utf-8"),)))
        except _HANG_UPS:
            pass  # one side hung up, or speaks no HTTP
        except asyncio.CancelledError:  # the end of this task: raised on, Python 3.11 would log it as a fault
            writer.transport.abort()
        finally:
            self._tasks.discard(task)
            writer.close()

    async def aclose(self) -> None:
        """End every connection."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_SECONDS):
            line, fields = _parsed(await reader.readuntil(b"\r\n\r\n"))
        method, target, version = line.split(b" ") if line.count(b" ") == 2 else (b"", b"", b"")
        if not version.startswith(b"HTTP/1."):
            raise _Refused(400, "this is no request")
        if method == b"CONNECT":
            host, port = _host_and_port(f"//{target.decode('latin-1')}", 443)
            other_reader, other_writer = await self._connect(host, port)
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await _splice(reader, writer, other_reader, other_writer)
        else:
            await self._forward(method, target.decode("latin-1"), fields, reader, writer)

    async def _forward(
        self,
        method: bytes,
        url: str,
        fields: list[tuple[bytes, bytes]],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Pass one request on, and its answer back; never a second one, which may be meant for another host."""
        if not url.startswith("http://"):
            raise _Refused(400, f"{url[:200]!r} is no http:// URL")
        host, port = _host_and_port(url, 80)
        path = "/" + url.removeprefix("http://").partition("/")[2]
        headers = {name.lower().decode("latin-1"): value.decode("latin-1") for name, value in fields}
        if own := await self.serve(Request(method.decode("latin-1"), host, path, headers)) if port == 80 else None:
            _send(writer, own, body=method != b"HEAD")
            return
        if "transfer-encoding" in headers or not (length := headers.get("content-length", "0")).isdigit():
            raise _Refused(411, "a body needs a Content-Length")
        other_reader, other_writer = await self._connect(host, port)
        try:
            kept = [(name, value) for name, value in fields if name.lower() not in _HOP]
            other_writer.write(_head(b"%s %s HTTP/1.1" % (method, path.encode("latin-1")), kept))
            with suppress(ConnectionError):  # a host may answer, and hang up, before it has the whole body
                await _copy(reader, other_writer, int(length))
            await _first_of(_return(other_reader, writer, method), _left(reader))
        finally:
            other_writer.close()

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a host, at an address that was checked."""
        place = _place(host, port)
        try:
            addresses = await self.guard.resolve(host, port)
        except ToolError as error:
            self._note(place, str(error))
            raise _Refused(403, str(error)) from None
        failed: OSError | None = None
        for address in addresses:
            try:
                async with asyncio.timeout(CONNECTING):
                    streams = await asyncio.open_connection(address, port)
                    self.reached = True
                    self.refusals.pop(place, None)
                    return streams
            except OSError as error:  # TimeoutError is one
                failed = error
        reason = f"{place} cannot be reached: {failed or 'no answer'}"
        self._note(place, reason)
        raise _Refused(502, reason)

    def _note(self, place: str, reason: str) -> None:
        self.refusals[place] = reason
        while len(self.refusals) > _KEPT_REFUSALS:
            del self.refusals[next(iter(self.refusals))]


@asynccontextmanager
async def open_proxy(guard: AddressGuard, serve: Serve) -> AsyncIterator[Proxy]:
    """Open a proxy on a free port of loopback.

    Args:
        guard: Says which addresses may be reached.
        serve: Answers requests for hosts of our own.
    """
    proxy = Proxy(guard, serve)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0, limit=_CHUNK)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.aclose()


_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


def _place(host: str, port: int) -> str:
    return f"{host}:{port}"


def _host_and_port(url: str, default: int) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise _Refused(400, f"{url[:200]!r} is no URL: {error}") from None
    if not host:
        raise _Refused(400, f"{url[:200]!r} names no host")
    return host, default if port is None else port


def _parsed(head: bytes) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Return the first line of a head, and its fields."""
    line, *rest = head.rstrip(b"\r\n").split(b"\r\n")
    pairs = (field.partition(b":") for field in rest)
    return line, [(name.strip(), value.strip()) for name, _, value in pairs]


def _head(line: bytes, fields: list[tuple[bytes, bytes]]) -> bytes:
    lines = [line, *(name + b": " + value for name, value in fields), b"Connection: close", b"", b""]
    return b"\r\n".join(lines)


def _send(writer: asyncio.StreamWriter, response: Response, *, body: bool = True) -> None:
    fields = [(b"Content-Length", b"%d" % len(response.body))]
    fields += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
    writer.write(_head(b"HTTP/1.1 %d -" % response.status, fields) + (response.body if body else b""))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: int | None = None) -> None:
    """Pass bytes on until their end, or until that many are through."""
    while most is None or most > 0:
        data = await reader.read(_CHUNK if most is None else min(_CHUNK, most))
        if not data:
            break
        most = None if most is None else most - len(data)
        writer.write(data)
        await writer.drain()


async def _return(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: bytes) -> None:
    """Pass an answer to the client, which may not use the connection again."""
    line, fields = b"HTTP/1.1 100", list[tuple[bytes, bytes]]()
    while re.match(rb"HTTP/1\.\d 1", line):  # what comes before the answer, as 100 Continue, says nothing to a browser
        line, fields = _parsed(await reader.readuntil(b"\r\n\r\n"))
    if not re.match(rb"HTTP/1\.\d \d{3}", line):
        raise _Refused(502, "the host speaks no HTTP")
    writer.write(_head(line, [(name, value) for name, value in fields if name.lower() not in _HOP]))
    headers = {name.lower(): value for name, value in fields}
    length = headers.get(b"content-length", b"")
    if method == b"HEAD" or line.split(b" ")[1] in (b"204", b"304"):
        length = b"0"
    await _copy(reader, writer, int(length) if length.isdigit() and b"transfer-encoding" not in headers else None)


async def _left(reader: asyncio.StreamReader) -> None:
    """Return when the client hangs up; what else it says is not passed on."""
    while await reader.read(_CHUNK):
        pass


async def _splice(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    other_reader: asyncio.StreamReader,
    other_writer: asyncio.StreamWriter,
) -> None:
    """Join two connections until one of them ends."""
    try:
        await _first_of(_copy(reader, other_writer), _copy(other_reader, writer))
    finally:
        other_writer.close()


async def _first_of(one: Coroutine[Any, Any, None], other: Coroutine[Any, Any, None]) -> None:
    """Do two things until one of them is done, or fails."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_outcome(one)), group.create_task(_outcome(other))]
        done, going = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in going:
            task.cancel()
    for task in done:
        if error := task.result():
            raise error


async def _outcome(work: Coroutine[Any, Any, None]) -> Exception | None:
    try:
        await work
    except (_Refused, *_HANG_UPS) as error:
        return error
    return None
