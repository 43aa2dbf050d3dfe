"""What a function's signature and docstring say: a name, a description, and a JSON Schema of its parameters."""

from __future__ import annotations

import inspect
import json
import re
import sys
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace, UnionType
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, Required, Union, get_args, get_origin, get_type_hints

import typing_extensions
from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from orchestrator.errors import ConfigError
from orchestrator.messages import Json

if TYPE_CHECKING:
    from pydantic_core import core_schema

INLINE_UP_TO = 160
"""Characters of a shared definition that is still copied to where it is used: a `$ref` costs tokens, too."""
_CHINESE_HEADINGS = {"参数": "Args", "返回": "Returns", "返回值": "Returns"}


@dataclass(frozen=True, slots=True)
class Signature:
    """A function as a model may call it."""

    name: str
    description: str
    """The docstring without its parameters, which are in the schema."""
    parameters: dict[str, Json]
    """JSON Schema of an object."""
    validate: Callable[[dict[str, Json]], dict[str, Any]]
    """Turn JSON arguments into typed ones; raises `pydantic.ValidationError`."""
    injected: tuple[str, ...]
    """Names of the parameters that the engine fills in."""


def read_signature(fn: Callable[..., Any], injected: type, names: Mapping[str, Any]) -> Signature:
    """Read what a function takes.

    Args:
        fn: Every parameter of it has a type and a name.
        injected: Parameters annotated with this class are no business of the model.
        names: What annotations that are text may refer to, besides the globals of the function.

    Raises:
        ConfigError: A parameter cannot be described to a model.
    """
    name: str = getattr(fn, "__name__", type(fn).__name__)
    types = _parameter_types(fn, name, {injected.__name__: injected}, names)
    context = tuple(p for p, (hint, _) in types.items() if injected in (hint, *get_args(hint)))
    description, sentences = _read_docstring(inspect.getdoc(fn) or "")
    asked = {p: of for p, of in types.items() if p not in context}
    try:
        # Fields are numbered, so that a parameter may have any name: pydantic keeps some for itself.
        fields: dict[str, Any] = {
            f"p{n}": (_described(hint, p, sentences.get(p)), default)
            for n, (p, (hint, default)) in enumerate(asked.items())
        }
        model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        parameters = compact_schema(model)
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        raise ConfigError(f"{name}: a parameter has a type that no JSON can stand for: {error}") from error

    def validate(arguments: dict[str, Json]) -> dict[str, Any]:
        bound = model.model_validate_json(json.dumps(arguments))
        return {p: getattr(bound, f"p{n}") for n, p in enumerate(asked)}

    return Signature(name, description, parameters, validate, context)


def compact_schema(model: type[BaseModel]) -> dict[str, Json]:
    """Return the JSON Schema of a pydantic model in few tokens: no titles, small definitions where they are used."""
    schema = model.model_json_schema(schema_generator=_Generator)
    definitions: dict[str, Json] = schema.pop("$defs", {})
    uses = Counter(_references([schema, definitions]))
    inline = {
        name: definition
        for name, definition in definitions.items()
        if name not in _reachable(name, definitions) and (uses[name] == 1 or len(json.dumps(definition)) < INLINE_UP_TO)
    }
    compact: dict[str, Json] = _compact(schema, inline)
    compact.pop("description", None)  # the tool has one of its own
    compact.setdefault("properties", {})
    if kept := {name: _compact(d, inline) for name, d in definitions.items() if name not in inline}:
        compact["$defs"] = kept
    return compact


class _Generator(GenerateJsonSchema):
    """Leaves a default that JSON cannot say out of the schema, without a warning."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        """Mark the text form of a decimal, so that an empty text is not taken for one."""
        made = super().decimal_schema(schema)
        for option in made.get("anyOf", ()):
            if option["type"] == "string":
                option["format"] = "decimal"
        return made


def _parameter_types(
    fn: Callable[..., Any], name: str, fallback: Mapping[str, Any], names: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Return type and default (`...`: none) by parameter."""
    try:
        parameters = inspect.signature(fn).parameters
        annotations = {p.name: p.annotation for p in parameters.values() if p.annotation is not p.empty}
        scope = {**fallback, **getattr(inspect.unwrap(fn), "__globals__", {})}
        hints = get_type_hints(SimpleNamespace(__annotations__=annotations), scope, dict(names), include_extras=True)
    except NameError as error:
        raise ConfigError(f"{name}: an annotation cannot be read: {error}; import it where the program runs") from error
    for p in parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY):
            kind = p.kind.description
            raise ConfigError(f"{name}: the parameter {p.name!r} is {kind}; a model gives parameters by name")
        if p.name not in hints:
            raise ConfigError(f"{name}: the parameter {p.name!r} has no type; annotate it, as in '{p.name}: str'")
    return {p.name: (_portable(hints[p.name]), ... if p.default is p.empty else p.default) for p in parameters.values()}


