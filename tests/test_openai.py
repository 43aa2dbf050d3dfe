import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import openai
import pytest

from orchestrator.errors import ConfigError, ModelError
from orchestrator.failure import Failure, FailureKind
from orchestrator.messages import Delta, Message, Reply, Request, ToolCall, ToolSpec
from orchestrator.models.openai import OpenAIModel
from orchestrator.models.server import Timeouts
from orchestrator.models.tokens import Price
from orchestrator.models.wire import encode
from orchestrator.testing import Answer, ScriptedServer, call, cut, drop, empty, fault, hang, html, text
from tests.engine import served

QUIRKS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data/quirks/responses.jsonl").read_text(encoding="utf-8").splitlines()
]
WEATHER = ToolSpec("get_weather", "Tell the weather.", {"type": "object", "properties": {"city": {"type": "string"}}})
PING = ToolSpec("ping", "Ping.", {"type": "object", "properties": {}})
ASK = (Message("system", "You answer."), Message("user", "Weather in Paris?"))
KEY = "sk-0123456789abcdef"


def request(*messages: Message, **changes: Any) -> Request:
    return Request(key="ori:1:model", messages=messages or ASK, **{"tools": (WEATHER, PING), **changes})


@asynccontextmanager
async def serving(*answers: Answer, **options: Any) -> AsyncIterator[tuple[OpenAIModel, ScriptedServer]]:
    async with ScriptedServer(answers) as server:
        model = OpenAIModel("scripted", **{"base_url": server.base_url, "api_key": KEY, **options})
        try:
            yield model, server
        finally:
            await model.aclose()


async def failure_of(model: OpenAIModel, *, listening: bool = False) -> Failure:
    with pytest.raises(ModelError) as caught:
        await model.generate(request(), print if listening else None)
    return caught.value.failure


# what comes back


@pytest.mark.parametrize("listening", [False, True])
async def test_a_reply_is_whole_whether_streamed_or_plain(listening: bool) -> None:
    answer = text("Let me see: 天气。", reasoning="They ask for weather.", model="scripted-2") + call(
        "get_weather", {"city": "巴黎"}, id="call_a"
    )
    deltas: list[Delta] = []
    async with serving(answer) as (model, server):
        reply = await model.generate(request(), deltas.append if listening else None)
    assert reply == Reply(
        content="Let me see: 天气。",
        calls=(ToolCall("call_a", "get_weather", '{"city": "巴黎"}'),),
        finish_reason="tool_calls",
        usage=reply.usage,
        model="scripted-2",
        reasoning="They ask for weather.",
        extra={"reasoning_content": "They ask for weather."},
        origin=model.origin,
    )
    assert reply.usage.calls == 1 and reply.usage.prompt > 0 and reply.usage.estimated_calls == 0
    assert server.requests[0].get("stream", False) is listening
    if listening:
        assert "".join(d.text for d in deltas if d.kind == "text") == "Let me see: 天气。"
        assert "".join(d.text for d in deltas if d.kind == "reasoning") == "They ask for weather."


@pytest.mark.parametrize(("stream", "expected"), [("always", True), ("never", False)])
async def test_a_model_can_be_set_to_stream_always_or_never(stream: Any, expected: bool) -> None:
    async with serving(text("yes"), text("yes"), stream=stream) as (model, server):
        assert (await model.generate(request())).content == "yes"
        assert (await model.generate(request(), lambda delta: None)).content == "yes"
    assert [r.get("stream", False) for r in server.requests] == [expected, expected]


