from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from orchestrator.sandbox.guard import AddressGuard
from orchestrator.sandbox.proxy import Proxy, Request, Response, open_proxy
from tests.browsing import serving
from tests.sites import moved, page


async def nobody(request: Request) -> Response | None:
    return None


@asynccontextmanager
async def proxied(*allow: str) -> AsyncIterator[Proxy]:
    async with open_proxy(AddressGuard(allow), nobody) as proxy:
        yield proxy


async def ask(proxy: Proxy, text: str) -> bytes:
    """Send a request and return everything that comes back until the connection ends."""
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.url.rpartition(":")[2]))
        try:
            writer.write(text.replace("\n", "\r\n").encode())
            return await reader.read()
        finally:
            writer.close()


async def test_a_page_of_an_allowed_host_comes_through() -> None:
    async with serving({"/a": "<p>你好"}) as site, proxied(site.place) as proxy:
        answer = await ask(
            proxy, f"GET {site.url}/a?q=1 HTTP/1.1\nHost: {site.place}\nProxy-Connection: keep-alive\n\n"
        )
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith("<p>你好".encode())
    assert site.asked == ["/a?q=1"]
    assert proxy.reached


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "169.254.169.254", "[::1]", "[::ffff:127.0.0.1]", "10.1.2.3", "2130706433", "0x7f.1"],
)
@pytest.mark.parametrize(
    "form", ["GET http://{}:8000/ HTTP/1.1\n\n", "CONNECT {}:8000 HTTP/1.1\n\n"], ids=["get", "connect"]
)
async def test_private_addresses_are_refused_in_every_form(host: str, form: str) -> None:
    async with proxied() as proxy:
        answer = await ask(proxy, form.format(host))
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"refused" in answer
        assert "refused" in proxy.why(f"http://{host}:8000/x")
        assert not proxy.reached


async def test_a_name_is_connected_to_at_the_address_that_was_checked() -> None:
    asked = []

    def lookup(host: str, port: int, **_: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        asked.append(host)
        address = "127.0.0.1" if len(asked) == 1 else "127.0.0.99"  # DNS says something else the second time
        return [(2, 1, 6, "", (address, port))]

    async with serving({"/": "checked"}) as site:
        guard = AddressGuard((f"rebind.example:{site.port}",), lookup)
        async with open_proxy(guard, nobody) as proxy:
            assert b"checked" in await ask(proxy, f"GET http://rebind.example:{site.port}/ HTTP/1.1\n\n")
    assert asked == ["rebind.example"]


async def test_a_tunnel_carries_both_ways() -> None:
    async def hangs_up(writer: asyncio.StreamWriter) -> None:
        writer.write(page("through the tunnel"))

    async with serving({"/": hangs_up}) as site, proxied(site.place) as proxy:
        answer = await ask(proxy, f"CONNECT {site.place} HTTP/1.1\n\nGET / HTTP/1.1\n\n")
    assert answer.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK")
    assert answer.endswith(b"through the tunnel")


async def test_a_second_request_never_reaches_the_host_of_the_first() -> None:
    """A host that leaves the connection open would otherwise be sent what is meant for another, cookies included."""
    seen = bytearray()

    async def keeps_open(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi")
        await writer.drain()

    async with serving({"/": keeps_open}) as site, proxied(site.place) as proxy:
        answer = await ask(
            proxy,
            f"GET {site.url}/ HTTP/1.1\nHost: {site.place}\n\nGET http://bank.example/ HTTP/1.1\nCookie: s\n\n",
        )
        seen += answer
    assert b"Connection: close" in answer
    assert b"keep-alive" not in answer
    assert site.asked == ["/"]


async def test_a_body_is_passed_on_by_its_length() -> None:
    got: list[bytes] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        got.append(await reader.readexactly(5))
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, proxied(place) as proxy:
        answer = await ask(proxy, f"POST http://{place}/ HTTP/1.1\nContent-Length: 5\n\nhellomore")
    assert got == [b"hello"]
    assert answer.startswith(b"HTTP/1.1 204 No Content")


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        pytest.param("nonsense\n\n", 400, id="no request"),
        pytest.param("GET /path HTTP/1.1\nHost: a.example\n\n", 400, id="no absolute URL"),
        pytest.param("GET ftp://a.example/ HTTP/1.1\n\n", 400, id="another scheme"),
        pytest.param("GET http://[::1/ HTTP/1.1\n\n", 400, id="a broken URL"),
        pytest.param("CONNECT :443 HTTP/1.1\n\n", 400, id="no host"),
        pytest.param("POST http://a.example/ HTTP/1.1\nTransfer-Encoding: chunked\n\n", 411, id="no length"),
        pytest.param("POST http://a.example/ HTTP/1.1\nContent-Length: -5\n\n", 411, id="a negative length"),
    ],
)
async def test_what_is_no_request_is_refused(request_text: str, status: int) -> None:
    async with proxied() as proxy:
        assert (await ask(proxy, request_text)).startswith(f"HTTP/1.1 {status} ".encode())


async def test_a_host_that_speaks_no_http_and_one_that_is_not_there_are_told_apart() -> None:
    async def greets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(greets, "127.0.0.1", 0)
    place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with proxied(place) as proxy:
        async with server:
            assert b"speaks no HTTP" in await ask(proxy, f"GET http://{place}/ HTTP/1.1\n\n")
        answer = await ask(proxy, f"GET http://{place}/ HTTP/1.1\n\n")
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert f"{place} cannot be reached".encode() in answer


async def test_a_redirect_is_the_clients_to_follow_and_is_checked_anew() -> None:
    async with serving({"/": moved("http://127.0.0.1:1/")}) as site, proxied(site.place) as proxy:
        assert b"302 Found" in await ask(proxy, f"GET {site.url}/ HTTP/1.1\n\n")
        assert (await ask(proxy, "GET http://127.0.0.1:1/ HTTP/1.1\n\n")).startswith(b"HTTP/1.1 403 ")


async def test_pages_of_our_own_are_answered_here() -> None:
    async def serve(request: Request) -> Response | None:
        return Response(200, request.target.encode()) if request.host == "own.localhost" else None

    async with open_proxy(AddressGuard(), serve) as proxy:
        assert (await ask(proxy, "GET http://own.localhost/a?b HTTP/1.1\n\n")).endswith(b"\r\n\r\n/a?b")
        assert (await ask(proxy, "HEAD http://own.localhost/a HTTP/1.1\n\n")).endswith(b"\r\n\r\n")
        assert (await ask(proxy, "GET http://own.localhost:8080/ HTTP/1.1\n\n")).startswith(b"HTTP/1.1 403 ")
        assert (await ask(proxy, "CONNECT own.localhost:80 HTTP/1.1\n\n")).startswith(b"HTTP/1.1 403 ")


async def test_closing_ends_a_tunnel_that_nobody_closes() -> None:
    ended = asyncio.Event()

    async def waits(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        ended.set()
        writer.close()

    server = await asyncio.start_server(waits, "127.0.0.1", 0)
    place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        async with proxied(place) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.url.rpartition(":")[2]))
            writer.write(f"CONNECT {place} HTTP/1.1\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(5):
            await ended.wait()
            assert await reader.read() == b""
        writer.close()
