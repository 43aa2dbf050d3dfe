import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import pytest

from orchestrator.errors import BreakerOpen, ModelError
from orchestrator.events import BreakerChanged, Event, Warned
from orchestrator.failure import Failure, FailureKind
from orchestrator.messages import Message, Reply, Request
from orchestrator.models.endpoint import Endpoint
from orchestrator.models.lanes import Lanes
from orchestrator.models.openai import OpenAIModel
from orchestrator.models.route import Route
from orchestrator.testing import Answer, Replies, ScriptedServer, cut, drop, fault, hang, html, text
from tests.clock import Clock

DOWN = fault(503)
HI = text("hi")


def asking(words: str = "hello") -> Request:
    return Request(key="ori/a:1:model", messages=(Message("user", words),))


def endpoint(server: ScriptedServer, clock: Clock, **options: Any) -> Endpoint:
    model = OpenAIModel(
        options.pop("model", "m"), base_url=server.base_url, api_key="none", window=options.pop("window", 9000)
    )
    return Endpoint(model, clock=clock, sleep=clock.sleep, **options)


@asynccontextmanager
async def serving(
    replies: Replies, *, instant: bool = True, **options: Any
) -> AsyncIterator[tuple[Endpoint, ScriptedServer, Clock]]:
    clock = Clock(instant=instant)
    async with ScriptedServer(replies) as server:
        served = endpoint(server, clock, **options)
        try:
            yield served, server, clock
            assert server.in_flight == 0
        finally:
            await served.aclose()


async def failure_of(asked: Endpoint | Route, error: type[ModelError] = ModelError) -> Failure:
    with pytest.raises(error) as caught:
        await asked.generate(asking())
    return caught.value.failure


async def opened(served: Endpoint) -> None:
    """Let five requests in a row fail."""
    while served.breaker.state == "closed":
        with pytest.raises(ModelError):
            await served.generate(asking())


# asking again


async def test_a_server_that_stays_down_is_asked_three_times_and_no_more() -> None:
    """B40: retries of the client library do not multiply ours."""
    async with serving(lambda request: DOWN) as (served, server, clock):
        failure = await failure_of(served)
    assert len(server.requests) == 3
    assert failure.kind is FailureKind.overloaded and "asked 3 times" in failure.message
    assert 1 <= clock.slept[0] <= 1.25 and 3 <= clock.slept[1] <= 3.75


@pytest.mark.parametrize("attempts", [1, 2, 5])
async def test_there_are_as_many_requests_as_attempts(attempts: int) -> None:
    async with serving(lambda request: DOWN, attempts=attempts) as (served, server, clock):
        await failure_of(served)
    assert len(server.requests) == attempts and len(clock.slept) == attempts - 1


@pytest.mark.parametrize(
    "answer", [DOWN, fault(429), fault(408), fault(409), fault(500), drop(), drop(HI), cut(HI), fault(200, "")]
)
async def test_what_may_go_better_in_a_moment_is_asked_again(answer: Answer) -> None:
    async with serving([answer, HI]) as (served, server, _):
        assert (await served.generate(asking())).content == "hi"
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "answer",
    [
        *map(fault, (400, 401, 403, 404, 413, 422)),
        html(),
        fault(429, {"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}}),
        fault(400, {"error": {"message": "The maximum context length is exceeded."}}),
    ],
)
async def test_what_cannot_go_better_is_asked_once(answer: Answer) -> None:
    """B42: a 400 is not taken as something that a repetition mends."""
    async with serving([answer]) as (served, server, clock):
        failure = await failure_of(served)
    assert len(server.requests) == 1 and clock.slept == []
    assert "asked" not in failure.message


async def test_many_refusals_do_not_open_the_breaker() -> None:
    async with serving([fault(400)] * 9 + [HI]) as (served, _, _):
        for _ in range(9):
            await failure_of(served)
        assert (await served.generate(asking())).content == "hi"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
        ({"retry-after": "Mon, 30 Nov 2026 12:00:09 GMT", "date": "Mon, 30 Nov 2026 12:00:00 GMT"}, 9),
        ({"retry-after": format_datetime(datetime(2001, 1, 1, tzinfo=UTC))}, 1),
    ],
)
async def test_the_server_says_how_long_to_wait(headers: dict[str, str], seconds: float) -> None:
    async with serving([fault(429, headers=headers), HI]) as (served, _, clock):
        await served.generate(asking())
    assert len(clock.slept) == 1 and seconds <= clock.slept[0] <= seconds * 1.25


async def test_a_wait_of_a_day_ends_the_call_at_once() -> None:
    async with serving([fault(429, headers={"retry-after": "86400"}), HI]) as (served, server, clock):
        failure = await failure_of(served)
        assert "86400 s" in failure.message and failure.retry_after == 86400
        assert len(server.requests) == 1 and clock.slept == []
        await served.generate(asking())  # nor does the next call wait for it


