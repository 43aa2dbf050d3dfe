"""Events as JSON: how they are written down, and read again. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, Field, TypeAdapter

from orchestrator.events import AnyEvent, Event, particulars


def payload(event: Event) -> bytes:
    """Encode the particulars of an event as one JSON object; what all events share has columns of its own."""
    return _json(particulars(event))


def encode(event: Event) -> bytes:
    """Encode a whole event as one JSON object."""
    return _json(event)


def decode(data: bytes | str) -> Event:
    """Read an event that `encode` wrote.

    Raises:
        pydantic.ValidationError: It is no event of this set.
    """
    event: Event = _decoder().validate_json(data)
    return event


@cache
def _decoder() -> TypeAdapter[Any]:
    return TypeAdapter(Annotated[AnyEvent, Field(discriminator="type")])


def _json(value: object) -> bytes:
    try:
        return orjson.dumps(value, default=_plain)
    except TypeError:  # a lone surrogate, which is replaced, or a number or a key that orjson refuses
        return json.dumps(value, default=_plain, ensure_ascii=False).encode("utf-8", "replace")


def _plain(value: object) -> Any:
    if is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)
