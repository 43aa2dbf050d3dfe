import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.journal.log import RunLog
from orchestrator.journal.sqlite import SqliteJournal
from tests.sample_run import beginning, run

SLOW = (
    "aiohttp docker docstring_parser duckdb jsonschema mcp openai opentelemetry playwright python_calamine rich "
    "ruamel structlog tavily tenacity"
)
"""Libraries that load on first use only."""

DRAWN = tuple(f"orchestrator.serve.{name}" for name in ("terminal", "tree", "layout"))
"""Made of rich; the command loads them when it draws."""
EVERY_MODULE = f"""
import importlib, orchestrator, pkgutil
for module in pkgutil.walk_packages(orchestrator.__path__, "orchestrator."):
    if module.name not in {DRAWN!r}:
        importlib.import_module(module.name)
"""
COMMAND = """
from orchestrator.serve.cli import main
sys.exit(main({!r}))
"""
ENGINE = f"{SLOW.replace(' ruamel', '')} orchestrator.codec orchestrator.events orchestrator.settings pydantic"
"""And what only commands need that run something or read events."""


def loaded_by(code: str, among: str = SLOW, cwd: Path | None = None) -> set[str]:
    """Return which of the slow libraries a fresh interpreter has loaded when the code has ended."""
    report = f"lambda: print('loaded:', *sys.modules.keys() & {among!r}.split(), file=sys.stderr)"
    program = f"import atexit, sys\natexit.register({report})\n{code}"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=cwd, env=env
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.rpartition("loaded:")[2].split())


def test_the_measure_sees_a_slow_library() -> None:
    assert loaded_by("import tenacity, ruamel.yaml") == {"tenacity", "ruamel"}


def test_no_public_name_loads_a_slow_library() -> None:
    assert loaded_by("from orchestrator import *") == set()


def test_no_module_loads_a_slow_library_when_it_is_imported() -> None:
    assert loaded_by(EVERY_MODULE) == set()


def test_the_command_tells_its_usage_without_a_slow_library() -> None:
    assert loaded_by(COMMAND.format(["--help"])) == set()


@pytest.mark.parametrize("more", [[], ["--json"], ["--by", "user"]], ids=["table", "json", "sums"])
async def test_the_list_of_runs_is_read_without_events_models_and_drawings(tmp_path: Path, more: list[str]) -> None:
    (tmp_path / "ori.yaml").write_text("limits: {tokens: 500000}\njournal: sqlite\n")
    journal = SqliteJournal(tmp_path / ".ori" / "runs.db")
    for name, events in (("ended", run()), ("interrupted", beginning())):
        log = RunLog(name, journal)
        for event in events:
            log.add(event)
    await journal.aclose()
    assert loaded_by(COMMAND.format(["runs", *more]), ENGINE, tmp_path) == set()
