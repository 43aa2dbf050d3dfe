"""Chromium over Playwright: found, started without a way around the proxy, and stopped for certain."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from orchestrator.errors import ToolError
from orchestrator.extras import not_installed
from orchestrator.strict import Strict
from orchestrator.threads import ThreadPool

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from playwright.async_api import Browser, Playwright

STARTING = 60.0
"""Seconds that the browser may take to be there."""
STOPPING = 3.0
"""Seconds in which the browser may end by itself; then it is killed."""
_KILLED = 1.0
"""Seconds in which a killed process is gone."""
_SYSTEM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_BUNDLED = ("~/.cache/ms-playwright", "~/Library/Caches/ms-playwright")
"""Where `playwright install` puts browsers, unless PLAYWRIGHT_BROWSERS_PATH says otherwise."""
_NOWHERE = {"server": "http://127.0.0.1:1", "bypass": "<-loopback>"}
"""A proxy that is never there: only a context with a proxy of its own reaches anything."""
_ARGUMENTS = (
    "--disable-quic",
    "--dns-prefetch-disable",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",  # the same for Chromium's headless shell
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",  # names are the proxy's to resolve
    "--disable-domain-reliability",
    "--no-pings",
    "--disk-cache-size=100000000",
    "--js-flags=--max-old-space-size=1024",  # megabytes of one page's objects
)
_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR")
"""Variables that it gets; no keys among them."""
_MAX_FOLDER = 30
"""Characters: Chromium puts a socket below it, whose path may have 104."""


class BrowserSettings(Strict):
    """The browser, under `tools: {browser: …}`."""

    executable_path: str | None = None
    """Chromium's program; None: the one that `playwright install chromium` brought, else the system's."""
    headless: bool = True
    width: int = Field(1920, ge=200, le=8000)
    """Pixels of a page's visible part."""
    height: int = Field(1080, ge=200, le=8000)
    timeout: float = Field(30, gt=0, le=600)
    """Seconds that a page may take to answer."""
    args: tuple[str, ...] = ()
    """More switches of Chromium."""


def missing(settings: BrowserSettings) -> str:
    """Say why there is no browser here, and what mends that; an empty text: there is one."""
    if why := not_installed("browser", "playwright"):
        return why
    if path := settings.executable_path:
        usable = shutil.which(path) is not None
        return "" if usable else f"{path!r} (tools: {{browser: {{executable_path: …}}}}) is no program"
    if _system() or any(_bundled()):
        return ""
    return "it needs Chromium: playwright install chromium, or on Debian: apt-get install chromium"


@dataclass(frozen=True, slots=True)
class Chromium:
    """A running browser."""

    browser: Browser
    drafts: Path
    """Folder of downloads that are not complete."""
    driver: Process
    """Playwright's own."""

    @property
    def alive(self) -> bool:
        """Whether it still runs, and the driver too, whose death Playwright tells nobody."""
        return self.driver.returncode is None and self.browser.is_connected()


@asynccontextmanager
async def open_chromium(settings: BrowserSettings, threads: ThreadPool) -> AsyncIterator[Chromium]:
    """Start a Chromium; leaving the context stops it within a bound, and leaves no process and no file.

    A context of this browser reaches the network through the proxy that it is given, and without one not at all.

    Raises:
        ToolError: It does not start.
    """
    playwright = await threads.run(import_module, "playwright.async_api")  # it takes half a second
    home = Path(tempfile.mkdtemp(prefix="ori-browser-", dir=_temporary()))
    manager = playwright.async_playwright()
    # in a task of its own: a start that is cancelled half-way leaves a driver that nobody can stop
    starting = asyncio.get_running_loop().create_task(manager.start())
    try:
        try:
            browser = await _launched(await asyncio.shield(starting), settings, home)
        except failures() as error:
            raise ToolError(f"the browser does not start: {reason(error)}") from error
        yield Chromium(browser, home / "drafts", manager._client._transport._proc)
    finally:
        with suppress(TimeoutError, failures()):
            async with asyncio.timeout(STOPPING):
                await (await starting).stop()
        if manager._client:  # Playwright shows its process, and why that ended, to nobody else
            transport = manager._client._transport
            transport.on_error_future.cancel()
            with suppress(ProcessLookupError):
                transport._proc.kill()
            with suppress(TimeoutError):
                async with asyncio.timeout(_KILLED):
                    await transport._proc.wait()  # an event loop that closes earlier never learns of its end
        await threads.run(_clear, home)


