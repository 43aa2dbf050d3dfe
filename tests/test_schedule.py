"""The scheduler: what runs when, how many at once, and what is left when something ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import JournalError, OriError, RunStopped
from orchestrator.failure import Failure, FailureKind
from orchestrator.plan import Plan, Subtask
from orchestrator.proposal import Rules, check_plan
from orchestrator.results import Outcome, OutcomeStatus
from orchestrator.schedule import Slots, Ticket, run

OUTAGE = Failure(FailureKind.auth, "the key is wrong")
ENDS: dict[str, Callable[[], Exception]] = {
    "stopped": lambda: RunStopped(OUTAGE),
    "journal": lambda: JournalError("the disk is full"),
    "bug": lambda: ValueError("a bug"),
}

Work = Callable[[Subtask, Ticket], Awaitable[OutcomeStatus]]


def subtask(id: str, *after: str, **fields: object) -> Subtask:
    return Subtask.model_validate({"id": id, "role": "r", "goal": id, "after": after, **fields})


def outcome(id: str, status: OutcomeStatus, cause: str = "") -> Outcome:
    failure = Failure(FailureKind.tool_error, cause or f"{id} broke")
    return Outcome(
        id=id,
        path=f"ori/{id}",
        role="r",
        status=status,
        stop_reason="answer" if status == "done" else "need_failed" if status == "skipped" else "tool_failures",
        failure=None if status == "done" else failure,
    )


def skip(subtask: Subtask, cause: str) -> Outcome:
    return outcome(subtask.id, "skipped", cause)


def free(slots: Slots, size: int) -> bool:
    """Whether all slots are free, and no more than that."""
    tickets = [slots.ticket(0) for _ in range(size + 1)]
    granted = [ticket.granted.is_set() for ticket in tickets]
    for ticket in tickets:
        ticket.leave()
    return granted == [True] * size + [False]


@dataclass
class Crew:
    """Works on a plan as its test says, and writes down what happens."""

    work: Work
    size: int = 4
    plan: Plan = field(default_factory=Plan)
    started: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    working: set[str] = field(default_factory=set)
    most: int = 0

    def __post_init__(self) -> None:
        self.slots = Slots(self.size)

    async def run(self, *subtasks: Subtask) -> None:
        self.plan.add(check_plan(self.plan, subtasks, Rules(roles=("r",))).new)
        await run(self.plan, self.slots, self.execute, skip)

    async def execute(self, subtask: Subtask, ticket: Ticket) -> Outcome:
        assert all(need in self.plan.outcomes for need in self.plan.needs(subtask))
        assert ticket.granted.is_set()
        self.started.append(subtask.id)
        self.working.add(subtask.id)
        self.most = max(self.most, len(self.working))
        try:
            status = await self.work(subtask, ticket)
        finally:
            self.working.discard(subtask.id)
        self.ended.append(subtask.id)
        return outcome(subtask.id, status)

    @property
    def statuses(self) -> dict[str, OutcomeStatus]:
        return {id: outcome.status for id, outcome in self.plan.outcomes.items()}


def ending(**statuses: OutcomeStatus) -> Work:
    """Work that ends at once, `done` unless said otherwise."""

    async def work(subtask: Subtask, ticket: Ticket) -> OutcomeStatus:
        return statuses.get(subtask.id, "done")

    return work


@dataclass
class Gates:
    """Work that ends when its test says so."""

    opened: dict[str, asyncio.Event] = field(default_factory=dict)
    begun: dict[str, asyncio.Event] = field(default_factory=dict)

    async def __call__(self, subtask: Subtask, ticket: Ticket) -> OutcomeStatus:
        self.begun.setdefault(subtask.id, asyncio.Event()).set()
        await self.opened.setdefault(subtask.id, asyncio.Event()).wait()
        return "done"

    def open(self, *ids: str) -> None:
        for id in ids:
            self.opened.setdefault(id, asyncio.Event()).set()

    async def begin(self, *ids: str) -> None:
        for id in ids:
            await self.begun.setdefault(id, asyncio.Event()).wait()


class TestOrder:
    async def test_a_subtask_starts_the_moment_its_own_needs_are_done_not_its_wave(self) -> None:
        gates = Gates()
        crew = Crew(gates)
        async with asyncio.TaskGroup() as group:
            group.create_task(crew.run(subtask("slow"), subtask("a"), subtask("b", "a"), subtask("c", "b")))
            await gates.begin("slow", "a")
            gates.open("a", "b", "c")
            await gates.begin("c")
            assert "slow" in crew.working
            gates.open("slow")
        assert crew.ended == ["a", "b", "c", "slow"]

    async def test_with_few_slots_the_longest_remaining_path_goes_first(self) -> None:
        crew = Crew(ending(), size=1)
        await crew.run(
            subtask("short"),
            subtask("alone", effort=2.5),
            subtask("head"),
            subtask("middle", "head"),
            subtask("tail", "middle"),
        )
        assert crew.started == ["head", "alone", "middle", "short", "tail"]

    async def test_what_just_became_ready_competes_with_those_that_wait_already(self) -> None:
        gates = Gates()
        crew = Crew(gates, size=2)
        async with asyncio.TaskGroup() as group:
            group.create_task(
                crew.run(subtask("a", effort=9), subtask("b"), subtask("bb", "b", effort=6), subtask("c"))
            )
            await gates.begin("a", "b")
            gates.open("b")
            await gates.begin("bb")
            assert crew.started == ["a", "b", "bb"]
            gates.open("a", "bb", "c")

    async def test_no_more_work_at_once_than_there_are_slots_and_all_slots_are_used(self) -> None:
        gates = Gates()
        crew = Crew(gates, size=3)
        ids = [f"s{i}" for i in range(7)]
        async with asyncio.TaskGroup() as group:
            group.create_task(crew.run(*map(subtask, ids)))
            await gates.begin("s0", "s1", "s2")
            assert len(crew.working) == 3
            gates.open(*ids)
        assert crew.most == 3

    async def test_planners_share_the_slots_of_their_run(self) -> None:
        gates = Gates()
        one, other = Crew(gates, size=1), Crew(gates)
        other.slots = one.slots
        async with asyncio.TaskGroup() as group:
            group.create_task(one.run(subtask("a"), subtask("b")))
            group.create_task(other.run(subtask("x", effort=5)))
            await gates.begin("a")
            gates.open("a")
            await gates.begin("x")
            assert not one.working
            gates.open("x", "b")
        assert (one.started, other.started) == (["a", "b"], ["x"])


class TestEndings:
    async def test_what_comes_after_a_failure_is_skipped_with_the_cause_and_the_plan_ends(self) -> None:
        """B05: the dependents of a failed subtask do not wait for ever; siblings go on."""
        crew = Crew(ending(a="failed"))
        async with asyncio.timeout(5):
            await crew.run(subtask("a"), subtask("b", "a"), subtask("c", "b"), subtask("d"))
        assert crew.statuses == {"a": "failed", "b": "skipped", "c": "skipped", "d": "done"}
        cause = crew.plan.outcomes["c"].failure
        assert cause and "'b', which ended skipped: it comes after 'a', which ended failed: a broke" in cause.message

    async def test_a_subtask_added_after_its_need_was_done_is_run(self) -> None:
        """B06: no event of the need's end will come any more, and none is waited for."""
        crew = Crew(ending())
        await crew.run(subtask("a"))
        async with asyncio.timeout(5):
            await crew.run(subtask("b", "a"))
        assert crew.started == ["a", "b"]

    @pytest.mark.parametrize("status", ["partial", "failed", "cancelled", "needs_review"])
    async def test_a_plan_is_over_when_every_subtask_ended_however_it_ended(self, status: OutcomeStatus) -> None:
        """B07: one that was rejected is as ended as one that is done, and spoils the run's success."""
        crew = Crew(ending(b=status))
        async with asyncio.timeout(5):
            await crew.run(subtask("a"), subtask("b"), subtask("c", "a"))
        assert crew.statuses == {"a": "done", "b": status, "c": "done"}
        assert [spoiled.id for spoiled in crew.plan.spoiled()] == ["b"]

    async def test_a_replacement_runs_and_revives_what_was_skipped(self) -> None:
        crew = Crew(ending(a="failed"))
        await crew.run(subtask("c", "b"), subtask("b", "a"), subtask("a"))
        assert crew.statuses == {"a": "failed", "b": "skipped", "c": "skipped"}
        await crew.run(subtask("a2", replaces="a"))
        assert crew.started == ["a", "a2", "b", "c"]
        assert crew.plan.spoiled() == []

    async def test_what_ends_the_run_stops_the_others_and_comes_out_bare(self) -> None:
        gates = Gates()
        cancelled: list[str] = []

        async def work(subtask: Subtask, ticket: Ticket) -> OutcomeStatus:
            if subtask.id == "bad":
                await gates.begin("a", "b")
                raise RunStopped(OUTAGE)
            try:
                return await gates(subtask, ticket)
            except asyncio.CancelledError:
                cancelled.append(subtask.id)
                raise

        crew = Crew(work)
        with pytest.raises(RunStopped, match="the key is wrong"):
            await crew.run(subtask("a"), subtask("b"), subtask("bad"), subtask("c", "a"))
        assert (sorted(cancelled), crew.statuses) == (["a", "b"], {})
        assert free(crew.slots, 4)

    async def test_what_ends_the_run_comes_out_bare_from_a_plan_within_a_plan(self) -> None:
        async def work(subtask: Subtask, ticket: Ticket) -> OutcomeStatus:
            if subtask.id == "inner":
                raise RunStopped(OUTAGE)
            async with ticket.lent():
                await inner.run(Subtask(id="inner", role="r", goal="x"))
            return "done"

        outer, inner = Crew(work, size=1), Crew(work)
        inner.slots = outer.slots
        with pytest.raises(RunStopped):
            await outer.run(subtask("outer"))

    async def test_a_log_that_cannot_be_written_is_told_as_that(self) -> None:
        async def work(subtask: Subtask, ticket: Ticket) -> OutcomeStatus:
            raise JournalError("the disk is full")

        with pytest.raises(JournalError, match="the disk is full"):
            await Crew(work).run(subtask("a"), subtask("b"))

    async def test_a_fault_of_ours_is_told_whole(self) -> None:
        async def work(subtask: Subtask, ticket: Ticket) -> OutcomeStatus:
            raise ENDS[subtask.id]()

        with pytest.raises(ExceptionGroup) as info:
            await Crew(work).run(subtask("bug"), subtask("stopped"))
        assert info.group_contains(ValueError)


