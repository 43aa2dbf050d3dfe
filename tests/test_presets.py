from typing import Any, get_args

import pytest

from orchestrator.models.presets import PRESETS, PresetName, preset_for, way_to_result
from orchestrator.models.quirks import shape, shape_messages
from orchestrator.settings import ModelSettings


@pytest.mark.parametrize(
    ("base_url", "name"),
    [
        (None, "openai"),
        ("https://api.openai.com/v1", "openai"),
        ("https://eu.api.openai.com/v1", "openai"),
        ("https://house.openai.azure.com/openai/v1", "azure"),
        ("https://api.deepseek.com", "deepseek"),
        ("https://dashscope.aliyuncs.com/compatible-mode/v1", "qwen"),
        ("https://open.bigmodel.cn/api/paas/v4", "glm"),
        ("https://api.moonshot.cn/v1", "moonshot"),
        ("https://api.mistral.ai/v1", "mistral"),
        ("https://api.groq.com/openai/v1", "groq"),
        ("https://generativelanguage.googleapis.com/v1beta/openai/", "gemini"),
        ("https://user:key@openrouter.ai:443/api/v1", "openrouter"),
        ("http://localhost:11434/v1", "ollama"),
    ],
)
def test_a_server_is_known_by_its_host(base_url: str | None, name: PresetName) -> None:
    assert preset_for(base_url) is PRESETS[name]


@pytest.mark.parametrize(
    "base_url", ["http://127.0.0.1:8080/v1", "https://api.openai.com.evil.example/v1", "https://notopenrouter.ai/v1"]
)
def test_an_unknown_server_is_taken_to_speak_the_protocol(base_url: str) -> None:
    preset = preset_for(base_url)
    assert (preset.refused, preset.structured) == (frozenset(), None)


def test_a_preset_can_be_named_whatever_the_host() -> None:
    assert preset_for("http://127.0.0.1:8080/v1", "mistral") is PRESETS["mistral"]
    assert set(get_args(PresetName)) == set(PRESETS)
    assert ModelSettings.model_validate({"model": "m", "preset": "llama.cpp"}).preset == "llama.cpp"


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_every_word_of_a_preset_is_one_that_changes_a_request(preset: Any) -> None:
    """A word that nothing understands would be a mistake in the data."""
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for word in preset.refused:
        if word.startswith("schema."):
            continue  # see test_narrow
        field, _, value = word.partition("=")
        body: dict[str, Any] = {
            "messages": [
                {"role": "user", "content": "?"},
                {"role": "assistant", "content": "", "tool_calls": [dict(call)]},
                {"role": "tool", "tool_call_id": "call_1", "content": "x"},
                {"role": "user", "content": "?"},
            ],
            field: {"type": value} if field == "response_format" else value or 1,
        }
        if word.startswith("assistant."):
            body["messages"][1][word.removeprefix("assistant.")] = "hm"
        before = repr(body)
        shaped = shape(body, {word}) | {"messages": shape_messages(body["messages"], {word})}
        assert repr(shaped) != before, word


@pytest.mark.parametrize(
    ("chosen", "preset", "usual", "refused", "way"),
    [
        ("auto", "openai", "tool", (), "tool"),
        ("auto", "openai", "json_schema", (), "json_schema"),
        ("auto", "ollama", "tool", (), "json_schema"),
        ("tool", "ollama", "json_schema", (), "tool"),
        ("text", "openai", "tool", (), "text"),
        ("auto", "ollama", "tool", ("response_format",), "text"),
        ("json_schema", "deepseek", "tool", ("response_format=json_schema",), "json_schema"),
    ],
)
def test_the_way_to_a_structured_result_is_chosen_or_follows_from_the_server(
    chosen: Any, preset: PresetName, usual: Any, refused: tuple[str, ...], way: str
) -> None:
    """R28."""
    assert way_to_result(chosen, PRESETS[preset], usual, set(refused)) == way
