"""Pages that try to get out: to addresses that are not allowed, to files, to the machine's time and memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from orchestrator.errors import ToolError
from orchestrator.resources import Resources
from orchestrator.sandbox import downloads, tabs
from orchestrator.sandbox.chromium import BrowserSettings
from orchestrator.workspace import Workspace
from tests.browsing import Surfer, Web, html, serving
from tests.parts import require
from tests.sites import moved, page

require("chromium")
pytestmark = pytest.mark.asyncio(loop_scope="module")

HASTY = BrowserSettings(timeout=1.5)
METADATA = "http://169.254.169.254/latest/meta-data/"


class Trap(asyncio.DatagramProtocol):
    """A port of loopback, TCP and UDP, that nobody may reach."""

    def __init__(self) -> None:
        self.caught: list[str] = []
        self.port = 0

    def datagram_received(self, data: bytes, addr: object) -> None:
        self.caught.append(f"datagram {data[:40]!r}")

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.caught.append(f"connection {(await reader.read(200))[:80]!r}")
        writer.close()


@pytest_asyncio.fixture(loop_scope="module")
async def trap() -> AsyncIterator[Trap]:
    made = Trap()
    server = await asyncio.start_server(made.accept, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: made, local_addr=("127.0.0.1", made.port))
    yield made
    server.close()
    transport.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run() -> AsyncIterator[Resources]:
    async with Resources() as resources:
        yield resources


@pytest_asyncio.fixture(loop_scope="module")
async def evil() -> AsyncIterator[Web]:
    async with serving({}) as site:
        yield site


@pytest_asyncio.fixture(loop_scope="module")
async def surfer(run: Resources, evil: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Surfer]:
    monkeypatch.setattr(tabs, "LOADING", 1.0)
    monkeypatch.setattr(tabs, "ACTING", 1.0)
    (tmp_path / "secret.txt").write_text("TOP SECRET")
    made = Surfer(Workspace(tmp_path / "ws", tmp_path / "home"), run, allow=(evil.place,), settings=HASTY)
    made.put("other.html", "<p>OTHER DOCUMENT</p>")
    made.put("data.csv", "OTHER,DATA\n")
    async with made.loop:
        yield made


async def everything_shown(surfer: Surfer) -> str:
    """Return the text of all tabs and frames, after scripts have had their time."""
    await surfer("wait", seconds=1)
    shown = await surfer("tabs")
    for number in range(1, 4):
        if "Error" not in await surfer("tabs", show=number):
            shown += await surfer("read")
    return shown


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/",
        "http://localhost:{port}/",
        "http://[::1]:{port}/",
        "http://2130706433:{port}/",
        "http://0x7f.0.0.1:{port}/",
        "http://127.1:{port}/",
        "http://0.0.0.0:{port}/",
        "http://user@127.0.0.1:{port}/",
        "https://127.0.0.1:{port}/",
        METADATA,
        "http://192.168.0.1/",
        "file:///etc/passwd",
        "FILE:///etc/passwd",
        "file://localhost/etc/passwd",
        "file:///workspace/../../../etc/passwd",
        "view-source:http://127.0.0.1:{port}/",
        "chrome://version",
        "chrome://settings",
        "devtools://devtools/bundled/inspector.html",
        "about:blank",
        "javascript:document.write('ran')",
        "data:text/html,<h1>data</h1>",
        "blob:http://127.0.0.1/x",
        "ftp://127.0.0.1:{port}/",
        "ws://127.0.0.1:{port}/",
        "  http://127.0.0.1:{port}/",
        "http://127.0.0.1:{port}\\@example.com/",
        "/etc/passwd",
        "../secret.txt",
    ],
)
async def test_an_address_that_is_not_allowed_is_not_opened(surfer: Surfer, trap: Trap, url: str) -> None:
    with pytest.raises(ToolError) as error:
        await surfer.call("open", url=url.format(port=trap.port))
    assert str(error.value)
    assert trap.caught == []
    assert "no page is open here" in await surfer("read")


@pytest.mark.parametrize(
    "to", ["http://127.0.0.1:{port}/", "http://localhost:{port}/", METADATA, "file:///etc/passwd", "chrome://version"]
)
@pytest.mark.parametrize("way", ["redirect", "refresh", "script", "link", "new window", "frame", "object", "form"])
async def test_no_page_leads_to_what_is_not_allowed(surfer: Surfer, evil: Web, trap: Trap, to: str, way: str) -> None:
    to = to.format(port=trap.port)
    evil.answers["/"] = {
        "redirect": moved(to),
        "refresh": html(f"<meta http-equiv=refresh content='0; url={to}'>"),
        "script": html(f"<script>location = '{to}'</script>"),
        "link": html(f"<a id=a href='{to}'>x</a><script>a.click()</script>"),
        "new window": html(f"<script>window.open('{to}')</script>"),
        "frame": html(f"<iframe src='{to}'></iframe>"),
        "object": html(f"<object data='{to}' type=text/html></object><embed src='{to}'>"),
        "form": html(f"<form id=f action='{to}' method=post><input name=a></form><script>f.submit()</script>"),
    }[way]
    told = await surfer("open", url=evil.url) + await everything_shown(surfer)
    assert trap.caught == []
    assert "root:" not in told
    assert "Revision" not in told  # of chrome://version
    if way == "redirect" and to.startswith("http"):
        assert "was not opened: refused: " in told


async def test_no_script_connects_to_what_is_not_allowed(surfer: Surfer, evil: Web, trap: Trap) -> None:
    """Fetches, sockets, workers, streams, media, hints, beacons, and peer connections over TCP and UDP."""
    here, place = f"http://127.0.0.1:{trap.port}", f"127.0.0.1:{trap.port}"
    evil.answers["/worker.js"] = page(
        f"fetch('{here}').catch(() => 0); try {{ importScripts('{here}/a.js') }} catch {{}}", kind="text/javascript"
    )
    evil.answers["/"] = html(f"""<title>0</title>
        <link rel=dns-prefetch href={here}><link rel=preconnect href={here}><link rel=prefetch href={here}/p>
        <link rel=preload as=script href={here}/s><link rel=stylesheet href={here}/c><link rel=icon href={here}/i>
        <img src={here}/img><script src={here}/js></script><video src={here}/v autoplay></video>
        <a ping={here} href=#>p</a>
        <script>
        const quietly = work => {{ try {{ Promise.resolve(work()).catch(() => 0) }} catch {{}} }}
        quietly(() => fetch('{here}', {{mode: 'no-cors'}}))
        quietly(() => new WebSocket('ws://{place}'))
        quietly(() => new WebSocket('wss://{place}'))
        quietly(() => new EventSource('{here}'))
        quietly(() => navigator.sendBeacon('{here}', 'x'))
        quietly(() => new Worker('/worker.js'))
        quietly(() => new SharedWorker('/worker.js'))
        quietly(() => new WebTransport('https://{place}').ready)
        quietly(async () => {{
            const peer = new RTCPeerConnection({{iceServers: [
                {{urls: ['stun:{place}', 'turn:{place}?transport=tcp', 'turn:{place}'],
                  username: 'u', credential: 'c'}}]}})
            peer.createDataChannel('x')
            await peer.setLocalDescription(await peer.createOffer())
            const other = new RTCPeerConnection()
            await other.setRemoteDescription(peer.localDescription)
            await other.setLocalDescription(await other.createAnswer())
            await peer.setRemoteDescription(other.localDescription)
            for (const way of ['udp 2122260223 127.0.0.1 {trap.port} typ host',
                               'tcp 1518280447 127.0.0.1 {trap.port} typ host tcptype passive'])
                await peer.addIceCandidate({{sdpMid: '0', candidate: 'candidate:1 1 ' + way}})
        }})
        document.querySelector('a').click()
        setTimeout(() => document.body.append('all tried'), 500)
        </script>""")
    await surfer("open", url=evil.url)
    await surfer("wait", seconds=2.5)
    assert "all tried" in await surfer("read", form="text")
    assert trap.caught == []


async def test_no_service_worker_stays_behind(surfer: Surfer, evil: Web) -> None:
    evil.answers["/sw.js"] = page("self.onfetch = e => e.respondWith(new Response('HIJACKED'))", kind="text/javascript")
    evil.answers["/"] = html("""<script>navigator.serviceWorker.register('/sw.js').then(
        () => navigator.serviceWorker.ready).then(() => document.body.append('registered'))</script>""")
    await surfer("open", url=evil.url)
    await surfer("wait", seconds=0.5)
    assert "registered" not in await surfer("read")
    assert "HIJACKED" not in await surfer("open", url=f"{evil.url}/x")


async def test_a_page_of_the_workspace_sees_no_other_file(surfer: Surfer, evil: Web, tmp_path: Path) -> None:
    """As over `file://`: it shows what belongs to it, and can read neither another document nor the disk."""
    (surfer.workspace.root / "link.html").symlink_to(tmp_path / "secret.txt")
    surfer.put(
        "page.html",
        """<title>-</title><pre id=out></pre>
        <iframe src=other.html></iframe><iframe src=file:///etc/passwd></iframe><iframe src=/link.html></iframe>
        <iframe src=/../secret.txt></iframe><iframe src=/%2e%2e/secret.txt></iframe><script src=data.csv></script>
        <script>
        const say = text => out.append(text + '; ')
        onload = async () => {
            for (const name of ['data.csv', 'other.html', 'file:///etc/passwd', '/%2e%2e/secret.txt'])
                await fetch(name).then(async r => say(`${r.status} ${await r.text()}`), () => say('no'))
            try { say('frame ' + document.querySelector('iframe').contentDocument.body.innerText) } catch { say('no') }
            const opened = window.open('other.html')
            setTimeout(() => { try { say('window ' + opened.document.body.innerText) } catch { say('no') } }, 500)
        }</script>""",
    )
    await surfer("open", url="page.html")
    await surfer("wait", seconds=1)
    await surfer("tabs", show=1)
    told = await surfer("read", form="text")
    [by_scripts] = [line for line in told.splitlines() if line.startswith("403 scripts cannot fetch files")]
    assert "OTHER" not in by_scripts
    shown = await surfer("read")
    assert "OTHER DOCUMENT" in shown  # the frame itself is shown, as over file://
    assert "root:" not in shown
    assert "TOP SECRET" not in shown


async def test_a_stranger_finds_no_way_to_the_workspace(surfer: Surfer, evil: Web) -> None:
    evil.answers["/"] = html("""<iframe src=file:///workspace/other.html></iframe>
        <iframe src=http://workspace.localhost/other.html></iframe><iframe src=http://localhost/other.html></iframe>""")
    await surfer("open", url="other.html")
    await surfer("open", url=evil.url)
    assert "OTHER DOCUMENT" not in await everything_shown(surfer)


