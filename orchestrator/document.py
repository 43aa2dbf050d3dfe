"""A mapping that was read or given, and plain words for what is wrong in it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
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
    """The mapping that a YAML file holds, and the line of each of its values; or one that a program gives."""

    file: Path | None
    data: dict[str, Any]
    lines: Mapping[Place, int]
    above: Place = ()
    """Where it stands in its file, if it is a part of it; else what the program calls it."""

    @classmethod
    def given(cls, name: str, data: Mapping[str, Any]) -> Document:
        """Return what a program gives in the form that a file would have."""
        return cls(None, dict(data), {}, (name,))

    def error(self, message: str, place: Place = ()) -> ConfigError:
        """Make the error about the value at a place, or the nearest one above it that is there."""
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
        if self.file is None:
            text = text.removesuffix(_INDENTED)
        return f"{where} is {_short(given)}: {text[0].lower()}{text[1:]}"

    def _known(self, place: Sequence[str | int]) -> Place:
        """Leave out what is no key of the document: names of union members, keys that are missing."""
        known: Place = ()
        value: Any = self.data
        for part in place:
            if part in _keys(value):
                known, value = (*known, part), value[part]
        return known


_INDENTED = "; is it indented?"
_PLAIN = {
    r"a valid tuple": "a list, as in [one, two]",
    r"a valid dictionary(?: or instance of \w+)?": f"a mapping of keys to values{_INDENTED}",
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


def _keys(value: Any) -> Collection[str | int]:
    """Return what leads from a value to those within it."""
    if isinstance(value, Mapping):
        return value
    return range(len(value)) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else ()


def dotted(place: Place) -> str:
    """Write a place as people do: `models.default.fallback[0]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")


def _short(value: object, most: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}…"
