"""Programs that a model writes, run in a container."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from orchestrator import ToolContext, ToolResult, Toolset, tool
from orchestrator.sandbox import Language, Ran
from orchestrator.sandbox.container import DockerSettings
from orchestrator.sandbox.docker import DockerSandbox
from orchestrator.sandbox.engine import missing
from orchestrator.traces import Changes, Traces
from orchestrator.workspace.files import format_size

_KILLED = 137
"""Exit code of a program that the kernel ended."""
_FENCED = re.compile(r"\A\s*```[\w+]*\n(.*?)\n?```\s*\Z", re.DOTALL)
"""A program as small models like to give it, in a fence of Markdown."""

toolset = Toolset(settings=DockerSettings, missing=lambda settings: missing())


@tool(effect="once", timeout=None, outward=False)
async def run_code(language: Language, code: str, ctx: ToolContext) -> ToolResult:
    """Run a program in a container that has no network.

    Use it when something must be computed, drawn, converted or tried out for which no other tool is made. The program
    starts in /workspace, which holds the workspace's files; files that it writes there stay. Cut outputs are the files
    of /outputs. It gets no input, cannot install anything, and all that it starts ends with it.

    Args:
        language: What the program is written in.
        code: The whole program.

    Returns:
        What it printed, errors included; then which files it wrote.
    """
    sandbox, traces = await ctx.keep("code", lambda: _open(ctx))
    group = sandbox.next_group()
    await ctx.threads.run(traces.before, ctx.workspace, ctx.path, group)
    changes = Changes()
    try:
        ran = await sandbox.run(language, _FENCED.sub(r"\1", code), group)
    finally:
        changes = await ctx.threads.run(traces.after, ctx.workspace, group)
    return ToolResult(
        "\n".join(_words(ran, changes, ctx.settings)),
        value={"output": ran.output, "exit_code": ran.exit_code, "files": changes.written},
        error=ran.exit_code != 0,
    )


@asynccontextmanager
async def _open(ctx: ToolContext) -> AsyncIterator[tuple[DockerSandbox, Traces]]:
    async with DockerSandbox.open(
        ctx.settings,
        run_id=ctx.run_id,
        workspace=ctx.workspace.root,
        home=ctx.workspace.home,
        threads=ctx.threads,
        report=ctx.report,
    ) as sandbox:
        yield sandbox, Traces(sandbox.user)


def _words(ran: Ran, changes: Changes, settings: DockerSettings) -> Iterator[str]:
    """Word what came of a program: first how it ended, unless it ended well."""
    if ran.stopped:
        yield f"Error: stopped, for {ran.stopped}; all that it started was ended. What it printed until then:"
    elif ran.exit_code == _KILLED:
        yield f"Error: it was killed; the container has {format_size(settings.memory)} of memory. What it printed:"
    elif ran.exit_code:
        yield f"Error: exit code {ran.exit_code}"
    yield ran.output.rstrip("\n") or "(nothing was printed)"
    yield from changes.lines()
