"""Limits combine by the smaller, and a loop's time ends before that of the loop above it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from orchestrator.limits import SPARE_SECONDS, Deadline, Limits


class TestCombining:
    def test_the_smaller_of_what_is_set_counts(self) -> None:
        project, role, call = Limits(max_turns=20, tokens=1000), Limits(max_turns=50, timeout=9), Limits(tokens=5000)
        combined = Limits.combine(project, None, role, call)
        assert (combined.max_turns, combined.tokens, combined.timeout) == (20, 1000, 9)

    def test_a_default_does_not_count_as_set(self) -> None:
        assert Limits.combine(Limits(max_turns=100), Limits()).max_turns == 100

    def test_a_limit_that_is_set_to_none_limits_nothing(self) -> None:
        combined = Limits.combine(Limits(timeout=None, cost=None), Limits(timeout=5))
        assert (combined.timeout, combined.cost) == (5, None)

    def test_what_nobody_sets_keeps_its_default_and_stays_unset(self) -> None:
        combined = Limits.combine(Limits(max_turns=3), None)
        assert combined.max_parallel == Limits().max_parallel
        assert combined.model_fields_set == {"max_turns"}

    def test_nothing_combined_is_no_limits(self) -> None:
        assert Limits.combine() == Limits.combine(None, None) == Limits()

    @pytest.mark.parametrize(
        "wrong",
        [{"max_turns": 0}, {"max_parallel": 0}, {"timeout": 0}, {"cost": -1}, {"tokens": 0}, {"turns": 3}],
    )
    def test_a_limit_that_nothing_can_keep_is_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            Limits.model_validate(wrong)


SOME_LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "max_turns": st.integers(1, 9),
        "timeout": st.none() | st.floats(0.5, 9),
        "cost": st.none() | st.decimals(Decimal("0.01"), 9, places=2),
        "time": st.floats(1, 9),
    },
).map(Limits.model_validate)


@given(st.lists(SOME_LIMITS, max_size=4), st.integers(0, 4))
def test_it_makes_no_difference_in_which_order_or_groups_limits_combine(limits: list[Limits], cut: int) -> None:
    combined = Limits.combine(*limits)
    assert combined == Limits.combine(*reversed(limits))
    assert combined == Limits.combine(Limits.combine(*limits[:cut]), Limits.combine(*limits[cut:]))
    for one in limits:
        for name in one.model_fields_set:
            value = getattr(one, name)
            assert value is None or getattr(combined, name) <= value


class TestDeadlines:
    def test_a_tenth_of_the_time_is_kept_for_summing_up(self) -> None:
        assert Deadline.after(50) == Deadline(45, 50)

    def test_of_a_long_time_a_minute_is_kept(self) -> None:
        assert Deadline.after(3600) == Deadline(3600 - SPARE_SECONDS, 3600)
