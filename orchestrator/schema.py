"""Structured results: the tool that hands one in, and checks against a JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.errors import ToolError
from orchestrator.messages import Json
from orchestrator.tool import Tool, ToolContext, ToolResult

RESULT_TOOL = "submit_result"


def problems(value: Json, schema: Mapping[str, Json]) -> list[str]:
    """Return a sentence for everything in a value that its JSON Schema does not allow."""
    from jsonschema.validators import validator_for

    validator = validator_for(schema)(schema)
    return [f"{error.json_path}: {error.message}"[:300] for error in validator.iter_errors(value)]


def result_tool(schema: Mapping[str, Json], description: str) -> Tool:
    """Return the tool whose valid call ends a loop with a structured result.

    Args:
        schema: Of the result; one that is no object is wrapped as `{"result": …}` on the wire.
        description: What the model reads.
    """
    wrapped = schema.get("type", "object") != "object"
    parameters = {"type": "object", "properties": {"result": schema}, "required": ["result"]} if wrapped else schema

    async def submit(arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        value = arguments.get("result") if wrapped else arguments
        if faults := problems(value, schema):
            raise ToolError("the result is not valid: " + "; ".join(faults[:10]))
        return ToolResult("accepted", value=value, final=True)

    return Tool(
        name=RESULT_TOOL,
        description=description,
        parameters=parameters,
        invoke=submit,
        validate=dict,
        effect="idempotent",
        timeout=None,
        counted=False,
    )
