import asyncio
import json
from typing import Any

import openai
import pytest

from orchestrator.testing import (
    Answer,
    Replies,
    ScriptedServer,
    call,
    cut,
    drop,
    empty,
    fault,
    hang,
    html,
    lint,
    route,
    text,
)

USER = [{"role": "user", "content": "hi"}]


def client_of(server: ScriptedServer) -> openai.AsyncOpenAI:
    http = openai.DefaultAsyncHttpxClient(verify=False)  # reading the certificates would take longer than the test
    return openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0, http_client=http)


async def ask(server: ScriptedServer, messages: Any = USER, **body: Any) -> Any:
    async with client_of(server) as client:
        return await client.chat.completions.create(model="m", messages=messages, **body)


async def test_the_official_client_reads_plain_answers() -> None:
    answer = text("Let me see. ", usage={"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}) + (
        call("f", {"城市": "巴黎"}) + call("g", "{bad", id="mine")
    )
    async with ScriptedServer([answer, empty()]) as server:
        completion = await ask(server)
        nothing = await ask(server)
    [choice] = completion.choices
    assert (choice.message.content, choice.finish_reason, completion.model) == ("Let me see. ", "tool_calls", "m")
    assert [(c.function.name, c.function.arguments) for c in choice.message.tool_calls] == [
        ("f", '{"城市": "巴黎"}'),
        ("g", "{bad"),
    ]
    assert choice.message.tool_calls[1].id == "mine" and choice.message.tool_calls[0].id not in ("", "mine")
    assert completion.usage.total_tokens == 8
    assert (nothing.choices[0].message.content, nothing.choices[0].finish_reason) == ("", "stop")
    assert nothing.usage.prompt_tokens > 0


@pytest.mark.parametrize("usage", [True, False])
async def test_the_official_client_reads_streamed_answers(usage: bool) -> None:
    answer = text("one two three four five", reasoning="hm") + call("f", {"x": "y" * 40})
    async with ScriptedServer([answer]) as server, client_of(server) as client:
        stream = await client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": usage},
        )
        chunks = [chunk async for chunk in stream]
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(d.content or "" for d in deltas) == "one two three four five"
    assert sum(bool(d.content) for d in deltas) > 1
    parts = [part.function for d in deltas for part in d.tool_calls or []]
    assert json.loads("".join(part.arguments or "" for part in parts if part)) == {"x": "y" * 40}
    assert [c.finish_reason for chunk in chunks for c in chunk.choices][-1] == "tool_calls"
    assert bool(chunks[-1].usage) is usage


async def test_a_port_of_its_own_is_the_same_in_the_next_server() -> None:
    async with ScriptedServer([]) as first:
        port = int(first.base_url.split(":")[2].removesuffix("/v1"))
    async with ScriptedServer([text("hi")], port=port) as server:
        assert server.base_url == first.base_url
        await ask(server)


async def test_requests_are_recorded_and_a_function_sees_them() -> None:
    async def answer(request: dict[str, Any]) -> Answer:
        return text(request["messages"][-1]["content"].upper())

    async with ScriptedServer(answer) as server:
        assert (await ask(server, temperature=0.5)).choices[0].message.content == "HI"
    assert server.requests == [{"model": "m", "messages": USER, "temperature": 0.5}]
    assert server.headers[0]["authorization"] == "Bearer none"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (fault(429, headers={"retry-after": "3"}), openai.RateLimitError),
        (fault(503, {"error": "loading"}), openai.InternalServerError),
        (html(status=502), openai.InternalServerError),
        (drop(), openai.APIConnectionError),
        (drop(text("half " * 30)), openai.APIConnectionError),
        (cut(text("half " * 30)), json.JSONDecodeError),
        (hang(), openai.APITimeoutError),
        (hang(text("half " * 30)), openai.APITimeoutError),
        (text("late", latency=60), openai.APITimeoutError),
    ],
)
async def test_faults_reach_the_client_as_what_they_are(answer: Answer, error: type[Exception]) -> None:
    async with ScriptedServer([answer]) as server:
        with pytest.raises(error):
            await ask(server, timeout=0.2 if error is openai.APITimeoutError else 5)
        await server.until(lambda server: server.in_flight == server.connections == 0)


