"""What a person sees of a run while it works: the live tree, or plain lines where there is no terminal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live

from orchestrator.events import (
    ApprovalAsked,
    BreakerChanged,
    BudgetReached,
    ChangesUndone,
    Compacted,
    Event,
    ModelFailed,
    PlanAdded,
    PlanRejected,
    ReviewDone,
    RunEnded,
    RunResumed,
    SignalTaken,
    SubtaskEnded,
    SubtaskStarted,
    Warned,
)
from orchestrator.journal import DONE_BY
from orchestrator.serve.asking import Asker
from orchestrator.serve.plain import count, cut, usage_text
from orchestrator.serve.report import one_line
from orchestrator.serve.tree import asked, spent, tree
from orchestrator.views.progress import Progress


async def watch(
    events: AsyncIterable[Event],
    file: TextIO,
    clock: Callable[[], float] = time.time,
    *,
    asker: Asker | None = None,
    before: Iterable[Event] = (),
    ours: bool = True,
) -> None:
    """Show a run while it works, until its events end: a live tree in a terminal, else a line per lasting change.

    Args:
        events: Of the run.
        file: Where it is shown.
        clock: Gives seconds since the epoch.
        asker: Asks the person who watches; meanwhile the tree is out of the way.
        before: What happened before, and is not told again.
        ours: This process works on it, so that what is open when the watching ends was interrupted.
    """
    console = Console(file=file, force_terminal=file.isatty())
    progress = Progress()
    for event in before:
        progress.apply(event)
    if console.is_terminal and not console.is_dumb_terminal:
        await _watch_live(events, progress, console, clock, asker, ours)
    else:
        async for event in events:
            progress.apply(event)
            if said := line(progress, event):
                print(said, file=file, flush=True)


async def _watch_live(
    events: AsyncIterable[Event],
    progress: Progress,
    console: Console,
    clock: Callable[[], float],
    asker: Asker | None,
    ours: bool,
) -> None:
    def draw(height: int | None) -> Group:
        # Two columns stay free: the ^C that a terminal echoes must not wrap into another line.
        return tree(progress, console.width - 2, clock(), height=height)

    async def redraw(live: Live) -> None:
        drawn: object = None
        while True:
            seen = (progress.changes, int(clock()), console.size)
            if seen != drawn and progress.changes and live.is_started:
                live.update(draw(console.height), refresh=True)
                drawn = seen
            await asyncio.sleep(0.1)

    @contextmanager
    def aside() -> Iterator[None]:
        """Take the tree away, which would stand still and look live, and go on below what is written meanwhile."""
        live.update(Group(), refresh=True)
        live.stop()
        try:
            yield
        finally:
            if watching:  # a question may outlast the run's events
                live.start()

    watching = True
    with Live(console=console, auto_refresh=False, redirect_stdout=False) as live:
        if asker:
            asker.aside = aside
        try:
            async with asyncio.TaskGroup() as group:
                drawing = group.create_task(redraw(live))
                async for event in events:
                    progress.apply(event)
                drawing.cancel()
        finally:
            watching = False
            if ours:
                progress.stop("interrupted", clock())
            if not live.is_started:  # the cursor stands behind a question
                console.print()
                live.start()
            live.update(draw(None), refresh=True)


def line(progress: Progress, event: Event) -> str | None:
    """Say a lasting change in one plain line, or None for what is no such change.

    Args:
        progress: The run, with the event taken in.
        event: What happened.
    """
    name = event.path.partition("/")[2] or event.path or progress.root.id
    match event:
        case PlanAdded(subtasks=()):
            said = f"{name} plans nothing new"
        case PlanAdded(subtasks=subtasks):
            said = f"{name} plans " + "; ".join(_planned(s) for s in subtasks)
        case PlanRejected(faults=faults):
            said = f"{name}: plan sent back: {'; '.join(faults)}"
        case SubtaskStarted(role=role, goal=goal):
            said = f"{name} started ({role}): {goal}"
        case SubtaskEnded(outcome=outcome):
            node = progress.node(event.path)
            tokens = f", {count(node.usage.tokens)} tokens" if node.usage.tokens else ""
            said = f"{name} {outcome.status} ({spent(node, event.at)}{tokens}): {node.result}"
        case ApprovalAsked():
            said = f"{name} asks: {asked(event)}"
        case SignalTaken(signal=signal, by=by):
            said = f"{name}: {DONE_BY[signal]} {by}"
        case ReviewDone(round=number, accepted=accepted, feedback=feedback):
            said = f"{name} {'accepted' if accepted else 'sent back'} in review {number}: {feedback}"
        case Compacted():
            said = f"{name}, {progress.node(event.path).notes[-1]}"
        case BudgetReached() | BreakerChanged() | ChangesUndone() | Warned():
            said = f"warning: {progress.warnings[-1]}"
        case ModelFailed(failure=failure):
            said = f"warning: {name}: {failure.message}"
        case RunResumed():
            said = progress.warnings[-1]
        case RunEnded(result=result):
            said = f"{name} {result.status} ({spent(progress.root, event.at)}): {usage_text(result.usage)}"
        case _:
            return None
    start = progress.root.started or event.at
    return cut(f"{event.at - start:7.1f}s  {one_line(said)}", 200)


def _planned(subtask: Mapping[str, Any]) -> str:
    after = f" after {', '.join(subtask['after'])}" if subtask.get("after") else ""
    return f"{subtask['id']} ({subtask.get('role') or subtask.get('tool')}){after}"
