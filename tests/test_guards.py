import ast
from dataclasses import replace
from pathlib import Path

import pytest

from tests import guards
from tests.guards import Guard

ROWS = guards.load()
HALF = Guard(
    id="B00",
    symptom="an odd number is halved",
    test="test_half.py::test_an_odd_number_has_no_half",
    file="half.py",
    guard="if n % 2:",
    without="if False:",
)
HALF_SOURCE = """
def half(n: int) -> int:
    if n % 2:
        raise ValueError(n)
    return n // 2
"""
HALF_TEST = """
import pytest
from half import half

def test_an_odd_number_has_no_half():
    with pytest.raises(ValueError):
        half(3)
"""

REPORTED = {f"B{number:02}" for number in (*range(1, 24), *range(30, 39), *range(50, 55), 56, 58)}
"""Faults of other systems that have to be impossible here."""


def test_each_reported_fault_has_its_row() -> None:
    assert {row.id for row in ROWS} >= REPORTED


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_row_fits_the_code_and_names_the_test_that_holds_it(row: Guard) -> None:
    assert row.taken_out(guards.ROOT) != (guards.ROOT / row.file).read_text("utf-8")
    file, *_, name = row.test.split("[")[0].split("::")
    tree = ast.parse((guards.ROOT / file).read_text("utf-8"))
    functions = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert (ast.get_docstring(functions[name]) or "").startswith(f"{row.id}:")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "half.py").write_text(HALF_SOURCE)
    (tmp_path / "test_half.py").write_text(HALF_TEST)
    return tmp_path


def test_a_row_passes_when_its_test_turns_red(checkout: Path) -> None:
    assert guards.check(HALF, checkout) is None
    assert (checkout / "half.py").read_text() == HALF_SOURCE


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (replace(HALF, without="if n % 2 == 1:"), "stays green"),
        (replace(HALF, without="if undefined:"), "the change is broken"),
        (replace(HALF, without="if n % 2"), "expected ':'"),
        (replace(HALF, guard="n"), "times, not once"),
        (replace(HALF, file="third.py"), "No such file"),
        (replace(HALF, test="test_half.py::test_renamed"), "did not run"),
    ],
)
def test_a_row_that_shows_nothing_fails(checkout: Path, row: Guard, fault: str) -> None:
    assert fault in (guards.check(row, checkout) or "")


def test_a_test_that_hangs_is_red_only_when_hanging_is_the_symptom(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "SECONDS", 1)
    hangs = replace(HALF, without="while True:\n        pass\n    if False:")
    assert "the test hangs" in (guards.check(hangs, checkout) or "")
    assert guards.check(replace(hangs, timeout=True), checkout) is None