async def test_a_half_stream_ends_without_a_finish_reason() -> None:
    async with ScriptedServer([cut(text("half " * 9)), cut(empty())]) as server:
        for _ in range(2):
            async with client_of(server) as client:
                stream = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "hi"}], stream=True
                )
                finish = [c.finish_reason async for chunk in stream for c in chunk.choices]
            assert set(finish) == {None}


async def test_latency_is_waited_for() -> None:
    async with ScriptedServer([text("late", latency=0.05)]) as server:
        started = asyncio.get_running_loop().time()
        assert (await ask(server)).choices[0].message.content == "late"
        assert asyncio.get_running_loop().time() - started >= 0.05


async def test_running_out_of_replies_is_loud() -> None:
    with pytest.raises(AssertionError, match="request 2: LookupError: all 1 replies of the script are used up"):
        async with ScriptedServer([text("one")]) as server:
            await ask(server)
            with pytest.raises(openai.BadRequestError, match="used up"):
                await ask(server)


async def test_a_mistake_in_a_script_is_loud() -> None:
    def answer(request: dict[str, Any]) -> Answer:
        return text(request["nothing"])

    with pytest.raises(AssertionError, match="KeyError: 'nothing'"):
        async with ScriptedServer(answer) as server:
            with pytest.raises(openai.BadRequestError):
                await ask(server)


BAD: list[dict[str, Any]] = [{"role": "user", "content": "hi"}, {"role": "tool", "tool_call_id": "x", "content": "y"}]


async def test_a_request_that_a_provider_would_refuse_is_refused_and_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="request 1: orphan_tool"):
        async with ScriptedServer([text("never sent")]) as server:
            with pytest.raises(openai.BadRequestError, match="must respond to a preceding message"):
                await ask(server, BAD)


async def test_without_strict_complaints_are_only_recorded() -> None:
    async with ScriptedServer([text("sent")], strict=False) as server:
        assert (await ask(server, BAD)).choices[0].message.content == "sent"
    assert [complaint.split(":")[1] for complaint in server.complaints] == [" orphan_tool"]


async def test_an_error_in_the_test_itself_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        async with ScriptedServer([]) as server:
            with pytest.raises(openai.BadRequestError):
                await ask(server)
            _ = 1 / 0


async def test_parallel_conversations_have_scripts_of_their_own() -> None:
    script = route(
        {
            ("You are a reader", "a.txt"): [call("read_file", {"path": "a.txt"}), text("a says 1")],
            "You are a reader": text("another file"),
            "sum": lambda request: text(str(len(request["messages"]))),
        }
    )

    def conversation(system: str, user: str) -> list[dict[str, Any]]:
        return [{"role": "system", "content": system}, {"role": "user", "content": user}]

    async with ScriptedServer(script) as server:

        async def said(system: str, user: str) -> str | None:
            message = (await ask(server, conversation(system, user))).choices[0].message
            return str(message.content) or str(message.tool_calls[0].function.name)

        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(said("You are a reader", "b.txt")),
                group.create_task(said("You are a writer", "sum up")),
                group.create_task(said("You are a reader", "b.txt")),
                group.create_task(said("You are a reader", "read a.txt")),
            ]
        assert [t.result() for t in tasks] == ["another file", "2", "another file", "read_file"]
        assert await said("You are a reader", "read a.txt") == "a says 1"


async def test_a_conversation_that_no_key_fits_is_loud() -> None:
    with pytest.raises(AssertionError, match=r"no key of the route fits.*reader.*hi"):
        async with ScriptedServer(route({"reader": text("x")})) as server:
            with pytest.raises(openai.BadRequestError):
                await ask(server)


