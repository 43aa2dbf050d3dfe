"""Which of many tools a loop is shown: those that fit its task. The others stay within reach, by two fixed tools.

Chosen once for a loop, so that the head of its prompt stays the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import orjson

from orchestrator.messages import ToolSpec
from orchestrator.text.relevance import Bm25, terms
from orchestrator.tool import Tool, ToolContext, ToolResult

MANY = 20
"""Tools that are all shown; of more than that, some are chosen."""
CHOSEN = 12
"""Tools that are shown then, beside those that the task names."""
ALL_AT_MOST = 100
"""Tools that are shown where nothing fits: with those of the engine fewer than the 128 that servers take."""
THRESHOLD = 0.3
"""Part of the best score that a chosen tool must reach."""
FIND_TOOLS, CALL_TOOL = "find_tools", "call_tool"
_FOUND = 5
"""Tools that one search shows, with all that a call needs."""


class ToolSearch:
    """Finds tools by what they say of themselves.

    Args:
        specs: The tools.
    """

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        self.specs = tuple(specs)

    @cached_property
    def _index(self) -> Bm25:
        return Bm25([terms(_text(spec)) for spec in self.specs])

    def find(self, query: str, count: int) -> list[ToolSpec]:
        """Return the tools that fit a query best, the best first."""
        return [self.specs[number] for number in self._index.best(query, count)]

    def choose(self, task: str) -> list[ToolSpec]:
        """Return the tools to show for a task, in their own order: those it names, and the best of the others.

        All of them where there are not many.
        """
        if len(self.specs) <= MANY:
            return list(self.specs)
        return best_scored(self.specs, self._index.scores(task), task)


def best_scored(specs: Sequence[ToolSpec], scores: Sequence[float], task: str) -> list[ToolSpec]:
    """Return the tools with the best scores, and those that the task names, in their own order.

    Where none scores, as the task may be in another language: all, or the first few if servers refuse so many.
    """
    if not any(scores) and len(specs) <= ALL_AT_MOST:
        return list(specs)
    order = sorted(range(len(specs)), key=lambda n: -scores[n])
    fitting = {n for n in order[:CHOSEN] if scores[n] >= THRESHOLD * max(scores)}
    return [spec for n, spec in enumerate(specs) if n in fitting or names(task, spec.name)]


def finding_tools(specs: Sequence[ToolSpec], find: str, call: str) -> dict[str, Tool]:
    """Return the two tools by which a loop reaches what it is not shown.

    The second is never run: the toolbox makes the call that stands in it.

    Args:
        specs: All that can be found.
        find: Description of the first.
        call: Description of the second.
    """
    search = ToolSearch(specs)

    async def invoke(arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        found = search.find(arguments["query"], _FOUND)
        if not found:
            return ToolResult(f"No tool fits. There are: {', '.join(spec.name for spec in specs)}.")
        return ToolResult("\n\n".join(_shown(spec) for spec in found))

    return {
        FIND_TOOLS: Tool(
            name=FIND_TOOLS,
            description=find,
            parameters=_object(query={"type": "string", "description": "What the tool should do."}),
            invoke=invoke,
            validate=dict,
            effect="read",
        ),
        CALL_TOOL: Tool(
            name=CALL_TOOL,
            description=call,
            parameters=_object(
                name={"type": "string", "description": "The tool's name, as found."},
                arguments={"type": "object", "description": "Its arguments."},
            ),
            invoke=invoke,
            validate=dict,
            unwrap=lambda arguments: (arguments["name"], orjson.dumps(arguments["arguments"]).decode()),
        ),
    }


def _object(**properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def names(task: str, tool: str) -> bool:
    """Whether a task names a tool; a script that puts no spaces between words may stand right beside it."""
    return re.search(rf"(?<![\w-]){re.escape(tool)}(?![\w-])", task, re.ASCII) is not None


def _shown(spec: ToolSpec) -> str:
    return f"{spec.name}: {spec.description.strip()}\narguments: {orjson.dumps(spec.parameters).decode()}"


def _text(spec: ToolSpec) -> str:
    """Return what a tool says of itself; its name counts twice."""
    parameters = spec.parameters.get("properties", {})
    described = [of.get("description", "") for of in parameters.values() if isinstance(of, dict)]
    return " ".join([spec.name, spec.name, spec.description, *parameters, *described])
