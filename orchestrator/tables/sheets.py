"""The cells of table files: CSV, TSV, JSON lines and Excel, read as text before any type is guessed."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

from orchestrator.errors import ToolError, nearest
from orchestrator.workspace.files import format_size, read_regular
from orchestrator.workspace.texts import decode

Cell = str | None
"""None: empty."""

DELIMITED = frozenset({".csv", ".tsv"})
JSON_LINES = frozenset({".jsonl", ".ndjson"})
EXCEL = frozenset({".xlsx", ".xlsm", ".xlsb", ".xls", ".ods"})
TABLES = DELIMITED | JSON_LINES | EXCEL
"""Suffixes of the files that are tables."""
MAX_INFLATED = 400_000_000
"""Bytes of the largest workbook, unpacked; its cells take about four times that in memory."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """One table."""

    header: tuple[str, ...]
    """Column names, unique whatever their case."""
    rows: Iterator[Sequence[Cell]]
    """Read once."""
    grouped: bool = True
    """Whether a comma in a number parts thousands."""
    above: tuple[str, ...] = ()
    """Lines over the header, as a workbook's title or unit."""


def read_sheet(path: Path, name: str, sheet: str | None = None) -> Sheet:
    """Open one table of a file.

    Args:
        path: The file.
        name: Its name, for messages.
        sheet: Of a workbook: the sheet; None: the first.

    Raises:
        ToolError: It is no table; also while the rows are read.
    """
    suffix = path.suffix.lower()
    if suffix in EXCEL:
        return _excel(path, name, sheet)
    if suffix not in TABLES:
        raise ToolError(f"{name!r} is no table; tables are {', '.join(sorted(TABLES))} files")
    text = decode(read_regular(path, name), name)
    return _json_lines(text, name) if suffix in JSON_LINES else _delimited(text, name, suffix)


def sheet_names(path: Path, name: str) -> list[str]:
    """Return the names of a workbook's sheets.

    Raises:
        ToolError: It cannot be opened.
    """
    return list(_workbook(path, name).sheet_names)


def unique(names: Iterable[str]) -> tuple[str, ...]:
    """Return names without an empty or a repeated one: `column2` and `name_2` stand for those."""
    taken: dict[str, str] = {}
    for number, name in enumerate(names, 1):
        base = candidate = name.strip() or f"column{number}"
        count = 1
        while candidate.casefold() in taken:
            count += 1
            candidate = f"{base}_{count}"
        taken[candidate.casefold()] = candidate
    return tuple(taken.values())


def header_of(line: str, suffix: str) -> list[str]:
    """Return the cells of the first line of a CSV or TSV file."""
    return next(csv.reader([line], delimiter=_delimiter(line, suffix)), [])


def _delimiter(line: str, suffix: str) -> str:
    if suffix == ".tsv":
        return "\t"
    return max(",;\t|", key=lambda mark: len(next(csv.reader([line], delimiter=mark), [])))


def _delimited(text: str, name: str, suffix: str) -> Sheet:
    delimiter = _delimiter(text.partition("\n")[0], suffix)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    lines = _checked(reader, name)
    header = next(lines, None)
    if header is None:
        raise ToolError(f"{name!r} is empty")
    return Sheet(unique(header), _rows(lines, reader, len(header), name), grouped=delimiter != ";")


def _checked(reader: Any, name: str) -> Iterator[list[str]]:
    """Yield the lines that are not empty; a fault of the format names its line."""
    try:
        yield from filter(None, reader)
    except csv.Error as error:
        raise ToolError(f"{name!r}, line {reader.line_num}: {error}") from None


def _rows(lines: Iterator[list[str]], reader: Any, width: int, name: str) -> Iterator[Sequence[Cell]]:
    for line in lines:
        if len(line) != width:
            raise ToolError(
                f"{name!r}, line {reader.line_num}: {len(line)} cells, but the header has {width}; "
                "mend the line, or read the file as text"
            )
        yield [cell or None for cell in line]


