"""JSON Schemas for servers that know only a part of JSON Schema. Pure.

What is lost here is not lost: arguments and results are checked against the whole schema when they come back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from orchestrator.messages import Json

_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose values are schemas by name."""
_VALUES = frozenset({"default", "const", "enum", "examples", "required", "description", "title"})
"""Keywords whose values are no schemas, whatever they look like."""
BASIC = frozenset({"type", "properties", "required", "items", "enum", "anyOf", "description"})
"""What every server knows."""

Schema = dict[str, Any]


def nodes(schema: Json) -> Iterator[Schema]:
    """Walk a schema and those within it."""
    if isinstance(schema, list):
        for item in schema:
            yield from nodes(item)
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword, value in schema.items():
        if keyword in _MAPS and isinstance(value, dict):
            for inner in value.values():
                yield from nodes(inner)
        elif keyword not in _VALUES:
            yield from nodes(value)


def has(schema: Json, refused: str) -> bool:
    """Whether a schema holds what a server refuses, in the words of `narrow`."""
    for node in nodes(schema):
        if refused == "type-list":
            found = isinstance(node.get("type"), list)
        elif refused == "enum-of-other":
            found = any(not isinstance(value, str) for value in node.get("enum", ()))
        elif refused == "all but basic":
            found = not node.keys() <= BASIC
        else:
            found = refused in node
        if found:
            return True
    return False


def narrow(schema: Mapping[str, Json], refused: Collection[str]) -> Schema:
    """Return a schema without what a server refuses, as close to its meaning as can be.

    Args:
        schema: Of an object; it stays as it is.
        refused: Keywords, and `type-list` (a `type` that is a list), `enum-of-other` (an `enum` of other things than
            text) and `all but basic`.
    """
    definitions = {**schema.get("definitions", {}), **schema.get("$defs", {})}
    if "all but basic" in refused:
        refused = {*refused, "$ref", "const", "oneOf", "allOf", "type-list"}
    if "if" in refused:
        refused = {*refused, "then", "else"}
    narrowed: Schema = _Narrowing(frozenset(refused), definitions).node(dict(schema), ())
    if {"$ref", "$defs"} & set(refused):
        narrowed.pop("$defs", None)
        narrowed.pop("definitions", None)
    return narrowed


class _Narrowing:
    def __init__(self, refused: frozenset[str], definitions: Mapping[str, Schema]) -> None:
        self.refused, self.definitions = refused, definitions
        self.inlines = bool(refused & {"$ref", "$defs"})

    def node(self, schema: Json, within: tuple[str, ...]) -> Any:
        """Narrow one schema; `within` are the definitions it stands in, so that a circle ends."""
        if not isinstance(schema, dict):
            return schema  # true, false
        if self.inlines:
            schema, within = self.inlined(schema, within)
            if "allOf" in self.refused and "allOf" in schema:
                parts = [self.inlined(part, within) for part in schema["allOf"]]
                schema = {**schema, "allOf": [part for part, _ in parts]}
                within = tuple(dict.fromkeys(name for names in (within, *(n for _, n in parts)) for name in names))
        for word, mend in _MENDS.items():
            if word in self.refused:
                schema = mend(schema)
        kept: Schema = {}
        for keyword, value in schema.items():
            if keyword in self.refused or ("all but basic" in self.refused and keyword not in BASIC):
                continue
            if keyword in _MAPS and isinstance(value, dict):
                kept[keyword] = {name: self.node(inner, within) for name, inner in value.items()}
            elif keyword in _VALUES:
                kept[keyword] = value
            elif isinstance(value, list):
                kept[keyword] = [self.node(item, within) for item in value]
            else:
                kept[keyword] = self.node(value, within)
        return kept

    def inlined(self, schema: Json, within: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
        """Put a definition in the place of what refers to it."""
        while isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
            name = schema["$ref"].rpartition("/")[2]
            rest = {k: v for k, v in schema.items() if k != "$ref"}
            if name in within:
                return {"type": "object", **rest}, within
            schema, within = {**self.definitions.get(name, {}), **rest}, (*within, name)
        return schema, within


def _const(schema: Schema) -> Schema:
    return {**schema, "enum": [schema["const"]]} if "const" in schema else schema


def _one_of(schema: Schema) -> Schema:
    return {**schema, "anyOf": schema["oneOf"]} if "oneOf" in schema and "anyOf" not in schema else schema


def _all_of(schema: Schema) -> Schema:
    """Merge the parts into one; of two that say the same keyword, the later wins."""
    merged = {k: v for k, v in schema.items() if k != "allOf"}
    for part in schema.get("allOf", ()):
        if isinstance(part, dict):
            both = {"properties": {**merged.get("properties", {}), **part.get("properties", {})}}
            required = [*merged.get("required", ()), *part.get("required", ())]
            merged = {**merged, **part, **(both if both["properties"] else {})}
            merged |= {"required": list(dict.fromkeys(required))} if required else {}
    return merged


def _type_list(schema: Schema) -> Schema:
    types = schema.get("type")
    if not isinstance(types, list) or "anyOf" in schema:
        return schema
    shared = {k: v for k, v in schema.items() if k in ("description", "default")}
    rest = {k: v for k, v in schema.items() if k not in ("description", "default", "type")}
    return {**shared, "anyOf": [{"type": "null"} if name == "null" else {**rest, "type": name} for name in types]}


def _enum_of_other(schema: Schema) -> Schema:
    """Say in words what may stand there where the server takes only text in an `enum`."""
    values = schema.get("enum")
    if not isinstance(values, list) or all(isinstance(value, str) for value in values):
        return schema
    texts = [value for value in values if isinstance(value, str)]
    if texts and all(isinstance(value, str) or value is None for value in values):
        return {**schema, "enum": texts}
    rest = {k: v for k, v in schema.items() if k != "enum"}
    words = f"One of: {', '.join(json.dumps(value, ensure_ascii=False) for value in values)}"
    return {**rest, "description": f"{rest['description']} {words}" if rest.get("description") else words}


_MENDS: Mapping[str, Callable[[Schema], Schema]] = {
    "allOf": _all_of,
    "oneOf": _one_of,
    "const": _const,
    "enum-of-other": _enum_of_other,
    "type-list": _type_list,
}
"""What is said in another way instead of being left out."""


def with_items(schema: Mapping[str, Json]) -> Mapping[str, Json]:
    """Say that an array may hold anything where a schema says nothing: many servers refuse one without `items`."""
    if all("items" in node for node in nodes(schema) if node.get("type") == "array"):
        return schema
    copy = json.loads(json.dumps(schema))
    for node in nodes(copy):
        if node.get("type") == "array":
            node.setdefault("items", {})
    return dict(copy)


def fits_strict(schema: Json) -> bool:
    """Whether a schema is one that servers can hold a model to: every object closed, every property required."""
    objects = [node for node in nodes(schema) if node.get("type") == "object" or "properties" in node]
    closed = all(
        node.get("additionalProperties") is False and set(node.get("required", ())) == set(node.get("properties", ()))
        for node in objects
    )
    loose = {"oneOf", "allOf", "not", "if", "patternProperties", "default"}
    return bool(objects) and closed and not any(loose & node.keys() for node in nodes(schema))
