from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field

from orchestrator.models.narrow import BASIC, fits_strict, has, narrow, nodes, with_items
from orchestrator.models.presets import PRESETS
from orchestrator.testing import lint

GEMINI = {word.removeprefix("schema.") for word in PRESETS["gemini"].refused if word.startswith("schema.")}


def walk(schema: Any) -> Iterator[str]:
    for node in nodes(schema):
        yield from node


WILD: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "oneOf": {"oneOf": [{"type": "string"}, {"type": "integer"}]},  # a parameter may be called like a keyword
        "kind": {"const": "sum", "description": "What."},
        "level": {"enum": [1, 2, 3], "type": "integer", "description": "How much."},
        "mode": {"enum": ["a", "b", None]},
        "name": {"type": ["string", "null"], "minLength": 1, "description": "Who."},
        "count": {"type": "integer", "exclusiveMinimum": 0, "multipleOf": 5},
        "both": {"allOf": [{"$ref": "#/$defs/point"}, {"properties": {"z": {"type": "number"}}, "required": ["z"]}]},
        "tree": {"$ref": "#/$defs/node"},
        "map": {"type": "object", "patternProperties": {"^x": {"type": "string"}}},
        "list": {"type": "array"},
        "if": {"if": {"type": "string"}, "then": {"minLength": 2}, "else": {}, "not": {"type": "null"}},
        "any": True,
    },
    "required": ["kind"],
    "$defs": {
        "point": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
        "node": {"type": "object", "properties": {"below": {"type": "array", "items": {"$ref": "#/$defs/node"}}}},
    },
}


def test_a_schema_of_any_kind_becomes_one_that_gemini_takes() -> None:
    narrowed = narrow(with_items(WILD), GEMINI)
    tool = {"type": "function", "function": {"name": "f", "parameters": narrowed}}
    assert lint({"messages": [{"role": "user", "content": "x"}], "tools": [tool]}, "gemini") == []
    Draft202012Validator.check_schema(narrowed)
    assert narrowed["properties"].keys() == WILD["properties"].keys() and narrowed["required"] == ["kind"]


def test_what_is_refused_is_said_in_another_way_where_there_is_one() -> None:
    said = narrow(WILD, GEMINI)["properties"]
    assert said["oneOf"] == {"anyOf": [{"type": "string"}, {"type": "integer"}]}
    assert said["kind"] == {"enum": ["sum"], "description": "What."}
    assert said["level"] == {"type": "integer", "description": "How much. One of: 1, 2, 3"}
    assert said["mode"] == {"enum": ["a", "b"]}
    assert said["name"] == {"description": "Who.", "anyOf": [{"type": "string", "minLength": 1}, {"type": "null"}]}
    assert said["count"] == {"type": "integer"}
    assert said["both"] == {
        "type": "object",
        "properties": {"x": {"type": "number"}, "z": {"type": "number"}},
        "required": ["x", "z"],
    }
    assert said["tree"]["properties"]["below"]["items"] == {"type": "object"}  # a circle ends
    assert said["if"] == {}


def test_only_what_is_refused_changes_and_the_schema_itself_never_does() -> None:
    before = repr(WILD)
    narrowed = narrow(WILD, {"oneOf"})
    assert narrowed["$defs"] == WILD["$defs"] and narrowed["properties"]["both"] == WILD["properties"]["both"]
    assert not has(narrowed, "oneOf") and has(WILD, "oneOf") and repr(WILD) == before
    assert "oneOf" in narrowed["properties"]


def test_all_but_basic_leaves_what_every_server_knows() -> None:
    narrowed = narrow(WILD, {"all but basic"})
    assert set(walk(narrowed)) <= BASIC and not has(narrowed, "all but basic") and not has(narrowed, "type-list")
    assert narrowed["properties"].keys() == WILD["properties"].keys()


@pytest.mark.parametrize("words", [GEMINI, {"all but basic"}, {"$ref"}])
def test_what_fits_the_schema_fits_the_narrowed_one(words: set[str]) -> None:
    """A model that does as it is told must not be told something that is wrong."""
    value = {
        "oneOf": 3, "kind": "sum", "level": 2, "name": None, "count": 5, "both": {"x": 1, "z": 2},
        "tree": {"below": [{"below": []}]}, "map": {"x1": "a"}, "list": [1], "if": "ab",
    }  # fmt: skip
    assert Draft202012Validator(WILD).is_valid(value)
    assert Draft202012Validator(narrow(with_items(WILD), words)).is_valid(value)


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    region: str
    rows: list[int]


class Loose(BaseModel):
    model_config = ConfigDict(extra="forbid")
    region: str = Field("east", description="Where.")


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (Closed.model_json_schema(), True),
        (Loose.model_json_schema(), False),
        ({"type": "object", "properties": {"a": {}}, "required": ["a"]}, False),
        ({"type": "array", "items": {"type": "string"}}, False),
    ],
)
def test_a_model_is_held_only_to_a_schema_that_is_closed(schema: dict[str, Any], strict: bool) -> None:
    assert fits_strict(schema) is strict
