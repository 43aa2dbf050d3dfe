"""`ori doctor`: what a server can do is found out, what is wrong with the settings gets the sentence that helps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.connections import wire_to
from orchestrator.failure import FailureKind
from orchestrator.messages import Json
from orchestrator.models.probe import Abilities, probe
from orchestrator.serve import cli
from orchestrator.serve.doctor import suggestions
from orchestrator.settings import ModelSettings
from orchestrator.testing import Answer, Replies, ScriptedServer, call, cut, fault, html, text
from tests.command import command, typed

BOTH = call("add", {"a": 1, "b": 2}) + call("add", {"a": 3, "b": 4})
NO_TOOLS = fault(400, {"error": {"message": "this model does not support tools", "type": "invalid_request_error"}})
LLAMA = {
    "/v1/models": {"data": [{"id": "qwen", "owned_by": "llamacpp", "meta": {"n_ctx_train": 32768}}]},
    "/props": {"default_generation_settings": {"n_ctx": 4096}},
}


def capable(request: dict[str, Any]) -> Answer:
    """Answer as a server that can do everything."""
    return text('{"a": 1, "b": 2}') if "response_format" in request else BOTH


async def seen_of(
    replies: Replies, *, full: bool = False, pages: Mapping[str, Json] | None = None, **settings: Any
) -> tuple[Abilities, list[dict[str, Any]]]:
    """Probe a scripted server."""
    async with ScriptedServer(replies, pages=pages) as server:
        described = ModelSettings.model_validate(
            {"model": "m", "base_url": server.base_url, "api_key": "sk-0123456789", "salvage": False} | settings
        )
        model = wire_to(described)
        seen = await probe(model, full=full)
        await model.aclose()
    return seen, server.requests


class TestOneCall:
    async def test_it_shows_most(self) -> None:
        seen, [request] = await seen_of(capable)
        assert (seen.streaming, seen.tools, seen.parallel_calls, seen.usage) == (True, "calls", True, True)
        assert (seen.answered_as, seen.failure, seen.json_schema) == ("m", None, None)
        assert seen.first_piece is not None and seen.seconds is not None and seen.first_piece <= seen.seconds
        assert request["stream"] and request["max_tokens"] <= 256

    @pytest.mark.parametrize(
        ("answer", "tools", "parallel"),
        [
            (call("add", {"a": 1, "b": 2}), "calls", False),
            (text('{"name": "add", "arguments": {"a": 1, "b": 2}}'), "calls as text", False),
            (text("1 + 2 is 3, and 3 + 4 is 7."), "words instead of calls", None),
            (text("Let me think", finish_reason="length"), None, None),
        ],
        ids=["one call", "a call in disguise", "words", "cut"],
    )
    async def test_what_came_of_the_tool_is_told_apart(self, answer: Answer, tools: Any, parallel: Any) -> None:
        seen, _ = await seen_of([answer])
        assert (seen.tools, seen.parallel_calls) == (tools, parallel)

    async def test_the_model_that_really_answered_is_named(self) -> None:
        seen, _ = await seen_of([text("hm", model="m-2026-01")])
        assert seen.answered_as == "m-2026-01"

    async def test_a_server_that_refuses_tools_is_asked_without(self) -> None:
        seen, requests = await seen_of(lambda request: NO_TOOLS if "tools" in request else text("3 and 7, as sums"))
        assert (seen.tools, seen.streaming, seen.failure) == ("refused", True, None)
        assert "tools" not in requests[-1]

    async def test_a_server_whose_streams_break_is_asked_without_streaming(self) -> None:
        seen, requests = await seen_of(lambda request: cut(BOTH) if request.get("stream") else BOTH)
        assert (seen.streaming, seen.plain, seen.tools, len(requests)) == (False, True, "calls", 2)

    async def test_a_server_that_does_not_count_tokens_is_told(self) -> None:
        seen, _ = await seen_of([call("add", {}, usage=None)])
        assert seen.usage is False

    async def test_where_the_settings_turn_streaming_off_nothing_is_known_of_it(self) -> None:
        seen, [request] = await seen_of([BOTH], stream="never")
        assert seen.streaming is None and "stream" not in request

    async def test_what_a_server_refuses_is_remembered(self) -> None:
        def refusing(request: dict[str, Any]) -> Answer:
            if "stream_options" in request:
                return fault(400, {"error": {"message": "Unrecognized request argument supplied: stream_options"}})
            return BOTH

        seen, requests = await seen_of(refusing)
        assert (seen.refused, seen.streaming, len(requests)) == (("stream_options",), True, 2)


class TestAllOfIt:
    async def test_three_calls_show_plain_answers_the_cache_and_json_schema_too(self) -> None:
        cached = {"prompt_tokens": 90, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 64}}
        replies = [BOTH, call("add", {}, usage=cached), text('{"a": 1, "b": 2}')]
        seen, requests = await seen_of(replies, full=True)
        assert (seen.plain, seen.cached_tokens, seen.json_schema) == (True, 64, True)
        assert requests[1]["messages"] == requests[0]["messages"]
        assert requests[2]["response_format"]["type"] == "json_schema"

    async def test_a_server_that_ignores_the_schema_is_found_out(self) -> None:
        replies = [BOTH, BOTH, text("Sure! a is 1 and b is 2.")]
        seen, _ = await seen_of(replies, full=True)
        assert seen.json_schema is False

    async def test_a_server_that_refuses_it_is_too(self) -> None:
        def refusing(request: dict[str, Any]) -> Answer:
            if request.get("response_format", {}).get("type") == "json_schema":
                return fault(400, {"error": {"message": "response_format of type json_schema is not supported"}})
            return capable(request)

        seen, _ = await seen_of(refusing, full=True)
        assert (seen.json_schema, seen.refused) == (False, ("response_format=json_schema",))


class TestWhatTheServerSays:
    async def test_its_kind_and_its_window(self) -> None:
        seen, _ = await seen_of(capable, pages=LLAMA, model="qwen")
        assert (seen.kind, seen.window, seen.models) == ("llama.cpp", 4096, ("qwen",))

    @pytest.mark.parametrize(
        "entry",
        [
            {"owned_by": "vllm", "max_model_len": 8192},
            {"context_length": 8192},
            {"max_context_length": 8192},
            {"meta": {"n_ctx": 8192, "n_ctx_train": 32768}},
        ],
    )
    async def test_the_window_in_other_words(self, entry: dict[str, Any]) -> None:
        listed = {"/v1/models": {"data": [{"id": "other", "context_length": 1}, {"id": "m", **entry}]}}
        seen, _ = await seen_of(capable, pages=listed)
        assert seen.window == 8192

    @pytest.mark.parametrize("page", [[], "m", {"data": None}, {"data": ["m", {"name": "m"}]}, {"data": [{"id": 7}]}])
    async def test_a_list_of_another_form_is_no_news(self, page: Json) -> None:
        seen, _ = await seen_of(capable, pages={"/v1/models": page})
        assert (seen.window, seen.failure) == (None, None)


class TestWhatIsWrong:
    async def test_a_web_page_is_no_api(self) -> None:
        seen, _ = await seen_of([html()])
        assert seen.failure and seen.failure.kind == FailureKind.not_json
        assert "check `base_url`" in seen.failure.message

    @pytest.mark.parametrize("end", ["", "/v1/chat/completions", "/api/v2"])
    async def test_a_wrong_path_is_told_with_the_right_one(self, end: str) -> None:
        async with ScriptedServer([], pages=LLAMA) as server:
            root = server.base_url.removesuffix("/v1")
            model = wire_to(ModelSettings(model="m", base_url=root + end))
            seen = await probe(model)
            await model.aclose()
            assert seen.base_url == server.base_url
            assert seen.failure and f"the API is at {server.base_url}" in seen.failure.message

    async def test_a_wrong_key_is_told_without_it(self) -> None:
        said = {"error": {"message": "Incorrect API key provided: sk-0123456789", "code": "invalid_api_key"}}
        seen, _ = await seen_of([fault(401, said)])
        assert seen.failure and seen.failure.kind == FailureKind.auth
        assert "check `api_key`" in seen.failure.message and "sk-0123456789" not in seen.failure.message

    async def test_a_wrong_model_is_told_with_the_nearest_one(self) -> None:
        said = {"error": {"message": "The model `qwem` does not exist", "code": "model_not_found"}}
        seen, _ = await seen_of([fault(404, said)], pages=LLAMA, model="qwem")
        assert seen.failure and "the server has no model 'qwem'; did you mean 'qwen'?" in seen.failure.message

    async def test_a_server_that_is_not_there_is_told(self) -> None:
        async with ScriptedServer([]) as server:
            pass
        model = wire_to(ModelSettings(model="m", base_url=server.base_url))
        seen = await probe(model)
        await model.aclose()
        assert seen.failure and "is the server running" in seen.failure.message


class TestSuggestions:
    def test_nothing_where_all_is_well(self) -> None:
        seen = Abilities(streaming=True, plain=True, tools="calls", window=128_000, models=("m", "n"))
        assert suggestions(ModelSettings(model="m"), seen) == {}

    def test_the_window_of_the_server_when_it_is_smaller(self) -> None:
        assert suggestions(ModelSettings(model="m"), Abilities(window=32_768)) == {"window": 32_768}
        assert suggestions(ModelSettings(model="m", window=16_384), Abilities(window=32_768)) == {}

    @pytest.mark.parametrize(
        ("name", "seen", "small"),
        [
            ("qwen2.5-coder-1.5b", Abilities(), True),
            ("Llama-3.1-8B-Instruct", Abilities(), True),
            ("qwen2.5-72b", Abilities(), False),
            ("gpt-5", Abilities(), False),
            ("m", Abilities(answered_as="qwen3-4b"), True),
            ("m", Abilities(tools="calls as text"), True),
            ("m", Abilities(window=4096), True),
        ],
    )
    def test_a_small_model_gets_the_profile_for_it(self, name: str, seen: Abilities, small: bool) -> None:
        assert ("profile" in suggestions(ModelSettings(model=name), seen)) is small
        assert "profile" not in suggestions(ModelSettings(model=name, profile="small"), seen)

    def test_no_streaming_where_it_does_not_work(self) -> None:
        assert suggestions(ModelSettings(model="m"), Abilities(streaming=False, plain=True)) == {"stream": "never"}
        assert suggestions(ModelSettings(model="m", stream="never"), Abilities(streaming=False, plain=True)) == {}

    def test_what_was_found_out_about_the_server(self) -> None:
        seen = Abilities(base_url="http://h/v1", models=("real",), kind="vllm")
        expected = {"base_url": "http://h/v1", "model": "real", "preset": "vllm"}
        assert suggestions(ModelSettings(model="default"), seen) == expected


class TestTheCommand:
    @pytest.fixture(autouse=True)
    def _in(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL"):
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        monkeypatch.chdir(tmp_path)

    async def test_it_shows_what_it_saw_and_what_it_suggests(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        async with ScriptedServer(capable, pages=LLAMA) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
            status = await asyncio.to_thread(cli.main, ["doctor", "--full"])
        said = capsys.readouterr()
        assert status == 0 and said.err == "ori: asking default …\n"
        assert "\n  tools           calls\n  parallel calls  yes\n" in said.out
        assert "\n  JSON schema     yes\n  window          128,000 in the settings, 4,096 at the server\n" in said.out
        snippet = f"""models:
  default:
    base_url: {server.base_url}
    model: qwen
    preset: llama.cpp
    window: 4096
    profile: small
