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
