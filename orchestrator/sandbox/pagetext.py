"""The text that a page shows: with its frames, and what web components keep in shadow roots."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from orchestrator.sandbox.chromium import failures

if TYPE_CHECKING:
    from playwright.async_api import Frame, Locator, Page

T = TypeVar("T")
MAX_TEXT = 1_000_000
"""Characters of one frame's text that are read."""
FRAME = 1.0
"""Seconds in which a frame must answer: one that the browser refused to load never does."""
LOOK = 100.0
"""Milliseconds between two looks at whether a text is there."""

_TEXT = """(part, most) => {
    const mixed = new Set()  // what a shadow root or a slot is in: innerText tells nothing of what those show
    const look = (root) => {
        for (const one of root.querySelectorAll('*'))
            if (one.shadowRoot || one.localName === 'slot') {
                for (let outer = one; outer && !mixed.has(outer); outer = outer.parentElement) mixed.add(outer)
                if (one.shadowRoot) look(one.shadowRoot)
            }
    }
    look(part.getRootNode())
    const slotted = (one) => one.assignedNodes?.().length ? one.assignedNodes() : one.childNodes
    const shown = (one) => one.shadowRoot?.childNodes ?? slotted(one)
    const text = (one, visible) => {
        if (one.nodeType === Node.TEXT_NODE) return visible ? one.data.replace(/\\s+/g, ' ') : ''
        if (one.nodeType !== Node.ELEMENT_NODE) return ''
        const style = getComputedStyle(one)
        if (style.display === 'none') return ''
        const inner = !mixed.has(one) ? one.innerText ?? one.textContent
            : [...shown(one)].map((node) => text(node, style.visibility === 'visible')).join('')
        return /^(inline|contents)/.test(style.display) ? inner : `\\n${inner}\\n`
    }
    const all = mixed.has(part) ? text(part, true).replace(/\\n\\s*\\n/g, '\\n') : part.innerText ?? part.textContent
    return all.trim().slice(0, most)
}"""


async def page_text(page: Page) -> str:
    """Return the text of a page, then that of each of its frames that is shown."""
    return "\n\n".join(filter(None, await _of_frames(page, _text)))


async def element_text(element: Locator) -> str:
    """Return the text of an element."""
    return str(await element.evaluate(_TEXT, MAX_TEXT))


async def text_comes(page: Page, text: str | None, gone: str | None) -> None:
    """Wait, without a limit, until a page or one of its frames shows a text, and none shows another."""
    while not await _right(page, text, gone):
        await page.wait_for_timeout(LOOK)


async def _right(page: Page, text: str | None, gone: str | None) -> bool:
    with suppress(failures()):  # it may just be left for the next page
        return (text is None or await _shows(page, text)) and (gone is None or not await _shows(page, gone))
    return False


async def _shows(page: Page, text: str) -> bool:
    async def shows(frame: Frame) -> bool:
        return await frame.get_by_text(text).filter(visible=True).first.is_visible()

    return any(await _of_frames(page, shows))


async def _text(frame: Frame) -> str:
    if frame.parent_frame is None or await (await frame.frame_element()).is_visible():
        return str(
            await frame.evaluate(f"most => ({_TEXT})(document.body ?? document.documentElement, most)", MAX_TEXT)
        )
    return ""


async def _of_frames(page: Page, ask: Callable[[Frame], Awaitable[T]]) -> list[T]:
    """Return what a page and its frames answer; left out are frames that are gone, empty, or never answer."""

    async def answer(frame: Frame) -> None:
        with suppress(TimeoutError, failures()):
            async with asyncio.timeout(FRAME):
                answers[frame] = await ask(frame)

    own, *frames = page.frames
    answers = {own: await ask(own)}
    async with asyncio.TaskGroup() as group:
        for frame in frames:
            group.create_task(answer(frame))
    return [answers[frame] for frame in (own, *frames) if frame in answers]
