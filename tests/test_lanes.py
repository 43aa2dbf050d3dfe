import asyncio
import time

import pytest

from orchestrator.models.lanes import Lanes

MINUTE = 0.2


async def test_no_more_than_so_many_are_on_their_way_and_the_first_to_come_goes_first() -> None:
    lanes, at_work, most, order = Lanes(concurrency=2), 0, 0, []

    async def go(number: int) -> None:
        nonlocal at_work, most
        async with lanes.turn():
            order.append(number)
            at_work, most = at_work + 1, max(most, at_work + 1)
            await asyncio.sleep(0)
            at_work -= 1

    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(go(number))
    assert most == 2 and order == list(range(8))


async def test_a_turn_that_fails_or_is_cancelled_is_given_back() -> None:
    lanes = Lanes(concurrency=1)
    for error in (ValueError, asyncio.CancelledError):
        with pytest.raises(error):
            async with lanes.turn():
                raise error
    async with asyncio.timeout(5), lanes.turn():
        pass


async def went(lanes: Lanes, tokens: int, spent: int | None = None) -> float:
    """Take a turn; return when."""
    async with lanes.turn(tokens) as turn:
        at = time.monotonic()
        if spent is not None:
            turn.tokens = spent
    return at


async def test_requests_beyond_those_of_a_minute_wait_for_the_next_in_order() -> None:
    lanes = Lanes(rpm=3, minute=MINUTE)
    times = [await went(lanes, 0) for _ in range(3)]
    async with asyncio.TaskGroup() as group:
        later = [group.create_task(went(lanes, 0)) for _ in range(2)]
    assert later[0].result() - times[0] >= MINUTE
    assert later[1].result() - times[1] >= MINUTE and later[0].result() <= later[1].result()


async def test_only_the_first_in_line_polls() -> None:
    lanes = Lanes(concurrency=100, rpm=1, minute=3600)
    await went(lanes, 0)
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(went(lanes, 0)) for _ in range(50)]
        await asyncio.sleep(0)
        timers = [handle for handle in loop._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
        for task in waiting:
            task.cancel()
    assert len(timers) <= 2, "the test's own time limit may be one"


async def test_tokens_beyond_those_of_a_minute_wait_for_the_next() -> None:
    lanes = Lanes(tpm=100, minute=MINUTE)
    first = await went(lanes, 60)
    assert await went(lanes, 60) - first >= MINUTE


async def test_what_was_reserved_but_not_used_is_free_again() -> None:
    lanes = Lanes(tpm=100, minute=3600)
    async with asyncio.timeout(5):
        await went(lanes, 90, spent=10)
        await went(lanes, 90)


async def test_a_correction_lets_the_next_one_go_at_once() -> None:
    lanes = Lanes(tpm=100, minute=3600)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group, lanes.turn(100) as turn:
        waiting = group.create_task(went(lanes, 50))
        await asyncio.sleep(0)
        assert not waiting.done()
        turn.tokens = 50


async def test_a_request_larger_than_a_minute_goes_alone() -> None:
    lanes = Lanes(tpm=100, minute=MINUTE)
    first = await went(lanes, 500)
    assert await went(lanes, 1) - first >= MINUTE


async def test_who_stops_waiting_does_not_hold_up_the_line() -> None:
    lanes = Lanes(tpm=100, minute=3600)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group, lanes.turn(60) as turn:
        large = group.create_task(went(lanes, 90))
        small = group.create_task(went(lanes, 30))
        await asyncio.sleep(0)
        large.cancel()
        await small
        turn.tokens = 0
