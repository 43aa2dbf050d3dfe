"""Budgets: calls are reserved before they begin, so that nobody overshoots, is refused too early, or waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import Limits, Orchestrator, Role
from orchestrator.connections import Connections
from orchestrator.errors import OutOfBudget
from orchestrator.events import BudgetReached, MessageAppended, ModelCalled, ModelReplied, RunStarted, Warned
from orchestrator.journal import Journal
from orchestrator.journal.log import RunLog
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.ledger import Ledger, Today
from orchestrator.limits import LEAST_OUTPUT, Budget, Exhausted, Need
from orchestrator.messages import Delta, Reply, Request, Usage
from orchestrator.models.recorder import record
from orchestrator.models.tokens import Price
from orchestrator.plan import Subtask
from orchestrator.settings import ModelSettings, Settings
from orchestrator.testing import Answer, ScriptedServer, call, route, text
from tests.engine import ORI, delegate, logged, orchestrator, serving, statuses, subtask
from tests.loops import look

PRICE = Price(input=Decimal(1), output=Decimal(4))


def usage(prompt: int, completion: int) -> Usage:
    return Usage(calls=1, prompt=prompt, completion=completion, cost=PRICE.cost(prompt, 0, completion))


def priced(prompt: int, output: int) -> Need:
    return Need(prompt, output, PRICE.cost(1, 0, 0), PRICE.cost(0, 0, 1))


def granted(answer: Need | Exhausted | None) -> Need:
    assert isinstance(answer, Need)
    return answer


def refused(answer: Need | Exhausted | None) -> str:
    assert isinstance(answer, Exhausted)
    return answer.limit


class TestReserving:
    def test_a_call_holds_its_prompt_and_the_longest_answer_until_it_is_settled(self) -> None:
        budget = Budget(tokens=10_000)
        first = granted(budget.reserve(Need(1_000, 5_000)))
        assert budget.reserve(Need(1_000, 5_000)) is None
        budget.settle(first, usage(1_000, 100))
        assert granted(budget.reserve(Need(1_000, 5_000))).output == 5_000

    def test_it_is_refused_only_when_what_is_spent_leaves_no_room(self) -> None:
        budget = Budget(tokens=10_000)
        held = granted(budget.reserve(Need(1_000, 8_000)))
        assert budget.reserve(Need(8_000, 5_000)) is None, "others may give it all back"
        budget.settle(held, usage(1_000, 2_000))
        assert refused(budget.reserve(Need(8_000, 5_000))) == "tokens: 3000 of 10000; going on takes 8256 or more"

    def test_where_little_is_left_a_shorter_answer_is_granted(self) -> None:
        budget = Budget(tokens=10_000, spent=usage(8_000, 0))
        assert granted(budget.reserve(Need(1_000, 5_000))).output == 1_000
        money = Budget(cost=Decimal("0.005"))
        assert granted(money.reserve(priced(1_000, 8_000))).output == 1_000

    def test_an_answer_of_a_few_words_is_not_worth_a_call(self) -> None:
        budget = Budget(tokens=10_000, spent=usage(8_000, 0))
        assert isinstance(budget.reserve(Need(2_001 - LEAST_OUTPUT, 5_000)), Exhausted)
        assert granted(budget.reserve(Need(2_000 - LEAST_OUTPUT, 5_000))).output == LEAST_OUTPUT

    def test_a_model_whose_answers_are_all_short_can_be_asked(self) -> None:
        assert granted(Budget(tokens=1_000).reserve(Need(900, 100))).output == 100

    def test_a_failed_call_gives_back_what_it_held_but_was_a_call(self) -> None:
        budget = Budget(tokens=10_000, calls=2)
        budget.settle(granted(budget.reserve(Need(1_000, 9_000))), None)
        assert (budget.held_tokens, budget.spent.tokens, budget.begun) == (0, 0, 1)

    def test_without_a_price_money_is_limited_by_what_was_reported(self) -> None:
        budget = Budget(cost=Decimal("0.01"))
        free = granted(budget.reserve(Need(10_000, 10_000)))
        budget.settle(free, usage(10_000, 0))
        assert refused(budget.reserve(Need(1, 1))) == "cost: 0.01 of 0.01"


class TestSettingAside:
    def test_others_leave_what_the_owner_needs_to_sum_up(self) -> None:
        run = Budget(tokens=10_000, calls=9)
        run.set_aside(Need(2_000, 8_000))
        assert run.aside == Need(2_000, 1_000), "of a small budget a tenth is kept for the answer"
        part = Budget(above=run)
        assert granted(part.reserve(Need(1_000, 8_000))).output == 6_000
        assert granted(run.reserve(Need(2_000, 1_000), "last", owner=True)).output == 1_000
        assert (run.held_tokens, run.begun) == (10_000, 2)

    def test_the_owner_leaves_it_too_unless_nothing_can_come_after(self) -> None:
        run = Budget(calls=2, begun=1, aside=Need(1, 1))
        assert refused(run.reserve(Need(1, 1), owner=True)) == "model_calls: 1 of 2"
        assert granted(run.reserve(Need(1, 1), "last", owner=True))
        assert granted(Budget(calls=1, aside=Need(1, 1)).reserve(Need(1, 1), "first", owner=True))

    def test_the_last_call_is_let_through_when_estimates_were_too_low(self) -> None:
        run = Budget(tokens=1_000, spent=usage(2_000, 0))
        assert granted(run.reserve(Need(500, 8_000), "last", owner=True)).output == LEAST_OUTPUT

    def test_but_never_over_the_limits_of_somebody_else(self) -> None:
        day = Budget(tokens=1_000, spent=usage(2_000, 0))
        answer = Budget(above=day).reserve(Need(500, 8_000), "last", owner=True)
        assert isinstance(answer, Exhausted) and answer.by is day

    def test_what_comes_back_to_a_planner_is_kept_room_for(self) -> None:
        run = Budget(tokens=100_000)
        run.set_aside(Need(1_000, 500))
        run.expect(3_000)
        assert run.aside == Need(4_000, 500)


class TestSaying:
    def test_only_what_is_more_than_half_used_is_told(self) -> None:
        run = Budget(tokens=10_000, cost=Decimal(2), calls=10, spent=usage(4_000, 0), begun=4)
        assert list(run.within_sight()) == []
        run.settle(granted(run.reserve(Need(2_000, 1))), usage(1_500, 1))
        run.begun += 1
        assert list(run.within_sight()) == ["4499 of 10000 tokens", "4 of 10 model calls"]


# every interleaving


@dataclass(frozen=True)
class Step:
    """A loop asks for a call, or an open call ends."""

    who: int
    prompt: int
    output: int
    used: float
    """Part of what it was granted that the answer takes, when it ends."""
    ends: bool


STEPS = st.lists(
    st.builds(Step, st.integers(0, 2), st.integers(0, 3_000), st.integers(1, 4_000), st.floats(0, 1), st.booleans()),
    max_size=60,
)


@given(STEPS, st.integers(2_000, 20_000), st.integers(1, 9_000), st.integers(1, 20))
def test_no_interleaving_overshoots_and_nobody_is_refused_while_others_only_hold(
    steps: list[Step], tokens: int, of_part: int, calls: int
) -> None:
    run = Budget(tokens=tokens, cost=Decimal(tokens) / 400_000, calls=calls, aside=priced(300, 300))
    budgets = [run, Budget(tokens=of_part, above=run), Budget(above=run)]
    open_calls: list[tuple[Budget, Need, float]] = []
    for step in steps:
        if step.ends and open_calls:
            _end(*open_calls.pop(step.who % len(open_calls)))
            continue
        budget, need = budgets[step.who], priced(step.prompt, step.output)
        answer = budget.reserve(need)
        if isinstance(answer, Need):
            open_calls.append((budget, answer, step.used))
        elif answer is None:
            assert open_calls, "it would wait for nobody"
        else:
            least = priced(need.prompt, min(LEAST_OUTPUT, need.output))
            assert any(_has_no_room(one, least) for one in {id(b): b for b in (budget, run)}.values())
    for one in open_calls:
        _end(*one)
    for budget in budgets:
        assert budget.tokens is None or budget.spent.tokens <= budget.tokens
        assert budget.held_tokens == budget.held_cost == 0
    last = run.reserve(priced(300, 300), "last", owner=True)
    if isinstance(last, Need):
        _end(run, last, 1)
    assert run.spent.tokens <= tokens and (run.spent.cost or 0) <= run.cost and run.begun <= calls  # type: ignore[operator]


def _end(budget: Budget, held: Need, used: float) -> None:
    budget.settle(held, usage(held.prompt, int(held.output * used)))


def _has_no_room(budget: Budget, need: Need) -> bool:
    aside = budget.aside or Need(0, 0)
    spent = budget.spent.cost or Decimal(0)
    return (
        (budget.tokens is not None and budget.spent.tokens + aside.tokens + need.tokens > budget.tokens)
        or (budget.cost is not None and spent + aside.cost + need.cost > budget.cost)
        or (budget.calls is not None and budget.begun + bool(budget.aside) + 1 > budget.calls)
    )


# the ledger of a run


class OwnModel:
    """A model of a program's own, which says what it costs."""

    name = "own"
    window = 8_192
    max_output = 2_000

    def __init__(self, price: Price | None = PRICE) -> None:
        self.price = price

    async def generate(self, request: Request, on_delta: Callable[[Delta], None] | None = None) -> Reply:
        return Reply("42", usage=usage(100, 10))

    async def aclose(self) -> None:
        """There is nothing to close."""


