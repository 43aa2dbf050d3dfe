"""`ori doctor`: asks a model's server what it can do, and says which settings would suit it."""

from __future__ import annotations

import asyncio
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConfigError, ToolError
from orchestrator.failure import FailureKind
from orchestrator.journal import ENGINE_FOLDER, open_journal
from orchestrator.serve.plain import counted
from orchestrator.serve.report import FAILED, WRONG_USE, Report
from orchestrator.settings import FILE, ModelSettings, Settings, load_settings

if TYPE_CHECKING:
    from orchestrator.models.probe import Abilities
    from orchestrator.tool import Tool

_SMALL = 9
"""Billions of parameters, up to which a model is helped along."""
_SMALL_WINDOW = 8_192
_OURS = frozenset({FailureKind.auth, FailureKind.not_json})
"""Failures that mostly come from settings."""

Rows = Mapping[str, str]


def doctor(args: Namespace) -> Report:
    """Say what works: the model's server, the project, what is installed."""
    settings = load_settings(args.project)
    around = {"project": _project(args.project, settings), "tools": _tools(args.project, settings)}
    if settings.mcp:
        around["MCP servers"] = asyncio.run(_servers(args.project, settings))
    try:
        model = settings.model(args.model)
    except ConfigError as error:
        note = "\n".join(f"ori: {fault}" for fault in error.faults)
        return Report(data={"error": str(error)} | around, draw=partial(_drawn, around), note=note, status=WRONG_USE)
    print(f"ori: asking {model.model} …", file=sys.stderr, flush=True)
    seen, place = asyncio.run(_ask(model, args.full))
    suggested = suggestions(model, seen)
    shown = {f"model {args.model}": _rows(model, place, seen), **around}
    described = args.model in load_settings(args.project, {}).models
    snippet = _snippet(args.model, suggested if described else _from_variables(model) | suggested)
    below = [snippet] if suggested else []
    if not args.full and seen.failure is None:
        below.append("ori doctor --full makes two more calls, and sees the rest")
    draw = partial(_drawn, shown, below=below)
    data = {"model": asdict(seen) | {"name": model.model, "place": place}, "suggested": suggested, **around}
    if seen.failure is None:
        return Report(data=data, draw=draw)
    status = WRONG_USE if seen.failure.kind in _OURS else FAILED
    return Report(data=data, draw=draw, note=f"ori: {seen.failure.message}", status=status)


async def _ask(settings: ModelSettings, full: bool) -> tuple[Abilities, str]:
    """Ask the server, without retries and without taking text for calls."""
    from orchestrator.connections import wire_to
    from orchestrator.models.probe import probe

    model = wire_to(settings.model_copy(update={"salvage": False}))
    try:
        return await probe(model, full=full), model.base_url
    finally:
        await model.aclose()


def _project(folder: Path, settings: Settings) -> Rows:
    file = "ori.yaml" if (folder / FILE).is_file() else "no ori.yaml; settings come from the environment"
    rows = {
        "folder": f"{folder.resolve()} ({file})",
        "models": ", ".join(settings.models) or "none",
        "log": asyncio.run(_log(folder, settings)),
    }
    return rows | ({"to change": "; ".join(map(str, settings.warnings))} if settings.warnings else {})


async def _log(folder: Path, settings: Settings) -> str:
    journal = open_journal(settings.journal, folder / ENGINE_FOLDER / "runs.db")
    runs = await journal.runs()
    await journal.aclose()
    return f"{getattr(journal, 'path', 'in memory')} ({counted(len(runs), 'run')})"


def _tools(folder: Path, settings: Settings) -> Rows:
    """Say of each tool file whether its tools can be offered, and if not, what mends that."""
    from orchestrator.content.catalog import Catalog

    catalog = Catalog.from_project(folder, settings=settings)
    rows = {str(error.file): str(error) for error in catalog.unreadable}
    for name in catalog.tool_names:
        tool = catalog.tool(name)
        rows[Path(tool.source).stem] = tool.missing() or _ready(tool)
    return rows


