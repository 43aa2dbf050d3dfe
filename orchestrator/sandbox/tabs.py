"""The tabs of one loop: which one is current, what happened in them unasked, and what an action came to."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from orchestrator.errors import ToolError
from orchestrator.sandbox.chromium import BrowserSettings, Chromium, failures, reason
from orchestrator.sandbox.clickable import as_buttons
from orchestrator.sandbox.downloads import Downloads
from orchestrator.sandbox.guard import AddressGuard
from orchestrator.sandbox.proxy import Proxy, open_proxy
from orchestrator.sandbox.site import WorkspaceSite
from orchestrator.threads import ThreadPool
from orchestrator.workspace.loop import LoopWorkspace

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Dialog, Download, Locator, Page, Response

ACTING = 5.0
"""Seconds until an element must be ready for an action."""
LOADING = 10.0
"""Seconds that a page may go on loading before it is shown as it is."""
OPENING = 5.0
"""Seconds that a new tab may take to be there."""
CLOSING = 2.0
"""Seconds that closing may take; what is left then ends with the browser."""
MAX_TABS = 10
MAX_NOTES = 10
"""Different things that one observation tells of."""
_NOTHING_OPEN = (
    "no page is open here; open one with browser_open "
    "(a page does not outlive the loop that opened it, nor a resume of the run)"
)


class Tabs:
    """What one loop sees of the browser; see `open_tabs`.

    Every action is bounded: a page that does not answer is closed, and the model is told.
    """

    _context: BrowserContext

    def __init__(
        self, chromium: Chromium, settings: BrowserSettings, proxy: Proxy, site: WorkspaceSite, downloads: Downloads
    ) -> None:
        self.chromium, self.site, self.downloads = chromium, site, downloads
        self.turn = asyncio.Lock()
        """Whoever uses the tabs holds it: calls of one message go one after the other."""
        self._settings, self._proxy = settings, proxy
        self._current: Page | None = None
        self._notes: Counter[str] = Counter()
        self._told = ""
        """URL of the page that was told of last."""
        self._read: Page | None = None
        self._refs: set[str] = set()
        """Of the page that was read last."""
        self._crashed = False
        self._opening = 0
        self._opened = asyncio.Event()

    async def begin(self) -> None:
        """Open a browsing context, with no tab yet."""
        size = self._settings
        self._context = await self.chromium.browser.new_context(
            proxy={"server": self._proxy.url, "bypass": "<-loopback>"},
            viewport={"width": size.width, "height": size.height},
            service_workers="block",
        )
        self._context.set_default_timeout(ACTING * 1000)
        self._context.on("page", self._on_page)
        self._context.on("dialog", self._on_dialog)
        self._context.on("download", self._on_download)

    async def aclose(self) -> None:
        """Close all tabs."""
        with suppress(TimeoutError, failures()):
            async with asyncio.timeout(CLOSING):
                await self._context.close()

    @property
    def seconds(self) -> float:
        """How long a page may take to answer."""
        return self._settings.timeout

    @property
    def page(self) -> Page:
        """The current tab's page.

        Raises:
            ToolError: None is open.
        """
        pages = self._context.pages
        if self._current not in pages:
            self._current = pages[-1] if pages else None
        if self._current is None or self._current.url == "about:blank" or self._current.url.startswith("chrome-error:"):
            raise ToolError(_NOTHING_OPEN)
        return self._current

    @property
    def all(self) -> list[Page]:
        """The pages of all tabs, in the order of their opening."""
        return self._context.pages

    @property
    def source(self) -> str | tuple[str, ...]:
        """Whose words the current page may carry: nobody's, if it is the run's own and reached for nothing else."""
        with suppress(ToolError):
            if self._proxy.reached or not self.site.holds(self.page.url):
                return self.site.shown(self.page.url)
        return ()

    @property
    def where(self) -> str:
        """Where an action on the current page leads, as policy asks; unknown if the page is of several origins."""
        with suppress(ToolError):
            if not (self._proxy.reached and self.site.holds(self.page.url)):
                return self.site.shown(self.page.url)
        return ""

    async def open(self, url: str) -> Response | None:
        """Load a page into the current tab, and wait until it is there.

        Args:
            url: Where it is; the site's address for a file of the workspace.

        Raises:
            ToolError: It cannot be reached, or may not.
        """
        page = await self._free()
        self._proxy.refusals.clear()
        self.downloads.begun.clear()
        async with self._acting(f"{self.site.shown(url)} was not opened"):
            if page is None:
                page = await self._context.new_page()
                await self._watch(page)
            self._current, self._told = page, ""
            try:
                response = await page.goto(url, wait_until="commit", timeout=self.seconds * 1000)
            except failures() as error:
                if "Download is starting" in str(error):
                    await self.downloads.begun.wait()
                    return None
                with suppress(failures()):  # the page that says so comes late, and would end the next navigation
                    await page.wait_for_url("chrome-error://**", wait_until="commit", timeout=1000)
                raise
            await self._loaded(page)
            if why := self._proxy.why(page.url):
                await page.goto("about:blank")
                raise ToolError(f"{self.site.shown(url)} was not opened: {why}")
        return response

    @asynccontextmanager
    async def acting(self, what: str, *, waiting: float = 0) -> AsyncIterator[Page]:
        """Give the current page to an action, and wait until a page that it opens is there.

        Args:
            what: What was not done, if the action fails.
            waiting: Seconds that it waits by intent.

        Raises:
            ToolError: The page cannot do it, or answers no more.
        """
        page = self.page
        url = page.url
        async with self._acting(what, waiting):
            yield page
            if self._opening:
                await self._new_tab()
            elif page.url != url and not page.is_closed():
                await self._loaded(page)

    def element(self, page: Page, ref: str) -> Locator:
        """Return the element that a reference of the last reading names.

        Raises:
            ToolError: That has no such reference, or was of another page.
        """
        name = ref.strip().strip("[]").removeprefix("ref=")
        if self._read is page and name in self._refs:
            return page.get_by_ref(name)
        raise ToolError(
            f"no element has the reference {ref!r} now; read the page with browser_read and take one of its [ref=…]"
        )

    async def tree(self, ref: str | None = None) -> str:
        """Return what is on the page, or in one of its elements, with references; those before count no more."""
        async with self.acting("the page was not read") as page:
            part = self.element(page, ref) if ref else page
            async with as_buttons(page):
                text = await part.aria_snapshot(mode="ai", timeout=self.seconds * 1000)
            self._read, self._refs = page, set(re.findall(r"\[ref=(\w+)\]", text))
        return text or "(the page is empty)"

    async def state(self) -> str:
        """Say which page is shown now, a new one with its title, and what happened since this was last said."""
        for name in await self.downloads.wait(LOADING):
            self._note(f"{name} is still being downloaded; browser_wait waits for it")
        lines = []
        with suppress(ToolError):
            page = self.page
            lines = [f"URL: {page.url}"]
            if page.url != self._told:
                async with self._acting("the title was not read"):
                    lines.insert(0, f"Page: {await page.title() or '(no title)'}")
                self._told = page.url
            if len(self.all) > 1:
                lines.append(f"Tab: {self.all.index(page) + 1} of {len(self.all)}; browser_tabs changes it")
        notes, self._notes = self._notes, Counter()
        lines += [f"Note: {note}" + (f" ({times} times)" if times > 1 else "") for note, times in notes.items()]
        return self.site.shown("\n".join(lines))

    async def show(self, number: int) -> None:
        """Make another tab the current one.

        Raises:
            ToolError: There is no such tab.
        """
        self._current = self._numbered(number)
        async with self._acting(f"tab {number} was not shown"):
            await self._current.bring_to_front()

    async def close(self, number: int) -> None:
        """Close a tab.

        Raises:
            ToolError: There is no such tab.
        """
        page = self._numbered(number)
        async with self._acting(f"tab {number} was not closed"):
            await page.close()

    def _numbered(self, number: int) -> Page:
        if not 1 <= number <= len(self.all):
            raise ToolError(f"there is no tab {number}; {len(self.all)} are open")
        return self.all[number - 1]

    @asynccontextmanager
    async def _acting(self, what: str, waiting: float = 0) -> AsyncIterator[None]:
        """Turn what Playwright raises into words for the model; close a page that does not answer."""
        try:
            async with asyncio.timeout(waiting + self.seconds + LOADING + ACTING):
                yield
        except TimeoutError:
            await self._give_up()
            raise ToolError(f"{what}: the page did not answer and was closed; open it again, or another one") from None
        except failures() as error:
            if self._crashed or "crashed" in str(error):
                self._crashed = False
                await self._give_up()
                raise ToolError(f"{what}: the page crashed and was closed; open it again, or another one") from None
            why = next(iter(self._proxy.refusals.values()), "") if "net::" in str(error) else ""
            raise ToolError(self.site.shown(f"{what}: {why or reason(error)}")) from None

    async def _free(self) -> Page | None:
        """Return the current page, unless it is so busy that it cannot be left: that is closed."""
        if self._current not in self.all or self._current is None:
            return None
        try:
            async with asyncio.timeout(ACTING):
                await self._current.evaluate("0")
        except (TimeoutError, failures()):
            await self._give_up()
        return self._current

    async def _give_up(self) -> None:
        """Close the current page; if it is too stuck for that, all of them: new ones get processes of their own."""
        page, self._current = self._current, None
        try:
            async with asyncio.timeout(ACTING):
                if page is not None:
                    await page.close()
        except (TimeoutError, failures()):
            await self.aclose()
            await self.begin()

    async def _loaded(self, page: Page) -> None:
        try:
            await page.wait_for_load_state("load", timeout=LOADING * 1000)
        except failures() as error:
            if "Timeout" not in str(error):
                raise
            self._note("the page is still loading; this is what there is")

    async def _watch(self, page: Page) -> None:
        """Learn of tabs that a page opens when it does; Playwright tells of them once they have an answer."""

        def opening(event: object) -> None:
            self._opening += 1
            self._opened.clear()

        def replaced(page: Page) -> None:
            if page is self._read:
                self._read = None

        page.on("domcontentloaded", replaced)
        session = await self._context.new_cdp_session(page)
        session.on("Page.windowOpen", opening)
        await session.send("Page.enable")

    async def _new_tab(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(OPENING):
                await self._opened.wait()
                await self._loaded(self.page)
        self._opening = 0

    def _note(self, text: str) -> None:
        if text in self._notes or len(self._notes) < MAX_NOTES:
            self._notes[text] += 1

    # what happens unasked

    async def _on_page(self, page: Page) -> None:
        page.on("crash", self._on_crash)
        if self._current is None:
            return  # our own first one
        if len(self.all) > MAX_TABS:
            self._note(f"a new tab was closed at once; {MAX_TABS} are open")
            with suppress(failures()):
                await page.close()
        else:
            self._current = page
            self._opened.set()
            self._note("a new tab was opened and is now the current one")
            with suppress(failures()):
                await self._watch(page)

    def _on_crash(self, page: Page) -> None:
        self._crashed = True

    async def _on_dialog(self, dialog: Dialog) -> None:
        leaving = dialog.type == "beforeunload"
        done = "left all the same" if leaving else "dismissed"
        said = f" that says {dialog.message[:200]!r}" if dialog.message else ""
        self._note(f"the page showed a dialog ({dialog.type}){said}; it was {done}")
        with suppress(failures()):
            await (dialog.accept() if leaving else dialog.dismiss())

    async def _on_download(self, download: Download) -> None:
        self._note(await self.downloads.save(download))


@asynccontextmanager
async def open_tabs(
    chromium: Chromium,
    settings: BrowserSettings,
    workspace: LoopWorkspace,
    guard: AddressGuard,
    threads: ThreadPool,
) -> AsyncIterator[Tabs]:
    """Open a browsing context of one loop: nothing is shared with others, and all its traffic is checked.

    Args:
        chromium: The running browser.
        settings: The browser's.
        workspace: Files that pages are opened from, and downloads go to.
        guard: Says which addresses may be reached.
        threads: Where files are read and written.
    """
    site = WorkspaceSite(workspace, threads)
    async with open_proxy(guard, site.serve) as proxy:
        tabs = Tabs(chromium, settings, proxy, site, Downloads(chromium.drafts, workspace, threads))
        await tabs.begin()
        try:
            yield tabs
        finally:
            await tabs.aclose()
