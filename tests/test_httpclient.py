import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from orchestrator.errors import ConfigError, ModelError
from orchestrator.failure import FailureKind
from orchestrator.messages import Message, Request
from orchestrator.models import httpclient
from orchestrator.models.openai import OpenAIModel
from orchestrator.testing import Answer, ScriptedServer, fault

ASK = Request("ori:1:model", (Message("user", "the prompt"),))


async def failure_of(answer: Answer, *, listening: bool) -> tuple[FailureKind, str]:
    async with ScriptedServer([answer]) as server:
        model = OpenAIModel("m", base_url=server.base_url)
        with pytest.raises(ModelError) as caught:
            await model.generate(ASK, print if listening else None)
        await model.aclose()
    return caught.value.failure.kind, caught.value.failure.message


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_prompt_and_keys_are_not_sent_on_to_where_a_server_points(status: int) -> None:
    async with ScriptedServer([]) as other:
        kind, message = await failure_of(
            fault(status, "", {"location": f"{other.base_url}/chat/completions"}), listening=False
        )
    assert kind is FailureKind.not_json and other.connections_made == 0
    assert f"it sends on to {other.base_url}" in message and "check `base_url`" in message


@pytest.mark.parametrize("listening", [False, True])
async def test_an_answer_without_end_is_given_up(listening: bool) -> None:
    kind, message = await failure_of(
        fault(200, "a" * (65 << 20), {"content-type": "text/event-stream"}), listening=listening
    )
    assert kind is FailureKind.connection and "more than 64 MB came" in message


@asynccontextmanager
async def packing(body: bytes, kind: str, status: int = 200, coding: str = "gzip") -> AsyncIterator[OpenAIModel]:
    """A model whose server packs its answer, though nobody asked for that."""
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-encoding: {coding}\r\nconnection: close\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"the prompt")
        writer.write(head.encode() + (gzip.compress(body) if "gzip" in coding else body))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        model = OpenAIModel("m", base_url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
        yield model
        await model.aclose()


@pytest.mark.parametrize(
    ("kind", "status"), [("text/event-stream", 200), ("application/json", 200), ("text/html", 502)], ids=str
)
async def test_a_little_that_unpacks_to_very_much_is_given_up(kind: str, status: int) -> None:
    """100 MB of zeros are 100 kB."""
    async with packing(bytes(100 << 20), kind, status) as model:
        with pytest.raises(ModelError, match="more than 64 kB of a packed answer"):
            await model.generate(ASK)


@pytest.mark.parametrize(
    ("coding", "long"), [("gzip", 1), ("identity", 100_000), ("utf-8", 100_000)], ids=["gzip", "identity", "no coding"]
)
async def test_a_packed_answer_is_read_and_one_that_is_only_said_to_be(coding: str, long: int) -> None:
    body = {"choices": [{"message": {"content": "yes" * long}, "finish_reason": "stop"}]}
    async with packing(json.dumps(body).encode(), "application/json", coding=coding) as model:
        assert (await model.generate(ASK)).content == "yes" * long


@pytest.mark.parametrize("coding", ["gzip, gzip", "br", "zstd"])
async def test_what_may_unpack_to_any_size_is_not_unpacked(coding: str) -> None:
    async with packing(gzip.compress(b"{}"), "application/json", coding=coding) as model:
        with pytest.raises(ModelError, match=f"packed as {coding}, which was not asked for"):
            await model.generate(ASK)


@pytest.mark.parametrize("content", [None, "no certificate"])
async def test_certificates_that_cannot_be_read_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, content: str | None
) -> None:
    file = tmp_path / "ca.pem"
    if content:
        file.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    monkeypatch.setattr(httpclient, "_tls", httpclient._tls.__wrapped__)  # without what an earlier test has read
    with pytest.raises(ConfigError, match=f"the certificates in SSL_CERT_FILE={file} cannot be read"):
        await OpenAIModel("m", base_url="https://127.0.0.1:1").generate(ASK)
