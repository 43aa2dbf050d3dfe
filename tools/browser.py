"""A web browser: pages are opened, read, acted on and photographed. Each loop has tabs of its own."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from orchestrator import ToolContext, ToolError, ToolResult, Toolset, tool
from orchestrator.messages import Image
from orchestrator.sandbox.chromium import BrowserSettings, failures, missing, open_chromium
from orchestrator.sandbox.pagetext import element_text, page_text, text_comes
from orchestrator.sandbox.tabs import ACTING, Tabs, open_tabs
from orchestrator.workspace.files import media_type

if TYPE_CHECKING:
    from playwright.async_api import FilePayload

MAX_HEIGHT = 15_000
"""Pixels of a page that one picture shows; Chromium draws hardly more."""
MAX_WAIT = 60.0
toolset = Toolset(BrowserSettings, missing)


def _where(ctx: ToolContext) -> str:
    """Say where an action on the page leads: a person who named its host need not be asked."""
    tabs: Tabs | None = ctx.kept("tabs", "loop")
    return tabs.where if tabs else ""


@tool(effect="read", timeout=None, untrusted=True, destinations=("url",))
async def browser_open(url: str, ctx: ToolContext) -> ToolResult:
    """Open a web page, or an HTML file of the workspace, in the browser.

    Use it when a page must be seen as a person sees it, with its scripts, or must be acted on.

    Args:
        url: https://… or http://…; for a file of the workspace its path, as site/index.html, or file:///workspace/….

    Returns:
        The page's title and status, and its elements with their references.
    """
    remote = url.lower().startswith(("http:", "https:"))
    if remote:
        ctx.network.check_url(url)
    elif re.match(r"(?i)(?!file:)[a-z][a-z0-9+.-]+:", url):
        raise ToolError(f"{url[:200]!r} is not opened; give https://…, http://…, or a file of the workspace")
    async with _tabs(ctx) as tabs:
        response = await tabs.open(url if remote else tabs.site.address(url))
        if response is None:
            return await _told(tabs, "this address is a file, which is downloaded instead of shown")
        status = f"Status: {response.status} {response.status_text}".rstrip() + "\n\n" if remote else ""
        return await _told(tabs, status + await tabs.tree())


@tool(effect="read", timeout=None, untrusted=True, outward=False)
async def browser_read(
    ctx: ToolContext, form: Literal["elements", "text"] = "elements", ref: str | None = None
) -> ToolResult:
    """Read the page that is open, or a part of it.

    Use it when you need what a page says, after it has changed, or for the references of its elements.

    Args:
        form: elements: a tree of what is on the page, with references as [ref=e12] that the other browser tools take,
            where links lead, and as buttons what can be clicked without saying so; text: nothing but the text.
        ref: Only this element and what is in it.

    Returns:
        The page's title and URL, then what was read.
    """
    async with _tabs(ctx) as tabs:
        return await _told(tabs, await (tabs.tree(ref) if form == "elements" else _text(tabs, ref)))


@tool(effect="once", timeout=None, untrusted=True, goes_to=_where)
async def browser_click(ref: str, ctx: ToolContext, double: bool = False) -> ToolResult:
    """Click an element of the page: a link, a button, a checkbox.

    Use it when a person would click there. Read the page afterwards if you need what has changed.

    Args:
        ref: The element's reference, as e12.
        double: Click twice.

    Returns:
        Which page is shown then, and what else happened: dialogs, new tabs, downloads.
    """
    async with _tabs(ctx) as tabs:
        async with tabs.acting(f"{ref} was not clicked") as page:
            await tabs.element(page, ref).click(click_count=2 if double else 1)
        return await _done(tabs, f"clicked {ref}")


@tool(effect="once", timeout=None, untrusted=True, goes_to=_where)
async def browser_type(ref: str, text: str, ctx: ToolContext, submit: bool = False, keys: bool = False) -> ToolResult:
    """Put a text into a field of the page, in place of what it holds.

    Use it when a form, a search box or an editor needs a text.

    Args:
        ref: The field's reference, as e12.
        text: All that shall stand in it.
        submit: Press Enter afterwards.
        keys: Type it key by key after what is there, for fields that react to each key.

    Returns:
        Which page is shown then, and what else happened.
    """
    async with _tabs(ctx) as tabs:
        async with tabs.acting(f"nothing was typed into {ref}") as page:
            field = tabs.element(page, ref)
            await (field.press_sequentially(text) if keys else field.fill(text))
            held = None if keys else await page.evaluate(_HELD)
            if submit:
                await field.press("Enter")
        other = ""
        if held is not None and _plain(held) != _plain(text):
            other = f"; it holds {held[:200]!r} now" + (_FORM if not held else "")
        return await (_done if submit else _told)(tabs, f"typed {len(text)} characters into {ref}{other}")


@tool(effect="once", timeout=None, untrusted=True, goes_to=_where)
async def browser_press(key: str, ctx: ToolContext, ref: str | None = None) -> ToolResult:
    """Press a key, or keys together.

    Use it when a page reacts to keys: Enter, Escape, Tab, ArrowDown, Control+A.

    Args:
        key: The key's name, as Enter, PageDown, a, Control+C.
        ref: The element that gets it; null: the one that has the focus.

    Returns:
        Which page is shown then, and what else happened.
    """
    async with _tabs(ctx) as tabs:
        async with tabs.acting(f"{key!r} was not pressed") as page:
            await (tabs.element(page, ref).press(key) if ref else page.keyboard.press(key))
        return await _done(tabs, f"pressed {key}")


@tool(effect="once", timeout=None, untrusted=True, goes_to=_where)
async def browser_select(ref: str, values: list[str], ctx: ToolContext) -> ToolResult:
    """Choose from a list of options of the page.

    Use it when an element is a combobox or listbox with options.

    Args:
        ref: The list's reference, as e12.
        values: The options by their text or value; more than one where the list allows it.

    Returns:
        Which page is shown then, and what else happened.
    """
    async with _tabs(ctx) as tabs:
        async with tabs.acting(f"nothing was chosen in {ref}") as page:
            chosen = await tabs.element(page, ref).select_option(values)
        return await _told(tabs, f"chosen in {ref}: {', '.join(chosen) or 'nothing'}")


@tool(effect="once", timeout=None, untrusted=True, goes_to=_where)
async def browser_upload(ref: str, paths: list[str], ctx: ToolContext) -> ToolResult:
    """Give files of the workspace to the page.

    Use it when a page has a button or a field that asks for a file; click nothing before.

    Args:
        ref: The reference of that button or field, as e12.
        paths: The files; more than one where the page allows it.

    Returns:
        Which page is shown then, and what else happened.
    """
    files: list[FilePayload] = [
        {"name": PurePosixPath(path).name, "mimeType": media_type(path), "buffer": data}
        for path in paths
        for data in [await ctx.threads.run(ctx.workspace.read, path)]
    ]
    async with _tabs(ctx) as tabs:
        async with tabs.acting(f"nothing was given to {ref}") as page:
            async with page.expect_file_chooser() as chooser:
                await tabs.element(page, ref).click()
            await (await chooser.value).set_files(files)
        return await _done(tabs, f"given to {ref}: {', '.join(paths) or 'nothing'}")


@tool(effect="read", timeout=None, untrusted=True, outward=False)
async def browser_scroll(
    ctx: ToolContext, to: Literal["down", "up", "top", "bottom"] = "down", ref: str | None = None
) -> ToolResult:
    """Scroll the page.

    Use it when a page loads more as one scrolls, or before a screenshot; reading a page needs no scrolling.

    Args:
        to: One screen down or up, or all the way.
        ref: Scroll to this element instead.

    Returns:
        Where on the page the screen is then.
    """
    async with _tabs(ctx) as tabs:
        async with tabs.acting("the page was not scrolled") as page:
            if ref:
                await tabs.element(page, ref).scroll_into_view_if_needed()
            top, height = await page.evaluate(_SCROLL, None if ref else to)
        return await _told(tabs, f"the screen shows the page from pixel {top} on, of {height}")


_SCROLL = """(to) => {
    const longer = (part) => part.scrollHeight > part.clientHeight + 1
    let all = document.scrollingElement ?? document.documentElement
    if (!longer(all))  // many pages are as high as the screen, and scroll what is in the middle of it
        for (let part = document.elementFromPoint(innerWidth / 2, innerHeight / 2); part; part = part.parentElement)
            if (longer(part) && /auto|scroll/.test(getComputedStyle(part).overflowY)) { all = part; break }
    const screen = 0.9 * all.clientHeight
    const tops = {down: all.scrollTop + screen, up: all.scrollTop - screen, top: 0, bottom: all.scrollHeight}
    if (to) all.scrollTo({top: tops[to], behavior: 'instant'})
    return [Math.round(all.scrollTop), all.scrollHeight]
}"""


@tool(effect="read", timeout=None, untrusted=True, outward=False)
async def browser_wait(
    ctx: ToolContext,
    text: str | None = None,
    gone: str | None = None,
    seconds: Annotated[float, Field(gt=0, le=MAX_WAIT)] | None = None,
) -> ToolResult:
    """Wait until a text is on the page or gone from it, or for some seconds, and for downloads to end.

    Use it when a page does its work in its own time.

    Args:
        text: What shall be there.
        gone: What shall not be there any more.
        seconds: How long to wait at most; with neither text, how long to wait. At most 60.

    Returns:
        Which page is shown then, and what else happened.
    """
    async with _tabs(ctx) as tabs:
        await tabs.downloads.wait(seconds or MAX_WAIT)
        async with tabs.acting("the wait was in vain", waiting=seconds or 0) as page:
            if text is gone is None and seconds:
                await page.wait_for_timeout(seconds * 1000)
            try:
                async with asyncio.timeout(seconds or tabs.seconds):
                    await text_comes(page, text, gone)
            except TimeoutError:
                raise ToolError(f"the wait was in vain: it took more than {seconds or tabs.seconds:g} s") from None
        return await _told(tabs)


@tool(effect="idempotent", timeout=None, untrusted=True, outward=False)
async def browser_screenshot(
    ctx: ToolContext, path: str | None = None, full_page: bool = False, ref: str | None = None
) -> ToolResult:
    """Take a picture of the page, as a PNG file in the workspace.

    Use it when it matters what a page looks like.

    Args:
        path: Where it goes, as pictures/start.png; null: a new name.
        full_page: All of the page, not only what the screen shows.
        ref: Only this element.

    Returns:
        The file; you see the picture too if you can see pictures.
    """
    async with _tabs(ctx) as tabs:
        path = path or _free_name(ctx)
        if PurePosixPath(path).suffix.lower() != ".png":
            raise ToolError(f"path={path!r}: a screenshot is a PNG file; name it as page.png")
        async with tabs.acting("no picture was taken") as page:
            limit = tabs.seconds * 1000
            if ref:
                data = await tabs.element(page, ref).screenshot(timeout=limit)
            elif full_page:
                width, height = await page.evaluate("[innerWidth, document.documentElement.scrollHeight]")
                data = await page.screenshot(
                    full_page=True,
                    clip={"x": 0, "y": 0, "width": width, "height": min(height, MAX_HEIGHT)},
                    timeout=limit,
                )
            else:
                data = await page.screenshot(timeout=limit)
        artifact = await ctx.threads.run(ctx.workspace.write, path, data)
        image = Image(artifact.path, "image/png", base64.b64encode(data).decode())
        told = await _told(tabs, f"{artifact.path} written")
        return ToolResult(told.content, images=(image,), untrusted=told.untrusted)


@tool(effect="read", timeout=None, untrusted=True, outward=False)
async def browser_back(ctx: ToolContext) -> ToolResult:
    """Go back to the page before.

    Use it when a link led where you did not want to be.

    Returns:
        The page's title and URL, and its elements with their references.
    """
    async with _tabs(ctx) as tabs:
        async with tabs.acting("there was no going back") as page:
            if await page.go_back(wait_until="commit", timeout=tabs.seconds * 1000) is None:
                raise ToolError("there is no page before this one in this tab; open one with browser_open")
        return await _told(tabs, await tabs.tree())


@tool(effect="read", timeout=None, untrusted=True, outward=False)
async def browser_tabs(ctx: ToolContext, show: int | None = None, close: int | None = None) -> ToolResult:
    """List the tabs of the browser; show or close one.

    Use it when a click has opened a new tab, or an old one is needed again.

    Args:
        show: Number of the tab that the other tools shall use.
        close: Number of the tab to close.

    Returns:
        A line for each tab: its number and its URL.
    """
    async with _tabs(ctx) as tabs:
        if close is not None:
            await tabs.close(close)
        if show is not None:
            await tabs.show(show)
        lines = [f"{number}: {tabs.site.shown(page.url)}" for number, page in enumerate(tabs.all, 1)]
        return await _told(tabs, "\n".join(lines) or "no tab is open")


@asynccontextmanager
async def _tabs(ctx: ToolContext) -> AsyncIterator[Tabs]:
    """Give the loop's tabs to one call at a time, in a browser that is alive; both are opened on first use."""
    open_browser = partial(open_chromium, ctx.settings, ctx.threads)
    chromium = await ctx.keep("browser", open_browser)
    if not chromium.alive:
        await ctx.drop("browser")
        chromium = await ctx.keep("browser", open_browser)
    open_own = partial(open_tabs, chromium, ctx.settings, ctx.workspace, ctx.network, ctx.threads)
    tabs = await ctx.keep("tabs", open_own, "loop")
    if tabs.chromium is not chromium:
        await ctx.drop("tabs", "loop")
        tabs = await ctx.keep("tabs", open_own, "loop")
    async with tabs.turn:
        yield tabs


