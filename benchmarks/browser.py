"""What the browser's tools cost: each to the same done with plain Playwright; and what 100 runs leave behind."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from orchestrator.resources import Resources
from orchestrator.sandbox.chromium import BrowserSettings, open_chromium
from orchestrator.sandbox.tabs import Tabs
from orchestrator.threads import ThreadPool
from orchestrator.workspace import Workspace
from tests.browsing import Surfer, serving

BOUND = 1.3
ROUNDS = 40
RUNS = 100
PAGE = (
    '<title>Shop</title><h1>Shop</h1><button onclick="n.textContent = +n.textContent + 1">more</button><p id=n>0</p>'
    "<label>Name <input></label><label>Colour <select><option>red<option>blue</select></label>"
    + "".join(f"<p>{number} <a href=/{number}>article {number}</a></p>" for number in range(100))
)

Action = Callable[[], Awaitable[object]]


async def timed(action: Action) -> float:
    began = time.perf_counter()
    await action()
    return time.perf_counter() - began


async def compare(name: str, ours: Action, plain: Action) -> bool:
    """Measure both in turns, each as the first in half of them, and print the ratio of the medians."""
    pairs = []
    for number in range(ROUNDS):
        took = {action: await timed(action) for action in ((plain, ours) if number % 2 else (ours, plain))}
        pairs.append((took[plain], took[ours]))
    floor, cost = (statistics.median(column) for column in zip(*pairs[5:], strict=True))
    met = cost <= BOUND * floor
    print(f"{name:12} {floor * 1000:7.1f} ms {cost * 1000:7.1f} ms {cost / floor:5.2f} x  {'met' if met else 'missed'}")
    return met


async def actions(folder: Path) -> bool:
    settings = BrowserSettings()
    async with serving({"/": PAGE}) as site, Resources() as run, open_chromium(settings, ThreadPool()) as other:
        surfer = Surfer(Workspace(folder / "ws", folder / "home"), run, allow=(site.place,), settings=settings)
        context = await other.browser.new_context(
            viewport={"width": settings.width, "height": settings.height},
            proxy={"server": "http://direct.invalid:1", "bypass": "127.0.0.1"},
        )
        page = await context.new_page()
        await page.goto(site.url)
        async with surfer.loop:
            await surfer("open", url=site.url)
            tabs: Tabs = await surfer.loop.get("tabs", lambda: sys.exit("it is open"))
            assert tabs.page.url == page.url
            button, name, colour = [await surfer.ref(words) for words in ("button", "textbox", "combobox")]
            await page.aria_snapshot(mode="ai")

            async def open_and_read() -> None:
                await page.goto(site.url)
                await page.aria_snapshot(mode="ai")

            met = [
                await compare("click", lambda: surfer("click", ref=button), page.get_by_ref(button).click),
                await compare(
                    "type", lambda: surfer("type", ref=name, text="a"), lambda: page.get_by_ref(name).fill("a")
                ),
                await compare(
                    "select",
                    lambda: surfer("select", ref=colour, values=["blue"]),
                    lambda: page.get_by_ref(colour).select_option(["blue"]),
                ),
                await compare("read", lambda: surfer("read"), lambda: page.aria_snapshot(mode="ai")),
                await compare(
                    "screenshot",
                    lambda: surfer("screenshot", path="a.png"),
                    lambda: page.screenshot(path=str(folder / "b.png")),
                ),
                await compare("open, read", lambda: surfer("open", url=site.url), open_and_read),
            ]
    return all(met)


async def left_behind(folder: Path) -> bool:
    """Open a page in run after run, and count what is there before and afterwards."""

    async def one(site_url: str, place: str) -> None:
        async with Resources() as run:
            surfer = Surfer(Workspace(folder / "ws", folder / "home"), run, allow=(place,))
            async with surfer.loop:
                assert "Page: Shop" in await surfer("open", url=site_url)

    def counts() -> tuple[int, int, int]:
        mark = f"TMPDIR={tempfile.gettempdir()}".encode()
        processes = 0
        for process in Path("/proc").glob("[0-9]*"):
            try:
                dead = (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
                processes += not dead and mark in (process / "environ").read_bytes()
            except OSError:
                continue
        return processes, len(list(Path(tempfile.gettempdir()).iterdir())), len(list(Path("/proc/self/fd").iterdir()))

    async with serving({"/": PAGE}) as site:
        await one(site.url, site.place)
        before = counts()
        for _ in range(RUNS):
            await one(site.url, site.place)
        after = counts()
    print(f"{RUNS} runs: processes, folders, descriptors before {before}, afterwards {after}")
    return after <= before


async def main() -> int:
    with tempfile.TemporaryDirectory(prefix="b-", dir="/tmp") as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = str(Path(folder))
        ours = Path(tempfile.mkdtemp(prefix="ws-"))
        met = await actions(ours)
        return 0 if await left_behind(ours) and met else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
