from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import threading
from collections import deque, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID

import pytest
from jsonschema.validators import validator_for
from pydantic import BaseModel, Field, ValidationError

from orchestrator.content.toolfiles import missing_sentences
from orchestrator.errors import ConfigError, ToolError
from orchestrator.tool import Tool, ToolContext, ToolResult, to_result, tool
from orchestrator.workspace import Workspace

if TYPE_CHECKING:
    from orchestrator.tool import ToolContext as OnlyForTheTypeChecker


class Level(Enum):
    low = "低"
    high = "高"


class Address(BaseModel):
    """Where to."""

    title: str
    city: Annotated[str, Field(description="City name.")] = "上海"


@dataclass
class Item:
    name: str
    price: Decimal = Decimal("1.50")


class Row(TypedDict):
    key: str
    note: NotRequired[str]


class Node(BaseModel):
    value: int
    children: list[Node] = []


class Order(BaseModel):
    id: int
    day: date
    tags: set[str]


@tool(effect="read", timeout=5, untrusted=True, destinations=["city"], cut=False)
async def everything(
    flag: bool,
    count: int,
    ratio: float,
    text: str,
    blob: bytes,
    day: date,
    at: datetime,
    length: timedelta,
    price: Decimal,
    uid: UUID,
    path: Path,
    region: Literal["华东", "华北"] | None,
    level: Level,
    names: list[str],
    pair: tuple[int, str],
    unique: set[int],
    table: dict[str, float],
    address: Address,
    item: Item,
    row: Row,
    rows: list[Row],
    tree: Node,
    city: Annotated[str, Field(min_length=1, description="Its own sentence.")],
    either: int | str,
    anything: Any,
    default: int = 3,
    stamps: list[date] = [date(2026, 1, 2)],  # noqa: B006
    *,
    ctx: ToolContext,
) -> str:
    """Take every type.

    Use it in tests.

    Args:
        flag: A truth.
        city: Not this sentence.
        names: Names of
            people.

    Returns:
        What it was given.
    """
    given = locals()
    return repr([given[name] for name in given])


GIVEN: dict[str, Any] = {
    "flag": True,
    "count": 1,
    "ratio": 0.5,
    "text": "文",
    "blob": "ab",
    "day": "2026-01-02",
    "at": "2026-01-02T03:04:05",
    "length": "PT5S",
    "price": "1.10",
    "uid": "12345678123456781234567812345678",
    "path": "a/b",
    "region": "华东",
    "level": "高",
    "names": ["x"],
    "pair": [1, "a"],
    "unique": [1, 2],
    "table": {"a": 1.5},
    "address": {"title": "t"},
    "item": {"name": "pen"},
    "row": {"key": "k"},
    "rows": [{"key": "k", "note": "n"}],
    "tree": {"value": 1, "children": [{"value": 2}]},
    "city": "北京",
    "either": "1",
    "anything": [None],
}


def context(tmp_path: Path) -> ToolContext:
    loop = Workspace(tmp_path / "work", tmp_path / "home").for_loop("ori", lambda owner: True, lambda change: None)
    return ToolContext(run_id="r", path="ori", key="k", workspace=loop, deps=None, variables={})


async def call(made: Tool, arguments: dict[str, Any], tmp_path: Path) -> Any:
    return await made.invoke(made.validate(arguments), context(tmp_path))


def properties(made: Tool) -> dict[str, Any]:
    return dict(made.parameters["properties"])


def test_every_builtin_type_is_in_the_schema_and_comes_out_typed() -> None:
    """R30."""
    validator_for(everything.parameters).check_schema(dict(everything.parameters))
    typed = everything.validate(GIVEN)
    assert typed["at"] == datetime(2026, 1, 2, 3, 4, 5)
    assert (typed["length"], typed["blob"], typed["price"]) == (timedelta(seconds=5), b"ab", Decimal("1.10"))
    assert (typed["path"], typed["uid"]) == (Path("a/b"), UUID("12345678123456781234567812345678"))
    assert (typed["level"], typed["pair"], typed["unique"], typed["either"]) == (Level.high, (1, "a"), {1, 2}, "1")
    assert typed["address"] == Address(title="t", city="上海")
    assert typed["item"] == Item("pen")
    assert typed["tree"].children[0].value == 2
    assert typed["rows"] == [{"key": "k", "note": "n"}]
    assert (typed["default"], typed["stamps"]) == (3, [date(2026, 1, 2)])


