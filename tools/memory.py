"""Facts that outlive a run, of its user or its session."""

from __future__ import annotations

from typing import Literal

from orchestrator import ToolContext, ToolResult, tool


@tool(effect="idempotent", remembers=True)
async def remember(text: str, ctx: ToolContext, kind: Literal["fact", "profile"] = "fact") -> str:
    """Keep a fact for later runs of the same user.

    Use it when the user says what should hold from now on, or when a result will be needed again another day. Not for
    steps of this run: those pass values on by set_variable.

    Args:
        text: The fact, in a sentence that can be understood alone.
        kind: profile for what the user is like or wants results to be like.

    Returns:
        That it is kept, and until when.
    """
    memory = await ctx.memory.remember(text, kind=kind, untrusted=ctx.untrusted)
    return "kept for this user" if memory.expires is None else "kept for a day, for this session"


@tool(effect="read", remembers=True)
async def recall(query: str, ctx: ToolContext, count: int = 5) -> ToolResult:
    """Look up what was kept in earlier runs.

    Use it when the goal speaks of something that was said or found before.

    Args:
        query: What it is about, with the words that it would have.
        count: How many to return at most, 1 to 20.

    Returns:
        A line for each, what fits best first.
    """
    found = await ctx.memory.recall(query, max(1, min(count, 20)))
    sources = {source for memory in found for source in memory.untrusted}
    text = "\n".join(f"- {memory.text}" for memory in found) or "Nothing that fits is remembered."
    return ToolResult(text, value=[memory.text for memory in found], untrusted=", ".join(sorted(sources)) or None)