class TestLending:
    async def test_a_lent_slot_is_used_by_others_and_taken_back_when_it_is_free(self) -> None:
        slots = Slots(1)
        mine = slots.ticket(1)
        async with mine.lent():
            other = slots.ticket(0)
            assert other.granted.is_set()
            back = asyncio.Event()

            async def give_back() -> None:
                await back.wait()
                other.leave()

            group = asyncio.TaskGroup()
            async with group:
                group.create_task(give_back())
                back.set()
        assert mine.granted.is_set()
        mine.leave()
        assert free(slots, 1)

    async def test_a_plan_within_a_plan_needs_no_slot_beyond_the_only_one(self) -> None:
        async def work(subtask: Subtask, ticket: Ticket) -> OutcomeStatus:
            if subtask.id == "planner":
                async with ticket.lent():
                    await inner.run(Subtask(id="x", role="r", goal="x"), Subtask(id="y", role="r", goal="y"))
            return "done"

        outer, inner = Crew(work, size=1), Crew(work)
        inner.slots = outer.slots
        async with asyncio.timeout(5):
            await outer.run(subtask("planner"), subtask("last", "planner"))
        assert (outer.ended, inner.ended) == (["planner", "last"], ["x", "y"])
        assert free(outer.slots, 1)

    async def test_a_loop_that_is_stopped_while_it_lends_its_slot_leaves_it_free(self) -> None:
        slots = Slots(1)
        ticket = slots.ticket(0)
        inside = asyncio.Event()

        async def lend() -> None:
            async with ticket.lent():
                inside.set()
                await asyncio.Event().wait()

        await cancelled_once(lend(), inside)
        ticket.leave()
        assert free(slots, 1)

    async def test_a_loop_that_is_stopped_while_it_waits_to_have_its_slot_back_takes_it_once(self) -> None:
        slots = Slots(2)
        ticket, inside = slots.ticket(0), asyncio.Event()
        others: list[Ticket] = []

        async def lend() -> None:
            async with ticket.lent():
                others.extend((slots.ticket(0), slots.ticket(0)))
            inside.set()

        async def ask() -> None:
            inside.set()
            await lend()

        async def lend_again() -> None:  # its next attempt
            async with ticket.lent():
                pass

        await cancelled_once(ask(), inside)
        assert len(others) == 2 and not ticket.granted.is_set()
        async with asyncio.TaskGroup() as group:
            group.create_task(lend_again())
            await turns(3)
            for other in others:
                other.leave()
        ticket.leave()
        assert free(slots, 2)


