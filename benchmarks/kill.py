"""kill -9 at 200 random points over the shipped scenarios and a DAG of twelve subtasks: what is made twice or lost?

Bounds: no finished call is made again, no more is repeated than was under way, each run goes on to the end that it
would have had. Counted on the model's server and in a file that the tools write; see tests/killing.py.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from orchestrator.testing import ScriptedServer
from tests.killing import KINDS, Killer, Server, Verdict

POINTS = 200


async def main(points: int) -> int:
    with tempfile.TemporaryDirectory(prefix="ori-kill-") as folder:
        server = Server(Path(folder))
        async with ScriptedServer(server) as serving:
            killer = Killer(server, serving.base_url, seed=points)
            for what in KINDS:
                await killer.measure(what)
            verdicts: list[Verdict] = []
            number = 0
            while sum(verdict.kills for verdict in verdicts) < points:
                verdicts.append(await killer.kill(KINDS[number % len(KINDS)], edited=number % 2 == 1))
                number += 1
                for fault in verdicts[-1].faults:
                    print(f"{verdicts[-1].what}: {fault}")
    kills: Counter[str] = Counter()
    for verdict in verdicts:
        kills[verdict.what] += verdict.kills
    wrong = sum(bool(verdict.faults) for verdict in verdicts)
    print(f"{len(verdicts)} runs, killed {kills.total()} times: {dict(kills)}")
    print(f"model calls made again, as they were under way: {sum(verdict.repeated for verdict in verdicts)}")
    print(f"runs with a fault: {wrong} (bound: 0)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else POINTS)))
