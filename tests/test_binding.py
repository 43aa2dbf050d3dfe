import json
import re
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from itertools import count
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, model_validator

from orchestrator.binding import BindingError, bind, bind_object, parse_object
from orchestrator.fitting import Fitter
from orchestrator.tool import Tool, tool


class Point(BaseModel):
    x: int
    labels: list[str] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Span(BaseModel):
    low: int
    high: int

    @model_validator(mode="after")
    def _in_order(self) -> "Span":
        if self.low > self.high:
            raise ValueError("low must not be above high")
        return self


@tool
def send(
    to: str,
    day: date,
    count: Annotated[int, Field(ge=1)] = 1,
    region: Literal["华东", "华北"] | None = None,
    point: Point | None = None,
    tags: list[str] = [],  # noqa: B006
    matrix: list[list[int]] = [],  # noqa: B006
    urgent: bool = False,
    price: Decimal | None = None,
    until: date | None = None,
    either: int | str = "",
    pet: Cat | Dog | None = None,
    spans: list[Span] = [],  # noqa: B006
    table: dict[str, float] = {},  # noqa: B006
) -> None:
    """Send something."""


@tool
def delete(path: str = "everything") -> None:
    """Delete a file, and without a name all of them."""


def bound(**arguments: object) -> dict[str, Any]:
    return bind(json.dumps({"to": "a", "day": "2026-01-02", **arguments}), send)


def refusal(text: str, made: Tool = send) -> str:
    with pytest.raises(BindingError) as caught:
        bind(text, made)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "given", "taken"),
    [
        ("count", "123", 123),
        ("count", " 7 ", 7),
        ("count", "3.0", 3),
        ("count", 3.0, 3),
        ("urgent", "True", True),
        ("urgent", "false", False),
        ("to", 123, "123"),
        ("to", 1.5, "1.5"),
        ("to", "123", "123"),
        ("to", "null", "null"),
        ("to", "", ""),
        ("to", '{"a": 1}', '{"a": 1}'),
        ("to", " [1] ", " [1] "),
        ("either", "123", "123"),
        ("either", 123, 123),
        ("region", "null", None),
        ("region", "", None),
        ("until", "", None),
        ("until", "None", None),
        ("price", "", None),
        ("price", "1.10", Decimal("1.10")),
        ("point", '{"x": "3", "labels": "a"}', Point(x=3, labels=["a"])),
        ("point", {"x": "3", "labels": '["a", 2]'}, Point(x=3, labels=["a", "2"])),
        ("tags", "a", ["a"]),
        ("tags", '["a", "b"]', ["a", "b"]),
        ("tags", "a, b", ["a, b"]),
        ("matrix", 5, [[5]]),
        ("matrix", "[[1], [2, 3]]", [[1], [2, 3]]),
        ("matrix", [["1"], 2], [[1], [2]]),
        ("pet", '{"kind": "cat", "lives": "9"}', Cat(kind="cat", lives=9)),
        ("pet", {"kind": "dog", "name": 7}, Dog(kind="dog", name="7")),
        ("spans", {"low": 1, "high": "2"}, [Span(low=1, high=2)]),
        ("table", {"a": "1.5"}, {"a": 1.5}),
        ("tags", None, []),
        ("count", None, 1),
    ],
)
def test_a_value_in_another_form_is_taken_and_a_string_stays_where_one_is_allowed(
    name: str, given: object, taken: object
) -> None:
    """R32."""
    value = bound(**{name: given})[name]
    assert value == taken
    assert type(value) is type(taken)


def test_all_faults_are_told_at_once_with_places_types_and_nearest_names() -> None:
    """R24."""
    text = refusal(
        json.dumps(
            {
                "too": "a",
                "count": 0,
                "region": "华东区",
                "point": {"x": "q"},
                "matrix": [[1], ["x", True]],
                "urgent": 3,
                "spans": [{"low": 1, "high": 2}, {"low": 3, "high": 2}],
                "pet": {"kind": "cat", "name": "Tom"},
            }
        )
    )
    assert text.splitlines()[:-1] == [
        "send was not run: its arguments are wrong.",
        "- too: there is no such name; did you mean 'to'?",
        "- region: \"华东区\" is not allowed; did you mean '华东'?",
        '- point.x: expected integer, got "q"',
        '- matrix[1][0]: expected integer, got "x"',
        "- matrix[1][1]: expected integer, got true",
        "- urgent: expected boolean, got 3",
        "- pet.lives: missing, expected integer",
        "- to: missing, expected string",
        "- day: missing, expected string (date)",
        "- count: Input should be greater than or equal to 1",
        "- spans[1]: low must not be above high",
    ]


