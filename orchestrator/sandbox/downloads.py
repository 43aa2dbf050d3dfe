"""What a browser downloads: into the workspace, of a bounded size, under a name that is only a name."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from orchestrator.errors import ToolError
from orchestrator.sandbox.chromium import failures
from orchestrator.threads import ThreadPool
from orchestrator.workspace.files import format_size
from orchestrator.workspace.loop import LoopWorkspace

if TYPE_CHECKING:
    from playwright.async_api import Download

FOLDER = "downloads"
"""Of the workspace."""
MAX_SIZE = 100_000_000
"""Bytes of one file."""
SECONDS = 120.0
"""How long a download may take."""
_LOOK = 0.2
"""Seconds between two looks at how large a file has become; Playwright tells it to nobody."""


class Downloads:
    """The downloads of one loop.

    Args:
        drafts: Where the browser puts what is not complete; shared with other loops.
        workspace: Where complete files go.
        threads: Where they are copied.
    """

    def __init__(self, drafts: Path, workspace: LoopWorkspace, threads: ThreadPool) -> None:
        self._drafts, self._workspace, self._threads = drafts, workspace, threads
        self._going: list[str] = []
        self._none = asyncio.Event()
        self._none.set()
        self.begun = asyncio.Event()
        """Set whenever one begins."""

    async def wait(self, seconds: float) -> Sequence[str]:
        """Wait until no download is going on; return the names of those that still are."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._none.wait()
        return self._going

    async def save(self, download: Download) -> str:
        """Put a file into the workspace when it is complete; return what came of it."""
        name = file_name(download.suggested_filename)
        self._going.append(name)
        self._none.clear()
        self.begun.set()
        try:
            return await self._save(download, name)
        except (ToolError, failures()) as error:
            return f"{name} was not downloaded: {error}"
        finally:
            self._going.remove(name)
            if not self._going:
                self._none.set()

    async def _save(self, download: Download, name: str) -> str:
        why: str | None = f"it took more than {SECONDS:g} s"
        with suppress(TimeoutError):
            async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
                ending = group.create_task(download.failure())
                growing = group.create_task(self._too_large())
                await asyncio.wait((ending, growing), return_when=asyncio.FIRST_COMPLETED)
                if ending.done():
                    growing.cancel()
                    why = await ending
                else:
                    why = f"it is larger than {format_size(MAX_SIZE)}"
                    await download.cancel()
        if why is None:
            path = await self._threads.run(self._keep, await download.path(), name)
            await download.delete()
            return f"downloaded {path}"
        await download.cancel()
        return f"{name} was not downloaded: {why}"

    async def _too_large(self) -> None:
        """Return when a file grows too large."""
        while max(map(_size, self._drafts.iterdir()), default=0) <= MAX_SIZE:  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(_LOOK)

    def _keep(self, source: Path, name: str) -> str:
        """Copy a file to a free name in the workspace."""
        path, number = PurePosixPath(FOLDER, name), 1
        while self._workspace.resolve(str(path)).exists():
            number += 1
            path = PurePosixPath(FOLDER, name).with_stem(f"{PurePosixPath(name).stem}-{number}")
        artifact = self._workspace.write(str(path), source.read_bytes())
        return f"{artifact.path} ({format_size(artifact.size)})"


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # renamed meanwhile
        return 0


def file_name(suggested: str) -> str:
    """Return a name that a server suggests as one that leads nowhere and hides nothing."""
    name = re.sub(r"[\x00-\x1f\x7f]", "", suggested.replace("\\", "/")).rsplit("/", 1)[-1].strip(". ")
    return name[-100:] or "file"