@pytest.mark.parametrize("line", QUIRKS, ids=lambda line: line["id"])
async def test_every_recorded_answer_of_a_real_provider_is_read_rightly(line: dict[str, Any]) -> None:
    expected = line["expected"]
    async with serving(fault(line["status"], line["body"], line["headers"])) as (model, _):
        listener = (lambda delta: None) if line["stream"] else None
        try:
            outcome: Reply | FailureKind = await model.generate(request(), listener)
        except ModelError as error:
            outcome = error.failure.kind
    kinds = {
        ("provider", True): FailureKind.overloaded,
        ("rate_limit", True): FailureKind.rate_limited,
        ("quota", False): FailureKind.quota,
        ("context", False): FailureKind.context_overflow,
        ("not_json", False): FailureKind.not_json,
        ("not_json", True): FailureKind.truncated_stream,  # a JSON text that was cut off may come whole next time
        ("truncated_stream", True): FailureKind.truncated_stream,
        ("model_output", True): FailureKind.bad_model_output,
    }
    if expected.get("error") == "truncated":
        assert isinstance(outcome, Reply) and (outcome.content, outcome.finish_reason) == ("", "length")
    elif "error" in expected:
        assert outcome is kinds[expected["error"], expected["retryable"]]
    elif "bad_args" in expected:
        assert isinstance(outcome, Reply)
        with pytest.raises(ValueError, match="Expecting"):
            json.loads(outcome.calls[0].arguments)
    elif "not_final" in expected:
        assert isinstance(outcome, Reply)
        assert (outcome.content, outcome.calls[0].name) == ("", "get_weather")
    else:
        assert isinstance(outcome, Reply)
        assert outcome.content == expected["text"]
        assert [[c.name, json.loads(c.arguments)] for c in outcome.calls] == expected["calls"]
        assert all(c.id for c in outcome.calls)


async def test_a_stream_that_was_not_asked_for_is_read_all_the_same() -> None:
    body = 'data: {"choices":[{"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    kinds = [{"content-type": "text/event-stream"}, {"content-type": "text/plain"}]
    async with serving(*(fault(200, body, headers) for headers in kinds)) as (model, _):
        assert [(await model.generate(request())).content for _ in kinds] == ["Hi", "Hi"]


async def test_a_plain_answer_to_a_streamed_request_is_read_all_the_same() -> None:
    body = {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}
    async with serving(fault(200, body)) as (model, _):
        assert (await model.generate(request(), lambda delta: None)).content == "Hi"


@pytest.mark.parametrize("listening", [False, True])
async def test_what_a_model_says_where_it_refuses_is_its_answer(listening: bool) -> None:
    said = {"content": None, "refusal": "I cannot help with that."}
    plain = json.dumps({"choices": [{"message": said, "finish_reason": "stop"}]})
    streamed = f'data: {{"choices": [{{"delta": {json.dumps(said)}, "finish_reason": "stop"}}]}}\n\n'
    kind = {"content-type": "text/event-stream" if listening else "application/json"}
    async with serving(fault(200, streamed if listening else plain, kind)) as (model, _):
        reply = await model.generate(request(), print if listening else None)
    assert reply.content == "I cannot help with that."


async def test_ids_are_unique_within_the_conversation() -> None:
    answer = call("ping", {}, id="a") + call("ping", {}, id="a") + call("ping", {}, id="") + call("ping", {}, id="b")
    before = (*ASK, Message("assistant", "", (ToolCall("a", "ping", "{}"),)), Message("tool", "pong", call_id="a"))
    async with serving(answer, answer) as (model, _):
        first = await model.generate(request(*before))
        again = await model.generate(request(*before))
    ids = [c.id for c in first.calls]
    assert len(set(ids)) == 4 and not {"", "a"} & set(ids) and ids[3] == "b"
    assert [c.id for c in again.calls] == ids


# usage


