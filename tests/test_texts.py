from __future__ import annotations

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ToolError
from orchestrator.workspace.texts import decode


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        ("区域".encode(), "区域"),
        (codecs.BOM_UTF8 + "区域".encode(), "区域"),
        ("区域，销售额".encode("gb18030"), "区域，销售额"),
        ("区域".encode("utf-16"), "区域"),
        (codecs.BOM_UTF16_BE + "区域".encode("utf-16-be"), "区域"),
        ("区域".encode("utf-32"), "区域"),
        (b"a\r\nb\rc\n", "a\nb\nc\n"),
    ],
)
def test_the_encoding_is_found(data: bytes, text: str) -> None:
    assert decode(data, "a.txt") == text


def test_text_that_is_neither_utf8_nor_gb18030_is_refused_with_the_way_to_read_it() -> None:
    data = "caf\xe9 ol\xe9".encode("latin-1")
    with pytest.raises(ToolError, match=r"'a\.txt' is neither UTF-8 nor GB18030 text; give its encoding"):
        decode(data, "a.txt")
    assert decode(data, "a.txt", "latin-1") == "café olé"


@pytest.mark.parametrize("encoding", ["utf9", "hex"])
def test_an_unknown_encoding_is_named(encoding: str) -> None:
    with pytest.raises(ToolError, match=f"unknown encoding '{encoding}'"):
        decode(b"a", "a.txt", encoding)


def test_a_wrong_encoding_is_named() -> None:
    with pytest.raises(ToolError, match="not valid utf-8 text"):
        decode("区域".encode("gb18030"), "a.txt", "utf-8")


@pytest.mark.parametrize(
    ("data", "name", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n....", "a.png", "a PNG image"),
        (b"%PDF-1.7", "a.txt", "a PDF document"),
        (b"PK\x03\x04..", "a.xlsx", "an Excel workbook"),
        (b"PK\x03\x04..", "a.zip", "a ZIP archive"),
        (b"abc\x00def", "a.txt", "NUL bytes"),
        ("区域".encode("utf-16-le") + b"a\x00", "a.txt", "NUL bytes"),
    ],
)
def test_binary_content_is_refused_with_its_kind(data: bytes, name: str, kind: str) -> None:
    with pytest.raises(ToolError, match=kind):
        decode(data, name)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\r\ufeff\x00")))
def test_what_was_written_as_utf8_is_read_as_it_was(text: str) -> None:
    if not text.startswith(("PAR1", "GIF8", "BZh", "%PDF-", "PK")):
        assert decode(text.encode(), "a.txt") == text
