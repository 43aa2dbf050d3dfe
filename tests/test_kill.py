"""kill -9 at any moment; see tests/killing.py. The long form is benchmarks/kill.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrator.testing import ScriptedServer
from tests.killing import DAG, KINDS, Death, Killer, Server

POINTS = 12
DEATHS: list[Death] = [
    ("before", "run.started"),
    ("after", "run.started"),
    ("after", "plan.added"),
    ("before", "tool.returned"),
    ("after", "subtask.ended"),
    ("before", "variable.set"),
    ("before", "run.ended"),
    ("after", "run.ended"),
]
"""The first and the last commit among them; with the random points it is killed twenty times."""


@pytest.fixture
async def killer(tmp_path: Path) -> AsyncIterator[Killer]:
    server = Server(tmp_path)
    async with ScriptedServer(server) as serving:
        yield Killer(server, serving.base_url, seed=1)


@pytest.mark.timeout(600)
async def test_a_run_that_is_killed_at_any_moment_goes_on_to_the_same_end(killer: Killer) -> None:
    """R73: no finished call is made again, and the end is the same, though roles are edited meanwhile."""
    for what in KINDS:
        await killer.measure(what)
    for number in range(POINTS):
        verdict = await killer.kill(KINDS[number % len(KINDS)], edited=number % 2 == 1)
        assert not verdict.faults, verdict


@pytest.mark.timeout(300)
async def test_a_run_that_dies_before_or_after_a_commit_goes_on_to_the_same_end(killer: Killer) -> None:
    await killer.measure(DAG)
    for death in DEATHS:
        verdict = await killer.kill(DAG, death)
        assert not verdict.faults and verdict.kills == 1, (death, verdict)
