"""The rules of what servers really do, each through the real client against a server that behaves so."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from orchestrator import tool
from orchestrator.conversation import Conversation
from orchestrator.errors import ModelError
from orchestrator.failure import FailureKind
from orchestrator.messages import Delta, Image, Message, Reply, Request, ToolCall, ToolSpec
from orchestrator.models.openai import OpenAIModel
from orchestrator.models.presets import PresetName
from orchestrator.models.wire import MOST_TOOLS, encode, wire_messages, wire_name
from orchestrator.testing import Answer, Replies, ScriptedServer, call, cut, drop, fault, lint, text
from orchestrator.testing.linter import Profile
from tests.loops import run

PING = ToolSpec("ping", "Ping.", {"type": "object", "properties": {"n": {"type": "integer"}}})
ASK = (Message("system", "You answer."), Message("user", "Ping?"))
RESULT = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
CLOSED = {**RESULT, "additionalProperties": False}
both = pytest.mark.parametrize("listening", [False, True], ids=["plain", "streamed"])


def request(*messages: Message, **changes: Any) -> Request:
    return Request(key="ori:1:model", **{"messages": messages or ASK, "tools": (PING,), **changes})


@asynccontextmanager
async def serving(
    replies: Replies, profile: Profile = "openai", *, strict: bool = True, **options: Any
) -> AsyncIterator[tuple[OpenAIModel, ScriptedServer]]:
    async with ScriptedServer(replies, profile=profile, strict=strict) as server:
        model = OpenAIModel("scripted", **{"base_url": server.base_url, "api_key": "sk-0123456789", **options})
        try:
            yield model, server
        finally:
            await model.aclose()


async def ask(model: OpenAIModel, listening: bool = False, **changes: Any) -> Reply:
    return await model.generate(request(**changes), (lambda delta: None) if listening else None)


# what each kind of server takes

WILD = ToolSpec(
    "浏览器.open",
    "Opens.",
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "level": {"enum": [1, 2]},
            "kind": {"const": "page"},
            "who": {"oneOf": [{"type": "string"}, {"type": "null"}]},
            "tree": {"$ref": "#/$defs/node"},
            "many": {"type": "array"},
        },
        "$defs": {"node": {"type": "object", "properties": {"below": {"$ref": "#/$defs/node"}}}},
    },
)
SHOT = Image("shot.png", "image/png", "aGVsbG8=")
HISTORY = (
    *ASK,
    Message(
        "assistant",
        "",
        (ToolCall("chatcmpl-tool-1f00", "浏览器.open", '{"level": 1'), ToolCall("call_2", "ping", "[]")),
        extra={"reasoning_content": "hm", "annotations_of_another": [1]},
        origin="other at elsewhere",
    ),
    Message("tool", "坏\ud83d", call_id="chatcmpl-tool-1f00", images=(SHOT,)),
    Message("tool", "pong", call_id="call_2"),
    Message("note", "2 turns left"),
    Message("user", "go on"),
    Message("assistant", "Done."),
    Message("user", "really?"),
    Message("data", "[s1] outcome"),
)
SERVERS: list[tuple[PresetName, Profile]] = [
    ("mistral", "mistral"),
    ("deepseek", "deepseek_thinking"),
    ("moonshot", "moonshot"),
    ("gemini", "gemini"),
    ("groq", "groq"),
    ("vllm", "vllm_text"),
    ("llama.cpp", "vllm_text"),
    ("openai", "openai"),
    ("azure", "openai"),
    ("qwen", "openai"),
    ("glm", "openai"),
    ("openrouter", "openai"),
    ("ollama", "openai"),
]


@both
@pytest.mark.parametrize(("preset", "profile"), SERVERS)
async def test_with_its_preset_each_request_is_one_that_the_server_takes(
    preset: PresetName, profile: Profile, listening: bool
) -> None:
    params = {"seed": 7, "max_completion_tokens": 64}
    async with serving([text("a"), text("b")], profile, preset=preset, vision=True, params=params) as (model, server):
        for changes in ({"tools": (WILD, PING), "parallel_tool_calls": False}, {"output": RESULT}):
            await ask(model, listening, messages=HISTORY, **changes)
    assert not server.complaints and len(server.requests) == 2
    assert all(message["role"] != "developer" for body in server.requests for message in body["messages"])


@pytest.mark.parametrize("profile", ["mistral", "deepseek_thinking", "gemini"])
def test_without_its_preset_the_same_request_would_be_refused(profile: Profile) -> None:
    model = OpenAIModel("m", base_url="http://127.0.0.1:1/v1")
    body = model.body(request(*HISTORY, tools=(WILD, PING)), stream=False)
    assert lint(json.loads(encode(body)), profile)


def test_a_server_that_differs_gets_only_what_it_understands() -> None:
    def body(preset: PresetName, **changes: Any) -> dict[str, Any]:
        model = OpenAIModel("m", base_url="http://127.0.0.1:1/v1", preset=preset, params={"seed": 7})
        return model.body(request(*HISTORY, **changes), stream=True)

    mistral = body("mistral")
    assert (mistral["random_seed"], "seed" in mistral, "stream_options" in mistral) == (7, False, False)
    assert "max_tokens" in mistral and "max_completion_tokens" in body("openai")
    assert (
        body("glm", tool_choice="none")["tool_choice"]
        == "auto"
        == body("moonshot", tool_choice="required")["tool_choice"]
    )
    assert body("openai", tool_choice="none")["tool_choice"] == "none"
    assert body("deepseek", output=RESULT)["response_format"] == {"type": "json_object"}
    assert all(m["reasoning_content"] == " " for m in body("deepseek")["messages"] if m["role"] == "assistant")
    [signed, plain] = body("gemini")["messages"][2]["tool_calls"]
    assert signed["extra_content"]["google"]["thought_signature"] and "extra_content" not in plain


def test_azure_gets_the_key_in_a_header_of_its_own() -> None:
    azure = OpenAIModel("m", base_url="https://house.openai.azure.com/openai/v1", api_key="sk-0123456789")
    assert azure.server.headers == {"api-key": "sk-0123456789"}


# what a server refuses is remembered


def refusing(words: str, holds: Callable[[dict[str, Any]], bool], status: int = 400) -> Replies:
    """Answer what has the refused thing with words of a real server, and everything else well."""
    error = {"error": {"message": words, "type": "invalid_request_error", "code": None}}
    return lambda body: fault(status, error) if holds(body) else text("fine", usage=None)


def schemas(body: dict[str, Any]) -> str:
    return json.dumps(body.get("tools", [])) + json.dumps(body.get("response_format", {}))


def has_one_of(body: dict[str, Any]) -> bool:
    return "oneOf" in schemas(body)


def has_image(body: dict[str, Any]) -> bool:
    return any(isinstance(message["content"], list) for message in body["messages"])


REFUSALS = [
    ("parallel_tool_calls", "Unknown name \"parallel_tool_calls\": Cannot find field.", "parallel_tool_calls"),
    ("max_tokens", "Unsupported parameter: 'max_tokens' is not supported with this model.", "max_tokens"),
    ("temperature", "invalid temperature: only 1 is allowed for this model", "temperature"),
    ("tool_choice=none", "tool_choice none is not supported", lambda body: body.get("tool_choice") == "none"),
    ("image_url", "image input is not supported", has_image),
    ("system", "System role not supported", lambda body: body["messages"][0]["role"] == "system"),
    ("schema.oneOf", "Invalid schema for function 'f': 'oneOf' is not permitted.", has_one_of),
    (
        "no reasoning_content",
        "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2",
        lambda body: any(m["role"] == "assistant" and "reasoning_content" not in m for m in body["messages"]),
    ),
    (
        "long ids",
        "Tool call id was call_2 but must be a-z, A-Z, 0-9, with a length of 9.",
        lambda body: any(len(m.get("tool_call_id", "123456789")) != 9 for m in body["messages"]),
    ),
]  # fmt: skip


@both
@pytest.mark.parametrize(
    ("word", "words", "holds"), REFUSALS, ids=lambda value: value if isinstance(value, str) else ""
)
async def test_what_is_refused_is_left_out_at_once_and_from_then_on(
    word: str, words: str, holds: Any, listening: bool
) -> None:
    """Q10: one more request for each refused thing, once; never again."""
    held = holds if callable(holds) else lambda body: holds in body
    asked = {
        "messages": HISTORY,
        "tools": (WILD, PING),
        "parallel_tool_calls": False,
        "tool_choice": "none",
        "params": {"temperature": 0.3},
    }
    async with serving(refusing(words, held), vision=True) as (model, server):
        assert [(await ask(model, listening, **asked)).content for _ in range(2)] == ["fine", "fine"]
        assert model.refused == {word}
        assert [held(body) for body in server.requests] == [True, False, False]


async def test_stream_options_that_are_refused_are_left_out_and_usage_is_estimated() -> None:
    """Q10, Q14."""
    async with serving(refusing("Extra inputs: stream_options", lambda body: "stream_options" in body)) as (
        model,
        server,
    ):
        reply = await ask(model, listening=True)
    assert (reply.content, reply.usage.estimated_calls, len(server.requests)) == ("fine", 1, 2)


@pytest.mark.parametrize("status", [400, 422, 500, 200])
async def test_a_refusal_counts_whatever_its_status(status: int) -> None:
    """Q2, Q16: 500 for our own mistake is common, and an error may come with 200."""
    replies = refusing("parallel_tool_calls is not supported", lambda body: "parallel_tool_calls" in body, status)
    async with serving(replies) as (model, server):
        assert (await ask(model, parallel_tool_calls=True)).content == "fine"
    assert len(server.requests) == 2


async def test_several_refused_things_are_learned_one_after_another() -> None:
    def answer(body: dict[str, Any]) -> Answer:
        for name in ("parallel_tool_calls", "seed", "random_seed", "max_tokens"):
            if name in body:
                return fault(400, {"error": {"message": f"Unrecognized request argument supplied: {name}"}})
        return text("fine")

    async with serving(answer) as (model, server):
        reply = await ask(model, parallel_tool_calls=True, params={"seed": 7})
        await ask(model)
    assert reply.content == "fine" and len(server.requests) == 6
    assert "max_completion_tokens" in server.requests[-1]


async def test_calls_that_are_refused_at_the_same_time_all_go_through() -> None:
    words = "parallel_tool_calls is not supported"
    together = asyncio.Barrier(5)

    async def answer(body: dict[str, Any]) -> Answer:
        if "parallel_tool_calls" not in body:
            return text("fine")
        await together.wait()
        return fault(400, {"error": {"message": words}})

    async with serving(answer) as (model, server), asyncio.TaskGroup() as group:
        asked = [group.create_task(ask(model, parallel_tool_calls=True)) for _ in range(5)]
    assert [task.result().content for task in asked] == ["fine"] * 5
    assert model.refused == {"parallel_tool_calls"} and len(server.requests) == 10


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "messages[1].content is too strange"),
        (400, "the server does not like parallel_tool_calls, it says, after they were left out"),
        (401, "parallel_tool_calls is not supported"),
        (429, "parallel_tool_calls is not supported: rate limit"),
    ],
)
async def test_what_is_no_refusal_of_a_form_is_not_repeated(status: int, message: str) -> None:
    """Q1, B42."""
    async with serving(lambda body: fault(status, {"error": {"message": message}})) as (model, server):
        with pytest.raises(ModelError):
            await ask(model)
    assert len(server.requests) == 1


async def test_a_server_that_refuses_for_ever_is_asked_once_more_and_no_more() -> None:
    async with serving(lambda body: fault(400, {"error": {"message": "seed is not supported"}})) as (model, server):
        with pytest.raises(ModelError, match="seed is not supported"):
            await ask(model, params={"seed": 7})
    assert [set(body) & {"seed", "random_seed"} for body in server.requests] == [{"seed"}, {"random_seed"}]


async def test_a_server_that_only_streams_is_streamed_from_then_on() -> None:
    words = "parameter.enable_thinking must be set to false for non-streaming calls"
    async with serving(refusing(words, lambda body: not body.get("stream"))) as (model, server):
        assert [(await ask(model)).content for _ in range(2)] == ["fine", "fine"]
    assert [body.get("stream", False) for body in server.requests] == [False, True, True]


# the window


@both
async def test_the_window_is_learned_from_an_overflow(listening: bool) -> None:
    """Q3."""
    overflow = {
        "error": {
            "code": 400,
            "message": "request (6020 tokens) exceeds the available context size (4096 tokens), try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 6020,
            "n_ctx": 4096,
        }
    }
    async with serving([fault(400, overflow), text("fine")]) as (model, server):
        with pytest.raises(ModelError) as caught:
            await ask(model, listening, messages=(Message("user", "word " * 6000),))
        assert caught.value.failure.kind is FailureKind.context_overflow
        assert (model.window, model.max_output, len(server.requests)) == (4096, 1024, 1)
        await ask(model, listening)
        assert server.requests[-1]["max_tokens"] == 1024


async def test_an_overflow_that_only_left_too_much_room_for_the_answer_is_mended() -> None:
    """Q3: a local server of 4,096 tokens, and nobody said so in ori.yaml."""

    def answer(body: dict[str, Any]) -> Answer:
        if body["max_tokens"] > 4000:
            said = f"max_tokens is too large: {body['max_tokens']}. This model's maximum context length is 4096 tokens"
            return fault(400, {"error": {"message": said, "code": 400}})
        return text("fine")

    async with serving(answer) as (model, server):
        assert [(await ask(model)).content for _ in range(2)] == ["fine", "fine"]
    assert [body["max_tokens"] for body in server.requests] == [8192, 1024, 1024]


async def test_the_longest_answer_is_learned_whoever_asked_for_a_longer_one() -> None:
    def answer(body: dict[str, Any]) -> Answer:
        said = {"error": {"message": "Invalid max_tokens value, the valid range of max_tokens is [1, 2048]"}}
        return fault(400, said) if body["max_tokens"] > 2048 else text("fine")

    async with serving(answer) as (model, server):
        await ask(model, params={"max_tokens": 9000})
        await ask(model)
        await ask(model, params={"max_tokens": 100})
    assert [body["max_tokens"] for body in server.requests] == [9000, 2048, 2048, 100]


# calls, names, text in disguise


@both
async def test_tools_of_any_name_can_be_called(listening: bool) -> None:
    """Q12."""
    deltas: list[Delta] = []
    names = ("浏览器.open", "files/read file", "ping")
    tools = tuple(ToolSpec(name, "", {"type": "object", "properties": {}}) for name in names)
    replies = [call(wire_name(name), {}) for name in names] + [call(names[1], {}), text(f"{wire_name(names[0])} {{}}")]
    async with serving(replies) as (model, server):
        calls = [
            (await model.generate(request(tools=tools), deltas.append if listening else None)).calls[0].name
            for _ in replies
        ]
        said = Message("assistant", "", (ToolCall("c", names[0], "{}"),))
        offered = [tool["function"]["name"] for tool in server.requests[0]["tools"]]
        assert model.body(request(said), stream=False)["messages"][0]["tool_calls"][0]["function"]["name"] == offered[0]
    assert calls == [*names, names[1], names[0]]
    assert len(set(offered)) == 3
    if listening:
        assert {d.name for d in deltas if d.kind == "call"} == set(names)


async def test_more_tools_than_a_request_may_carry_are_told_before_it_is_sent() -> None:
    """Q12."""
    tools = tuple(ToolSpec(f"t{n}", "", {"type": "object", "properties": {}}) for n in range(MOST_TOOLS + 1))
    async with serving([text("ok")]) as (model, server):
        with pytest.raises(ModelError, match="129 tools"):
            await ask(model, tools=tools)
        await ask(model, tools=tools[:MOST_TOOLS])
    assert len(server.requests) == 1


IN_DISGUISE = [
    '```json\n{"name": "ping", "arguments": {"n": 1}}\n```',
    '<tool_call>\n{"name": "ping", "arguments": {"n": 1}}\n</tool_call>',
    'functions.ping: {"n": 1}',
]


@both
@pytest.mark.parametrize("written", IN_DISGUISE)
async def test_a_call_written_as_text_is_a_call_and_never_the_answer(written: str, listening: bool) -> None:
    """Q8: with `tool_choice: none` it is neither."""
    async with serving([text(written), text(written), text(written)]) as (model, _):
        reply = await ask(model, listening)
        refused = await ask(model, listening, tool_choice="none")
        model._salvage = False
        off = await ask(model, listening)
    assert [(c.name, json.loads(c.arguments)) for c in reply.calls] == [("ping", {"n": 1})] and reply.content == ""
    assert (refused.content, refused.calls) == ("", ())
    assert (off.content, off.calls) == (written, ())


async def test_a_streamed_text_that_turns_out_to_be_a_call_is_withdrawn() -> None:
    """Q8, R27."""
    deltas: list[Delta] = []
    async with serving([text("Let me see.\n" + IN_DISGUISE[1])]) as (model, _):
        reply = await model.generate(request(), deltas.append)
    kinds = [delta.kind for delta in deltas]
    assert reply.content == "Let me see." and reply.calls
    assert kinds[-2:] == ["reset", "text"] and deltas[-1].text == "Let me see."
    assert "tool_call" in "".join(d.text for d in deltas[:-2])


@pytest.mark.parametrize("answer", [cut(text("half " * 20)), drop(text("half " * 20))])
async def test_a_half_stream_is_withdrawn(answer: Answer) -> None:
    """Q5, R27."""
    deltas: list[Delta] = []
    async with serving([answer]) as (model, _):
        with pytest.raises(ModelError):
            await model.generate(request(), deltas.append)
    assert [d.kind for d in deltas[:-1]].count("text") and deltas[-1] == Delta("reset")


async def test_pieces_of_a_call_are_told_as_they_come() -> None:
    """R27."""
    deltas: list[Delta] = []
    arguments = {"n": 1, "why": "因为 it was asked for"}
    async with serving([text("I ping.") + call("ping", arguments)]) as (model, _):
        await model.generate(request(), deltas.append)
    pieces = [delta for delta in deltas if delta.kind == "call"]
    assert len(pieces) > 2 and all(piece.name == "ping" for piece in pieces)
    assert json.loads("".join(piece.text for piece in pieces)) == arguments
    assert "reset" not in [delta.kind for delta in deltas]


async def test_an_answer_that_did_not_stream_is_told_in_one_piece() -> None:
    deltas: list[Delta] = []
    async with serving([text("whole")], stream="never") as (model, _):
        await model.generate(request(), deltas.append)
    assert deltas == [Delta("text", "whole")]


@both
async def test_reasoning_without_its_opening_tag_is_no_answer(listening: bool) -> None:
    """Q9: some templates end the prompt with the tag."""
    deltas: list[Delta] = []
    async with serving([text("They ask for 17 × 23.\n</think>\n391")]) as (model, _):
        reply = await model.generate(request(), deltas.append if listening else None)
    assert (reply.content, reply.reasoning) == ("391", "They ask for 17 × 23.")
    if listening:
        assert [(d.kind, d.text) for d in deltas[-3:]] == [
            ("reset", ""),
            ("reasoning", "They ask for 17 × 23."),
            ("text", "391"),
        ]


@both
async def test_reasoning_and_signatures_go_back_only_to_the_endpoint_that_made_them(listening: bool) -> None:
    """Q9."""
    event = {
        "id": "c1",
        "index": 0,
        "function": {"name": "ping", "arguments": "{}"},
        "extra_content": {"google": "sig"},
    }
    message = {"reasoning_content": "hm", "reasoning_details": [{"n": 1}], "tool_calls": [event]}
    first = {"choices": [{"delta": message, "message": {**message, "content": None}, "finish_reason": "tool_calls"}]}
    kind = "text/event-stream" if listening else "application/json"
    page = f"data: {json.dumps(first)}\n\ndata: [DONE]\n\n" if listening else json.dumps(first)
    async with serving([fault(200, page, {"content-type": kind}), text("ok")]) as (model, server):
        reply = await ask(model, listening)
        history = (*ASK, reply.message(), Message("tool", "pong", call_id=reply.calls[0].id))
        await ask(model, listening, messages=history)
        other = OpenAIModel("other", base_url=server.base_url, api_key="none").body(request(*history), stream=False)
    back = server.requests[1]["messages"][2]
    assert (back["reasoning_content"], back["reasoning_details"]) == ("hm", [{"n": 1}])
    assert back["tool_calls"][0]["extra_content"] == {"google": "sig"}
    elsewhere = other["messages"][2]
    assert not {"reasoning_content", "reasoning_details"} & elsewhere.keys()
    assert "extra_content" not in elsewhere["tool_calls"][0]


@both
async def test_a_required_call_that_does_not_come_is_a_failure(listening: bool) -> None:
    """Q11."""
    async with serving([text("I would rather talk."), call("ping", {})]) as (model, server):
        with pytest.raises(ModelError, match="required") as caught:
            await ask(model, listening, tool_choice="required")
        assert (await ask(model, listening, tool_choice="required")).calls
    assert caught.value.failure.kind is FailureKind.bad_model_output
    assert [body["tool_choice"] for body in server.requests] == ["required", "required"]


@both
async def test_tools_and_a_response_format_are_never_sent_together(listening: bool) -> None:
    """Q11."""
    async with serving([text('{"total": 1}'), text("ok")]) as (model, server):
        await ask(model, listening, output=CLOSED, parallel_tool_calls=True)
        await ask(model, listening)
    held, free = server.requests
    assert held["response_format"]["json_schema"] == {"name": "result", "schema": CLOSED, "strict": True}
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & held.keys()
    assert free["tool_choice"] == "auto" and "response_format" not in free


@pytest.mark.parametrize(
    ("said", "then"),
    [
        ("Invalid schema for response_format 'result': strict is not supported", "json_schema"),
        ("response_format.type `json_schema` is unavailable now", "json_object"),
        ("response_format is not supported by this model", None),
    ],
)
async def test_a_response_format_that_is_refused_becomes_a_simpler_one(said: str, then: str | None) -> None:
    """Q10."""

    def answer(body: dict[str, Any]) -> Answer:
        format = body.get("response_format", {})
        refused = (
            "strict" in format.get("json_schema", {}) if then == "json_schema" else format.get("type", then) != then
        )
        return fault(400, {"error": {"message": said}}) if refused else text('{"total": 1}')

    async with serving(answer) as (model, server):
        for _ in range(2):
            assert (await ask(model, tools=(), output=CLOSED)).content == '{"total": 1}'
    assert server.requests[-1].get("response_format", {}).get("type") == then
    assert server.requests[-1] == server.requests[-2]


@both
async def test_parallel_calls_that_come_under_one_index_without_ids_stay_apart(listening: bool) -> None:
    """Q5: else their arguments run into each other."""
    calls = [{"index": 0, "id": "", "function": {"name": "ping", "arguments": f'{{"n": {n}}}'}} for n in range(3)]
    events: list[Any] = [{"choices": [{"delta": {"tool_calls": [c]}}]} for c in calls]
    events.append({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    page = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    async with serving([fault(200, page, {"content-type": "text/event-stream"})]) as (model, _):
        reply = await ask(model, listening)
    assert [json.loads(c.arguments)["n"] for c in reply.calls] == [0, 1, 2]
    assert len({c.id for c in reply.calls}) == 3


@both
async def test_lone_surrogates_are_replaced_before_anything_is_stored(listening: bool) -> None:
    """Q17."""
    broken = "a\ud83db"
    answer = text(broken, reasoning=broken) + call("ping", '{"why": "\\ud83d x"}') + call(broken, {"why": broken})
    async with serving([answer]) as (model, _):
        reply = await ask(model, listening)
    stored = [reply.content, reply.reasoning, *(c.name + c.arguments for c in reply.calls), json.dumps(reply.extra)]
    assert "\ufffd" in reply.content and "\ufffd" in reply.reasoning
    for said in stored:
        said.encode()
    for made in reply.calls:
        json.dumps(json.loads(made.arguments), ensure_ascii=False).encode()


@both
async def test_the_model_that_came_back_is_recorded_whatever_was_asked_for(listening: bool) -> None:
    """Q15."""
    async with serving([text("ok", model="another-model-7b")]) as (model, server):
        reply = await ask(model, listening)
    assert (server.requests[0]["model"], reply.model) == ("scripted", "another-model-7b")


async def test_a_run_survives_lone_surrogates_wherever_they_come_from() -> None:
    """Q17: from the user, a tool and the model; none of them reaches a server or the log."""

    @tool(effect="read")
    async def look() -> str:
        """Look. Use it once. Returns text."""
        return "seen \ud83d"

    ran = await run([call("look", {}), text("answer \ud83d")], look, task="goal \ud83d")
    assert ran.result.status == "done" and ran.result.answer.strip("\ufffd") == "answer "
    assert ran.said("user") == ["goal \ufffd"] and ran.observations == ["seen \ufffd"]


def test_a_number_that_is_too_large_for_the_encoder_stays_in_the_conversation() -> None:
    """Q9: unknown fields are kept, whatever is in them."""
    kept = Conversation([Message("assistant", "ok", extra={"trace": 10**30})])
    assert kept.messages[0].extra == {"trace": 10**30} and kept.hash
    assert encode(wire_messages(kept.messages))
