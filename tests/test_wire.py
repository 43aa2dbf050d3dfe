import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.messages import Message, ToolCall
from orchestrator.models.wire import decode, encode, wire_messages
from orchestrator.testing import lint

ANY_TEXT = st.text(st.characters(codec=None), min_size=1)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Message, ...]:
    """As loops make them: notes and data anywhere, names and arguments as wild as models write them."""
    messages = [Message("system", draw(ANY_TEXT)), Message("user", draw(ANY_TEXT))]
    for turn in range(draw(st.integers(0, 4))):
        names = draw(st.lists(ANY_TEXT, min_size=1, max_size=3))
        arguments = draw(st.sampled_from(["{}", '{"a": 1}', '{"a"', "[]", "", "null"]))
        calls = tuple(ToolCall(f"c{turn}_{n}", name, arguments) for n, name in enumerate(names))
        messages.append(Message("assistant", draw(st.one_of(st.just(""), ANY_TEXT)), calls))
        messages += [Message("tool", draw(ANY_TEXT), call_id=call.id) for call in calls]
        messages += [Message(draw(st.sampled_from(["note", "data"])), draw(ANY_TEXT)) for _ in range(turn % 3)]
    return tuple(messages)


@settings(max_examples=50)
@given(conversations())
def test_every_conversation_of_a_loop_is_accepted_by_providers(messages: tuple[Message, ...]) -> None:
    body = json.loads(encode({"model": "m", "messages": wire_messages(messages)}))
    assert lint(body, "openai") == []
    assert lint(body, "vllm_text") == []
    assert all("\x00" in m["content"] or m["content"] for m in body["messages"] if m["role"] != "assistant")


@settings(max_examples=50)
@given(conversations())
def test_a_longer_conversation_begins_with_the_same_bytes(messages: tuple[Message, ...]) -> None:
    whole = encode(wire_messages(messages))
    for end, message in enumerate(messages):
        if message.role == "assistant":
            assert whole.startswith(encode(wire_messages(messages[:end])).removesuffix(b"]"))


def test_notes_and_data_join_the_message_before_them() -> None:
    call = ToolCall("c", "ping", "{}")
    messages = (
        Message("user", "goal"),
        Message("data", "[s1] outcome"),
        Message("note", "be short"),
        Message("assistant", "", (call,)),
        Message("tool", "pong", call_id="c"),
        Message("note", "2 turns left"),
        Message("assistant", "half"),
        Message("note", "go on"),
        Message("user", "and more"),
    )
    assert [(m["role"], m["content"]) for m in wire_messages(messages)] == [
        ("user", "goal\n\n[s1] outcome\n\nbe short"),
        ("assistant", ""),
        ("tool", "pong\n\n2 turns left"),
        ("assistant", "half"),
        ("user", "go on\n\nand more"),
    ]


def test_a_user_message_after_a_tool_message_stays_its_own() -> None:
    messages = (Message("tool", "pong", call_id="c"), Message("user", "next"))
    assert [m["role"] for m in wire_messages(messages)] == ["tool", "user"]


def test_an_assistant_message_without_text_or_calls_is_left_out() -> None:
    messages = (Message("user", "a"), Message("assistant", "", extra={"reasoning_content": "hm"}))
    assert [m["role"] for m in wire_messages(messages)] == ["user"]


def test_a_servers_own_fields_go_back_and_malformed_calls_go_back_mended() -> None:
    calls = (ToolCall("a", "ping", '{"x": '), ToolCall("b", "browser.open 中", '{"ok": 1}'), ToolCall("c", "", "[1]"))
    [wire] = wire_messages([Message("assistant", "", calls, extra={"reasoning_content": "hm"})])
    assert wire["reasoning_content"] == "hm" and wire["content"] == ""
    assert [call["function"] for call in wire["tool_calls"]] == [
        {"name": "ping", "arguments": "{}"},
        {"name": "browser_open__", "arguments": '{"ok": 1}'},
        {"name": "unnamed", "arguments": "{}"},
    ]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (b'{"a": "\\ud83d"}', {"a": "\ufffd"}),
        (b'{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
        (b'["\\ud83d x", "\\ude00"]', ["\ufffd x", "\ufffd"]),
        (b'{"a": "line\nbreak\x01"}', {"a": "line\nbreak\x01"}),
        (b'"\xff"', "\ufffd"),
    ],
)
def test_json_is_read_as_servers_write_it(written: bytes, value: Any) -> None:
    assert decode(written) == value


@pytest.mark.parametrize("broken", [b"", b"{", b'{"a": 1} tail', b"[" * 100_000, b"<html>"])
def test_what_is_no_json_is_a_value_error(broken: bytes) -> None:
    with pytest.raises(ValueError):
        decode(broken)


@given(st.dictionaries(ANY_TEXT, st.one_of(ANY_TEXT, st.integers(-9, 9), st.lists(ANY_TEXT, max_size=2)), max_size=3))
def test_what_is_written_can_be_read_whatever_the_characters(value: Any) -> None:
    again = encode(decode(encode(value)))
    assert again == encode(value)
