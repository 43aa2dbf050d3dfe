"""Reading, writing, listing and searching the files of the workspace."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import PurePosixPath

from orchestrator import ToolContext, ToolError, tool
from orchestrator.tables import preview as preview_table
from orchestrator.tables.sheets import DELIMITED, EXCEL, TABLES, header_of, sheet_names
from orchestrator.workspace.files import format_files

PREVIEW_LINES = 20
PREVIEW_ROWS = 5
MAX_LISTED = 200
MAX_HITS = 100
MAX_LINE = 300
"""Characters of a line that a search shows."""


@tool(effect="read")
def read_file(
    path: str,
    ctx: ToolContext,
    start: int = 1,
    lines: int | None = None,
    preview: bool = False,
    encoding: str | None = None,
) -> str:
    """Read a text file of the workspace.

    Use it when you need what a file says, as a whole or a range of its lines.

    Args:
        path: The file, relative to the workspace, or a handle `out:…` of a cut output.
        start: First line to read, counted from 1.
        lines: How many lines to read; null: to the end.
        preview: Read only the first 20 lines.
        encoding: Only when an error asks for it, as 'big5'.

    Returns:
        The text; when it is only a part, first which lines these are.
    """
    text = ctx.workspace.read_text(path, encoding)
    return _range(path, text, start, PREVIEW_LINES if preview else lines)


@tool(effect="read")
def preview(path: str, ctx: ToolContext) -> str:
    """Look at the beginning of a file without reading it all.

    Use it when you want to know what a file is about, or which columns a table has.

    Args:
        path: The file, relative to the workspace.

    Returns:
        The first 20 lines of a text; of a table its columns, first rows and number of rows.
    """
    suffix = PurePosixPath(path).suffix.lower()
    if suffix not in TABLES:
        return _range(path, ctx.workspace.read_text(path), 1, PREVIEW_LINES)
    file = ctx.workspace.existing(path)
    rows, total, above = preview_table(file, path, PREVIEW_ROWS)
    sheets = sheet_names(file, path) if suffix in EXCEL else []
    more = f"; it is the first of the sheets {', '.join(sheets)}" if len(sheets) > 1 else ""
    return "\n".join([f"{total} rows{more}", *filter(None, above), rows.markdown()])


@tool(effect="idempotent")
async def write_file(path: str, content: str, ctx: ToolContext) -> str:
    """Write a text file of the workspace, as a whole.

    Use it when a result shall stand in a file. Folders are created; a file of your own is overwritten.

    Args:
        path: The file, relative to the workspace.
        content: The whole text of the file.

    Returns:
        That the file is written.
    """
    return f"{ctx.workspace.write(path, content.encode()).path} written"


@tool(effect="once", outward=False)
async def append_file(path: str, content: str, ctx: ToolContext) -> str:
    """Add text to the end of a text file of the workspace, or begin it.

    Use it when a text is too long to be written at once.

    Args:
        path: The file, relative to the workspace.
        content: What comes after the text that is there.

    Returns:
        That the text is added.
    """
    there = ctx.workspace.read_text(path) if ctx.workspace.resolve(path).exists() else ""
    return f"added to {ctx.workspace.write(path, (there + content).encode()).path}"


@tool(effect="idempotent")
async def delete_file(path: str, ctx: ToolContext) -> str:
    """Delete a file of the workspace.

    Use it when a file of your own is not needed any more.

    Args:
        path: The file, relative to the workspace.

    Returns:
        That the file is deleted.
    """
    ctx.workspace.delete(path)
    return f"{path} deleted"


@tool(effect="read")
def list_files(ctx: ToolContext, folder: str = ".", pattern: str = "*") -> str:
    """List the files of the workspace, with all folders below.

    Use it when you do not know which files there are.

    Args:
        folder: Where to look.
        pattern: Which names, as '*.txt'.

    Returns:
        A line for each file, with its size.
    """
    files = ctx.workspace.list(folder, pattern)
    return format_files(files, MAX_LISTED) or f"no files in {folder!r} match {pattern!r}"


@tool(effect="read")
async def search_files(pattern: str, ctx: ToolContext, folder: str = ".", regex: bool = False) -> str:
    """Find the lines of text files that contain a text; upper and lower case count as equal.

    Use it when you look for a word or an event in one file or in many.

    Args:
        pattern: The text to find.
        folder: A folder, a file, or a handle `out:…` of a cut output.
        regex: Take the pattern as a regular expression.

    Returns:
        A line `file:line: text` for each hit.
    """
    if not pattern:
        raise ToolError("the pattern is empty; give the text to find")
    expression = _compiled(pattern, regex)
    places, lines = await ctx.threads.run(_lines, folder, ctx)
    if regex:
        hits = await _matching(expression, lines)
    else:
        hits = [i for i, line in enumerate(lines) if expression.search(line)]
    found = [f"{places[i]}: {_around(lines[i], expression if not regex else None)}" for i in hits[:MAX_HITS]]
    if len(hits) > MAX_HITS:
        found.append(f"(the first {MAX_HITS} of {len(hits)} lines)")
    return "\n".join(found) or f"no line in {folder!r} contains {pattern!r}"


def _range(path: str, text: str, start: int, count: int | None) -> str:
    """Return some lines, after a head that says which, unless they are all."""
    if not text:
        return f"{path} is empty"
    lines = text.removesuffix("\n").split("\n")
    if not 1 <= start <= len(lines):
        raise ToolError(f"{path!r} has {len(lines)} lines; start={start} is not one of them")
    if count is not None and count < 1:
        raise ToolError(f"lines={count} reads nothing; give 1 or more, or null for all")
    end = len(lines) if count is None else min(len(lines), start + count - 1)
    if start == 1 and end == len(lines):
        return text
    suffix = PurePosixPath(path).suffix.lower()
    columns = f"; columns: {', '.join(header_of(lines[0], suffix))}" if suffix in DELIMITED else ""
    return f"(lines {start}–{end} of {len(lines)}{columns})\n" + "\n".join(lines[start - 1 : end])


def _compiled(pattern: str, regex: bool) -> re.Pattern[str]:
    try:
        return re.compile(pattern if regex else re.escape(pattern), re.IGNORECASE)
    except (re.error, RecursionError, OverflowError) as error:
        raise ToolError(f"{pattern!r} is no regular expression: {error}; for a plain text use regex=false") from None


def _lines(folder: str, ctx: ToolContext) -> tuple[list[str], list[str]]:
    """Return where each line stands and the lines, of all files that are text."""
    names = [folder] if folder.startswith("out:") else [file.path for file in ctx.workspace.list(folder)]
    places, lines = [], []
    for name in names:
        try:
            text = ctx.workspace.read_text(name)
        except ToolError:
            if len(names) == 1:
                raise
            continue
        for number, line in enumerate(text.split("\n"), 1):
            places.append(f"{name}:{number}")
            lines.append(line)
    return places, lines


_MATCHER = """
import re, sys
expression = re.compile(sys.argv[1], re.IGNORECASE)
for number, line in enumerate(sys.stdin.buffer.read().decode().split("\\n")):
    if expression.search(line):
        print(number)
"""


async def _matching(expression: re.Pattern[str], lines: list[str]) -> list[int]:
    """Return which lines match, found by a process: some expressions take for ever, and hold the interpreter's lock."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-ISc", _MATCHER, expression.pattern,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(20):
            output, _ = await process.communicate("\n".join(lines).encode("utf-8", "replace"))
    except TimeoutError:
        raise ToolError(f"{expression.pattern!r} took too long; use a simpler expression") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return [int(number) for number in output.split()]


def _around(line: str, expression: re.Pattern[str] | None) -> str:
    """Return a line, or the part of a long one around the first hit."""
    if len(line) <= MAX_LINE:
        return line.strip()
    hit = expression.search(line) if expression else None
    begin = max(0, hit.start() - MAX_LINE // 2) if hit else 0
    return f"…{line[begin : begin + MAX_LINE]}…"
