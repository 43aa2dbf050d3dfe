from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.errors import ToolError
from orchestrator.sandbox.proxy import Request, Response
from orchestrator.sandbox.site import WorkspaceSite
from orchestrator.threads import ThreadPool
from orchestrator.workspace import Workspace


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "我的 ws"
    (folder / "sub").mkdir(parents=True)
    (folder / "page.html").write_text("<p>你好", "utf-8")
    (folder / "sub" / "index.html").write_text("<p>sub")
    (folder / "data.csv").write_text("a,b\n1,2\n")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "link.html").symlink_to(tmp_path / "secret.txt")
    return folder


@pytest.fixture
def site(root: Path) -> WorkspaceSite:
    workspace = Workspace(root, root.parent / "home").for_loop("ori/a", lambda owner: False, lambda change: None)
    return WorkspaceSite(workspace, ThreadPool())


def host_of(url: str) -> str:
    return url.split("/")[2]


async def ask(site: WorkspaceSite, host: str, target: str, purpose: str | None = "document") -> Response:
    headers = {"sec-fetch-dest": purpose} if purpose else {}
    response = await site.serve(Request("GET", host, target, headers))
    assert response is not None
    return response


@pytest.mark.parametrize(
    "name", ["page.html", "/workspace/page.html", "file:///workspace/page.html", "file://localhost/workspace/page.html"]
)
async def test_a_document_is_found_by_its_path_or_its_file_url(site: WorkspaceSite, name: str) -> None:
    url = site.address(name)
    assert site.shown(f"see {url}") == "see file:///workspace/page.html"
    response = await ask(site, host_of(url), "/page.html")
    assert (response.status, response.body.decode()) == (200, "<p>你好")
    assert ("Content-Type", "text/html; charset=utf-8") in response.headers


async def test_the_path_on_disk_is_taken_too_and_never_shown(site: WorkspaceSite, root: Path) -> None:
    url = site.address(f"{root.as_uri()}/page.html?x=1#end")
    assert site.shown(url) == "file:///workspace/page.html?x=1#end"


@pytest.mark.parametrize(
    "name",
    [
        "file:///etc/passwd",
        "../secret.txt",
        "file:///workspace/../secret.txt",
        "file:///workspace/%2e%2e/secret.txt",
        "link.html",
        "file://host.example/workspace/page.html",
        "file:///workspace/page.html%00.txt",
        "",
    ],
)
def test_nothing_outside_the_workspace_has_an_address(site: WorkspaceSite, name: str) -> None:
    with pytest.raises(ToolError):
        site.address(name)


@pytest.mark.parametrize(
    "target", ["/../secret.txt", "/%2e%2e/secret.txt", "/..%2fsecret.txt", "/link.html", "//etc/passwd"]
)
@pytest.mark.parametrize("purpose", ["document", "iframe", "image"])
async def test_nothing_outside_the_workspace_is_served(site: WorkspaceSite, target: str, purpose: str) -> None:
    response = await ask(site, host_of(site.address("page.html")), target, purpose)
    assert (response.status, response.body == b"secret") == (404, False)


async def test_each_document_has_a_host_of_its_own_and_is_sent_there(site: WorkspaceSite) -> None:
    page, sub = site.address("page.html"), site.address("sub")
    assert host_of(page) != host_of(sub)
    response = await ask(site, host_of(page), "/sub/?x=1", "iframe")
    assert (response.status, response.headers) == (303, (("Location", f"{sub}?x=1"),))
    assert (await ask(site, host_of(sub), "/sub/index.html", "iframe")).body == b"<p>sub"


async def test_what_belongs_to_a_page_is_loaded_from_its_host(site: WorkspaceSite, root: Path) -> None:
    (root / "a.js").write_text("1")
    response = await ask(site, host_of(site.address("page.html")), "/a.js", "script")
    assert (response.status, response.body) == (200, b"1")


@pytest.mark.parametrize("purpose", ["empty", "serviceworker", None])
async def test_a_script_cannot_fetch_files(site: WorkspaceSite, purpose: str | None) -> None:
    assert (await ask(site, host_of(site.address("page.html")), "/data.csv", purpose)).status == 403


async def test_data_is_shown_as_text_and_what_is_no_text_is_not_guessed_at(site: WorkspaceSite, root: Path) -> None:
    assert ("Content-Type", "text/plain; charset=utf-8") in (
        await ask(site, host_of(site.address("data.csv")), "/data.csv")
    ).headers
    (root / "x.bin").write_bytes(b"\xff\xfe\x00")
    assert ("Content-Type", "application/octet-stream") in (
        await ask(site, host_of(site.address("x.bin")), "/x.bin")
    ).headers


async def test_other_hosts_are_not_its_own(site: WorkspaceSite) -> None:
    assert await site.serve(Request("GET", "workspace.localhost", "/page.html", {})) is None
    assert await site.serve(Request("GET", "page.example", "/page.html", {})) is None


async def test_a_pipe_in_the_workspace_holds_nobody_up(site: WorkspaceSite, root: Path) -> None:
    os.mkfifo(root / "pipe.html")
    assert (await ask(site, host_of(site.address("pipe.html")), "/pipe.html")).status == 404
