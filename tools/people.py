"""Asking a person."""

from __future__ import annotations

from orchestrator import ToolContext, tool


@tool(effect="idempotent", timeout=None, cut=False, outward=False, counted=False, asks=True)
async def ask_person(question: str, ctx: ToolContext, options: list[str] | None = None) -> str:
    """Ask the person who gave the task, and wait for the answer.

    Use it only when something is missing that nobody else can know, such as a preference or a decision. Ask all that
    you need to know in one question.

    Args:
        question: What you want to know, with what the person must know to answer it.
        options: Answers to choose from, if there are only a few.

    Returns:
        The answer, in the person's words.
    """
    return ctx.answer
