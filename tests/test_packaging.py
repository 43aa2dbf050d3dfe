import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.timeout(300)  # builds, and installs every dependency


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command without what the user's shell may have set for this package, and return what it prints."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "OPENAI", "ORI"))}
    done = subprocess.run(command, cwd=cwd, env=clean | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(folder: Path, *options: str) -> Path:
    """Build what the options say from the checkout; without any: the sdist, and the wheel from that."""
    run(sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", folder, ROOT, cwd=folder)
    return folder


def only(folder: Path, pattern: str) -> Path:
    [path] = folder.glob(pattern)
    return path


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel and what it asks for into an empty environment; return its `bin`."""
    home = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home)
    pip = (sys.executable, "-m", "pip", "--python", home / "bin/python", "install", "--quiet")
    run(*pip, "--constraint", ROOT / "constraints.txt", f"{only(dist, '*.whl')}[tables]", cwd=home)
    return home / "bin"


@pytest.fixture(scope="module")
def unpacked(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bare checkout: the sdist, unpacked and not installed."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(only(dist, "*.tar.gz")) as archive:
        archive.extractall(folder, filter="data")
    return only(folder, "*")


def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_holds_the_package_with_the_content_inside_it_and_nothing_else(dist: Path) -> None:
    content = names(only(dist, "*.whl"))
    assert {re.split("[-/]", name)[0] for name in content} == {"orchestrator", "ori_orchestrator"}
    for shipped in (
        "tools/files.py",
        "roles/ori.yaml",
        "prompts/ori.md",
        "scenarios/sales_report.yaml",
        "serve/templates/role.md",
    ):
        assert f"orchestrator/{shipped}" in content
    assert not [name for name in content if "__pycache__" in name or "/.ori/" in name]


def test_a_wheel_from_the_checkout_is_the_same_as_one_from_the_sdist(dist: Path, tmp_path: Path) -> None:
    assert names(only(build(tmp_path, "--wheel"), "*.whl")) == names(only(dist, "*.whl"))


def test_an_installation_adds_one_import_package(installed: Path, tmp_path: Path) -> None:
    mine = "[name for name, of in packages_distributions().items() if 'ori-orchestrator' in of]"
    code = f"from importlib.metadata import packages_distributions; print({mine})"
    assert run(installed / "python", "-c", code, cwd=tmp_path) == "['orchestrator']\n"


def test_the_installed_command_runs_a_scenario_without_a_model(installed: Path, tmp_path: Path) -> None:
    run(installed / "ori", "run", "sales_report", "--workspace", tmp_path / "work", cwd=tmp_path)
    assert "华东" in (tmp_path / "work/report.md").read_text("utf-8")


def test_a_bare_checkout_runs_a_scenario_without_a_model(unpacked: Path, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "orchestrator.serve.cli", "run", "sales_report", "--workspace", tmp_path / "work")
    run(*command, cwd=tmp_path, PYTHONPATH=str(unpacked))
    assert "华东" in (tmp_path / "work/report.md").read_text("utf-8")