async def _servers(folder: Path, settings: Settings) -> Rows:
    """Say what each MCP server is, or why it cannot be reached."""
    from orchestrator.mcp.servers import opened

    async with opened(settings, folder) as servers, asyncio.TaskGroup() as group:
        asked = {name: group.create_task(servers.about(name)) for name in settings.mcp}
    return {name: task.result() for name, task in asked.items()}


def _ready(tool: Tool) -> str:
    """Say that a tool can be offered; of one that runs code, also whether its image is there."""
    from orchestrator.sandbox.client import readiness
    from orchestrator.sandbox.container import DockerSettings

    try:
        return readiness(tool.settings.image) if isinstance(tool.settings, DockerSettings) else "ready"
    except ToolError as error:
        return str(error)


# what suits a model


def suggestions(settings: ModelSettings, seen: Abilities) -> dict[str, Any]:
    """Return settings that would suit a model better than those it has, by name."""
    return dict(_suggestions(settings, seen))


def _suggestions(settings: ModelSettings, seen: Abilities) -> Iterator[tuple[str, Any]]:
    if seen.base_url:
        yield "base_url", seen.base_url
    if seen.models and settings.model not in seen.models and len(seen.models) == 1:
        yield "model", seen.models[0]
    if seen.kind and settings.preset is None:
        yield "preset", seen.kind
    if seen.window and settings.window > seen.window:
        yield "window", seen.window
    if settings.profile == "standard" and _is_small(settings, seen):
        yield "profile", "small"
    if settings.stream != "never" and seen.streaming is False and seen.plain:
        yield "stream", "never"


def _is_small(settings: ModelSettings, seen: Abilities) -> bool:
    size = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)b\b", f"{settings.model} {seen.answered_as or ''}", re.IGNORECASE)
    window = min(settings.window, seen.window or settings.window)
    return (size is not None and float(size[1]) <= _SMALL) or seen.tools == "calls as text" or window <= _SMALL_WINDOW


def _from_variables(settings: ModelSettings) -> dict[str, Any]:
    """Return what a file has to say of a model that only the environment described so far."""
    key = settings.api_key and '"${OPENAI_API_KEY}"'
    said = {"base_url": settings.base_url, "model": settings.model, "api_key": key}
    return {name: value for name, value in said.items() if value}


def _snippet(key: str, suggested: Mapping[str, Any]) -> str:
    lines = [f"suggested for {FILE}:", "models:", f"  {key}:"]
    return "\n".join([*lines, *(f"    {name}: {value}" for name, value in suggested.items())])


# what is shown


def _rows(settings: ModelSettings, place: str, seen: Abilities) -> Rows:
    """Return what was seen in words; what was not tried is left out."""
    rows = {"asked": f"{settings.model} at {place}"}
    if seen.seconds is not None:
        first = "" if seen.first_piece is None else f", its first piece after {seen.first_piece:.1f} s"
        rows["answered"] = f"in {seen.seconds:.1f} s{first}"
    if seen.answered_as:
        rows["answers as"] = seen.answered_as
    for name, value in (
        ("streaming", seen.streaming),
        ("tools", seen.tools),
        ("parallel calls", seen.parallel_calls),
        ("counts tokens", seen.usage),
        ("plain answers", seen.plain),
        ("cached tokens", seen.cached_tokens),
        ("JSON schema", seen.json_schema),
    ):
        if value is not None:
            rows[name] = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
    at_server = f", {seen.window:,} at the server" if seen.window else ""
    rows["window"] = f"{settings.window:,} in the settings{at_server}"
    if seen.refused:
        rows["remembered"] = f"leaves out what was refused: {', '.join(seen.refused)}"
    rows["price"] = "known" if settings.price else "unknown, so that limits on cost cannot count it"
    return rows


def _drawn(sections: Mapping[str, Rows], width: int, color: bool, below: Sequence[str] = ()) -> str:
    from orchestrator.serve import layout

    return "\n\n".join([*(layout.section(title, rows, width, color) for title, rows in sections.items()), *below])
