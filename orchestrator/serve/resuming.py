"""`ori resume` and `ori retry`: what makes runs of the log go on."""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass

from orchestrator.errors import ConfigError, OriError
from orchestrator.run import Orchestrator
from orchestrator.serve.asking import Asker, interactive
from orchestrator.serve.history import resolve
from orchestrator.serve.interrupt import Interrupt
from orchestrator.serve.report import DONE, FAILED, Report
from orchestrator.serve.running import STATUS, run_to_end


def resume(args: Namespace) -> Report:
    """Go on with a run, the latest one that was interrupted, or all of those."""
    asker = None if args.all else Asker() if interactive() else None
    orchestrator = Orchestrator.from_project(args.project, approve=asker.approve if asker else None)
    if args.all:
        if args.run or args.message:
            raise ConfigError("--all goes on with every run that was interrupted; it takes neither a run nor a message")
        return _all(orchestrator, refresh=args.refresh)
    run = asyncio.run(_find(orchestrator, args.run))
    return run_to_end(
        orchestrator, orchestrator.start_resumed(run, args.message, refresh=args.refresh), args, asker=asker
    )


def retry(args: Namespace) -> Report:
    """Try again what did not succeed in a run."""
    asker = Asker() if interactive() else None
    orchestrator = Orchestrator.from_project(args.project, approve=asker.approve if asker else None)
    run = asyncio.run(_find(orchestrator, args.run))
    handle = orchestrator.start_resumed(run, retry=True, first=args.first, refresh=args.refresh)
    return run_to_end(orchestrator, handle, args, asker=asker)


async def _find(orchestrator: Orchestrator, named: str | None) -> str:
    """Return the id of a run; without a name, of the latest that was interrupted."""
    journal = orchestrator.journal
    async with orchestrator:
        if named is None:
            interrupted = [info.run for info in await journal.runs() if info.status == "interrupted"]
            if not interrupted:
                raise ConfigError(f"no run of {orchestrator.project} was interrupted; `ori runs` lists all")
            return interrupted[0]
        return await resolve(journal, named)


@dataclass(frozen=True, slots=True)
class _Resumed:
    """How one of many runs went on."""

    run: str
    status: str = ""
    error: str = ""
    """Why it could not."""

    def __str__(self) -> str:
        return f"{self.run} could not go on: {self.error}" if self.error else f"{self.run} {self.status}"


def _all(orchestrator: Orchestrator, *, refresh: bool) -> Report:
    """Go on with every run that was interrupted; what goes wrong with one is told and stops no other."""

    async def one(run: str) -> _Resumed:
        try:
            return _Resumed(run, (await orchestrator.resume(run, refresh=refresh)).status)
        except OriError as error:
            return _Resumed(run, error=str(error))

    async def work() -> list[_Resumed]:
        async with orchestrator:
            runs = [info.run for info in await orchestrator.journal.runs() if info.status == "interrupted"]
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(run)) for run in reversed(runs)]
        return [task.result() for task in tasks]

    with redirect_stdout(sys.stderr):
        resumed = Interrupt().run(work())
    status = max((FAILED if one.error else STATUS.get(one.status, FAILED) for one in resumed), default=DONE)
    text = "\n".join(map(str, resumed)) or "no run was interrupted"
    return Report(data=[asdict(one) for one in resumed], text=text, status=status)
