"""MCP over HTTP, against a server made with the SDK, which speaks the protocol's newest version."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Orchestrator
from orchestrator.errors import ToolError
from orchestrator.testing import ScriptedServer, call, text
from tests.mcp_desk import desk

SECRET = "correct-horse-1"


def made() -> Any:
    """Return a server of three tools."""
    from mcp.server.mcpserver import Context, MCPServer

    server = MCPServer("weather")

    @server.tool()
    async def who(ctx: Context) -> str:
        """Say who calls."""
        request = ctx.request_context.request
        return str(request.headers.get("authorization")) if request else "nobody"

    @server.tool()
    async def change(ctx: Context) -> str:
        """Change the other tool."""
        server.remove_tool("forecast")
        server.add_tool(lambda city, day: f"{city} {day}", "forecast", description="Tells the weather of a day.")
        await ctx.notify_tools_changed()
        return "changed"

    @server.tool()
    async def forecast(city: str) -> str:
        """Tell the weather."""
        return f"sunny in {city}"

    return server


@asynccontextmanager
async def serving(app: Any, port: int = 0) -> AsyncIterator[str]:
    """Serve an ASGI application on loopback; yields its address."""
    import uvicorn

    with socket.create_server(("127.0.0.1", port)) as bound:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve([bound]))
            try:
                yield f"http://127.0.0.1:{bound.getsockname()[1]}/mcp"
            finally:
                server.should_exit = True


async def test_its_tools_are_called_and_a_changed_one_is_not(tmp_path: Path) -> None:
    async with serving(made().streamable_http_app()) as url, desk(tmp_path, weather={"url": url}) as at:
        assert "weather" in await at.servers.about("weather")
        forecast = await at.tool("weather/forecast")
        assert (await at.call(forecast, '{"city": "北京"}')).content == "sunny in 北京"
        await at.call("weather/change")
        async with asyncio.timeout(5):  # the change is told on a stream of its own
            while True:
                try:
                    await at.call(forecast, '{"city": "北京"}')
                except ToolError as error:
                    assert "its server has just changed it" in str(error)
                    break


async def test_a_server_that_comes_back_is_used_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with desk(tmp_path, weather={"url": f"http://127.0.0.1:{port}/mcp"}) as at:
        assert "All connection attempts failed" in await at.missing("weather/forecast")
        async with serving(made().streamable_http_app(), port):
            forecast = await at.tool("weather/forecast")
            assert (await at.call(forecast, '{"city": "x"}')).content == "sunny in x"
        with pytest.raises(ToolError, match="weather/forecast"):
            await at.call(forecast, '{"city": "x"}')
        async with serving(made().streamable_http_app(), port):
            assert (await at.call(forecast, '{"city": "y"}')).content == "sunny in y"


async def test_a_refusal_says_how_the_server_refused(tmp_path: Path) -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    async with serving(refuse) as url, desk(tmp_path, weather={"url": url}) as at:
        assert "HTTP 401" in await at.missing("weather/forecast")


async def test_a_header_is_sent_and_shown_nowhere(tmp_path: Path) -> None:
    async with (
        serving(made().streamable_http_app()) as url,
        ScriptedServer([call("weather__who", {}), text("ok")]) as llm,
    ):
        settings = {"url": url, "headers": {"Authorization": f"Bearer {SECRET}"}}
        (tmp_path / "ori.yaml").write_text(json.dumps({"mcp": {"weather": settings}}))
        for folder in ("roles", "prompts"):
            (tmp_path / folder).mkdir()
        (tmp_path / "roles/clerk.yaml").write_text('description: Asks.\ntools: ["weather/who"]\n')
        (tmp_path / "prompts/clerk.md").write_text("You are a clerk.")
        async with Orchestrator(project=tmp_path, model="m", base_url=llm.base_url, api_key="k") as orchestrator:
            result = await orchestrator.run_role("clerk", "who are you?")
        assert result.status == "done"
    seen = json.dumps(llm.requests[-1]["messages"])
    assert "[redacted]" in seen
    stored = b"".join(file.read_bytes() for file in (tmp_path / ".ori").rglob("*") if file.is_file())
    assert SECRET not in seen
    assert SECRET.encode() not in stored
