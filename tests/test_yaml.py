import json
import re
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from orchestrator.document import Document
from orchestrator.errors import ConfigError
from orchestrator.yaml import read, scalar


class Leaf(BaseModel):
    model_config = ConfigDict(extra="forbid")

    colour: Literal["red", "green"] = "red"
    size: int = 1


class Tree(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    leaves: list[Leaf] = []
    best: Leaf | None = None
    by_name: dict[str, Leaf] = {}


def document(tmp_path: Path, text: str) -> Document:
    file = tmp_path / "tree.yaml"
    file.write_text(text, "utf-8")
    return read(file)


def refused(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        document(tmp_path, text).validate(Tree)
    return str(caught.value).replace(str(tmp_path / "tree.yaml"), "tree.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("on", "on"),
        ("012", 12),
        ("0o14", 12),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("2026-01-02", "2026-01-02"),
        ("1.5e3", 1500.0),
        ("-.inf", float("-inf")),
        ("TRUE", True),
        ("tRUE", "tRUE"),
        ("~", None),
        ("12:30", "12:30"),
        ("!!str 5", "5"),
        ("'5'", "5"),
    ],
)
def test_scalars_have_the_types_of_yaml_1_2(tmp_path: Path, text: str, value: object) -> None:
    assert document(tmp_path, f"a: {text}\n").data == {"a": value}


@given(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False)))
def test_a_plain_scalar_comes_back_as_what_was_written(value: float | None) -> None:
    text = repr(value).replace("inf", ".inf") if type(value) in (int, float) else json.dumps(value)
    assert scalar(text) == value
    assert type(scalar(text)) is type(value)


def test_a_key_that_stands_twice_is_an_error_that_names_both_lines(tmp_path: Path) -> None:
    assert refused(tmp_path, "name: a\nbest:\n  size: 1\n  size: 2\n") == (
        "tree.yaml:4: the key 'size' stands twice, first in line 3"
    )


def test_an_unknown_key_is_told_with_its_line_and_the_nearest_right_one(tmp_path: Path) -> None:
    assert refused(tmp_path, "name: a\nleafs: []\n") == "tree.yaml:2: unknown key 'leafs'; did you mean 'leaves'?"


@pytest.mark.parametrize(
    ("text", "place"),
    [("leaves: [{sizes: 2}]", "leaves[0]"), ("best: {sizes: 2}", "best"), ("by_name: {x: {sizes: 2}}", "by_name.x")],
)
def test_an_unknown_key_is_compared_with_the_keys_of_its_own_place(tmp_path: Path, text: str, place: str) -> None:
    assert f"unknown key 'sizes' in {place}; did you mean 'size'?" in refused(tmp_path, f"name: a\n{text}")


def test_all_faults_are_told_at_once_each_with_its_line(tmp_path: Path) -> None:
    text = "leaves:\n  - size: 1\n  - size: big\n    colour: gren\n"
    assert refused(tmp_path, text).splitlines() == [
        "tree.yaml: the key 'name' is missing",
        "tree.yaml:4: leaves[1].colour is 'gren'; did you mean 'green'?",
        "tree.yaml:3: leaves[1].size is 'big': input should be a whole number",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [("name: [1\n", 2), ("name: a: b\n", 1), ("name: a\n\tsize: 1\n", 2), ("- a\n", 1), ("a: 1\n---\nb: 2\n", 2)],
)
def test_what_is_no_mapping_in_yaml_is_told_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    assert refused(tmp_path, text).startswith(f"tree.yaml:{line}: ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: a\nleaves:\n\t- colour: red\n", r"tree\.yaml:3: .*; indent with spaces, not tabs"),
        ("name: a\nleaves：[]\n", r"tree\.yaml:\d: .*; write ': ' for '：' in line 2"),
    ],
    ids=["tab", "Chinese colon"],
)
def test_what_a_keyboard_puts_in_is_named(tmp_path: Path, text: str, said: str) -> None:
    assert re.fullmatch(said, refused(tmp_path, text))


def test_a_file_that_contains_itself_is_refused(tmp_path: Path) -> None:
    assert "alias contains itself" in refused(tmp_path, "name: &a [*a]\n")


def test_a_file_that_is_not_utf_8_is_refused_and_a_byte_order_mark_is_not_a_key(tmp_path: Path) -> None:
    file = tmp_path / "tree.yaml"
    file.write_bytes("name: 华东\n".encode("gb18030"))
    with pytest.raises(ConfigError, match="not UTF-8"):
        read(file)
    file.write_bytes(b"\xef\xbb\xbfname: a\n")
    assert read(file).data == {"name": "a"}


def test_an_empty_file_is_an_empty_mapping(tmp_path: Path) -> None:
    assert document(tmp_path, "# nothing\n").data == {}
