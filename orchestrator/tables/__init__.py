"""SQL over the table files of a folder, in a database that can reach nothing else.

Only the tables that a query names are read, by us, into an in-memory DuckDB whose access to files and network is off
and whose configuration is locked. Results are the same in every run: exact numbers, and rows in a certain order.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from orchestrator.errors import ToolError, nearest
from orchestrator.messages import Json
from orchestrator.tables.sheets import EXCEL, TABLES, missing_part, number_text, read_sheet, sheet_names, unique
from orchestrator.threads import ThreadPool
from orchestrator.workspace.files import walk

MAX_ROWS = 100_000
"""Rows that a result may have."""
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
    "memory_limit": "1GB",
    "threads": "1",  # sums of floats depend on how the rows are shared out
    "lock_configuration": "true",
}
_WRITES = {"INSERT_QUERY_NODE", "UPDATE_QUERY_NODE", "DELETE_QUERY_NODE", "MERGE_QUERY_NODE"}
_BATCH = 10_000
_MAX_SCALE = 6
"""Digits after the point up to which numbers are exact decimals; more come from measuring, not from counting money."""
_CELLS = '"ori cells"'
"""Where a table's cells are before they have types."""
_NUMBER = r"-?(0|[1-9]\d*|[1-9]\d{0,2}(,\d{3})+)(\.\d+)?"
_PLAIN_NUMBER = r"-?(0|[1-9]\d*)(\.\d+)?"
_SCIENTIFIC = r"-?(0|[1-9]\d*)((\.\d+)?([eE][-+]\d+)?|\.\d+[eE]\d+)"
_DATE = r"\d{4}[-/]\d{1,2}[-/]\d{1,2}"
_TIMESTAMP = _DATE + r"[ T]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?"


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


def query(root: Path, sql: str, *, timeout: float = 30.0) -> Rows:
    """Answer one SELECT over the table files below a folder; blocks.

    Args:
        root: The folder. A table is called by its file's name without suffix, or by its whole path in quotes; a
            further sheet of a workbook as `<file>_<sheet>`.
        sql: DuckDB's dialect.
        timeout: Seconds after which the query is interrupted.

    Raises:
        ToolError: The query is wrong, is more than a SELECT, takes too long, or a file cannot be read.
    """
    return _Query(root, sql, timeout).run()


async def query_in_thread(root: Path, sql: str, threads: ThreadPool, *, seconds: float = 30.0) -> Rows:
    """Do the same as `query` in a thread; a cancel interrupts the query."""
    work = _Query(root, sql, seconds)
    try:
        return await threads.run(work.run)
    finally:
        work.stop()


class _Query:
    """One query; `stop` may be called from any thread."""

    def __init__(self, root: Path, sql: str, timeout: float) -> None:
        self._root, self._sql, self._timeout = root, sql, timeout
        self._stopped, self._done = threading.Event(), threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> Rows:
        try:
            import duckdb
        except ImportError:
            raise missing_part() from None
        with duckdb.connect(":memory:", config=_CONFIG) as connection:
            watcher = threading.Thread(target=self._watch, args=(connection,), daemon=True)
            watcher.start()
            try:
                return self._answer(connection)
            except duckdb.InterruptException:
                raise self._too_slow() from None
            except duckdb.Error as error:
                raise ToolError(f"SQL: {_reason(error)}{_schema(connection)}") from None
            finally:
                self._done.set()
                self._stopped.set()
                watcher.join()

    def _watch(self, connection: Any) -> None:
        self._stopped.wait(self._timeout)
        self._stopped.set()
        while not self._done.wait(0.01):  # an interrupt that falls between two statements is lost: say it again
            connection.interrupt()

    def _too_slow(self) -> ToolError:
        return ToolError(f"the query was stopped after {self._timeout:g} s; ask for less in one query")

    def _answer(self, connection: Any) -> Rows:
        tree = _parse(connection, self._sql)
        files = [PurePosixPath(file.path) for file in walk(self._root)]
        tables = [file for file in files if file.suffix.lower() in TABLES]
        if any(node.get("show_type") == "SHOW_SPECIAL" for node in _nodes(tree)):
            return Rows(("table", "file"), [(file.stem, str(file)) for file in tables])
        for schema, name in _named_tables(tree):
            self._load(connection, schema, name, tables)
        result = connection.execute(self._sql)
        columns, rows = unique(column[0] for column in result.description), result.fetchmany(MAX_ROWS + 1)
        if len(rows) > MAX_ROWS:
            raise ToolError(f"the result has more than {MAX_ROWS} rows; aggregate, or add a LIMIT")
        return Rows(columns, rows if _is_ordered(tree) else sorted(rows, key=_sort_key))

    def _load(self, connection: Any, schema: str, name: str, tables: Sequence[PurePosixPath]) -> None:
        """Load the file of a table; SQL reads an unquoted `sales.csv` as the table `csv` of a schema `sales`."""
        file, sheet = _find(self._root, f"{schema}.{name}" if schema else name, tables)
        cells = read_sheet(self._root / file, str(file), sheet)
        places = [f"c{i}" for i in range(len(cells.header))]
        connection.execute(f"CREATE TABLE {_CELLS} ({', '.join(f'{place} VARCHAR' for place in places)})")
        insert = f"INSERT INTO {_CELLS} SELECT {', '.join(['unnest(?::VARCHAR[])'] * len(places))}"
        while batch := list(islice(cells.rows, _BATCH)):
            if self._stopped.is_set():
                raise self._too_slow()
            connection.execute(insert, [list(column) for column in zip(*batch, strict=True)])
        typed = [
            f"{_typed(connection, place, cells.grouped)} AS {_quoted(column)}"
            for place, column in zip(places, cells.header, strict=True)
        ]
        if schema:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(schema)}")
        table = f"{_quoted(schema or 'main')}.{_quoted(name)}"
        connection.execute(f"CREATE TABLE {table} AS SELECT {', '.join(typed)} FROM {_CELLS}")
        connection.execute(f"DROP TABLE {_CELLS}")


