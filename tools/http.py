"""HTTP: reading addresses, fetching files, and sending data."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

import orjson
from pydantic import Field

from orchestrator import ToolContext, ToolError, ToolResult, Toolset, tool
from orchestrator.sandbox.fetch import Fetched, fetch, open_client
from orchestrator.strict import Strict
from orchestrator.text.readable import readable

if TYPE_CHECKING:
    from orchestrator.messages import Json

_CHARSETS = re.compile(
    r"utf-?8|utf-16(le|be)?|us-ascii|iso-8859-\d+|latin1|windows-\d+|cp\d+|koi8-\w|gb2312|gbk|gb18030|big5(-hkscs)?"
    r"|shift[_-]jis|euc-\w+|iso-2022-jp"
)
"""Those of the web; Python knows more, some of which take quadratic time."""
_TEXTUAL = re.compile(r"text/.*|application/(.*\+)?(json|xml|javascript|yaml|toml|x-www-form-urlencoded|x-ndjson|sql)")
_TELLING = ("location", "retry-after", "www-authenticate", "allow", "last-modified", "etag")
"""Headers that say what can be done next."""


class Settings(Strict):
    """What `ori.yaml` may say under `tools: http:`."""

    max_bytes: int = Field(10_000_000, ge=1)
    """Of one answer, unpacked."""


toolset = Toolset(settings=Settings)


@tool(effect="read", timeout=60, untrusted=True, destinations=("url",))
async def http_get(url: str, ctx: ToolContext, method: Literal["GET", "HEAD"] = "GET") -> ToolResult:
    """Read what stands at a URL: a page as text with its links, JSON, or a text file.

    Use it for pages and APIs that need no JavaScript. Redirects are followed.

    Args:
        url: As https://example.com/page.
        method: HEAD reads only the headers.

    Returns:
        The status, then the content.
    """
    # no headers: a link that is followed as it was found may go unasked, and must carry nothing
    return await _shown(await _fetch(ctx, method, url), ctx, whole=method == "HEAD")


@tool(effect="idempotent", timeout=300, untrusted=True, destinations=("url",))
async def http_download(url: str, path: str, ctx: ToolContext) -> ToolResult:
    """Save what stands at a URL into a file of the workspace, unchanged.

    Use it for files that are not text (images, PDF, archives, tables), or that other tools should read.

    Args:
        url: As https://example.com/data.csv.
        path: The file to write, as data.csv.

    Returns:
        The file's path, size and media type.
    """
    answer = await _fetch(ctx, "GET", url)
    if answer.status >= 400:
        return await _shown(answer, ctx)
    if answer.cut:
        raise ToolError(f"{url} holds more than {ctx.settings.max_bytes} bytes; nothing was saved")
    stored = ctx.workspace.write(path, answer.body)
    text = f"{stored.path} written: {len(answer.body)} bytes, {answer.media_type or 'of an unknown type'}"
    return ToolResult(text, value=stored.path, untrusted=answer.url)


@tool(effect="once", timeout=60, untrusted=True, destinations=("url",))
async def http_request(
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"],
    url: str,
    ctx: ToolContext,
    body: dict[str, Any] | list[Any] | str | None = None,
    headers: dict[str, str] | None = None,
) -> ToolResult:
    """Send data to a URL, or change or delete what stands there.

    Use it to act on an API, or to read from one that needs headers. Otherwise read with http_get.

    Args:
        method: What to do there.
        url: As https://api.example.com/items.
        body: An object or a list is sent as JSON, a text as it is.
        headers: More headers, as {"Content-Type": "text/csv"}.

    Returns:
        The status, then the content of the answer.
    """
    sent = body.encode() if isinstance(body, str) else None if body is None else orjson.dumps(body)
    given = dict(headers or {})
    if sent is not None and "content-type" not in {name.lower() for name in given}:
        given["Content-Type"] = "text/plain; charset=utf-8" if isinstance(body, str) else "application/json"
    return await _shown(await _fetch(ctx, method, url, given, sent), ctx)


async def _fetch(
    ctx: ToolContext, method: str, url: str, headers: dict[str, str] | None = None, body: bytes | None = None
) -> Fetched:
    guard = ctx.network
    # connections were checked by the guard that opened them, so loops that may reach more have a pool of their own
    client = await ctx.keep(("http", guard), lambda: open_client(guard), scope="orchestrator")
    return await fetch(client, guard, method, url, headers=headers, body=body, most=ctx.settings.max_bytes)


async def _shown(answer: Fetched, ctx: ToolContext, *, whole: bool = False) -> ToolResult:
    """Word an answer; `whole` shows all of its headers."""
    content, value = await ctx.threads.run(_content, answer)
    after = f" after {answer.redirects} redirect(s)" if answer.redirects else ""
    head = [f"{answer.status} {answer.reason} from {answer.url}{after}".replace("  ", " ")]
    head += [f"{name}: {value[:500]}" for name, value in answer.headers.items() if whole or name in _TELLING]
    if answer.cut:
        head.append(f"(only the first {len(answer.body)} bytes were read)")
    text = "\n".join(head[:50]) + (f"\n\n{content}" if content else "")
    return ToolResult(text, value=value, error=answer.status >= 400, untrusted=answer.url)


def _content(answer: Fetched) -> tuple[str, Json]:
    """Return a body as text for the model, and as a value for programs."""
    kind = answer.media_type
    text = _text(answer)
    if text is None:
        return f"({kind or 'content of an unknown type'}, {len(answer.body)} bytes, is not text; save it)", None
    if kind.endswith("json"):
        try:
            value = orjson.loads(text)
            return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode(), value
        except orjson.JSONDecodeError:
            return text, text
    if (
        kind == "application/xhtml+xml"
        or kind == "text/html"
        or (not kind and text.lstrip()[:9].lower() == "<!doctype")
    ):
        text = readable(text, answer.url)
    return text, text


def _text(answer: Fetched) -> str | None:
    """Decode a body, by what header, first bytes or page say; None: it is no text."""
    body = answer.body
    if answer.media_type and not _TEXTUAL.fullmatch(answer.media_type):
        return None
    said = re.search(r"charset=[\"']?([\w-]+)", answer.headers.get("content-type", ""), re.IGNORECASE)
    within = re.search(rb"<meta[^>]{0,200}charset=[\"']?([\w-]+)", body[:2048], re.IGNORECASE)
    charset = said[1] if said else within[1].decode("ascii", "replace") if within else "utf-8"
    charset = charset.lower() if _CHARSETS.fullmatch(charset.lower()) else "utf-8"
    if body.startswith(b"\xef\xbb\xbf"):
        charset = "utf-8-sig"
    try:
        text = body.decode({"gb2312": "gb18030", "gbk": "gb18030"}.get(charset, charset), "replace")
    except LookupError:
        text = body.decode(errors="replace")
    return None if "\0" in text[:1000] else text