def _json_lines(text: str, name: str) -> Sheet:
    records: list[dict[str, Any]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line, parse_constant=lambda constant: None)
        except (ValueError, RecursionError) as error:
            raise ToolError(f"{name!r}, line {number}: not JSON: {error}") from None
        if not isinstance(record, dict):
            raise ToolError(f"{name!r}, line {number}: an object is expected, not {line[:40]!r}")
        records.append(record)
    keys = list(dict.fromkeys(key for record in records for key in record))
    if not keys:
        raise ToolError(f"{name!r} is empty")
    return Sheet(unique(keys), ([_text(record.get(key)) for key in keys] for record in records))


def _excel(path: Path, name: str, sheet: str | None) -> Sheet:
    workbook = _workbook(path, name)
    names = list(workbook.sheet_names)
    if sheet is not None and sheet not in names:
        raise ToolError(f"{name!r} has no sheet {sheet!r}{nearest(sheet, names)}")
    rows = _unmerged(workbook.get_sheet_by_name(sheet or names[0])) if names else []
    if not rows:
        raise ToolError(f"{name!r} is empty")
    above = _lines_above(rows)
    header, *body = rows[len(above) :]
    filled = (row for row in body if any(cell != "" for cell in row))
    cells = ([_text(cell) for cell in row] for row in filled)
    return Sheet(unique(_text(cell) or "" for cell in header), cells, above=above)


def _lines_above(rows: Sequence[Sequence[Any]]) -> tuple[str, ...]:
    """Return the lines over the header: of one text each, before a row of several that are all texts."""
    lines: list[str] = []
    for row in rows:
        filled = [cell for cell in row if cell != ""]
        if not all(isinstance(cell, str) for cell in filled):
            break
        if len(filled) > 1:
            return tuple(lines)
        lines += filled or [""]
    return ()


def _unmerged(sheet: Any) -> list[list[Any]]:
    """Return the cells of a sheet; what is merged down the rows of a column stands in each of them, unless a number.

    A label that is merged holds for all of its rows; a number, as a subtotal, would be counted for each.
    """
    rows: list[list[Any]] = sheet.to_python()
    top, left = sheet.start or (0, 0)
    for (first, column), (last, _) in sheet.merged_cell_ranges or ():
        merged = rows[first - top : last - top + 1] if first > top else []
        for row in merged[1:]:
            if not isinstance(merged[0][column - left], int | float):
                row[column - left] = merged[0][column - left]
    return rows


def _workbook(path: Path, name: str) -> Any:
    try:
        import python_calamine
    except ImportError:
        raise missing_part() from None
    stream = io.BytesIO(read_regular(path, name))
    try:
        if _inflates_beyond(stream, MAX_INFLATED):
            raise ToolError(f"{name!r} holds more than {format_size(MAX_INFLATED)}; save it as CSV")
        return python_calamine.CalamineWorkbook.from_filelike(stream)
    except (python_calamine.CalamineError, zipfile.BadZipFile) as error:
        raise ToolError(f"{name!r} cannot be opened as a workbook: {error}") from None


def _inflates_beyond(stream: BinaryIO, most: int) -> bool:
    """Whether a packed file unpacks to more than so many bytes; what its own directory says is not believed."""
    if not zipfile.is_zipfile(stream):
        return False  # workbooks of before 2007 are not packed
    left = most
    with zipfile.ZipFile(stream) as archive:
        for entry in archive.infolist():
            entry.file_size = 2**62
            with archive.open(entry) as content:
                while left >= 0 and (piece := content.read(1_000_000)):
                    left -= len(piece)
    stream.seek(0)
    return left < 0


def missing_part() -> ToolError:
    """Return the error that says how to install what tables need."""
    return ToolError("tables need a part that is not installed: pip install 'ori-orchestrator[tables]'")


def _text(cell: Any) -> Cell:
    match cell:
        case None | "":
            return None
        case bool():
            return "true" if cell else "false"
        case float():
            return number_text(cell)
        case datetime() if cell.time() == datetime.min.time():
            return cell.date().isoformat()
        case datetime():
            return cell.isoformat(" ")
        case date():
            return cell.isoformat()
        case dict() | list():
            return json.dumps(cell, ensure_ascii=False)
        case _:
            return str(cell)


def number_text(value: float) -> str:
    """Return a float with the 15 digits that are certain, without an exponent."""
    return format(Decimal(f"{value:.15g}"), "f")
