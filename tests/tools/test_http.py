from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import zlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.errors import ToolError
from orchestrator.sandbox.guard import AddressGuard
from tests.sites import Site, moved, page

if TYPE_CHECKING:
    from tests.tools.conftest import Bench

MB = 1_000_000


@pytest.fixture
async def site(bench: Bench) -> AsyncIterator[Site]:
    """A site that the tools may reach by its address."""
    async with Site() as made:
        bench.network = AddressGuard((f"127.0.0.1:{made.port}",))
        yield made


class TestReading:
    async def test_a_page_is_read_as_text_with_its_links(self, bench: Bench, site: Site) -> None:
        site.answers["/a"] = page("<h1>报告</h1><p>See <a href='/b'>b</a>", kind="text/html; charset=utf-8")
        result = await bench("http_get", url=f"{site.url}/a")
        assert result.content == f"200 OK from {site.url}/a\n\n# 报告\n\nSee [b]({site.url}/b)"
        assert result.untrusted == f"{site.url}/a"
        assert not result.error

    async def test_json_is_shown_in_lines_and_kept_as_a_value(self, bench: Bench, site: Site) -> None:
        site.answers["/a"] = page('{"a":[1,"区"]}', kind="application/problem+json")
        result = await bench("http_get", url=f"{site.url}/a")
        assert result.content.endswith('{\n  "a": [\n    1,\n    "区"\n  ]\n}')
        assert result.value == {"a": [1, "区"]}

    @pytest.mark.parametrize("body", ["{not json", "[" * 100_000, ""])
    async def test_what_only_claims_to_be_json_is_shown_as_it_is(self, bench: Bench, site: Site, body: str) -> None:
        site.answers["/a"] = page(body, kind="application/json")
        assert (await bench("http_get", url=f"{site.url}/a")).value == body or not body

    @pytest.mark.parametrize(
        ("body", "kind", "text"),
        [
            ("销售".encode("gbk"), "text/plain; charset=GB2312", "销售"),
            ("<meta charset='gbk'>销售".encode("gbk"), "text/html", "销售"),
            ("é".encode("latin1"), "text/plain; charset=iso-8859-1", "é"),
            ("\ufeff销售".encode(), "text/plain", "销售"),
            ("a\N{EURO SIGN}".encode(), "text/plain; charset=punycode", "a\N{EURO SIGN}"),
            (b"ab", "text/plain; charset=cp99999", "ab"),
            (b"ab\xff", "text/plain", "ab\ufffd"),
            (b"<!DOCTYPE html><p>x", "", "x"),
        ],
    )
    async def test_text_is_decoded_as_header_mark_or_page_say(
        self, bench: Bench, site: Site, body: bytes, kind: str, text: str
    ) -> None:
        site.answers["/a"] = page(body, kind=kind)
        assert (await bench("http_get", url=f"{site.url}/a")).value == text

    async def test_a_failed_status_is_a_failed_call_with_what_was_said(self, bench: Bench, site: Site) -> None:
        site.answers["/a"] = page("slow down", status="429 Too Many Requests", headers={"Retry-After": "7"})
        result = await bench("http_get", url=f"{site.url}/a")
        assert result.error
        assert result.content == f"429 Too Many Requests from {site.url}/a\nretry-after: 7\n\nslow down"

    async def test_head_shows_the_headers(self, bench: Bench, site: Site) -> None:
        site.answers["/a"] = page(headers={"X-Kind": "x", "Content-Length": "99"})
        text = await bench.text("http_get", url=f"{site.url}/a", method="HEAD")
        assert "x-kind: x\ncontent-length: 99" in text or "content-length: 99\nx-kind: x" in text

    async def test_what_is_no_text_is_named_not_shown(self, bench: Bench, site: Site) -> None:
        site.answers |= {"/a": page(b"\x89PNG", kind="image/png"), "/b": page(b"a\0b", kind="text/plain")}
        assert "(image/png, 4 bytes, is not text; save it)" in await bench.text("http_get", url=f"{site.url}/a")
        assert "(text/plain, 3 bytes, is not text; save it)" in await bench.text("http_get", url=f"{site.url}/b")

    async def test_calls_share_connections_and_no_cookies(self, bench: Bench, site: Site) -> None:
        site.answers["/a"] = page("x", headers={"Set-Cookie": "session=1"})
        for _ in range(3):
            await bench("http_get", url=f"{site.url}/a")
        assert site.connections == 1
        assert not any(b"cookie" in request.lower() for request in site.requests)


