"""Loops that get nowhere are noticed, and loops that get somewhere are left alone."""

from __future__ import annotations

import json
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.stuck import FAILING_TURNS, WINDOW, Seen, Stuck, canonical


def seen(name: str = "look", arguments: str = "{}", result: str = "42", ok: bool = True) -> Seen:
    return Seen(name, arguments, result, ok)


def failed(name: str, number: int) -> Seen:
    """A failure unlike every other."""
    return seen(name, f'{{"n": {number}}}', f"Error {number}", ok=False)


class TestRepeating:
    def test_the_same_call_with_the_same_result_warns_and_then_stops(self) -> None:
        stuck = Stuck(warn_at=2, stop_at=4)
        assert [stuck.turn([seen()]) for _ in range(4)] == ["fine", "warn", "warn", "repeated"]

    def test_without_a_warning_it_only_stops(self) -> None:
        stuck = Stuck(warn_at=None, stop_at=2)
        assert [stuck.turn([seen()]) for _ in range(2)] == ["fine", "repeated"]

    def test_the_same_call_with_another_result_gets_somewhere(self) -> None:
        stuck = Stuck(warn_at=2, stop_at=3)
        assert {stuck.turn([seen(result=f"page {n}")]) for n in range(9)} == {"fine"}

    def test_the_same_result_of_another_call_gets_somewhere(self) -> None:
        stuck = Stuck(warn_at=2, stop_at=3)
        assert {stuck.turn([seen(arguments=f'{{"n": {n}}}')]) for n in range(9)} == {"fine"}

    def test_a_loop_that_alternates_between_calls_is_seen(self) -> None:
        """B14: asking two in turn for ever is a repetition, too."""
        stuck = Stuck(warn_at=None, stop_at=3)
        states = [stuck.turn([seen("ask" if n % 2 else "tell")]) for n in range(6)]
        assert states == ["fine"] * 4 + ["repeated"] * 2

    def test_the_form_of_the_arguments_makes_no_difference(self) -> None:
        """B14: the key of a repetition is the tool with its arguments in one form."""
        stuck = Stuck(warn_at=2, stop_at=3)
        forms = ['{"a":1,"b":"值"}', '{ "b": "\\u503c", "a": 1 }', '{"b":"值",\n"a":1}']
        assert [stuck.turn([seen(arguments=form)]) for form in forms] == ["fine", "warn", "repeated"]

    def test_repetitions_within_one_turn_count(self) -> None:
        assert Stuck(warn_at=2, stop_at=3).turn([seen()] * 3) == "repeated"

    def test_what_happened_long_ago_is_forgotten(self) -> None:
        stuck, fresh = Stuck(warn_at=2, stop_at=3), count()
        for _ in range(5):
            assert stuck.turn([seen()]) == "fine"
            assert stuck.turn([seen(arguments=f'{{"n": {next(fresh)}}}') for _ in range(WINDOW)]) == "fine"

    def test_a_turn_without_calls_is_fine(self) -> None:
        assert Stuck(warn_at=1, stop_at=1).turn([]) == "fine"


class TestFailing:
    def test_a_tool_that_only_fails_for_some_turns_in_a_row_is_noticed(self) -> None:
        stuck = Stuck(warn_at=2, stop_at=3)
        states = [stuck.turn([failed("look", n)]) for n in range(FAILING_TURNS)]
        assert states == ["fine"] * (FAILING_TURNS - 1) + ["failing"]

    def test_many_failures_in_one_turn_are_one_failing_turn(self) -> None:
        assert Stuck(warn_at=2, stop_at=3).turn([failed("look", n) for n in range(9)]) == "fine"

    def test_one_success_in_a_turn_makes_it_a_good_one(self) -> None:
        stuck = Stuck(warn_at=None, stop_at=99)
        assert {stuck.turn([failed("look", n), seen("look"), failed("look", -n)]) for n in range(9)} == {"fine"}

    def test_a_success_starts_the_count_anew(self) -> None:
        stuck = Stuck(warn_at=None, stop_at=99)
        turns = [failed("look", 1), failed("look", 2), seen("look"), failed("look", 3), failed("look", 4)]
        assert {stuck.turn([turn]) for turn in turns} == {"fine"}

    def test_each_tool_is_counted_by_itself_and_turns_without_it_do_not_count(self) -> None:
        stuck = Stuck(warn_at=None, stop_at=99)
        turns = [[failed("a", 1)], [failed("b", 1), failed("a", 2)], [seen("c")], [failed("b", 2)], [failed("a", 3)]]
        assert [stuck.turn(turn) for turn in turns] == ["fine"] * 4 + ["failing"]

    def test_the_same_failure_again_is_a_repetition_first(self) -> None:
        stuck = Stuck(warn_at=None, stop_at=FAILING_TURNS)
        assert [stuck.turn([seen(ok=False)]) for _ in range(FAILING_TURNS)][-1] == "repeated"


def test_the_same_words_three_times_are_enough() -> None:
    """B10: a loop that only says the same is stopped, not warned for ever."""
    stuck = Stuck(warn_at=2, stop_at=3)
    assert [stuck.said(text) for text in ("sorry", "well", "sorry", "sorry")] == [False, False, False, True]


@pytest.mark.parametrize("arguments", ["", "{", "[" * 100_000, '{"a":' * 100_000, "\ud800", "9" * 10_000, "NaN"])
def test_arguments_that_are_no_json_are_compared_as_they_are(arguments: str) -> None:
    assert canonical(arguments) == arguments
    stuck = Stuck(warn_at=2, stop_at=3)
    assert [stuck.turn([seen(arguments=arguments)]) for _ in range(3)] == ["fine", "warn", "repeated"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(JSON, st.booleans(), st.sampled_from([None, 1, 4]))
def test_one_value_has_one_form_and_keeps_its_value(value: object, ascii: bool, indent: int | None) -> None:
    written = json.dumps(value, ensure_ascii=ascii, indent=indent)
    assert canonical(written) == canonical(json.dumps(value, sort_keys=True))
    assert json.loads(canonical(written)) == value


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=3), max_size=40), st.integers(2, 4))
def test_a_loop_is_stopped_exactly_when_a_call_came_so_often_within_the_window(
    turns: list[list[str]], stop_at: int
) -> None:
    stuck, past = Stuck(warn_at=None, stop_at=stop_at), list[str]()
    for turn in turns:
        often = 0
        for name in turn:
            past.append(name)
            often = max(often, past[-WINDOW:].count(name))
        assert (stuck.turn([seen(name) for name in turn]) == "repeated") == (often >= stop_at)
