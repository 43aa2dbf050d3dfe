"""Calls every tool of the MCP server at a URL, through our client: what the conformance suite judges."""

import asyncio
import sys
from pathlib import Path

from orchestrator.mcp.servers import opened
from orchestrator.settings import Settings


async def main(url: str) -> None:
    settings = Settings.model_validate({"mcp": {"suite": {"url": url}}})
    async with opened(settings, Path()) as servers:
        for name in await servers.tools("suite"):
            connection = await servers._connection("suite")
            arguments = {"a": 5, "b": 3} if name == "suite/add_numbers" else {}

            async def ignore(progress: float, total: float | None, message: str | None) -> None: ...

            print(await connection.call(name.partition("/")[2], arguments, ignore))


asyncio.run(main(sys.argv[1]))
