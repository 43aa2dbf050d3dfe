"""`ori memory`: what is remembered of users and sessions, and forgetting it."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import orjson

from orchestrator.errors import ConfigError
from orchestrator.memory import Memory, MemoryStore, Owner
from orchestrator.run import Orchestrator
from orchestrator.serve.report import FAILED, STDOUT, Report, write

T = TypeVar("T")


def list_all(args: Namespace) -> Report:
    """List memories, the newest first."""
    from orchestrator.serve import layout

    memories = _memories(args)
    titles = ("id", "of", "kind", "said", "until", "text", "read at")
    rows = [
        (
            str(m.id),
            m.owner.user or f"session {m.owner.session}",
            m.kind,
            _day(m.at),
            _day(m.expires) if m.expires else "",
            m.text[:500],
            ", ".join(m.untrusted),
        )
        for m in memories
    ]
    if not rows:
        return Report(data=[], note="nothing is remembered")
    return Report(data=_data(memories), draw=partial(layout.table, titles, rows))


def export(args: Namespace) -> Report:
    """Write memories as JSON lines."""
    memories = _memories(args)
    lines = "".join(orjson.dumps(line).decode() + "\n" for line in _data(memories))
    if args.output == STDOUT:
        return Report(data=_data(memories), text=lines.rstrip())
    write(args.output, lines)
    return Report(data={"written": str(args.output)}, note=f"{len(memories)} memories written to {args.output}")


def forget(args: Namespace) -> Report:
    """Delete memories by id, or all of an owner."""
    if not (args.ids or args.user or args.session):
        raise ConfigError("say what to forget: ids, as `ori memory list` shows them, or --user, or --session")

    async def work(store: MemoryStore) -> int:
        owned = await store.all(_owner(args)) if not args.ids else []
        return await store.forget(args.ids or [memory.id for memory in owned])

    count = _with_store(args, work)
    missing = bool(args.ids) and count < len(set(args.ids))
    return Report(data={"forgotten": count}, note=f"{count} forgotten", status=FAILED if missing else 0)


def _memories(args: Namespace) -> Sequence[Memory]:
    return _with_store(args, lambda store: store.all(_owner(args)))


def _with_store(args: Namespace, work: Callable[[MemoryStore], Awaitable[T]]) -> T:
    async def run() -> T:
        async with Orchestrator.from_project(args.project) as orchestrator:
            return await work(orchestrator.memory)

    return asyncio.run(run())


def _owner(args: Namespace) -> Owner | None:
    return Owner(user=args.user, session=args.session) if args.user or args.session else None


def _data(memories: Sequence[Memory]) -> list[dict[str, Any]]:
    return [asdict(memory) for memory in memories]


def _day(at: float) -> str:
    return f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M}"