def test_a_refusal_ends_with_what_the_call_should_look_like() -> None:
    """R24."""
    assert refusal("{}").splitlines()[-1] == (
        'Call it like this: send(to: string, day: string (date), count: integer = 1, region?: "华东" | "华北" | null, '
        "point?: {x: integer, labels?: string[]} | null, tags?: string[], matrix?: integer[][], urgent?: boolean, "
        "price?: number | string (decimal) | null, until?: string (date) | null, either?: integer | string, "
        'pet?: {kind: "cat", lives: integer} | {kind: "dog", name: string} | null, '
        "spans?: {low: integer, high: integer}[], table?: object)"
    )


def test_a_thousand_faults_make_no_endless_text() -> None:
    text = refusal(json.dumps({f"unknown{'x' * 10_000}{n}": 1 for n in range(1000)}))
    assert "and 982 more" in text
    assert len(text) < 12_000


def test_a_refused_value_is_quoted_short() -> None:
    text = refusal(json.dumps({"to": "a", "day": "2026-01-02", "matrix": ["x" * 1_000_000]}))
    assert "(1000002 characters)" in text
    assert len(text) < 1500


@pytest.mark.parametrize("text", ["null", "[]", '"x"', "3", "true", '[{"path": "a"}]', '"[]"', '"null"'])
def test_arguments_that_are_no_object_are_refused(text: str) -> None:
    """B20: arguments that decode to null, a list or a number crash the dispatch."""
    assert "JSON object" in refusal(text, delete)


@pytest.mark.parametrize(
    "text", ["x" * 1_000_000, "[" * 1_000_000, '{"a":' * 200_000, '{"n": ' + "9" * 1_000_000 + "}"]
)
def test_a_megabyte_of_garbage_is_quoted_at_most_800_characters(text: str) -> None:
    """B20: a bad payload of 1 MB is echoed into the next prompt."""
    quoted = refusal(text, delete).partition("They were: ")[2].partition("\n")[0]
    assert 0 < len(quoted) <= 800


@pytest.mark.parametrize(
    "text",
    [
        '{"path": "a',
        '{"path": "a"',
        '{"path": ',
        '{"path": "a\\',
        '```json\n{"path": "a',
        '{"other": {"path": "a"}',
        '{other: 1, "inner": {"path": "a"}',
        '[{"path": "a"}, {"path"',
        '"path": "a", "inner": {"path": "b"}',
        'delete(path={"path": "a"}',
        "delete(path=" + '{"path": "a"})',
        '"{\\"path\\": \\"a',
        '<think>delete {"path": "a"}?',
    ],
    ids=count(),
)
def test_a_cut_argument_is_never_run(text: str) -> None:
    """B19: bad JSON arguments are replaced by `{}`, and the tool runs."""
    assert "delete was not run" in refusal(text, delete)


def test_a_cut_argument_is_told_to_be_cut_and_a_malformed_one_where() -> None:
    assert "cut off; send the whole call again" in refusal('{"path": "a', delete)
    malformed = refusal("{\"path\": 'a'}", delete)
    assert "Expecting value at character 10, before \"'a'}\"" in malformed


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"see \upcite{x}", r"see \upcite{x}"),
        (r"\frac{1}{2} \beta \bar{x}", r"\frac{1}{2} \beta \bar{x}"),
        (r"\theta \times \text{a} \nabla \rightarrow", r"\theta \times \text{a} \nabla \rightarrow"),
        (r"C:\Users\x", r"C:\Users\x"),
        (r"\d+\.\w*", r"\d+\.\w*"),
        (r"a\nb\tc\"d\\e\/f", 'a\nb\tc"d\\e/f'),
        (r"\\frac stays", r"\frac stays"),
        (r"\next line\ttab \r\n \f \b", "\next line\ttab \r\n \f \b"),
        (r"\u4e2d\ud83d\ude00", "中😀"),
        (r"\ud83d! \ude00", "\ufffd! \ufffd"),
        (r"\ud83d\u4e2d", "\ufffd中"),
        ("raw\nline\tbreak", "raw\nline\tbreak"),
        ("raw \udcff", "raw \ufffd"),
    ],
    ids=count(),
)
def test_stray_backslashes_stay_as_text_and_real_escapes_work(written: str, meant: str) -> None:
    r"""B02: LaTeX such as `\upcite{..}` in the JSON of a plan is an invalid escape, and `json.loads` dies."""
    assert parse_object(f'{{"title": "{written}"}}') == {"title": meant}