@pytest.mark.parametrize(
    "reported",
    [
        None,
        {"prompt_tokens": 0, "completion_tokens": 0},
        {"prompt_tokens": float("nan"), "completion_tokens": float("inf")},
        {"prompt_tokens": 10**40, "completion_tokens": -5},
        {"prompt_tokens": 90},
    ],
    ids=["none", "zeros", "no numbers", "absurd", "of the prompt only"],
)
@pytest.mark.parametrize("listening", [False, True])
async def test_missing_usage_is_estimated_and_marked(listening: bool, reported: dict[str, float] | None) -> None:
    """B56: a streamed run counts its tokens, whether or not the server reports them."""
    known = text("你好" * 40, usage={"prompt_tokens": 90, "completion_tokens": 55})
    async with serving(text("你好" * 40, usage=reported), known) as (model, server):
        listener = (lambda delta: None) if listening else None
        estimated = (await model.generate(request(), listener)).usage
        counted = (await model.generate(request(), listener)).usage
    assert estimated.estimated_calls == 1
    assert 50 < estimated.completion < 120 and estimated.prompt > 20
    assert (counted.prompt, counted.completion, counted.estimated_calls) == (90, 55, 0)
    if listening:
        assert all(r["stream_options"] == {"include_usage": True} for r in server.requests)


@pytest.mark.parametrize(
    "cached",
    [{"prompt_tokens_details": {"cached_tokens": 600}}, {"prompt_cache_hit_tokens": 600}, {"cached_tokens": 600}],
)
async def test_a_price_makes_a_cost_with_cached_tokens_at_their_own(cached: dict[str, Any]) -> None:
    usage = {
        "prompt_tokens": 1000,
        "completion_tokens": 100,
        "completion_tokens_details": {"reasoning_tokens": 40},
        **cached,
    }
    price = Price(input=Decimal(1), cached=Decimal("0.1"), output=Decimal(4))
    async with serving(text("ok", usage=usage), price=price) as (model, _):
        counted = (await model.generate(request())).usage
    assert (counted.cached, counted.reasoning) == (600, 40)
    assert counted.cost == Decimal("0.00086")  # 400 × 1 + 600 × 0.1 + 100 × 4, per million


# what goes out


async def test_our_body_is_what_the_typed_call_would_send() -> None:
    messages = (*ASK, Message("assistant", "", (ToolCall("c1", "ping", "{}"),)), Message("tool", "pong", call_id="c1"))
    asked = request(*messages, params={"temperature": 0.3, "seed": 7}, parallel_tool_calls=False)
    async with serving(text("a"), text("b")) as (model, server):
        await model.generate(asked)
        client = openai.AsyncOpenAI(api_key=KEY, base_url=server.base_url)
        await client.chat.completions.create(**model.body(asked, stream=False))
        await client.close()
    ours, typed = server.headers
    assert server.requests[0] == server.requests[1]
    unsaid = typed.keys() - ours.keys()
    assert "x-stainless-os" in unsaid and all(name.startswith("x-stainless-") for name in unsaid)  # about our machine
    differs = {name for name in ours.keys() & typed.keys() if ours[name] != typed[name]}
    assert differs == {"accept-encoding", "x-stainless-read-timeout"} and ours["authorization"] == f"Bearer {KEY}"


async def test_a_cookie_of_the_server_comes_back_and_headers_of_the_settings_win() -> None:
    balanced = fault(500, {"error": "again"}, {"set-cookie": "node=7; Path=/"})
    async with serving(balanced, text("a"), headers={"accept-encoding": "gzip", "X-Team": "a"}) as (model, server):
        await failure_of(model)
        await model.generate(request())
    first, second = server.headers
    assert "cookie" not in first and second["cookie"] == "node=7"
    assert first["accept-encoding"] == second["accept-encoding"] == "gzip" and second["x-team"] == "a"


async def test_a_request_repeats_the_bytes_of_the_one_before_up_to_the_end_of_its_messages() -> None:
    model = OpenAIModel("m", base_url="http://127.0.0.1:1/v1", params={"temperature": 0})
    messages: tuple[Message, ...] = ASK
    before = encode(model.body(request(*messages), stream=False))
    for turn in range(5):
        messages += (
            Message("assistant", f"turn {turn}", (ToolCall(f"c{turn}", "ping", '{"a":'),)),
            Message("tool", "观察" * 50, call_id=f"c{turn}"),
        )
        choice: Any = "none" if turn == 4 else "auto"
        after = encode(model.body(request(*messages, tool_choice=choice), stream=False))
        assert after.startswith(before.removesuffix(b'],"tool_choice":"auto"}'))
        before = after


