"""Reading YAML: version 1.2, a key may stand only once, and every message names file and line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, get_args, get_origin

from orchestrator.errors import ConfigError, nearest

if TYPE_CHECKING:  # it takes long to import, and reading needs none of it
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

Place = tuple[str | int, ...]
"""Keys and indexes that lead from the top of a file to a value."""
M = TypeVar("M", bound="BaseModel")


@dataclass(frozen=True, slots=True)
class Document:
    """The mapping that a YAML file holds, and the line of each of its values."""

    file: Path
    data: dict[str, Any]
    lines: Mapping[Place, int]
    above: Place = ()
    """Where it stands in its file, if it is a part of it."""

    def error(self, message: str, place: Place = ()) -> ConfigError:
        """Make the error about the value at a place, or the nearest one above it that stands in the file."""
        return ConfigError(message, file=self.file, line=self.lines.get(self._known(place)))

    def within(self, *place: str | int) -> Document:
        """Return the part of the document below a place that holds a mapping, with its lines."""
        data: Any = self.data
        for part in place:
            data = data.get(part) or {}
        depth = len(place)
        lines = {key[depth:]: line for key, line in self.lines.items() if key[:depth] == place}
        return Document(self.file, data, lines, (*self.above, *place))

    def validate(self, model: type[M], data: Mapping[str, Any] | None = None) -> M:
        """Read the mapping (or what was made of it) as a model; at its top a key without a value is as good as none.

        Raises:
            ConfigError: It does not fit; all faults, each with its line.
        """
        from pydantic import ValidationError

        said = {key: value for key, value in (self.data if data is None else data).items() if value is not None}
        try:
            return model.model_validate(said)
        except ValidationError as error:
            raise ConfigError.all_of(self.faults(error, model)) from None

    def faults(self, error: ValidationError, model: type[BaseModel]) -> list[ConfigError]:
        """Put what pydantic found into words, one fault for each place."""
        faults: dict[Place, ConfigError] = {}
        for details in error.errors():
            place = self._known(details["loc"])
            if details["type"] in ("missing", "extra_forbidden") and place[-1:] != details["loc"][-1:]:
                place = (*place, details["loc"][-1])
            faults.setdefault(place, self.error(self._words(details, place, model), place))
        return list(faults.values())

    def _words(self, details: ErrorDetails, place: Place, model: type[BaseModel]) -> str:
        kind, given = details["type"], details["input"]
        where, owner_at = dotted((*self.above, *place)), dotted((*self.above, *place[:-1]))
        within = f" in {owner_at}" if owner_at else ""
        if kind == "extra_forbidden":
            owner = _model_at(model, details["loc"][:-1])
            return f"unknown key {place[-1]!r}{within}{nearest(str(place[-1]), owner.model_fields) if owner else ''}"
        if kind == "missing":
            return f"the key {place[-1]!r} is missing{within}"
        text = details["msg"].removeprefix("Value error, ")
        if kind == "value_error":
            return f"{where}: {text}" if where else text
        if kind == "literal_error":
            allowed = re.findall("'(.*?)'", details["ctx"]["expected"])
            return f"{where} is {_short(given)}{nearest(str(given), allowed)}"
        for jargon, plain in _PLAIN.items():
            text = re.sub(jargon, plain, text)
        return f"{where} is {_short(given)}: {text[0].lower()}{text[1:]}"

    def _known(self, place: Sequence[str | int]) -> Place:
        """Leave out what is no key of the file: names of union members, keys that are missing."""
        known: Place = ()
        for part in place:
            if (*known, part) in self.lines:
                known = (*known, part)
        return known


def read_given(model: type[M], data: object, name: str) -> M:
    """Read as a model what a program gives in the form that a file would have.

    Raises:
        ConfigError: It does not fit; all faults, each with its place.
    """
    from pydantic import ValidationError

    try:
        return model.model_validate(data)
    except ValidationError as error:
        faults = [
            (dotted((name, *details["loc"])), details["msg"].removeprefix("Value error, "))
            for details in error.errors()
        ]
        raise ConfigError.all_of([ConfigError(f"{place}: {words}") for place, words in faults]) from None


def read(file: Path) -> Document:
    """Read a YAML file that holds one mapping.

    Raises:
        ConfigError: It cannot be read, is not YAML 1.2, names a key twice, or holds something else.
    """
    from ruamel.yaml import YAML, MappingNode
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    text = read_text(file)
    try:
        root = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = f"{error.problem}{_hint(error.problem or '', text)}"
        raise ConfigError(said, file=file, line=mark.line + 1 if mark else None) from None
    except YAMLError as error:
        raise ConfigError(f"is not YAML: {error}", file=file) from None
    if root is None:
        return Document(file, {}, {})
    if not isinstance(root, MappingNode):
        raise ConfigError("holds no mapping; write `key: value` lines", file=file, line=1)
    lines: dict[Place, int] = {}
    return Document(file, _Reader(file, lines).value(root, ()), lines)


def _hint(problem: str, text: str) -> str:
    """Say what to write instead, where a tab or a Chinese colon is what YAML stumbles over."""
    if r"'\t'" in problem:
        return "; indent with spaces, not tabs"
    wide = re.search(r"^[ -]*\w+：", text, re.MULTILINE)
    return f"; write ': ' for '：' in line {text.count(chr(10), 0, wide.end()) + 1}" if wide else ""


def read_text(file: Path) -> str:
    """Return the text of a file of the project.

    Raises:
        ConfigError: It cannot be read, or is not UTF-8.
    """
    try:
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=file) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8 (byte {error.start}); save it as UTF-8", file=file) from None


class _Reader:
    """Turns nodes into plain values and notes their lines."""

    def __init__(self, file: Path, lines: dict[Place, int]) -> None:
        self.file, self.lines = file, lines
        self.open: set[int] = set()

    def value(self, node: Any, place: Place) -> Any:
        if isinstance(node.value, str):
            return _scalar(node)
        if id(node) in self.open:
            raise ConfigError("an alias contains itself", file=self.file, line=node.start_mark.line + 1)
        self.open.add(id(node))
        try:
            return self._mapping(node, place) if node.tag.endswith(":map") else self._sequence(node, place)
        finally:
            self.open.discard(id(node))

    def _mapping(self, node: Any, place: Place) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node.value, str):
                raise ConfigError("a key must be text", file=self.file, line=line)
            key = key_node.value
            if key in result:
                first = self.lines[*place, key]
                raise ConfigError(f"the key {key!r} stands twice, first in line {first}", file=self.file, line=line)
            self.lines[*place, key] = line
            result[key] = self.value(value_node, (*place, key))
        return result

    def _sequence(self, node: Any, place: Place) -> list[Any]:
        result = []
        for index, item in enumerate(node.value):
            self.lines[*place, index] = item.start_mark.line + 1
            result.append(self.value(item, (*place, index)))
        return result


def _scalar(node: Any) -> Any:
    plain = node.style is None and node.tag.startswith("tag:yaml.org,2002:") and not node.tag.endswith(":str")
    return scalar(node.value) if plain else node.value


_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def scalar(text: str) -> Any:
    """Return the value of a plain scalar by the rules of YAML 1.2: null, true, 12, 0.5, else the text itself."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text.lower() in ("true", "false") and text in (text.lower(), text.title(), text.upper()):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


_PLAIN = {
    r"a valid tuple": "a list, as in [one, two]",
    r"a valid dictionary(?: or instance of \w+)?": "a mapping of keys to values; is it indented?",
    r"a valid integer, unable to parse string as an integer": "a whole number",
    r"a valid number, unable to parse string as a number": "a number",
}
"""What pydantic says of Python's types, in words of YAML."""


def _model_at(kind: Any, place: Sequence[str | int]) -> type[BaseModel] | None:
    """Return the model that describes the value at a place; parts that name a member of a union choose it."""
    from pydantic import BaseModel

    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if place and place[0] == kind.__name__:
            place = place[1:]
        if not place:
            return kind
        field = kind.model_fields.get(str(place[0]))
        return _model_at(field.annotation, place[1:]) if field else None
    within = place if get_origin(kind) in (Union, UnionType, Annotated) else place[1:]
    found = (_model_at(argument, within) for argument in get_args(kind))
    return next((model for model in found if model), None)


def dotted(place: Place) -> str:
    """Write a place as people do: `models.default.fallback[0]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")


def _short(value: object, most: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}…"
