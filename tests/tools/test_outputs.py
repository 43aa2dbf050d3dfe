from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.errors import ToolError

if TYPE_CHECKING:
    from tests.tools.conftest import Bench


async def test_the_whole_of_a_cut_output_can_be_read_page_by_page(bench: Bench) -> None:
    """B38: what was cut is kept, and a page is never too long."""
    whole = "".join(f"{n:07}" for n in range(5000))
    handle = bench.workspace.outputs.store("ori/收集~2/@review1:3:tool.0", whole)
    pages, start = [], 0
    while start < len(whole):
        head, _, page = (await bench.text("read_artifact", handle=handle, start=start, characters=100_000)).partition(
            "\n"
        )
        assert head == f"(characters {start}–{start + len(page)} of {len(whole)})"
        assert len(page) <= 8000
        pages.append(page)
        start += len(page)
    assert "".join(pages) == whole


async def test_a_file_with_one_huge_line_can_be_read_by_characters(bench: Bench) -> None:
    bench.put("a.json", "区" * 1_000_000 + "end")
    assert (
        await bench.text("read_artifact", handle="a.json", start=1_000_000)
        == "(characters 1000000–1000003 of 1000003)\nend"
    )


async def test_an_empty_file_is_said_to_be_empty(bench: Bench) -> None:
    bench.put("a.txt", "")
    assert await bench.text("read_artifact", handle="a.txt") == "a.txt is empty"


@pytest.mark.parametrize("arguments", [{"start": 3}, {"start": -1}, {"characters": 0}])
async def test_a_part_that_does_not_exist_is_told_with_what_does(bench: Bench, arguments: dict[str, Any]) -> None:
    bench.put("a.txt", "abc")
    with pytest.raises(ToolError, match=r"has 3 characters; start=|give 1 to 8000"):
        await bench("read_artifact", handle="a.txt", **arguments)


async def test_a_wrong_handle_is_told_with_the_nearest(bench: Bench) -> None:
    bench.workspace.outputs.store("ori/a:1:tool.0", "x")
    with pytest.raises(ToolError, match=r"did you mean 'out:ori/a:1:tool\.0'"):
        await bench("read_artifact", handle="out:ori/a:1:tool.1")