def test_the_schema_is_closed_keeps_defaults_and_carries_no_titles() -> None:
    """R30."""
    schema = everything.parameters
    assert (schema["type"], schema["additionalProperties"]) == ("object", False)
    assert schema["required"] == list(GIVEN)
    assert properties(everything)["default"] == {"type": "integer", "default": 3}
    assert properties(everything)["stamps"]["default"] == ["2026-01-02"]
    assert properties(everything)["level"] == {"enum": ["低", "高"], "type": "string"}
    assert properties(everything)["address"]["properties"].keys() == {"title", "city"}
    assert '"title": "' not in json.dumps(schema)


def test_the_docstring_becomes_a_description_and_a_sentence_for_each_parameter() -> None:
    """R30, R31."""
    assert everything.description == "Take every type.\n\nUse it in tests.\n\nReturns: What it was given."
    assert properties(everything)["flag"]["description"] == "A truth."
    assert properties(everything)["names"]["description"] == "Names of people."
    assert properties(everything)["city"]["description"] == "Its own sentence."
    assert properties(everything)["address"]["description"] == "Where to."


@pytest.mark.parametrize(
    "docstring",
    [
        "Find.\n\nArgs:\n    day: The day.\n",
        "Find.\n\nParameters\n----------\nday : str\n    The day.\n",
        "Find.\n\n:param day: The day.\n",
        "Find.\n\n参数：\n    day: The day.\n",
    ],
)
def test_the_usual_styles_of_docstrings_are_read(docstring: str) -> None:
    def find(day: str) -> None: ...

    find.__doc__ = docstring
    assert (tool(find).description, properties(tool(find))["day"]["description"]) == ("Find.", "The day.")


def test_small_and_single_definitions_stand_inline_and_recursive_ones_do_not() -> None:
    @tool
    def draw(one: Node, two: Node, start: Address, level: Level, other: Level) -> None:
        """Draw."""

    assert draw.parameters["$defs"].keys() == {"Node"}
    assert properties(draw)["other"]["enum"] == ["低", "高"]


async def test_the_context_is_injected_whatever_its_name_and_is_not_in_the_schema(tmp_path: Path) -> None:
    @tool
    async def who(anything_at_all: ToolContext, n: int = 1) -> str:
        """Say who."""
        return f"{anything_at_all.path}:{n}"

    @tool
    def optional(ctx: ToolContext | None = None) -> bool:
        """Say whether."""
        return ctx is not None

    assert "ctx" not in properties(everything)
    assert properties(who).keys() == {"n"}
    assert await call(who, {"n": 2}, tmp_path) == "ori:2"
    assert await call(optional, {}, tmp_path) is True


def test_types_that_exist_beside_the_function_only_are_found() -> None:
    class Local(BaseModel):
        n: int

    @tool
    def take(value: Local, many: list[Local]) -> NotThere:  # type: ignore[name-defined]  # noqa: F821
        """Take one. The return type is nobody's business."""

    assert take.validate({"value": {"n": 1}, "many": []})["value"] == Local(n=1)


async def test_sync_functions_run_in_a_thread_and_async_ones_on_the_loop(tmp_path: Path) -> None:
    """R39."""

    @tool(effect="read")
    def blocking() -> int:
        """Block."""
        return threading.get_ident()

    @tool(effect="read")
    async def waiting() -> int:
        """Wait."""
        return threading.get_ident()

    assert await call(blocking, {}, tmp_path) != threading.get_ident()
    assert await call(waiting, {}, tmp_path) == threading.get_ident()
    assert (blocking.blocking, waiting.blocking) == (True, False)


@tool(effect="read", process=True)
def in_process(order: Order) -> tuple[int, date]:
    """Say where it runs."""
    return os.getpid(), order.day


async def test_a_tool_in_a_process_of_its_own_takes_typed_arguments(tmp_path: Path) -> None:
    """R39."""
    pid, day = await call(in_process, {"order": {"id": 1, "day": "2026-01-02", "tags": []}}, tmp_path)
    assert pid != os.getpid()
    assert day == date(2026, 1, 2)


