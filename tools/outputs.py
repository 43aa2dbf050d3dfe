"""Paging through what was too long for the conversation."""

from __future__ import annotations

from orchestrator import ToolContext, ToolError, tool

MAX_CHARACTERS = 8000


@tool(effect="read", cut=False)
def read_artifact(handle: str, ctx: ToolContext, start: int = 0, characters: int = 4000) -> str:
    """Read a part of a cut output or of a file, by characters.

    Use it when an output was cut and the part you need is missing, or a line of a file is too long to be read whole.

    Args:
        handle: A handle `out:…` as it stands beside the cut output, or a file of the workspace.
        start: How many characters to leave out before the part.
        characters: How many characters to read, at most 8000.

    Returns:
        The part, after a line that says which part it is.
    """
    text = ctx.workspace.read_text(handle)
    if not text:
        return f"{handle} is empty"
    if not 0 <= start < len(text):
        raise ToolError(f"{handle!r} has {len(text)} characters; start={start} is not within 0–{len(text) - 1}")
    if characters < 1:
        raise ToolError(f"characters={characters} reads nothing; give 1 to {MAX_CHARACTERS}")
    end = min(len(text), start + min(characters, MAX_CHARACTERS))
    return f"(characters {start}–{end} of {len(text)})\n{text[start:end]}"
