"""A pytest fixture that asks a recorded run again, for `pytest_plugins` in the project's top `conftest.py`."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest

from orchestrator.errors import ConfigError, nearest
from orchestrator.events import Event
from orchestrator.failure import FailureKind
from orchestrator.results import RunResult


@dataclass(frozen=True, slots=True)
class Replayed:
    """A run that was asked again."""

    result: RunResult
    events: Sequence[Event]
    workspace: Path
    """The folder it worked in."""


Replay: TypeAlias = Callable[..., Replayed]


@pytest.fixture
def replay(request: pytest.FixtureRequest, tmp_path: Path) -> Replay:
    """Return what replays a recording of the project at pytest's root folder: `replay("file.jsonl")`.

    Models answer from the recording; tools are real, or with `tools="recorded"` recorded, too. `params` are over those
    of the recording, and `deps` are what tools get. Where the run goes another way than recorded, the test fails and
    says where. In an async test: `await asyncio.to_thread(replay, "file.jsonl")`.
    """

    def replayed(
        file: str | Path, *, tools: Literal["real", "recorded"] = "real", deps: Any = None, **options: Any
    ) -> Replayed:
        if tools not in (allowed := ("real", "recorded")):
            raise ConfigError(f"tools is {tools!r}{nearest(tools, allowed)}")
        workspace = Path(tempfile.mkdtemp(prefix="replay-", dir=tmp_path))
        return asyncio.run(
            _replay(request.config.rootpath, file, deps, workspace, tools=tools == "recorded", **options)
        )

    return replayed


async def _replay(project: Path, file: str | Path, deps: Any, workspace: Path, **options: Any) -> Replayed:
    from orchestrator.run import Orchestrator

    async with Orchestrator.from_project(project, journal="memory", deps=deps) as orchestrator:
        async with orchestrator.start_replay(file, workspace=workspace, **options) as handle:
            result = await handle.result()
        events = await orchestrator.journal.events(result.run_id)
    if result.failure and result.failure.kind is FailureKind.replay_miss:
        pytest.fail(result.failure.message, pytrace=False)
    return Replayed(result, events, workspace)
