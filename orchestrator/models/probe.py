"""What a server can do, found out by asking it: one small call that says most, and two more where all is wanted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from orchestrator.errors import ModelError, nearest
from orchestrator.failure import Failure, FailureKind
from orchestrator.messages import Delta, Json, Message, Reply, Request, ToolSpec
from orchestrator.models.disguise import salvage
from orchestrator.models.openai import OpenAIModel
from orchestrator.models.presets import PresetName
from orchestrator.models.wire import decode

_MOST = 256
"""Tokens of an answer: enough to think a little and make two calls."""
_NUMBERS = {"a": {"type": "integer"}, "b": {"type": "integer"}}
_ADD = ToolSpec(
    "add",
    "Add two numbers. Use it for every sum. Returns the sum.",
    {"type": "object", "properties": _NUMBERS, "required": ["a", "b"], "additionalProperties": False},
)
_ASK_TWO_CALLS = "Call the tool add twice, in this one answer: with a=1 and b=2, and with a=3 and b=4. Do not explain."
_ASK_JSON = "Give a=1 and b=2 as JSON."
_WINDOWS = ("n_ctx", "max_model_len", "context_length", "max_context_length", "context_window", "loaded_context_length")
"""What servers call the window in their list of models."""
_OWNERS: Mapping[str, PresetName] = {"llamacpp": "llama.cpp", "vllm": "vllm", "library": "ollama"}
"""Kinds of servers by whom they say that a model is owned by."""


@dataclass(slots=True)
class Abilities:
    """What was seen of a server and its model; None: not seen, so not known."""

    answered_as: str | None = None
    """The model that says it answered."""
    seconds: float | None = None
    """Until the first answer was whole."""
    first_piece: float | None = None
    """Seconds until its first piece."""
    streaming: bool | None = None
    plain: bool | None = None
    """It answers in one piece, too."""
    tools: Literal["calls", "calls as text", "words instead of calls", "refused"] | None = None
    parallel_calls: bool | None = None
    json_schema: bool | None = None
    """It is held to a JSON Schema."""
    usage: bool | None = None
    """It counts tokens."""
    cached_tokens: int | None = None
    """Of the same prompt, asked again."""
    window: int | None = None
    """Tokens, as the server says."""
    kind: PresetName | None = None
    """The kind of server, where it says so."""
    models: tuple[str, ...] = ()
    """Names that it lists."""
    refused: tuple[str, ...] = ()
    """What it refused, and what is left out from then on."""
    failure: Failure | None = None
    """Why there was no answer."""
    base_url: str | None = None
    """Where the API was found instead."""


async def probe(model: OpenAIModel, *, full: bool = False) -> Abilities:
    """Ask a server what it can do.

    Args:
        model: The wire to it; one that takes no text for calls.
        full: Make more calls, to see all of it.
    """
    seen = Abilities()
    await _look_around(model, seen)
    known = set(model.refused)
    try:
        await _call_tools(model, seen)
        if full:
            await _ask_again(model, seen)
            await _ask_for_json(model, seen)
    except ModelError as error:
        seen.failure = await _explained(model, seen, error.failure)
    seen.refused = tuple(sorted(model.refused - known))
    return seen


async def _look_around(model: OpenAIModel, seen: Abilities) -> None:
    """Read what the server says about itself; that costs nothing, and many say nothing."""
    listed = list(_entries(await model.server.read("/models")))
    seen.models = tuple(str(entry["id"]) for entry in listed)
    own = [entry for entry in listed if entry["id"] == model.name] or listed[: len(listed) == 1]
    for entry in own:
        seen.kind = _OWNERS.get(str(entry.get("owned_by")))
        seen.window = _window({**entry, **_mapping(entry.get("meta"))})
    if seen.kind == "llama.cpp" and seen.window is None:
        place = urlsplit(model.base_url)
        properties = _mapping(await model.server.read(f"{place.scheme}://{place.netloc}/props"))
        seen.window = _window(_mapping(properties.get("default_generation_settings")))


async def _call_tools(model: OpenAIModel, seen: Abilities) -> None:
    """Make the one call that shows most: streamed, with a tool to call twice; without what makes it fail."""
    pieces: list[float] = []
    started = time.monotonic()

    def hear(delta: Delta) -> None:
        if delta.kind == "reset":
            pieces.clear()
        else:
            pieces.append(time.monotonic() - started)

    try:
        reply = await model.generate(_two_calls(seen), hear)
    except ModelError as error:
        started = time.monotonic()
        if error.failure.kind is FailureKind.invalid_request:
            seen.tools = "refused"
            reply = await model.generate(_two_calls(seen), hear)
        elif error.failure.kind is FailureKind.truncated_stream:
            reply = await model.generate(_two_calls(seen))
            seen.plain = True
        else:
            raise
    seen.seconds = time.monotonic() - started
    seen.first_piece = pieces[0] if pieces else None
    seen.streaming = len(pieces) > 1 if model.streams else None
    seen.answered_as = reply.model or None
    seen.usage = not reply.usage.estimated_calls
    if seen.tools is None and reply.finish_reason != "length":
        _read_calls(reply, seen)


def _two_calls(seen: Abilities) -> Request:
    tools = () if seen.tools == "refused" else (_ADD,)
    return Request("doctor:1:model", (Message("user", _ASK_TWO_CALLS),), tools, max_output=_MOST)


def _read_calls(reply: Reply, seen: Abilities) -> None:
    calls, seen.tools = reply.calls, "calls" if reply.calls else "words instead of calls"
    if not calls:
        _, calls = salvage(reply.content, {_ADD.name})
        seen.tools = "calls as text" if calls else seen.tools
    if calls:
        seen.parallel_calls = len(calls) > 1


async def _ask_again(model: OpenAIModel, seen: Abilities) -> None:
    """Ask the same in one piece: the prompt should be in the server's cache now."""
    reply = await model.generate(_two_calls(seen))
    seen.plain = "plain" not in model.refused
    seen.cached_tokens = None if reply.usage.estimated_calls else reply.usage.cached


