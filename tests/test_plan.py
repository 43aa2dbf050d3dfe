"""The plan: what is refused, what is mended, what is ready, and how it grows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, pairwise, repeat
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from orchestrator.failure import Failure, FailureKind
from orchestrator.plan import Delegate, Fallback, Plan, Subtask
from orchestrator.proposal import Addition, PlanFaults, Rules, check_plan
from orchestrator.results import Outcome, OutcomeStatus

RULES = Rules(roles=("reader", "writer"), tools=("query",), max_subtasks=50, files=("orders.csv", "数据.csv"))
STATUSES: tuple[OutcomeStatus, ...] = ("done", "partial", "failed", "cancelled", "needs_review")


def subtask(id: str, *after: str, **fields: Any) -> Subtask:
    performer = {} if "tool" in fields else {"role": "reader", "goal": f"do {id}"}
    return Subtask.model_validate({"id": id, "after": after, **performer, **fields})


def ended(id: str, status: OutcomeStatus = "done", failure: str = "") -> Outcome:
    what = Failure(FailureKind.tool_error, failure) if failure else None
    stop = {"done": "answer", "skipped": "need_failed"}.get(status, "tool_failures")
    return Outcome.model_validate(
        {"id": id, "path": f"ori/{id}", "role": "reader", "status": status, "stop_reason": stop, "failure": what}
    )


def planned(*subtasks: Subtask, rules: Rules = RULES, **statuses: OutcomeStatus) -> Plan:
    """Return a plan with these subtasks, some of which ended already."""
    plan = Plan()
    if subtasks:
        plan.add(check_plan(plan, subtasks, rules).new)
    for id, status in statuses.items():
        plan.started.add(id)
        plan.outcomes[id] = ended(id, status, "" if status == "done" else f"{id} broke")
    return plan


def refused(proposed: Sequence[Subtask], plan: Plan | None = None, rules: Rules = RULES) -> PlanFaults:
    with pytest.raises(PlanFaults) as info:
        check_plan(plan or Plan(), proposed, rules)
    return info.value


def ids(subtasks: Sequence[Subtask]) -> list[str]:
    return [s.id for s in subtasks]


class TestFields:
    def test_an_id_may_be_chinese_or_a_number_and_holds_no_spaces(self) -> None:
        assert [subtask(id).id for id in ("收集", "a-1", "x" * 40)] == ["收集", "a-1", "x" * 40]
        assert Subtask.model_validate({"id": 1, "role": "reader", "goal": "x", "after": [2]}).after == ("2",)
        for id in ("", "a b", "-a", "x" * 41, "a/b", "a~2", True):
            with pytest.raises(ValidationError):
                Subtask.model_validate({"id": id, "role": "reader", "goal": "x"})

    @pytest.mark.parametrize(
        ("fields", "told"),
        [
            ({"role": "reader", "tool": "query", "goal": "x"}, "either a role or a tool"),
            ({"goal": "x"}, "either a role or a tool"),
            ({"role": "reader", "goal": "  "}, "needs a goal"),
            ({"role": "reader", "goal": "x", "args": {"a": 1}}, "args belong to a subtask with a tool"),
            ({"role": "reader", "goal": "x", "effort": 0}, "greater than 0"),
            ({"role": "reader", "goal": "x", "on_failure": {}}, "names a role, a goal or a value"),
            ({"role": "reader", "goal": "x", "needs": ["a"]}, "Extra inputs are not permitted"),
        ],
    )
    def test_a_subtask_that_makes_no_sense_is_no_subtask(self, fields: dict[str, Any], told: str) -> None:
        with pytest.raises(ValidationError, match=told):
            Subtask.model_validate({"id": "a", **fields})

    def test_a_fallback_may_be_the_value_null(self) -> None:
        assert Fallback.model_validate({"value": None}).model_fields_set == {"value"}

    def test_a_call_without_subtasks_can_be_read_so_that_the_check_can_tell_what_is_missing(self) -> None:
        assert "no subtasks" in str(refused(Delegate.model_validate({}).subtasks))


class TestRefusals:
    @pytest.mark.parametrize("size", [2, 3])
    def test_a_circle_is_refused_by_the_names_of_its_subtasks(self, size: int) -> None:
        """B04: subtasks that wait for each other are refused at plan time, and the plan handed back has no circle."""
        names = ["a", "b", "c"][:size]
        waits = {id: names[(i + 1) % size] for i, id in enumerate(names)}
        faults = refused([*(subtask(id, need) for id, need in waits.items()), subtask("free")])
        [fault] = faults.faults
        assert "in a circle" in fault
        told = fault.split(": ")[1].split(" → ")
        assert sorted(told[1:]) == names
        assert all(waits[waiting] == need for waiting, need in pairwise(told))
        assert ids(check_plan(Plan(), faults.corrected, RULES).new) == [*names, "free"]

    def test_two_circles_are_told_at_once(self) -> None:
        """B04: both are in one answer, or the planner would run out of tries."""
        faults = refused([subtask("a", "b"), subtask("b", "a"), subtask("c", "d"), subtask("d", "c")])
        assert len(faults.faults) == 2

    def test_a_circle_over_what_a_subtask_replaces_is_refused(self) -> None:
        """B04: who stands in for a failed subtask cannot come after those that wait for it."""
        plan = planned(subtask("a"), subtask("b", "a"), a="failed", b="skipped")
        faults = refused([subtask("a2", "b", replaces="a")], plan)
        assert "in a circle: " in faults.faults[0] and "a2" in faults.faults[0] and "b" in faults.faults[0]
        plan.add(check_plan(plan, faults.corrected, RULES).new)
        assert ids(plan.ready()) == ["a2"]

    def test_a_fallback_has_a_role_that_there_is_and_a_goal(self) -> None:
        faults = refused(
            [
                subtask("a", on_failure={"role": "wirter"}),
                subtask("b", tool="query", on_failure={"goal": "ask somebody"}),
                subtask("c", tool="query", on_failure={"role": "reader"}),
                subtask("d", on_failure={"goal": "try less"}),
                subtask("e", tool="query", on_failure={"value": None}),
            ]
        )
        assert faults.faults == (
            "the on_failure of 'a' has the unknown role 'wirter'; did you mean 'writer'?",
            "the on_failure of 'b' needs a role and a goal, as its tool has none",
            "the on_failure of 'c' needs a role and a goal, as its tool has none",
        )
        assert faults.corrected[0].on_failure == Fallback(role="writer")
        assert [s.on_failure for s in faults.corrected[1:3]] == ["skip", "skip"]
        check_plan(Plan(), faults.corrected, RULES)

    def test_an_outcome_that_the_arguments_of_a_tool_name_is_waited_for(self) -> None:
        named = {"sql": ["${outcomes.收集.value.x} of ${params.y}", "${outcomes.b.answer}"]}
        checked = check_plan(
            Plan(), [subtask("收集"), subtask("b"), subtask("c", "b", tool="query", args=named)], RULES
        )
        assert checked.new[2].after == ("b", "收集")
        assert checked.mended == ("the args of 'c' name the outcome of '收集'; made it come after that",)

    def test_an_outcome_that_there_cannot_be_is_a_fault(self) -> None:
        args = {"a": "${outcomes.zz.value}", "b": "${outcomes.c.answer}", "c": "$${outcomes.text.value}"}
        faults = refused([subtask("a"), subtask("c", tool="query", args=args)])
        assert faults.faults == (
            "the args of 'c' name the unknown outcome 'zz'; allowed: 'a'",
            "the args of 'c' name the unknown outcome 'c'; allowed: 'a'",
        )

    def test_for_an_unknown_tool_no_other_one_is_put_in(self) -> None:
        assert refused([subtask("a"), subtask("b", tool="delete_all")]).corrected == (subtask("a"),)

    def test_all_faults_come_at_once_with_a_corrected_plan(self) -> None:
        faults = refused(
            [
                subtask("a", role="raeder"),
                subtask("b", "zz"),
                subtask("b", "a"),
                subtask("c", "d"),
                subtask("d", "c"),
                subtask("e", tool="qery"),
                subtask("f", replaces="a"),
            ]
        )
        told = "\n".join(faults.faults)
        assert len(faults.faults) == 6
        assert "'a' has the unknown role 'raeder'; did you mean 'reader'?" in told
        assert "'b' comes after the unknown id 'zz'" in told
        assert "the id 'b' is there twice" in told
        assert "c" in told and "in a circle" in told
        assert "'e' has the unknown tool 'qery'; did you mean 'query'?" in told
        assert "'f' replaces 'a', which is no subtask that ended without success" in told
        assert [(s.id, s.performer) for s in faults.corrected] == [
            ("a", "reader"),
            ("b", "reader"),
            ("b-2", "reader"),
            ("c", "reader"),
            ("d", "reader"),
            ("e", "query"),
            ("f", "reader"),
        ]
        assert check_plan(Plan(), faults.corrected, RULES).mended == ()

    def test_an_unknown_id_is_told_with_the_nearest_one(self) -> None:
        assert "did you mean 'collect'?" in str(refused([subtask("collect"), subtask("b", "colect")]))

    def test_too_many_subtasks_are_refused_with_the_number_that_is_left(self) -> None:
        plan = planned(subtask("a"), subtask("b"))
        faults = refused([subtask(f"n{i}") for i in range(200)], plan)
        assert faults.faults == ("200 new subtasks are too many: 48 of 50 left",)
        assert len(faults.corrected) == 48
        plan.add(check_plan(plan, faults.corrected, RULES).new)
        assert refused([subtask("one-more")], plan).corrected == ()

    def test_what_is_cut_off_a_plan_that_is_too_long_is_waited_for_by_nobody(self) -> None:
        rules = Rules(roles=("reader",), max_subtasks=2)
        faults = refused([subtask("a", "c"), subtask("b"), subtask("c")], rules=rules)
        assert [(s.id, s.after) for s in faults.corrected] == [("a", ()), ("b", ())]

    def test_a_subtask_that_nobody_could_do_is_not_in_the_corrected_plan(self) -> None:
        rules = Rules(roles=("reader",), tools=())
        faults = refused([subtask("a", tool="query"), subtask("b", "a")], rules=rules)
        assert [(s.id, s.after) for s in faults.corrected] == [("b", ())]


class TestMends:
    def test_what_comes_after_itself_is_mended_with_a_note(self) -> None:
        """B04: the circle of one is no reason to ask again."""
        addition = check_plan(Plan(), [subtask("a", "a"), subtask("b", "a")], RULES)
        assert [s.after for s in addition.new] == [(), ("a",)]
        assert addition.mended == ("'a' came after itself; dropped",)

    def test_what_comes_after_the_subtask_it_replaces_comes_after_itself(self) -> None:
        plan = planned(subtask("a"), a="failed")
        addition = check_plan(plan, [subtask("a2", "a", replaces="a")], RULES)
        assert [s.after for s in addition.new] == [()]
        assert addition.mended == ("'a2' came after itself; dropped",)

    @pytest.mark.parametrize("name", ["orders.csv", "数据.csv", "new/report.md", "report.md"])
    def test_a_file_that_nobody_makes_needs_no_waiting(self, name: str) -> None:
        addition = check_plan(Plan(), [subtask("a", name)], RULES)
        assert addition.new[0].after == ()
        assert f"came after the file {name!r}" in addition.mended[0]

    def test_a_file_that_another_subtask_names_means_that_subtask(self) -> None:
        proposed = [subtask("a", goal="write report.md"), subtask("b", "report.md"), subtask("c", "sum.md")]
        proposed.append(subtask("d", files=["sum.md"]))
        addition = check_plan(Plan(), proposed, RULES)
        assert [s.after for s in addition.new] == [(), ("a",), ("d",), ()]
        assert len(addition.mended) == 2

    def test_part_of_a_files_name_does_not_mean_that_file(self) -> None:
        addition = check_plan(Plan(), [subtask("a", goal="write my.report.md"), subtask("b", "report.md")], RULES)
        assert addition.new[1].after == ()

    def test_a_good_plan_is_taken_as_it_is(self) -> None:
        proposed = [subtask("a"), subtask("b", "a"), subtask("c", "a", "b", tool="query", args={"sql": "x"})]
        assert check_plan(Plan(), proposed, RULES) == Addition(tuple(proposed))


class TestGrowing:
    def test_finished_work_named_again_is_a_reference(self) -> None:
        plan = planned(subtask("a"), a="done")
        addition = check_plan(plan, [subtask("a"), subtask("b", "a")], RULES)
        assert (addition.reused, ids(addition.new), addition.ids) == (("a",), ["b"], ("a", "b"))

    def test_an_id_is_never_used_again_for_something_else(self) -> None:
        plan = planned(subtask("a"), subtask("b"), a="done", b="failed")
        faults = refused([subtask("a", goal="another")], plan)
        assert faults.faults == ("the id 'a' is used already; take a new one, such as 'a-2'",)
        assert (faults.corrected[0].id, faults.corrected[0].replaces) == ("a-2", None)

    def test_failed_work_named_again_is_corrected_to_what_stands_in_for_it(self) -> None:
        plan = planned(subtask("a"), a="failed")
        faults = refused([subtask("a")], plan)
        assert (faults.corrected[0].id, faults.corrected[0].replaces) == ("a-2", "a")
        plan.add(check_plan(plan, faults.corrected, RULES).new)
        plan.outcomes["a-2"] = ended("a-2", "failed")
        again = refused([subtask("a")], plan)
        assert again.faults == ("the id 'a' is used already; take a new one, such as 'a-3'",)
        assert (again.corrected[0].id, again.corrected[0].replaces) == ("a-3", "a-2")

    def test_a_subtask_added_later_starts_when_its_need_is_done_already(self) -> None:
        """B06: readiness is read from the outcomes, not from events that have passed."""
        plan = planned(subtask("a"), a="done")
        plan.add(check_plan(plan, [subtask("b", "a")], RULES).new)
        assert ids(plan.ready()) == ["b"]

    def test_what_replaces_a_failed_subtask_revives_what_was_skipped_because_of_it(self) -> None:
        plan = planned(
            subtask("d", "c"),
            subtask("c", "b"),
            subtask("b", "a"),
            subtask("a"),
            subtask("x", "y"),
            subtask("y"),
            a="failed",
            b="skipped",
            c="skipped",
            d="skipped",
            x="skipped",
            y="failed",
        )
        plan.add(check_plan(plan, [subtask("a2", replaces="a")], RULES).new)
        assert set(plan.outcomes) == {"a", "y", "x"}
        assert ids(plan.ready()) == ["a2"]
        plan.outcomes["a2"] = ended("a2")
        plan.started.add("a2")
        assert ids(plan.ready()) == ["b"]

    def test_what_waits_for_two_failures_is_not_revived_by_one_replacement(self) -> None:
        plan = planned(subtask("a"), subtask("b"), subtask("c", "a", "b"), a="failed", b="failed", c="skipped")
        plan.add(check_plan(plan, [subtask("a2", replaces="a")], RULES).new)
        assert plan.outcomes["c"].status == "skipped"
        plan.add(check_plan(plan, [subtask("b2", replaces="b")], RULES).new)
        assert "c" not in plan.outcomes

    def test_what_replaces_something_replaced_already_means_what_stands_in_for_it_now(self) -> None:
        plan = planned(subtask("a"), a="failed")
        plan.add(check_plan(plan, [subtask("a2", replaces="a")], RULES).new)
        plan.outcomes["a2"] = ended("a2", "failed")
        plan.add(check_plan(plan, [subtask("a3", replaces="a")], RULES).new)
        assert plan.current("a") == "a3"

    def test_only_what_ended_without_success_can_be_replaced(self) -> None:
        plan = planned(subtask("a"), subtask("b"), a="done")
        for old in ("a", "b", "c"):
            assert f"replaces {old!r}" in str(refused([subtask("n", replaces=old)], plan))

    def test_two_subtasks_cannot_stand_in_for_the_same_one(self) -> None:
        plan = planned(subtask("a"), a="failed")
        assert "'y' replaces 'a'" in str(refused([subtask("x", replaces="a"), subtask("y", replaces="a")], plan))


class TestState:
    def test_the_longest_remaining_path_comes_first(self) -> None:
        plan = planned(
            subtask("short"),
            subtask("long", effort=3),
            subtask("head"),
            subtask("tail", "head", effort=5),
        )
        assert plan.remaining == {"short": 1, "long": 3, "head": 6, "tail": 5}
        assert ids(plan.ready()) == ["head", "long", "short"]

    def test_equal_paths_keep_the_plans_order(self) -> None:
        assert ids(planned(subtask("z"), subtask("a"), subtask("m")).ready()) == ["z", "a", "m"]

    @pytest.mark.parametrize("status", ["partial", "failed", "cancelled", "needs_review", "skipped"])
    def test_a_need_that_did_not_end_well_keeps_a_subtask_from_running_with_the_cause(
        self, status: OutcomeStatus
    ) -> None:
        """B05: the cause is told, not left to be guessed."""
        plan = planned(subtask("a"), subtask("b", "a"), a=status)
        assert plan.blocked(plan.subtasks["b"]) == f"it comes after 'a', which ended {status}: a broke"

    def test_a_tolerant_subtask_and_one_after_a_continued_failure_go_on(self) -> None:
        plan = planned(
            subtask("a"), subtask("b", "a", tolerant=True), subtask("c", on_failure="continue"), subtask("d", "c")
        )
        plan.outcomes |= {"a": ended("a", "failed"), "c": ended("c", "failed")}
        assert [plan.blocked(plan.subtasks[id]) for id in ("b", "d")] == [None, None]

    def test_every_outcome_that_is_no_success_spoils_the_run_unless_replaced_or_tolerated(self) -> None:
        """B07: ended is ended, and whether it was a success is told by what is left over."""
        plan = planned(
            subtask("fine"),
            subtask("tolerant", tolerant=True),
            subtask("continued", on_failure="continue"),
            subtask("rejected"),
            subtask("skipped", "rejected"),
            subtask("replaced"),
            fine="done",
            tolerant="failed",
            continued="failed",
            rejected="needs_review",
            skipped="skipped",
            replaced="failed",
        )
        plan.add(check_plan(plan, [subtask("stand-in", replaces="replaced")], RULES).new)
        plan.outcomes["stand-in"] = ended("stand-in")
        plan.started.add("stand-in")
        assert plan.ready() == []
        assert [outcome.id for outcome in plan.spoiled()] == ["rejected", "skipped"]

    def test_needs_name_who_stands_in(self) -> None:
        plan = planned(subtask("a"), subtask("b"), subtask("c", "a", "b"), a="failed", b="failed")
        plan.add(check_plan(plan, [subtask("n", replaces="a")], RULES).new)
        assert plan.needs(plan.subtasks["c"]) == ("n", "b")


# properties

QUICK = settings(max_examples=60)
NAMES = st.sampled_from(["a", "b", "c", "d", "e", "甲"])
PERFORMERS = st.sampled_from([{"role": "reader"}, {"role": "cook"}, {"tool": "query"}, {"tool": "hammer"}])
PROPOSED = st.lists(
    st.builds(
        lambda performer, fields: Subtask.model_validate(performer | fields),
        PERFORMERS,
        st.fixed_dictionaries(
            {
                "id": NAMES,
                "after": st.lists(NAMES | st.sampled_from(["orders.csv", "out.md", "nobody"]), max_size=3),
                "goal": st.sampled_from(["x", "write out.md"]),
                "replaces": st.none() | NAMES,
            }
        ),
    ),
    max_size=8,
)


@st.composite
def grown(draw: st.DrawFn) -> Plan:
    """A plan that came about by additions, each of which ended somehow."""
    plan = Plan()
    for proposed in draw(st.lists(PROPOSED, max_size=3)):
        add_what_is_good(plan, proposed)
        end_all(plan, cycle(draw(st.lists(st.sampled_from(STATUSES), min_size=1, max_size=5))))
    return plan


def add_what_is_good(plan: Plan, proposed: Sequence[Subtask]) -> None:
    try:
        plan.add(check_plan(plan, proposed, RULES).new)
    except PlanFaults as faults:
        if faults.corrected:
            plan.add(check_plan(plan, faults.corrected, RULES).new)


def end_all(plan: Plan, statuses: Iterator[OutcomeStatus]) -> None:
    """End everything that can be ended."""
    while ready := plan.ready():
        for subtask in ready:
            plan.started.add(subtask.id)
            plan.outcomes[subtask.id] = ended(subtask.id, "skipped" if plan.blocked(subtask) else next(statuses))


@QUICK
@given(grown(), PROPOSED, st.integers(1, 40), st.sets(st.sampled_from(["reader", "writer"])), st.booleans())
def test_a_corrected_plan_is_accepted(
    plan: Plan, proposed: list[Subtask], most: int, roles: set[str], tools: bool
) -> None:
    rules = Rules(roles, ("query",) if tools else (), max_subtasks=most, files=("orders.csv",))
    try:
        check_plan(plan, proposed, rules)
    except PlanFaults as faults:
        assert faults.faults
        if faults.corrected:
            assert ids(check_plan(plan, faults.corrected, rules).new) == ids(faults.corrected)


@QUICK
@given(grown(), PROPOSED)
def test_a_plan_only_grows_and_can_always_come_to_an_end(plan: Plan, proposed: list[Subtask]) -> None:
    before, done = dict(plan.subtasks), {id for id, outcome in plan.outcomes.items() if outcome.status == "done"}
    add_what_is_good(plan, proposed)
    assert before.items() <= plan.subtasks.items()
    assert done <= set(plan.outcomes)
    end_all(plan, repeat("done"))
    assert set(plan.outcomes) == set(plan.subtasks) == set(plan.remaining)


@QUICK
@given(PROPOSED)
def test_what_a_check_changes_is_told(proposed: list[Subtask]) -> None:
    try:
        addition = check_plan(Plan(), proposed, RULES)
    except PlanFaults:
        return
    changed = [old.id for old, new in zip(proposed, addition.new, strict=True) if set(old.after) != set(new.after)]
    assert all(any(repr(id) in note for note in addition.mended) for id in changed)
    assert bool(changed) == bool(addition.mended)


@pytest.mark.parametrize("fallback", [{"goal": "otherwise"}, {"role": "other"}, {"value": None}, {"value": 0}])
def test_a_fallback_says_the_same_after_it_was_stored(fallback: dict[str, Any]) -> None:
    """R73: in a resumed run, a fallback to another goal must not become one to the value null."""
    planned = Subtask.model_validate({"id": "a", "role": "worker", "goal": "x", "on_failure": fallback})
    stored = Subtask.model_validate(planned.model_dump(mode="json"))
    assert stored.model_dump()["on_failure"] == planned.model_dump()["on_failure"] == fallback


def test_how_a_plan_failed_does_not_hang_on_which_sibling_ended_first() -> None:
    """R73: a resumed run, in which they end in another order, ends in the same way."""
    plan = Plan()
    plan.add([Subtask(id=id, role="reader", goal=id) for id in "ab"])
    for id in "ba":
        plan.outcomes[id] = ended(id, "failed", f"no {id}")
    assert [outcome.id for outcome in plan.spoiled()] == ["a", "b"]
