"""Rows of a table, and how cells are written: the same in every run."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from orchestrator.messages import Json
from orchestrator.tables.sheets import number_text


@dataclass(frozen=True, slots=True)
class Rows:
    """What a query found."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]

    def markdown(self, limit: int | None = None) -> str:
        """Return the first `limit` rows as a Markdown table."""
        lines = [self.columns, ["---"] * len(self.columns), *([*map(text, row)] for row in self.rows[:limit])]
        return "\n".join("| " + " | ".join(map(_in_markdown, line)) + " |" for line in lines)

    def csv(self) -> str:
        """Return all rows as CSV with a header."""
        target = io.StringIO()
        writer = csv.writer(target, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(map(text, row) for row in self.rows)
        return target.getvalue()

    def records(self, limit: int | None = None) -> list[dict[str, Json]]:
        """Return the first `limit` rows as JSON objects."""
        return [dict(zip(self.columns, map(_json, row), strict=True)) for row in self.rows[:limit]]


def text(value: Any) -> str:
    """Return a cell as text: numbers exact and without an exponent, NULL as nothing."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case float():
            return number_text(value) if math.isfinite(value) else str(value)
        case Decimal():
            return format(value, "f")
        case datetime():
            return value.isoformat(" ")
        case date():
            return value.isoformat()
        case dict() | list() | tuple():
            return json.dumps(_json(value), ensure_ascii=False)
        case _:
            return str(value)


def _json(value: Any) -> Json:
    """Return a cell as JSON: a number where that loses nothing, else its text."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return value if abs(value) < 2**63 else str(value)
        case float() | Decimal() if math.isfinite(value):
            written = text(value)
            return float(written) if Decimal(repr(float(written))) == Decimal(written) else written
        case dict():
            return {str(key): _json(item) for key, item in value.items()}
        case list() | tuple():
            return [_json(item) for item in value]
        case _:
            return text(value)


def _in_markdown(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def sort_key(row: tuple[Any, ...]) -> list[tuple[bool, str, Any]]:
    """Return what rows are put in order by, whatever their cells hold."""
    ordered = (int, float, Decimal, str, date)
    return [(v is None, type(v).__name__, v if isinstance(v, ordered) else text(v)) for v in row]
