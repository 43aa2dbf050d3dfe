import json
from codecs import BOM_UTF8
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import ModelError
from orchestrator.messages import Message, Reply, Request, ToolSpec
from orchestrator.models.replies import Assembly, EventSplitter, read_body, read_reply
from orchestrator.models.wire import encode, wire_messages

TOOLS = tuple(ToolSpec(name, "", {"type": "object"}) for name in ("f", "g"))


def asked(**changes: Any) -> Request:
    return Request(key="k", messages=(Message("user", "?"),), **{"tools": TOOLS, **changes})


def plain(message: Any, finish: Any = "stop", request: Request | None = None, **options: Any) -> Reply:
    body = read_body(json.dumps({"choices": [{"message": message, "finish_reason": finish}]}).encode())
    return read_reply(body, request or asked(), sent=b"{}", price=None, **options)


def streamed(*deltas: dict[str, Any]) -> Reply:
    assembly = Assembly()
    for delta in deltas:
        list(assembly.feed(b"data: %b\n\n" % json.dumps({"choices": [{"delta": delta}]}).encode()))
    list(assembly.feed(b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}'))
    return read_reply(assembly.body(), asked(), sent=b"{}", price=None)


def part(**fields: Any) -> dict[str, Any]:
    """One delta of one call."""
    function = {k: fields.pop(k) for k in ("name", "arguments") if k in fields}
    return {"tool_calls": [{**fields, "function": function}]}


def calls(reply: Reply) -> list[tuple[str, str]]:
    return [(c.name, c.arguments) for c in reply.calls]


@pytest.mark.parametrize(
    ("given_", "read"),
    [
        ({"a": 1}, '{"a":1}'),
        ("", "{}"),
        (None, "{}"),
        ('"{\\"a\\": 1}"', '{"a": 1}'),
        ('"just text"', '"just text"'),
        ('{"a": ', '{"a": '),
        ("null", "null"),
        ([1], "[1]"),
    ],
)
def test_arguments_of_any_shape_become_json_text_and_malformed_ones_stay(given_: Any, read: str) -> None:
    assert calls(plain({"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": given_}}]})) == [("f", read)]


def test_deltas_of_a_call_are_joined_by_index() -> None:
    reply = streamed(
        part(index=0, id="a", name="f", arguments=""),
        part(index=1, id="b", name="g", arguments='{"y"'),
        part(index=0, arguments='{"x": 1}'),
        part(index=1, arguments=": 2}"),
    )
    assert calls(reply) == [("f", '{"x": 1}'), ("g", '{"y": 2}')]


def test_without_an_index_a_new_id_is_a_new_call_and_bare_arguments_go_to_the_last() -> None:
    reply = streamed(
        part(id="a", name="f", arguments="{"), part(arguments="}"), part(id="b", name="g"), part(id="b", arguments="{}")
    )
    assert calls(reply) == [("f", "{}"), ("g", "{}")]


def test_an_id_and_a_name_that_come_again_with_every_delta_are_not_joined() -> None:
    reply = streamed(part(index=0, id="a", name="f", arguments="{"), part(index=0, id="a", name="f", arguments="}"))
    assert calls(reply) == [("f", "{}")] and reply.calls[0].id == "a"


def test_parallel_calls_that_all_have_index_0_are_told_apart_by_id() -> None:
    reply = streamed(part(index=0, id="a", name="f", arguments="{}"), part(index=0, id="b", name="f", arguments="{}"))
    assert [c.id for c in reply.calls] == ["a", "b"]


def test_arguments_may_come_as_an_object_in_a_delta() -> None:
    assert calls(streamed(part(index=0, id="a", name="f", arguments={"x": 1}))) == [("f", '{"x":1}')]


def test_unknown_fields_are_kept_to_be_sent_back_and_known_ones_are_not() -> None:
    reply = streamed(
        {"role": "assistant", "content": None, "reasoning_content": "one ", "refusal": None},
        {"reasoning_content": "two", "reasoning_details": [{"n": 1}]},
        {"content": "yes", "reasoning_details": [{"n": 2}]},
    )
    assert reply.extra == {"reasoning_content": "one two", "reasoning_details": [{"n": 1}, {"n": 2}]}
    assert (reply.reasoning, reply.content) == ("one two", "yes")


def test_content_in_parts_is_joined_and_thinking_parts_are_reasoning() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    parts = [thinking, {"type": "text", "text": "yes"}]
    assert (plain({"content": parts}).reasoning, plain({"content": parts}).content) == ("hm", "yes")
    reply = streamed({"content": [thinking]}, {"content": [{"type": "text", "text": "ye"}]}, {"content": "s"})
    assert (reply.reasoning, reply.content, reply.extra) == ("hm", "yes", {})


def test_a_call_written_as_text_counts_only_when_calls_are_possible() -> None:
    written = {"content": 'f {"a": 1}'}
    assert calls(plain(written)) == [("f", '{"a":1}')] and plain(written).content == ""
    for off in (
        plain(written, request=asked(tools=())),
        plain(written, salvaging=False),
    ):
        assert (off.calls, off.content) == ((), 'f {"a": 1}')


