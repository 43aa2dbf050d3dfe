"""The HTTP client below the openai client."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from functools import cache
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConfigError

if TYPE_CHECKING:
    from ssl import SSLContext

    import httpx2

_LARGEST = 1 << 26
"""Bytes of an answer: 64 MB. The longest ones of models, streamed token by token, have half of that."""
_LARGEST_PACKED = _LARGEST >> 10
"""Bytes of one that came packed, though nobody asked for it: deflate makes a byte of at most 1,032."""
_DEFLATED = {"gzip", "deflate"}
_PACKED = {*_DEFLATED, "br", "zstd"}
"""What the client may unpack; any other `Content-Encoding` is a server that names what it did not do."""
_MERGED = {"headers", "timeout", "params", "content", "files"}
"""What the openai client gives for a body of bytes; `params` and `files` are None."""


def open_http_client() -> httpx2.AsyncClient:
    """Return an HTTP client that takes a request as the openai client made it.

    That has merged defaults and parsed the address already; once more takes a twentieth of a turn. Nothing is sent on
    to where a server redirects: prompts, and keys in headers of their own, are for nobody but the server in `base_url`.
    """
    import httpx2
    import openai

    class Connections(openai.DefaultAioHttpClient):
        def build_request(self, method: str, url: httpx2.URL | str, **given: Any) -> httpx2.Request:
            if given.keys() != _MERGED or given["params"] or given["files"]:
                return super().build_request(method, url, **given)
            return httpx2.Request(
                method,
                _parsed(str(url)),
                headers=given["headers"],
                cookies=self.cookies,
                content=given["content"],
                extensions={"timeout": httpx2.Timeout(given["timeout"]).as_dict()},
            )

    class Bounded(httpx2.AsyncByteStream):
        def __init__(self, stream: httpx2.AsyncByteStream, most: int) -> None:
            self.stream, self.most = stream, most

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for part in self.stream:
                size += len(part)
                if size > self.most:
                    packed = f"{self.most >> 10} kB of a packed answer, though packing was not asked for,"
                    raise httpx2.ReadError(f"more than {packed if self.most < _LARGEST else '64 MB'} came")
                yield part

        async def aclose(self) -> None:
            await self.stream.aclose()

    async def bound(response: httpx2.Response) -> None:
        response.encoding = "utf-8"  # what a server may name besides includes codecs that unpack, and that raise
        codings = [name.strip().lower() for name in response.headers.get("content-encoding", "").split(",")]
        packed = [name for name in codings if name in _PACKED]
        if len(packed) > 1 or not _DEFLATED.issuperset(packed):  # there is no telling how much that unpacks to
            raise httpx2.ReadError(f"the answer is packed as {', '.join(packed)}, which was not asked for")
        most = _LARGEST_PACKED if packed else _LARGEST
        declared = response.headers.get("content-length", "")
        if not (declared.isdecimal() and int(declared) <= most):  # else no more is read than that
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = Bounded(response.stream, most)

    return Connections(
        verify=_tls(),
        follow_redirects=False,
        headers={"Accept-Encoding": "identity"},
        event_hooks={"response": [bound]},
    )


@cache
def _parsed(url: str) -> httpx2.URL:
    import httpx2

    return httpx2.URL(url)


@cache
def _tls() -> SSLContext:
    """Return the one TLS context of this process: reading the certificates takes 80 ms."""
    import httpx2

    try:
        return httpx2.create_ssl_context()
    except OSError as error:  # an SSLError is one
        given = ", ".join(f"{name}={os.environ[name]}" for name in _CERTIFICATES if name in os.environ)
        raise ConfigError(f"the certificates in {given or 'the system'} cannot be read: {error}") from None


_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""Environment variables that name the certificates to trust."""
