"""Text out of the bytes of a file: encodings told apart, binary content refused. Pure."""

from __future__ import annotations

import codecs
from pathlib import PurePath

from orchestrator.errors import ToolError

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark is its beginning
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"PK\x05\x06", "an empty ZIP archive"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office document"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ\x00", "an xz archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"PAR1", "a Parquet file"),
    (b"\x7fELF", "a program"),
)
_OFFICE = {".xlsx": "an Excel workbook", ".xlsm": "an Excel workbook", ".docx": "a Word document",
           ".pptx": "a PowerPoint presentation", ".ods": "a spreadsheet"}  # fmt: skip


def decode(data: bytes, name: str, encoding: str | None = None) -> str:
    """Return the text of a file, every line end a single newline.

    Args:
        data: The file's bytes.
        name: The file's name, for messages.
        encoding: How it is encoded; None: a byte order mark decides, then strict UTF-8, then strict GB18030.

    Raises:
        ToolError: It is binary, or the encoding is unknown or wrong.
    """
    return _decode(data, name, encoding).removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _decode(data: bytes, name: str, encoding: str | None) -> str:
    known = encoding or next((codec for mark, codec in _BOMS if data.startswith(mark)), None)
    if known is None and (kind := binary_kind(data, name)):
        raise ToolError(f"{name!r} is {kind}, not text")
    for candidate in [known] if known else ["utf-8", "gb18030"]:
        try:
            return data.decode(candidate)
        except LookupError:
            raise ToolError(
                f"unknown encoding {candidate!r}; known are 'utf-8', 'gb18030', 'big5', 'utf-16', …"
            ) from None
        except UnicodeError:
            continue
    if known:
        raise ToolError(f"{name!r} is not valid {known} text; try another encoding=")
    raise ToolError(
        f"{name!r} is neither UTF-8 nor GB18030 text; give its encoding, as encoding='big5', 'shift_jis', "
        "'latin-1' or 'utf-16-le'"
    )


def binary_kind(data: bytes, name: str) -> str | None:
    """Return what kind of binary content this is, as `a PNG image`, or None for what may be text."""
    kind = next((kind for magic, kind in _MAGIC if data.startswith(magic)), None)
    if kind == "a ZIP archive":
        return _OFFICE.get(PurePath(name).suffix.lower(), kind)
    if kind is None and b"\x00" in data:
        return "binary (it holds NUL bytes)"
    return kind