async def test_the_secret_host_of_a_document_is_told_to_nobody(surfer: Surfer, evil: Web) -> None:
    surfer.put("leak.html", f"<title>x</title><img src={evil.url}/image><script>document.write(location.href)</script>")
    told = await surfer("open", url="leak.html")
    assert ".localhost" not in told
    assert "file:///workspace/leak.html" in told
    assert not any(b"localhost" in request for request in evil.requests)


async def test_a_loop_of_dialogs_ends(surfer: Surfer, evil: Web) -> None:
    evil.answers["/"] = html("<h1>before</h1><script>for (let i = 0; ; i++) alert('again ' + i % 30)</script>")
    async with asyncio.timeout(20):
        told = await surfer("open", url=evil.url)
    told += await surfer("tabs")
    assert told.count("again") <= tabs.MAX_NOTES
    evil.answers["/"] = html("<h1>fine</h1>")
    assert "fine" in await surfer("open", url=evil.url)


async def test_a_page_that_will_not_be_left_is_left(surfer: Surfer, evil: Web) -> None:
    evil.answers["/"] = html("<button>x</button><script>onbeforeunload = event => event.preventDefault()</script>")
    evil.answers["/next"] = html("<h1>next</h1>")
    await surfer("open", url=evil.url)
    await surfer("click", ref=await surfer.ref("button"))
    told = await surfer("open", url=f"{evil.url}/next")
    assert "dialog (beforeunload); it was left all the same" in told
    assert 'heading "next"' in told


