from __future__ import annotations

import asyncio
import json
import threading
import time
import zipfile
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ToolError
from orchestrator.tables import Rows, preview, query, query_in_thread, sheets
from orchestrator.threads import ThreadPool

ENDLESS = "SELECT count(*) FROM range(100000000000) a, range(1000) b WHERE a.range + b.range = 5"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "工作 区"
    root.mkdir()
    return root


def put(root: Path, name: str, text: str, encoding: str = "utf-8") -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(text.encode(encoding))


def column(root: Path, *cells: str, header: str = "v") -> list[Any]:
    """What a column of a CSV file is read as."""
    put(root, "t.csv", "\n".join([f"n,{header}", *(f"{n},{cell}" for n, cell in enumerate(cells))]))
    return [value for (value,) in query(root, f'SELECT "{header}" FROM t ORDER BY n').rows]


SALES = """日期,区域,产品,销售额
2026-03-01,华东,"铅笔, 2B","1,234.50"
2026-03-02,华北,尺子,-20.00
2026-03-02,华东,尺子,
2026-03-05,华东,尺子,0.10
"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "gb18030", "utf-16"])
def test_chinese_columns_in_any_usual_encoding(root: Path, encoding: str) -> None:
    put(root, "销售 数据/sales.csv", SALES, encoding)
    found = query(root, "SELECT 区域, sum(销售额) AS 总额, count(*) AS 行数 FROM sales GROUP BY 区域")
    assert found.columns == ("区域", "总额", "行数")
    assert found.markdown() == (
        "| 区域 | 总额 | 行数 |\n| --- | --- | --- |\n| 华东 | 1234.60 | 3 |\n| 华北 | -20.00 | 1 |"
    )


class TestTypes:
    def test_an_empty_cell_is_null(self, root: Path) -> None:
        assert column(root, "1", "", "3") == [1, None, 3]

    def test_ids_keep_their_leading_zeros(self, root: Path) -> None:
        assert column(root, "00123", "124") == ["00123", "124"]

    def test_numbers_with_thousands_marks_and_refunds_are_numbers(self, root: Path) -> None:
        assert [str(v) for v in column(root, '"1,234.50"', "-20", '"-1,000"')] == ["1234.50", "-20.00", "-1000.00"]

    @pytest.mark.parametrize("odd", ["N/A", '"1,23"', "1-2", "+5", "1e5", "12E3"])
    def test_one_odd_cell_keeps_a_column_text(self, root: Path, odd: str) -> None:
        assert column(root, "1", odd) == ["1", odd.strip('"')]

    def test_long_numbers_keep_every_digit(self, root: Path) -> None:
        assert [str(v) for v in column(root, "110101199003071234", "12345678901234567890")] == [
            "110101199003071234", "12345678901234567890",
        ]  # fmt: skip
        assert column(root, "1" * 40) == ["1" * 40]

    def test_sums_of_money_are_exact(self, root: Path) -> None:
        column(root, *["0.1", "0.2"] * 500)
        assert query(root, "SELECT sum(v), avg(v), sum(v) / 3, sum(v) * 1e10 FROM t").markdown().endswith(
            "| 150.0 | 0.15 | 50 | 1500000000000 |"
        )  # fmt: skip

    def test_dates_and_times(self, root: Path) -> None:
        assert column(root, "2026-03-01", "2026-12-31") == [date(2026, 3, 1), date(2026, 12, 31)]
        assert column(root, "2026/3/1") == [date(2026, 3, 1)]
        assert column(root, "2026-03-01 08:30:00") == [datetime(2026, 3, 1, 8, 30)]
        assert column(root, "2026-02-30") == ["2026-02-30"]

    def test_scientific_numbers_and_booleans(self, root: Path) -> None:
        assert column(root, "1.5e-7", "2") == [1.5e-7, 2.0]
        assert column(root, "true", "FALSE") == [True, False]

    def test_a_comma_in_a_semicolon_file_is_no_thousands_mark(self, root: Path) -> None:
        put(root, "t.csv", "a;b\n1,234;x\n")
        assert query(root, "SELECT a FROM t").rows == [("1,234",)]


class TestFiles:
    def test_json_lines(self, root: Path) -> None:
        put(root, "e.jsonl", '{"id": "007", "x": 0.1, "n": {"k": [1, 2.5]}}\n\n{"id": "8", "x": 0.2, "ok": true}\n')
        assert query(root, "SELECT id, CAST(x AS VARCHAR), n, ok FROM e").rows == [
            ("007", "0.1", '{"k": [1, 2.5]}', None), ("8", "0.2", None, True),
        ]  # fmt: skip

    def test_tsv_and_crlf_and_blank_lines(self, root: Path) -> None:
        put(root, "t.tsv", "a\tb\r\n1\tx,y\r\n\r\n2\tz\r\n")
        assert query(root, "SELECT * FROM t").rows == [(1, "x,y"), (2, "z")]

    def test_the_sheets_of_a_workbook(self, root: Path) -> None:
        openpyxl = pytest.importorskip("openpyxl")
        book = openpyxl.Workbook()
        book.active.append(["编号", "额", "日"])
        book.active.append(["001", 0.1 + 0.2, datetime(2026, 3, 1)])
        book.active.append(["002", 12, None])
        more = book.create_sheet("退款")
        more.append(["x"])
        more.append([-5])
        book.save(root / "账.xlsx")
        assert query(root, "SELECT * FROM 账").markdown().splitlines()[2:] == [
            "| 001 | 0.3 | 2026-03-01 |", "| 002 | 12.0 |  |",
        ]  # fmt: skip
        assert query(root, "SELECT x FROM 账_退款").rows == [(-5,)]
        assert query(root, 'SELECT count(*) FROM "账.xlsx"').rows == [(2,)]

    def test_a_label_that_is_merged_down_its_rows_holds_for_each_and_a_number_is_counted_once(self, root: Path) -> None:
        openpyxl = pytest.importorskip("openpyxl")
        book = openpyxl.Workbook()
        rows = [("区域", "门店", "额", "合计"), ("东", "甲", 1, 3), (None, "乙", 2, None), ("西", "丙", 5, 5)]
        for row in [(), *rows]:
            book.active.append(row)
        for merged in ("A3:A4", "D3:D4"):
            book.active.merge_cells(merged)
        book.save(root / "账.xlsx")
        assert query(root, "SELECT 区域, sum(额), sum(合计) FROM 账 GROUP BY 区域").rows == [("东", 3, 3), ("西", 5, 5)]

    def test_a_title_and_a_unit_over_the_header_of_a_sheet_are_no_header(self, root: Path) -> None:
        openpyxl = pytest.importorskip("openpyxl")
        book = openpyxl.Workbook()
        for row in [("2026 年销售表",), (), (None, "单位：万元"), ("区域", "额"), ("东", 3), ("西", 5)]:
            book.active.append(row)
        book.active.merge_cells("A1:B1")
        book.save(root / "账.xlsx")
        assert query(root, "SELECT 区域, 额 FROM 账").rows == [("东", 3), ("西", 5)]
        rows, total, above = preview(root / "账.xlsx", "账.xlsx", 5)
        assert (rows.columns, total, above) == (("区域", "额"), 2, ("2026 年销售表", "", "单位：万元"))

    @pytest.mark.parametrize("rows", [[("名",), ("甲",)], [("备注", None), ("甲", 1)]], ids=["one", "a number"])
    def test_a_first_row_of_one_name_is_the_header_where_none_follows(self, root: Path, rows: list[Any]) -> None:
        openpyxl = pytest.importorskip("openpyxl")
        book = openpyxl.Workbook()
        for row in rows:
            book.active.append(row)
        book.save(root / "账.xlsx")
        assert query(root, "SELECT * FROM 账").columns[0] == rows[0][0]

    def test_a_link_is_read_where_it_leads_to_a_file_of_the_folder(self, root: Path, tmp_path: Path) -> None:
        put(root, "data/2026.csv", "a\n1\n")
        (root / "latest.csv").symlink_to("data/2026.csv")
        assert query(root, "SELECT a FROM latest").rows == [(1,)]
        (tmp_path.parent / "out.csv").write_text("a\n2\n")
        (root / "out.csv").symlink_to(tmp_path.parent / "out.csv")
        with pytest.raises(ToolError, match="no table 'out'"):
            query(root, "SELECT a FROM out")

    def test_only_the_tables_that_are_named_are_read(self, root: Path) -> None:
        put(root, "good.csv", "a\n1\n")
        put(root, "broken.csv", "a,b\n1\n")
        put(root, "broken.xlsx", "no workbook")
        assert query(root, "SELECT a FROM good").rows == [(1,)]
        with pytest.raises(ToolError, match=r"'broken\.xlsx' cannot be opened as a workbook"):
            query(root, 'SELECT * FROM "broken.xlsx"')

    @pytest.mark.parametrize(
        ("text", "fault"),
        [
            ("a,b\n1,2\n1,2,3\n", r"'t\.csv', line 3: 3 cells, but the header has 2"),
            ('a,b\n1,2\n1,"x\n', r"'t\.csv', line 3: unexpected end of data"),
            ("", r"'t\.csv' is empty"),
            ("a\n" + "x" * 200_000, r"'t\.csv', line 2: field larger than field limit"),
            ("a\n\x00", "NUL bytes"),
        ],
    )
    def test_a_broken_file_is_told_with_its_line(self, root: Path, text: str, fault: str) -> None:
        put(root, "t.csv", text)
        with pytest.raises(ToolError, match=fault):
            query(root, "SELECT * FROM t")

    @pytest.mark.parametrize("text", ['{"a": 1}\n{"a": \n', '{"a": 1}\n[1]\n'])
    def test_a_broken_line_of_json_is_told(self, root: Path, text: str) -> None:
        put(root, "t.jsonl", text)
        with pytest.raises(ToolError, match=r"'t\.jsonl', line 2:"):
            query(root, "SELECT * FROM t")

    def test_columns_without_a_name_or_with_the_same_one_get_their_own(self, root: Path) -> None:
        put(root, "t.csv", "a,,A,a\n1,2,3,4\n")
        assert query(root, "SELECT * FROM t").columns == ("a", "column2", "A_2", "a_3")

    def test_five_megabytes(self, root: Path) -> None:
        put(root, "big.csv", "id,区域,额\n" + "".join(f"{n:06},{'华东' * 30},{n}.25\n" for n in range(26_000)))
        assert (root / "big.csv").stat().st_size > 5_000_000
        assert query(root, "SELECT min(id), CAST(sum(额) AS VARCHAR) FROM big").rows == [("000000", "337993500.00")]


class TestNames:
    @pytest.fixture(autouse=True)
    def tables(self, root: Path) -> None:
        put(root, "a/sales.csv", "x\n1\n")
        put(root, "b/sales.csv", "x\n2\n")
        put(root, "b/my-items 2026.csv", "x\n3\n")

    @pytest.mark.parametrize(
        ("name", "x"),
        [
            ('"a/sales.csv"', 1),
            ("'b/sales.csv'", 2),
            ("'/workspace/b/sales.csv'", 2),
            ('"my-items 2026"', 3),
            ("my_items_2026", 3),
            ("MY_ITEMS_2026", 3),
            ('"my-items 2026.csv"', 3),
            ("main.my_items_2026", 3),
        ],
    )
    def test_ways_to_name_a_table(self, root: Path, name: str, x: int) -> None:
        assert query(root, f"SELECT x FROM {name}").rows == [(x,)]

    def test_an_ambiguous_name_is_told_with_the_paths(self, root: Path) -> None:
        with pytest.raises(ToolError, match=r'in 2 files; say which one: "a/sales\.csv" or "b/sales\.csv"'):
            query(root, "SELECT * FROM sales")

    def test_an_unknown_table_is_told_with_the_nearest(self, root: Path) -> None:
        with pytest.raises(ToolError, match=r"no table 'sale'; did you mean 'sales'\?"):
            query(root, "SELECT * FROM (SELECT 1) JOIN sale USING (x)")
        with pytest.raises(ToolError, match=r"no table 'sale\.csv'; did you mean 'sales'\?"):
            query(root, "SELECT * FROM sale.csv")

    def test_a_file_name_without_quotes_is_its_table(self, tmp_path: Path) -> None:
        put(tmp_path, "stock.csv", "qty\n3\n2\n")
        assert query(tmp_path, "SELECT sum(qty) FROM stock.csv").rows == [(5,)]
        assert query(tmp_path, "SELECT sum(s.qty) FROM Stock.CSV AS s").rows == [(5,)]

    def test_an_unknown_column_is_told_with_what_there_is(self, root: Path) -> None:
        with pytest.raises(ToolError, match=r"(?s)\"y\" not found.*table my_items_2026: x BIGINT"):
            query(root, "SELECT y FROM my_items_2026")

    def test_the_tables_can_be_listed_and_described(self, root: Path) -> None:
        assert ("sales", "a/sales.csv") in query(root, "SHOW TABLES").rows
        assert query(root, 'DESCRIBE "a/sales.csv"').rows[0][:2] == ("x", "BIGINT")

    def test_a_table_that_the_query_defines_itself_is_not_looked_for(self, root: Path) -> None:
        assert query(root, "WITH q AS (SELECT 7 AS x) SELECT x FROM q").rows == [(7,)]


class TestOnlySelect:
    @pytest.mark.parametrize(
        "sql",
        [
            "COPY t TO '{out}'",
            "COPY (SELECT 1) TO '{out}'",
            "ATTACH '{out}' AS x",
            "EXPORT DATABASE '{out}'",
            "INSTALL httpfs",
            "LOAD httpfs",
            "PRAGMA database_list",
            "SET threads = 4",
            "CREATE TABLE x (a INT)",
            "INSERT INTO t VALUES (1)",
            "DELETE FROM t",
            "DROP TABLE t",
            "CALL enable_logging(storage = 'file', storage_path = '{out}')",
            "EXPLAIN ANALYZE SELECT 1",
            "PIVOT t ON a USING count(*)",
            "/* SELECT */ COPY t TO '{out}'",
        ],
    )
    def test_anything_else_is_refused(self, root: Path, sql: str) -> None:
        put(root, "t.csv", "a\n1\n")
        out = root.parent / "out"
        with pytest.raises(ToolError, match=r"only SELECT can be run here, not [A-Z]"):
            query(root, sql.format(out=out))
        assert not out.exists()

    def test_a_write_within_with_is_refused(self, root: Path) -> None:
        put(root, "t.csv", "a\n1\n")
        with pytest.raises(ToolError):
            query(root, "WITH x AS (INSERT INTO t VALUES (2) RETURNING *) SELECT * FROM x")

    @pytest.mark.parametrize("sql", ["", "  -- nothing", "SELECT 1; SELECT 2", "SELECT 1; COPY t TO 'x'"])
    def test_exactly_one_statement_is_taken(self, root: Path, sql: str) -> None:
        with pytest.raises(ToolError, match=r"give one SELECT statement, not [02]"):
            query(root, sql)

    @pytest.mark.parametrize(
        "sql",
        [
            "SELECT * FROM read_csv('{secret}')",
            "SELECT * FROM read_text('{secret}')",
            "SELECT * FROM read_blob('{secret}')",
            "SELECT * FROM '{secret}'",
            "SELECT * FROM glob('/*')",
            "SELECT * FROM 'https://example.com/x.csv'",
            "SELECT * FROM enable_logging(storage = 'file', storage_path = '{secret}.log')",
            "SELECT * FROM secret_list",
            "SELECT getenv('HOME')",
        ],
    )
    def test_nothing_outside_can_be_read_or_written(self, root: Path, sql: str) -> None:
        secret_list = [42]  # a Python variable is no table either
        secret = root.parent / "secret.csv"
        secret.write_text("password\nhunter2\n")
        with pytest.raises(ToolError) as caught:
            query(root, sql.format(secret=secret))
        assert "hunter2" not in str(caught.value)
        assert [p.name for p in root.parent.iterdir() if p != root] == ["secret.csv"]
        assert secret_list

    @pytest.mark.parametrize("sql", ["VALUES (1)", "FROM t", "WITH q AS (FROM t) FROM q", "SUMMARIZE t", "(SELECT 1)"])
    def test_all_forms_of_select_are_taken(self, root: Path, sql: str) -> None:
        put(root, "t.csv", "a\n1\n")
        assert len(query(root, sql).rows) == 1


class TestOrder:
    def test_rows_without_a_certain_order_are_sorted(self, root: Path) -> None:
        column(root, *"cabbac", "")
        for sql in ("SELECT v FROM t GROUP BY v", "SELECT DISTINCT v FROM t", "SELECT v FROM t UNION SELECT v FROM t"):
            assert query(root, sql).rows == [("a",), ("b",), ("c",), (None,)]

    def test_an_order_that_is_asked_for_and_that_of_a_file_stay(self, root: Path) -> None:
        column(root, *"cab")
        assert query(root, "SELECT v FROM t").rows == [("c",), ("a",), ("b",)]
        assert query(root, "SELECT v FROM t GROUP BY v ORDER BY v DESC").rows == [("c",), ("b",), ("a",)]


class TestLimits:
    def test_a_query_that_takes_too_long_is_interrupted(self, root: Path) -> None:
        began = time.monotonic()
        with pytest.raises(ToolError, match=r"stopped after 0\.3 s"):
            query(root, ENDLESS, timeout=0.3)
        assert time.monotonic() - began < 30

    async def test_a_cancel_ends_the_query_and_its_thread(self, root: Path) -> None:
        put(root, "t.csv", "a\n1\n")
        before = set(threading.enumerate())
        async with asyncio.TaskGroup() as group:
            task = group.create_task(query_in_thread(root, ENDLESS, ThreadPool()))
            while not (started := set(threading.enumerate()) - before):
                await asyncio.sleep(0)
            task.cancel()
        assert task.cancelled()
        for thread in started:
            await asyncio.to_thread(thread.join, 5)
            assert not thread.is_alive()

    async def test_the_event_loop_goes_on_while_a_query_runs(self, root: Path) -> None:
        ticks = 0
        async with asyncio.TaskGroup() as group:
            work = group.create_task(_stopped(root))
            while not work.done():
                ticks += 1
                await asyncio.sleep(0.01)
        assert ticks > 5

    def test_too_many_rows_are_refused(self, root: Path) -> None:
        with pytest.raises(ToolError, match="more than 100000 rows; aggregate, or add a LIMIT"):
            query(root, "SELECT * FROM range(100001)")


async def _stopped(root: Path) -> None:
    with pytest.raises(ToolError, match="stopped"):
        await query_in_thread(root, ENDLESS, ThreadPool(), seconds=0.3)


class TestRows:
    def test_results_are_json(self, root: Path) -> None:
        sql = """SELECT 1.50::DECIMAL(9,2) a, 123456789012345678.25::DECIMAL(38,2) b, 0.1::DOUBLE + 0.2::DOUBLE c,
            NULL d, DATE '2026-03-01' e, [1, 2] f, {'k': 1.5} g, true h, 'inf'::DOUBLE i,
            99999999999999999999::HUGEINT j, TIMESTAMP '2026-03-01 08:00:00' k, 'x'::BLOB l, INTERVAL 1 DAY m"""
        (record,) = json.loads(json.dumps(query(root, sql).records()))
        assert record == {
            "a": 1.5, "b": "123456789012345678.25", "c": 0.3, "d": None, "e": "2026-03-01", "f": [1, 2],
            "g": {"k": 1.5}, "h": True, "i": "inf", "j": "99999999999999999999", "k": "2026-03-01 08:00:00",
            "l": "b'x'", "m": "1 day, 0:00:00",
        }  # fmt: skip

    def test_columns_of_the_same_name_are_told_apart(self, root: Path) -> None:
        assert query(root, "SELECT 1 AS x, 2 AS x").records() == [{"x": 1, "x_2": 2}]

    def test_markdown_and_csv_survive_marks_in_cells(self) -> None:
        rows = Rows(("a|b", "c"), [("x|y\nz", 'say "1,2"')])
        assert rows.markdown() == '| a\\|b | c |\n| --- | --- |\n| x\\|y z | say "1,2" |'
        assert rows.csv() == 'a|b,c\n"x|y\nz","say ""1,2"""\n'

    def test_no_number_has_an_exponent(self, root: Path) -> None:
        assert query(root, "SELECT 1e20::DOUBLE, 1e-9::DOUBLE").markdown().splitlines()[2] == (
            "| 100000000000000000000 | 0.000000001 |"
        )


def test_a_preview_needs_no_database(root: Path) -> None:
    put(root, "t.csv", "a,b\n" + "".join(f"{n},00{n}\n" for n in range(30)))
    rows, total, _ = preview(root / "t.csv", "t.csv", 2)
    assert (rows.columns, rows.rows, total) == (("a", "b"), [("0", "000"), ("1", "001")], 30)


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "hidden"])
def test_a_workbook_that_unpacks_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declared: bool
) -> None:
    monkeypatch.setattr(sheets, "MAX_INFLATED", 5_000_000)
    file = tmp_path / "bomb.xlsx"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/worksheets/sheet1.xml", bytes(6_000_000))
    if not declared:
        small = (6_000_000).to_bytes(4, "little"), (60).to_bytes(4, "little")
        file.write_bytes(file.read_bytes().replace(*small))
    with pytest.raises(ToolError, match=r"'bomb\.xlsx' holds more than 5\.0 MB; save it as CSV"):
        preview(file, "bomb.xlsx", 5)