async def _launched(playwright: Playwright, settings: BrowserSettings, home: Path) -> Browser:
    (home / "drafts").mkdir()
    context = await playwright.chromium.launch_persistent_context(
        home / "profile",  # a place of ours, where Playwright's own could stay behind after a kill
        artifacts_dir=home / "drafts",
        executable_path=_program(settings, playwright.chromium.executable_path),
        env={"TMPDIR": str(home), **{name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}},
        headless=settings.headless,
        chromium_sandbox=os.geteuid() != 0,  # Chromium has no sandbox for root
        proxy=_NOWHERE,  # type: ignore[arg-type]
        args=[*_ARGUMENTS, *settings.args],
        timeout=STARTING * 1000,
        handle_sigint=False,  # Ctrl-C is for the run, which then closes the browser
        handle_sigterm=False,
        handle_sighup=False,
    )
    assert context.browser is not None
    return context.browser


def failures() -> type[Exception]:
    """Return what Playwright raises; a function, so that importing this module does not load it."""
    from playwright.async_api import Error

    return Error


_TELLING = re.compile(
    r"did not find|not (visible|enabled|stable|editable)|intercepts pointer|outside of the viewport|net::|ERROR:"
)


def reason(error: Exception) -> str:
    """Return what Playwright says went wrong: the line that tells most, without its call and its advice."""
    first, *log = (line.strip(" -╔═╗║╚╝") for line in str(error).splitlines() or [repr(error)])
    first = re.sub(r"^\w+\.\w+: (Error: )?", "", first)
    first = re.sub(r"Timeout (\d+)ms exceeded\.?", lambda found: f"it took more than {int(found[1]) / 1000:g} s", first)
    if 'waiting for locator("aria-ref=' in "".join(log) and "resolved to" not in "".join(log):
        return "it is not on the page any more; read the page again"
    told = [line[:200] for line in log if "FATAL" in line] or [
        line[:200] for line in log[::-1] if _TELLING.search(line)
    ]
    return f"{first}: {told[0]}" if told and not _TELLING.search(first) else first


def _temporary() -> str:
    folder = tempfile.gettempdir()
    return folder if len(folder) <= _MAX_FOLDER else "/tmp"


def _program(settings: BrowserSettings, bundled: str) -> str | None:
    return settings.executable_path or (bundled if Path(bundled).exists() else _system())


def _system() -> str | None:
    return next(filter(None, map(shutil.which, _SYSTEM)), None)


def _bundled() -> Iterator[Path]:
    folders = [path] if (path := os.environ.get("PLAYWRIGHT_BROWSERS_PATH")) else _BUNDLED
    return (found for folder in folders for found in Path(folder).expanduser().glob("chromium-*"))


def _clear(home: Path) -> None:
    """Kill what did not end by itself, and remove its files."""
    for attempt in range(10):
        alive = set(_groups(home))
        for group in alive:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        shutil.rmtree(home, ignore_errors=True)
        if not alive and not home.exists():
            break
        time.sleep(0.05 * attempt)  # a killed process needs a moment to let go


def _groups(home: Path) -> Iterator[int]:
    """Yield the process groups of a browser by its environment; where there is no /proc, none."""
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"TMPDIR={home}\0".encode() in environment.read_bytes():
                yield os.getpgid(int(environment.parent.name))
