from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from orchestrator.content.scenario import Scenario
from orchestrator.content.served import PORT, served, url_of
from orchestrator.errors import ConfigError, ToolError
from orchestrator.sandbox.guard import AddressGuard


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    site = tmp_path / "scenarios" / "site"
    site.mkdir(parents=True)
    (site / "index.html").write_text("<h1>你好</h1>", "utf-8")
    return site


async def fetch(guard: AddressGuard, path: str = "/") -> httpx.Response:
    address, *_ = await guard.resolve("shop.test", PORT)
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.get(f"http://{address}:{PORT}{path}")


async def test_a_folder_is_served_under_a_name_that_only_the_run_knows(folder: Path) -> None:
    guard = AddressGuard()
    async with served({"shop": folder}, guard) as knowing:
        assert url_of("shop") == "http://shop.test:8000"
        assert (await fetch(knowing)).text == "<h1>你好</h1>"
        missing = await fetch(knowing, "/no.html")
        assert (missing.status_code, "404 File not found" in missing.text) == (404, True)
        for other in ("shop.test", "127.0.0.1"):
            with pytest.raises(ToolError):
                await (guard if other == "shop.test" else knowing).resolve(other, PORT)
    with pytest.raises(httpx.ConnectError):
        await fetch(knowing)


async def test_runs_at_the_same_time_serve_the_same_address_each_their_own(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("other")
    async with served({"shop": folder}, AddressGuard()) as one, served({"shop": tmp_path}, AddressGuard()) as two:
        assert [(await fetch(guard)).text for guard in (one, two)] == ["<h1>你好</h1>", "other"]


def scenario(folder: Path, text: str) -> Scenario:
    file = folder.parent / "check.yaml"
    file.write_text(text)
    return Scenario.load(file)


def test_a_scenario_names_what_it_serves_by_a_parameter(folder: Path) -> None:
    loaded = scenario(folder, "goal: Check ${shop}.\nserve: {shop: site}\n").bind()
    assert loaded.goal == "Check http://shop.test:8000."
    assert loaded.served_folders() == {"shop": folder}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("goal: x\nserve: {shop: sight}\n", r"check\.yaml:2: the folder 'sight' is neither in"),
        ("goal: x\nserve: {Shop: site}\n", r"check\.yaml:.*'Shop' makes no host name"),
        ("goal: x ${shop}\n", r"unknown parameter \$\{shop\}"),
    ],
    ids=["no folder", "no host name", "not served"],
)
def test_what_cannot_be_served_is_told(folder: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scenario(folder, text).served_folders()