async def cancelled_once(work: Awaitable[None], ready: asyncio.Event) -> None:
    """Run something until it is ready and waits, then cancel it."""

    async def body() -> None:
        await work

    async with asyncio.TaskGroup() as group:
        task = group.create_task(body())
        await ready.wait()
        await turns(3)
        task.cancel()


async def turns(count: int) -> None:
    """Let the event loop go round; no time passes."""
    for _ in range(count):
        await asyncio.sleep(0)


# properties

STATUSES: list[OutcomeStatus] = ["done", "done", "done", "partial", "failed", "cancelled", "needs_review"]
QUICK = settings(max_examples=60)


@dataclass(frozen=True)
class Step:
    """What one drawn subtask does."""

    subtask: Subtask
    status: OutcomeStatus
    turns: int
    """Rounds of the event loop that it takes."""


@st.composite
def plans(draw: st.DrawFn) -> list[Step]:
    """A plan without circles, in any order, with what its subtasks will do."""
    steps = []
    for number in range(draw(st.integers(1, 8))):
        after = (
            draw(st.lists(st.sampled_from([f"s{i}" for i in range(number)]), unique=True, max_size=3)) if number else []
        )
        fields = {
            "effort": draw(st.sampled_from([0.5, 1, 3])),
            "tolerant": draw(st.booleans()),
            "on_failure": draw(st.sampled_from(["skip", "continue"])),
        }
        status: OutcomeStatus = draw(st.sampled_from(STATUSES))
        steps.append(Step(subtask(f"s{number}", *after, **fields), status, draw(st.integers(0, 3))))
    return draw(st.permutations(steps))


