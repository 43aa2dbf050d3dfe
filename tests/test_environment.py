import json

import pytest

from orchestrator.messages import Message, Request
from orchestrator.models.openai import OpenAIModel
from orchestrator.testing import ScriptedServer, text

ASK = Request("ori:1:model", (Message("user", "the prompt"),))


@pytest.mark.parametrize("known", [False, True])
async def test_what_the_environment_holds_for_one_server_goes_to_no_other(
    monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    async with ScriptedServer([text("yes")]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url if known else "https://elsewhere.example/v1")
        monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
        monkeypatch.setenv("OPENAI_PROJECT_ID", "project-1")
        monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Gateway: secret-1\nauthorization: Bearer secret-2")
        model = OpenAIModel("m", base_url=server.base_url, api_key="its-own-key")
        await model.generate(ASK)
        await model.aclose()
    sent = json.dumps(server.headers)
    held = ["org-1", "project-1", "secret-1"]
    assert [each in sent for each in held] == [known] * 3
    if not known:
        assert server.headers[0]["authorization"] == "Bearer its-own-key" and "secret-2" not in sent
