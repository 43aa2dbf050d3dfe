"""How much slower a start is with this package, as ratios to `import asyncio, pydantic`.

The commands take turns, so that a busy machine slows them alike; each figure is a median of whole processes.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

ROUNDS = 15
BASE = "import asyncio, pydantic"
BOUNDS: dict[str, float | None] = {
    "import orchestrator": 1.5,
    "ori --help": 2.5,
    "from orchestrator import Orchestrator": None,  # what a program that runs something pays
}
HELP = "import sys; from orchestrator.serve.cli import main; sys.argv = ['ori', '--help']; sys.exit(main())"
HEAVY = {"openai", "structlog", "tenacity", "docker", "playwright", "tavily", "duckdb", "mcp", "opentelemetry"}


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def heavy_modules(code: str) -> set[str]:
    report = (
        f"import sys, atexit; atexit.register(lambda: print(*{HEAVY} & sys.modules.keys(), file=sys.stderr)); {code}"
    )
    return set(
        subprocess.run([sys.executable, "-c", report], check=True, text=True, capture_output=True).stderr.split()
    )


def main() -> int:
    commands = {BASE: BASE} | {name: HELP if name == "ori --help" else name for name in BOUNDS}
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(ROUNDS):
        for name, code in commands.items():
            times[name].append(seconds(code))
    median = {name: statistics.median(values) for name, values in times.items()}
    print(f"{'':40}{'median':>10}{'ratio':>8}{'bound':>8}  heavy libraries loaded")
    print(f"{BASE:40}{median[BASE] * 1000:7.0f} ms{1:8.2f}")
    over = False
    for name, bound in BOUNDS.items():
        ratio, loaded = median[name] / median[BASE], heavy_modules(commands[name])
        over = over or bool(loaded) or (bound is not None and ratio > bound)
        shown = f"{median[name] * 1000:7.0f} ms{ratio:8.2f}{bound or '':>8}"
        print(f"{name:40}{shown}  {', '.join(sorted(loaded)) or 'none'}")
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
