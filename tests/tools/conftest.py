"""A workspace with a space and Chinese in its path, and tools called as the engine calls them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.events import ArtifactStored
from orchestrator.tool import ToolContext, ToolResult, to_result
from orchestrator.toolfiles import load
from orchestrator.workspace import Workspace

TOOLS = Path(__file__).resolve().parent.parent.parent / "tools"


class Bench:
    """What the tools of one run work on."""

    def __init__(self, folder: Path) -> None:
        self.workspace = Workspace(folder / "我的 项目" / "ws", folder / "home")
        self.variables: dict[str, Any] = {}
        self.stored: list[ArtifactStored] = []
        self.tools = {name: tool for file in sorted(TOOLS.glob("*.py")) for name, tool in load(file).items()}

    @property
    def root(self) -> Path:
        return self.workspace.root

    def put(self, name: str, content: str | bytes) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)

    async def __call__(self, tool: str, *, loop: str = "ori/a", **arguments: Any) -> ToolResult:
        context = ToolContext(
            run_id="run",
            path=loop,
            key="key",
            workspace=self.workspace.for_loop(loop, lambda owner: False, self.stored.append),
            deps=None,
            variables=self.variables,
            read_output=self.workspace.read_output,
        )
        made = self.tools[tool]
        return to_result(await made.invoke(made.validate(arguments), context))

    async def text(self, tool: str, **arguments: Any) -> str:
        return (await self(tool, **arguments)).content


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)
