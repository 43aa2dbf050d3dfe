"""Connections are kept from call to call, and servers close them when they like."""

from __future__ import annotations

import asyncio
import json

from orchestrator.messages import Message, Request
from orchestrator.models.openai import OpenAIModel

CHUNK = {"choices": [{"index": 0, "delta": {"content": "42"}, "finish_reason": "stop"}]}
STREAM = f"data: {json.dumps(CHUNK)}\n\ndata: [DONE]\n\n".encode()
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nkeep-alive: timeout=5\r\n\r\n"
)


async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Promise to keep the connection and close it after one answer, as llama.cpp's server does after a stream."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line.split()[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(int(length))
    writer.write(HEAD + b"%x\r\n%b\r\n0\r\n\r\n" % (len(STREAM), STREAM))
    writer.close()


async def test_a_connection_that_the_server_closed_after_its_answer_is_not_used_again() -> None:
    async with await asyncio.start_server(closing, "127.0.0.1", 0) as server:
        place = server.sockets[0].getsockname()[1]
        model = OpenAIModel("m", base_url=f"http://127.0.0.1:{place}/v1", api_key="k")
        for number in range(5):
            reply = await model.generate(Request(f"k:{number}", (Message("user", "?"),)), lambda delta: None)
            assert reply.content == "42"
        await model.aclose()
