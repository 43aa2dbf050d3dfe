"""Images on their way to a model: of a kind and a size that it takes."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO

from orchestrator.messages import Image

SHOWN = ("image/png", "image/jpeg", "image/webp", "image/gif")
"""What models with vision take; other kinds become PNG."""


def load(path: str, data: bytes, media_type: str) -> Image:
    """Return the image of a file, as a tool's result can carry it."""
    return Image(path, media_type, base64.b64encode(data).decode())


def fit(images: Sequence[Image], size: int) -> tuple[tuple[Image, ...], list[str]]:
    """Return images as a model is shown them, and a sentence for each that it cannot be shown. Blocks.

    Args:
        images: As tools gave them.
        size: Pixels that the longest side may have; 0: the model sees no images, and gets their names only.
    """
    if not size:
        return tuple(replace(image, data="") for image in images), []
    fitting, faults = [], []
    for image in images:
        try:
            fitting.append(_fit(image, size))
        except (OSError, ValueError, SyntaxError) as error:  # what Pillow raises for a file that is broken
            faults.append(f"[{image.path}: an image ({image.media_type}) that cannot be shown: {error}]")
    return tuple(fitting), faults


def _fit(image: Image, size: int) -> Image:
    """Scale an image down where it is too large; without Pillow it stays as it is, and servers scale it."""
    try:
        from PIL import Image as Pillow
        from PIL import ImageOps
    except ImportError:
        if image.media_type in SHOWN:
            return image
        raise ValueError("only with Pillow: pip install 'ori-orchestrator[images]'") from None
    try:
        opened = Pillow.open(BytesIO(base64.b64decode(image.data)))
    except Pillow.DecompressionBombError as error:
        raise ValueError(str(error)) from None
    with opened:
        media_type = opened.get_format_mimetype() or image.media_type
        if max(opened.size) <= size and media_type in SHOWN:
            return replace(image, media_type=media_type)
        upright = ImageOps.exif_transpose(opened)
        upright.thumbnail((size, size))
        photo = media_type == "image/jpeg"
        packed = BytesIO()
        upright.convert("RGB" if photo else "RGBA").save(packed, "JPEG" if photo else "PNG", optimize=True)
    return load(image.path, packed.getvalue(), "image/jpeg" if photo else "image/png")
