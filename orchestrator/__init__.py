"""A Planner/Worker agent orchestrator. Names load on first use, so that importing costs nothing."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from orchestrator.tool import tool as tool  # now, not on first use: its module, once loaded, would hide it

if TYPE_CHECKING:
    from orchestrator.errors import ConfigError as ConfigError
    from orchestrator.errors import ModelError as ModelError
    from orchestrator.errors import OriError as OriError
    from orchestrator.errors import ToolError as ToolError
    from orchestrator.handle import RunHandle as RunHandle
    from orchestrator.limits import Limits as Limits
    from orchestrator.order import RunOptions as RunOptions
    from orchestrator.results import Artifact as Artifact
    from orchestrator.results import Outcome as Outcome
    from orchestrator.results import RunResult as RunResult
    from orchestrator.role import Role as Role
    from orchestrator.run import Orchestrator as Orchestrator
    from orchestrator.tool import ToolContext as ToolContext
    from orchestrator.tool import ToolResult as ToolResult
    from orchestrator.tool import Toolset as Toolset

_HOME = {
    "Artifact": "results",
    "ConfigError": "errors",
    "Limits": "limits",
    "ModelError": "errors",
    "OriError": "errors",
    "Orchestrator": "run",
    "Outcome": "results",
    "Role": "role",
    "RunHandle": "handle",
    "RunOptions": "order",
    "RunResult": "results",
    "ToolContext": "tool",
    "ToolError": "errors",
    "ToolResult": "tool",
    "Toolset": "tool",
}
__all__ = sorted([*_HOME, "tool"])  # noqa: PLE0605 - the table above is the one list


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
