from orchestrator.messages import Usage
from orchestrator.plan import Subtask
from orchestrator.results import Outcome, OutcomeStatus
from orchestrator.views.estimate import RULE_OF_THUMB, estimate

PLAN = [
    Subtask(id="a", role="reader", goal="g"),
    Subtask(id="b", role="analyst", goal="g"),
    Subtask(id="c", role="writer", goal="g", after=("a", "b")),
    Subtask(id="d", tool="write_file", after=("c",)),
]


def past(role: str, calls: int, seconds: float, status: OutcomeStatus = "done") -> Outcome:
    usage = Usage(calls=calls, prompt=900 * calls, completion=100 * calls)
    return Outcome(
        id="x", path="ori/x", role=role, status=status, stop_reason="answer", usage=usage, started=5, ended=5 + seconds
    )


def test_a_role_costs_what_it_cost_on_average() -> None:
    expected = estimate(PLAN[:1], [past("reader", 2, 10), past("reader", 4, 30), past("analyst", 50, 500)])
    assert (expected.calls, expected.tokens, expected.seconds, expected.past) == (3, 3000, 20.0, 2)


def test_the_time_is_that_of_the_longest_chain() -> None:
    history = [past("reader", 1, 5), past("analyst", 1, 60), past("writer", 1, 10)]
    expected = estimate(PLAN, history)
    assert expected.chain == ("b", "c", "d")
    assert expected.seconds == 71.0


def test_a_role_without_a_past_goes_by_a_rule_of_thumb_and_a_tool_needs_no_model() -> None:
    expected = estimate(PLAN, [])
    assert expected.calls == 3 * RULE_OF_THUMB.calls and expected.past == 0


def test_failures_say_nothing_about_the_cost() -> None:
    assert estimate(PLAN[:1], [past("reader", 30, 900, "failed")]).past == 0
