from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.errors import ToolError

if TYPE_CHECKING:
    from tests.tools.conftest import Bench


class TestReadFile:
    async def test_a_whole_file_is_its_text_and_nothing_else(self, bench: Bench) -> None:
        bench.put("备 忘.txt", "一\r\n二\r\n")
        assert await bench.text("read_file", path="备 忘.txt") == "一\n二\n"

    async def test_a_part_says_which_lines_it_is(self, bench: Bench) -> None:
        bench.put("a.txt", "".join(f"line {n}\n" for n in range(1, 101)))
        assert await bench.text("read_file", path="a.txt", start=99) == "(lines 99–100 of 100)\nline 99\nline 100"
        assert await bench.text("read_file", path="a.txt", start=2, lines=1) == "(lines 2–2 of 100)\nline 2"
        previewed = (await bench.text("read_file", path="a.txt", preview=True)).split("\n")
        assert (previewed[0], len(previewed)) == ("(lines 1–20 of 100)", 21)

    async def test_a_part_of_a_table_names_its_columns(self, bench: Bench) -> None:
        bench.put("a.csv", '日期,"额, 元"\n1,2\n3,4\n')
        assert await bench.text("read_file", path="a.csv", start=3) == "(lines 3–3 of 3; columns: 日期, 额, 元)\n3,4"

    @pytest.mark.parametrize("arguments", [{"start": 4}, {"start": 0}, {"lines": 0}])
    async def test_a_range_that_does_not_exist_is_told_with_what_does(
        self, bench: Bench, arguments: dict[str, Any]
    ) -> None:
        bench.put("a.txt", "1\n2\n3\n")
        with pytest.raises(ToolError, match=r"'a\.txt' has 3 lines|lines=0 reads nothing"):
            await bench("read_file", path="a.txt", **arguments)

    async def test_an_empty_file_is_said_to_be_empty(self, bench: Bench) -> None:
        bench.put("a.txt", "")
        assert await bench.text("read_file", path="a.txt") == "a.txt is empty"

    @pytest.mark.parametrize("encoding", ["utf-8-sig", "gb18030", "utf-16"])
    async def test_usual_encodings_are_found(self, bench: Bench, encoding: str) -> None:
        bench.put("a.txt", "华东区域".encode(encoding))
        assert await bench.text("read_file", path="a.txt") == "华东区域"

    async def test_another_encoding_is_offered_and_taken(self, bench: Bench) -> None:
        bench.put("a.txt", "é !".encode("latin-1"))
        with pytest.raises(ToolError, match="give its encoding, as encoding="):
            await bench("read_file", path="a.txt")
        assert await bench.text("read_file", path="a.txt", encoding="latin-1") == "é !"

    async def test_binary_content_is_refused_with_its_kind(self, bench: Bench) -> None:
        bench.put("a.txt", b"\x89PNG\r\n\x1a\n0000")
        with pytest.raises(ToolError, match=r"'a\.txt' is a PNG image, not text"):
            await bench("read_file", path="a.txt")

    async def test_large_files_and_huge_lines_are_read(self, bench: Bench) -> None:
        bench.put("a.txt", "x" * 5_000_000 + "\nend\n")
        assert await bench.text("read_file", path="a.txt", start=2) == "(lines 2–2 of 2)\nend"
        assert len(await bench.text("read_file", path="a.txt")) == 5_000_005

    async def test_a_cut_output_is_read_by_its_handle(self, bench: Bench) -> None:
        handle = bench.workspace.outputs.store("ori/a:3:tool.0", "1\n2\n3")
        assert await bench.text("read_file", path=handle, start=3) == "(lines 3–3 of 3)\n3"

    @pytest.mark.parametrize("path", ["../x", "/etc/passwd", "", "link"])
    async def test_nothing_outside_the_workspace_is_read(self, bench: Bench, path: str) -> None:
        """B51: paths are resolved before they are checked."""
        bench.put("a.txt", "")
        (bench.root.parent / "x").write_text("secret")
        (bench.root / "link").symlink_to("../x")
        with pytest.raises(ToolError, match="paths are relative to the workspace"):
            await bench("read_file", path=path)


class TestPreview:
    async def test_the_beginning_of_a_text(self, bench: Bench) -> None:
        bench.put("a.md", "\n".join(map(str, range(50))))
        assert (await bench.text("preview", path="a.md")).startswith("(lines 1–20 of 50)\n0\n1\n")

    async def test_columns_rows_and_size_of_a_table(self, bench: Bench) -> None:
        bench.put("a.csv", "编号,额\n" + "".join(f"00{n},1\n" for n in range(9)))
        shown = await bench.text("preview", path="a.csv")
        assert shown.startswith("9 rows\n| 编号 | 额 |\n| --- | --- |\n| 000 | 1 |\n")
        assert shown.count("\n") == 7

    async def test_a_workbook_names_its_sheets(self, bench: Bench) -> None:
        openpyxl = pytest.importorskip("openpyxl")
        book = openpyxl.Workbook()
        book.active.title = "一月"
        book.active.append(["x"])
        book.active.append([1])
        book.create_sheet("二月")
        bench.put("a.xlsx", "")
        book.save(bench.root / "a.xlsx")
        assert await bench.text("preview", path="a.xlsx") == (
            "1 rows; it is the first of the sheets 一月, 二月\n| x |\n| --- |\n| 1 |"
        )


