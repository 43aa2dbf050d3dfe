import json
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.binding import BindingError, parse_object
from orchestrator.models.disguise import ThinkFilter, salvage, split_think

OFFERED = ("read_file", "delegate", "write_file")


@pytest.mark.parametrize(
    "written",
    [
        '{"name": "read_file", "arguments": {"path": "a.txt"}}',
        '{"name": "read_file", "parameters": {"path": "a.txt"}}',
        '{"name": "functions.read_file", "arguments": "{\\"path\\": \\"a.txt\\"}"}',
        '{"type": "function", "function": {"name": "read_file", "arguments": {"path": "a.txt"}}}',
        '{{"name": "read_file", "arguments": {"path": "a.txt"}}}',
        '<tool_call>\n{{"name": "read_file", "arguments": {"path": "a.txt"}}\n}\n</tool_call>',
        '```json\n{"name": "read_file", "arguments": {"path": "a.txt"}}\n```',
        '<tool_call>\n{"name": "read_file", "arguments": {"path": "a.txt"}}\n</tool_call>',
        '<tool_call>{"name": "read_file", "arguments": {"path": "a.txt"}}',
        '[TOOL_CALLS][{"name": "read_file", "arguments": {"path": "a.txt"}}]',
        'read_file {"path": "a.txt"}',
        '`read_file {"path": "a.txt"}`',
        'read_file: {"path": "a.txt"}',
        'functions.read_file: {"path": "a.txt"}',
        'functions.read_file:0 {"path": "a.txt"}',
        '<|tool_call_begin|>functions.read_file:0<|tool_call_argument_begin|>{"path": "a.txt"}<|tool_call_end|>',
        '<function=read_file>{"path": "a.txt"}</function>',
        '<function=read_file{"path": "a.txt"}</function>',
        'read_file\n```json\n{"path": "a.txt"}\n```',
        'read_file(path="a.txt")',
        "```python\nread_file(path='a.txt')\n```",
        "read_file(\n    path='a.txt',\n)",
        "<tool_call>\n<function=read_file>\n<parameter=path>\na.txt\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>read_file\n<arg_key>path</arg_key>\n<arg_value>a.txt</arg_value>\n</tool_call>",
        '<tool_call>{"name": "read_file", "arguments": {"path": "a.txt"}</tool_call>',
    ],
)
def test_a_call_written_as_text_is_a_call(written: str) -> None:
    rest, calls = salvage(written, OFFERED)
    assert [(c.name, json.loads(c.arguments)) for c in calls] == [("read_file", {"path": "a.txt"})]
    assert rest == ""


def test_text_around_a_call_stays_and_several_calls_are_found_in_order() -> None:
    written = (
        'First I look.\n<tool_call>\n{"name": "read_file", "arguments": {"path": "a"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "write_file", "arguments": {"path": "b", "text": "}"}}\n</tool_call>\nThen 完成。'
    )
    rest, calls = salvage(written, OFFERED)
    assert [c.name for c in calls] == ["read_file", "write_file"]
    assert rest.split("\n")[0] == "First I look." and rest.endswith("Then 完成。") and "tool_call" not in rest


def test_brackets_in_strings_do_not_end_a_call() -> None:
    _, calls = salvage("write_file(path='a', text='f(x) :-) ]')", OFFERED)
    assert json.loads(calls[0].arguments) == {"path": "a", "text": "f(x) :-) ]"}


