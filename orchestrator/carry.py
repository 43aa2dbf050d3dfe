"""What comes along from earlier runs, and what is kept for later ones.

A session hands on a digest of its goals and its variables, read from the log; a user's memories are recalled by what a
loop is asked. Runs of nobody bring nothing and leave nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from orchestrator.context import RunContext
from orchestrator.describing import quote
from orchestrator.errors import MemoryStoreError
from orchestrator.events import Event, RunEnded, RunStarted, VariableSet, Warned
from orchestrator.fences import fence
from orchestrator.loop import Given
from orchestrator.results import RunResult

GOALS = 10
"""Earlier goals of a session that its digest tells of."""
_ANSWER = 500
"""Characters of each answer that it quotes."""


async def recall(context: RunContext, path: str, task: str) -> list[Given]:
    """Return what the loop at `path` is told of memories about its task, behind its first message."""
    try:
        memories = await context.memory.recall(task)
    except MemoryStoreError as error:
        context.log.add(Warned(path=path, text=str(error)))
        return []
    return _given(context, "memories", [(f"- {memory.text}", memory.untrusted) for memory in memories])


def session(context: RunContext, earlier: Sequence[Event]) -> list[Given]:
    """Take over the variables of a session's earlier runs, and return a digest of them, a line for each.

    Args:
        context: The run.
        earlier: Starts, ends and variables of those runs.
    """
    goals: dict[str, str] = {}
    told: dict[str, tuple[str, Sequence[str]]] = {}
    for event in sorted(earlier, key=lambda event: event.at):
        match event:
            case RunStarted():
                goals[event.run] = event.goal
            case RunEnded():
                told.pop(event.run, None)  # it has gone on since
                told[event.run] = _told(goals.get(event.run, ""), event.result), event.result.untrusted
            case VariableSet(deleted=True):
                context.variables.pop(event.name, None)
            case VariableSet():
                context.variables.seen_by(partial(tuple, event.sources), tuple)[event.name] = event.value
    return _given(context, "session", list(told.values())[-GOALS:])


async def keep(context: RunContext, result: RunResult) -> None:
    """Remember, for the user of a run that ended, what form they wanted, and which tools did not work."""
    if not context.memory.owned:
        return
    form = context.formatted_goal.expected_output if context.formatted_goal else None
    try:
        if form and result.status == "done":
            wanted = context.text("preferred_form", form=quote(form, _ANSWER))
            await context.memory.remember(wanted, kind="profile", untrusted=result.untrusted)
        for tool, broken in context.broken_tools.items():
            if broken is not None:
                why, sources = broken
                told = context.text("failed_tool", tool=tool, why=why)
                await context.memory.remember(told, kind="failure", untrusted=sources)
    except MemoryStoreError as error:
        context.log.add(Warned(text=str(error)))


def _given(context: RunContext, introduction: str, lines: Sequence[tuple[str, Sequence[str]]]) -> list[Given]:
    """Return lines as they are given to a loop, each with what strangers may have written that it carries words of."""
    sources = tuple(dict.fromkeys(source for _, untrusted in lines for source in untrusted))
    text = "\n".join(line for line, _ in lines)
    return (
        [Given(context.text(introduction), fence(context, text, sources) if sources else text, sources)]
        if lines
        else []
    )


def _told(goal: str, result: RunResult) -> str:
    files = ", ".join(artifact.path for artifact in result.artifacts)
    wrote = f" (files: {files})" if files else ""
    return f"- {quote(goal, _ANSWER)} → {result.status}: {quote(result.answer, _ANSWER)}{wrote}"
