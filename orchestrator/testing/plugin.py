"""A pytest fixture that asks a recorded run again, for `pytest_plugins` in the project's top `conftest.py`."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import pytest

from orchestrator.errors import ConfigError, nearest
from orchestrator.eventloops import refuse_to_block
from orchestrator.events import Event
from orchestrator.failure import FailureKind
from orchestrator.messages import Json
from orchestrator.results import RunResult


@dataclass(frozen=True, slots=True)
class Replayed:
    """A run that was asked again."""

    result: RunResult
    events: Sequence[Event]
    workspace: Path
    """The folder it worked in."""


class Replay(Protocol):
    """Asks a recorded run again."""

    def __call__(
        self,
        file: str | Path,
        *,
        tools: Literal["real", "recorded"] = "real",
        deps: Any = None,
        params: Mapping[str, Json] | None = None,
    ) -> Replayed:
        """Replay a recording, relative to the project.

        Args:
            file: The recording.
            tools: Whether tools run, or what came of them is as it was recorded.
            deps: What tools get as `ctx.deps`.
            params: Over those of the recording.

        Raises:
            RuntimeError: The test is async.
        """


@pytest.fixture
def replay(request: pytest.FixtureRequest, tmp_path: Path) -> Replay:
    """Return what replays a recording of the project at pytest's root folder: `replay("file.jsonl")`.

    Models answer from the recording; tools are real, or with `tools="recorded"` recorded, too. Where the run goes
    another way than recorded, the test fails and says where. In an async test:
    `await asyncio.to_thread(replay, "file.jsonl")`.
    """

    def replayed(
        file: str | Path,
        *,
        tools: Literal["real", "recorded"] = "real",
        deps: Any = None,
        params: Mapping[str, Json] | None = None,
    ) -> Replayed:
        refuse_to_block(f"await asyncio.to_thread(replay, {str(file)!r})")
        if tools not in (allowed := ("real", "recorded")):
            raise ConfigError(f"tools is {tools!r}{nearest(tools, allowed)}")
        workspace = Path(tempfile.mkdtemp(prefix="replay-", dir=tmp_path))

        async def work() -> Replayed:
            from orchestrator.run import Orchestrator

            project = request.config.rootpath
            async with Orchestrator.from_project(project, journal="memory", deps=deps) as orchestrator:
                handle = orchestrator.start_replay(file, tools=tools == "recorded", params=params, workspace=workspace)
                async with handle:
                    result = await handle.result()
                events = await orchestrator.journal.events(result.run_id)
            if result.failure and result.failure.kind is FailureKind.replay_miss:
                pytest.fail(result.failure.message, pytrace=False)
            return Replayed(result, events, workspace)

        return asyncio.run(work())

    return replayed
