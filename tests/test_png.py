from __future__ import annotations

import io
import struct
import zlib

import pytest
from PIL import Image

from orchestrator.content.png import read_png

MODES = {"1": 1, "L": 200, "P": 3, "RGB": (10, 200, 30), "RGBA": (10, 200, 30, 77), "LA": (9, 255), "I;16": 40_000}


def saved(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("width", [1, 7, 64])
def test_one_colour_is_blank_and_one_other_pixel_is_not(mode: str, width: int) -> None:
    image = Image.new(mode, (width, 5), MODES[mode])  # type: ignore[arg-type]
    png = read_png(saved(image))
    assert (png.width, png.height, png.blank) == (width, 5, True)
    image.putpixel((width - 1, 4), 0 if isinstance(MODES[mode], int) else (0,) * len(MODES[mode]))  # type: ignore[arg-type]
    assert not read_png(saved(image)).blank


def filtered(rows: list[bytes], pixel: int, kind: int) -> bytes:
    """Write an RGB PNG whose rows all have one filter (PNG specification, 9.2)."""
    out, above = bytearray(), bytes(len(rows[0]))
    for row in rows:
        out.append(kind)
        for i, value in enumerate(row):
            left, up = (row[i - pixel] if i >= pixel else 0), above[i]
            corner = above[i - pixel] if i >= pixel else 0
            near = min((left, up, corner), key=lambda p: abs(left + up - corner - p))
            out.append((value - (0, left, up, (left + up) // 2, near)[kind]) % 256)
        above = row
    head = struct.pack(">IIBBBBB", len(rows[0]) // pixel, len(rows), 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(bytes(out))), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


@pytest.mark.parametrize("kind", range(5))
def test_every_filter_is_understood(kind: int) -> None:
    row = bytes((9, 200, 77)) * 6
    data = filtered([row] * 4, 3, kind)
    assert Image.open(io.BytesIO(data)).getcolors() == [(24, (9, 200, 77))]
    assert read_png(data).blank
    for other in ([row, row[:-1] + b"x", row, row], [row, row, row, bytes((8,)) + row[1:]]):
        assert not read_png(filtered(other, 3, kind)).blank


def test_what_is_no_whole_png_is_told() -> None:
    good = saved(Image.new("RGB", (300, 300), (1, 2, 3)))
    for data, words in [
        (b"", "no PNG"),
        (b"GIF89a", "no PNG"),
        (good[:60], "damaged"),
        (good.replace(b"IDAT", b"IDAX"), "damaged"),
        (good[:16] + struct.pack(">II", 2**31, 2**31) + good[24:], "pixels"),
    ]:
        with pytest.raises(ValueError, match=words):
            read_png(data)