@pytest.mark.parametrize(
    "text",
    [
        '{"a": {"b": 1}}\n\nHope this helps {}',
        '{"a": {"b": 1}}{"a": 2}',
        '```json\n{"a": {"b": 1}}\n```',
        'Here is the plan:\n```\n{"a": {"b": 1}}\n```\nDone.',
        '<think>maybe {"a": 2}</think>\n{"a": {"b": 1}}',
        '\ufeff {"a": {"b": 1}}',
        json.dumps('{"a": {"b": 1}}'),
    ],
    ids=count(),
)
def test_the_first_whole_object_counts_and_what_stands_around_it_does_not(text: str) -> None:
    """B03: extra text after the JSON of a plan stops the run."""
    assert parse_object(text) == {"a": {"b": 1}}


def test_no_arguments_at_all_are_an_empty_object() -> None:
    assert parse_object(" ") == {}


def test_an_object_that_is_no_tool_call_goes_the_same_way() -> None:
    schema = Span.model_json_schema()
    assert bind_object('{"low": "1", "high": 2}', schema, Span.model_validate, name="answer") == Span(low=1, high=2)
    with pytest.raises(BindingError, match=r"answer was not run: its arguments are wrong.\n- low must not be above"):
        bind_object('{"low": 3, "high": 2}', schema, Span.model_validate, name="answer")


def test_any_value_error_of_a_validation_is_told() -> None:
    def refuse(value: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("not on Mondays")

    with pytest.raises(BindingError, match="- not on Mondays"):
        bind_object("{}", {"type": "object"}, refuse, name="x")


FOREIGN: dict[str, Any] = {
    "type": "object",
    "properties": {
        "node": {"$ref": "#/definitions/node"},
        "size": {"type": ["integer", "null"]},
        "mode": {"const": 2},
        "both": {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}}, {"required": ["a"]}]},
        "shape": {
            "oneOf": [
                {"properties": {"is": {"const": "circle"}, "r": {"type": "number"}}, "required": ["is", "r"]},
                {"properties": {"is": {"const": "square"}, "side": {"type": "number"}}, "required": ["is", "side"]},
            ]
        },
        "loop": {"$ref": "#/properties/loop"},
        "lost": {"$ref": "#/nowhere"},
        "free": True,
    },
    "patternProperties": {"^x-": {}},
    "additionalProperties": False,
    "definitions": {
        "node": {
            "type": "object",
            "properties": {
                "v": {"type": "integer"},
                "next": {"anyOf": [{"$ref": "#/definitions/node"}, {"type": "null"}]},
            },
            "required": ["v"],
        }
    },
}


@pytest.mark.parametrize(
    ("given", "taken", "fault"),
    [
        (
            {"node": {"v": "1", "next": '{"v": 2, "next": "null"}'}},
            {"node": {"v": 1, "next": {"v": 2, "next": None}}},
            "",
        ),
        ({"node": {"v": 1, "next": {"next": None}}}, None, "node.next.v: missing, expected integer"),
        ({"size": "null"}, {"size": None}, ""),
        ({"size": "12"}, {"size": 12}, ""),
        ({"size": "x"}, None, 'size: expected integer, got "x"'),
        ({"mode": "2"}, {"mode": 2}, ""),
        ({"both": '{"a": "1"}'}, {"both": {"a": 1}}, ""),
        ({"shape": {"is": "square", "side": "2"}}, {"shape": {"is": "square", "side": 2}}, ""),
        ({"shape": {"is": "square", "r": 1}}, None, "shape.side: missing, expected number"),
        ({"lost": [1], "free": "1", "x-y": 0}, {"lost": [1], "free": "1", "x-y": 0}, ""),
        ({"loop": 1}, {"loop": 1}, ""),
    ],
)
def test_schemas_of_other_makers_are_understood(given: object, taken: object, fault: str) -> None:
    """R32."""

    def fitted() -> object:
        return bind_object(json.dumps(given), FOREIGN, dict, name="foreign")

    if fault:
        with pytest.raises(BindingError, match=re.escape(fault)):
            fitted()
    else:
        assert fitted() == taken


# Strategies: a schema, a value that it allows, and the same value in another form.
Case = tuple[dict[str, Any], Any, Any]
LETTERS = st.text("abcxyz文", min_size=1).filter(lambda text: text not in ("null", "none"))


def leaf(kind: str, values: st.SearchStrategy[Any], form: Callable[[Any], Any]) -> st.SearchStrategy[Case]:
    return values.map(lambda value: ({"type": kind}, value, form(value)))


