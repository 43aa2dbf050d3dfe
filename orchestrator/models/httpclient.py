"""The HTTP client below the openai client."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ssl import SSLContext

    import httpx2

_MERGED = {"headers", "timeout", "params", "content", "files"}
"""What the openai client gives for a body of bytes; `params` and `files` are None."""


def open_http_client() -> httpx2.AsyncClient:
    """Return an HTTP client that takes a request as the openai client made it.

    That has merged defaults and parsed the address already; once more takes a twentieth of a turn.
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
                extensions={"timeout": given["timeout"].as_dict()},
            )

    return Connections(verify=_tls())


@cache
def _parsed(url: str) -> httpx2.URL:
    import httpx2

    return httpx2.URL(url)


@cache
def _tls() -> SSLContext:
    """Return the one TLS context of this process: reading the certificates takes 80 ms."""
    import httpx2

    return httpx2.create_ssl_context()
