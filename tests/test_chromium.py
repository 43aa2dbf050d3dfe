from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from orchestrator.errors import ToolError
from orchestrator.resources import CLOSING, Resources
from orchestrator.sandbox.chromium import _KILLED, STOPPING, BrowserSettings, Chromium, missing, open_chromium
from orchestrator.threads import ThreadPool
from orchestrator.workspace import Workspace
from tests.browsing import Surfer, serving
from tests.parts import require

require("chromium")

NONE = BrowserSettings(executable_path="/no/such/chromium")


@pytest.fixture(autouse=True)
def own_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make everything that is left behind visible."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(folder)


def processes(folder: Path) -> list[int]:
    """Return the drivers and browsers that were started with this folder for temporary files."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            dead = (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            ours = f"TMPDIR={folder}".encode() in (process / "environ").read_bytes()
        except OSError:
            continue
        if ours and not dead and int(process.name) != os.getpid():
            found.append(int(process.name))
    return found


async def gone(folder: Path) -> None:
    """Wait until nothing of a browser is left: no process, no file."""
    async with asyncio.timeout(10):
        while processes(folder) or any(folder.iterdir()):
            await asyncio.sleep(0.05)


@asynccontextmanager
async def opened(settings: BrowserSettings | None = None) -> AsyncIterator[Chromium]:
    async with open_chromium(settings or BrowserSettings(), ThreadPool()) as chromium:
        yield chromium


async def test_it_ends_with_its_context_and_leaves_nothing(own_temporary_folder: Path) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    async with opened() as chromium:
        assert chromium.browser.is_connected()
        assert processes(own_temporary_folder)
    assert processes(own_temporary_folder) == []
    assert list(own_temporary_folder.iterdir()) == []
    assert set(Path("/proc/self/fd").iterdir()) <= before


async def test_a_stopped_driver_is_killed_within_a_bound(own_temporary_folder: Path) -> None:
    """B29: a driver that does not answer any more would hold up the end of the run for ever."""
    began = 0.0
    async with opened() as chromium:
        for process in processes(own_temporary_folder):
            os.kill(process, signal.SIGSTOP)
        began = time.monotonic()
    assert STOPPING + _KILLED < CLOSING, "else `Resources` cuts it off"
    assert time.monotonic() - began < 30
    assert chromium.driver.returncode is not None  # else the event loop would close on a process that runs for it
    await gone(own_temporary_folder)


async def test_a_killed_driver_leaves_nothing_either(own_temporary_folder: Path) -> None:
    async with opened() as chromium:
        for process in processes(own_temporary_folder):
            if b"run-driver" in Path(f"/proc/{process}/cmdline").read_bytes():
                os.kill(process, signal.SIGKILL)
        async with asyncio.timeout(5):
            await chromium.driver.wait()
        assert not chromium.alive
    await gone(own_temporary_folder)


@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.5, 1.0])
async def test_a_start_that_is_cancelled_leaves_nothing(own_temporary_folder: Path, seconds: float) -> None:
    resources = Resources()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await resources.get("browser", opened)
            await asyncio.Event().wait()
    await resources.aclose()
    await gone(own_temporary_folder)


async def test_cancelling_a_navigation_does_not_hold_up_the_end(own_temporary_folder: Path, tmp_path: Path) -> None:
    """B29: a page load that is cancelled half-way must not deadlock the shutdown."""
    asked = asyncio.Event()

    async def never(writer: asyncio.StreamWriter) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with serving({"/": never}) as site:
        surfer = Surfer(Workspace(tmp_path / "ws", tmp_path / "home"), Resources(), allow=(site.place,))
        async with asyncio.TaskGroup() as group:
            opening = group.create_task(surfer("open", url=site.url))
            async with asyncio.timeout(30):
                await asked.wait()
            opening.cancel()
        async with asyncio.timeout(5):
            await surfer.loop.aclose()
            await surfer.run.aclose()
    await gone(own_temporary_folder)


async def test_a_program_that_is_not_there_is_told() -> None:
    assert missing(NONE) == "'/no/such/chromium' (tools: {browser: {executable_path: …}}) is no program"
    with pytest.raises(ToolError, match=r"the browser does not start: .*no/such/chromium"):
        async with opened(NONE):
            pass


async def test_a_program_that_is_no_browser_is_told(own_temporary_folder: Path) -> None:
    with pytest.raises(ToolError, match="the browser does not start: "):
        async with opened(BrowserSettings(executable_path="/bin/true")):
            pass
    await gone(own_temporary_folder)


def test_without_playwright_or_chromium_the_way_to_get_it_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    assert "playwright install chromium" in missing(BrowserSettings())
    (tmp_path / "chromium-1").mkdir()
    assert missing(BrowserSettings()) == ""
    monkeypatch.setattr("orchestrator.extras.find_spec", lambda name: None)
    assert "pip install 'ori-orchestrator[browser]'" in missing(BrowserSettings())


async def test_a_context_without_the_proxy_reaches_nothing() -> None:
    from playwright.async_api import Error

    async with serving({"/": "reached"}) as site, opened() as chromium:
        context = await chromium.browser.new_context()
        page = await context.new_page()
        for url in (site.url, f"http://localhost:{site.port}"):
            with pytest.raises(Error, match="ERR_PROXY_CONNECTION_FAILED"):
                await page.goto(url)
    assert site.asked == []


async def test_a_long_folder_for_temporary_files_is_no_obstacle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Chromium ends at once when the path of its socket is too long."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("long" * 20)))
    async with opened() as chromium:
        assert chromium.browser.is_connected()


async def test_its_environment_holds_no_keys(monkeypatch: pytest.MonkeyPatch, own_temporary_folder: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789-secret")
    async with opened():
        browsers = [p for p in processes(own_temporary_folder) if "node" not in Path(f"/proc/{p}/exe").resolve().name]
        assert browsers
        assert not any(b"sk-0123" in Path(f"/proc/{process}/environ").read_bytes() for process in browsers)
