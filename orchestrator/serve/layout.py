"""Drawings for a terminal, made of rich; what needs no more than lines is in `plain`, which loads nothing."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from orchestrator.serve.report import one_line


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], width: int, color: bool) -> str:
    """Write rows below titles, as `plain.table` does; a cell takes several lines where it has to."""
    columns = [Column(title, overflow="fold") for title in titles]
    drawing = Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for row in rows:
        drawing.add_row(*(Text(one_line(cell)) for cell in row))
    return to_text(drawing, width, color)


def section(title: str, rows: Mapping[str, str], width: int, color: bool) -> str:
    """Write what is said of each name below a title; lines break between words."""
    drawing = Table.grid(padding=(0, 2, 0, 0))
    drawing.add_column(min_width=14, no_wrap=True)
    drawing.add_column(overflow="fold")
    for name, said in rows.items():
        drawing.add_row(name, Text(one_line(said)))
    return f"{title}\n{to_text(Padding(drawing, (0, 0, 0, 2)), width, color)}"


def to_text(drawing: RenderableType, width: int, color: bool) -> str:
    """Render a drawing as text, with the terminal's colours where they are wanted."""
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=color, highlight=False).print(drawing)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())
