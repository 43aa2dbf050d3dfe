from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

from orchestrator.errors import ToolError

if TYPE_CHECKING:
    from tests.tools.conftest import Bench

TOTALS = "SELECT 区域, sum(额) AS 总额 FROM sales GROUP BY 区域"


@pytest.fixture
def sales(bench: Bench) -> Bench:
    bench.put("数 据/sales.csv", '区域,额\n华东,"1,000.50"\n华北,-20\n华东,\n'.encode("gb18030"))
    return bench


async def test_the_result_is_a_table_and_a_value(sales: Bench) -> None:
    result = await sales("query_table", sql=TOTALS)
    assert result.content == "| 区域 | 总额 |\n| --- | --- |\n| 华东 | 1000.50 |\n| 华北 | -20.00 |"
    assert result.value == [{"区域": "华东", "总额": 1000.5}, {"区域": "华北", "总额": -20.0}]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("报告/t.md", "| 区域 | 总额 |\n| --- | --- |\n| 华东 | 1000.50 |\n| 华北 | -20.00 |\n"),
        ("t.csv", "区域,总额\n华东,1000.50\n华北,-20.00\n"),
    ],
)
async def test_the_result_can_be_saved(sales: Bench, name: str, text: str) -> None:
    assert (await sales.text("query_table", sql=TOTALS, save_as=name)).endswith(f"\n{name} written")
    assert (sales.root / name).read_text(encoding="utf-8") == text
    assert [event.file for event in sales.stored] == [name]


async def test_another_form_is_refused_before_the_query_runs(sales: Bench) -> None:
    with pytest.raises(ToolError, match=r"save_as='t\.xlsx': a table can be saved as \.md or \.csv"):
        await sales("query_table", sql=TOTALS, save_as="t.xlsx")


async def test_many_rows_are_shown_in_part_and_saved_as_a_whole(bench: Bench) -> None:
    shown = await bench.text("query_table", sql="SELECT * FROM range(500)", save_as="t.csv")
    assert shown.endswith("| 199 |\n(the first 200 of 500 rows)\nt.csv written")
    assert len((bench.root / "t.csv").read_text().splitlines()) == 501


async def test_no_rows_are_said_to_be_none(sales: Bench) -> None:
    assert await sales.text("query_table", sql="SELECT * FROM sales WHERE 额 > 9999") == "no rows; columns: 区域, 额"


async def test_a_cancel_stops_the_query(bench: Bench) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await bench(
                "query_table",
                sql="SELECT count(*) FROM range(100000000000) a, range(1000) b WHERE a.range + b.range = 5",
            )


async def test_without_the_part_for_tables_the_way_to_install_it_is_told(
    sales: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ToolError, match=r"pip install 'ori-orchestrator\[tables\]'"):
        await sales("query_table", sql=TOTALS)
