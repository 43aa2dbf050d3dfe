"""SQL over the tables of the workspace."""

from __future__ import annotations

from pathlib import PurePosixPath

from orchestrator import ToolContext, ToolError, ToolResult, Toolset, tool
from orchestrator.extras import not_installed
from orchestrator.tables import Rows, query_in_thread

SECONDS = 30.0
SHOWN_ROWS = 200

toolset = Toolset(missing=lambda settings: not_installed("tables", "duckdb", "python_calamine"))


@tool(effect="idempotent", timeout=SECONDS + 5)
async def query_table(sql: str, ctx: ToolContext, save_as: str | None = None) -> ToolResult:
    """Answer an SQL query (DuckDB's dialect, SELECT only) over the table files of the workspace.

    Use it when figures must be counted, summed, sorted or looked up in a CSV, TSV, JSON-lines or Excel file. A table is
    called by its file's name without the suffix, or by its path in double quotes; another sheet of a workbook by
    file_sheet. DESCRIBE lists the columns of a table, SHOW TABLES lists the tables.

    Args:
        sql: One SELECT, as SELECT count(*) FROM items.
        save_as: Also write all rows into this file of the workspace, as a .md or a .csv table.

    Returns:
        The rows as a Markdown table.
    """
    if save_as is not None:
        _form(save_as)
    rows = await query_in_thread(ctx.workspace.root, sql, ctx.threads, seconds=SECONDS)
    saved = ""
    if save_as is not None:
        whole = rows.csv() if _form(save_as) == ".csv" else rows.markdown() + "\n"
        saved = f"\n{ctx.workspace.write(save_as, whole.encode()).path} written"
    return ToolResult(_shown(rows) + saved, value=rows.records())


def _form(name: str) -> str:
    suffix = PurePosixPath(name).suffix.lower()
    if suffix not in (".md", ".csv"):
        raise ToolError(f"save_as={name!r}: a table can be saved as .md or .csv")
    return suffix


def _shown(rows: Rows) -> str:
    if not rows.rows:
        return f"no rows; columns: {', '.join(rows.columns)}"
    note = f"\n(the first {SHOWN_ROWS} of {len(rows.rows)} rows)" if len(rows.rows) > SHOWN_ROWS else ""
    return rows.markdown(SHOWN_ROWS) + note
