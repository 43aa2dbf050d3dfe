"""Fits a JSON value to a JSON Schema: mends what says the same in another form, and names what does not fit. Pure.

A string is never changed where the schema allows a string. Bounds and formats are left to who validates afterwards.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from orchestrator.describing import Describer, Schema, as_json, quote
from orchestrator.errors import nearest

if TYPE_CHECKING:
    from orchestrator.messages import Json

Place = tuple[str | int, ...]
"""The way from the whole to a part: names and indices."""

_NOTHING = {"", "null", "none"}
"""What models write for null."""
_NEVER_EMPTY = {"date", "date-time", "time", "duration", "decimal", "uuid", "email", "uri"}
"""Formats of which no text in `_NOTHING` is one."""
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that does not fit."""

    place: Place
    text: str

    def __str__(self) -> str:
        return f"{place_text(self.place)}: {self.text}" if self.place else self.text


Fitted = tuple["Json", list[Fault]]


@dataclass(frozen=True, slots=True)
class Fitter(Describer):
    """Fits values to the parts of one schema.

    Args:
        root: The whole schema, which `$ref` starts from.
        loads: Reads JSON that stands in a string; raises `ValueError`.
    """

    loads: Callable[[str], Json] = json.loads

    def fit(self, value: Json, schema: Schema, place: Place = (), *, lenient: bool = True) -> Fitted:
        """Return the value in the form that the schema asks for, and all that does not fit."""
        schema = self.resolve(schema)
        faults: list[Fault] = []
        if options := schema.get("anyOf") or schema.get("oneOf"):
            value, faults = self._one_of(value, options, place, lenient)
        for part in schema.get("allOf", ()):
            value, more = self.fit(value, part, place, lenient=lenient)
            faults = faults + more
        if faults:
            return value, faults
        if "const" in schema or "enum" in schema:
            return self._choose(value, schema.get("enum", [schema.get("const")]), place, lenient)
        kind = schema.get("type") or ("object" if "properties" in schema else None)
        if isinstance(kind, list):
            return self._one_of(value, [{**schema, "type": one} for one in kind], place, lenient)
        if not isinstance(kind, str) or kind not in _KINDS:
            return value, []
        if lenient:
            value = self._as(value, kind)
        if kind == "array" and lenient and not isinstance(value, list):
            return self._single(value, schema, place)
        if not _is(value, kind) or (kind == "string" and not _may_be(value, schema)):
            return value, [self._expected(value, schema, place)]
        if kind == "array":
            return self._array(value, schema, place, lenient)
        return self._object(value, schema, place, lenient) if kind == "object" else (value, [])

    def _one_of(self, value: Json, options: Sequence[Schema], place: Place, lenient: bool) -> Fitted:
        """Fit the first option that takes the value as it is, else the first that takes it in another form."""
        resolved = [self.resolve(option) for option in options]
        resolved = [option for option in resolved if _tags_agree(value, option)] or resolved
        tries: list[Fitted] = []
        for forgiving in (False, True)[: 1 + lenient]:
            tries = []
            for option in resolved:
                tries.append(self.fit(value, option, place, lenient=forgiving))
                if not tries[-1][1]:
                    return tries[-1]
        inside = [faults for _, faults in tries if any(fault.place != place for fault in faults)]
        if inside:  # the right kind of value, with something wrong in it
            return value, min(inside, key=len)
        real = [faults for option, (_, faults) in zip(resolved, tries, strict=True) if option.get("type") != "null"]
        return value, real[0] if len(real) == 1 else [self._expected(value, {"anyOf": options}, place)]

    def _choose(self, value: Json, allowed: Sequence[Json], place: Place, lenient: bool) -> Fitted:
        for option in allowed:
            if _same(value, option):
                return option, []
        for option in allowed if lenient else ():
            kind = next(kind for kind in _KINDS if _is(option, kind))
            if _same(self._as(value, kind), option):
                return option, []
        texts = [option if isinstance(option, str) else as_json(option) for option in allowed]
        said = value if isinstance(value, str) else as_json(value)
        return value, [Fault(place, f"{quote(as_json(value), 100)} is not allowed{nearest(said[:100], texts)}")]

    def _as(self, value: Json, kind: str) -> Json:
        """Return what a value says as another JSON type; itself if it says nothing there."""
        if _is(value, kind):
            return value
        if not isinstance(value, str):
            if kind == "integer" and isinstance(value, float) and value.is_integer():
                return int(value)
            return json.dumps(value) if kind == "string" and isinstance(value, (bool, int, float)) else value
        text = value.strip()
        if kind == "null":
            return None if text.lower() in _NOTHING else value
        if kind == "boolean":
            return {"true": True, "false": False}.get(text.lower(), value)
        if kind in ("integer", "number"):
            return _number(text, kind) if _NUMBER.fullmatch(text) else value
        try:
            read = self.loads(text) if text[:1] in ("{", "[") else value
        except ValueError:
            return value
        return read if _is(read, kind) else value

    def _single(self, value: Json, schema: Mapping[str, Json], place: Place) -> Fitted:
        """Take a value for the list of it."""
        nothing = value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING)
        if not nothing and "prefixItems" not in schema:
            item, faults = self.fit(value, schema.get("items", True), (*place, 0))
            if not faults:
                return [item], []
        return value, [self._expected(value, schema, place)]

    def _array(self, value: list[Json], schema: Mapping[str, Json], place: Place, lenient: bool) -> Fitted:
        head = schema.get("prefixItems", [])
        items, faults = [], []
        for n, given in enumerate(value):
            of = head[n] if n < len(head) else schema.get("items", True)
            item, more = self.fit(given, of, (*place, n), lenient=lenient)
            items.append(item)
            faults += more
        return items, faults

    def _object(self, value: dict[str, Json], schema: Mapping[str, Json], place: Place, lenient: bool) -> Fitted:
        known, required = schema.get("properties", {}), schema.get("required", ())
        other = schema.get("additionalProperties", True)
        members: dict[str, Json] = {}
        faults: list[Fault] = []
        for name, given in value.items():
            if name not in known and other is False and not _fits_any(name, schema):
                faults.append(Fault((*place, name), f"there is no such name{_hint(name, known, value)}"))
                continue
            member, more = self.fit(given, known.get(name, other), (*place, name), lenient=lenient)
            if more and given is None and lenient and name not in required:
                continue  # null for what may be left out: it is left out
            members[name] = member
            faults += more
        for name in required:
            if name not in value:
                faults.append(Fault((*place, name), f"missing, expected {self.describe(known.get(name, True))}"))
        return members, faults

    def _expected(self, value: Json, schema: Schema, place: Place) -> Fault:
        pattern = self.resolve(schema).get("pattern")
        form = f" like {pattern}" if pattern and isinstance(value, str) else ""
        return Fault(place, f"expected {quote(self.describe(schema), 200)}{form}, got {quote(as_json(value), 100)}")


