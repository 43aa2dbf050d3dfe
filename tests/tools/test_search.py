"""Against a server on loopback that answers as Tavily's API documents (help.tavily.com, "Errors Code"; its OpenAPI)."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator import Orchestrator
from orchestrator.errors import ToolError
from orchestrator.role import Role
from orchestrator.settings import ModelSettings, load_settings
from orchestrator.testing import ScriptedServer, call, text
from tests.sites import Site, page

if TYPE_CHECKING:
    from pathlib import Path

    from tests.tools.conftest import Bench

KEY = "my-own-key-without-a-shape"
FOUND = {
    "query": "x",
    "answer": None,
    "images": [],
    "results": [
        {
            "title": "销售  报告",
            "url": "https://a.example/1",
            "content": "one\n  two",
            "score": 0.9,
            "raw_content": None,
        },
        {"title": "", "url": "https://a.example/2", "content": None, "score": 0.1},
    ],
    "response_time": 1.2,
}


def answer(data: Any, status: str = "200 OK") -> bytes:
    return page(json.dumps(data), status=status, kind="application/json")


@pytest.fixture
async def tavily(bench: Bench) -> AsyncIterator[Site]:
    async with Site(search=answer(FOUND)) as site:
        bench.configure(search={"api_key": KEY, "base_url": site.url})
        yield site


async def test_a_search_gives_title_url_and_snippet(bench: Bench, tavily: Site) -> None:
    result = await bench("web_search", query="销售", domains=["a.example"], since="week")
    assert result.content == "1. 销售 报告\nhttps://a.example/1\none two\n\n2. \nhttps://a.example/2\n"
    assert result.value == [
        {"title": "销售 报告", "url": "https://a.example/1", "snippet": "one two"},
        {"title": "", "url": "https://a.example/2", "snippet": ""},
    ]
    assert result.untrusted == "a web search for '销售'"
    head, _, body = tavily.requests[0].partition(b"\r\n\r\n")
    assert f"authorization: bearer {KEY}".encode() in head.lower()
    assert json.loads(body) == {
        "query": "销售",
        "time_range": "week",
        "max_results": 5,
        "include_domains": ["a.example"],
    }


async def test_searches_share_a_connection(bench: Bench, tavily: Site) -> None:
    await bench("web_search", query="a")
    await bench("web_search", query="b")
    assert tavily.connections == 1


async def test_nothing_found_is_said(bench: Bench, tavily: Site) -> None:
    tavily.answers["/search"] = answer({"query": "x", "results": []})
    assert await bench.text("web_search", query="x") == "nothing was found for 'x'; try other words, or fewer"


async def test_a_page_is_read(bench: Bench, tavily: Site) -> None:
    tavily.answers["/extract"] = answer(
        {"results": [{"url": "https://a.example/1", "raw_content": "# 报告", "images": []}], "failed_results": []}
    )
    result = await bench("search_extract", url="https://a.example/1")
    assert (result.content, result.untrusted) == ("# 报告", "https://a.example/1")


async def test_a_page_that_cannot_be_read_is_a_failed_call(bench: Bench, tavily: Site) -> None:
    tavily.answers["/extract"] = answer(
        {"results": [], "failed_results": [{"url": "https://a.example/1", "error": "no"}]}
    )
    with pytest.raises(ToolError, match=r"https://a\.example/1 could not be read"):
        await bench("search_extract", url="https://a.example/1")


@pytest.mark.parametrize("url", ["", "a.example", "file:///etc/passwd", "http://127.0.0.1/"])
async def test_what_is_no_public_url_is_not_asked_for(bench: Bench, tavily: Site, url: str) -> None:
    with pytest.raises(ToolError, match=r"URL|refused"):
        await bench("search_extract", url=url)
    assert tavily.connections == 0


@pytest.mark.parametrize(
    ("status", "said", "why"),
    [
        ("400 Bad Request", "Invalid topic.", r"the request is wrong: Invalid topic\."),
        ("401 Unauthorized", "Unauthorized: missing or invalid API key.", "refuses the key; .*TAVILY_API_KEY"),
        ("403 Forbidden", "URL is not supported.", r"allows no more: URL is not supported\."),
        ("429 Too Many Requests", "Your request has been blocked", "too many requests at a time"),
        ("432 Plan Limit", "This request exceeds your plan's set usage limit.", "allows no more: This request exceeds"),
        ("433 Limit", "This request exceeds the pay-as-you-go limit.", "allows no more: This request exceeds the pay"),
        ("500 Internal Server Error", "Internal Server Error", "it answers 500; try again later"),
        ("502 Bad Gateway", "", "it answers 502"),
    ],
)
async def test_a_refusal_is_told_with_what_to_do(bench: Bench, tavily: Site, status: str, said: str, why: str) -> None:
    tavily.answers["/search"] = answer({"detail": {"error": said}}, status)
    with pytest.raises(ToolError, match=f"no search by Tavily: .*{why}") as caught:
        await bench("web_search", query="x")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("body", ["<html>", "[]", "null", '{"results": [1]}', '{"results": null}'])
async def test_an_answer_of_another_form_is_a_failed_call(bench: Bench, tavily: Site, body: str) -> None:
    tavily.answers["/search"] = page(body, kind="application/json")
    with pytest.raises(ToolError, match="its answer cannot be read"):
        await bench("web_search", query="x")


async def test_a_server_that_is_not_there_is_a_failed_call(bench: Bench) -> None:
    bench.configure(search={"api_key": KEY, "base_url": "http://127.0.0.1:1"})
    with pytest.raises(ToolError, match=r"http://127\.0\.0\.1:1 cannot be reached \(ConnectError\)"):
        await bench("web_search", query="x")


async def test_a_server_that_says_nothing_is_a_failed_call(
    bench: Bench, tavily: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silence(_: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    monkeypatch.setitem(bench.tools["web_search"].__wrapped__.__globals__, "SECONDS", 0.05)
    tavily.answers["/search"] = silence
    with pytest.raises(ToolError, match=r"no answer within 0\.05 s"):
        await bench("web_search", query="x")


class TestTheKey:
    def test_without_one_the_tools_are_missing_with_the_reason(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """R37."""
        monkeypatch.delenv("TAVILY_API_KEY", raising=False)
        for settings in ({}, {"search": {"api_key": "${TAVILY_API_KEY}"}}):
            bench.configure(**settings)
            assert bench.tools["web_search"].missing().startswith("no key: set TAVILY_API_KEY in the environment")
        monkeypatch.setitem(sys.modules, "tavily", None)
        install = "tavily not installed: pip install 'ori-orchestrator[search]'"
        assert bench.tools["web_search"].missing().endswith(f"app.tavily.com); {install}")
        bench.configure(search={"api_key": KEY})
        assert bench.tools["web_search"].missing() == install
        monkeypatch.delitem(sys.modules, "tavily")
        assert not bench.tools["web_search"].missing()

    def test_the_environment_can_hold_it(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TAVILY_API_KEY", KEY)
        bench.configure()
        assert not bench.tools["web_search"].missing()
        assert load_settings(None, {"TAVILY_API_KEY": KEY}).secrets() == [KEY]

    async def test_no_output_holds_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """B53: not even when the server gives it back."""
        monkeypatch.setenv("TAVILY_API_KEY", KEY)
        echo = {"results": [{"title": KEY, "url": f"https://a.example/?key={KEY}", "content": KEY}]}
        async with (
            Site(search=answer(echo)) as site,
            ScriptedServer([call("web_search", {"query": "x"}), text("done")]) as s,
        ):
            (tmp_path / "ori.yaml").write_text(f"tools: {{search: {{base_url: '{site.url}'}}}}")
            model = ModelSettings(model="m", base_url=s.base_url)
            roles = [Role(name="agent", description="a", prompt="p", tools=("web_search",))]
            async with Orchestrator(models={"default": model}, roles=roles, project=tmp_path) as orchestrator:
                result = await orchestrator.run_role("agent", "look")
                events = await orchestrator.journal.events(result.run_id)
            assert KEY.encode() in site.requests[0]
            assert "[redacted]" in json.dumps(s.requests[1])
            assert KEY not in json.dumps(s.requests) + repr(events) + repr(result)
        for file in (tmp_path / ".ori").rglob("*"):
            assert not file.is_file() or KEY.encode() not in file.read_bytes()