class TestSending:
    @pytest.mark.parametrize(
        ("body", "kind", "sent"),
        [
            ({"a": "区"}, b"application/json", '{"a":"区"}'.encode()),
            ([1], b"application/json", b"[1]"),
            ("a=区", b"text/plain; charset=utf-8", "a=区".encode()),
            (None, b"", b""),
        ],
        ids=["object", "list", "text", "nothing"],
    )
    async def test_a_body_is_sent_in_its_form(
        self, bench: Bench, site: Site, body: Any, kind: bytes, sent: bytes
    ) -> None:
        site.answers["/a"] = page("ok", status="201 Created")
        assert "201 Created" in await bench.text("http_request", method="POST", url=f"{site.url}/a", body=body)
        head, _, content = site.requests[0].partition(b"\r\n\r\n")
        assert head.startswith(b"POST /a HTTP/1.1")
        assert content == sent
        assert (b"content-type: " + kind in head.lower()) is bool(kind)

    async def test_a_file_is_saved_unchanged(self, bench: Bench, site: Site) -> None:
        site.answers["/a"] = page(b"\x89PNG\0", kind="image/png")
        result = await bench("http_download", url=f"{site.url}/a", path="图/a.png")
        assert result.content == "图/a.png written: 5 bytes, image/png"
        assert (bench.root / "图/a.png").read_bytes() == b"\x89PNG\0"

    async def test_a_failed_download_writes_nothing(self, bench: Bench, site: Site) -> None:
        bench.configure(http={"max_bytes": 10})
        site.answers["/a"] = page("x" * 11)
        assert (await bench("http_download", url=f"{site.url}/none", path="a")).error
        with pytest.raises(ToolError, match="more than 10 bytes; nothing was saved"):
            await bench("http_download", url=f"{site.url}/a", path="a")
        assert not (bench.root / "a").exists()

    async def test_a_file_is_saved_nowhere_but_in_the_workspace(self, bench: Bench, site: Site) -> None:
        site.answers["/a"] = page("x")
        for path in ("../a", "/tmp/a", "b/../../a", ""):
            with pytest.raises(ToolError):
                await bench("http_download", url=f"{site.url}/a", path=path)
        assert not list(bench.root.parent.glob("a"))

    def test_what_only_reads_carries_nothing_but_its_url(self, bench: Bench) -> None:
        for name in ("http_get", "search_extract"):
            assert set(bench.tools[name].parameters["properties"]) <= {"url", "method"}


class TestRedirects:
    async def test_a_redirect_is_followed_and_said(self, bench: Bench, site: Site) -> None:
        site.answers |= {"/a": moved("b"), "/b": page("here")}
        assert await bench.text("http_get", url=f"{site.url}/a") == (
            f"200 OK from {site.url}/b after 1 redirect(s)\n\nhere"
        )

    @pytest.mark.parametrize(
        "location",
        [
            "http://169.254.169.254/latest/meta-data",
            "http://127.0.0.1:1/",
            "http://[::ffff:127.0.0.1]/",
            "http://2130706433/",
            "http://0x7f.1/",
            "//localhost:1/",
            "http://user@127.0.0.1/",
            "file:///etc/passwd",
            "gopher://127.0.0.1:6379/_FLUSHALL",
        ],
    )
    async def test_a_redirect_inward_is_refused(self, bench: Bench, site: Site, location: str) -> None:
        """B52: each hop is checked, in whatever form it is written."""
        site.answers["/a"] = moved(location)
        with pytest.raises(ToolError, match=r"refused|has the scheme|has a user name"):
            await bench("http_get", url=f"{site.url}/a")
        assert len(site.requests) == 1

    async def test_a_circle_ends(self, bench: Bench, site: Site) -> None:
        site.answers["/a"] = moved("/a")
        with pytest.raises(ToolError, match="the end of 10 redirects, and redirects again"):
            await bench("http_get", url=f"{site.url}/a")
        assert len(site.requests) == 11

    async def test_another_host_gets_none_of_the_headers(self, bench: Bench, site: Site) -> None:
        async with Site(b=page("there")) as other:
            bench.network = AddressGuard(("127.0.0.0/8",))
            site.answers["/a"] = moved(f"{other.url}/b")
            headers = {"X-Key": "s3cret", "Authorization": "s3cret"}
            await bench("http_request", method="GET", url=f"{site.url}/a", headers=headers)
            assert site.requests[0].count(b"s3cret") == 2
            assert b"s3cret" not in other.requests[0]

    async def test_data_is_not_carried_to_another_host(self, bench: Bench, site: Site) -> None:
        async with Site() as other:
            bench.network = AddressGuard(("127.0.0.0/8",))
            site.answers["/a"] = moved(f"{other.url}/b", "307 Temporary Redirect")
            text = await bench.text("http_request", method="POST", url=f"{site.url}/a", body="data")
            assert text == f"307 Temporary Redirect from {site.url}/a\nlocation: {other.url}/b"
            assert other.connections == 0

    async def test_data_is_carried_on_within_a_host(self, bench: Bench, site: Site) -> None:
        site.answers |= {"/a": moved("/b", "308 Permanent Redirect"), "/b": page("ok")}
        await bench("http_request", method="PUT", url=f"{site.url}/a", body="data")
        assert site.requests[1].startswith(b"PUT /b")
        assert site.requests[1].endswith(b"data")

    @pytest.mark.parametrize("location", ["http://[bad/", "http://a b/", ""])
    async def test_a_broken_location_is_a_failed_call(self, bench: Bench, site: Site, location: str) -> None:
        site.answers["/a"] = moved(location)
        with pytest.raises(ToolError):
            await bench("http_get", url=f"{site.url}/a")