def _described(hint: Any, name: str, sentence: str | None) -> Any:
    """Give a parameter its name and its sentence; what its own `Field` says comes later and wins."""
    base, *metadata = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    return Annotated[(base, Field(alias=name, description=sentence), *metadata)]


def _portable(hint: Any) -> Any:
    """Replace `typing.TypedDict` before Python 3.12, which pydantic refuses, by its twin of `typing_extensions`."""
    if sys.version_info >= (3, 12):
        return hint
    origin, args = get_origin(hint), get_args(hint)
    if typing.is_typeddict(hint) and type(hint).__module__ == "typing":
        keys = {k: _portable(of) for k, of in get_type_hints(hint, include_extras=True).items()}
        marked = {k for k, of in keys.items() if get_origin(of) in _MARKS}
        optional = keys.keys() - hint.__required_keys__ - marked
        fields = {k: NotRequired[of] if k in optional else of for k, of in keys.items()}
        return typing_extensions.TypedDict(hint.__name__, fields)  # type: ignore[operator]
    if origin in (Annotated, *_MARKS):
        return origin[(_portable(args[0]), *args[1:])] if args[1:] else origin[_portable(args[0])]
    if origin in (Union, UnionType):
        return Union[tuple(map(_portable, args))]  # noqa: UP007 - built at run time
    return origin[tuple(map(_portable, args))] if origin in (list, dict, tuple, set, frozenset) else hint


_MARKS = (Required, NotRequired)


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Split a docstring (Google, NumPy, reST style) into its description and a sentence for each parameter."""
    if not text:
        return "", {}
    import docstring_parser

    headings = "|".join(_CHINESE_HEADINGS)
    text = re.sub(rf"(?m)^({headings})[:：][ \t]*$", lambda found: _CHINESE_HEADINGS[found[1]] + ":", text)
    doc = docstring_parser.parse(text)
    parts = [doc.description or ""]
    parts += [f"Returns: {_line(doc.returns.description)}"] if doc.returns and doc.returns.description else []
    parts += [f"Example:\n{example.description}" for example in doc.examples if example.description]
    sentences = {p.arg_name: _line(p.description) for p in doc.params if p.description}
    return "\n\n".join(part.strip() for part in parts if part.strip()), sentences


def _line(text: str) -> str:
    return " ".join(text.split())


def _compact(node: Any, inline: Mapping[str, Json]) -> Any:
    if isinstance(node, list):
        return [_compact(item, inline) for item in node]
    if not isinstance(node, dict):
        return node
    name = _definition(node)
    if name in inline:
        return _compact({**inline[name], **{k: v for k, v in node.items() if k != "$ref"}}, inline)
    kept: dict[str, Json] = {}
    for key, value in node.items():
        if key in ("properties", "$defs", "patternProperties"):  # names of the user, one of which may be "title"
            kept[key] = {k: _compact(v, inline) for k, v in value.items()}
        elif key in ("default", "const", "enum", "examples"):  # values, no schemas
            kept[key] = value
        elif key not in ("title", "discriminator"):  # the branches' constants tell them apart, too
            kept[key] = _compact(value, inline)
    return kept


def _reachable(start: str, definitions: Mapping[str, Json]) -> set[str]:
    """Return the definitions that one of them refers to, directly or not; itself only if it is recursive."""
    found: set[str] = set()
    todo = [start]
    while todo:
        new = set(_references(definitions[todo.pop()])) - found
        found |= new
        todo += new
    return found


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if name := _definition(node):
            yield name
        for key, value in node.items():
            if key not in ("default", "const", "enum", "examples", "discriminator"):
                yield from _references(value)
    elif isinstance(node, list):
        for item in node:
            yield from _references(item)


def _definition(node: Mapping[str, Json]) -> str:
    """Return the name that a schema refers to; empty: it is none of `$defs`."""
    ref = node.get("$ref")
    return ref.removeprefix("#/$defs/") if isinstance(ref, str) and ref.startswith("#/$defs/") else ""
