"""What a PNG file shows, as far as a check asks: its size, and whether there is anything on it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Samples of a pixel, by colour type (PNG specification, 11.2.2)."""
_MOST = 400_000_000
"""Bytes of pixels."""


@dataclass(frozen=True, slots=True)
class Png:
    """A decoded PNG."""

    width: int
    height: int
    blank: bool
    """Every pixel has the same colour."""


def read_png(data: bytes) -> Png:
    """Decode a PNG.

    Raises:
        ValueError: It is none, is damaged, or is interlaced.
    """
    chunks = list(_chunks(data))
    if not chunks or chunks[0][0] != b"IHDR" or len(chunks[0][1]) != 13:
        raise ValueError("it is no PNG")
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", chunks[0][1])
    if interlaced or colour not in _CHANNELS:
        raise ValueError("it is a PNG of an unusual kind (interlaced)")
    bits = _CHANNELS[colour] * depth
    row = 1 + (width * bits + 7) // 8
    if not 0 < row * height <= _MOST:
        raise ValueError(f"it has {width} × {height} pixels")
    try:
        inflated = zlib.decompressobj().decompress(b"".join(c for kind, c in chunks if kind == b"IDAT"), row * height)
    except zlib.error as error:
        raise ValueError(f"it is damaged: {error}") from None
    if len(inflated) < row * height:
        raise ValueError("it is damaged: it ends too early")
    rows = [inflated[start : start + row] for start in range(0, row * height, row)]
    return Png(width, height, _uniform(rows, width, bits))


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = len(_SIGNATURE)
    while data.startswith(_SIGNATURE) and place + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        yield kind, data[place + 8 : place + 8 + length]
        place += 12 + length


def _uniform(rows: list[bytes], width: int, bits: int) -> bool:
    """Tell whether all pixels are equal, from the filtered bytes: each filter writes such a row in one way only.

    Args:
        rows: Each with its filter type before it.
        width: Pixels of a row.
        bits: Of a pixel.
    """
    pixel = max(1, bits // 8)
    first = rows[0][1 : 1 + pixel]  # nothing stands before or above it, so every filter leaves it as it is
    if bits < 8:  # several pixels in a byte, the last one filled up with zeros
        value = int.from_bytes(first) >> (8 - bits)
        packed = "".join(f"{value:0{bits}b}" for _ in range(width)).ljust(8 * (len(rows[0]) - 1), "0")
        row = int(packed, 2).to_bytes(len(rows[0]) - 1)
    else:
        row = first * width
    top = [_filtered(row, bytes(len(row)), pixel, kind) for kind in range(5)]
    below = [_filtered(row, row, pixel, kind) for kind in range(5)]
    return rows[0] in top and all(other in below for other in rows[1:])


def _filtered(row: bytes, above: bytes, pixel: int, kind: int) -> bytes:
    """Return a row as a filter writes it, with its type before it (PNG specification, 9.2)."""
    out = bytearray([kind])
    for place, value in enumerate(row):
        left, corner = (row[place - pixel], above[place - pixel]) if place >= pixel else (0, 0)
        up = above[place]
        guess = left + up - corner
        paeth = min((left, up, corner), key=lambda near: abs(guess - near))
        out.append((value - (0, left, up, (left + up) // 2, paeth)[kind]) % 256)
    return bytes(out)
