from typing import get_args

import pytest
from rich import cells

from orchestrator.failure import StopReason
from orchestrator.results import RunResult
from orchestrator.serve import plain


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("short", 5, "short"),
        ("longer", 5, "long…"),
        ("统计销售额", 10, "统计销售额"),
        ("统计销售额", 9, "统计销售…"),
        ("统计销售额", 8, "统计销…"),
        ("cafe\u0301s", 5, "cafe\u0301s"),
    ],
)
def test_a_text_is_cut_to_columns_not_letters(text: str, width: int, expected: str) -> None:
    assert plain.cut(text, width) == expected
    assert cells.cell_len(expected) <= width


def test_columns_line_up_whatever_the_script() -> None:
    rows = [("一", "done", "统计 sales.csv 中各区域的销售总额"), ("run-2", "failed", "two\nlines")]
    lines = plain.table(("run", "status", "goal"), rows, 30, color=False).splitlines()
    assert lines == [
        "run    status  goal",
        "一     done    统计 sales.csv…",
        "run-2  failed  two lines",
    ]
    assert plain.table(("run",), [], 30, color=True) == "\33[2mrun\33[0m"


@pytest.mark.parametrize("reason", get_args(StopReason))
def test_why_something_ended_is_said_in_words(reason: StopReason) -> None:
    said = plain.why(RunResult(run_id="r", status="partial", stop_reason=reason))
    assert len(said.split()) > 1 and "_" not in said.replace("`max_", "")
