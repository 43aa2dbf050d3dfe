"""`${name}` in texts: prompts, scenarios and settings know this one form.

A name has letters (of any script), digits, `_`, `-`, and dots between parts. Any other `$` is text, and `$${name}`
stands for a literal `${name}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Any, ClassVar

from orchestrator.errors import ConfigError, nearest

_NAME = r"[^\W\d][\w-]*(?:\.[\w-]+)*"


class _Braced(Template):
    flags = re.VERBOSE
    pattern: ClassVar[Any] = rf"""\$(?:
        (?P<escaped>\$(?=\{{{_NAME}\}})) | \{{(?P<braced>{_NAME})\}} | (?P<named>(?!)) | (?P<invalid>(?!))
    )"""


def names(text: str) -> dict[str, int]:
    """Return each name with the line of its first place, counted from 1."""
    found: dict[str, int] = {}
    for match in _Braced.pattern.finditer(text):
        if name := match["braced"]:
            found.setdefault(name, text.count("\n", 0, match.start()) + 1)
    return found


def fill(text: str, values: Mapping[str, Any], *, file: str | Path | None = None) -> str:
    """Put values in.

    Args:
        text: The text.
        values: What the names stand for.
        file: Where the text comes from, for the error.

    Raises:
        ConfigError: A name has no value; all of them, with their lines.
    """
    refuse_unknown(text, values, file=file)
    return _Braced(text).substitute(values)


def refuse_unknown(text: str, known: Iterable[str], *, file: str | Path | None = None) -> None:
    """Refuse names that are not known.

    Raises:
        ConfigError: All unknown names, with their lines.
    """
    allowed = sorted(known)
    if unknown := {name: line for name, line in names(text).items() if name not in allowed}:
        raise ConfigError.all_of(
            [
                ConfigError(
                    f"unknown variable ${{{name}}}{nearest(name, allowed)} (write $${{{name}}} for the text itself)",
                    file=file,
                    line=line,
                )
                for name, line in unknown.items()
            ]
        )


def fill_tree(value: Any, values: Mapping[str, Any]) -> Any:
    """Put values into all texts within lists and mappings; a text that is one placeholder becomes the value itself.

    Names without a value are left as they are.
    """
    if isinstance(value, str):
        whole = re.fullmatch(rf"\$\{{({_NAME})\}}", value)
        if whole:
            return values.get(whole[1], value)
        known = {name: values[name] for name in names(value) if name in values}
        return _Braced(value).safe_substitute({name: _text(part) for name, part in known.items()})
    if isinstance(value, list):
        return [fill_tree(item, values) for item in value]
    if isinstance(value, dict):
        return {key: fill_tree(item, values) for key, item in value.items()}
    return value


def _text(value: Any) -> str:
    """Return what a value is within a longer text: itself, or JSON where it has parts."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)


def texts(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield every text within lists and mappings, with the keys and indexes that lead to it."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from texts(item, (*place, key))
