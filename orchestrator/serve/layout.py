"""How rows, texts and figures are written for a terminal."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.messages import Usage
from orchestrator.serve.report import one_line


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], width: int | None = None) -> Table:
    """Draw rows below titles.

    Args:
        titles: Of the columns.
        rows: Their cells.
        width: Columns that the last cell of a row is cut to fit; None: it takes several lines.
    """
    cells = [[one_line(cell) for cell in row] for row in rows]
    if width is not None:
        taken = [max(map(cell_len, column)) + 2 for column in zip(titles, *cells, strict=True)][:-1]
        cells = [[*row[:-1], cut(row[-1], max(width - sum(taken), 10))] for row in cells]
    drawing = Table(*titles, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for row in cells:
        drawing.add_row(*map(Text, row))
    return drawing


def to_text(drawing: RenderableType, width: int, color: bool) -> str:
    """Render a drawing as text, with the terminal's colours where they are wanted."""
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=color, highlight=False).print(drawing)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def columns(file: TextIO) -> int:
    """Return how many columns a stream shows; a pipe gets long lines."""
    return Console(file=file).width if file.isatty() else 160


def cut(text: str, width: int) -> str:
    """Cut a text to so many columns."""
    left = Text(text)
    left.truncate(width, overflow="ellipsis")
    return left.plain


def usage_text(usage: Usage) -> str:
    """Say what model calls cost, in one line."""
    parts = [f"{usage.calls} model call{'s' * (usage.calls != 1)}"]
    if usage.tokens:  # a recording that was scripted by hand has none
        parts.append(f"{usage.tokens:,} tokens")
    if usage.cached:
        parts.append(f"{usage.cached:,} of them cached")
    if usage.cost is not None:
        parts.append(f"cost {money(usage.cost)}")
    if usage.estimated_calls:
        parts.append(f"{usage.estimated_calls} calls estimated")
    return ", ".join(parts)


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