async def test_every_request_limits_its_answer_and_says_how_tools_may_be_used() -> None:
    model = OpenAIModel("m", base_url="http://127.0.0.1:1/v1", window=16_000)
    body = model.body(request(), stream=False)
    assert (body["max_tokens"], body["tool_choice"]) == (4000, "auto")
    assert model.body(request(params={"max_completion_tokens": 9}), stream=False).get("max_tokens") is None
    assert model.body(request(params={"max_tokens": 9}), stream=False)["max_tokens"] == 9
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & model.body(request(tools=()), stream=False).keys()


# failures


async def test_a_web_page_gets_one_message_that_names_the_base_url() -> None:
    """B57: a base_url that serves a web page, with or without streaming."""
    for listening in (False, True):
        async with serving(html("<!doctype html><title>Login</title>" + "x" * 9000)) as (model, server):
            failure = await failure_of(model, listening=listening)
            assert len(server.requests) == 1
        assert failure.kind is FailureKind.not_json
        assert server.base_url in failure.message and "Login" in failure.message and "/v1" in failure.message
        assert len(failure.message) < 400


async def test_a_base_url_without_an_api_behind_it_is_told_as_such() -> None:
    """B57: the path of the API is missing."""
    async with ScriptedServer([]) as server:
        model = OpenAIModel("m", base_url=server.base_url.removesuffix("/v1"), api_key=KEY)
        failure = await failure_of(model)
        await model.aclose()
    assert failure.kind is FailureKind.not_json and "base_url" in failure.message


async def test_a_refused_connection_names_the_address() -> None:
    async with ScriptedServer([]) as server:
        model = OpenAIModel("m", base_url=server.base_url, api_key=KEY)
    failure = await failure_of(model)
    await model.aclose()
    assert failure.kind is FailureKind.connection
    assert server.base_url in failure.message and "(connection refused); is the server running" in failure.message


async def test_a_refused_key_names_the_setting_and_never_the_key() -> None:
    said = {"error": {"message": f"Incorrect API key provided: {KEY} (also {KEY}-header).", "code": "invalid_api_key"}}
    async with serving(fault(401, said), headers={"X-Auth": f"{KEY}-header"}) as (model, _):
        failure = await failure_of(model)
    assert failure.kind is FailureKind.auth
    assert "api_key" in failure.message and "OPENAI_API_KEY" in failure.message and KEY not in failure.message


@pytest.mark.parametrize("listening", [False, True])
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (cut(text("half " * 20)), FailureKind.truncated_stream),
        (cut(call("get_weather", {"city": "Paris"})), FailureKind.truncated_stream),
        (drop(text("half " * 20)), FailureKind.truncated_stream),
        (drop(), FailureKind.connection),
        (fault(200, ""), FailureKind.truncated_stream),
        (fault(200, {"choices": []}), FailureKind.overloaded),
        (fault(200, {"choices": None, "error": {"message": "Rate limit", "code": 429}}), FailureKind.rate_limited),
        (fault(200, {"choices": [{"error": {"code": 502}, "finish_reason": "error"}]}), FailureKind.overloaded),
        (fault(200, "[" * 100_000), FailureKind.truncated_stream),
        (fault(200, "null"), FailureKind.overloaded),
        (fault(503), FailureKind.overloaded),
    ],
)
async def test_what_is_no_whole_answer_is_a_failure(answer: Answer, kind: FailureKind, listening: bool) -> None:
    async with serving(answer) as (model, server):
        failure = await failure_of(model, listening=listening)
        assert len(server.requests) == 1
    assert failure.kind is kind, failure.message


