"""Any value of a program, as text that a model reads and as JSON that programs pass on. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from datetime import date, time
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

if TYPE_CHECKING:
    from orchestrator.messages import Json


def to_json(value: object) -> tuple[str, Json]:
    """Return a value as text, and as what JSON can hold.

    Text stays as it is. What JSON cannot hold becomes its `str`, with its type.
    """
    if isinstance(value, str):
        text = well_formed(value)
        return text, text
    form: Json
    try:
        data = orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)
        text, form = data.decode(), orjson.loads(data)
    except orjson.JSONEncodeError:
        try:  # the standard library knows large integers, and lets lone surrogates pass
            text = well_formed(json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":")))
            form = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            form = _described(value)
    return (form, form) if isinstance(form, str) else (text, form)


def _plain(value: Any) -> Any:
    """Return what stands in JSON for a value that is none of its types."""
    if hasattr(value, "model_dump"):  # of pydantic
        return value.model_dump()
    match value:
        case Mapping():
            return dict(value)
        case AbstractSet():
            return _in_order(value)
        case Enum():
            return value.value
        case date() | time():
            return value.isoformat()
        case bytes() | bytearray() | memoryview():
            return _decoded(bytes(value))
        case tuple() if hasattr(value, "_asdict"):
            return value._asdict()
        case Sequence() | ValuesView():
            return list(value)
        case Decimal() | UUID() | PurePath():
            return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    return _described(value)


def _in_order(values: AbstractSet[Any]) -> list[Any]:
    """Sort a set: an equal result is an equal text, which repetition detection counts on."""
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=repr)


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"({len(data)} bytes that are not text)"


def well_formed(text: str) -> str:
    """Replace lone surrogates, which no UTF-8 can carry."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _described(value: object) -> str:
    kind = type(value)
    return well_formed(f"{value} (a {kind.__module__}.{kind.__qualname__})")
