"""Whether a value from a query stands in a text, in one of the ways that people write numbers. Pure."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

_NUMBER = re.compile(r"((?<![\d.])[-−])?(?<![\d.])(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)(?!\.?\d)")


def stands_in(value: Any, text: str) -> bool:
    """Tell whether a value is written in a text.

    A number stands there as 1234.5, 1,234.50 or 1234.50, or rounded to two digits or more after the point; never as a
    part of a longer number. None stands nowhere.
    """
    if value is None:
        return False
    if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
        expected = Decimal(str(value))
        return any(_same(expected, found) for found in numbers(text))
    written = str(value)
    before, after = (r"(?<!\d)" if written[:1].isdigit() else ""), (r"(?!\d)" if written[-1:].isdigit() else "")
    return re.search(f"{before}{re.escape(written)}{after}", text) is not None


def numbers(text: str) -> list[Decimal]:
    """Return the numbers that are written in a text, each as exact as it is written."""
    return [Decimal(("-" if sign else "") + digits.replace(",", "")) for sign, digits in _NUMBER.findall(text)]


def _same(expected: Decimal, written: Decimal) -> bool:
    if expected == written:
        return True
    exponent = written.as_tuple().exponent
    # Rounding to one digit or none would let a wrong figure pass for a right one.
    return isinstance(exponent, int) and exponent <= -2 and abs(expected - written) <= Decimal((0, (5,), exponent - 1))
