"""`ori`, the command: reads its arguments, runs one command, prints what that reports.

Exit status: 0 done, 1 failed, 2 wrong usage or configuration, 3 partial or needs review, 130 interrupted.
Everything heavy is imported by the commands themselves, so that `ori --help` is quick.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn, TextIO

from orchestrator.errors import ConfigError, OriError, nearest
from orchestrator.serve.report import FAILED, INTERRUPTED, STDOUT, WRONG_USE, Report


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
        _write(_printable(report.note), sys.stderr)
        return report.status
    finally:
        _write("", sys.stdout)  # what --help and --version printed


def parser() -> argparse.ArgumentParser:
    """Return the grammar of the command."""
    common = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument("--project", metavar="DIR", type=Path, help="folder of the project (default: the nearest)")
    common.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")
    common.add_argument("--verbose", action="store_true", help="log each prompt and reply; show tracebacks")
    about_all = "A goal becomes a plan, workers run it in parallel, the answer comes back."
    top = _Parser(prog="ori", description=about_all, parents=[common])
    top.add_argument("--version", action=_Version)
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, work: str, about: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.", parents=[common])
        command.set_defaults(work=work)
        return command

    run = add("run", "running.run", "run a scenario; without a model, from its recording")
    run.add_argument("scenario", nargs="?", help="file or name; not needed with a plan file that has a goal")
    run.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="set a parameter of the scenario")
    run.add_argument("--plan", metavar="FILE", type=Path, help="run this plan, as `ori plan -o` writes it")
    source = run.add_mutually_exclusive_group()
    source.add_argument("--live", action="store_true", help="ask the configured model")
    source.add_argument(
        "--replay",
        nargs="?",
        const="model",
        metavar="all",
        help="take the model's replies from the recording; all: the results of tools, too",
    )
    run.add_argument("--workspace", metavar="DIR", type=Path, help="folder to work in (default: a new one)")

    solve = add("solve", "running.solve", "plan and run a goal")
    plan = add("plan", "running.plan", "show the plan of a goal, without running it")
    for command in (solve, plan):
        command.add_argument("goal")
        command.add_argument("--input", metavar="FILE", action="append", default=[], help="file or folder to work on")
    solve.add_argument("--session", metavar="NAME", help="go on from the earlier goals of a session")
    solve.add_argument("--user", metavar="NAME", help="whose memories are recalled and kept")
    solve.add_argument("--workspace", metavar="DIR", type=Path, help="folder to work in (default: a new one)")
    plan.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="write it as a file to edit, for `ori run --plan`; -: stdout"
    )

    test = add("test", "running.test", "run scenarios and hold their checks against them")
    test.add_argument("scenarios", nargs="*", help="folders, files or names (default: all)")
    test.add_argument("--live", action="store_true", help="ask the configured model, not the recordings")

    doctor = add("doctor", "doctor.doctor", "say what the model's server can do, and which settings suit it")
    doctor.add_argument("model", nargs="?", default="default", help="key of the model in ori.yaml (default: default)")
    doctor.add_argument("--full", action="store_true", help="make two more calls, to see all of it")

    add("mcp", "mcp.serve", "offer runs to MCP clients, over stdin and stdout")

    add("check", "content.check", "say what is wrong with settings, roles, prompts, tools, scenarios")
    add("roles", "content.roles", "list the roles")
    add("tools", "content.tools", "list the tools")
    add("init", "content.init", "lay out a project").add_argument("folder", metavar="DIR", type=Path)
    new = add("new", "content.new", "start a role, a tool or a scenario")
    new.add_argument("kind", choices=["role", "tool", "scenario"])
    new.add_argument("name", metavar="NAME")

    add("inbox", "inbox.inbox", "list the calls that wait for a person")
    approve = add("approve", "inbox.approve", "let a call that waits be made, or accept a result")
    deny = add("deny", "inbox.deny", "keep a call that waits from being made")
    answer = add("answer", "inbox.answer", "answer a question of a run")
    for command in (approve, deny, answer):
        command.add_argument("run", metavar="RUN")
        command.add_argument("call", metavar="CALL", help="its key, or the end of it, as `ori inbox` shows it")
    approve.add_argument("--edit", metavar="JSON", help="arguments to use instead, all of them")
    deny.add_argument("--why", metavar="TEXT", required=True, help="what the model is told")
    answer.add_argument("text", metavar="TEXT")
    add("cancel", "inbox.cancel", "stop a run that another process works on").add_argument("run", metavar="RUN")
    resume = add("resume", "resuming.resume", "go on with a run that was interrupted, or has ended, from its log")
    resume.add_argument("run", metavar="RUN", nargs="?", help="its id, or a part of it (default: the latest)")
    resume.add_argument("--all", action="store_true", help="go on with every run that was interrupted")
    resume.add_argument("--message", metavar="TEXT", help="what you add; for a run that has ended")
    retry = add("retry", "resuming.retry", "try again what did not succeed in a run")
    retry.add_argument("run", metavar="RUN")
    retry.add_argument("--from", metavar="ID", dest="first", help="try again this subtask and what comes after it")
    for command in (resume, retry):
        command.add_argument("--refresh", action="store_true", help="begin new loops as today's files say")

    sandbox = add("sandbox", "sandbox.build", "make an image for run_code from Debian's packages")
    sandbox.add_argument("what", metavar="build", choices=["build"])
    sandbox.add_argument("--package", metavar="NAME", action="append", default=[], help="also install this package")
    sandbox.add_argument("--suite", default="stable", help="Debian's release (default: stable)")
    sandbox.add_argument("--mirror", metavar="URL", help="where packages come from (default: debootstrap's own)")

    runs = add("runs", "history.runs", "list past runs")
    runs.add_argument("--by", choices=("user", "session"), help="what each of them has used instead")
    show = add("show", "history.show", "show what happened in a run")
    show.add_argument("run", metavar="RUN", nargs="?", help="its id, or a part of it (default: the latest)")
    show.add_argument("--follow", action="store_true", help="show what happens in it until nobody works on it")
    undo = add("undo", "history.undo", "put back what a run, or one subtask of it, changed in its workspace")
    undo.add_argument("run", metavar="RUN")
    undo.add_argument("subtask", metavar="SUBTASK", nargs="?")
    undo.add_argument("--force", action="store_true", help="also files that were changed since")
    record = add("record", "history.record", "write a run's replies as a recording")
    record.add_argument("run", metavar="RUN")
    record.add_argument("--tools", action="store_true", help="keep what came of tool calls, for --replay=all")
    record.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="-: stdout")

    gc = add("gc", "clearing.gc", "delete old runs: their events and folders")
    gc.add_argument("--older", metavar="AGE", type=_age, required=True, help="those that ended before, as 12h, 30d, 4w")
    gc.add_argument("--all", action="store_true", help="also what was interrupted or waits for a person")
    gc.add_argument("--dry-run", action="store_true", help="only say which")

    memory = commands.add_parser("memory", help="show or forget what is remembered of users and sessions")
    kept = memory.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, work, about in (
        ("list", "memory.list_all", "list memories, the newest first"),
        ("forget", "memory.forget", "delete memories"),
        ("export", "memory.export", "write memories as JSON lines"),
    ):
        command = kept.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.", parents=[common])
        command.set_defaults(work=work)
        command.add_argument("--user", help="only those of a user")
        command.add_argument("--session", help="only those of a session")
        if name == "forget":
            command.add_argument("ids", metavar="ID", type=int, nargs="*")
        if name == "export":
            command.add_argument("-o", "--output", metavar="FILE", type=Path, default=STDOUT, help="default: stdout")
    return top


def _age(text: str) -> int:
    """Return the seconds that an age such as `30d` means."""
    number, unit = text[:-1], text[-1:]
    seconds = {"h": 3600, "d": 86_400, "w": 604_800}
    if not (number.isascii() and number.isdigit() and unit in seconds):
        raise argparse.ArgumentTypeError(f"{text!r} is no age; write hours, days or weeks, as in 12h, 30d, 4w")
    return int(number) * seconds[unit]


class _UsageError(ConfigError):
    """The command line is wrong."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if choice := re.fullmatch(r"(.*invalid choice: )'(.*)' \(choose from (.*)\)", message):
            said, value, allowed = choice.groups()
            message = f"{said}{value!r}" + nearest(value, re.findall(r"[\w-]+", allowed))
        raise _UsageError(f"{message}\n{self.format_usage().rstrip()}")


class _Version(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help="show the version")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib import metadata

        try:
            print(f"ori {metadata.version('ori-orchestrator')}")
        except metadata.PackageNotFoundError:
            print("ori (not installed: a bare checkout)")
        parser.exit()


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