def test_a_functions_prefix_is_no_part_of_a_name() -> None:
    assert calls(plain({"tool_calls": [{"function": {"name": " functions.f "}}]})) == [("f", "{}")]


@pytest.mark.parametrize(("said", "finish"), [("max_tokens", "length"), (None, "stop"), ("content_filter",) * 2])
def test_finish_reasons_have_one_vocabulary(said: str | None, finish: str) -> None:
    assert plain({"content": "x"}, said).finish_reason == finish


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["content", "tool_calls", "function", "name", "arguments", "id", "index", "thinking", "text"]
            ),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=8,
)


@settings(max_examples=50)
@given(json_values, json_values)
def test_a_message_of_any_shape_becomes_a_reply(message: Any, finish: Any) -> None:
    assert isinstance(plain(message, "stop" if finish == "error" else finish), Reply)


@settings(max_examples=50)
@given(st.lists(st.dictionaries(st.sampled_from(["content", "tool_calls", "reasoning"]), json_values), max_size=3))
def test_deltas_of_any_shape_become_a_reply(deltas: list[dict[str, Any]]) -> None:
    assert isinstance(streamed(*deltas), Reply)


@given(st.integers(1, 9), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.booleans())
def test_events_are_read_wherever_the_stream_is_cut_into_chunks(size: int, newline: bytes, bom: bool) -> None:
    lines = [
        b"data: [1]",
        b"",
        b": hello",
        b"",
        b"event: x",
        b'data: {"a":',
        b'data:"\xe4\xbd\xa0"}',
        b"",
        b"data: [DONE]",
        b"",
        b"",
    ]
    stream, splitter = BOM_UTF8 * bom + newline.join(lines), EventSplitter()
    events = [e for i in range(0, len(stream), size) for e in splitter.feed(stream[i : i + size])]
    assert events == [b"[1]", b'{"a":\n"\xe4\xbd\xa0"}', b"[DONE]"]


def test_counts_of_zero_do_not_replace_what_was_counted_before() -> None:
    counted = {"prompt_tokens": 7, "completion_tokens": 2}
    assembly = Assembly()
    for usage in (counted, None, {"prompt_tokens": 0, "completion_tokens": 0}, {}):
        list(assembly.feed(b"data: %b\n\n" % json.dumps({"choices": [], "usage": usage}).encode()))
    list(assembly.feed(b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}'))
    total = read_reply(assembly.body(), asked(), sent=b"{}", price=None).usage
    assert (total.prompt, total.completion, total.estimated_calls) == (7, 2, 0)


def test_a_call_under_its_name_of_2023_is_a_call() -> None:
    function = {"name": "f", "arguments": '{"a":1}'}
    assert calls(plain({"content": None, "function_call": function}, "function_call")) == [("f", '{"a":1}')]
    pieces = [{"function_call": {"name": "f", "arguments": ""}}, {"function_call": {"arguments": '{"a":'}}]
    assert calls(streamed(*pieces, {"function_call": {"arguments": "1}"}})) == [("f", '{"a":1}')]


def test_a_call_under_both_names_is_one_call() -> None:
    function = {"name": "f", "arguments": "{}"}
    both = {"function_call": function, "tool_calls": [{"index": 0, "id": "a", "function": function}]}
    assert calls(plain(both)) == calls(streamed(both)) == [("f", "{}")]


def test_a_body_may_begin_with_a_byte_order_mark() -> None:
    body = read_body(BOM_UTF8 + b'{"choices": [{"message": {"content": "yes"}}]}')
    assert body["choices"][0]["message"]["content"] == "yes"


def test_what_was_read_and_what_was_written_may_be_counted_in_two_chunks() -> None:
    assembly = Assembly()
    for usage in ({"prompt_tokens": 7, "completion_tokens": 0}, {"prompt_tokens": 0, "completion_tokens": 2}):
        list(assembly.feed(b"data: %b\n\n" % json.dumps({"choices": [], "usage": usage}).encode()))
    list(assembly.feed(b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}'))
    total = read_reply(assembly.body(), asked(), sent=b"{}", price=None).usage
    assert (total.prompt, total.completion, total.estimated_calls) == (7, 2, 0)


def test_an_answer_of_thousands_of_calls_is_given_up() -> None:
    many = {"tool_calls": [{"index": n, "id": f"c{n}", "function": {"name": "f"}} for n in range(1001)]}
    for read in (plain, streamed):
        with pytest.raises(ModelError, match="more than 1000 tool calls in one answer"):
            read(many)


@pytest.mark.parametrize("levels", [190, 300, 700, 5000])
def test_what_is_nested_deeply_is_read_as_far_as_it_can_be_sent_back(levels: int) -> None:
    nested = b'{"a":' * levels + b"1" + b"}" * levels
    body = b'{"choices":[{"message":{"content":"x","extra":%b},"finish_reason":"stop"}]}' % nested
    if levels > 200:
        with pytest.raises(ModelError):
            read_body(body)
    else:
        reply = read_reply(read_body(body), asked(), sent=b"{}", price=None)
        assert encode(wire_messages([reply.message()])) and json.dumps(reply.extra)