async def test_other_calls_keep_the_wait_that_the_server_asked_for() -> None:
    replies = [fault(429, headers={"retry-after": "10"}), HI, HI]
    async with serving(replies, instant=False) as (served, server, clock), asyncio.TaskGroup() as group:
        group.create_task(served.generate(asking()))
        await clock.until_sleeping(1)
        group.create_task(served.generate(asking()))
        await clock.until_sleeping(2)
        assert len(server.requests) == 1
        clock.advance(13)


async def test_each_wait_is_told() -> None:
    told: list[Event] = []
    async with serving([DOWN, HI]) as (served, _, _):
        await served.generate(asking(), tell=told.append)
    warned = [event for event in told if isinstance(event, Warned)]
    assert [(event.path, event.key) for event in warned] == [("ori/a", "ori/a:1:model")]
    assert "asking again in 1." in warned[0].text and "503" in warned[0].text


# cancelling


@pytest.mark.parametrize("answer", [hang(), DOWN])
async def test_a_cancelled_call_ends_at_once(answer: Answer) -> None:
    """B39: cancelling is never taken for a failure to be tried again, neither in a request nor between two."""
    async with serving([answer], instant=False) as (served, server, clock):
        async with asyncio.TaskGroup() as group:
            task = group.create_task(served.generate(asking()))
            await (clock.until_sleeping(1) if answer is DOWN else server.until(lambda server: server.in_flight == 1))
            task.cancel()
        assert task.cancelled() and len(server.requests) == 1 and not clock.sleeping
        await server.until(lambda server: server.in_flight == 0)


async def test_a_time_limit_around_a_call_is_kept() -> None:
    async with serving([hang()]) as (served, server, _):

        async def expire() -> None:
            await server.until(lambda server: server.in_flight == 1)
            limit.reschedule(0)

        async with asyncio.TaskGroup() as group:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(None) as limit:
                    group.create_task(expire())
                    await served.generate(asking())
        await server.until(lambda server: server.in_flight == 0)
        assert len(server.requests) == 1


# the breaker


async def test_a_breaker_that_one_opened_is_seen_by_all() -> None:
    async with serving(lambda request: DOWN, when_open="fail", instant=False) as (served, server, clock):
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(failure_of(served))
            await clock.until_sleeping(5)
            failure = await failure_of(served, BreakerOpen)
            clock.advance(2)
        assert len(server.requests) == 5
    assert failure.kind is FailureKind.overloaded and "5 requests in a row failed" in failure.message


async def test_of_twenty_waiters_one_probes_and_the_others_wait_for_it() -> None:
    """B41: a half-open breaker lets one call through, not all that wait."""
    probe, answer = asyncio.Event(), asyncio.Event()

    async def reply(request: dict[str, Any]) -> Answer:
        if len(server.requests) < 6:
            return DOWN
        probe.set()
        await answer.wait()
        return HI

    async with serving(reply, attempts=1, instant=False) as (served, server, clock):
        await opened(served)
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(served.generate(asking())) for _ in range(20)]
            await clock.until_sleeping(20)
            clock.advance(30)
            await probe.wait()
            for _ in range(20):
                await asyncio.sleep(0)
            assert (len(server.requests), server.in_flight) == (6, 1)
            answer.set()
        assert [call.result().content for call in calls] == ["hi"] * 20
    assert len(server.requests) == 25


async def test_a_failed_probe_counts_for_all_who_waited_for_it_so_an_outage_ends() -> None:
    async with serving(lambda request: DOWN, attempts=2) as (served, server, _):
        await opened(served)
        before = len(server.requests)
        async with asyncio.TaskGroup() as group:
            failures = [group.create_task(failure_of(served)) for _ in range(20)]
        assert {f.result().kind for f in failures} == {FailureKind.overloaded}
        assert len(server.requests) - before <= 4


async def test_when_a_probe_is_cancelled_the_next_in_line_probes() -> None:
    async with serving([DOWN] * 5 + [hang(), HI, HI], attempts=1, instant=False) as (served, server, clock):
        await opened(served)
        async with asyncio.TaskGroup() as group:
            probe, *others = [group.create_task(served.generate(asking())) for _ in range(3)]
            await clock.until_sleeping(3)
            clock.advance(30)
            await server.until(lambda server: server.in_flight == 1)
            probe.cancel()
        assert [call.result().content for call in others] == ["hi", "hi"]


async def test_a_run_hears_of_each_state_once() -> None:
    told: list[Event] = []
    async with serving([DOWN] * 5 + [HI, HI]) as (served, _, _):
        route = Route(served, told.append)
        with pytest.raises(ModelError):
            await route.generate(asking())
        await route.generate(asking())
        await route.generate(asking())
    states = [event.state for event in told if isinstance(event, BreakerChanged)]
    assert states == ["open", "half_open", "closed"]
    assert {event.endpoint for event in told if isinstance(event, BreakerChanged)} == {served.origin}


# fallback


@asynccontextmanager
async def two(
    first: Replies, second: Replies, *, window: int = 9000, **options: Any
) -> AsyncIterator[tuple[Route, ScriptedServer, ScriptedServer, list[Event], Clock]]:
    """Serve a model and its fallback."""
    told: list[Event] = []
    async with serving(first, **options) as (served, server, clock), ScriptedServer(second) as other:
        served.fallback = [endpoint(other, clock, model="cheap", window=window)]
        try:
            yield Route(served, told.append), server, other, told, clock
        finally:
            await served.fallback[0].aclose()


