"""HTTP under the address guard: each connection goes to a checked address, on each hop of a redirect."""

from __future__ import annotations

import re
import ssl
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ToolError
from orchestrator.sandbox.guard import AddressGuard

if TYPE_CHECKING:
    import httpx2

MAX_REDIRECTS = 10
CONNECT = 10.0
"""Seconds to connect, for each address of a host."""
READ = 25.0
"""Seconds between two pieces of an answer."""
_FIXED = frozenset({"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect"})
"""Headers that say where a request goes or how it is framed; they are set here."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a server answered."""

    url: str
    """Where the answer came from, after redirects."""
    status: int
    reason: str
    headers: Mapping[str, str]
    """By name in lower case."""
    body: bytes
    """Decompressed, and no longer than was asked for."""
    cut: bool
    """There was more."""
    redirects: int

    @property
    def media_type(self) -> str:
        """As `text/html`; empty when the server did not say."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


@asynccontextmanager
async def open_client(guard: AddressGuard) -> AsyncIterator[httpx2.AsyncClient]:
    """Keep a pool of connections, all of them to addresses that this guard let pass. It keeps no cookies."""
    import httpcore2
    import httpx2

    class Checked(httpcore2.AsyncNetworkBackend):
        """Connects to what the guard returns for a host; TLS and HTTP still see the host's name."""

        def __init__(self) -> None:
            self.inner = httpcore2.AnyIOBackend()

        async def connect_tcp(
            self,
            host: str,
            port: int,
            timeout: float | None = None,  # noqa: ASYNC109 - as httpcore2 declares it
            local_address: str | None = None,
            socket_options: Iterable[Any] | None = None,
        ) -> httpcore2.AsyncNetworkStream:
            failed: Exception | None = None
            for address in await guard.resolve(host, port):
                try:
                    return await self.inner.connect_tcp(address, port, timeout, local_address, socket_options)
                except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                    failed = error
            raise failed or httpcore2.ConnectError(f"{host} has no address")

    pool = httpcore2.AsyncConnectionPool(
        ssl_context=httpx2.create_ssl_context(), max_connections=100, keepalive_expiry=30.0, network_backend=Checked()
    )
    transport = httpx2.AsyncHTTPTransport(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    transport._pool = pool  # httpx2 has no way to say how connections are made
    async with httpx2.AsyncClient(
        transport=transport,
        trust_env=False,  # a proxy would resolve names itself
        timeout=httpx2.Timeout(READ, connect=CONNECT),
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        headers={"User-Agent": "ori-orchestrator", "Accept-Encoding": "gzip, deflate"},
    ) as client:
        yield client


async def fetch(
    client: httpx2.AsyncClient,
    guard: AddressGuard,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    most: int,
) -> Fetched:
    """Send a request, follow redirects, and read the answer.

    Redirects to another host are followed without the headers that were given, and only by GET and HEAD: what sends
    data to a further host is a decision of its own, so its redirect is the answer.

    Args:
        client: From `open_client`, with the same guard.
        guard: What may be reached.
        method: In capitals.
        url: Where to.
        headers: Added to the client's own.
        body: What is sent.
        most: Bytes of the answer's body.

    Raises:
        ToolError: It cannot be sent, is refused, or no readable answer came.
    """
    import httpx2

    guard.check_url(url)
    _check_headers(headers or {})
    try:
        request = client.build_request(method, url, headers=headers, content=body)
        for redirects in range(MAX_REDIRECTS + 1):
            guard.check_url(url := str(request.url))
            response = await client.send(request, stream=True)
            try:
                following = response.next_request
                elsewhere = following is not None and not _same_site(request.url, following.url)
                if following is None or (elsewhere and method not in ("GET", "HEAD")):
                    content, cut = await _read(response, most)
                    kept = {name.lower(): value for name, value in response.headers.items()}
                    return Fetched(url, response.status_code, response.reason_phrase, kept, content, cut, redirects)
            finally:
                await response.aclose()
            request = client.build_request(following.method, following.url) if elsewhere else following
    except (httpx2.HTTPError, httpx2.InvalidURL, zlib.error) as error:
        raise ToolError(f"no answer from {url}: {type(error).__name__}: {error or 'it took too long'}") from None
    raise ToolError(f"{url} is the end of {MAX_REDIRECTS} redirects, and redirects again; is it a circle?")


def _check_headers(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
            raise ToolError(f"{name!r} is no name of a header")
        if name.lower() in _FIXED or name.lower().startswith("proxy-"):
            raise ToolError(f"the header {name!r} cannot be given; it follows from the URL and the body")
        if not (value.isascii() and value.isprintable()):
            raise ToolError(f"the header {name!r} holds what no header can: {value!r}; encode it")


def _same_site(one: httpx2.URL, other: httpx2.URL) -> bool:
    """Whether two URLs have the same host and port, or the second is the first over TLS."""
    if one.host != other.host:
        return False
    upgraded = (one.scheme, one.port, other.scheme, other.port) == ("http", None, "https", None)
    return upgraded or (one.scheme, one.port) == (other.scheme, other.port)


async def _read(response: httpx2.Response, most: int) -> tuple[bytes, bool]:
    """Return a body of at most so many bytes, and whether there was more; a bomb is never unpacked further."""
    unpack = _unpacker(response.headers.get("content-encoding", ""))
    body = bytearray()
    async for piece in response.aiter_raw():
        body += unpack(piece, most + 1 - len(body))
        if len(body) > most:
            return bytes(body[:most]), True
    return bytes(body), False


def _unpacker(encoding: str) -> Callable[[bytes, int], bytes]:
    match encoding.strip().lower():
        case "" | "identity":
            return lambda piece, most: piece[:most]
        case "gzip" | "x-gzip" | "deflate":
            return zlib.decompressobj(wbits=32 + zlib.MAX_WBITS).decompress
        case unknown:
            raise ToolError(f"the answer is packed as {unknown!r}, which was not asked for and cannot be read")
