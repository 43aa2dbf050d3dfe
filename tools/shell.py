"""Commands of this machine. Off until `ori.yaml` turns them on."""

from __future__ import annotations

import os
import re
from contextlib import nullcontext
from itertools import count
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from orchestrator import ToolContext, ToolResult, Toolset, tool
from orchestrator.commands import AllowList
from orchestrator.sandbox.processes import run_command
from orchestrator.strict import Strict
from orchestrator.traces import Traces

_KEPT = 200_000
"""Bytes of output that are kept."""
_OUTWARD = re.compile(r"\b(curl|wget|https?|ssh|scp|sftp|ftp|rsync|nc|ncat|telnet|git|gh|pip|npm|docker|podman)\b")
"""What may print the words of strangers."""
_TURN_ON = "write tools: {shell: {enabled: true, allow: [ls, git status]}} into ori.yaml"


def _readable(allow: tuple[str, ...]) -> tuple[str, ...]:
    AllowList.read(allow)
    return allow


class Settings(Strict):
    """What `ori.yaml` may say under `tools: shell:`."""

    enabled: bool = False
    allow: Annotated[tuple[str, ...], AfterValidator(_readable)] = ()
    """Beginnings of the commands that may run, as `git status`; `*` for any. See `orchestrator.commands.AllowList`."""
    timeout: float = Field(60, gt=0)
    """Seconds of one call."""
    environment: dict[str, SecretStr] = {}
    """Variables besides PATH and LANG. Nothing else is passed on; HOME is a folder that does not exist."""


def _missing(settings: Settings) -> str:
    if os.name != "posix":
        return "needs a POSIX system"
    if not settings.enabled:
        return f"off; to turn it on, {_TURN_ON}"
    return "" if settings.allow else f"on, but no command is allowed; {_TURN_ON}"


toolset = Toolset(settings=Settings, missing=_missing)


@tool(effect="once", timeout=None)
async def run_shell(command: str, ctx: ToolContext) -> ToolResult:
    """Run a command line (POSIX sh) of this machine in the workspace.

    Use it for what no other tool does. It gets no input, so nothing can be asked. All that it starts ends with it.

    Args:
        command: As git log --oneline | head -5. Only commands that the settings allow can run.

    Returns:
        What it printed, its exit code, and which files it changed.
    """
    settings: Settings = ctx.settings
    line = AllowList.read(settings.allow).checked(command)
    traces, numbers = await ctx.keep("shell", lambda: nullcontext((Traces(None), count(1))))
    number = -next(numbers)  # no group of files has a negative one
    await ctx.threads.run(traces.before, ctx.workspace, ctx.path, number)
    try:
        ended = await run_command(
            ("/bin/sh", "-c", line),
            folder=ctx.workspace.root,
            environment=_environment(settings),
            seconds=settings.timeout,
            kept=_KEPT,
        )
    finally:
        changes = await ctx.threads.run(traces.after, ctx.workspace, number)
    how = f"exit code {ended.code}"
    if ended.code is None:
        how = f"stopped after {settings.timeout:g} s, with all that it started; the output may be incomplete"
    return ToolResult(
        "\n".join([ended.output.rstrip(), f"({how})", *changes.lines()]).lstrip("\n"),
        value={"output": ended.output, "exit_code": ended.code, "files": changes.written},
        error=ended.code != 0,
        untrusted="a command that reaches out" if _OUTWARD.search(command) else None,
    )


def _environment(settings: Settings) -> dict[str, str]:
    """Return what a command sees: no folder of a loop's own making to look for programs or configuration in."""
    folders = [folder for folder in os.environ.get("PATH", os.defpath).split(":") if folder.startswith("/")]
    own = {
        "PATH": ":".join(folders),
        "HOME": "/nonexistent",
        "LANG": "C.UTF-8",
        "PAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
    }
    return own | {name: value.get_secret_value() for name, value in settings.environment.items()}