class TestTheGuard:
    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "2130706433", "0x7f.1", "127.1", "0"])
    async def test_this_machine_is_refused_in_whatever_form(self, bench: Bench, site: Site, host: str) -> None:
        bench.network = AddressGuard()
        with pytest.raises(ToolError, match="refused"):
            await bench("http_get", url=f"http://{host}:{site.port}/")
        assert site.connections == 0

    async def test_a_name_that_changes_its_address_is_followed_nowhere(self, bench: Bench, site: Site) -> None:
        """B52: the address is looked up once for a connection, and the connection goes to what was checked."""
        answers = iter(["127.0.0.1"])

        def rebinding(host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), port))]

        site.answers["/a"] = page("reached")
        bench.network = AddressGuard((f"rebind.example:{site.port}",), rebinding)
        assert "reached" in await bench.text("http_get", url=f"http://rebind.example:{site.port}/a")
        assert f"host: rebind.example:{site.port}".encode() in site.requests[0].lower()

    async def test_a_name_that_leads_inward_is_refused(self, bench: Bench, site: Site) -> None:
        """B52: what a name leads to is checked, not how it is written."""
        bench.network = AddressGuard(lookup=lambda host, port, **_: [(0, 0, 0, "", ("127.0.0.1", port))])
        with pytest.raises(ToolError, match=r"leads to 127\.0\.0\.1, which is a loopback address"):
            await bench("http_get", url=f"http://inward.example:{site.port}/")
        assert site.connections == 0

    async def test_a_loop_that_may_not_open_a_connection_is_lent_none(self, bench: Bench, site: Site) -> None:
        site.answers["/a"] = page("x")
        await bench("http_get", url=f"{site.url}/a")
        bench.network = AddressGuard()
        with pytest.raises(ToolError, match="refused"):
            await bench("http_get", url=f"{site.url}/a")

    async def test_a_proxy_of_the_environment_is_not_asked(
        self, bench: Bench, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        site.answers["/a"] = page("direct")
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        assert "direct" in await bench.text("http_get", url=f"{site.url}/a")

    async def test_an_address_that_does_not_answer_gives_way_to_the_next(self, bench: Bench, site: Site) -> None:
        def lookup(host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
            return [(0, 0, 0, "", (address, port)) for address in ("127.0.0.2", "127.0.0.1")]

        site.answers["/a"] = page("second")
        bench.network = AddressGuard(("two.example",), lookup)
        assert "second" in await bench.text("http_get", url=f"http://two.example:{site.port}/a")

    async def test_a_certificate_is_checked_and_asked_for_by_name(self, bench: Bench) -> None:
        asked: list[str | None] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.sni_callback = lambda connection, name, _: asked.append(name)
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        bench.network = AddressGuard(("named.example",), lambda host, port, **_: [(0, 0, 0, "", ("127.0.0.1", port))])
        async with server:
            with pytest.raises(ToolError, match=r"no answer from https://named\.example"):
                await bench("http_get", url=f"https://named.example:{port}/")
        assert asked == ["named.example"]


class TestHostileServers:
    @pytest.mark.parametrize("pack", [gzip.compress, zlib.compress], ids=["gzip", "deflate"])
    async def test_a_packed_answer_is_unpacked(self, bench: Bench, site: Site, pack: Any) -> None:
        coding = "gzip" if pack is gzip.compress else "deflate"
        site.answers["/a"] = page(pack("很长 ".encode() * 1000), headers={"Content-Encoding": coding})
        assert (await bench("http_get", url=f"{site.url}/a")).value == "很长 " * 1000

    async def test_a_bomb_is_unpacked_no_further_than_the_limit(self, bench: Bench, site: Site) -> None:
        bench.configure(http={"max_bytes": 1000})
        site.answers["/a"] = page(
            gzip.compress(bytes(50 * MB).replace(b"\0", b"x")), headers={"Content-Encoding": "gzip"}
        )
        result = await bench("http_get", url=f"{site.url}/a")
        assert "(only the first 1000 bytes were read)" in result.content
        assert result.value == "x" * 1000

    async def test_an_answer_without_end_is_read_to_the_limit(self, bench: Bench, site: Site) -> None:
        async def endless(writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()

        bench.configure(http={"max_bytes": MB})
        site.answers["/a"] = endless
        assert len(str((await bench("http_get", url=f"{site.url}/a")).value)) == MB

    @pytest.mark.parametrize(
        ("answer", "why"),
        [
            (page(b"not gzip", headers={"Content-Encoding": "gzip"}), "no answer from .*error"),
            (page(b"x", headers={"Content-Encoding": "br"}), "packed as 'br'"),
            (page(b"x", headers={"Content-Encoding": "gzip, gzip"}), "packed as 'gzip, gzip'"),
            (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000 + b"\r\n\r\n", "RemoteProtocolError"),
            (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "RemoteProtocolError"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort", "RemoteProtocolError|ReadTimeout"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "RemoteProtocolError"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "RemoteProtocolError"),
        ],
        ids=["no gzip", "brotli", "twice", "huge header", "ssh", "short", "negative", "chunks"],
    )
    async def test_an_answer_that_cannot_be_read_is_a_failed_call(
        self, bench: Bench, site: Site, answer: bytes, why: str
    ) -> None:
        async def send(writer: asyncio.StreamWriter) -> None:
            writer.write(answer)
            await writer.drain()

        site.answers["/a"] = send
        with pytest.raises(ToolError, match=why):
            await bench("http_get", url=f"{site.url}/a")

    async def test_a_flood_of_interim_answers_holds_up_nobody(self, bench: Bench, site: Site) -> None:
        async def flood(writer: asyncio.StreamWriter) -> None:
            while True:
                writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 1000)
                await writer.drain()

        site.answers |= {"/a": flood, "/b": page("other")}
        async with asyncio.TaskGroup() as group:
            call = group.create_task(bench("http_get", url=f"{site.url}/a"))
            for _ in range(3):
                assert "other" in await bench.text("http_get", url=f"{site.url}/b")
            call.cancel()

    async def test_nobody_there_is_a_failed_call(self, bench: Bench) -> None:
        bench.network = AddressGuard(("127.0.0.1",))
        with pytest.raises(ToolError, match=r"no answer from http://127\.0\.0\.1:1/: ConnectError"):
            await bench("http_get", url="http://127.0.0.1:1/")

    async def test_a_server_that_trickles_is_stopped_with_the_call(self, bench: Bench, site: Site) -> None:
        trickling = asyncio.Event()

        async def trickle(writer: asyncio.StreamWriter) -> None:
            for byte in b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000:
                writer.write(bytes([byte]))
                await writer.drain()
                trickling.set()
                await asyncio.sleep(0.001)

        site.answers["/a"] = trickle
        async with asyncio.TaskGroup() as group:
            call = group.create_task(bench("http_get", url=f"{site.url}/a"))
            await trickling.wait()
            call.cancel()
        site.answers["/a"] = page("next")
        assert "next" in await bench.text("http_get", url=f"{site.url}/a")


class TestBadArguments:
    @pytest.mark.parametrize(
        "headers",
        [
            {"X": "a\r\nHost: evil"},
            {"X": "a\nb"},
            {"X\r\nY": "a"},
            {"": "a"},
            {"X": "区"},
            {"Host": "internal"},
            {"content-length": "5"},
            {"Transfer-Encoding": "chunked"},
            {"Proxy-Authorization": "x"},
        ],
        ids=str,
    )
    async def test_a_header_that_would_break_the_request_is_refused(
        self, bench: Bench, site: Site, headers: dict[str, str]
    ) -> None:
        with pytest.raises(ToolError, match="header"):
            await bench("http_request", method="GET", url=f"{site.url}/a", headers=headers)
        assert site.connections == 0

    @pytest.mark.parametrize(
        "url",
        ["", "example.com", "ftp://x/", "http://", "http://a b/", "http://x/\r\nX: y", "http://u:p@example.com/"],
    )
    async def test_a_url_that_is_none_is_refused(self, bench: Bench, url: str) -> None:
        with pytest.raises(ToolError, match="URL"):
            await bench("http_get", url=url)

    async def test_a_path_that_would_break_the_request_arrives_encoded(self, bench: Bench, site: Site) -> None:
        site.answers["/%E5%8C%BA"] = page("ok")
        assert "ok" in await bench.text("http_get", url=f"{site.url}/区")
