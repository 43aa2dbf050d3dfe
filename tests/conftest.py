import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.command import Ori, command, enter_project

# How long an example takes hangs on the machine: no test of properties fails for it.
settings.register_profile("searching", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("searching"), derandomize=True, database=None)
# What lands is judged by the same examples each time; elsewhere new ones are looked for.
settings.load_profile("repeatable" if os.environ.get("CI") else "searching")


@pytest.fixture(autouse=True, scope="session")
def _state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what runs without a project leave behind out of the user's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of the module's SCENARIOS and TOOLS, which need no model, as the current directory."""
    module = request.module
    recordings = getattr(module, "RECORDINGS", {})
    return enter_project(tmp_path / "my 项目", monkeypatch, module.SCENARIOS, module.TOOLS, recordings)


@pytest.fixture
def ori(project: Path, capsys: pytest.CaptureFixture[str]) -> Ori:
    return command(capsys)
