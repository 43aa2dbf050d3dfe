"""Work that does not end by itself."""

from __future__ import annotations

import subprocess
import sys

CLINGS = """
import asyncio
from contextlib import suppress
from orchestrator import bounded

async def clings():
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

async def work():
    asyncio.get_running_loop().create_task(clings())
    return 42

print(bounded.run(work()))
"""


def test_an_event_loop_ends_though_a_task_swallows_its_cancellation() -> None:
    """`asyncio.run`, and with it `solve_sync`, would wait for ever for a tool that was left behind."""
    done = subprocess.run([sys.executable, "-c", CLINGS], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "42\n"
