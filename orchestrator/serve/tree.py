"""The tree of a run: a line for each subtask while it works, and all its turns and tool calls for `ori show`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Group
from rich.text import Text

from orchestrator.events import ApprovalAsked
from orchestrator.serve.asking import what, why
from orchestrator.serve.plain import count, cut, duration, money, usage_text
from orchestrator.serve.report import one_line
from orchestrator.views.node import Call, Node, Turn
from orchestrator.views.progress import Progress

GLYPHS = {
    "running": ("▸", "cyan"),
    "waiting": ("?", "yellow"),
    "failed": ("✗", "red"),
    "needs_review": ("?", "yellow"),
    "partial": ("~", "yellow"),
    "interrupted": ("⊘", "yellow"),
    "cancelled": ("⊘", "yellow"),
    "done": ("✓", "green"),
    "sent_back": ("✗", "yellow"),
    "skipped": ("-", "dim"),
    "pending": ("◌", "dim"),
}
"""By state, what matters most first. One column wide everywhere, East Asian terminals included."""
_NARROW = 60
"""Columns below which role and cost are left out."""


def tree(progress: Progress, width: int, now: float, *, height: int | None = None, detail: bool = False) -> Group:
    """Draw the tree of a run, a line for each subtask.

    Args:
        progress: The run.
        width: Columns; longer lines are cut.
        now: Until when running clocks count, in seconds since the epoch.
        height: Rows there are; what matters least is left out to fit.
        detail: Show turns and tool calls below each subtask.
    """
    priced = progress.root.usage.cost is not None and width >= _NARROW
    titles = ("tokens", "time", "cost") if priced else ("tokens", "time")
    lines = [_fit(Text(one_line(progress.goal), "bold"), titles, width, "dim")]
    warnings = progress.warnings if detail else progress.warnings[-3:]
    room = None if height is None else max(height - len(warnings) - len(progress.questions) - 3, 1)
    rows, left_out = _choose(list(_walk(progress.root)), room)
    names = min(max((len(guide) + 2 + cell_len(node.id) for guide, _, node in rows), default=0), width // 3)
    roles = min(max((cell_len(node.role) for *_, node in rows), default=0), 14) if width >= _NARROW else 0
    for guide, below, node in rows:
        cost = (money(node.usage.cost),) if priced else ()
        figures = (count(node.usage.tokens), spent(node, now), *cost)
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


def asked(question: ApprovalAsked) -> str:
    """Say what waits for a person, why, and how to answer."""
    reasons = f" ({'; '.join(why(question))})" if question.expects != "answer" else ""
    answer = "answer" if question.expects == "answer" else "approve"
    command = f"ori {answer} {question.run} {question.key}"
    return f"{command}  {cut(what(question), 80)}{reasons}"


def spent(node: Node, now: float) -> str:
    """Say how long a node has worked, until it ended or until now."""
    if node.started is None:
        return ""
    return duration(node.ended - node.started) if node.ended else duration(int(max(now - node.started, 0)))


def _waiting(progress: Progress) -> Iterator[str]:
    yield from (asked(question) for question in progress.questions.values() if not progress.result)


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
    states = list(GLYPHS)
    ranked = sorted(range(1, len(rows)), key=lambda i: states.index(rows[i][2].state))
    out = set(ranked[max(room - 2, 0) :])
    hidden = Counter(rows[i][2].state for i in sorted(out))
    return [row for i, row in enumerate(rows) if i not in out], ", ".join(f"{n} {state}" for state, n in hidden.items())


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
        how.append(f"{count(turn.replied.usage.tokens)} tokens")
    if turn.replied.finish_reason not in ("stop", "tool_calls"):
        how.append(turn.replied.finish_reason)
    return f"{place} ({', '.join(how)}){': ' if turn.text else ''}{one_line(turn.text)}"


def _call_text(call: Call) -> str:
    asked = f"{call.name} {cut(one_line(call.arguments), 80)}"
    if call.returned is None:
        return f"{asked} → no answer"
    back = call.returned
    if back.failure:
        return f"{asked} → {one_line(back.failure.message)}"
    size = f"cut to {back.cut}" if back.cut else f"{back.characters:,} characters"
    return f"{asked} → {'' if back.ok else 'failed, '}{size} in {duration(back.seconds)}"


def _fit(left: Text, figures: tuple[str, ...], width: int, style: str = "") -> Text:
    """Put figures at the right edge and cut what is left of them, by display width."""
    right = "".join(f"{figure:>8}" for figure in figures)
    left.truncate(max(width - len(right), 1), overflow="ellipsis", pad=bool(right))
    return Text.assemble(left, (right, style), no_wrap=True)