def warnings(told: Sequence[Event]) -> list[str]:
    return [event.text for event in told if isinstance(event, Warned) and "is asked now" in event.text]


async def test_after_the_retries_the_fallback_answers_and_then_the_first_again() -> None:
    async with two([DOWN, DOWN, DOWN, HI], [text("cheap one")]) as (route, server, other, told, _):
        assert (await route.generate(asking())).content == "cheap one"
        assert (len(server.requests), len(other.requests)) == (3, 1)
        assert (await route.generate(asking())).content == "hi"
    switched = warnings(told)
    assert len(switched) == 2 and "'cheap'" in switched[0] and "503" in switched[0] and "'m'" in switched[1]


async def test_while_the_breaker_is_open_the_fallback_answers_at_once() -> None:
    async with two([DOWN] * 5 + [HI], [text("cheap one")] * 4) as (route, server, other, told, clock):
        for _ in range(2):
            await route.generate(asking())
        slept = len(clock.slept)
        for _ in range(2):
            assert (await route.generate(asking())).content == "cheap one"
        assert (len(server.requests), len(other.requests)) == (5, 4)
        assert len(clock.slept) == slept, "nobody waits"
        clock.advance(30)
        assert (await route.generate(asking())).content == "hi"
    assert len(warnings(told)) == 2, "each change is told once"


@pytest.mark.parametrize("answer", [fault(401), fault(402), html(), fault(429, headers={"retry-after": "86400"})])
async def test_what_only_another_model_can_mend_goes_to_the_fallback_without_a_wait(answer: Answer) -> None:
    async with two([answer], [HI]) as (route, server, _, _, clock):
        assert (await route.generate(asking())).content == "hi"
        assert len(server.requests) == 1 and clock.slept == []


async def test_what_is_wrong_with_the_request_stays_with_the_first() -> None:
    async with two([fault(400)], []) as (route, _, other, _, _):
        assert (await failure_of(route)).kind is FailureKind.invalid_request
        assert other.requests == []


async def test_only_a_fallback_whose_window_fits_is_asked() -> None:
    async with two([DOWN] * 3, [], window=1100) as (route, _, other, _, _):
        with pytest.raises(ModelError):
            await route.generate(asking("word " * 1000))
        assert other.requests == []


async def test_when_all_are_down_the_first_one_s_failure_is_told_with_the_others() -> None:
    async with two(lambda request: fault(429), lambda request: fault(401)) as (route, _, _, _, _):
        failure = await failure_of(route)
    assert failure.kind is FailureKind.rate_limited
    assert "'m'" in failure.message and "'cheap'" in failure.message and "401" in failure.message


async def test_when_every_breaker_is_open_the_call_waits_for_the_first() -> None:
    async with two([DOWN] * 5 + [HI], lambda request: DOWN) as (route, server, other, _, _):
        with pytest.raises(ModelError):
            await route.generate(asking())
        with pytest.raises(ModelError):
            await route.generate(asking())
        assert (len(server.requests), len(other.requests)) == (5, 5)
        assert (await route.generate(asking())).content == "hi"
        assert len(other.requests) == 5


# event loops


async def test_nothing_is_left_when_calls_are_cancelled_wherever_they_are() -> None:
    lanes = Lanes(concurrency=2)
    async with serving(lambda request: hang(), instant=False, lanes=lanes) as (served, server, _):
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(served.generate(asking())) for _ in range(6)]
            await server.until(lambda server: server.in_flight == 2)
            for call in calls:
                call.cancel()
        await server.until(lambda server: server.in_flight == 0)
        async with asyncio.TaskGroup() as group:  # all slots are free again
            calls = [group.create_task(served.generate(asking())) for _ in range(2)]
            await server.until(lambda server: server.in_flight == 2)
            for call in calls:
                call.cancel()
        await server.until(lambda server: server.in_flight == 0)


def test_an_endpoint_works_in_one_event_loop_after_another() -> None:
    class Once:
        """Answers at the second request of each event loop."""

        name, window, max_output = "m", 9000, 100

        def __init__(self) -> None:
            self.asked = 0

        async def generate(self, request: Request, on_delta: object = None) -> Reply:
            self.asked += 1
            await asyncio.sleep(0)
            if self.asked % 2:
                raise ModelError(Failure(FailureKind.overloaded, "busy"))
            return Reply("hi")

        async def aclose(self) -> None: ...

    clock = Clock(instant=True)
    lanes = Lanes(concurrency=1, rpm=100, tpm=100_000)
    served = Endpoint(Once(), lanes=lanes, clock=clock, sleep=clock.sleep)

    async def ask() -> list[str]:
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(served.generate(asking())) for _ in range(3)]
        return [call.result().content for call in calls]

    assert [asyncio.run(ask()) for _ in range(2)] == [["hi"] * 3] * 2