async def test_a_decorator_that_hides_an_async_function_does_no_harm(tmp_path: Path) -> None:
    def logged(fn: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        return wrapper

    @tool
    @logged
    async def double(n: int) -> int:
        """Double."""
        return 2 * n

    assert await call(double, {"n": 4}, tmp_path) == 8


def test_a_decorated_function_stays_callable_in_plain_python() -> None:
    @tool
    def double(n: int) -> int:
        """Double a number."""
        return 2 * n

    assert double(4) == 8
    assert list(inspect.signature(double).parameters) == ["n"]


def test_the_package_gives_the_decorator_and_not_the_module_of_that_name() -> None:
    """The submodule `orchestrator.tool` would hide it."""
    program = "import orchestrator.tool; from orchestrator import tool; print(tool.__name__)"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout == "tool\n"


def test_options_are_carried_and_a_plain_tool_is_once() -> None:
    """R41."""

    @tool
    def plain() -> None:
        """Do."""

    async def asked(key: str) -> bool:
        return True

    @tool(name="send_mail", effect="idempotent", retries=2, timeout=None, verify=asked)
    async def send(to: str) -> None:
        """Send."""

    assert (plain.effect, plain.timeout, plain.cut) == ("once", 30.0, True)
    assert (everything.effect, everything.untrusted, everything.destinations, everything.cut) == (
        "read",
        True,
        ("city",),
        False,
    )
    assert (send.name, send.effect, send.retries, send.timeout, send.verify) == (
        "send_mail",
        "idempotent",
        2,
        None,
        asked,
    )
    assert plain.source == __file__


def test_arguments_with_a_wrong_type_or_an_unknown_name_are_refused() -> None:
    with pytest.raises(ValidationError) as caught:
        everything.validate({**GIVEN, "count": "many", "city": "", "extra": 1})
    assert {error["loc"][0] for error in caught.value.errors()} == {"count", "city", "extra"}


def test_parameters_may_be_called_like_members_of_a_model() -> None:
    @tool
    def take(schema: str, copy: int, model_config: str, _private: int, json: str = "{}") -> None:
        """Take."""

    given = {"schema": "s", "copy": 1, "model_config": "c", "_private": 2}
    assert take.validate(given) == {**given, "json": "{}"}


def starred(*args: int) -> None: ...
def keywords(**options: int) -> None: ...
def positional(a: int, /) -> None: ...
def untyped(a) -> None: ...  # type: ignore[no-untyped-def]
def unreadable(a: OnlyForTheTypeChecker) -> None: ...
def callback(a: Callable[[], None]) -> None: ...
def custom(a: threading.Event) -> None: ...
def yields(a: int) -> Iterator[int]:
    yield a


@pytest.mark.parametrize(
    ("function", "options", "says"),
    [
        (starred, {}, "starred: the parameter 'args' is variadic positional"),
        (keywords, {}, "keywords: the parameter 'options' is variadic keyword"),
        (positional, {}, "positional: the parameter 'a' is positional-only"),
        (untyped, {}, "untyped: the parameter 'a' has no type"),
        (unreadable, {}, "unreadable: .*'OnlyForTheTypeChecker' is not defined"),
        (callback, {}, "callback: a parameter has a type that no JSON can stand for"),
        (custom, {}, "custom: a parameter has a type that no JSON can stand for"),
        (lambda a=1: a, {"name": "x"}, "the parameter 'a' has no type"),
        (yields, {}, "return a list instead of yielding"),
        (in_process.__wrapped__, {"name": "a.b"}, "a name has"),
        (in_process.__wrapped__, {"effect": "reed"}, "no effect is called 'reed'; did you mean 'read'"),
        (in_process.__wrapped__, {"timeout": 0}, "leaves no time"),
        (in_process.__wrapped__, {"retries": 1}, "would repeat it"),
        (in_process.__wrapped__, {"destinations": ["ordr"]}, "'ordr', which is no parameter; did you mean 'order'"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_where_it_is_decorated(
    function: Callable[..., Any], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        tool(**options)(function)


def test_a_mistyped_option_is_told_with_the_nearest_right_one() -> None:
    with pytest.raises(TypeError, match="'timout'; did you mean 'timeout'"):  # mypy sees it, too: no unused ignore
        tool(timout=3)  # type: ignore[call-overload]


def test_only_a_plain_function_of_a_module_can_have_a_process_of_its_own() -> None:
    async def waits() -> None: ...
    def wants(ctx: ToolContext) -> None: ...
    def local() -> None: ...

    cases: list[tuple[Callable[..., Any], str]] = [
        (waits, "plain function"),
        (wants, "without a ToolContext"),
        (local, "top of a module"),
    ]
    for function, says in cases:
        with pytest.raises(ConfigError, match=says):
            tool(process=True)(function)


@pytest.mark.parametrize(
    ("description", "missing"),
    [
        ("Read a file. Use it to see text. Returns the text.", []),
        ("读取文件。需要查看内容时使用。返回文件内容。", []),
        ("Read a file. Returns the text.", ["when to use it"]),
        ("读取文件，当用户询问内容时调用。", ["what it returns"]),
        ("Read a file.", ["when to use it", "what it returns"]),
        ("", ["when to use it", "what it returns"]),
    ],
)
def test_a_description_that_leaves_something_unsaid_is_noticed(description: str, missing: list[str]) -> None:
    """R31."""

    def read() -> None: ...

    read.__doc__ = description
    assert missing_sentences(tool(read)) == [f"no sentence says {what}" for what in missing]


Pair = namedtuple("Pair", "left right")


class Odd:
    def __str__(self) -> str:
        return "odd one"


@pytest.mark.parametrize(
    ("value", "text", "form"),
    [
        ("文 as it is", "文 as it is", "文 as it is"),
        (None, "Done; there is no result.", None),
        ("", "The result is empty.", ""),
        (" \n", "The result is empty.", " \n"),
        ([], "The result is an empty list.", []),
        (set(), "The result is an empty list.", []),
        ({}, "The result is an empty object.", {}),
        (0, "0", 0),
        (False, "false", False),
        (date(2026, 1, 2), "2026-01-02", "2026-01-02"),
        (Decimal("1.10"), "1.10", "1.10"),
        (Level.high, "高", "高"),
        (Order(id=1, day=date(2026, 1, 2), tags={"b", "a"}), None, {"id": 1, "day": "2026-01-02", "tags": ["a", "b"]}),
        ([Item("笔")], '[{"name":"笔","price":"1.50"}]', [{"name": "笔", "price": "1.50"}]),
        ({"b": {10, 9, 1}}, '{"b":[1,9,10]}', {"b": [1, 9, 10]}),
        ({1, "a"}, None, ["a", 1]),
        (deque([1]), "[1]", [1]),
        ({1: 2}.values(), "[2]", [2]),
        (Pair(1, 2), None, {"left": 1, "right": 2}),
        ({date(2026, 1, 2): 1}, None, {"2026-01-02": 1}),
        (b"text", "text", "text"),
        (b"\xff\x00", "(2 bytes that are not text)", "(2 bytes that are not text)"),
        (Odd(), f"odd one (a {__name__}.Odd)", f"odd one (a {__name__}.Odd)"),
        ([Odd()], f'["odd one (a {__name__}.Odd)"]', [f"odd one (a {__name__}.Odd)"]),
        ({("a", 1): 2}, "{('a', 1): 2} (a builtins.dict)", "{('a', 1): 2} (a builtins.dict)"),
        (
            [2**80, Item("x"), Level.low, date(2026, 1, 2)],
            None,
            [2**80, {"name": "x", "price": "1.50"}, "低", "2026-01-02"],
        ),
        ("\ud800!", "\ufffd!", "\ufffd!"),
        (["\ud83d\ude00", "\udcff"], '["😀","\ufffd"]', ["😀", "\ufffd"]),
    ],
)
def test_whatever_a_tool_returns_becomes_text_and_json(value: object, text: str | None, form: Any) -> None:
    result = to_result(value)
    assert (result.value, result.error) == (form, False)
    assert result.content == text if text is not None else json.loads(result.content) == form


def test_a_value_that_contains_itself_is_shown_and_does_no_harm() -> None:
    ring: list[Any] = []
    ring.append(ring)
    assert to_result(ring).content == "[[...]] (a builtins.list)"


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({"error": "no such file"}, True),
        ({"error": None, "rows": []}, False),
        ({"success": False}, True),
        ({"ok": False}, True),
        ({"ok": 0}, False),
        ({"isError": True}, True),
        ({"status": 404}, True),
        ({"status_code": 500, "body": ""}, True),
        ({"status": "404"}, False),
        ({"status": 200}, False),
        ({"exit_code": 1}, True),
        ({"returncode": -9}, True),
        ({"exit_code": 0, "returncode": None}, False),
        ({"returncode": True}, False),
        ([{"error": "of one row"}], False),
        ("error: only words", False),
    ],
)
def test_error_flags_inside_a_result_make_it_a_failed_call(value: object, error: bool) -> None:
    """R24."""
    assert to_result(value).error is error


def test_a_result_made_by_the_tool_itself_is_kept() -> None:
    made = ToolResult("text", {"a": 1}, error=True)
    assert to_result(made) == made
    assert to_result(ToolResult("")).content == "The result is empty."
    assert to_result(ToolResult("\udcff", 1)) == ToolResult("\ufffd", 1)


async def test_an_error_of_the_function_comes_through(tmp_path: Path) -> None:
    @tool
    def refuse() -> None:
        """Refuse."""
        raise ToolError("not today")

    with pytest.raises(ToolError, match="not today"):
        await call(refuse, {}, tmp_path)