async def test_leaving_ends_everything_that_is_still_open() -> None:
    waiting = asyncio.Event()

    async def never(request: dict[str, Any]) -> Answer:
        await waiting.wait()
        raise AssertionError("not reached")

    async def try_to_ask(server: ScriptedServer) -> None:
        with pytest.raises(openai.APIConnectionError):
            await ask(server)

    script: Replies
    async with asyncio.TaskGroup() as group:
        for script in (never, [hang()], [text("late", latency=60)]):
            async with ScriptedServer(script) as server:
                group.create_task(try_to_ask(server))
                await server.until(lambda server: server.in_flight == 1)
    assert server.connections == server.in_flight == 0


CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLS: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [CALL]}
TOOL = {"role": "tool", "tool_call_id": "a", "content": "ok"}


def tool(name: str = "f", **schema: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", **schema}}}


@pytest.mark.parametrize(
    ("changes", "profile", "codes"),
    [
        ({}, "openai", []),
        ({"messages": [*USER, CALLS, TOOL]}, "openai", []),
        ({"messages": []}, "openai", ["empty_messages"]),
        ({"messages": [*USER, CALLS, *USER]}, "openai", ["missing_tool_reply"]),
        ({"messages": [*USER, CALLS]}, "openai", ["missing_tool_reply", "last_is_assistant"]),
        ({"messages": [*USER, CALLS, TOOL, TOOL]}, "openai", ["orphan_tool"]),
        ({"messages": [*USER, CALLS, TOOL, CALLS, TOOL]}, "openai", ["dup_call_id"]),
        (
            {"messages": [*USER, CALLS, {"role": "tool", "content": "ok"}]},
            "openai",
            ["missing_tool_call_id", "missing_tool_reply"],
        ),
        ({"messages": [*USER, CALLS, {**TOOL, "content": None}]}, "openai", ["null_tool_content"]),
        ({"messages": [*USER, CALLS, {**TOOL, "content": [{"type": "image_url"}]}]}, "openai", ["image_in_tool"]),
        ({"messages": [*USER, {"role": "assistant", "content": None}, *USER]}, "openai", ["empty_assistant"]),
        (
            {"messages": [*USER, {"role": "assistant", "content": "x", "tool_calls": []}, *USER]},
            "openai",
            ["empty_tool_calls"],
        ),
        ({"messages": [{"role": "note", "content": "x"}]}, "openai", ["bad_role"]),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "openai", ["surrogate"]),
        ({"tools": []}, "openai", ["empty_tools"]),
        ({"tools": [tool("a.b")]}, "openai", ["bad_tool_name"]),
        ({"tools": [tool(), tool()]}, "openai", ["dup_tool_name"]),
        ({"tools": [tool(str(n)) for n in range(129)]}, "openai", ["too_many_tools"]),
        ({"tools": [tool(type="string")]}, "openai", ["schema_root"]),
        ({"tools": [tool(properties={"x": {"type": "array"}})]}, "openai", ["array_without_items"]),
        ({"tools": [tool(properties={"const": {"type": "string"}})]}, "gemini", []),
        ({"tools": [tool(properties={"x": {"const": 1}})]}, "gemini", ["schema_keyword"]),
        ({"tools": [tool(properties={"x": {"enum": [1]}})]}, "gemini", ["enum_type"]),
        ({"messages": [*USER, CALLS, TOOL]}, "mistral", ["mistral_id"]),
        ({"messages": [*USER, {"role": "system", "content": "x"}]}, "mistral", ["late_system"]),
        ({"messages": [*USER, *USER]}, "vllm_text", ["alternate"]),
        ({"messages": [{"role": "developer", "content": "x"}, *USER]}, "groq", ["developer_role"]),
        ({"messages": [*USER, CALLS, TOOL]}, "deepseek_thinking", ["reasoning_dropped"]),
        (
            {"messages": [*USER, {**CALLS, "tool_calls": [{}]}, *USER]},
            "openai",
            ["missing_tool_reply", "empty_call_id", "call_type", "args_not_string", "bad_call_name"],
        ),
    ],
)
def test_a_request_is_refused_for_what_providers_refuse(
    changes: dict[str, Any], profile: Any, codes: list[str]
) -> None:
    found = [code for code, _ in lint({"model": "m", "messages": USER, **changes}, profile)]
    assert sorted(found) == sorted(codes)
