"""SQL over the table files of a folder, in a database that can reach nothing else.

Only the tables that a query names are read, by us, into an in-memory DuckDB whose access to files and network is off
and whose configuration is locked. Results are the same in every run: exact numbers, and rows in a certain order.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from orchestrator.errors import ToolError, nearest
from orchestrator.tables.kinds import typed
from orchestrator.tables.rows import Rows, sort_key
from orchestrator.tables.select import Select
from orchestrator.tables.sheets import EXCEL, TABLES, missing_part, read_sheet, sheet_names, unique
from orchestrator.threads import ThreadPool
from orchestrator.workspace.files import walk

__all__ = ["Rows", "preview", "query", "query_in_thread"]

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
_BATCH = 10_000
_CELLS = '"ori cells"'
"""Where a table's cells are before they have types."""


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
        select = Select.read(connection, self._sql)
        files = [PurePosixPath(file.path) for file in walk(self._root)]
        tables = [file for file in files if file.suffix.lower() in TABLES]
        if select.lists_tables:
            return Rows(("table", "file"), [(file.stem, str(file)) for file in tables])
        for schema, name in select.tables:
            self._load(connection, schema, name, tables)
        result = connection.execute(self._sql)
        columns, rows = unique(column[0] for column in result.description), result.fetchmany(MAX_ROWS + 1)
        if len(rows) > MAX_ROWS:
            raise ToolError(f"the result has more than {MAX_ROWS} rows; aggregate, or add a LIMIT")
        return Rows(columns, rows if select.is_ordered else sorted(rows, key=sort_key))

    def _load(self, connection: Any, schema: str, name: str, tables: Sequence[PurePosixPath]) -> None:
        """Load the file of a table; SQL reads an unquoted `sales.csv` as the table `csv` of a schema `sales`."""
        file, sheet = _find(self._root, f"{schema}.{name}" if schema else name, tables)
        cells = read_sheet(_real(self._root, file), str(file), sheet)
        places = [f"c{i}" for i in range(len(cells.header))]
        connection.execute(f"CREATE TABLE {_CELLS} ({', '.join(f'{place} VARCHAR' for place in places)})")
        insert = f"INSERT INTO {_CELLS} SELECT {', '.join(['unnest(?::VARCHAR[])'] * len(places))}"
        while batch := list(islice(cells.rows, _BATCH)):
            if self._stopped.is_set():
                raise self._too_slow()
            connection.execute(insert, [list(column) for column in zip(*batch, strict=True)])
        columns = [
            f"{typed(connection, _CELLS, place, grouped=cells.grouped)} AS {_quoted(column)}"
            for place, column in zip(places, cells.header, strict=True)
        ]
        if schema:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(schema)}")
        table = f"{_quoted(schema or 'main')}.{_quoted(name)}"
        connection.execute(f"CREATE TABLE {table} AS SELECT {', '.join(columns)} FROM {_CELLS}")
        connection.execute(f"DROP TABLE {_CELLS}")


def preview(path: Path, name: str, limit: int) -> tuple[Rows, int, Sequence[str]]:
    """Return the first rows of a table file as they are written, how many it has, and the lines over its header.

    Raises:
        ToolError: It is no table, or cannot be read.
    """
    sheet = read_sheet(path, name)
    first = [tuple(row) for row in islice(sheet.rows, limit)]
    return Rows(sheet.header, first), len(first) + sum(1 for _ in sheet.rows), sheet.above


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


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


def _real(root: Path, file: PurePosixPath) -> Path:
    """Return where a file is, or what a link leads to: in the folder, as `walk` lists them."""
    path = (root / file).resolve()
    if not path.is_relative_to(root.resolve()):
        raise ToolError(f"{str(file)!r} leads out of the workspace")
    return path


def _short_names(file: PurePosixPath) -> set[str]:
    return {file.name.casefold(), file.stem.casefold(), re.sub(r"\W+", "_", file.stem.casefold())}


def _sheets(root: Path, file: PurePosixPath, wanted: str) -> list[str]:
    """Return the sheets of a workbook that a name of the form `<file>_<sheet>` means."""
    if file.suffix.lower() not in EXCEL or not any(wanted.startswith(short + "_") for short in _short_names(file)):
        return []
    names = sheet_names(_real(root, file), str(file))
    return [sheet for sheet in names if any(wanted == f"{short}_{sheet.casefold()}" for short in _short_names(file))]


def _reason(error: Exception) -> str:
    return str(error).partition("\n\nLINE")[0].strip()


def _schema(connection: Any) -> str:
    """Return the tables that were loaded, with their columns and types, for an error message."""
    rows = connection.execute(
        "SELECT table_name, string_agg(column_name || ' ' || data_type, ', ' ORDER BY column_index) "
        f"FROM duckdb_columns() WHERE NOT internal AND table_name <> '{_CELLS.strip(chr(34))}' GROUP BY 1 ORDER BY 1"
    ).fetchall()
    return "".join(f"\ntable {name}: {columns}" for name, columns in rows)
