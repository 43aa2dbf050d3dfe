"""The grammar of the command: what it can be told, and which function of which module here does the work."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from orchestrator.errors import ConfigError, nearest
from orchestrator.serve.report import STDOUT


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    common = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument("--project", metavar="DIR", type=Path, help="folder of the project (default: the nearest)")
    common.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")
    common.add_argument("--verbose", action="store_true", help="log each prompt and reply; show tracebacks")
    about_all = "A goal becomes a plan, workers run it in parallel, the answer comes back."
    top = _Parser(prog="ori", description=about_all, parents=[common])
    top.add_argument("--version", action=_Version)
    commands = _Commands(top, common)
    for kind in (_to_run, _to_connect, _of_content, _of_people, _to_go_on, _of_the_sandbox, _of_the_past, _of_memory):
        kind(commands)
    return top


class _Commands:
    """The commands below a parser; each also takes what all take."""

    def __init__(self, parent: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
        self._added = parent.add_subparsers(title="commands", metavar="COMMAND", required=True)
        self._common = common

    def add(self, name: str, work: str, about: str) -> argparse.ArgumentParser:
        """Add a command, whose work is done by `work`, as `module.function`."""
        described = f"{about[0].upper()}{about[1:]}."
        command = self._added.add_parser(name, help=about, description=described, parents=[self._common])
        command.set_defaults(work=work)
        return command

    def below(self, name: str, about: str) -> _Commands:
        """Add a word that has commands of its own."""
        return _Commands(self._added.add_parser(name, help=about), self._common)


def _to_run(commands: _Commands) -> None:
    run = commands.add("run", "running.run", "run a scenario; without a model, from its recording")
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
    solve = commands.add("solve", "running.solve", "plan and run a goal")
    plan = commands.add("plan", "running.plan", "show the plan of a goal, without running it")
    for command in (solve, plan):
        command.add_argument("goal")
        command.add_argument("--input", metavar="FILE", action="append", default=[], help="file or folder to work on")
    solve.add_argument("--session", metavar="NAME", help="go on from the earlier goals of a session")
    solve.add_argument("--user", metavar="NAME", help="whose memories are recalled and kept")
    for command in (run, solve):
        command.add_argument("--workspace", metavar="DIR", type=Path, help="folder to work in (default: a new one)")
    plan.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="write it as a file to edit, for `ori run --plan`; -: stdout"
    )
    test = commands.add("test", "running.test", "run scenarios and hold their checks against them")
    test.add_argument("scenarios", nargs="*", help="folders, files or names (default: all)")
    test.add_argument("--live", action="store_true", help="ask the configured model, not the recordings")


def _to_connect(commands: _Commands) -> None:
    doctor = commands.add("doctor", "doctor.doctor", "say what the model's server can do, and which settings suit it")
    doctor.add_argument("model", nargs="?", default="default", help="key of the model in ori.yaml (default: default)")
    doctor.add_argument("--full", action="store_true", help="make two more calls, to see all of it")
    commands.add("mcp", "mcp.serve", "offer runs to MCP clients, over stdin and stdout")


def _of_content(commands: _Commands) -> None:
    commands.add("check", "content.check", "say what is wrong with settings, roles, prompts, tools, scenarios")
    commands.add("roles", "content.roles", "list the roles")
    commands.add("tools", "content.tools", "list the tools")
    commands.add("init", "content.init", "lay out a project").add_argument("folder", metavar="DIR", type=Path)
    new = commands.add("new", "content.new", "start a role, a tool or a scenario")
    new.add_argument("kind", choices=["role", "tool", "scenario"])
    new.add_argument("name", metavar="NAME")


def _of_people(commands: _Commands) -> None:
    commands.add("inbox", "inbox.inbox", "list the calls that wait for a person")
    approve = commands.add("approve", "inbox.approve", "let a call that waits be made, or accept a result")
    deny = commands.add("deny", "inbox.deny", "keep a call that waits from being made")
    answer = commands.add("answer", "inbox.answer", "answer a question of a run")
    for command in (approve, deny, answer):
        command.add_argument("run", metavar="RUN")
        command.add_argument("call", metavar="CALL", help="its key, or the end of it, as `ori inbox` shows it")
    approve.add_argument("--edit", metavar="JSON", help="arguments to use instead, all of them")
    deny.add_argument("--why", metavar="TEXT", required=True, help="what the model is told")
    answer.add_argument("text", metavar="TEXT")
    cancel = commands.add("cancel", "inbox.cancel", "stop a run that another process works on")
    cancel.add_argument("run", metavar="RUN")


def _to_go_on(commands: _Commands) -> None:
    about = "go on with a run that was interrupted, or has ended, from its log"
    resume = commands.add("resume", "resuming.resume", about)
    resume.add_argument("run", metavar="RUN", nargs="?", help="its id, or a part of it (default: the latest)")
    resume.add_argument("--all", action="store_true", help="go on with every run that was interrupted")
    resume.add_argument("--message", metavar="TEXT", help="what you add; for a run that has ended")
    retry = commands.add("retry", "resuming.retry", "try again what did not succeed in a run")
    retry.add_argument("run", metavar="RUN")
    retry.add_argument("--from", metavar="ID", dest="first", help="try again this subtask and what comes after it")
    for command in (resume, retry):
        command.add_argument("--refresh", action="store_true", help="begin new loops as today's files say")


def _of_the_sandbox(commands: _Commands) -> None:
    sandbox = commands.add("sandbox", "sandbox.build", "make an image for run_code from Debian's packages")
    sandbox.add_argument("what", metavar="build", choices=["build"])
    sandbox.add_argument("--package", metavar="NAME", action="append", default=[], help="also install this package")
    sandbox.add_argument("--suite", default="stable", help="Debian's release (default: stable)")
    sandbox.add_argument("--mirror", metavar="URL", help="where packages come from (default: debootstrap's own)")


def _of_the_past(commands: _Commands) -> None:
    runs = commands.add("runs", "history.runs", "list past runs")
    runs.add_argument("--by", choices=("user", "session"), help="what each of them has used instead")
    show = commands.add("show", "history.show", "show what happened in a run")
    show.add_argument("run", metavar="RUN", nargs="?", help="its id, or a part of it (default: the latest)")
    show.add_argument("--follow", action="store_true", help="show what happens in it until nobody works on it")
    undo = commands.add("undo", "history.undo", "put back what a run, or one subtask of it, changed in its workspace")
    undo.add_argument("run", metavar="RUN")
    undo.add_argument("subtask", metavar="SUBTASK", nargs="?")
    undo.add_argument("--force", action="store_true", help="also files that were changed since")
    record = commands.add("record", "history.record", "write a run's replies as a recording")
    record.add_argument("run", metavar="RUN")
    record.add_argument("--tools", action="store_true", help="keep what came of tool calls, for --replay=all")
    record.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="-: stdout")
    gc = commands.add("gc", "clearing.gc", "delete old runs: their events and folders")
    gc.add_argument("--older", metavar="AGE", type=_age, required=True, help="those that ended before, as 12h, 30d, 4w")
    gc.add_argument("--all", action="store_true", help="also what was interrupted or waits for a person")
    gc.add_argument("--dry-run", action="store_true", help="only say which")


def _of_memory(commands: _Commands) -> None:
    memories = commands.below("memory", "show or forget what is remembered of users and sessions")
    kept = memories.add("list", "memory.list_all", "list memories, the newest first")
    forget = memories.add("forget", "memory.forget", "delete memories")
    export = memories.add("export", "memory.export", "write memories as JSON lines")
    for command in (kept, forget, export):
        command.add_argument("--user", help="only those of a user")
        command.add_argument("--session", help="only those of a session")
    forget.add_argument("ids", metavar="ID", type=int, nargs="*")
    export.add_argument("-o", "--output", metavar="FILE", type=Path, default=STDOUT, help="default: stdout")


def _age(text: str) -> int:
    """Return the seconds that an age such as `30d` means."""
    number, unit = text[:-1], text[-1:]
    seconds = {"h": 3600, "d": 86_400, "w": 604_800}
    if not (number.isascii() and number.isdigit() and unit in seconds):
        raise argparse.ArgumentTypeError(f"{text!r} is no age; write hours, days or weeks, as in 12h, 30d, 4w")
    return int(number) * seconds[unit]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if choice := re.fullmatch(r"(.*invalid choice: )'(.*)' \(choose from (.*)\)", message):
            said, value, allowed = choice.groups()
            message = f"{said}{value!r}" + nearest(value, re.findall(r"[\w-]+", allowed))
        raise ConfigError(f"{message}\n{self.format_usage().rstrip()}")


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