@pytest.mark.parametrize(
    "answer",
    [
        '{"name": "Anna", "arguments": {"x": 1}}',
        '{"name": "read_file", "size": 3}',
        '{"ok": true, "tool": "read_file"}',
        '{{"ok": true, "tool": "read_file"}}',
        'You can call it as read_file {"path": "a"} yourself.',
        "`read_file()` reads a file.",
        "read_file(the first one) was used",
        "read_file(a, b)",
        "read_file(path=name)",
        'read_file {"path": "a',
        'read_file(path="a',
        "<tool_call>unknown\n<arg_key>path</arg_key>\n<arg_value>a.txt</arg_value>\n</tool_call>",
        "read_file " + "[" * 50_000,
        "read_file(" * 5_000,
        "read_file\n" + "{\n" * 5_000,
        "The total is 42.",
        "",
    ],
)
def test_an_answer_stays_an_answer_and_a_cut_call_is_no_call(answer: str) -> None:
    assert salvage(answer, OFFERED) == (answer, ())


@pytest.mark.parametrize(
    "written",
    [
        '<tool_call>\n{"name": "read_file", "arguments": {"path": "a.t',
        '```json\n{"name": "write_file", "arguments": {"text": "he said "hi""}}\n```',
        '{"name": "delegate", "arguments": {"subtasks": [{"id": "a"',
        "<tool_call>\n<function=write_file>\n<parameter=text>\nhalf of",
    ],
)
def test_what_names_itself_a_call_but_is_none_is_neither_run_nor_an_answer(written: str) -> None:
    """Q8: its arguments stay malformed, and the model is told so."""
    rest, [call] = salvage(written, OFFERED)
    assert call.name in OFFERED and rest == ""
    with pytest.raises(BindingError):
        parse_object(call.arguments)


def test_parameters_in_tags_keep_their_lines_and_their_json() -> None:
    text = "<function=write_file>\n<parameter=text>\none\n\ntwo\n</parameter>\n<parameter=rows>\n[1, 2]\n</parameter>\n"
    rest, [call] = salvage(f"I write.\n{text}</function>\nDone.", OFFERED)
    assert json.loads(call.arguments) == {"text": "one\n\ntwo", "rows": [1, 2]}
    assert rest.split() == ["I", "write.", "Done."]


@given(st.text())
@example("\r\x80")
def test_any_text_can_be_looked_at(text: str) -> None:
    assert salvage(f"read_file({text}", OFFERED) is not None
    assert salvage(f"delegate {text}", OFFERED) is not None


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("<think>hm</think>\nyes", ("hm", "yes")),
        ("\n<think>\nhm\n</think>yes", ("hm", "yes")),
        ("<think>never ends", ("never ends", "")),
        ("the tag <think>is</think> later", ("", "the tag <think>is</think> later")),
        ("", ("", "")),
    ],
)
def test_a_leading_think_block_is_reasoning(content: str, expected: tuple[str, str]) -> None:
    assert split_think(content) == expected


@given(
    st.sampled_from(
        ["<think>a<b</think>\n\nc</think>d", "<think>open <", "<thin", "plain < text", "  <think></think>x"]
    ),
    st.lists(st.integers(0, 30)),
)
def test_a_streamed_think_block_is_sorted_as_the_whole_would_be(content: str, cuts: list[int]) -> None:
    edges = [0, *sorted(min(c, len(content)) for c in cuts), len(content)]
    filter_ = ThinkFilter()
    deltas = [d for a, b in pairwise(edges) for d in filter_.feed(content[a:b])]
    reasoning, text = split_think(content)
    told = "".join(d.text for d in deltas if d.kind == "text")
    assert text.startswith(told) and len(text) - len(told) < len("<think>")
    assert reasoning.startswith("".join(d.text for d in deltas if d.kind == "reasoning").strip())
    assert all(d.text for d in deltas)


@pytest.mark.parametrize(
    "text",
    [
        "read_file(" * 3 + "\n" * 200_000,
        "read_file" + " " * 200_000,
        "read_file({\n" * 100_000,
        "read_file('" + "x" * 10**6,
    ],
    ids=["empty lines", "spaces", "open brackets", "an open string"],
)
def test_text_that_goes_on_and_on_is_looked_through_once(text: str) -> None:
    """Each took seconds, or hours, in which no other run went on."""
    assert salvage(text, OFFERED) == (text, ())