LEAVES = st.one_of(
    leaf("string", LETTERS, str),
    st.integers().map(lambda number: ({"type": "string"}, str(number), number)),
    leaf("integer", st.integers(), str),
    leaf("integer", st.integers(-(2**53), 2**53), float),
    leaf("number", st.floats(allow_nan=False, allow_infinity=False), repr),
    leaf("boolean", st.booleans(), str),
    st.sampled_from(["红", "蓝"]).map(lambda value: ({"enum": ["红", "蓝"]}, value, value)),
    st.sampled_from([1, 2]).map(lambda value: ({"enum": [1, 2, "x"]}, value, value)),
)


def takes_text(schema: dict[str, Any]) -> bool:
    return schema.get("type") == "string" or any(map(takes_text, schema.get("anyOf", ())))


def nullable(case: Case, absent: bool) -> Case:
    schema, value, form = case
    optional = {"anyOf": [schema, {"type": "null"}]}
    if absent:
        return optional, None, None if takes_text(schema) else "null"
    return optional, value, form


def listed(case: Case, times: int, encode: bool) -> Case:
    schema, value, form = case
    single = times == 1 and not encode and form is not None and not isinstance(form, str | list)
    forms = form if single else [form] * times
    return {"type": "array", "items": schema}, [value] * times, json.dumps(forms) if encode else forms


def named(cases: dict[str, Case], encode: bool) -> Case:
    properties = {name: schema for name, (schema, _, _) in cases.items()}
    schema = {"type": "object", "properties": properties, "required": [*cases], "additionalProperties": False}
    forms = {name: form for name, (_, _, form) in cases.items()}
    return schema, {name: value for name, (_, value, _) in cases.items()}, json.dumps(forms) if encode else forms


CASES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(nullable, inner, st.booleans()),
        st.builds(listed, inner, st.integers(0, 3), st.booleans()),
        st.builds(named, st.dictionaries(LETTERS, inner, max_size=3), st.booleans()),
    ),
    max_leaves=6,
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=8,
)


@given(CASES)
def test_a_valid_value_is_never_changed(case: Case) -> None:
    """R32."""
    schema, value, _ = case
    fitted, faults = Fitter(schema).fit(value, schema)
    assert (json.dumps(fitted), faults) == (json.dumps(value), [])


@given(CASES)
def test_another_form_of_a_value_is_fitted_to_the_same_value(case: Case) -> None:
    """R32."""
    schema, value, form = case
    fitted, faults = Fitter(schema).fit(form, schema)
    assert (json.dumps(fitted), faults) == (json.dumps(value), [])


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\b\f")), st.booleans())
def test_any_text_arrives_as_it_was_written(text: str, ascii_only: bool) -> None:
    """R32."""
    assert bound(to=text)["to"] == text
    assert parse_object(json.dumps({"a": text}, ensure_ascii=ascii_only)) == {"a": text}


@given(st.one_of(st.text(), JSON.map(json.dumps), st.text('{}[]":,\\nu0 abc')))
def test_no_text_raises_anything_but_a_binding_error(text: str) -> None:
    """B20: arguments that are no object crash the dispatch."""
    for made in (send, delete):
        try:
            bind(text, made)
        except BindingError as error:
            assert "Call it like this" in str(error)


@given(st.dictionaries(st.text(), JSON, min_size=1, max_size=3), st.data())
def test_no_beginning_of_an_object_is_taken_for_a_whole_one(value: dict[str, Any], data: st.DataObject) -> None:
    """B19: bad JSON arguments are replaced by `{}`, and the tool runs."""
    whole = json.dumps(value, ensure_ascii=False)
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(BindingError):
        parse_object(data.draw(st.sampled_from(["", "```json\n", "Here it is: "])) + whole[:cut])


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(?=a)(a+)+$"], ids=["plain", "looking around"])
def test_a_pattern_of_a_server_cannot_stop_the_program(pattern: str) -> None:
    """Python's own search takes longer than the world is old."""
    foreign = {"properties": {"x": {"type": "string", "pattern": pattern}}}
    given, faults = Fitter(foreign).fit({"x": "a" * 99 + "!"}, foreign)
    assert given == {"x": "a" * 99 + "!"} and bool(faults) == ("?=" not in pattern)
    named = {"type": "object", "patternProperties": {pattern: {}}, "additionalProperties": False}
    assert bool(Fitter(named).fit({"a" * 99 + "!": 1}, named)[1]) == ("?=" not in pattern)