@pytest.mark.parametrize(("answer", "listening"), [(hang(), False), (hang(), True), (hang(text("half " * 9)), True)])
async def test_silence_is_a_timeout(answer: Answer, listening: bool) -> None:
    async with serving(answer, timeout=Timeouts(read=0.05, first_byte=0.05)) as (model, server):
        assert (await failure_of(model, listening=listening)).kind is FailureKind.timeout
        await server.until(lambda server: server.connections == 0)


async def test_a_stream_that_breaks_after_its_finish_reason_is_whole() -> None:
    body = 'data: {"choices":[{"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\n'
    headers = {"content-type": "text/event-stream", "content-length": str(len(body) + 9)}
    answer = Answer(page=(200, body + " " * 9, headers), ending="whole")
    async with serving(answer) as (model, _):
        assert (await model.generate(request(), print)).content == "Hi"


@pytest.mark.parametrize("listening", [False, True])
async def test_cancelling_a_call_closes_its_connection(listening: bool) -> None:
    started = asyncio.Event()
    answer = hang(text("half " * 9)) if listening else hang()
    async with serving(answer) as (model, server):

        async def ask() -> None:
            await model.generate(request(), (lambda delta: started.set()) if listening else None)

        async with asyncio.TaskGroup() as group:
            task = group.create_task(ask())
            await server.until(lambda server: server.in_flight == 1)
            if listening:
                await started.wait()
            task.cancel()
        assert task.cancelled()
        await server.until(lambda server: server.connections == 0)


async def test_an_empty_answer_is_a_reply() -> None:
    async with serving(empty()) as (model, _):
        reply = await model.generate(request())
    assert (reply.content, reply.calls, reply.finish_reason) == ("", (), "stop")


# construction, loops


@pytest.mark.parametrize("settings", [{"base_url": "127.0.0.1:8080/v1"}, {"api_key": "你的密钥"}])
def test_settings_that_cannot_be_right_are_refused_at_once(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        OpenAIModel("m", **{"base_url": "http://127.0.0.1:1/v1", "api_key": KEY, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize("listening", [False, True])
async def test_calls_one_after_another_share_a_connection(listening: bool) -> None:
    async with serving(*[text("word " * 9)] * 5) as (model, server):
        for _ in range(5):
            await model.generate(request(), (lambda delta: None) if listening else None)
        assert (server.connections, server.connections_made) == (1, 1)


async def test_connections_that_are_closed_meanwhile_are_a_failure_that_is_asked_again() -> None:
    kinds: list[FailureKind] = []

    async def ask() -> None:
        try:
            await model.generate(request())
        except ModelError as error:
            kinds.append(error.failure.kind)

    async with serving(*[text("hi")] * 20) as (model, _):
        await model.generate(request())
        for steps in range(12):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(ask())
                for _ in range(steps):
                    await asyncio.sleep(0)
                await model.aclose()
    assert kinds and set(kinds) == {FailureKind.connection}


async def test_closed_connections_open_again() -> None:
    async with serving(text("one"), text("two")) as (model, server):
        await model.generate(request())
        await model.aclose()
        await server.until(lambda server: server.connections == 0)
        assert (await model.generate(request())).content == "two"


def test_one_model_works_in_one_event_loop_after_another() -> None:
    async def ask(model: OpenAIModel) -> str:
        reply = await model.generate(request())
        await model.aclose()
        return reply.content

    with served([text("one"), text("two")]) as server:
        model = OpenAIModel("m", base_url=server.base_url, api_key=KEY)
        assert [asyncio.run(ask(model)) for _ in range(2)] == ["one", "two"]


def test_the_client_library_loads_at_the_first_call_only() -> None:
    code = (
        "import sys; from orchestrator.models.openai import OpenAIModel; "
        "OpenAIModel('m', base_url='http://127.0.0.1/v1'); "
        "print([m for m in ('openai', 'aiohttp', 'httpx2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
