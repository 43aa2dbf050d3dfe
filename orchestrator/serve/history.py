"""`ori runs`, `show`, `undo`, `record`: what the log tells of past runs, and what can still be done about them."""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError, JournalError
from orchestrator.serve import plain
from orchestrator.serve.projectlog import open_log
from orchestrator.serve.report import DONE, NEEDS_A_LOOK, STDOUT, Report, write

if TYPE_CHECKING:
    from orchestrator.events import ChangesUndone, Event
    from orchestrator.journal import Journal, RunInfo

_LOOK = 0.25
"""Seconds between two looks at a run of another process."""


@dataclass(frozen=True, slots=True)
class _Past:
    """One run of the log."""

    info: RunInfo
    events: Sequence[Event]
    home: Path
    """The run's own folder."""
    waiting: Collection[str]
    """Keys of the calls that still wait for a person's word."""
    redact: Callable[[str], str]


def runs(args: Namespace) -> Report:
    """List past runs, the newest first."""
    infos = asyncio.run(open_log(args.project).journal.runs())
    if not infos:
        return Report(data=[], note=f"no runs yet in {args.project}")
    if args.by:
        return _used(infos, args.by)
    titles = ("run", "status", "started", "time", "tokens", "goal")
    rows = [
        (
            info.run,
            info.status,
            f"{datetime.fromtimestamp(info.started):%Y-%m-%d %H:%M}",
            plain.duration(info.ended - info.started) if info.ended else "",
            f"{info.tokens:,}",
            info.goal[:500],
        )
        for info in infos
    ]
    waiting = sum(info.waiting for info in infos)
    return Report(
        data=infos,
        draw=partial(plain.table, titles, rows),
        note=f"{plain.counted(waiting, 'call')} wait{'s' * (waiting == 1)} for a person: ori inbox" if waiting else "",
    )


def _used(infos: Sequence[RunInfo], by: str) -> Report:
    """Sum up what runs have used, by whom they were for."""
    groups: dict[str, list[RunInfo]] = {}
    for info in infos:
        groups.setdefault(getattr(info, by) or "", []).append(info)
    data = [
        {
            by: name or None,
            "runs": len(group),
            "tokens": sum(info.tokens for info in group),
            "cost": str(sum(costs)) if (costs := [Decimal(info.cost) for info in group if info.cost]) else None,
        }
        for name, group in sorted(groups.items())
    ]
    rows = [(f"{d[by] or '(none)'}", f"{d['runs']}", f"{d['tokens']:,}", f"{d['cost'] or ''}") for d in data]
    return Report(data=data, draw=partial(plain.table, (by, "runs", "tokens", "cost"), rows))


def show(args: Namespace) -> Report:
    """Show what happened in a run, with `--follow` once it is over, and until then what happens.

    With `--verbose`, log each event too, with prompts and replies.
    """
    from orchestrator.codec import encode
    from orchestrator.serve import layout, terminal, tree
    from orchestrator.views.log import log_to, stream_logger
    from orchestrator.views.progress import Progress

    past = _read(args)
    if args.follow and past.info.status == "running":
        news = follow(open_log(args.project).journal, past.info.run, past.events[-1].seq)
        asyncio.run(terminal.watch(news, sys.stderr, before=past.events, ours=False))
        past = _read(args)
    log = log_to(stream_logger(sys.stderr, verbose=True), past.redact)
    progress = Progress()
    for event in past.events:
        progress.apply(event)
        if args.verbose:
            log(event)
    for answered in progress.questions.keys() - past.waiting:  # by a word that the run has not heard yet
        del progress.questions[answered]
    if past.info.ended is None and past.info.status != "running":
        progress.stop(past.info.status, progress.now)
    data = asdict(past.info) | {"events": [json.loads(encode(event)) for event in past.events]}
    return Report(data=data, draw=lambda width, color: layout.to_text(tree.show(progress, width), width, color))


async def follow(journal: Journal, run: str, after: int) -> AsyncIterator[Event]:
    """Yield what happens in a run from an event on, until nobody works on it."""
    over = False
    while True:
        events = await journal.events(run, after)
        for event in events:
            yield event
            after = event.seq
        if over:
            return
        if not events:
            over = (await journal.info(run)).status != "running"
        if not over:
            await asyncio.sleep(_LOOK)


def undo(args: Namespace) -> Report:
    """Put back what a run, or one subtask of it, changed in its workspace."""
    from orchestrator.run import Orchestrator

    async def work() -> ChangesUndone:
        async with Orchestrator.from_project(args.project) as orchestrator:
            run = await resolve(orchestrator.journal, args.run)
            return await orchestrator.undo(run, args.subtask, force=args.force)

    undone = asyncio.run(work())
    lines = [f"restored {name}" for name in undone.restored] + [f"deleted {name}" for name in undone.deleted]
    lines += [f"left {reason}" for reason in undone.left]
    lines += [f"cannot be undone: {call}" for call in undone.calls]
    data = {name: list(getattr(undone, name)) for name in ("restored", "deleted", "left", "calls")}
    return Report(data=data, text="\n".join(lines) or "nothing to undo", status=NEEDS_A_LOOK if undone.left else DONE)


def record(args: Namespace) -> Report:
    """Write a run's replies as a recording, which a scenario can name."""
    from orchestrator.events import ArtifactStored, RunStarted
    from orchestrator.models.recorder import record as recorded
    from orchestrator.workspace import Workspace

    past = _read(args)
    root = next(Path(event.workspace) for event in past.events if isinstance(event, RunStarted))
    changes, redact = Workspace(root, past.home).changes, past.redact

    def content(change: ArtifactStored) -> bytes | None:
        data = changes.content(change)
        with suppress(UnicodeDecodeError):  # what is no text is kept as it is
            data = data and redact(data.decode()).encode()
        return data

    project = Path(args.project).resolve()
    recording = recorded(past.events, project=project, content=content if args.tools else None)
    if not recording.lines:
        raise ConfigError(f"run {past.info.run} has no reply of a model; there is nothing to record")
    tools = f" and {plain.counted(len(recording.tools), 'result')} of tools" if args.tools else ""
    replies = f"{plain.counted(len(recording.lines), 'answer')} of the model{tools}"
    note = f"{replies}; name the file in the scenario under recording:, then: ori test"
    text = redact(recording.dump())
    if args.output == STDOUT:
        return Report(data={"recording": text}, text=text.rstrip(), note=note)
    write(args.output, text)
    return Report(data={"written": str(args.output)}, text=str(args.output), note=note)


def _read(args: Namespace) -> _Past:
    """Read the run that the command names."""
    log = open_log(args.project)

    async def read() -> _Past:
        journal = log.journal
        run = await resolve(journal, args.run) if args.run else await _latest(journal)
        info, events = await journal.info(run), await journal.events(run)
        waiting = {question.key for question in await journal.questions(run)}
        return _Past(info, events, log.runs / run, waiting, log.redactor().text)

    return asyncio.run(read())


async def _latest(journal: Journal) -> str:
    infos = await journal.runs()
    if not infos:
        raise ConfigError("there is no run yet; start one: ori solve GOAL")
    return infos[0].run


async def resolve(journal: Journal, named: str) -> str:
    """Return the id of the run that somebody names."""
    try:
        return await journal.resolve(named)
    except JournalError as error:
        raise ConfigError(str(error)) from error
