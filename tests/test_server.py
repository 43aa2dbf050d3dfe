"""Servers that answer in their own way: what they send stands here as it comes over the wire."""

import asyncio
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from orchestrator.errors import ModelError
from orchestrator.failure import Failure, FailureKind
from orchestrator.messages import Message, Reply, Request
from orchestrator.models import server
from orchestrator.models.openai import OpenAIModel

ASK = Request("ori:1:model", (Message("user", "the prompt"),))
ANSWER = b'{"choices":[{"message":{"content":"yes"},"finish_reason":"stop"}]}'
PIECE = b'data: {"choices":[{"delta":{"content":"yes"},"finish_reason":"stop"}]}\n\n'
EVENTS = "text/event-stream"


def http(body: bytes, kind: str = "application/json", status: int = 200, head: str = "") -> bytes:
    return f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n{head}connection: close\r\n\r\n".encode() + body


@asynccontextmanager
async def sending(answer: bytes, *, hanging: bool = False) -> AsyncIterator[OpenAIModel]:
    """A model whose server sends these bytes, and then ends the connection or falls silent."""
    over = asyncio.Event()

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"the prompt")
        writer.write(answer)
        await writer.drain()
        if hanging:
            await over.wait()
        writer.close()

    async with await asyncio.start_server(send, "127.0.0.1", 0) as listening:
        model = OpenAIModel("m", base_url=f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1")
        try:
            yield model
        finally:
            over.set()
            await model.aclose()


async def reply_to(answer: bytes, *, hanging: bool = False) -> Reply:
    async with sending(answer, hanging=hanging) as model:
        return await model.generate(ASK, print)


async def failure_of(answer: bytes) -> Failure:
    with pytest.raises(ModelError) as caught:
        await reply_to(answer)
    return caught.value.failure


@pytest.mark.parametrize("charset", ["base64", "zlib", "rot13", "undefined", "idna", "utf-16", "no-such", "utf-8"])
async def test_whatever_an_error_says_it_is_encoded_in_it_is_read(charset: str) -> None:
    """Python knows codecs that raise, and codecs that unpack, without bound."""
    failure = await failure_of(http(b'{"error":{"message":"boom"}}', f"application/json; charset={charset}", 500))
    assert failure.kind is FailureKind.overloaded and "boom (status 500)" in failure.message


async def test_an_error_that_unpacks_is_not_unpacked() -> None:
    failure = await failure_of(http(zlib.compress(b"a" * 10**6), "text/html; charset=zlib", 500))
    assert failure.kind is FailureKind.overloaded and "aaa" not in failure.message


@pytest.mark.parametrize("said", ["; charset=gbk", ""], ids=["said", "not said"])
async def test_an_error_in_the_encoding_of_china_is_read(said: str) -> None:
    body = json.dumps({"error": {"message": "模型不存在"}}, ensure_ascii=False).encode("gbk")
    failure = await failure_of(http(body, f"application/json{said}", 404))
    assert failure.kind is FailureKind.auth and "模型不存在" in failure.message


@pytest.mark.parametrize(
    "before", [b"", b": hello\n\n", b"event: message\n", b"\xef\xbb\xbf", b"\n\nid: 1\n"], ids=repr
)
async def test_a_stream_is_known_by_how_it_begins(before: bytes) -> None:
    assert (await reply_to(http(before + PIECE, "text/plain"))).content == "yes"


async def test_an_answer_in_one_piece_may_say_that_it_is_a_stream() -> None:
    assert (await reply_to(http(ANSWER, EVENTS))).content == "yes"


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (b'{"error":{"message":"nope","code":"invalid_api_key"}}', FailureKind.auth, "nope"),
        (b"<html><title>Log in</title></html>", FailureKind.not_json, "a web page came back instead of JSON: Log in"),
        (b"", FailureKind.truncated_stream, "an empty answer"),
        (b'event: error\ndata: {"message":"gone","code":"insufficient_quota"}\n\n', FailureKind.quota, "gone"),
        (b'data: {"type":"message_start"}\n\n', FailureKind.overloaded, 'no choices: {"type":"message_start"}'),
        (
            b'data: {"choices":[{"delta":{"content":"ha"},"finish_reason":"error"}]}\n\n',
            FailureKind.overloaded,
            "gave up",
        ),
        (b'data: {"choices":[{"delta":{},"error":{"message":"boom"}}]}\n\n', FailureKind.overloaded, "boom"),
    ],
    ids=["an error", "a web page", "nothing", "an error event", "another protocol", "an error's reason", "in a choice"],
)
async def test_a_stream_that_is_none_says_what_it_is(body: bytes, kind: FailureKind, words: str) -> None:
    failure = await failure_of(http(body, EVENTS))
    assert failure.kind is kind and words in failure.message


async def test_an_answer_is_not_kept_back_by_a_stream_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_LAST_WORDS", 0.01)
    assert (await reply_to(http(PIECE, EVENTS), hanging=True)).content == "yes"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"SSH-2.0-OpenSSH_9\r\n", "is no proper HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n", "is no proper HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-type: appl", "(the server closed it)"),
        (http(ANSWER, head="content-encoding: gzip\r\n"), "cannot be unpacked"),
    ],
    ids=["another protocol", "a length below zero", "half a head", "not packed"],
)
async def test_what_is_no_http_is_told_in_one_line(answer: bytes, words: str) -> None:
    failure = await failure_of(answer)
    assert failure.kind is FailureKind.connection and words in failure.message and "\n" not in failure.message


async def test_only_one_of_several_answers_is_read() -> None:
    def piece(index: int, text: str, **more: Any) -> bytes:
        return (
            b"data: %b\n\n" % json.dumps({"choices": [{"index": index, "delta": {"content": text}, **more}]}).encode()
        )

    pieces = [piece(0, "y"), piece(1, "n"), piece(0, "es"), piece(1, "o", finish_reason="stop")]
    reply = await reply_to(http(b"".join([*pieces, piece(0, "", finish_reason="length")]), EVENTS))
    assert (reply.content, reply.finish_reason) == ("yes", "length")
