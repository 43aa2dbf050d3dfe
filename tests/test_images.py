from __future__ import annotations

import base64
import struct
import sys
import zlib
from io import BytesIO
from typing import Any

import pytest
from PIL import Image as Pillow

from orchestrator import ToolContext, ToolResult, tool
from orchestrator.images import fit, load
from orchestrator.messages import Image
from orchestrator.testing import call, text
from tests.loops import run

CALLS_IT = [call("shoot", {}), text("a red page")]


def picture(width: int, height: int, kind: str = "PNG", mode: str = "RGB", **options: Any) -> bytes:
    data = BytesIO()
    Pillow.new(mode, (width, height), "red").save(data, kind, **options)
    return data.getvalue()


def opened(image: Image) -> Pillow.Image:
    return Pillow.open(BytesIO(base64.b64decode(image.data)))


def bomb() -> bytes:
    """A PNG of 67 bytes that claims 2.5 billion pixels."""
    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    packed = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


class TestFitting:
    def test_a_large_image_is_scaled_down_and_keeps_its_shape(self) -> None:
        [image], faults = fit([load("页面.png", picture(3000, 1500), "image/png")], 1024)
        assert (opened(image).size, image.path, image.media_type, faults) == ((1024, 512), "页面.png", "image/png", [])

    def test_a_small_one_stays_byte_for_byte(self) -> None:
        small = load("a.png", picture(100, 50), "image/png")
        assert fit([small], 1024) == ((small,), [])

    @pytest.mark.parametrize(
        ("kind", "shown"),
        [("PNG", "image/png"), ("JPEG", "image/jpeg"), ("GIF", "image/png"), ("BMP", "image/png")],
        ids=str.lower,
    )
    def test_a_photo_stays_a_photo_and_what_models_do_not_take_becomes_png(self, kind: str, shown: str) -> None:
        [image], _ = fit([load("a", picture(2000, 10, kind), "application/octet-stream")], 1000)
        drawn = opened(image)
        assert (image.media_type, Pillow.MIME[drawn.format or ""], drawn.width) == (shown, shown, 1000)

    def test_the_media_type_is_that_of_the_content_not_of_the_name(self) -> None:
        [image], _ = fit([load("a.png", picture(10, 10, "JPEG"), "image/png")], 1000)
        assert image.media_type == "image/jpeg"

    def test_a_photo_that_lies_on_its_side_is_turned(self) -> None:
        exif = Pillow.Exif()
        exif[0x0112] = 6
        [image], _ = fit([load("a.jpg", picture(2000, 1000, "JPEG", exif=exif), "image/jpeg")], 1000)
        assert opened(image).size == (500, 1000)

    @pytest.mark.parametrize(
        ("data", "why"),
        [(b"<html>", "cannot identify"), (picture(3000, 3000)[:200], "truncated"), (bomb(), "exceeds limit")],
        ids=["no-image", "cut", "bomb"],
    )
    def test_what_is_no_image_is_said_and_the_others_are_shown(self, data: bytes, why: str) -> None:
        good = load("b.png", picture(10, 10), "image/png")
        shown, [fault] = fit([load("a.png", data, "image/png"), good], 1024)
        assert shown == (good,)
        assert fault.startswith("[a.png: an image (image/png) that cannot be shown: ")
        assert why in fault

    def test_a_model_that_sees_none_gets_names_without_data(self) -> None:
        [image], faults = fit([load("a.png", picture(10, 10), "image/png")], 0)
        assert (image, faults) == (Image("a.png", "image/png", ""), [])

    def test_without_pillow_an_image_is_sent_as_it_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        large, odd = load("a.png", picture(3000, 10), "image/png"), load("b.bmp", b"", "image/bmp")
        monkeypatch.setitem(sys.modules, "PIL", None)
        shown, [fault] = fit([large, odd], 1024)
        assert shown == (large,)
        assert "pip install 'ori-orchestrator[images]'" in fault


@tool(effect="read")
async def shoot(ctx: ToolContext) -> ToolResult:
    """Take a screenshot. Use it to see the page. Returns the picture."""
    data = picture(2000, 1000)
    await ctx.artifact("shots/page.png", data)
    return ToolResult("the page", images=(load("shots/page.png", data, "image/png"),))


def shown(messages: list[dict[str, Any]]) -> list[str]:
    parts = [part for m in messages if isinstance(m["content"], list) for part in m["content"]]
    return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]


class TestAToolsImages:
    async def test_reach_a_model_with_vision_at_its_size_right_behind_the_tools_word(self) -> None:
        ran = await run(CALLS_IT, shoot, model={"vision": True, "image_size": 500})
        *_, answer, picture = ran.requests[1]["messages"]
        assert (answer["role"], answer["content"]) == ("tool", "the page")
        assert picture["role"] == "user"
        assert picture["content"][0] == {"type": "text", "text": "[shots/page.png]"}
        [url] = shown(ran.requests[1]["messages"])
        head, data = url.split(",")
        assert head == "data:image/png;base64"
        assert Pillow.open(BytesIO(base64.b64decode(data))).size == (500, 250)

    async def test_are_a_note_with_the_path_for_a_model_without_vision(self) -> None:
        ran = await run(CALLS_IT, shoot)
        assert shown(ran.requests[1]["messages"]) == []
        told = ran.requests[1]["messages"][-1]["content"]
        assert told == "the page\n\n[shots/page.png: an image (image/png), which this model cannot see]"
