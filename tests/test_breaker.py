import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orchestrator.failure import Failure, FailureKind
from orchestrator.models.breaker import Breaker

DOWN = Failure(FailureKind.overloaded, "it is down")


def entered(breaker: Breaker, now: float = 0.0) -> int:
    permit = breaker.enter(now)
    assert permit is not None
    return permit


def state(breaker: Breaker) -> str:
    return breaker.state


def opened(now: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(5):
        breaker.failed(entered(breaker, now), DOWN, now)
    return breaker


def test_five_failures_in_a_row_open_it_and_four_do_not() -> None:
    breaker = Breaker()
    for _ in range(4):
        breaker.failed(entered(breaker), DOWN, 0)
    assert state(breaker) == "closed"
    breaker.failed(entered(breaker), DOWN, 0)
    assert state(breaker) == "open" and breaker.enter(0) is None
    assert breaker.refusal().kind is DOWN.kind
    assert (
        breaker.refusal().message.startswith("5 requests in a row failed") and DOWN.message in breaker.refusal().message
    )


def test_a_success_in_between_starts_the_count_anew() -> None:
    breaker = Breaker()
    for _ in range(4):
        breaker.failed(entered(breaker), DOWN, 0)
    breaker.succeeded(entered(breaker))
    for _ in range(4):
        breaker.failed(entered(breaker), DOWN, 0)
    assert state(breaker) == "closed"


def test_after_thirty_seconds_one_probe_is_let_through_and_no_second() -> None:
    breaker = opened(now=100)
    assert breaker.left(100) == 30 and breaker.enter(129.9) is None
    probe = entered(breaker, 130)
    assert state(breaker) == "half_open" and not breaker.lets_through(130) and breaker.enter(999) is None
    breaker.succeeded(probe)
    assert state(breaker) == "closed" and breaker.lets_through(130)


def test_a_probe_that_fails_opens_it_for_another_thirty_seconds() -> None:
    breaker = opened()
    breaker.failed(entered(breaker, 30), DOWN, 31)
    assert state(breaker) == "open" and breaker.enter(60.9) is None
    assert breaker.enter(61) is not None


def test_a_probe_that_comes_to_nothing_lets_the_next_one_try_at_once() -> None:
    breaker = opened()
    breaker.leave(entered(breaker, 30))
    assert breaker.enter(30) is not None


def test_what_began_before_a_change_counts_no_more() -> None:
    breaker = Breaker()
    early = entered(breaker)
    for _ in range(5):
        breaker.failed(entered(breaker), DOWN, 0)
    breaker.succeeded(early)
    assert state(breaker) == "open"
    probe = entered(breaker, 30)
    breaker.failed(early, DOWN, 30)
    breaker.leave(early)
    assert state(breaker) == "half_open" and breaker.holds(probe) and not breaker.holds(early)


async def test_all_who_wait_for_the_probe_are_woken_by_its_end() -> None:
    breaker = opened()
    probe = entered(breaker, 30)
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(breaker.probed()) for _ in range(20)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        breaker.succeeded(probe)


def test_a_probe_in_one_event_loop_wakes_who_waits_in_another() -> None:
    breaker = opened()
    probe = entered(breaker, 30)

    async def waiting() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(breaker.probed())
            await asyncio.sleep(0)
            await asyncio.to_thread(breaker.succeeded, probe)

    asyncio.run(waiting())


class AnyOrder(RuleBasedStateMachine):
    """Requests begin and end in any order while time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker(threshold=2, seconds=10)
        self.now, self.opened_at = 0.0, 0.0
        self.permits: list[int] = []

    @rule(seconds=st.integers(1, 15))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def one_begins(self) -> None:
        before = self.breaker.state
        permit = self.breaker.enter(self.now)
        assert (permit is not None) is (before == "closed" or (before == "open" and self.breaker.state == "half_open"))
        if permit is not None:
            self.permits.append(permit)

    @precondition(lambda self: self.permits)
    @rule(data=st.data(), end=st.sampled_from(["succeeded", "failed", "cancelled"]))
    def one_ends(self, data: st.DataObject, end: str) -> None:
        permit = self.permits.pop(data.draw(st.integers(0, len(self.permits) - 1)))
        held, before = self.breaker.holds(permit), self.breaker.state
        if end == "succeeded":
            self.breaker.succeeded(permit)
        elif end == "failed":
            self.breaker.failed(permit, DOWN, self.now)
        self.breaker.leave(permit)
        if not held:
            assert self.breaker.state == before
        elif before == "half_open":
            assert self.breaker.state == ("closed" if end == "succeeded" else "open")
            assert self.breaker.left(self.now) == (10 if end == "failed" else 0)

    @invariant()
    def one_probe_at_most(self) -> None:
        probes = [permit for permit in self.permits if self.breaker.holds(permit)]
        if self.breaker.state != "closed":
            assert len(probes) == (self.breaker.state == "half_open")


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=50, stateful_step_count=30)
