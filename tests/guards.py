"""Shows that tests can fail: takes out each guard of `guards.toml` in a copy and runs the test that holds it.

    python tests/guards.py [ID …]

A row passes when its test is green as the code stands and red without the guard, for a reason of its own: a test that
cannot be collected, a name that the change left undefined, or a time-out (unless the row says `timeout = true`) is not
one. The last line is `N passed, N failed`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv*", ".parts", ".*_cache", ".hypothesis", ".ori", "__pycache__", "dist", "build"
)
SECONDS = 20
"""A test without its guard may hang; this is long for any that does not."""
SKIPPED = "skipped: a part that its test needs is not on this machine"
BROKEN = ("NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError")
"""Errors of the change itself, not of what the guard kept away."""


@dataclass(frozen=True, slots=True)
class Guard:
    """One row: what users met, the code that keeps it away, and the test that shows so."""

    id: str
    symptom: str
    """What users met, in a line."""
    test: str
    """Node id of the test that turns red."""
    file: str
    """Where the guard stands."""
    guard: str
    """Source that stands there exactly once."""
    without: str
    """What replaces it."""
    timeout: bool = False
    """Without the guard the test hangs, and that is the symptom."""

    def taken_out(self, root: Path) -> str:
        """Return the file's text without the guard; raises `ValueError` when the row no longer fits the code."""
        source = (root / self.file).read_text("utf-8")
        if (count := source.count(self.guard)) != 1:
            raise ValueError(f"{self.file}: the guard stands there {count} times, not once:\n{self.guard}")
        changed = source.replace(self.guard, self.without)
        if self.file.endswith(".py"):
            compile(changed, self.file, "exec")
        return changed


def load(ids: Iterable[str] = ()) -> list[Guard]:
    """Return the rows with these ids, or all."""
    rows = tomllib.loads((ROOT / "tests/guards.toml").read_text("utf-8"))
    return [
        Guard(id, **row) for id in (ids or rows) for row in (rows[id] if isinstance(rows[id], list) else [rows[id]])
    ]


def pytest(copy: Path, *tests: str) -> tuple[int, str]:
    """Run tests on the code of a copy, which goes before an installed one."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-p",
        "no:cacheprovider",
        "-o",
        f"timeout={SECONDS}",
        "-rfE",
        "--tb=no",
    ]
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"}
    started = subprocess.Popen(
        [*command, *tests],
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    )
    with started as process:
        said, _ = process.communicate()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what a test without its guard left running
    return process.returncode, said


def fault_of(guard: Guard, code: int, output: str) -> str | None:
    """Say why a run without the guard does not show what the guard is for, or None."""
    if re.search(r"^1 skipped", output, re.MULTILINE):
        return SKIPPED
    if code == 0:
        return "the test stays green without the guard"
    reasons = re.findall(r"^FAILED .+?(?: - (.*))?$", output, re.MULTILINE)
    if code != 1 or not reasons or re.search(r"^ERROR ", output, re.MULTILINE):
        return f"the test did not run:\n{output[-2000:]}"
    if any(reason.startswith(BROKEN) for reason in reasons):
        return f"the change is broken, not the guard gone: {reasons[0]}"
    if "Timeout (>" in output and not guard.timeout:
        return f"the test hangs for {SECONDS} s; when that is the symptom, the row says timeout = true"
    return None


def check(guard: Guard, root: Path = ROOT) -> str | None:
    """Take out one guard in a copy of its own; return what is wrong with the row, or None."""
    with tempfile.TemporaryDirectory(prefix="guard-") as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(root, copy, ignore=NOT_COPIED)
        try:
            (copy / guard.file).write_text(guard.taken_out(root), "utf-8")
        except (OSError, SyntaxError, ValueError) as error:
            return str(error)
        return fault_of(guard, *pytest(copy, guard.test))


def main(ids: list[str]) -> int:
    """Check the rows, print a line for each and a summary; 1 when one fails."""
    guards = load(ids)
    code, output = pytest(ROOT, *{guard.test for guard in guards})
    if code:
        print(output, "Red although every guard is in place: nothing was taken out.", "0 passed, 1 failed", sep="\n")
        return 1
    failed = skipped = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for guard, fault in zip(guards, pool.map(check, guards), strict=True):
            skipped += fault == SKIPPED
            failed += fault not in (None, SKIPPED)
            verdict = "skipped" if fault == SKIPPED else "FAILED" if fault else "red without its guard"
            print(f"{guard.id}  {verdict}  {guard.test}", flush=True)
            if fault:
                print("     " + fault.replace("\n", "\n     "))
    left_out = f", {skipped} skipped" if skipped else ""
    print(f"{len(guards) - failed - skipped} passed, {failed} failed{left_out}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
