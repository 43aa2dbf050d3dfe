from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.text.figures import numbers, stands_in


@pytest.mark.parametrize(
    "text", ["1234.5", "1,234.50", "共1234.50元", "| 1,234.5 |", "is 1234.5.", "¥1,234.50", "(1,234.50)"]
)
def test_a_number_stands_there_in_any_of_its_written_forms(text: str) -> None:
    assert stands_in(1234.5, text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12, "1234"),
        (12, "3.12"),
        (12, "12.5"),
        (12, "10.0.0.12"),
        (345, "12,345"),
        (1, "1,234"),
        (-5, "from 3-5 days"),
        (5, "minus -5"),
        (1234.5, "1235"),
        (1234.56, "1234.6"),
        (1234.567, "1,234.58"),
        (12, ""),
        (None, "None"),
        ("INC-1", "INC-10"),
    ],
)
def test_a_part_of_another_number_is_not_the_number(value: object, text: str) -> None:
    assert not stands_in(value, text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1 + 0.2, "0.30"),
        (1234.567, "1,234.57"),
        (Decimal("-5.00"), "退款 -5"),
        (-5, "−5"),
        (1e6, "1,000,000"),
        (12345, "华东,12345,678"),
        (date(2026, 1, 2), "on 2026-01-02"),
        ("华东", "华东地区"),
        ("INC-1", "see INC-1."),
    ],
)
def test_floats_rounded_figures_dates_and_words_are_found(value: object, text: str) -> None:
    assert stands_in(value, text)


@given(st.integers(min_value=0, max_value=10**12), st.sampled_from(["{}", "a {:,} b", "{:.2f}", "{:,.2f}元"]))
def test_every_way_of_writing_a_number_is_read_back(value: int, form: str) -> None:
    assert numbers(form.format(value)) == [Decimal(value)]
    assert stands_in(value, form.format(value))
    assert not stands_in(value + 1, form.format(value))
