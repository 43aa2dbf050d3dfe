import json
import re
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.messages import Image, Message, ToolCall, ToolSpec
from orchestrator.models.quirks import shape_messages
from orchestrator.models.wire import Transcript, decode, encode, wire_messages, wire_name, wire_tools
from orchestrator.testing import lint

MESSAGE_WORDS = ["system", "long ids", "user after tool", "empty content", "no reasoning_content"]
"""What servers refuse about messages."""
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


@settings(max_examples=50)
@given(conversations(), st.sets(st.sampled_from(MESSAGE_WORDS)))
def test_a_conversation_written_as_it_grows_is_the_one_written_at_once(
    messages: tuple[Message, ...], refused: set[str]
) -> None:
    def shape(part: Sequence[Message]) -> list[dict[str, Any]]:
        return shape_messages(wire_messages(part), refused)

    transcript = Transcript()
    others = (Message("user", "another goal"), *messages[2:])
    for grown in (*(messages[:end] for end in range(1, len(messages) + 1)), others, messages):
        written = json.loads(orjson.dumps(transcript.write(grown, shape, frozenset(refused))))
        assert written == json.loads(encode(shape(grown)))
        assert transcript.ids >= {call.id for message in grown for call in message.calls}


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


def test_malformed_calls_go_back_mended() -> None:
    calls = (ToolCall("a", "ping", '{"x": '), ToolCall("b", "browser.open 中", '{"ok": 1}'), ToolCall("c", "", "[1]"))
    [wire] = wire_messages([Message("assistant", "", calls)])
    assert wire["content"] == ""
    assert [call["function"] for call in wire["tool_calls"]] == [
        {"name": "ping", "arguments": "{}"},
        {"name": wire_name("browser.open 中"), "arguments": '{"ok": 1}'},
        {"name": wire_name(""), "arguments": "{}"},
    ]


def test_a_servers_own_fields_go_back_only_to_where_they_came_from() -> None:
    call = ToolCall("a", "ping", "{}", extra={"extra_content": {"signature": "x"}})
    said = Message("assistant", "", (call,), extra={"reasoning_content": "hm"}, origin="m at one")
    [home] = wire_messages([said], origin="m at one")
    [elsewhere] = wire_messages([said], origin="m at other")
    assert home["reasoning_content"] == "hm" and home["tool_calls"][0]["extra_content"] == {"signature": "x"}
    assert elsewhere.keys() == {"role", "content", "tool_calls"}
    assert elsewhere["tool_calls"][0].keys() == {"id", "type", "function"}


# names


@given(st.lists(ANY_TEXT, unique=True, max_size=8))
def test_names_on_the_wire_are_allowed_and_stay_different(names: list[str]) -> None:
    """Q12: any name becomes one that the protocol allows, and no two become the same."""
    names += [wire_name(name) for name in names if wire_name(name) not in names]  # what looks like a made one, too
    made = [wire_name(name) for name in names]
    assert len(set(made)) == len(names)
    assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", name) for name in made)
    assert made == [wire_name(name) for name in names]


@pytest.mark.parametrize("name", ["read_file", "get-weather", "A1", "x" * 64])
def test_an_allowed_name_stays_as_it_is(name: str) -> None:
    assert wire_name(name) == name


# images

SHOT = Image("shots/页面.png", "image/png", "aGVsbG8=")
SHOWN = [
    {"type": "text", "text": "[shots/页面.png]"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}},
]


def looked(count: int = 2) -> list[Message]:
    calls = tuple(ToolCall(f"c{n}", "look", "{}") for n in range(count))
    tools = [Message("tool", f"seen {n}", call_id=call.id, images=(SHOT,)) for n, call in enumerate(calls)]
    return [Message("user", "look"), Message("assistant", "", calls), *tools]


def test_images_of_tools_follow_in_a_user_message_after_all_tool_messages_of_the_turn() -> None:
    """Q13."""
    messages = [*looked(), Message("note", "2 turns left"), Message("assistant", "ok"), Message("user", "and?")]
    wire = wire_messages(messages, vision=True)
    assert [m["role"] for m in wire] == ["user", "assistant", "tool", "tool", "user", "assistant", "user"]
    assert wire[3]["content"] == "seen 1\n\n2 turns left"
    assert wire[4]["content"] == SHOWN * 2
    for profile in ("openai", "vllm_text"):
        assert lint({"messages": wire}, profile) == []


def test_what_a_user_says_after_images_joins_them_and_his_own_images_follow_his_words() -> None:
    messages = [*looked(1), Message("user", "well?", images=(SHOT,)), Message("user", "quick")]
    wire = wire_messages(messages, vision=True)
    assert [m["role"] for m in wire] == ["user", "assistant", "tool", "user"]
    text = [{"type": "text", "text": "well?"}, *SHOWN, {"type": "text", "text": "quick"}]
    assert wire[3]["content"] == [*SHOWN, *text]
    assert wire_messages([Message("user", "this", images=(SHOT,))], vision=True)[0]["content"] == [
        {"type": "text", "text": "this"},
        *SHOWN,
    ]


def test_a_model_that_cannot_see_gets_the_path_instead() -> None:
    """Q13."""
    wire = wire_messages(looked(1))
    assert [m["role"] for m in wire] == ["user", "assistant", "tool"]
    assert "shots/页面.png" in wire[2]["content"] and "aGVsbG8=" not in json.dumps(wire)


def test_an_array_that_may_hold_anything_says_so() -> None:
    parameters = {"type": "object", "properties": {"rows": {"type": "array"}, "items": {"type": "string"}}}
    [tool] = wire_tools([ToolSpec("f", "", parameters)])
    assert lint({"messages": [{"role": "user", "content": "x"}], "tools": [tool]}, "gemini") == []
    assert parameters["properties"]["rows"] == {"type": "array"}  # type: ignore[index]


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
