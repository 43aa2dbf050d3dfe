from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Orchestrator, ToolContext, tool
from orchestrator.content.scenario import Scenario
from orchestrator.errors import ConfigError, ToolError
from orchestrator.sandbox.guard import AddressGuard, Target
from orchestrator.settings import ModelSettings, load_settings
from orchestrator.testing import ScriptedServer, call, text
from tests.loops import run

DNS = {
    "public.example": ["8.8.8.8", "8.8.4.4"],
    "inward.example": ["10.0.0.5"],
    "mixed.example": ["127.0.0.1", "8.8.8.8"],
    "scoped.example": ["fe80::1%lo"],
}


def lookup(host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
    """Resolve as `socket.getaddrinfo` does, from a table."""
    if host not in DNS:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in DNS[host]]


async def test_the_addresses_of_a_public_host_are_given_in_order() -> None:
    assert await AddressGuard(lookup=lookup).resolve("Public.Example", 443) == ["8.8.8.8", "8.8.4.4"]


async def test_a_name_that_leads_inward_is_refused_with_the_reason_and_the_remedy() -> None:
    with pytest.raises(ToolError) as caught:
        await AddressGuard(lookup=lookup).resolve("inward.example", 80)
    assert str(caught.value) == (
        "refused: inward.example leads to 10.0.0.5, which is a private address that tools may not reach; a person can "
        "allow it: add inward.example:80 (or the address, or its network) under network: allow: in ori.yaml"
    )


async def test_of_several_addresses_only_those_that_may_be_reached_are_given() -> None:
    assert await AddressGuard(lookup=lookup).resolve("mixed.example", 80) == ["8.8.8.8"]


@pytest.mark.parametrize("host", ["scoped.example", "localhost", "127.0.0.1", "[::1]", "::ffff:127.0.0.1", "0x7f.1"])
async def test_no_form_of_this_machine_passes(host: str) -> None:
    guard = AddressGuard() if host == "localhost" else AddressGuard(lookup=lookup)
    with pytest.raises(ToolError, match="refused"):
        await guard.resolve(host, 80)


async def test_an_unknown_host_is_said_to_be_unknown() -> None:
    with pytest.raises(ToolError, match=r"'nowhere\.example' cannot be found: .*; is it spelled right"):
        await AddressGuard(lookup=lookup).resolve("nowhere.example", 80)


@pytest.mark.parametrize("allow", ["inward.example", "inward.example:80", "10.0.0.5", "10.0.0.0/8"])
async def test_what_is_allowed_by_name_address_or_network_passes(allow: str) -> None:
    assert await AddressGuard((allow,), lookup).resolve("inward.example", 80) == ["10.0.0.5"]


async def test_a_guard_that_allows_more_leaves_the_first_one_as_it_was() -> None:
    first = AddressGuard(lookup=lookup)
    assert await first.also(["10.0.0.5"]).resolve("inward.example", 80) == ["10.0.0.5"]
    with pytest.raises(ToolError):
        await first.resolve("inward.example", 80)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://example.com", Target("http", "example.com", 80)),
        ("HTTPS://Example.com:8443/a?b#c", Target("https", "example.com", 8443)),
        ("https://[2606:4700::1111]/", Target("https", "2606:4700::1111", 443)),
        ("http://bücher.example/ü", Target("http", "xn--bcher-kva.example", 80)),
    ],
)
def test_a_plain_url_is_read(url: str, target: Target) -> None:
    assert AddressGuard().check_url(url) == target


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://example.com/", "has the scheme 'ftp'"),
        ("FiLe:///etc/passwd", "has the scheme 'file'"),
        ("gopher://127.0.0.1:6379/_x", "has the scheme"),
        ("javascript:alert(1)", "has the scheme"),
        ("//example.com/", "has the scheme ''"),
        ("example.com", "has the scheme ''"),
        ("http://", "has no host"),
        ("http:///path", "has no host"),
        ("http:example.com", "has no host"),
        ("http://user:pass@example.com/", "has a user name before its host"),
        ("http://example.com@127.0.0.1/", "has a user name before its host"),
        ("http://evil.example\\@127.0.0.1/", "a backslash"),
        ("http://example.com/ HTTP/1.1\r\nHost: x", "a space, a control character"),
        ("http://exa\tmple.com/", "a control character"),
        ("http://example.com:99999/", "is no URL"),
        ("http://example.com:x/", "is no URL"),
        ("http://[::1/", "is no URL"),
        ("http://2130706433/", "unusual way"),
        ("http://0x7f.1/", "unusual way"),
        ("http://[fe80::1%25eth0]/", "zone"),
        ("http://127.0.0.1:8080/", "127.0.0.1 is a loopback address"),
        ("http://[::1]:8080/", r"add \[::1\]:8080"),
        ("http://169.254.169.254/latest/meta-data", "metadata"),
        ("http://%6c%6fcalhost/", "is no host name"),
    ],
)
def test_a_url_that_is_not_plain_or_leads_inward_is_refused(url: str, why: str) -> None:
    with pytest.raises(ToolError, match=why):
        AddressGuard().check_url(url)


def test_a_wrong_entry_in_the_settings_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "ori.yaml").write_text("network:\n  allow:\n    - localhost\n    - http://x/\n    - 10.0.0.1/8\n")
    with pytest.raises(ConfigError) as caught:
        load_settings(tmp_path, {})
    assert "ori.yaml:4: network.allow[1]: 'http://x/' is a URL" in str(caught.value)
    assert "ori.yaml:5: network.allow[2]: 10.0.0.1/8 has host bits set" in str(caught.value)


def test_a_wrong_entry_in_a_scenario_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("goal: g\nnetwork: {allow: ['a b']}\n")
    with pytest.raises(ConfigError, match=r"a\.yaml:2: network\.allow\[0\]: 'a b' is no host name"):
        Scenario.load(tmp_path / "a.yaml")


@tool(effect="read")
async def reach(host: str, ctx: ToolContext) -> list[str]:
    """Resolve a host. Use it in tests. Returns its addresses."""
    return await ctx.network.resolve(host, 80)


async def test_a_role_may_allow_what_its_tools_reach() -> None:
    replies = [call("reach", {"host": "127.0.0.1"}), call("reach", {"host": "::1"}), text("done")]
    ran = await run(replies, reach, role={"network": {"allow": ["127.0.0.1"]}})
    assert ran.observations[0] == '["127.0.0.1"]'
    assert "[::1] is a loopback address" in ran.observations[1]


async def test_a_scenario_may_allow_what_its_runs_reach(tmp_path: Path) -> None:
    for name, allow in (("inward", "['127.0.0.1:80']"), ("public", "[]")):
        (tmp_path / f"{name}.yaml").write_text(f"goal: g\nnetwork: {{allow: {allow}}}\nplan:\n{PLAN}")
    reached = {}
    async with ScriptedServer(lambda _: text("done")) as server:
        model = ModelSettings(model="m", base_url=server.base_url)
        async with Orchestrator(models={"default": model}, tools=[reach]) as orchestrator:
            for name in ("inward", "public"):
                scenario = orchestrator.catalog.scenario(tmp_path / f"{name}.yaml")
                async with orchestrator.start_scenario(scenario, workspace=tmp_path / name) as handle:
                    reached[name] = (await handle.result()).outcomes["a"].value
    assert reached == {"inward": ["127.0.0.1"], "public": None}


PLAN = "  - {id: a, tool: reach, goal: g, args: {host: 127.0.0.1}, tolerant: true}\n"