def preview(path: Path, name: str, limit: int) -> tuple[Rows, int]:
    """Return the first rows of a table file as they are written, and how many rows it has.

    Raises:
        ToolError: It is no table, or cannot be read.
    """
    sheet = read_sheet(path, name)
    first = [tuple(row) for row in islice(sheet.rows, limit)]
    return Rows(sheet.header, first), len(first) + sum(1 for _ in sheet.rows)


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


def _sort_key(row: tuple[Any, ...]) -> list[tuple[bool, str, Any]]:
    ordered = (int, float, Decimal, str, date)
    return [(v is None, type(v).__name__, v if isinstance(v, ordered) else text(v)) for v in row]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _parse(connection: Any, sql: str) -> dict[str, Any]:
    """Return the syntax tree of the one SELECT that a query may be."""
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise ToolError(f"give one SELECT statement, not {len(statements)}")
    kind = statements[0].type.name
    if kind != "SELECT":
        hint = "; give PIVOT its values with IN (…)" if kind == "MULTI" else ""
        raise ToolError(f"only SELECT can be run here, not {kind}{hint}")
    tree: dict[str, Any] = json.loads(connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchone()[0])
    if tree["error"]:
        raise ToolError(f"SQL: {tree['error_message']}")
    if any(node.get("type") in _WRITES for node in _nodes(tree)):
        raise ToolError("only SELECT can be run here, within WITH too")
    return tree


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
    for child in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _nodes(child)


def _named_tables(tree: dict[str, Any]) -> list[tuple[str, str]]:
    """Return schema and name of each table that a query names, once, those that it defines itself left out."""
    names: dict[tuple[str, str], tuple[str, str]] = {}
    defined = {entry["key"].casefold() for node in _nodes(tree) for entry in node.get("cte_map", {}).get("map", ())}
    for node in _nodes(tree):
        schema = node.get("schema_name", "")
        if node.get("type") == "BASE_TABLE" and schema != "information_schema":
            table = ("" if schema == "main" else schema, node["table_name"])
            names.setdefault((table[0].casefold(), table[1].casefold()), table)
    return [table for (schema, name), table in names.items() if schema or name not in defined]


def _is_ordered(tree: dict[str, Any]) -> bool:
    """Tell whether the rows come in a certain order: one that is asked for, or that of the file."""
    node = tree["statements"][0]["node"]
    modifiers = {modifier["type"] for modifier in node["modifiers"]}
    if "ORDER_MODIFIER" in modifiers:
        return True
    return (
        node["type"] == "SELECT_NODE"
        and node["from_table"]["type"] in ("BASE_TABLE", "EXPRESSION_LIST", "SHOW_REF")
        and node["aggregate_handling"] == "STANDARD_HANDLING"
        and not (node["group_expressions"] or node["cte_map"]["map"] or "DISTINCT_MODIFIER" in modifiers)
    )


