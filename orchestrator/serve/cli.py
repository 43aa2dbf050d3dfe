"""`ori`, the command: reads its arguments, runs one command, prints what that reports.

Exit status: 0 done, 1 failed, 2 wrong usage or configuration, 3 partial or needs review, 130 interrupted.
Everything heavy is imported by the commands themselves, so that `ori --help` is quick.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from textwrap import TextWrapper
from typing import TextIO

from orchestrator.errors import ConfigError, OriError
from orchestrator.serve.grammar import parser
from orchestrator.serve.report import FAILED, INTERRUPTED, WRONG_USE, Report


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    argv = sys.argv[1:] if argv is None else argv
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started the command
            setattr(sys, name, open(os.devnull, "r+", encoding="utf-8"))  # noqa: PTH123, SIM115 - as long as we live
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what a terminal cannot show must not end the run
    try:
        report = _report(argv)
        _write(_on_stdout(report, "--json" in argv), sys.stdout)
        _write(_noted(report.note), sys.stderr)
        return report.status
    finally:
        _write("", sys.stdout)  # what --help and --version printed


def _report(argv: Sequence[str]) -> Report:
    """Run the command; whatever it raises becomes a report, too."""
    try:
        args = parser().parse_args(argv, argparse.Namespace(project=None, json=False, verbose=False))
        args.project = args.project or find_project(Path.cwd())
        _read_env(args.project / ".env")
        module, _, work = args.work.partition(".")
        with redirect_stdout(sys.stderr):  # a tool that prints must not spoil the answer
            report: Report = getattr(import_module(f"orchestrator.serve.{module}"), work)(args)
        return report
    except KeyboardInterrupt as interrupt:
        return Report(data={"error": "interrupted"}, note=str(interrupt) or "ori: interrupted", status=INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - the program's edge
        return report_error(error, "--verbose" in argv)


def report_error(error: Exception, verbose: bool) -> Report:
    """Say what went wrong: plainly where somebody can act on it, as a bug where nobody expected it."""
    errors = _alone(error)
    if all(isinstance(one, OriError | OSError) for one in errors):  # the disk is nobody's bug
        status = WRONG_USE if all(isinstance(one, ConfigError) for one in errors) else FAILED
        note = "\n".join(f"ori: {one}" for one in errors)
    else:
        status = FAILED
        said = "; ".join(f"{type(one).__name__}: {one}" for one in errors)
        note = f"ori: a bug: {said} (--verbose shows where)"
    if verbose:
        import traceback

        note = "".join(traceback.format_exception(error)).rstrip()
    return Report(data={"error": "; ".join(map(str, errors))}, note=note, status=status)


def _alone(error: Exception) -> list[Exception]:
    """Take the errors of tasks out of the groups they came in."""
    if isinstance(error, ExceptionGroup):
        return [one for part in error.exceptions for one in _alone(part)]
    return [error]


def find_project(folder: Path) -> Path:
    """Return the nearest folder, from this one up, that holds `ori.yaml` or `roles/`; else this one."""
    nearest = (f for f in (folder, *folder.parents) if (f / "ori.yaml").is_file() or (f / "roles").is_dir())
    return next(nearest, folder)


def _read_env(file: Path) -> None:
    if file.is_file():
        from dotenv import load_dotenv

        load_dotenv(file, override=False)


def _on_stdout(report: Report, as_json: bool) -> str:
    if as_json:
        import orjson

        return orjson.dumps(report.data, default=str, option=orjson.OPT_INDENT_2).decode()
    if report.draw:
        from orchestrator.serve import plain

        return report.draw(plain.columns(sys.stdout), sys.stdout.isatty())
    return _printable(report.text) if sys.stdout.isatty() else report.text


def _noted(text: str) -> str:
    """Break long lines between words, as a terminal would break them within."""
    text = _printable(text)
    if not sys.stderr.isatty():
        return text
    from orchestrator.serve import plain

    width = plain.columns(sys.stderr)
    wrapper = TextWrapper(width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(wrapper.fill(line) if plain.cell_len(line) > width else line for line in text.split("\n"))


def _printable(text: str) -> str:
    """Take out control characters, such as the escape sequences that a model may write."""
    return "".join(c for c in text if c.isprintable() or c in "\n\t")


def _write(text: str, stream: TextIO) -> None:
    """Write a text with a line end. A reader that went away is no error."""
    try:
        print(text, end="\n" if text else "", file=stream, flush=True)
    except BrokenPipeError:
        # The interpreter flushes once more at exit; let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    sys.exit(main())