def crew_for(steps: Mapping[str, Step], size: int, bad: Mapping[str, str] | None = None) -> Crew:
    async def work(subtask: Subtask, ticket: Ticket) -> OutcomeStatus:
        step = steps[subtask.id]
        await turns(step.turns)
        if bad and subtask.id in bad:
            raise ENDS[bad[subtask.id]]()
        return step.status

    return Crew(work, size)


@QUICK
@given(plans(), st.integers(1, 5))
def test_every_accepted_plan_runs_to_its_end_with_one_outcome_each(drawn: list[Step], size: int) -> None:
    async def main() -> None:
        steps = {step.subtask.id: step for step in drawn}
        crew = crew_for(steps, size)
        await crew.run(*(step.subtask for step in drawn))
        skipped = {id for id, status in crew.statuses.items() if status == "skipped"}
        assert set(crew.statuses) == set(steps)
        assert sorted(crew.started) == sorted(steps.keys() - skipped)
        assert all(crew.statuses[id] == step.status for id, step in steps.items() if id not in skipped)
        assert all(crew.plan.blocked(steps[id].subtask) for id in skipped)
        assert crew.most <= size
        assert free(crew.slots, size)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


@QUICK
@given(plans(), st.integers(1, 5))
def test_no_slot_is_idle_while_something_is_ready(drawn: list[Step], size: int) -> None:
    async def main() -> None:
        steps = {step.subtask.id: step for step in drawn}

        async def work(subtask: Subtask, ticket: Ticket) -> OutcomeStatus:
            for _ in range(steps[subtask.id].turns):
                before, idle = len(crew.started), len(crew.working) < size and waiting()
                await turns(6)  # enough to hand a slot over
                assert not idle or len(crew.started) > before
            return "done"

        def waiting() -> set[str]:
            ended = crew.statuses
            ready = {id for id, step in steps.items() if all(need in ended for need in step.subtask.after)}
            return ready - ended.keys() - set(crew.started)

        crew = Crew(work, size)
        await crew.run(*(step.subtask for step in drawn))

    asyncio.run(main())


