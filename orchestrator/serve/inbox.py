"""`ori inbox`, `approve`, `deny`, `answer`, `cancel`: what people say to runs, whichever process works on them."""

from __future__ import annotations

import asyncio
import json
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConfigError, JournalError
from orchestrator.serve.asking import what, who, why
from orchestrator.serve.history import resolve
from orchestrator.serve.report import DONE, FAILED, Report

if TYPE_CHECKING:
    from orchestrator.events import ApprovalAsked
    from orchestrator.journal import RunInfo, Signal, SignalKind

_TRIES = 15
"""Looks at a cancelled run, each of a quarter of a second, until it is said to go on."""


def inbox(args: Namespace) -> Report:
    """List the calls that wait for a person."""
    from orchestrator.run import Orchestrator

    async def read() -> Sequence[ApprovalAsked]:
        async with Orchestrator.from_project(args.project) as orchestrator:
            return await orchestrator.journal.questions()

    questions = asyncio.run(read())
    text = "\n\n".join("\n".join(describe(question)) for question in questions)
    return Report(
        data=[asdict(q) for q in questions], text=text, note="" if questions else "nothing waits for a person"
    )


def describe(question: ApprovalAsked) -> Iterator[str]:
    """Say what waits, why, and which commands answer."""
    from orchestrator.serve.plain import duration

    waited = duration(max(0, round(time.time() - question.at)))  # the clock may have been set back
    yield f"{question.run} {question.key}: {what(question)} (for {waited})"
    yield from (f"  {line}" for line in (*why(question), *commands(question)))


def commands(question: ApprovalAsked) -> Iterator[str]:
    """Yield the commands that answer a question."""
    place = f"{question.run} {question.key}"
    if question.expects != "answer":
        yield f"ori approve {place}" + ("" if question.parameters is None else " [--edit JSON]")
    if question.expects != "approval":
        yield f"ori answer {place} TEXT"
    yield f"ori deny {place} --why WHY"


def approve(args: Namespace) -> Report:
    """Let a call be made, or accept a result."""
    data = {} if args.edit is None else {"arguments": _json_object(args.edit)}
    return _give(args, "approve", **data)


def deny(args: Namespace) -> Report:
    """Keep a call from being made; the model is told why."""
    return _give(args, "deny", why=args.why)


def answer(args: Namespace) -> Report:
    """Answer a question, or put a result in the place of one that waits."""
    return _give(args, "answer", text=args.text)


def cancel(args: Namespace) -> Report:
    """Stop a run that another process works on; it can be resumed."""
    from orchestrator.journal import Signal
    from orchestrator.run import Orchestrator

    async def send() -> str | None:
        async with Orchestrator.from_project(args.project) as orchestrator:
            journal = orchestrator.journal
            run = await resolve(journal, args.run)
            try:
                async with journal.own(run):
                    raise ConfigError(f"nobody works on run {run}; there is nothing to cancel")
            except JournalError:
                await journal.send(Signal(run=run, kind="cancel", by=who(), at=time.time()))
            for _ in range(_TRIES):
                try:
                    async with journal.own(run):
                        return run
                except JournalError:
                    await asyncio.sleep(0.05)
            return None

    run = asyncio.run(send())
    if run is None:
        note = "the run was told to stop, and has not stopped yet"
        return Report(data={"run": args.run, "cancelled": False}, note=note, status=FAILED)
    return Report(data={"run": run, "cancelled": True}, text=f"cancelled; go on with it: ori resume {run}")


def _give(args: Namespace, kind: SignalKind, **data: Any) -> Report:
    from orchestrator.inbox import give_word
    from orchestrator.journal import DONE_BY
    from orchestrator.run import Orchestrator

    async def give() -> tuple[Signal, RunInfo]:
        async with Orchestrator.from_project(args.project) as orchestrator:
            journal = orchestrator.journal
            run = await resolve(journal, args.run)
            counts = await give_word(journal, run, args.call, kind, who(), **data)
            return counts, await journal.info(run)

    signal, info = asyncio.run(give())
    mine = signal.kind == kind and signal.data == data
    said = f"{DONE_BY[signal.kind]} {signal.by}"
    text = f"{signal.key}: {said}"
    if info.ended is None and info.status != "running":
        more = "1 more call waits" if info.waiting == 1 else f"{info.waiting} more calls wait"
        text += f"\n{f'{more}: ori inbox; then' if info.waiting else 'next'}: ori resume {signal.run}"
    note = "" if mine else f"somebody was quicker: it was {said}, and your word does not count"
    return Report(data=asdict(signal) | {"counts": mine}, text=text, note=note, status=DONE if mine else FAILED)


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--edit is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError('--edit takes a JSON object with all arguments, as \'{"to": "ann"}\'')
    return value
