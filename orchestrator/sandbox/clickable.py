"""Gives references to what a page lets people click without saying so: a `div` with a listener, an icon, a word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from orchestrator.sandbox.chromium import failures

if TYPE_CHECKING:
    from playwright.async_api import Frame, Page

SECONDS = 1.0
"""That looking through a page may take; longer, and it is read as it is."""

_MARK = """(key) => {
    const bare = 'div, span, b, i, em, strong, small, canvas, svg *, img[alt=""], [role=none], [role=presentation]'
    const without = [null, 'none', 'presentation']
    const roots = [document]
    for (const root of roots)
        for (const one of root.querySelectorAll('*')) if (one.shadowRoot) roots.push(one.shadowRoot)
    const all = (selector) => roots.flatMap((root) => [...root.querySelectorAll(selector)])
    const parent = (element) => element.parentElement ?? element.getRootNode().host
    const points = (element) => element && getComputedStyle(element).cursor === 'pointer'
    const heeds = (element) => element.onclick || (element.hasAttribute('tabindex') && element.tabIndex >= 0) ||
        (points(element) && !points(parent(element)))
    const clickable = all(bare).filter((element) =>
        without.includes(element.getAttribute('role')) && heeds(element) && element.getBoundingClientRect().width &&
        !element.closest('a, button, summary, [role=button], [role=link]'))
    const around = new Set()
    for (const inner of [...clickable, ...all('a, button, input, select, textarea')])
        for (let outer = parent(inner); outer && !around.has(outer); outer = parent(outer))
            around.add(outer)
    const marked = clickable.filter((element) => !around.has(element))
    globalThis[Symbol.for(key)] = marked.map((element) => [element, element.getAttribute('role')])
    for (const element of marked) element.setAttribute('role', 'button')
    return marked.length
}"""
"""Makes a button of each such element that holds no other; Playwright gives references only to what has a role, and to
some of the rest."""

_UNMARK = """(key) => {
    for (const [element, role] of globalThis[Symbol.for(key)])
        role === null ? element.removeAttribute('role') : element.setAttribute('role', role)
    delete globalThis[Symbol.for(key)]
}"""
_KEY = "clickable"


@asynccontextmanager
async def as_buttons(page: Page) -> AsyncIterator[None]:
    """Let clickable elements be buttons inside the block."""
    marked: list[Frame] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(SECONDS):
            for frame in page.frames:
                with suppress(failures()):  # it is gone, or shows no document
                    if await frame.evaluate(_MARK, _KEY):
                        marked.append(frame)
    try:
        yield
    finally:
        for frame in marked:
            with suppress(failures()):
                await frame.evaluate(_UNMARK, _KEY)
