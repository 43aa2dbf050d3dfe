"""How much slower code runs through the sandbox than by hand, as ratios to the engine's own command.

Both take turns, so that a busy machine slows them alike. The last figure is what 100 runs one after another left.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path

from orchestrator.sandbox.client import BUILT, RUN_LABEL, connect
from orchestrator.sandbox.container import DockerSettings
from orchestrator.sandbox.docker import DockerSandbox
from orchestrator.threads import ThreadPool

ROUNDS, FIRSTS, RUNS = 25, 8, 100
WARM, FIRST = 1.5, 2.0
"""Bounds: times the engine's own command."""
PRINT = "print(1)"
LIKE_OURS = [
    "--network=none", "--memory=512m", "--memory-swap=512m", "--cpus=1", "--pids-limit=256", "--read-only",
    "--cap-drop=ALL", "--security-opt=no-new-privileges", "--user=10001:60000", "--log-driver=none",
    "--tmpfs=/tmp:exec",
]  # fmt: skip


def by_hand(*command: str) -> float:
    began = time.perf_counter()
    done = subprocess.run(["docker", *command], check=True, capture_output=True, text=True)
    assert done.stdout == "1\n"
    return time.perf_counter() - began


async def timed(work: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


def opened(folder: Path, threads: ThreadPool) -> AbstractAsyncContextManager[DockerSandbox]:
    return DockerSandbox.open(
        DockerSettings(image=BUILT), run_id="bench", workspace=folder / "ws", home=folder / "home", threads=threads
    )


async def print_one(sandbox: DockerSandbox) -> None:
    ran = await sandbox.run("python", PRINT, sandbox.next_group())
    assert ran.output == "1\n", ran


async def warm(folder: Path, threads: ThreadPool) -> tuple[list[float], list[float]]:
    ours, theirs = [], []
    async with opened(folder, threads) as sandbox:
        await print_one(sandbox)
        for _ in range(ROUNDS):
            ours.append(await timed(lambda: print_one(sandbox)))
            theirs.append(by_hand("exec", "-u", "10001:60000", sandbox.container.id, "python3", "-c", PRINT))
    return ours, theirs


async def first(folder: Path, threads: ThreadPool) -> tuple[list[float], list[float]]:
    ours, theirs = [], []
    for _ in range(FIRSTS):
        theirs.append(by_hand("run", "--rm", *LIKE_OURS, BUILT, "python3", "-c", PRINT))

        async def open_and_print() -> None:
            async with opened(folder, threads) as sandbox:
                await print_one(sandbox)

        ours.append(await timed(open_and_print))
    return ours, theirs


async def left_behind(folder: Path, threads: ThreadPool) -> str:
    def there() -> tuple[int, int, int]:
        with closing(connect()) as api:
            containers = len(api.containers(all=True, filters={"label": f"{RUN_LABEL}=bench"}))
        return containers, len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    before = there()
    for _ in range(RUNS):
        async with opened(folder, threads) as sandbox:
            await print_one(sandbox)
    after = there()
    names = ("containers", "file descriptors", "threads")
    left = [f"{now - then} {name}" for name, then, now in zip(names, before, after, strict=True) if now > then]
    return ", ".join(left) or "nothing"


async def main() -> int:
    print(f"{'':34}{'by hand':>10}{'ours':>10}{'ratio':>8}{'bound':>8}")
    missed = False
    with tempfile.TemporaryDirectory(prefix="ori-bench-") as place:
        folder, threads = Path(place), ThreadPool()
        folder.chmod(0o755)
        (folder / "ws").mkdir()
        (folder / "ws").chmod(0o777)
        for name, measure, bound in (
            ("print(1), the container is warm", warm, WARM),
            ("print(1), first use and its end", first, FIRST),
        ):
            ours, theirs = map(statistics.median, await measure(folder, threads))
            missed |= ours > bound * theirs
            print(f"{name:34}{theirs * 1000:7.0f} ms{ours * 1000:7.0f} ms{ours / theirs:8.2f}{bound:8.1f}")
        left = await left_behind(folder, threads)
        print(f"{RUNS} runs in a row left {left}")
    return int(missed or left != "nothing")


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
