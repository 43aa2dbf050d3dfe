"""A scripted server in a process of its own, so that it takes no time and no memory from what is measured."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from orchestrator.testing import Replies, ScriptedServer


@contextmanager
def serving(script: Replies) -> Iterator[str]:
    """Give the base URL of a server; its script is a function at the top of its module."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(script, theirs))
    process.start()
    try:
        yield ours.recv()
    finally:
        ours.close()
        process.join()


def _serve(script: Replies, pipe: Connection) -> None:
    async def main() -> None:
        async with ScriptedServer(script) as server:
            pipe.send(server.base_url)
            closed = asyncio.Event()
            asyncio.get_running_loop().add_reader(pipe.fileno(), closed.set)
            await closed.wait()

    asyncio.run(main())
