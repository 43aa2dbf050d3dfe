"""Our MCP client against servers that others wrote, and against the protocol's conformance suite."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ToolError
from tests.mcp_desk import Desk, desk
from tests.parts import NODE_MODULES, require

require("mcp servers")

NODE = str(NODE_MODULES / ".bin/node")
SERVERS = NODE_MODULES / "@modelcontextprotocol"
EVERYTHING = str(SERVERS / "server-everything/dist/index.js")
FILESYSTEM = str(SERVERS / "server-filesystem/dist/index.js")
CLIENT = Path(__file__).parent / "data/conformance_client.py"


@pytest.fixture
def port() -> int:
    """A port on loopback that is free."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        found: int = free.getsockname()[1]
        return found


@asynccontextmanager
async def everything_over_http(port: int) -> AsyncIterator[dict[str, Any]]:
    """Serve `everything` on loopback."""
    process = await asyncio.create_subprocess_exec(
        NODE, EVERYTHING, "streamableHttp", env={**os.environ, "PORT": str(port)}, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr
    try:
        while b"listening" not in (line := await process.stderr.readline()):
            assert line, "the server ended before it listened"
        yield {"url": f"http://127.0.0.1:{port}/mcp"}
    finally:
        process.kill()
        await process.wait()


async def use_everything(at: Desk) -> None:
    """Call what shows most of the protocol."""
    assert (await at.call("s/echo", '{"message": "你好"}')).content == "Echo: 你好"
    assert "5" in (await at.call("s/get-sum", '{"a": "2", "b": 3}')).content
    structured = await at.call("s/get-structured-content", '{"location": "Chicago"}')
    assert set(structured.value) == {"temperature", "conditions", "humidity"}
    image = await at.call("s/get-tiny-image")
    assert [shown.media_type for shown in image.images] == ["image/png"]
    assert (at.workspace.root / image.images[0].path).read_bytes().startswith(b"\x89PNG")
    links = (await at.call("s/get-resource-links", '{"count": 2}')).content
    assert len(re.findall(r"\]\(\w+://", links)) == 2
    await at.call("s/trigger-long-running-operation", '{"duration": 0.4, "steps": 2}')
    assert [text.split()[0] for text in at.progress] == ["1/2", "2/2"]


class TestEverything:
    async def test_over_stdio(self, tmp_path: Path) -> None:
        async with desk(tmp_path, s={"command": NODE, "args": [EVERYTHING]}) as at:
            await use_everything(at)

    async def test_over_http(self, port: int, tmp_path: Path) -> None:
        async with everything_over_http(port) as settings, desk(tmp_path, s=settings) as at:
            await use_everything(at)

    async def test_a_server_that_forgot_the_session_is_asked_anew(self, port: int, tmp_path: Path) -> None:
        async with desk(tmp_path, s={"url": f"http://127.0.0.1:{port}/mcp"}) as at:
            async with everything_over_http(port):
                echo = await at.tool("s/echo")
                assert (await at.call(echo, '{"message": "x"}')).content == "Echo: x"
            async with everything_over_http(port):
                with pytest.raises(ToolError, match="The next call connects anew"):
                    await at.call(echo, '{"message": "y"}')
                assert (await at.call(echo, '{"message": "z"}')).content == "Echo: z"


class TestFilesystem:
    async def test_it_reads_and_writes_where_it_may(self, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        settings = {"command": NODE, "args": [FILESYSTEM, "data"], "cwd": "."}
        async with desk(tmp_path, files=settings) as at:
            place = str((tmp_path / "data" / "报告.txt").resolve())
            offer = await at.servers.offer(["files/*"])
            effects = {name.partition("/")[2]: tool.effect for name, tool in offer.tools.items()}
            assert (effects["read_text_file"], effects["create_directory"]) == ("read", "idempotent")
            assert (effects["write_file"], effects["edit_file"]) == ("once", "once")
            await at.call("files/write_file", json.dumps({"path": place, "content": "华东 1250.5"}))
            assert (await at.call("files/read_text_file", json.dumps({"path": place}))).content == "华东 1250.5"
            outside = await at.call("files/read_text_file", json.dumps({"path": "/etc/passwd"}))
            assert outside.error
            assert "outside allowed directories" in outside.content


@pytest.mark.parametrize("scenario", ["initialize", "tools_call", "sse-retry"])
async def test_the_conformance_suite_accepts_our_client(scenario: str, tmp_path: Path) -> None:
    suite = SERVERS / "conformance/dist/index.js"
    process = await asyncio.create_subprocess_exec(
        *(NODE, str(suite), "client", "--command", f"{sys.executable} {CLIENT}", "--scenario", scenario),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    assert "OVERALL: PASSED" in said.decode()
