"""Values that the steps of a run pass on to each other."""

from __future__ import annotations

import json
from typing import Any

from orchestrator import ToolContext, ToolError, tool
from orchestrator.errors import nearest


@tool(effect="idempotent")
async def set_variable(name: str, value: Any, ctx: ToolContext) -> str:
    """Set a variable of the run, for the steps that come later.

    Use it when another step will need a value exactly as it is.

    Args:
        name: The variable's name.
        value: Any JSON value.

    Returns:
        That the variable is set.
    """
    if not name.strip():
        raise ToolError("the name is empty; give the variable a name")
    ctx.variables[name] = value
    return f"{name} set"


@tool(effect="read")
async def get_variable(name: str, ctx: ToolContext) -> str:
    """Read a variable that an earlier step of the run set.

    Use it when the goal speaks of a value that was set before.

    Args:
        name: The variable's name.

    Returns:
        Its value as JSON.
    """
    if name not in ctx.variables:
        known = sorted(ctx.variables)
        raise ToolError(f"there is no variable {name!r}{nearest(name, known) or '; none is set so far'}")
    return json.dumps(ctx.variables[name], ensure_ascii=False)