def _find(root: Path, name: str, tables: Sequence[PurePosixPath]) -> tuple[PurePosixPath, str | None]:
    """Return the file, and for a workbook's further sheet its name, that a table name means."""
    wanted = name.removeprefix("/workspace/").removeprefix("./").casefold()
    for file in tables:
        if str(file).casefold() == wanted:
            return file, None
    found: list[tuple[PurePosixPath, str | None]] = [(file, None) for file in tables if wanted in _short_names(file)]
    found = found or [(file, sheet) for file in tables for sheet in _sheets(root, file, wanted)]
    if len(found) == 1:
        return found[0]
    if found:
        paths = " or ".join(f'"{file}"' for file, _ in found)
        raise ToolError(f"the table {name!r} is in {len(found)} files; say which one: {paths}")
    known = list(dict.fromkeys(file.stem for file in tables))
    raise ToolError(f"there is no table {name!r}{nearest(name, known) or '; the workspace holds no table files'}")


def _short_names(file: PurePosixPath) -> set[str]:
    return {file.name.casefold(), file.stem.casefold(), re.sub(r"\W+", "_", file.stem.casefold())}


def _sheets(root: Path, file: PurePosixPath, wanted: str) -> list[str]:
    """Return the sheets of a workbook that a name of the form `<file>_<sheet>` means."""
    if file.suffix.lower() not in EXCEL or not any(wanted.startswith(short + "_") for short in _short_names(file)):
        return []
    names = sheet_names(root / file, str(file))
    return [sheet for sheet in names if any(wanted == f"{short}_{sheet.casefold()}" for short in _short_names(file))]


def _typed(connection: Any, place: str, grouped: bool) -> str:
    """Return the SQL that gives a column of text the type that loses nothing of what is written."""
    number = _NUMBER if grouped else _PLAIN_NUMBER
    count, numbers, scientific, whole, fraction, dates, timestamps, booleans = connection.execute(
        f"""SELECT count(v), count_if(regexp_full_match(v, $number)), count_if(regexp_full_match(v, $scientific)),
            max(length(regexp_replace(split_part(v, '.', 1), '[-,]', '', 'g'))), max(length(split_part(v, '.', 2))),
            count_if(regexp_full_match(v, $date) AND TRY_CAST(v AS DATE) IS NOT NULL),
            count_if(regexp_full_match(v, $timestamp) AND TRY_CAST(v AS TIMESTAMP) IS NOT NULL),
            count_if(lower(v) IN ('true', 'false'))
            FROM (SELECT DISTINCT trim({place}) AS v FROM {_CELLS} WHERE {place} IS NOT NULL)""",
        {"number": number, "scientific": _SCIENTIFIC, "date": _DATE, "timestamp": _TIMESTAMP},
    ).fetchone()
    if count == 0:
        return place
    if count == numbers and (kind := _number_type(whole, fraction)):
        return f"CAST(replace(trim({place}), ',', '') AS {kind})"
    for kind, fitting in (("DOUBLE", scientific), ("DATE", dates), ("TIMESTAMP", timestamps), ("BOOLEAN", booleans)):
        if count == fitting and not (kind == "DOUBLE" and count == numbers):
            return f"CAST(trim({place}) AS {kind})"
    return place


def _number_type(whole: int, fraction: int) -> str | None:
    """Return the type for numbers of so many digits before and after the point; None: only text can hold them."""
    if fraction > _MAX_SCALE:
        return "DOUBLE"
    if whole + fraction > 38:
        return None
    if fraction == 0 and whole <= 18:
        return "BIGINT"
    return f"DECIMAL({18 if whole + fraction <= 18 else 38}, {fraction})"


def _reason(error: Exception) -> str:
    return str(error).partition("\n\nLINE")[0].strip()


def _schema(connection: Any) -> str:
    """Return the tables that were loaded, with their columns and types, for an error message."""
    rows = connection.execute(
        "SELECT table_name, string_agg(column_name || ' ' || data_type, ', ' ORDER BY column_index) "
        f"FROM duckdb_columns() WHERE NOT internal AND table_name <> '{_CELLS.strip(chr(34))}' GROUP BY 1 ORDER BY 1"
    ).fetchall()
    return "".join(f"\ntable {name}: {columns}" for name, columns in rows)
