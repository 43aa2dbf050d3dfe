"""Commands of this machine, run in a session of their own and ended with all that they started."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.sandbox.output import Output

_WARDEN = Path(__file__).with_name("warden.py")
_ENDING = 5.0
"""Seconds in which a warden ends what it watches over."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What came of a command."""

    output: str
    """stdout and stderr as they came; the middle of much is left out."""
    code: int | None
    """None: its time was up."""


async def run_command(
    command: Sequence[str], *, folder: Path, environment: Mapping[str, str], seconds: float, kept: int
) -> Ended:
    """Run a command without input and without a terminal; nothing of it is left afterwards, however this ends.

    Args:
        command: Program and arguments.
        folder: Where it begins.
        environment: All that it sees of one.
        seconds: After which it is killed.
        kept: Bytes of output that are kept.
    """
    warden = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(_WARDEN), *command),
        cwd=folder,
        env=dict(environment),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    output = Output(kept)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await _drain(warden, output)
                return Ended(output.text(), await warden.wait())
        await _end(warden, output)
        return Ended(output.text(), None)
    finally:
        await _end(warden, output)


async def _drain(warden: asyncio.subprocess.Process, output: Output) -> None:
    assert warden.stdout is not None
    while data := await warden.stdout.read(65536):
        output.add(data)


async def _end(warden: asyncio.subprocess.Process, output: Output) -> None:
    """Let the warden end everything; where it cannot, end its group."""
    assert warden.stdin is not None
    warden.stdin.close()
    for _ in range(2):
        with suppress(TimeoutError):
            async with asyncio.timeout(_ENDING):
                await _drain(warden, output)
                await warden.wait()
        if sys.platform == "linux" and warden.returncode is not None and warden.returncode >= 0:
            break
        with suppress(ProcessLookupError):
            os.killpg(warden.pid, signal.SIGKILL)
    warden._transport.close()  # type: ignore[attr-defined]  # else a pipe that an escaped process holds stays open
