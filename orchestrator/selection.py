"""Which of a role's many tools its loop is shown: by words, or by one call of the model for all of them."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.caller import Caller, Weight
from orchestrator.choice import MANY, ToolSearch, best_scored, names
from orchestrator.context import record_key
from orchestrator.conversation import counts_of
from orchestrator.errors import ModelError, OutOfBudget
from orchestrator.events import Warned
from orchestrator.messages import Message, Request, ToolSpec
from orchestrator.text.relevance import read_scores
from orchestrator.tool import Tool

_SAID = 200
"""Characters of a tool's description that the model judges it by."""
_ANSWER = 12
"""Tokens that the score of one tool takes."""


async def hidden_tools(caller: Caller, tools: Sequence[Tool], task: str) -> set[str]:
    """Return the names of the tools that a loop is not shown.

    Args:
        caller: Makes the loop's model calls.
        tools: All tools to choose from.
        task: What the loop is asked.
    """
    if len(tools) <= MANY or caller.role.choose_tools == "all":
        return set()
    specs = [tool.spec() for tool in tools]
    scores = await _scores(caller, specs, task) if caller.role.choose_tools == "model" else []
    chosen = best_scored(specs, scores, task) if any(scores) else ToolSearch(specs).choose(task)
    shown = {spec.name for spec in chosen} | {tool.name for tool in tools if tool.title and names(task, tool.title)}
    return {tool.name for tool in tools} - shown


async def _scores(caller: Caller, specs: Sequence[ToolSpec], task: str) -> list[float]:
    """Let the model score all tools at once; nothing when there is no answer."""
    context, key = caller.context, record_key(caller.path, 0, "rank")
    listed = "\n".join(f"[{n}] {s.name}: {s.description.strip()[:_SAID]}" for n, s in enumerate(specs, 1))
    asked = context.text("choose_tools_input", task=task, tools=listed)
    messages = (Message("system", context.text("choose_tools")), Message("user", asked))
    most = min(caller.output, _ANSWER * len(specs))
    request = Request(key, messages, params=caller.role.params, max_output=most)
    try:
        reply = await caller.call(request, Weight(*(counts_of(message) for message in messages)), "first")
    except (ModelError, OutOfBudget) as error:
        context.log.add(Warned(path=caller.path, key=key, text=f"tools are chosen without the model: {error}"))
        return []
    return read_scores(reply.content, len(specs), unread=0.0)