def ledger(limits: Limits, journal: Journal | None = None, today: Today | None = None) -> Ledger:
    return Ledger(limits, "ori", RunLog("run", journal or MemoryJournal()), today)


async def spend(book: Ledger, path: str, took: Usage, *, output: int = 1_000, model: OwnModel | None = None) -> None:
    async with book.call(path, model or OwnModel(), took.prompt, output, "first") as one:
        one.usage = took


CALLS = st.tuples(st.integers(0, 800), st.integers(0, 900), st.integers(0, 3))
"""Tokens read and written, and how often the others get a turn meanwhile."""


class TestLedger:
    async def test_a_call_waits_until_another_one_is_settled(self) -> None:
        book, began, ended = ledger(Limits(tokens=10_000)), asyncio.Event(), asyncio.Event()
        order: list[str] = []

        async def long() -> None:
            async with book.call("ori/a", OwnModel(), 1_000, 8_000) as one:
                began.set()
                await ended.wait()
                order.append("settled")
                one.usage = usage(1_000, 50)

        async def next_one() -> None:
            await began.wait()
            async with asyncio.TaskGroup() as inner:
                waiting = inner.create_task(spend(book, "ori/b", usage(1_000, 0), output=8_000))
                await asyncio.sleep(0)
                assert not waiting.done()
                ended.set()
            order.append("let through")

        async with asyncio.TaskGroup() as group:
            group.create_task(long())
            group.create_task(next_one())
        assert order == ["settled", "let through"]

    async def test_one_that_is_cancelled_holds_nothing_any_more(self) -> None:
        book, held = ledger(Limits(tokens=10_000)), asyncio.Event()

        async def hang() -> None:
            async with book.call("ori/a", OwnModel(), 1_000, 9_000):
                held.set()
                await asyncio.Event().wait()

        async with asyncio.TaskGroup() as group:
            hanging = group.create_task(hang())
            await held.wait()
            waiting = group.create_task(spend(book, "ori/b", usage(1_000, 0), output=9_000))
            gone = group.create_task(spend(book, "ori/c", usage(1_000, 0), output=9_000))
            await asyncio.sleep(0)
            gone.cancel()
            hanging.cancel()
            await waiting
        assert book.spent.tokens == 1_000
        assert book.usage("ori/a") == Usage()

    @settings(max_examples=50)
    @given(
        st.lists(st.lists(CALLS, max_size=5), max_size=8),
        st.integers(1_500, 15_000),
    )
    def test_workers_at_the_same_time_never_wait_for_ever(
        self, workers: list[list[tuple[int, int, int]]], tokens: int
    ) -> None:
        book = ledger(Limits(tokens=tokens))

        async def work(name: str, calls: Sequence[tuple[int, int, int]]) -> None:
            for prompt, written, pauses in calls:
                try:
                    async with book.call(f"ori/{name}", OwnModel(), prompt, 900) as one:
                        for _ in range(pauses):
                            await asyncio.sleep(0)
                        one.usage = usage(prompt, min(written, one.max_output or 900))
                except OutOfBudget:
                    assert book.spent.tokens + prompt + LEAST_OUTPUT > tokens

        async def all_of_them() -> None:
            async with asyncio.timeout(10), asyncio.TaskGroup() as group:
                for number, calls in enumerate(workers):
                    group.create_task(work(str(number), calls))

        asyncio.run(all_of_them())
        assert book.spent.tokens <= tokens

    async def test_a_loop_with_limits_of_its_own_counts_all_below_it_and_its_attempts_and_reviews(self) -> None:
        book = ledger(Limits(tokens=100_000))
        book.limit("ori/a", Limits(tokens=5_000))
        for path in ("ori/a", "ori/a~2", "ori/a/@review1", "ori/a~2/child"):
            await spend(book, path, usage(1_000, 200))
        with pytest.raises(OutOfBudget) as out:
            await spend(book, "ori/a/child", usage(1_000, 0))
        assert (out.value.limit, out.value.own) == ("tokens: 4800 of 5000; going on takes 1256 or more", False)
        with pytest.raises(OutOfBudget) as out:
            await spend(book, "ori/a~3", usage(1_000, 0))
        assert out.value.own, "it may sum up"
        await spend(book, "ori/b", usage(1_000, 0))
        assert book.usage("ori/a").tokens == 4_800

    async def test_another_role_in_its_place_begins_anew(self) -> None:
        book = ledger(Limits(tokens=100_000))
        book.limit("ori/a", Limits(model_calls=1))
        await spend(book, "ori/a", usage(1, 1))
        book.limit("ori/a~2", Limits(model_calls=1))
        with pytest.raises(OutOfBudget):
            await spend(book, "ori/a~2", usage(1, 1))
        book.limit("ori/a~3", Limits(tokens=3_000))
        await spend(book, "ori/a~3", usage(1, 1))
        book.limit("ori/a~4", Limits(max_turns=3))
        await spend(book, "ori/a~4", usage(9_000, 1))

    async def test_a_model_without_a_price_is_told_once_where_money_is_limited(self) -> None:
        journal = MemoryJournal()
        book = ledger(Limits(cost=Decimal(1)), journal)
        for _ in range(2):
            await spend(book, "ori", Usage(calls=1, prompt=10), model=OwnModel(price=None))
        [warned] = [event for event in await journal.events("run") if isinstance(event, Warned)]
        assert "'own' has no `price`" in warned.text
        unlimited = MemoryJournal()
        await spend(ledger(Limits(), unlimited), "ori", Usage(), model=OwnModel(price=None))
        assert await unlimited.runs() == []

    async def test_a_limit_that_was_reached_is_logged_once(self) -> None:
        journal = MemoryJournal()
        book = ledger(Limits(model_calls=1), journal)
        await spend(book, "ori", usage(1, 1))
        for path in ("ori/a", "ori/b"):
            with pytest.raises(OutOfBudget):
                await spend(book, path, usage(1, 1))
        assert [e.limit for e in await journal.events("run") if isinstance(e, BudgetReached)] == ["model_calls: 1 of 1"]