async def test_a_script_that_never_ends_is_given_up(surfer: Surfer, evil: Web) -> None:
    evil.answers["/"] = html("<button onclick='for (;;);'>x</button>")
    await surfer("open", url=evil.url)
    async with asyncio.timeout(15):
        told = await surfer("click", ref=await surfer.ref("button")) + await surfer("read") + await surfer("read")
        assert "Error: " in told
        assert "Status: 200" in await surfer("open", url=evil.url)


async def test_a_page_that_never_ends_is_shown_as_far_as_it_came(surfer: Surfer, evil: Web) -> None:
    async def drips(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<h1>begun</h1>")
        with contextlib.suppress(OSError):
            while True:
                writer.write(b"<p>more</p>")
                await writer.drain()
                await asyncio.sleep(0.01)

    evil.answers["/"] = drips
    told = await surfer("open", url=evil.url)
    assert "Note: the page is still loading; this is what there is" in told
    assert 'heading "begun"' in told


async def test_a_host_that_never_answers_is_a_timeout(surfer: Surfer, evil: Web) -> None:
    asked = asyncio.Event()

    async def never(writer: asyncio.StreamWriter) -> None:
        asked.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    evil.answers["/"] = never
    told = await surfer("open", url=evil.url)
    assert f"{evil.url} was not opened: it took more than 1.5 s" in told
    assert asked.is_set()


async def test_a_page_of_50_megabytes_costs_no_more_than_its_time(run: Resources, evil: Web, tmp_path: Path) -> None:
    evil.answers["/"] = html("<h1>huge</h1>" + ("<p>" + "0123456789" * 100 + "</p>") * 50_000)
    surfer = Surfer(
        Workspace(tmp_path / "ws", tmp_path / "home"), run, allow=(evil.place,), settings=BrowserSettings(timeout=5)
    )
    async with surfer.loop, asyncio.timeout(50):
        await surfer("open", url=evil.url)
        await surfer("read", form="text")
        evil.answers["/"] = html("<h1>small</h1>")
        assert "small" in await surfer("open", url=evil.url)


async def test_a_page_that_crashes_is_told_and_another_can_be_opened(surfer: Surfer, evil: Web) -> None:
    evil.answers["/"] = html("<h1>fine</h1>")
    await surfer("open", url=evil.url)
    opened: tabs.Tabs = await surfer.loop.get("tabs", lambda: pytest.fail("it is open"))
    crashed = asyncio.Event()
    opened.page.on("crash", lambda _: crashed.set())
    session = await opened.page.context.new_cdp_session(opened.page)
    async with asyncio.TaskGroup() as group:
        sent = group.create_task(session.send("Page.crash"))
        await crashed.wait()
        sent.cancel()
    assert "the page crashed and was closed; open it again" in await surfer("read")
    assert "fine" in await surfer("open", url=evil.url)


async def test_a_page_that_opens_tabs_without_end_gets_a_few(surfer: Surfer, evil: Web) -> None:
    evil.answers["/"] = html("<script>for (let i = 0; i < 40; i++) window.open('/tab?' + i)</script>")
    await surfer("open", url=evil.url)
    await surfer("wait", seconds=1)
    opened: tabs.Tabs = await surfer.loop.get("tabs", lambda: pytest.fail("it is open"))
    async with asyncio.timeout(20):
        while len(opened.all) > tabs.MAX_TABS:
            await surfer("wait", seconds=0.1)


async def test_a_download_stays_in_its_folder_whatever_its_name(surfer: Surfer, evil: Web, tmp_path: Path) -> None:
    evil.answers["/f"] = page(
        b"evil", kind="application/octet-stream", headers={"Content-Disposition": 'attachment; filename="../../x.txt"'}
    )
    told = await surfer("open", url=f"{evil.url}/f")
    assert "downloaded downloads/" in told
    assert [file.path for file in surfer.workspace.files() if file.path.startswith("downloads/")]
    assert not (tmp_path / "x.txt").exists()


async def test_a_huge_download_is_given_up(surfer: Surfer, evil: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "MAX_SIZE", 2_000_000)

    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n\r\n")
        with contextlib.suppress(OSError):
            while True:
                writer.write(bytes(100_000))
                await writer.drain()
                await asyncio.sleep(0.001)

    evil.answers["/huge.bin"] = endless
    async with asyncio.timeout(20):
        told = await surfer("open", url=f"{evil.url}/huge.bin")
    assert "huge.bin was not downloaded: it is larger than 2.0 MB" in told
    assert not (surfer.workspace.root / "downloads").exists()


async def test_what_a_download_may_take_is_bounded(surfer: Surfer, evil: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "SECONDS", 0.5)

    async def stalls(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n\r\n" + bytes(5000))
        await writer.drain()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    evil.answers["/slow.bin"] = stalls
    assert "slow.bin was not downloaded: it took more than 0.5 s" in await surfer("open", url=f"{evil.url}/slow.bin")