def place_text(place: Place) -> str:
    """Return a place as `subtasks[0].id`."""
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{quote(step, 60)}" for step in place)
    return steps.removeprefix(".")


def _is(value: Json, kind: str) -> bool:
    return isinstance(value, _KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _may_be(text: str, schema: Mapping[str, Json]) -> bool:
    if schema.get("format") in _NEVER_EMPTY and text.strip().lower() in _NOTHING:
        return False
    return "pattern" not in schema or matches(schema["pattern"], text)


def _fits_any(name: str, schema: Mapping[str, Json]) -> bool:
    return any(matches(pattern, name) for pattern in schema.get("patternProperties", ()))


def matches(pattern: str, text: str) -> bool:
    """Whether a pattern is found in a text, in linear time: models and MCP servers write patterns, too.

    Python's own search may take exponential time, and stop every run. A pattern that only it could read, one that looks
    around or back, holds nobody to anything.
    """
    return _matcher(pattern)(text)


@lru_cache(maxsize=256)
def _matcher(pattern: str) -> Callable[[str], bool]:
    from pydantic_core import SchemaError, SchemaValidator
    from pydantic_core.core_schema import str_schema

    try:
        return SchemaValidator(str_schema(pattern=pattern)).isinstance_python
    except SchemaError:
        return lambda text: True


def _number(text: str, kind: str) -> Json:
    number = float(text)
    if kind == "number" and not re.fullmatch(r"[+-]?[0-9]+", text):
        return number if math.isfinite(number) else text
    if re.fullmatch(r"[+-]?[0-9]{1,4000}", text):
        return int(text)
    return int(number) if math.isfinite(number) and number.is_integer() else text


def _same(one: Json, other: Json) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _tags_agree(value: Json, option: Mapping[str, Json]) -> bool:
    """Whether the constants of an object that tell it from the others are those of the value."""
    if not isinstance(value, dict):
        return True
    members = {k: of for k, of in option.get("properties", {}).items() if isinstance(of, Mapping) and "const" in of}
    return all(_same(value[k], of["const"]) for k, of in members.items() if k in value)


def _hint(name: str, known: Mapping[str, Json], given: Mapping[str, Json]) -> str:
    return nearest(name[:100], [one for one in known if one not in given] or known) or "; none is taken"
