"""A workspace with a space and Chinese in its path, and tools called as the engine calls them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args

import pytest

from orchestrator.content.toolfiles import ToolFolder
from orchestrator.events import ArtifactStored
from orchestrator.resources import Resources
from orchestrator.sandbox.guard import AddressGuard
from orchestrator.settings import Settings
from orchestrator.tool import Scope, Tool, ToolContext, ToolResult, to_result
from orchestrator.workspace import Workspace

TOOLS = Path(__file__).resolve().parent.parent.parent / "tools"


class Bench:
    """What the tools of one run work on."""

    def __init__(self, folder: Path) -> None:
        self.workspace = Workspace(folder / "我的 项目" / "ws", folder / "home")
        self.variables: dict[str, Any] = {}
        self.stored: list[ArtifactStored] = []
        self.network = AddressGuard()
        self.resources = Resources()
        """What tools keep open; all scopes are one here."""
        self.tools: dict[str, Tool] = {}
        self.configure()

    def configure(self, **tools: dict[str, Any]) -> None:
        """Say what `ori.yaml` would say of toolsets."""
        folder = ToolFolder(TOOLS, Settings(tools=tools))
        self.tools = {name: tool for file in folder.files for name, tool in folder.load(file).items()}

    @property
    def root(self) -> Path:
        return self.workspace.root

    def put(self, name: str, content: str | bytes) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)

    async def __call__(self, tool: str, *, loop: str = "ori/a", **arguments: Any) -> ToolResult:
        made = self.tools[tool]
        context = ToolContext(
            run_id="run",
            path=loop,
            key="key",
            workspace=self.workspace.for_loop(loop, lambda owner: False, self.stored.append),
            deps=None,
            variables=self.variables,
            settings=made.settings,
            network=self.network,
            scopes=dict.fromkeys(get_args(Scope), self.resources),
        )
        return to_result(await made.invoke(made.validate(arguments), context))

    async def text(self, tool: str, **arguments: Any) -> str:
        return (await self(tool, **arguments)).content


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    async with made.resources:
        yield made