class TestWriting:
    async def test_a_file_is_written_with_its_folders(self, bench: Bench) -> None:
        assert await bench.text("write_file", path="报 告/a.md", content="区域") == "报 告/a.md written"
        assert (bench.root / "报 告/a.md").read_text(encoding="utf-8") == "区域"
        assert [event.file for event in bench.stored] == ["报 告/a.md"]

    async def test_writing_again_changes_nothing(self, bench: Bench) -> None:
        for _ in range(2):
            assert await bench.text("write_file", path="a.md", content="x") == "a.md written"
        assert (bench.root / "a.md").read_text() == "x"

    async def test_text_is_added_at_the_end(self, bench: Bench) -> None:
        for content in ("1\n", "2\n"):
            assert await bench.text("append_file", path="a.md", content=content) == "added to a.md"
        assert (bench.root / "a.md").read_text() == "1\n2\n"

    async def test_another_loops_file_is_not_touched(self, bench: Bench) -> None:
        await bench("write_file", path="a.md", content="x")
        for tool, arguments in (
            ("write_file", {"content": "y"}),
            ("append_file", {"content": "y"}),
            ("delete_file", {}),
        ):
            with pytest.raises(ToolError, match="was written by ori/a"):
                await bench(tool, loop="ori/b", path="a.md", **arguments)
        assert (bench.root / "a.md").read_text() == "x"

    async def test_a_file_is_deleted(self, bench: Bench) -> None:
        await bench("write_file", path="a.md", content="x")
        assert await bench.text("delete_file", path="a.md") == "a.md deleted"
        with pytest.raises(ToolError, match=r"there is no 'a\.md'"):
            await bench("delete_file", path="a.md")


class TestListFiles:
    async def test_files_with_their_sizes(self, bench: Bench) -> None:
        """B31: a space in a path makes no difference."""
        bench.put("我 的/b.csv", "x" * 1234)
        bench.put("a.txt", "")
        assert await bench.text("list_files") == "a.txt (0 B)\n我 的/b.csv (1.2 kB)"
        assert await bench.text("list_files", folder="我 的", pattern="*.csv") == "我 的/b.csv (1.2 kB)"

    async def test_nothing_found_is_said(self, bench: Bench) -> None:
        assert await bench.text("list_files", pattern="*.pdf") == "no files in '.' match '*.pdf'"
        with pytest.raises(ToolError, match="there is no 'data'"):
            await bench("list_files", folder="data")

    async def test_a_long_list_is_cut_with_a_note(self, bench: Bench) -> None:
        for number in range(203):
            bench.put(f"{number:03}.txt", "")
        assert (await bench.text("list_files")).endswith("199.txt (0 B)\n… and 3 more")


class TestSearchFiles:
    async def test_hits_are_told_with_file_and_line(self, bench: Bench) -> None:
        bench.put("a.log", "ok\nERROR (disk)\n")
        bench.put("日志/b.log", "错误: error (disk)\n".encode("gb18030"))
        bench.put("c.bin", b"error (disk)\x00")
        assert await bench.text("search_files", pattern="error (disk)") == (
            "a.log:2: ERROR (disk)\n日志/b.log:1: 错误: error (disk)"
        )
        assert await bench.text("search_files", pattern="错误", folder="日志") == "日志/b.log:1: 错误: error (disk)"
        assert await bench.text("search_files", pattern="nothing") == "no line in '.' contains 'nothing'"

    async def test_regular_expressions(self, bench: Bench) -> None:
        bench.put("a.log", "GET /a 200\nGET /b 503\nPOST /编 500\n")
        assert await bench.text("search_files", pattern=r"\s5\d\d$", regex=True) == (
            "a.log:2: GET /b 503\na.log:3: POST /编 500"
        )
        assert await bench.text("search_files", pattern=r"编", regex=True) == "a.log:3: POST /编 500"

    async def test_a_wrong_expression_and_an_empty_pattern_are_told(self, bench: Bench) -> None:
        bench.put("a.log", "x")
        with pytest.raises(ToolError, match=r"no regular expression: .*use regex=false"):
            await bench("search_files", pattern="(", regex=True)
        with pytest.raises(ToolError, match="the pattern is empty"):
            await bench("search_files", pattern="")

    async def test_an_expression_that_takes_for_ever_holds_up_nothing_and_ends_with_the_call(
        self, bench: Bench
    ) -> None:
        bench.put("a.log", "a" * 60 + "!\n")
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await bench("search_files", pattern="(a+)+$", regex=True)
        assert time.monotonic() - began < 30

    async def test_many_hits_and_long_lines_are_cut(self, bench: Bench) -> None:
        bench.put("a.log", "hit\n" * 500)
        assert (await bench.text("search_files", pattern="hit")).endswith(
            "a.log:100: hit\n(the first 100 of 500 lines)"
        )
        bench.put("a.log", "x" * 100_000 + "needle" + "x" * 100_000)
        found = await bench.text("search_files", pattern="needle")
        assert "needle" in found
        assert len(found) < 400

    async def test_one_file_or_one_output_is_searched_by_its_name(self, bench: Bench) -> None:
        handle = bench.workspace.outputs.store("ori/a:1:tool.0", "1\nneedle\n")
        bench.put("a.log", "needle")
        assert await bench.text("search_files", pattern="needle", folder=handle) == f"{handle}:2: needle"
        assert await bench.text("search_files", pattern="needle", folder="a.log") == "a.log:1: needle"
        bench.put("b.png", b"\x89PNG\r\n\x1a\n")
        with pytest.raises(ToolError, match="is a PNG image"):
            await bench("search_files", pattern="needle", folder="b.png")