"""
        assert said.out.endswith(snippet)

    async def test_what_it_suggests_makes_a_file_that_works(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        async with ScriptedServer(capable, pages=LLAMA) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
            monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789")
            await asyncio.to_thread(cli.main, ["doctor", "--full"])
            Path("ori.yaml").write_text("models:" + capsys.readouterr().out.partition("\nmodels:")[2])
            assert await asyncio.to_thread(cli.main, ["doctor", "--full", "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert data["suggested"] == {}
        assert (data["model"]["name"], data["model"]["tools"], data["model"]["window"]) == ("qwen", "calls", 4096)
        assert set(data) == {"model", "suggested", "project", "tools"}

    async def test_its_status_says_whose_turn_it_is(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """2: the settings are wrong; 1: the server is."""
        async with ScriptedServer([html(), fault(503)]) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
            statuses = [await asyncio.to_thread(cli.main, ["doctor"]) for _ in range(2)]
        assert statuses == [2, 1]
        assert "check `base_url`" in capsys.readouterr().err

    def test_without_a_model_it_says_how_to_get_one_and_what_there_is(self, capsys: pytest.CaptureFixture[str]) -> None:
        status = cli.main(["doctor"])
        said = capsys.readouterr()
        assert status == 2 and "no model is configured: set OPENAI_API_KEY" in said.err
        assert "no ori.yaml" in said.out and "(0 runs)" in said.out and "tables" in said.out

    def test_an_unknown_key_gets_the_nearest_one(self, capsys: pytest.CaptureFixture[str]) -> None:
        Path("ori.yaml").write_text("models: {default: {model: m}, cheap: {model: n}}\n")
        assert cli.main(["doctor", "chaep"]) == 2
        assert "did you mean 'cheap'?" in capsys.readouterr().err

    def test_in_a_narrow_terminal_lines_break_between_words(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("COLUMNS", "60")
        status, shown = typed("doctor")
        assert status == 2 and all(len(line) <= 60 for line in shown.splitlines() if "/" not in line)
        said = command(capsys)("doctor")
        assert "".join(shown.split()) == "".join((said.out + said.err).split()), "and nothing is left out"
