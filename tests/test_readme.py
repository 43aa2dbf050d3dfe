import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import orchestrator

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
FILES = dict(re.findall(r"^`([\w./]+)`\n\n```\w+\n(.*?)```", README, re.DOTALL | re.MULTILINE))
DOCS = sorted(set(re.findall(r"\]\((\w[\w./]+)\)", README)))
TEXTS = README + "".join(file.read_text("utf-8") for file in sorted((ROOT / "docs").glob("*.md")))
COMMANDS = sorted(set(re.findall(r"\bori ([a-z]+)", TEXTS)))
MAKE_TARGETS = sorted(set(re.findall(r"(?:^|`)make ([a-z]+)", README, re.MULTILINE)))


def ori(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command, environment = (
        [sys.executable, "-m", "orchestrator.serve.cli", *arguments],
        os.environ | {"PYTHONPATH": str(ROOT)},
    )
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_the_first_screen_says_how_to_run_and_how_to_test() -> None:
    first_screen = "\n".join(README.splitlines()[:25])
    assert "make run" in first_screen
    assert "make test" in first_screen


@pytest.mark.parametrize("block", PYTHON, ids=range(len(PYTHON)))
def test_a_python_example_compiles_and_imports_only_names_that_exist(block: str) -> None:
    tree = compile(block, "README.md", "exec", ast.PyCF_ONLY_AST)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "orchestrator"]
    for name in (alias.name for node in imports for alias in node.names):
        assert hasattr(orchestrator, name)


def test_the_example_without_files_makes_an_orchestrator() -> None:
    [example] = [block for block in PYTHON if "Role(" in block]
    names: dict[str, object] = {"__name__": "readme"}
    exec(example, names)
    assert isinstance(names["orchestrator"], orchestrator.Orchestrator)


def test_the_example_of_a_scripted_server_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [example] = [block for block in PYTHON if "ScriptedServer" in block]
    exec(example, {"__name__": "readme"})


def test_each_file_that_it_links_is_there_and_each_page_of_docs_is_linked() -> None:
    assert [name for name in DOCS if not (ROOT / name).is_file()] == []
    assert {f"docs/{file.name}" for file in (ROOT / "docs").glob("*.md")} <= set(DOCS)


def test_the_example_files_make_a_project_that_the_check_passes(tmp_path: Path) -> None:
    assert set(FILES) >= {"ori.yaml", "roles/translator.yaml", "prompts/translator.md", "tools/orders.py"}
    for name, text in (FILES | {"data/orders.csv": "region,amount\neast,3\n"}).items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    done = ori("check", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "translator" in ori("roles", cwd=tmp_path).stdout
    assert "orders_of" in ori("tools", cwd=tmp_path).stdout


def test_each_command_named_is_one_that_the_command_line_has() -> None:
    usage = ori("--help").stdout
    assert [command for command in COMMANDS if command not in usage] == []


def test_each_make_target_named_is_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert [name for name in MAKE_TARGETS if f"\n{name}:" not in makefile] == []