@QUICK
@given(plans(), st.integers(1, 4), st.integers(0, 12))
def test_cancelling_at_any_moment_leaves_no_task_and_no_slot_behind(drawn: list[Step], size: int, after: int) -> None:
    async def main() -> None:
        crew = crew_for({step.subtask.id: step for step in drawn}, size)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(crew.run(*(step.subtask for step in drawn)))
            await turns(after)
            over = task.done()
            task.cancel()
        assert over or task.cancelled()
        assert free(crew.slots, size)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


@QUICK
@given(plans(), st.integers(1, 4), st.data())
def test_what_ends_the_run_at_any_moment_leaves_no_task_and_no_slot_behind(
    drawn: list[Step], size: int, data: st.DataObject
) -> None:
    async def main() -> None:
        steps = {step.subtask.id: step for step in drawn}
        kinds = st.sampled_from(["stopped", "journal"])
        bad = data.draw(st.dictionaries(st.sampled_from(sorted(steps)), kinds, min_size=1))
        crew = crew_for(steps, size, bad)
        try:
            await crew.run(*(step.subtask for step in drawn))
        except OriError:
            assert set(bad) & set(crew.started)
        else:
            assert not set(bad) & set(crew.started)
        assert free(crew.slots, size)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


@QUICK
@given(plans(), plans(), st.integers(1, 4), st.data())
def test_a_second_plan_only_adds_to_the_first(
    first: list[Step], second: list[Step], size: int, data: st.DataObject
) -> None:
    """Replacements included: what was done is not done again, and everything has its outcome in the end."""

    async def main() -> None:
        steps = {step.subtask.id: step for step in first}
        crew = crew_for(steps, size)
        await crew.run(*(step.subtask for step in first))
        done = {id: outcome for id, outcome in crew.plan.outcomes.items() if outcome.status == "done"}
        bad = sorted(set(crew.plan.outcomes) - set(done))
        replaced = data.draw(st.lists(st.sampled_from(bad), unique=True)) if bad else []
        for number, step in enumerate(second):
            fields = {"id": f"n{step.subtask.id}", "after": tuple(f"n{need}" for need in step.subtask.after)}
            if number < len(replaced):
                fields["replaces"] = replaced[number]
            new = step.subtask.model_copy(update=fields)
            steps[new.id] = Step(new, step.status, step.turns)
        await crew.run(*(steps[f"n{step.subtask.id}"].subtask for step in second))
        assert set(crew.statuses) == set(steps)
        assert all(crew.plan.outcomes[id] is outcome for id, outcome in done.items())
        assert len(crew.started) == len(set(crew.started))
        assert free(crew.slots, size)

    asyncio.run(main())
