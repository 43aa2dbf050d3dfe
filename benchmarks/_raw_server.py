"""A server in a process of its own that does next to nothing per request, so that it is never what is measured.

It reads no JSON. The first part of a request's path says how it is answered:

- `turns/N`: with a call of `step` until N tool messages are there, or where no `step` is offered, then with a text;
- `late/N`: likewise, 100 ms late;
- `chunks/N`: with a stream of N pieces, as fast as they can be sent;
- `apart/N`: with a stream of N pieces, 1 ms apart;
- `held/0`: with a text, when `release` is asked for; `count` tells how many wait.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import orjson

LATENCY = 0.1
"""Seconds that a `late` answer takes."""
_USAGE = {"prompt_tokens": 1000, "completion_tokens": 20, "total_tokens": 1020}
_STEP, _TOOL = b'"name":"step"', b'"role":"tool"'


class Answering(asyncio.Protocol):
    """One connection.

    Args:
        held: Shared by all connections: those whose answer is held.
        bodies: Where the bodies of requests are kept, if they are.
    """

    def __init__(self, held: list[Answering], bodies: list[bytes] | None = None) -> None:
        self._held, self._bodies = held, bodies
        self._parts: list[bytes] = []
        self._missing = 0  # bytes of the request that is being read
        self._path: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._missing:
            data = b"".join([*self._parts, data])
            self._parts.clear()
            head, found, rest = data.partition(b"\r\n\r\n")
            if not found:
                self._parts.append(data)
                return
            self._path = head.split(b" ", 2)[1].decode().strip("/").split("/")
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            self._missing, data = int(length or 0), rest
        self._parts.append(data)
        self._missing -= len(data)
        if not self._missing:
            body = b"".join(self._parts)
            self._parts.clear()
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        if self._bodies is not None:
            self._bodies.append(body)
        loop = asyncio.get_running_loop()
        match self._path:
            case ["turns", turns, *_]:
                self._send(_turn(body, int(turns)))
            case ["late", turns, *_]:
                loop.call_later(LATENCY, self._send, _turn(body, int(turns)))
            case ["chunks", pieces, *_]:
                self._transport.write(_stream_head())
                self._transport.writelines([_piece(number, int(pieces)) for number in range(int(pieces) + 1)])
            case ["apart", pieces, *_]:
                self._transport.write(_stream_head())
                for number in range(int(pieces) + 1):
                    loop.call_later(0.001 * number, self._transport.write, _piece(number, int(pieces)))
            case ["held", *_]:
                self._held.append(self)
            case ["count"]:
                self._send(len(self._held))
            case ["release"]:
                for other in self._held:
                    other._send(_text())
                self._held.clear()
                self._send(None)

    def _send(self, value: object) -> None:
        data = orjson.dumps(value)
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        self._transport.write(head.encode() + data)


def _turn(body: bytes, turns: int) -> object:
    number = body.count(_TOOL)
    if number >= turns or _STEP not in body:
        return _text()
    function = {"name": "step", "arguments": f'{{"number": {number}}}'}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return _completion({"role": "assistant", "content": "", "tool_calls": [call]}, "tool_calls")


def _text() -> object:
    return _completion({"role": "assistant", "content": "All steps are taken."}, "stop")


def _completion(message: object, finish: str) -> object:
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": _USAGE}


def _stream_head() -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _piece(number: int, pieces: int) -> bytes:
    """Return one piece of a stream as a chunk of its own, the last one with the stream's end."""
    last = number == pieces
    choice = {"index": 0, "delta": {} if last else {"content": " words"}, "finish_reason": "stop" if last else None}
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}
    data = b"data: " + orjson.dumps(chunk | ({"usage": _USAGE} if last else {})) + b"\n\n"
    if last:
        data += b"data: [DONE]\n\n"
    return f"{len(data):x}\r\n".encode() + data + (b"\r\n0\r\n\r\n" if last else b"\r\n")


@contextmanager
def serving() -> Iterator[str]:
    """Give the root of the server, to which a path is added."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(theirs,))
    process.start()
    try:
        yield ours.recv()
    finally:
        ours.close()
        theirs.close()
        process.join()


def _serve(pipe: Connection) -> None:
    async def main() -> None:
        server, root = await listen()
        async with server:
            pipe.send(root)
            closed = asyncio.Event()
            asyncio.get_running_loop().add_reader(pipe.fileno(), closed.set)
            await closed.wait()

    asyncio.run(main())


async def listen(bodies: list[bytes] | None = None) -> tuple[asyncio.Server, str]:
    """Serve in this event loop."""
    held: list[Answering] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Answering(held, bodies), "127.0.0.1", 0, backlog=2048)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
