"""What known servers refuse, as data: only where they differ from the protocol."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

PresetName = Literal[
    "openai",
    "azure",
    "deepseek",
    "qwen",
    "glm",
    "moonshot",
    "mistral",
    "groq",
    "gemini",
    "openrouter",
    "ollama",
    "vllm",
    "llama.cpp",
]
Structured = Literal["tool", "json_schema", "text"]
"""How a structured result is asked for: by a tool, by the server's `response_format`, or in words."""


@dataclass(frozen=True, slots=True)
class Preset:
    """How one server differs."""

    hosts: tuple[str, ...] = ()
    """Ends of the `host:port` of its addresses; empty: it can be anywhere, and is chosen by name."""
    refused: frozenset[str] = frozenset()
    """What it refuses; the words are those of `quirks`."""
    key_header: str = ""
    """A header that holds the key besides `Authorization`."""
    structured: Structured | None = None
    """The best way to a structured result, whatever the model; None: the model's profile says."""


_GEMINI_SCHEMA = (
    "$schema $ref $defs additionalProperties exclusiveMinimum exclusiveMaximum const oneOf allOf not if"
    " patternProperties propertyNames uniqueItems multipleOf contains unevaluatedProperties format"
    " type-list enum-of-other"
)

PRESETS: Mapping[PresetName, Preset] = {
    "openai": Preset(hosts=("api.openai.com",), refused=frozenset({"max_tokens"})),
    "azure": Preset(hosts=(".openai.azure.com", ".services.ai.azure.com"), key_header="api-key"),
    "deepseek": Preset(
        hosts=("api.deepseek.com",), refused=frozenset({"response_format=json_schema", "no reasoning_content"})
    ),
    "qwen": Preset(
        hosts=("dashscope.aliyuncs.com", "dashscope-intl.aliyuncs.com", "dashscope-us.aliyuncs.com"),
        refused=frozenset({"tool_choice=required"}),
    ),
    "glm": Preset(
        hosts=("open.bigmodel.cn", "api.z.ai"),
        refused=frozenset({"tool_choice=required", "tool_choice=none", "response_format=json_schema"}),
    ),
    "moonshot": Preset(
        hosts=("api.moonshot.cn", "api.moonshot.ai"),
        refused=frozenset({"tool_choice=required", "no reasoning_content"}),
    ),
    "mistral": Preset(
        hosts=("api.mistral.ai", "codestral.mistral.ai"),
        refused=frozenset(
            {
                "stream_options",
                "max_completion_tokens",
                "seed",
                "assistant.reasoning_content",
                "long ids",
                "user after tool",
            }
        ),
    ),
    "groq": Preset(hosts=("api.groq.com",), refused=frozenset({"assistant.reasoning_content"})),
    "gemini": Preset(
        hosts=("generativelanguage.googleapis.com", "aiplatform.googleapis.com"),
        refused=frozenset(
            {"parallel_tool_calls", "no thought_signature", *(f"schema.{word}" for word in _GEMINI_SCHEMA.split())}
        ),
    ),
    "openrouter": Preset(hosts=("openrouter.ai",)),
    "ollama": Preset(hosts=(":11434",), structured="json_schema"),
    "vllm": Preset(structured="json_schema"),
    "llama.cpp": Preset(structured="json_schema"),
}


def preset_for(base_url: str | None, name: PresetName | None = None) -> Preset:
    """Return the preset of a server: the named one, else the one whose host it is.

    Args:
        base_url: None: OpenAI's own.
        name: As `preset:` in `ori.yaml`.
    """
    if name is not None:
        return PRESETS[name]
    place = "api.openai.com"
    if base_url is not None:
        place = urlsplit(base_url).netloc.rpartition("@")[2].lower()
    return next((p for p in PRESETS.values() if any(_is_at(place, host) for host in p.hosts)), Preset())


def _is_at(place: str, host: str) -> bool:
    """Compare whole labels: `evil-api.openai.com` is another host than `api.openai.com`."""
    if host.startswith(":"):
        return place.endswith(host)
    name = place.partition(":")[0]
    return name.endswith(host) if host.startswith(".") else name == host or name.endswith(f".{host}")


def way_to_result(
    chosen: Structured | Literal["auto"], preset: Preset, usual: Structured, refused: Collection[str]
) -> Structured:
    """Return how a model is asked for a structured result.

    Args:
        chosen: As `structured:` in `ori.yaml`.
        preset: Of its server.
        usual: What the model's profile says.
        refused: What the server has refused so far.
    """
    way = (preset.structured or usual) if chosen == "auto" else chosen
    return "text" if way == "json_schema" and "response_format" in refused else way
