"""Takes secrets out of text: known ones by value, in the forms they travel in, and common kinds by shape. Pure."""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus

REDACTED = "[redacted]"

_SHORTEST = 6
"""Characters below which a value is too ordinary to be taken out wherever it occurs."""

_SHAPES = re.compile(
    r"""
    \b(?:sk|tvly)-(?=[\w-]{0,64}\d)[A-Za-z0-9_-]{10,}
    | (\b[Bb]earer[ ]+)(?=\S{0,64}\d)[A-Za-z0-9._~+/=-]{10,}
    """,
    re.VERBOSE | re.ASCII,
)
"""A digit tells keys from words such as `sk-learn-compatible` and `Bearer authentication`. The search for it is
bounded, or a hostile text would take for ever."""

_MARKS = ("sk-", "tvly-", "earer ")
"""One of these is in every text that has such a shape; looking for them first takes a fifth of the time."""


class Redactor:
    """Replaces secrets in text.

    Args:
        secrets: The values to look for; those shorter than six characters are not.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets if len(secret) >= _SHORTEST for form in _forms(secret)}
        longest_first = sorted(forms, key=lambda form: (-len(form), form))
        self._values = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    def text(self, text: str) -> str:
        """Return the text with each secret replaced by `[redacted]`."""
        if self._values:
            text = self._values.sub(REDACTED, text)
        return _SHAPES.sub(rf"\g<1>{REDACTED}", text) if any(mark in text for mark in _MARKS) else text


def redact_json(value: Any, redact: Callable[[str], str]) -> Any:
    """Return a JSON value with the secrets taken out of its texts."""
    written = json.dumps(value, ensure_ascii=False)
    return value if redact(written) == written else _redacted(value, redact)


def _redacted(value: Any, redact: Callable[[str], str]) -> Any:
    match value:
        case str():
            return redact(value)
        case list():
            return [_redacted(item, redact) for item in value]
        case dict():
            return {redact(name): _redacted(item, redact) for name, item in value.items()}
    return value


def _forms(secret: str) -> Iterator[str]:
    raw = secret.encode("utf-8", "surrogatepass")
    yield secret
    for escaped in (quote(raw, safe=""), quote(raw), quote_plus(raw)):
        yield escaped
        yield re.sub("%..", lambda hexadecimal: hexadecimal[0].lower(), escaped)
    within = {secret}
    for _ in range(3):  # JSON in JSON in JSON: the arguments of a call, in a line of a recording, in a tool's result
        within |= {json.dumps(form, ensure_ascii=only)[1:-1] for form in within for only in (True, False)}
    yield from within
    yield from _base64(raw)


def _base64(raw: bytes) -> Iterator[str]:
    """Yield what a secret becomes within longer encoded data, such as `user:secret`, at each of three alignments."""
    for before, dependent in ((0, 0), (1, 2), (2, 3)):
        padded = bytes(before) + raw
        certain = slice(dependent, len(padded) * 8 // 6)
        yield b64encode(padded).decode()[certain]
        yield urlsafe_b64encode(padded).decode()[certain]
