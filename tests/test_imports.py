import subprocess
import sys

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
HELP = """
from orchestrator.serve.cli import main
sys.argv = ["ori", "--help"]
sys.exit(main())
"""


def loaded_by(code: str) -> set[str]:
    """Return which of the slow libraries a fresh interpreter has loaded when the code has ended."""
    report = f"lambda: print(*sys.modules.keys() & {SLOW!r}.split(), file=sys.stderr)"
    program = f"import atexit, sys\natexit.register({report})\n{code}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def test_the_measure_sees_a_slow_library() -> None:
    assert loaded_by("import tenacity, ruamel.yaml") == {"tenacity", "ruamel"}


def test_no_public_name_loads_a_slow_library() -> None:
    assert loaded_by("from orchestrator import *") == set()


def test_no_module_loads_a_slow_library_when_it_is_imported() -> None:
    assert loaded_by(EVERY_MODULE) == set()


def test_the_command_tells_its_usage_without_a_slow_library() -> None:
    assert loaded_by(HELP) == set()
