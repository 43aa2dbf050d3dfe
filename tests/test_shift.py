from __future__ import annotations

import asyncio

import pytest

from orchestrator.errors import LoopStopped
from orchestrator.limits import Deadline
from orchestrator.schedule import Slots
from orchestrator.shift import Shift


def shift(seconds: float = 100.0, above: Shift | None = None) -> Shift:
    return Shift(Deadline(seconds, seconds), above)


class TestWhoWorks:
    async def test_the_root_stands_still_when_everything_below_it_waits(self) -> None:
        stops: list[str] = []
        root = Shift(Deadline(100, 100), stopped=lambda: stops.append("stop"))
        one, other = root.below(None), root.below(None)
        root.begin()  # two work below it
        one.pause()
        assert (root.running, stops) == (True, [])
        other.pause()
        assert (root.running, stops) == (False, ["stop"])
        one.begin()
        assert root.running

    async def test_who_waits_for_a_person_holds_no_slot_and_takes_it_again(self) -> None:
        slots = Slots(1)
        ticket, next_in_line = slots.ticket(1), slots.ticket(1)
        work = Shift(Deadline(100, 100), ticket=ticket)
        async with work.away():
            assert not work.running
            assert next_in_line.granted.is_set()
            next_in_line.leave()
        assert work.running
        assert ticket.granted.is_set()


class TestItsTime:
    def test_a_loop_below_ends_before_the_one_above_sums_up(self) -> None:
        root = Shift(Deadline(45, 50))
        assert root.below(None).deadline.hard <= 45
        assert root.below(10).deadline.hard == 10
        assert root.below(1000).deadline.hard <= 45

    def test_what_it_worked_before_the_interruption_counts(self) -> None:
        root = Shift(Deadline.after(100), worked=60)
        assert 60 <= root.worked < 70
        below = root.below(50, worked=40)
        assert (below.deadline.hard, below.left < 10) == (50, True)

    async def test_its_clock_stands_while_it_waits(self) -> None:
        waiting, working = shift(0.01), shift(0.05)
        waiting.pause()

        async def over() -> None:
            with pytest.raises(LoopStopped):
                async with working.limited():
                    await asyncio.Event().wait()

        async with waiting.limited():  # it would be stopped long before the other one
            await over()
        assert waiting.worked < 0.01

    async def test_it_is_stopped_when_its_time_is_up(self) -> None:
        with pytest.raises(LoopStopped, match="its time limit") as stopped:
            async with shift(0.01).limited():
                await asyncio.Event().wait()
        assert stopped.value.stop_reason == "deadline"

    async def test_a_timeout_of_the_work_itself_is_not_its_end(self) -> None:
        with pytest.raises(TimeoutError):
            async with shift().limited():
                raise TimeoutError
