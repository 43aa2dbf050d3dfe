from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.errors import ToolError

if TYPE_CHECKING:
    from tests.tools.conftest import Bench


@pytest.mark.parametrize(
    ("value", "text"),
    [("华东", '"华东"'), (1.5, "1.5"), (None, "null"), ("", '""'), ({"a": [1, "二"]}, '{"a": [1, "二"]}'), ([], "[]")],
)
async def test_a_value_is_read_back_as_it_was_set(bench: Bench, value: Any, text: str) -> None:
    assert await bench.text("set_variable", name="区域", value=value) == "区域 set"
    assert await bench.text("get_variable", name="区域", loop="ori/b") == text
    assert bench.variables == {"区域": value}


async def test_an_unknown_name_is_told_with_those_there_are(bench: Bench) -> None:
    with pytest.raises(ToolError, match="no variable 'total'; none is set so far"):
        await bench("get_variable", name="total")
    await bench("set_variable", name="totals", value=1)
    with pytest.raises(ToolError, match="did you mean 'totals'"):
        await bench("get_variable", name="total")
    with pytest.raises(ToolError, match="allowed: 'totals'"):
        await bench("get_variable", name="x")


async def test_an_empty_name_is_refused(bench: Bench) -> None:
    with pytest.raises(ToolError, match="the name is empty"):
        await bench("set_variable", name=" ", value=1)
