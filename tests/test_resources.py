import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from orchestrator.resources import Resources


class Door:
    """Counts how often it was opened and closed, and by whom."""

    def __init__(self, *, broken: bool = False, slow: bool = False, stuck: bool = False) -> None:
        self.events: list[str] = []
        self.tasks: list[asyncio.Task[object] | None] = []
        self.broken, self.slow, self.stuck = broken, slow, stuck

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Door"]:
        self.events.append("opening")
        self.tasks.append(asyncio.current_task())
        if self.slow:
            await asyncio.Event().wait()
        if self.broken:
            raise RuntimeError("no key")
        try:
            yield self
        finally:
            self.tasks.append(asyncio.current_task())
            if self.stuck:
                await asyncio.Event().wait()
            self.events.append("closed")


async def test_it_is_opened_once_for_all_who_ask_and_closed_with_the_scope() -> None:
    door = Door()
    async with Resources() as resources:
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(resources.get("door", door.open))
        assert await resources.get("door", door.open) is door
        assert door.events == ["opening"]
    assert door.events == ["opening", "closed"]


async def test_it_is_entered_and_left_in_one_task_that_is_not_the_callers() -> None:
    """B33: libraries that are built on anyio refuse anything else."""
    door = Door()
    async with Resources() as resources, asyncio.TaskGroup() as group:
        group.create_task(resources.get("door", door.open))
    entered, left = door.tasks
    assert entered is left is not asyncio.current_task()


async def test_what_could_not_be_opened_is_told_and_tried_anew() -> None:
    door = Door(broken=True)
    async with Resources() as resources:
        with pytest.raises(RuntimeError, match="no key"):
            await resources.get("door", door.open)
        door.broken = False
        assert await resources.get("door", door.open) is door
    assert door.events == ["opening", "opening", "closed"]


async def test_a_cancelled_caller_takes_nothing_from_the_others() -> None:
    door, asked = Door(), asyncio.Event()

    async def ask(resources: Resources) -> Door:
        asked.set()
        return await resources.get("door", door.open)

    async with Resources() as resources:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(ask(resources))
            await asked.wait()
            first.cancel()
        assert await resources.get("door", door.open) is door
    assert door.events == ["opening", "closed"]


async def test_what_is_dropped_is_closed_and_opens_anew() -> None:
    door = Door()
    async with Resources() as resources:
        await resources.get("door", door.open)
        await resources.drop("door")
        assert door.events == ["opening", "closed"]
        await resources.drop("door")
        await resources.get("door", door.open)
    assert door.events == ["opening", "closed"] * 2


async def test_what_is_still_opening_is_cancelled_at_the_end() -> None:
    door = Door(slow=True)
    resources = Resources()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(resources.get("door", door.open))
        while not door.events:
            await asyncio.sleep(0)
        await resources.aclose()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_closing_is_bounded() -> None:
    stuck, other = Door(stuck=True), Door()
    resources = Resources(closing=0.01)
    await resources.get("stuck", stuck.open)
    await resources.get("other", other.open)
    async with asyncio.timeout(5):
        await resources.aclose()
    assert (stuck.events, other.events) == (["opening"], ["opening", "closed"])
