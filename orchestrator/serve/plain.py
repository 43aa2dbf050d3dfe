"""Lines and figures for a terminal, without a library: most commands print no more, and are quick."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, TextIO
from unicodedata import category, east_asian_width

from orchestrator.serve.report import one_line

if TYPE_CHECKING:
    from orchestrator.messages import Usage
    from orchestrator.results import Outcome, RunResult

_WHY = {
    "answer": "it answered",
    "max_turns": "it has used all its turns (`max_turns`)",
    "repeated_calls": "it repeated itself: the same call with the same result",
    "tool_failures": "a tool failed in several turns in a row",
    "empty_replies": "the model answered with nothing",
    "cut": "the model's answer was cut off (`max_output`)",
    "invalid_output": "the result has not the form that was asked for",
    "plan_invalid": "no plan was accepted",
    "budget": "a limit leaves no room for another model call",
    "deadline": "its time was up (`timeout`, `time`)",
    "cancelled": "it was cancelled",
    "need_failed": "what it comes after did not succeed",
    "rejected": "a reviewer or a person did not accept it",
    "model_unavailable": "no model could be asked",
    "needs_person": "it waits for a person",
    "bug": "a fault of ours",
}
"""Reasons for which something stops, for people."""


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], width: int, color: bool) -> str:
    """Write rows below titles, a line each.

    Args:
        titles: Of the columns.
        rows: Their cells.
        width: Columns that the last cell of a row is cut to fit.
        color: Whether the titles are dim.
    """
    cells = [tuple(titles), *(tuple(map(one_line, row)) for row in rows)]
    sizes = [max(map(cell_len, column)) for column in zip(*cells, strict=True)][:-1]
    room = max(width - sum(sizes) - 2 * len(sizes), 10)
    head, *lines = (_line(row, sizes, room) for row in cells)
    return "\n".join([f"\33[2m{head}\33[0m" if color else head, *lines])


def _line(row: Sequence[str], sizes: Sequence[int], room: int) -> str:
    padded = [cell + " " * (size - cell_len(cell) + 2) for cell, size in zip(row, sizes, strict=False)]
    return "".join([*padded, cut(row[-1], room)]).rstrip()


def columns(file: TextIO) -> int:
    """Return how many columns a stream shows; a pipe gets long lines."""
    return shutil.get_terminal_size().columns if file.isatty() else 160


def cell_len(text: str) -> int:
    """Return how many columns a text takes: two for an East Asian letter, none for what joins the letter before it."""
    return len(text) if text.isascii() else sum(map(_width, text))


def cut(text: str, width: int) -> str:
    """Cut a text to so many columns."""
    taken = fits = 0
    for end, letter in enumerate(text, start=1):
        taken += _width(letter)
        if taken < width:  # an ellipsis fits behind it
            fits = end
        elif taken > width:
            return f"{text[:fits]}…"
    return text


@cache
def _width(letter: str) -> int:
    if category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if east_asian_width(letter) in "WF" else 1


def why(end: RunResult | Outcome) -> str:
    """Say why a run or a subtask ended as it did."""
    return end.failure.message if end.failure else _WHY[end.stop_reason]


def usage_text(usage: Usage) -> str:
    """Say what model calls cost, in one line."""
    parts = [counted(usage.calls, "model call")]
    if usage.tokens:  # a recording that was scripted by hand has none
        parts.append(f"{usage.tokens:,} tokens")
    if usage.cached:
        parts.append(f"{usage.cached:,} of them cached")
    if usage.cost is not None:
        parts.append(f"cost {money(usage.cost)}")
    if usage.estimated_calls:
        parts.append(f"{counted(usage.estimated_calls, 'call')} estimated")
    return ", ".join(parts)


def counted(number: int, noun: str) -> str:
    """Say how many of something there are."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def count(tokens: int) -> str:
    """Say a number of tokens, as `12.3k`; nothing for none."""
    if tokens < 1000:
        return str(tokens or "")
    return f"{tokens / 1000:.1f}k" if tokens < 1_000_000 else f"{tokens / 1_000_000:.1f}M"


def duration(seconds: float) -> str:
    """Say a time, as `0.4s`, `12s`, `3:05` or `1:02:03`."""
    if isinstance(seconds, float) and seconds < 10:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}" if minutes else f"{rest}s"


def money(cost: Decimal | None) -> str:
    """Say an amount of money; nothing where it is not known."""
    return "" if cost is None else f"{cost:.4f}"