# a day


class Clock:
    """A clock that a test sets."""

    def __init__(self, *moment: int) -> None:
        self.now = datetime(*moment).timestamp()  # type: ignore[arg-type]

    def __call__(self) -> float:
        return self.now


def paid(journal: Journal, clock: Clock, run: str, cost: str | None, *, replayed: bool = False) -> None:
    """Write what a run has spent into a log."""
    log = RunLog(run, journal, clock=clock)
    no: dict[str, Any] = {}
    log.add(
        RunStarted(goal="g", root="ori", params=no, inputs=(), workspace="", limits=no, roles=no, tools=no, models={})
    )
    took = Usage(calls=1, prompt=1, cost=None if cost is None else Decimal(cost))
    log.add(ModelReplied(model="m", finish_reason="stop", usage=took, seconds=1, replayed=replayed))


@pytest.fixture(params=["memory", "sqlite"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Journal:
    return MemoryJournal() if request.param == "memory" else SqliteJournal(tmp_path / "runs.db")


class SlowJournal(MemoryJournal):
    """A log that takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answer = asyncio.Event(), asyncio.Event()

    async def cost(self, since: float) -> Decimal:
        self.asked.set()
        await self.answer.wait()
        return await super().cost(since)


class TestADay:
    async def test_the_log_knows_what_was_paid_since_a_moment(self, journal: Journal) -> None:
        clock = Clock(2026, 3, 1, 23, 59)
        paid(journal, clock, "before", "5")
        clock.now += 60
        paid(journal, clock, "a", "0.1")
        paid(journal, clock, "b", "0.02")
        paid(journal, clock, "replayed", "7", replayed=True)
        paid(journal, clock, "unknown", None)
        assert await journal.cost(clock.now) == Decimal("0.12")
        assert await journal.cost(clock.now + 1) == 0
        await journal.aclose()

    async def test_an_empty_log_has_cost_nothing(self, journal: Journal) -> None:
        assert await journal.cost(0) == 0
        await journal.aclose()

    async def test_what_all_runs_spent_since_midnight_counts(self, journal: Journal) -> None:
        clock = Clock(2026, 3, 1, 12)
        paid(journal, clock, "earlier", "0.9")
        today = Today(Decimal(1), journal, clock=clock)
        with pytest.raises(OutOfBudget) as out:
            await spend(ledger(Limits(), today=today), "ori", usage(100_000, 0))
        assert out.value.limit.startswith("cost_per_day: 0.9 of 1; ") and not out.value.own
        clock.now += 12 * 3600
        await spend(ledger(Limits(), today=today), "ori", usage(100_000, 0))
        await journal.aclose()

    async def test_two_runs_at_the_same_time_cannot_overshoot_together(self) -> None:
        today = Today(Decimal("0.1"), MemoryJournal(), clock=Clock(2026, 3, 1, 12))
        books = [ledger(Limits(), today=today) for _ in range(2)]
        refused: list[str] = []

        async def work(book: Ledger) -> None:
            try:
                for _ in range(10):
                    await spend(book, "ori", usage(10_000, 0), output=10_000)
            except OutOfBudget as out:
                refused.append(out.limit)

        async with asyncio.TaskGroup() as group:
            for book in books:
                group.create_task(work(book))
        assert len(refused) == 2
        assert sum(book.spent.cost or 0 for book in books) == Decimal("0.09")

    async def test_what_is_settled_while_the_log_is_read_counts(self) -> None:
        journal = SlowJournal()
        clock = Clock(2026, 3, 1, 12)
        paid(journal, clock, "earlier", "0.1")
        today = Today(Decimal(1), journal, clock=clock)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(spend(ledger(Limits(), today=today), "ori", usage(1, 0)))
            await journal.asked.wait()
            second = group.create_task(spend(ledger(Limits(), today=today), "ori", usage(1, 0)))
            await asyncio.sleep(0)
            assert not first.done() and not second.done(), "nobody begins before it is known what was spent"
            today.budget.settle(Need(0, 0), usage(500_000, 0))
            journal.answer.set()
        assert today.budget.spent.cost == Decimal("0.600002")

    async def test_what_another_process_spends_is_learned_within_a_minute(self) -> None:
        journal, clock = MemoryJournal(), Clock(2026, 3, 1, 12)
        book = ledger(Limits(), today=Today(Decimal(1), journal, clock=clock))
        await spend(book, "ori", usage(1, 0))
        paid(journal, clock, "elsewhere", "1")
        await spend(book, "ori", usage(1, 0))
        clock.now += 60
        with pytest.raises(OutOfBudget):
            await spend(book, "ori", usage(1, 0))


# whole runs


def working(answer: Callable[[dict[str, Any]], Answer] | Answer, workers: int, *more: Answer, **plan: Any) -> Any:
    """Return the script of a planner with so many workers beside each other."""
    subtasks = [subtask(f"s{n}", **plan) for n in range(workers)]
    return route({ORI: [delegate(*subtasks), *more], "You are a worker": answer})


def thinking(request: dict[str, Any]) -> Answer:
    """Think aloud for ever, as a worker that never answers; each answer as long as it may be."""
    written = min(request["max_tokens"], 1_000)
    prompt = sum(len(str(message["content"])) for message in request["messages"]) // 4
    return looking(request, usage={"prompt_tokens": prompt, "completion_tokens": written})


def looking(request: dict[str, Any], **options: Any) -> Answer:
    """Look something else up each time, and sum up when calls are off."""
    if request["tool_choice"] == "none":
        return text("so far")
    return call("look", {"name": f"x{len(request['messages'])}"}, **options)


LOOKER = Role(name="worker", description="Works.", prompt="You are a worker.", tools=("look",))


class TestWholeRuns:
    async def test_eight_workers_at_the_same_time_stay_within_a_tight_budget_and_the_root_sums_up(self) -> None:
        limits = Limits(tokens=60_000, max_parallel=8)
        async with ScriptedServer(working(thinking, 8, text("that is all"))) as server:
            made = orchestrator(server, [LOOKER], [look], limits=limits)
            result = await made.solve("goal")
        called = {e.key: e.system + e.history + e.tools for e in await logged(made, result, ModelCalled)}
        replied = {e.key: e.usage for e in await logged(made, result, ModelReplied)}
        missed = sum(max(0, took.prompt - called[key]) for key, took in replied.items())
        assert 30_000 < result.usage.tokens <= limits.tokens + missed
        assert (result.status, result.answer) == ("partial", "that is all")
        assert {outcome.stop_reason for outcome in result.outcomes.values()} == {"budget"}
        assert server.requests[-1]["tool_choice"] == "none"

    async def test_nobody_is_refused_because_others_hold_more_than_they_use(self) -> None:
        """One answer may take 8,192 tokens, so that no two of them fit into the budget at once."""
        most = 0

        def short(request: dict[str, Any]) -> Answer:
            nonlocal most
            most = max(most, server.in_flight)
            return text("42", latency=0.01, usage={"prompt_tokens": 50, "completion_tokens": 5})

        async with ScriptedServer(working(short, 8, text("ok"))) as server:
            made = orchestrator(server, limits=Limits(tokens=16_000, max_parallel=8))
            result = await made.solve("goal")
        assert (result.status, set(statuses(result).values())) == ("done", {"done"})
        assert most == 1

    async def test_the_root_can_sum_up_what_its_workers_found_however_long_it_is(self) -> None:
        """The last call fits, with all in its prompt that workers said; what the last of them says may be too much."""
        found = text("十" * 4_000, usage={"prompt_tokens": 400, "completion_tokens": 4_000})

        def sum_up(request: dict[str, Any]) -> Answer:
            if len(request["messages"]) == 2:
                return replace(plan, usage={"prompt_tokens": 1_500, "completion_tokens": 300})
            return text("that is all", usage={"prompt_tokens": 1_500 + 3_000 * done(request), "completion_tokens": 200})

        def done(request: dict[str, Any]) -> int:
            return str(request["messages"]).count("十" * 4_000)

        plan = delegate(*(subtask(f"s{n}") for n in range(8)))
        async with serving({ORI: sum_up, "You are a worker": found}) as server:
            result = await orchestrator(server, limits=Limits(tokens=40_000, max_parallel=1)).solve("goal")
        assert (result.status, result.answer) == ("partial", "that is all")
        assert 2 <= done(server.requests[-1]) < 8
        assert result.usage.tokens <= 40_000 + 3_000

    async def test_an_answer_may_be_as_long_as_the_budget_allows(self) -> None:
        usage = {"prompt_tokens": 2_000, "completion_tokens": 500}
        replies = [call("delegate", {"subtasks": []}, usage=usage), text("ok")]
        async with serving({ORI: replies}) as server:
            await orchestrator(server, limits=Limits(tokens=9_000)).solve("goal")
        first, second = (request["max_tokens"] for request in server.requests)
        assert second <= first - 2_500 < first < 9_000
        async with serving({ORI: [text("ok")]}) as server:
            await orchestrator(server).solve("goal")
        assert server.requests[0]["max_tokens"] == 8_192

    async def test_limits_of_a_role_end_its_subtask_softly_and_the_run_goes_on(self) -> None:
        role = LOOKER.model_copy(update={"limits": Limits(model_calls=3)})
        plan = delegate(subtask("a"), subtask("b"))
        both = {ORI: [plan, text("ok")], "do a": looking, "do b": text("42")}
        async with serving(both) as server:
            made = orchestrator(server, [role], [look])
            result = await made.solve("goal")
        assert statuses(result) == {"a": "partial", "b": "done"}
        assert (result.outcomes["a"].stop_reason, result.outcomes["a"].answer) == ("budget", "so far")
        assert result.outcomes["a"].usage.calls == 3
        assert [e.path for e in await logged(made, result, BudgetReached)] == ["ori/a"]

    async def test_the_planner_is_told_what_is_left_once_a_limit_is_within_sight(self) -> None:
        assert await self.told(Limits()) == []
        assert await self.told(Limits(model_calls=6)) == [
            "Left of the budget: 2 of 6 model calls. Delegate only what fits into that, or answer with what there is."
        ]

    async def told(self, limits: Limits) -> list[str]:
        async with serving({ORI: [delegate(subtask("a"), subtask("b")), text("ok")], "You are": text("42")}) as server:
            made = orchestrator(server, limits=limits)
            result = await made.solve("goal")
        return [e.message.content for e in await logged(made, result, MessageAppended) if e.message.role == "note"]

    async def test_a_run_that_begins_with_a_plan_keeps_a_call_for_its_answer(self) -> None:
        plan = [Subtask.model_validate(subtask(f"s{n}")) for n in range(4)]
        async with serving({ORI: [text("that is all")], "You are a worker": text("42")}) as server:
            made = orchestrator(server, limits=Limits(model_calls=4, max_parallel=1))
            result = await made.solve("goal", plan=plan)
        assert sorted(statuses(result).values()) == ["done", "done", "done", "failed"]
        assert (result.answer, result.usage.calls) == ("that is all", 4)


class TestADayOfAProject:
    YAML = """
models:
  default: {{model: m, base_url: "{url}", price: {{input: 1, output: 1}}}}
limits: {{cost_per_day: 0.01}}
"""

    async def test_a_new_run_is_not_begun_when_the_day_has_nothing_left_and_a_replay_is(self, tmp_path: Path) -> None:
        expensive = text("42", usage={"prompt_tokens": 9_000, "completion_tokens": 1_000})
        async with serving({ORI: expensive}) as server:
            (tmp_path / "ori.yaml").write_text(self.YAML.format(url=server.base_url), "utf-8")
            first = await Orchestrator.from_project(tmp_path).solve("goal")
            second = await Orchestrator.from_project(tmp_path).solve("goal")
            asked = len(server.requests)
        assert (first.status, second.status, second.stop_reason, asked) == ("done", "failed", "budget", 1)
        assert second.failure and "cost_per_day: 0.01 of 0.01" in second.failure.message
        again = Orchestrator.from_project(tmp_path)
        (tmp_path / "scenarios").mkdir()
        (tmp_path / "scenarios/again.yaml").write_text("goal: goal\nrecording: r.jsonl\n", "utf-8")
        (tmp_path / "scenarios/r.jsonl").write_text(record(await again.journal.events(first.run_id)).dump(), "utf-8")
        async with again.start_scenario(again.catalog.scenario("again"), replay=True) as handle:
            assert (await handle.result()).status == "done"
        await again.aclose()


def test_a_price_of_the_wire_is_known_to_who_counts() -> None:
    """Behind the endpoint, too."""
    described = ModelSettings.model_validate({"model": "m", "price": {"input": 1, "output": 2}})
    model, _ = Connections(Settings(), {"default": described}).model("default")
    assert getattr(model, "price", None) == described.price