async def _told(tabs: Tabs, text: str = "") -> ToolResult:
    """Say which page is shown and what happened, then the text; marked as the page's own words."""
    state = await tabs.state()
    return ToolResult("\n".join(filter(None, (state, tabs.site.shown(text)))), untrusted=tabs.source)


async def _done(tabs: Tabs, text: str) -> ToolResult:
    """Say what was done, and what the browser objects to in the form: it shows that to people only."""
    with suppress(TimeoutError, ToolError, failures()):
        async with asyncio.timeout(ACTING):
            if objection := await tabs.page.evaluate(_OBJECTION):
                text += f"\nNote: the browser objects to the field that has the focus: {objection}"
    return await _told(tabs, text)


_OBJECTION = """() => {
    const field = document.activeElement
    return field?.matches(':user-invalid') && !field.form?.noValidate ? field.validationMessage : ''
}"""
_HELD = """() => {  // what was filled has the focus; null: it is in a frame of another site, or has lost it
    const within = (part) => (part?.shadowRoot ?? part?.contentDocument)?.activeElement
    let field = document.activeElement
    while (within(field)) field = within(field)
    return field?.matches('input, textarea') ? field.value : field?.isContentEditable ? field.innerText : null
}"""
_FORM = "; a date is typed as 2026-01-31, a time as 09:30, both as 2026-01-31T09:30, a number without its unit"


def _plain(text: str) -> str:
    return " ".join(text.replace("\u200b", "").split())


async def _text(tabs: Tabs, ref: str | None = None) -> str:
    async with tabs.acting("the page was not read") as page:
        text = await (element_text(tabs.element(page, ref)) if ref else page_text(page))
    return text or "(no text)"


def _free_name(ctx: ToolContext) -> str:
    number = 1
    while ctx.workspace.resolve(f"screenshot-{number}.png").exists():
        number += 1
    return f"screenshot-{number}.png"
