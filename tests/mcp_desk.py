"""What the tests of MCP servers share: servers to start, and calls of their tools as a loop makes them."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from orchestrator.binding import bind
from orchestrator.mcp.servers import Servers
from orchestrator.resources import Resources
from orchestrator.settings import Settings
from orchestrator.text.redact import Redactor
from orchestrator.tool import Tool, ToolContext, ToolResult, to_result
from orchestrator.workspace import Workspace

PROGRAM = Path(__file__).parent / "data" / "mcp_server.py"


def bad_day(mode: str = "", **more: Any) -> dict[str, Any]:
    """Return the settings of the server in `data/mcp_server.py`."""
    return {"command": sys.executable, "args": [str(PROGRAM), mode], **more}


class Desk:
    """Servers under way, and what came of calls."""

    def __init__(self, settings: Settings, home: Path, resources: Resources) -> None:
        self.servers = Servers(settings, home, lambda: resources, Redactor(settings.secrets()).text)
        self.resources, self.progress = resources, list[str]()
        self.workspace = Workspace(home / "workspace", home)

    async def tool(self, name: str) -> Tool:
        """Return one tool."""
        offer = await self.servers.offer([name])
        assert not offer.missing, offer.missing
        return offer.tools[name]

    async def missing(self, name: str) -> str:
        """Return why a tool is not there."""
        [why] = (await self.servers.offer([name])).missing
        return why

    async def call(self, tool: Tool | str, arguments: str = "{}") -> ToolResult:
        """Call a tool as a model does."""
        called = await self.tool(tool) if isinstance(tool, str) else tool
        context = ToolContext(
            run_id="r",
            path="ori",
            key="0123456789",
            workspace=self.workspace.for_loop("ori", lambda owner: False, lambda change: None),
            deps=None,
            variables={},
            report=self.progress.append,
        )
        return to_result(await called.invoke(bind(arguments, called), context))


@asynccontextmanager
async def desk(home: Path, **servers: dict[str, Any]) -> AsyncIterator[Desk]:
    """Open a desk for some servers; all are closed with it."""
    async with Resources() as resources:
        yield Desk(Settings.model_validate({"mcp": servers}), home, resources)