async def _ask_for_json(model: OpenAIModel, seen: Abilities) -> None:
    request = Request("doctor:3:model", (Message("user", _ASK_JSON),), output=_ADD.parameters, max_output=_MOST)
    reply = await model.generate(request)
    refused = {"response_format", "response_format=json_schema"} & model.refused
    seen.json_schema = not refused and _fits(reply.content)


def _fits(text: str) -> bool:
    try:
        value = decode(text.encode())
    except ValueError:
        return False
    return isinstance(value, dict) and value.keys() == _NUMBERS.keys() and all(type(v) is int for v in value.values())


async def _explained(model: OpenAIModel, seen: Abilities, failure: Failure) -> Failure:
    """Say more about a failure, where the server itself helps."""
    if failure.kind is FailureKind.not_json:
        for base_url in _other_places(model.base_url):
            if list(_entries(await model.server.read(f"{base_url}/models"))):
                seen.base_url = base_url
                return _more(failure, f"the API is at {base_url}")
    if failure.kind is FailureKind.auth and seen.models and model.name not in seen.models:
        return _more(failure, f"the server has no model {model.name!r}{nearest(model.name, seen.models)}")
    return failure


def _more(failure: Failure, said: str) -> Failure:
    return Failure(failure.kind, f"{failure.message}\n{said}")


def _other_places(base_url: str) -> Iterator[str]:
    """Give addresses that may have been meant."""
    base_url = base_url.rstrip("/")
    place = urlsplit(base_url)
    for meant in (base_url.removesuffix("/chat/completions"), f"{base_url}/v1", f"{place.scheme}://{place.netloc}/v1"):
        if meant != base_url:
            yield meant


def _entries(listing: Json) -> Iterator[dict[str, Any]]:
    """Give the models of a list of models."""
    data = _mapping(listing).get("data")
    for entry in data if isinstance(data, list) else ():
        if isinstance(entry, dict) and "id" in entry:
            yield entry


def _window(entry: Mapping[str, Any]) -> int | None:
    return next((entry[name] for name in _WINDOWS if isinstance(entry.get(name), int)), None)


def _mapping(value: Json) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
