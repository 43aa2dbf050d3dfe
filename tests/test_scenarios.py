"""The shipped scenarios, from their recordings, with real tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import Orchestrator
from orchestrator.content.checks import evaluate
from tests.parts import Part, require

ROOT = Path(__file__).parent.parent
NEEDS: dict[str, Part] = {"chart": "docker"}


@pytest.mark.parametrize("name", sorted(file.stem for file in (ROOT / "scenarios").glob("*.yaml")))
async def test_a_shipped_scenario_passes_offline(name: str, tmp_path: Path) -> None:
    if name in NEEDS:
        require(NEEDS[name])
    orchestrator = Orchestrator(project=tmp_path, journal="memory")
    scenario = orchestrator.catalog.scenario(name)
    async with orchestrator.start_scenario(scenario, replay=True) as handle:
        result = await handle.result()
    events = await orchestrator.journal.events(result.run_id)
    checks = evaluate(
        scenario.bind().checks, result, Path(result.workspace or "."), events, inputs=scenario.input_files()
    )
    assert [check for check in checks if not check.passed] == []
