"""What a person sees of a run in a terminal: the live tree, plain lines where there is none, and `ori show`."""

from __future__ import annotations

import asyncio
import io
import time
from collections import Counter
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from orchestrator.events import (
    ApprovalAsked,
    BreakerChanged,
    BudgetReached,
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
    SubtaskWaiting,
    Warned,
)
from orchestrator.journal import DONE_BY
from orchestrator.messages import Usage
from orchestrator.serve.asking import Asker
from orchestrator.serve.report import one_line
from orchestrator.views.progress import Call, Node, Progress, Turn

GLYPHS = {
    "pending": ("◌", "dim"),
    "running": ("▸", "cyan"),
    "waiting": ("?", "yellow"),
    "done": ("✓", "green"),
    "partial": ("~", "yellow"),
    "failed": ("✗", "red"),
    "skipped": ("-", "dim"),
    "cancelled": ("⊘", "yellow"),
    "interrupted": ("⊘", "yellow"),
    "needs_review": ("?", "yellow"),
    "sent_back": ("✗", "yellow"),
}
"""One column wide everywhere, East Asian terminals included."""
_FIRST_TO_SHOW = (
    *("running", "waiting", "failed", "needs_review", "partial", "interrupted", "cancelled"),
    *("done", "sent_back", "skipped", "pending"),
)
_NARROW = 60
"""Columns below which role and cost are left out."""


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

    with Live(console=console, auto_refresh=False, redirect_stdout=False) as live:
        if asker:
            asker.aside = lambda: _printed(live, draw(None))
        try:
            async with asyncio.TaskGroup() as group:
                drawing = group.create_task(redraw(live))
                async for event in events:
                    progress.apply(event)
                drawing.cancel()
        finally:
            if ours:
                progress.stop("interrupted", clock())
            live.update(draw(None), refresh=True)


@contextmanager
def _printed(live: Live, drawn: Group) -> Iterator[None]:
    """Leave what is drawn standing, and go on drawing below what is written meanwhile."""
    live.update(Group(), refresh=True)  # a restart moves the cursor up by the height of what was drawn last
    live.stop()
    live.console.print(drawn)
    try:
        yield
    finally:
        live.start()


