"""What an MCP tool returned, as a tool of ours returns it."""

from __future__ import annotations

import binascii
import mimetypes
from base64 import b64decode
from typing import TYPE_CHECKING

import orjson

from orchestrator.messages import Image
from orchestrator.tool import ToolContext, ToolResult

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock

SHOWN = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Kinds of images that models are shown; others are files like any."""


async def to_tool_result(result: CallToolResult, context: ToolContext, folder: str, source: str | None) -> ToolResult:
    """Return a result with all of its parts: texts and links as text, images to look at, everything else as files.

    Args:
        result: What came.
        context: Of the call.
        folder: Where in the workspace its files go.
        source: Where it comes from, when strangers may have written it.
    """
    texts: list[str] = []
    images: list[Image] = []
    for block in result.content:
        texts.append(await _text(block, context, f"{folder}/{context.key[:8]}-{len(texts) + 1}", images))
    value = result.structured_content
    if value is None:
        value = texts[0] if len(texts) == 1 else None
    elif not texts:
        texts.append(orjson.dumps(value).decode())
    return ToolResult("\n\n".join(texts), value, result.is_error, images=tuple(images), untrusted=source)


async def _text(block: ContentBlock, context: ToolContext, path: str, images: list[Image]) -> str:
    """Return what stands for a part in the text; what is no text is written to a file."""
    from mcp_types import TextResourceContents

    match block.type:
        case "text":
            return block.text
        case "resource_link":
            about = ", ".join(filter(None, [block.mime_type, block.description]))
            return f"[{block.title or block.name}]({block.uri}){about and f' ({about})'}"
        case "resource":
            resource = block.resource
            if isinstance(resource, TextResourceContents):
                return f"{resource.uri}:\n{resource.text}"
            data, kind, what = resource.blob, resource.mime_type or "application/octet-stream", resource.uri
        case _:
            data, kind, what = block.data, block.mime_type, block.type
    try:
        raw = b64decode(data, validate=True)
    except binascii.Error:
        return f"({what}, {kind}: no valid base64)"
    path += mimetypes.guess_extension(kind) or ""
    await context.artifact(path, raw)
    if kind in SHOWN:
        images.append(Image(path, kind, data))
    return f"({what}, {kind}, {len(raw):,} bytes: {path})"
