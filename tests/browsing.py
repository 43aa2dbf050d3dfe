"""What the tests of the browser share: a site on loopback, and the browser's tools as loops call them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.content.toolfiles import load
from orchestrator.errors import ToolError
from orchestrator.resources import Resources
from orchestrator.sandbox.chromium import BrowserSettings
from orchestrator.sandbox.guard import AddressGuard
from orchestrator.tool import ToolContext, ToolResult, to_result
from orchestrator.workspace import Workspace
from tests.sites import Handler, Site, page

TOOLS = load(Path(__file__).resolve().parent.parent / "tools" / "browser.py")


class Web(Site):
    """A site of HTML pages."""

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def asked(self) -> list[str]:
        """Paths that were asked for, in order, the icon left out."""
        targets = [request.split(b" ")[1].decode() for request in self.requests]
        return [target for target in targets if target != "/favicon.ico"]


@asynccontextmanager
async def serving(pages: Mapping[str, str | bytes | Handler]) -> AsyncIterator[Web]:
    """Serve pages on a free port of loopback: HTML, a whole answer, or a function that writes one."""
    site = Web()
    site.answers.update({path: html(page) if isinstance(page, str) else page for path, page in pages.items()})
    async with site:
        yield site


def html(text: str) -> bytes:
    """Return the answer that is an HTML page."""
    return page(text, kind="text/html; charset=utf-8")


@dataclass
class Surfer:
    """One loop at work with the browser's tools."""

    workspace: Workspace
    run: Resources
    """Keeps the browser."""
    allow: tuple[str, ...] = ()
    settings: BrowserSettings = BrowserSettings(timeout=10)
    name: str = "ori/a"
    loop: Resources = field(default_factory=Resources)

    @property
    def context(self) -> ToolContext:
        return ToolContext(
            run_id="run",
            path=self.name,
            key="key",
            workspace=self.workspace.for_loop(self.name, lambda owner: False, lambda change: None),
            deps=None,
            variables={},
            settings=self.settings,
            scopes={"run": self.run, "loop": self.loop},
            network=AddressGuard(self.allow),
        )

    def put(self, name: str, content: str | bytes) -> None:
        """Write a file of the workspace."""
        file = self.workspace.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)

    async def call(self, tool: str, **arguments: Any) -> ToolResult:
        """Call a tool, as `click` for `browser_click`."""
        made = TOOLS[f"browser_{tool}"]
        return to_result(await made.invoke(made.validate(arguments), self.context))

    async def __call__(self, tool: str, **arguments: Any) -> str:
        """Call a tool and return what the model reads; an error too."""
        try:
            return (await self.call(tool, **arguments)).content
        except ToolError as error:
            return f"Error: {error}"

    async def ref(self, words: str) -> str:
        """Return the reference of the first element whose line in the tree has these words in it."""
        tree = await self("read")
        line = next((line for line in tree.splitlines() if words in line and "[ref=" in line), None)
        assert line is not None, f"no element {words!r} in:\n{tree}"
        return line.split("[ref=")[1].split("]")[0]
