"""Arguments: what a model wrote becomes what a tool takes, or a text that says what to mend. Pure.

Broken JSON is mended in a few bounded ways (see `parse_object`) and never completed: a call that was cut is not run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.describing import Schema, quote
from orchestrator.errors import ToolError
from orchestrator.fitting import Fault, Fitter, Place
from orchestrator.text.jsonable import well_formed

if TYPE_CHECKING:
    from orchestrator.messages import Json
    from orchestrator.tool import Tool

T = TypeVar("T")

QUOTE_UP_TO = 700
"""Characters of unreadable arguments that are told back."""
FAULTS_UP_TO = 20

_SEEN_BY_FITTING = {"missing", "extra_forbidden", "literal_error", "enum"}
"""Kinds of pydantic's errors; of a union it tells them for every branch."""
_THOUGHT = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL)
_NO_PREFIX = re.compile(r'\[|"\s*:|[=,]\s*$')
"""In front of an object: it is a part of something larger, and not the arguments."""
_DECODER = json.JSONDecoder(strict=False)
_ESCAPE = re.compile(
    r"""\\(?:
      (?P<lone> u[dD][c-fC-F][0-9a-fA-F]{2} | u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2}) )
    | (?P<good> ["\\/] | u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4} | u[0-9a-fA-F]{4}
        | [bf] (?![a-zA-Z]{2})
        | n (?! (?:abla|otin|ewline) (?![a-zA-Z]) )
        | r (?! (?:ight|ightarrow|angle|floor|ceil) (?![a-zA-Z]) )
        | t (?! (?:imes|heta) (?![a-zA-Z]) | (?:ext[a-z]*|frac|ilde) \{ ) )
    )?""",
    re.VERBOSE,
)
"""A backslash in JSON text: an escape, half a surrogate pair, or a stray one, as in `\\upcite` and `\\frac`."""


class BindingError(ToolError):
    """Arguments that do not fit; the text says to the model what is wrong with them."""


def bind(arguments: str, tool: Tool) -> dict[str, Any]:
    """Return the typed arguments of a call.

    Raises:
        BindingError: They do not fit, and nothing may be run.
    """
    return bind_object(arguments, tool.takes or tool.parameters, tool.validate, name=tool.name)


def bind_object(text: str, schema: Schema, validate: Callable[[dict[str, Json]], T], *, name: str) -> T:
    """Read a JSON object that a model wrote, fit it to a schema, and validate it.

    Args:
        text: What the model wrote.
        schema: JSON Schema of the object.
        validate: Makes the result of the fitted object; raises `ValueError`, such as pydantic's `ValidationError`.
        name: What was called, for the text.

    Raises:
        BindingError: It does not fit; tells all faults at once and what the call should look like.
    """
    fitter = Fitter(schema, _loads)
    try:
        given, faults = fitter.fit(parse_object(text), schema)
        try:
            bound = validate(given)
        except ValueError as error:
            faults = faults + _validation_faults(error, given, faults)
        if not faults:
            return bound
        problem = _told(faults)
    except BindingError as error:
        problem = str(error)
    except RecursionError:
        problem = "the arguments are nested too deeply"
    call = quote(f"{name}({fitter.describe_members(fitter.resolve(schema))})", 1500)
    raise BindingError(f"{name} was not run: {problem}\nCall it like this: {call}") from None


def parse_object(text: str) -> dict[str, Json]:
    """Read the JSON object in a text of a model.

    Mended are: thoughts and prose around it, a code fence, a second object after it, raw line breaks in strings,
    stray backslashes (LaTeX stays as it was meant), lone surrogates, and an object that was encoded twice. Nothing at
    all is an empty object.

    Raises:
        BindingError: There is no whole object.
    """
    value = _read(text)
    if isinstance(value, str):
        value = _read(value)
    if isinstance(value, dict):
        return value
    raise BindingError(f"the arguments must be a JSON object, not {quote(text.strip(), QUOTE_UP_TO)}")


def _read(text: str) -> Json:
    text = text.strip().removeprefix("\ufeff")
    if not text:
        return {}
    try:
        return _loads(text)
    except ValueError:
        text = _mended(text)
    if thought := _THOUGHT.match(text):
        text = text[thought.end() :]
    start = text.find("{")
    if start < 0 or _NO_PREFIX.search(text, 0, start):
        problem = "the arguments are no JSON object"
    else:
        try:
            return _DECODER.raw_decode(text, start)[0]
        except json.JSONDecodeError as error:
            problem = _why(error, text)
        except (ValueError, RecursionError) as error:
            problem = f"the arguments cannot be read: {quote(str(error), 100)}"
    raise BindingError(f"{problem}. They were: {quote(text, QUOTE_UP_TO)}")


def _why(error: json.JSONDecodeError, text: str) -> str:
    if error.msg.startswith("Unterminated string") or error.pos >= len(text.rstrip()):
        return "the arguments are cut off; send the whole call again, a long text in smaller pieces"
    near = text[error.pos : error.pos + 30]
    return f"the arguments are no valid JSON: {error.msg} at character {error.pos + 1}, before {near!r}"


def _loads(text: str) -> Json:
    """Read JSON that is whole, if with the backslashes of a careless writer.

    Raises:
        ValueError: It is no JSON.
    """
    try:
        return _DECODER.decode(_mended(text))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _mended(text: str) -> str:
    """Double the stray backslashes, and replace the lone surrogates."""

    def mend(found: re.Match[str]) -> str:
        if found["lone"]:
            return "\\ufffd"
        return found[0] if found["good"] else "\\\\"

    return _ESCAPE.sub(mend, well_formed(text))


def _told(faults: Sequence[Fault]) -> str:
    lines = [f"- {quote(str(fault), 400)}" for fault in faults[:FAULTS_UP_TO]]
    more = [f"- and {len(faults) - FAULTS_UP_TO} more"] if len(faults) > FAULTS_UP_TO else []
    return "\n".join(["its arguments are wrong.", *lines, *more])


def _validation_faults(error: ValueError, given: Json, known: Sequence[Fault]) -> list[Fault]:
    """Return what validation found beyond what is known already."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return [Fault((), str(error))]
    found: dict[Place, list[str]] = {}
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        if known and detail["type"] in _SEEN_BY_FITTING:
            continue
        place = _place(detail["loc"], given)
        if not any(place[: len(fault.place)] == fault.place or fault.place[: len(place)] == place for fault in known):
            text = detail["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
            found.setdefault(place, []).append(text)
    return [Fault(place, " or ".join(dict.fromkeys(texts))) for place, texts in found.items()]


def _place(steps: Sequence[Any], given: Json) -> Place:
    """Return where pydantic's location leads, without the names of a union's branches in it."""
    place: list[str | int] = []
    for step in steps:
        if (isinstance(given, dict) and step in given) or (isinstance(given, list) and step in range(len(given))):
            place.append(step)
            given = given[step]
    return tuple(place)
