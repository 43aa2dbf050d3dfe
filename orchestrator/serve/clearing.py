"""`ori gc`: clears old runs away, what the log holds of them and their folders."""

from __future__ import annotations

import asyncio
import shutil
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import JournalError
from orchestrator.serve.projectlog import open_log
from orchestrator.serve.report import DONE, NEEDS_A_LOOK, Report, one_line

if TYPE_CHECKING:
    from orchestrator.journal import Journal, RunInfo

_FINISHED = ("done", "partial", "failed", "cancelled")


def gc(args: Namespace) -> Report:
    """Delete runs that ended long ago; with `--all`, also those that were interrupted or wait for people."""
    before = time.time() - args.older
    log = open_log(args.project)
    infos = asyncio.run(log.journal.runs())
    old = [info for info in infos if info.status != "running" and _is_old(info, before, args.all)]
    if args.dry_run:
        lines = [f"would delete {_about(info)}" for info in old]
        return Report(data={"would_delete": [info.run for info in old]}, text="\n".join(lines) or "nothing to delete")
    freed, left = asyncio.run(_clear(log.journal, log.runs, old, before, everything=args.all))
    lines = [f"deleted {_about(info)}" for info in old if info.run in freed]
    lines += [f"left {run}: {why}" for run, why in left.items()]
    data = {"deleted": list(freed), "left": left, "freed_bytes": sum(freed.values())}
    note = f"freed {sum(freed.values()):,} bytes" if freed else ""
    text = "\n".join(lines) or "nothing to delete"
    return Report(data=data, text=text, note=note, status=NEEDS_A_LOOK if left else DONE)


async def _clear(
    journal: Journal, folder: Path, old: Sequence[RunInfo], before: float, *, everything: bool
) -> tuple[dict[str, int], dict[str, str]]:
    """Delete runs; return the bytes that each has freed, and why others were left."""
    freed: dict[str, int] = {}
    left: dict[str, str] = {}
    for info in old:
        try:
            async with journal.own(info.run):
                if not _is_old(await journal.info(info.run), before, everything):
                    left[info.run] = "it went on meanwhile"
                    continue
                # The folder first: a run whose folder is half gone is found again, a folder without a run is not.
                size = await asyncio.to_thread(_remove, folder / info.run)
                freed[info.run] = size + await journal.delete(info.run)
        except (JournalError, OSError) as error:
            left[info.run] = str(error)
    await journal.aclose()
    return freed, left


def _is_old(info: RunInfo, before: float, everything: bool) -> bool:
    """Whether a run may go; the age of one without an end counts from its start."""
    finished = info.status in _FINISHED and not info.waiting
    return (info.ended or info.started) < before and (finished or everything)


def _remove(folder: Path) -> int:
    """Delete a folder, if it is there, and return how many bytes its files had."""
    if not folder.exists():
        return 0
    size = sum(file.lstat().st_size for file in folder.rglob("*") if file.is_symlink() or file.is_file())
    shutil.rmtree(folder)
    return size


def _about(info: RunInfo) -> str:
    started = time.strftime("%Y-%m-%d", time.localtime(info.started))
    return f"{info.run} ({info.status}, {started}): {one_line(info.goal, 100)}"