def tree(progress: Progress, width: int, now: float, *, height: int | None = None, detail: bool = False) -> Group:
    """Draw the tree of a run, a line for each subtask.

    Args:
        progress: The run.
        width: Columns; longer lines are cut.
        now: Until when running clocks count, in seconds since the epoch.
        height: Rows there are; what matters least is left out to fit.
        detail: Show turns and tool calls below each subtask.
    """
    money = progress.root.usage.cost is not None and width >= _NARROW
    titles = ("tokens", "time", "cost") if money else ("tokens", "time")
    lines = [_fit(Text(one_line(progress.goal), "bold"), titles, width, "dim")]
    warnings = progress.warnings if detail else progress.warnings[-3:]
    room = None if height is None else max(height - len(warnings) - len(progress.questions) - 3, 1)
    rows, left_out = _choose(list(_walk(progress.root)), room)
    names = min(max((len(guide) + 2 + cell_len(node.id) for guide, _, node in rows), default=0), width // 3)
    roles = min(max((cell_len(node.role) for *_, node in rows), default=0), 14) if width >= _NARROW else 0
    for guide, below, node in rows:
        cost = (_money(node.usage.cost),) if money else ()
        figures = (_count(node.usage.tokens), _spent(node, now), *cost)
        lines.append(_fit(_row(guide, node, names, roles), figures, width))
        if detail:
            lines += [_fit(Text.assemble((below, "dim"), said), (), width) for said in _details(node)]
    if left_out:
        lines.append(_fit(Text(f"… {left_out} not shown", "dim"), (), width))
    lines += [_fit(Text(f"! {one_line(text)}", "yellow"), (), width) for text in warnings]
    lines += [_fit(Text(f"? {one_line(said)}", "yellow"), (), width) for said in _waiting(progress)]
    return Group(*lines)


def show(progress: Progress, width: int) -> Group:
    """Draw a run from its log: the tree with turns and tool calls, and what it cost by role."""
    models = ", ".join(sorted(set(progress.models.values())))
    about = {"run": progress.run, "scenario": progress.scenario, "models": models, "workspace": progress.workspace}
    head = [Text(f"{name}: {value}", "dim", no_wrap=True) for name, value in about.items() if value]
    costs = [Text(f"{role}: {usage_text(usage)}") for role, usage in progress.by_role.items()]
    if weight := progress.prompts.total():
        parts = ", ".join(f"{part} {tokens / weight:.0%}" for part, tokens in progress.prompts.items())
        costs.append(Text(f"prompts: {parts} (estimated)"))
    if saved := str(progress.saved):
        costs.append(Text(f"kept out of prompts: {saved}"))
    total = Text(f"total: {usage_text(progress.root.usage)}", "bold")
    return Group(*head, tree(progress, width, progress.now, detail=True), *costs, total)


def line(progress: Progress, event: Event) -> str | None:
    """Say a lasting change in one plain line, or None for what is no such change.

    Args:
        progress: The run, with the event taken in.
        event: What happened.
    """
    name = event.path.partition("/")[2] or event.path or progress.root.id
    match event:
        case PlanAdded(subtasks=subtasks):
            said = f"{name} plans " + "; ".join(_planned(s) for s in subtasks)
        case PlanRejected(faults=faults):
            said = f"{name}: plan sent back: {'; '.join(faults)}"
        case SubtaskStarted(role=role, goal=goal):
            said = f"{name} started ({role}): {goal}"
        case SubtaskWaiting(why=why):
            said = f"{name} waits: {why}"
        case SubtaskEnded(outcome=outcome):
            node = progress.node(event.path)
            tokens = f", {_count(node.usage.tokens)} tokens" if node.usage.tokens else ""
            said = f"{name} {outcome.status} ({_spent(node, event.at)}{tokens}): {node.result}"
        case ApprovalAsked():
            said = f"{name} asks: {asked(event)}"
        case SignalTaken(signal=signal, by=by):
            said = f"{name}: {DONE_BY[signal]} {by}"
        case ReviewDone(round=number, accepted=accepted, feedback=feedback):
            said = f"{name} {'accepted' if accepted else 'sent back'} in review {number}: {feedback}"
        case Compacted():
            said = f"{name}, {progress.node(event.path).notes[-1]}"
        case BudgetReached() | BreakerChanged() | Warned():
            said = f"warning: {progress.warnings[-1]}"
        case ModelFailed(failure=failure):
            said = f"warning: {name}: {failure.message}"
        case RunResumed():
            said = progress.warnings[-1]
        case RunEnded(result=result):
            said = f"{name} {result.status} ({_spent(progress.root, event.at)}): {usage_text(result.usage)}"
        case _:
            return None
    start = progress.root.started or event.at
    return _cut(f"{event.at - start:7.1f}s  {one_line(said)}", 200)


def asked(question: ApprovalAsked) -> str:
    """Say what waits for a person, why, and how to answer."""
    where = f": {question.destination}" if question.destination else ""
    answer = "answer" if question.expects == "answer" else "approve"
    command = f"ori {answer} {question.run} {question.key}"
    return f"{command}  {question.name} {_cut(one_line(question.arguments), 60)} ({question.why}{where})"


def _waiting(progress: Progress) -> Iterator[str]:
    yield from (asked(question) for question in progress.questions.values() if not progress.result)


def usage_text(usage: Usage) -> str:
    """Say what model calls cost, in one line."""
    parts = [f"{usage.calls} model call{'s' * (usage.calls != 1)}"]
    if usage.tokens:  # a recording that was scripted by hand has none
        parts.append(f"{usage.tokens:,} tokens")
    if usage.cached:
        parts.append(f"{usage.cached:,} of them cached")
    if usage.cost is not None:
        parts.append(f"cost {_money(usage.cost)}")
    if usage.estimated_calls:
        parts.append(f"{usage.estimated_calls} calls estimated")
    return ", ".join(parts)


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
        cells = [[*row[:-1], _cut(row[-1], max(width - sum(taken), 10))] for row in cells]
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


def _walk(node: Node, guide: str = "", below: str = "") -> Iterator[tuple[str, str, Node]]:
    """Yield each node with the guide lines before it, and those before what is said below it."""
    children = list(node.children.values())
    yield guide, below + ("│  " if children else "   "), node
    for child in children:
        last = child is children[-1]
        yield from _walk(child, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "))


def _choose(rows: list[tuple[str, str, Node]], room: int | None) -> tuple[list[tuple[str, str, Node]], str]:
    """Keep what matters most of too many rows, in their order, and say what was left out."""
    if room is None or len(rows) <= room:
        return rows, ""
    ranked = sorted(range(1, len(rows)), key=lambda i: _FIRST_TO_SHOW.index(rows[i][2].state))
    out = set(ranked[max(room - 2, 0) :])
    states = Counter(rows[i][2].state for i in sorted(out))
    return [row for i, row in enumerate(rows) if i not in out], ", ".join(f"{n} {state}" for state, n in states.items())


def _row(guide: str, node: Node, names: int, roles: int) -> Text:
    glyph, style = GLYPHS[node.state]
    name = Text.assemble((guide, "dim"), (f"{glyph} ", style), (node.id, "bold" if node.state == "running" else ""))
    name.truncate(names, overflow="ellipsis", pad=True)
    role = Text("" if node.role == node.id else node.role, "dim")
    role.truncate(roles, overflow="ellipsis", pad=True)
    says = Text.assemble((one_line(_says(node)), "" if node.state in ("running", "done") else style))
    if node.state == "running":
        says.append(f"  {one_line(node.goal)}", "dim")
    return Text("  ").join([name, *([role] if roles else []), says])


def _says(node: Node) -> str:
    match node.state:
        case "pending":
            return f"after {', '.join(node.after)}" if node.after else ""
        case "running":
            ended = sum(not child.open for child in node.children.values())
            of = f" {ended}/{len(node.children)}" if node.children else ""
            return f"{node.doing()}{of}" + (f" ({node.saved})" if str(node.saved) else "")
        case "done":
            return node.result
        case state:
            return state.replace("_", " ") + (f": {node.result}" if node.result else "")


def _details(node: Node) -> Iterator[Text]:
    """Say what happened in a node: its turns with their tool calls, then the notes."""
    for turn in node.turns.values():
        yield Text(_turn_text(turn), "dim")
        for call in turn.calls.values():
            failed = call.returned is None or not call.returned.ok
            yield Text(f"  {_call_text(call)}", "red" if failed else "")
    for note in node.notes:
        yield Text(one_line(note), "yellow")


def _turn_text(turn: Turn) -> str:
    place = (f"attempt {turn.attempt}, " if turn.attempt > 1 else "") + f"turn {turn.number}"
    if turn.failed:
        return f"{place}: {one_line(turn.failed.failure.message)}"
    if turn.replied is None:
        return f"{place}: no reply" if turn.model else place
    how = ["replayed"] if turn.replied.replayed else [turn.replied.model, duration(turn.replied.seconds)]
    if turn.replied.usage.tokens:
        how.append(f"{_count(turn.replied.usage.tokens)} tokens")
    if turn.replied.finish_reason not in ("stop", "tool_calls"):
        how.append(turn.replied.finish_reason)
    return f"{place} ({', '.join(how)}){': ' if turn.text else ''}{one_line(turn.text)}"


def _call_text(call: Call) -> str:
    asked = f"{call.name} {_cut(one_line(call.arguments), 80)}"
    if call.returned is None:
        return f"{asked} → no answer"
    back = call.returned
    if back.failure:
        return f"{asked} → {one_line(back.failure.message)}"
    size = f"cut to {back.cut}" if back.cut else f"{back.characters:,} characters"
    return f"{asked} → {'' if back.ok else 'failed, '}{size} in {duration(back.seconds)}"


def _planned(subtask: Mapping[str, Any]) -> str:
    after = f" after {', '.join(subtask['after'])}" if subtask.get("after") else ""
    return f"{subtask['id']} ({subtask.get('role') or subtask.get('tool')}){after}"


def _fit(left: Text, figures: tuple[str, ...], width: int, style: str = "") -> Text:
    """Put figures at the right edge and cut what is left of them, by display width."""
    right = "".join(f"{figure:>8}" for figure in figures)
    left.truncate(max(width - len(right), 1), overflow="ellipsis", pad=bool(right))
    return Text.assemble(left, (right, style), no_wrap=True)


def _cut(text: str, width: int) -> str:
    cut = Text(text)
    cut.truncate(width, overflow="ellipsis")
    return cut.plain


def _count(tokens: int) -> str:
    if tokens < 1000:
        return str(tokens or "")
    return f"{tokens / 1000:.1f}k" if tokens < 1_000_000 else f"{tokens / 1_000_000:.1f}M"


def _spent(node: Node, now: float) -> str:
    if node.started is None:
        return ""
    return duration(node.ended - node.started) if node.ended else duration(int(max(now - node.started, 0)))


def duration(seconds: float) -> str:
    """Say a time, as `0.4s`, `12s`, `3:05` or `1:02:03`."""
    if isinstance(seconds, float) and seconds < 10:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}" if minutes else f"{rest}s"


def _money(cost: Decimal | None) -> str:
    return "" if cost is None else f"{cost:.4f}"
