"""Structured results: the tool that hands one in, and checks against a JSON Schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from orchestrator.binding import parse_object
from orchestrator.errors import ToolError, nearest
from orchestrator.fitting import Fitter, matches
from orchestrator.messages import Json
from orchestrator.models.narrow import nodes
from orchestrator.tool import Tool, ToolContext, ToolResult

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError as JSONSchemaError

RESULT_TOOL = "submit_result"
M = TypeVar("M", bound=BaseModel)
_SAYS_SOMETHING = {"$ref", "allOf", "anyOf", "const", "enum", "items", "oneOf", "properties", "type"}
_FENCED = re.compile(r"\s*```\w*\n(.*)```\s*", re.DOTALL)
_TOLD = 10
"""Faults of a result that are told at once."""


def problems(value: Json, schema: Mapping[str, Json]) -> list[str]:
    """Return a sentence, as `$.place: what is wrong`, for all that a JSON Schema does not allow in a value."""
    from jsonschema.validators import validator_for
    from referencing import Registry

    found: dict[str, None] = {}
    registry: Registry[Any] = Registry()  # its own would ask the network for what a `$ref` names, past every guard
    for error in _in_linear_time(validator_for(schema))(schema, registry=registry).iter_errors(value):
        part: Any = error.schema
        given: Any = error.instance
        if error.validator == "required" and isinstance(given, dict):
            missing = [name for name in part["required"] if name not in given]
            found |= {f"{error.json_path}.{name} is required": None for name in missing}
        elif error.validator == "additionalProperties" and "patternProperties" not in part:
            known = part.get("properties", {})
            unknown = [name for name in given if name not in known]
            found |= {f"{error.json_path}.{name} is unknown{nearest(name, known)}": None for name in unknown}
        else:
            found[f"{error.json_path}: {error.message}"[:300]] = None
    return list(found)


@cache
def _in_linear_time(validator: Any) -> Any:
    """Return a validator class of jsonschema with another `pattern`."""
    from jsonschema.validators import extend

    return extend(validator, {"pattern": _pattern_faults})


def _pattern_faults(validator: object, pattern: str, value: Json, schema: object) -> Iterator[JSONSchemaError]:
    from jsonschema.exceptions import ValidationError

    if isinstance(value, str) and not matches(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def wrong_schema(schema: Mapping[str, Json]) -> tuple[str, tuple[str | int, ...]] | None:
    """Say why something is no JSON Schema that a result could be held to, and where in it; None: it is one."""
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for

    if not schema.keys() & _SAYS_SOMETHING:
        return f"it has none of {', '.join(sorted(_SAYS_SOMETHING))}", ()
    try:
        validator_for(schema).check_schema(dict(schema))
    except SchemaError as error:
        return f"{error.json_path}: {error.message}"[:300], tuple(error.absolute_path)
    return _dangling(schema)


def _dangling(schema: Mapping[str, Json]) -> tuple[str, tuple[()]] | None:
    """Name a reference to what is not in the schema."""
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    known: Registry[Any] = Registry().with_resource("", DRAFT202012.create_resource(schema))
    for reference in {str(node["$ref"]) for node in nodes(schema) if "$ref" in node}:
        try:
            known.resolver().lookup(reference)
        except Unresolvable:
            return f"$ref {reference!r} names nothing in it", ()
    return None


def as_model(value: Json, model: type[M]) -> M:
    """Return a value of JSON as a pydantic model, whose validators may ask for more than its schema says.

    Raises:
        ToolError: It does not fit; tells what is wrong.
    """
    try:
        return model.model_validate_json(json.dumps(value))  # a strict model takes a date as text from JSON only
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False, include_context=False)
        raise ToolError(
            "; ".join(f"{'.'.join(map(str, ('$', *each['loc'])))}: {each['msg']}" for each in faults)
        ) from None


def result_tool(schema: Mapping[str, Json], description: str, model: type[BaseModel] | None = None) -> Tool:
    """Return the tool whose valid call ends a loop with a structured result.

    Args:
        schema: Of the result.
        description: What the model reads.
        model: The pydantic model that the schema is of.
    """
    wrapped = not _is_object(schema)

    async def submit(arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        value = _checked(arguments["result"] if wrapped else arguments, schema, model)
        return ToolResult("accepted", value=value, final=True)

    return Tool(
        name=RESULT_TOOL,
        description=description,
        parameters=result_schema(schema),
        invoke=submit,
        validate=dict,
        effect="idempotent",
        timeout=None,
        counted=False,
    )


def result_schema(schema: Mapping[str, Json]) -> dict[str, Json]:
    """Return the schema that a result has on the wire; one that is no object is wrapped as `{"result": …}`."""
    return {**schema, "type": "object"} if _is_object(schema) else _wrapped(schema)


def read_result(
    text: str, schema: Mapping[str, Json], *, model: type[BaseModel] | None = None, told: int = _TOLD
) -> Json:
    """Return a structured result that came as text: JSON, or the text itself where that is what was asked for.

    Args:
        text: What the model wrote.
        schema: Of the result.
        model: The pydantic model that the schema is of.
        told: How many of its faults are told at once.

    Raises:
        ToolError: It does not fit the schema; tells what is wrong.
    """
    if _is_object(schema):
        value: Json = parse_object(text)
    else:
        value = _unwrapped(text)
    return _checked(Fitter(schema).fit(value, schema)[0], schema, model, told)


def _unwrapped(text: str) -> Json:
    """Read what is no object: wrapped as on the wire, as JSON, also in a fence, or the text itself."""
    with suppress(ToolError):
        whole = parse_object(text)
        if whole.keys() == {"result"}:
            return whole["result"]
    fenced = _FENCED.fullmatch(text)
    with suppress(ValueError):
        return json.loads(fenced[1] if fenced else text)
    return text.strip()


def _checked(value: Json, schema: Mapping[str, Json], model: type[BaseModel] | None, told: int = _TOLD) -> Json:
    if faults := problems(value, schema):
        raise ToolError("; ".join(faults[:told]))
    if model:
        as_model(value, model)
    return value


def _is_object(schema: Mapping[str, Json]) -> bool:
    return bool(schema.get("type") == "object" or ("type" not in schema and "properties" in schema))


def _wrapped(schema: Mapping[str, Json]) -> dict[str, Json]:
    """Return the schema of an object that holds the value as `result`; definitions stay at the root."""
    inner = {key: part for key, part in schema.items() if key != "$defs"}
    definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    return {"type": "object", "properties": {"result": inner}, "required": ["result"], **definitions}
