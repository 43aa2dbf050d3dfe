"""`ori check`, `roles`, `tools`, `new`, `init`: what a project holds, and starting one."""

from __future__ import annotations

import asyncio
import keyword
import re
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError
from orchestrator.serve.report import DONE, WRONG_USE, Report

if TYPE_CHECKING:
    from orchestrator.content.catalog import Catalog
    from orchestrator.mcp.servers import Offer

_TEMPLATES = {
    "role": {"roles/NAME.yaml": "role.yaml", "prompts/NAME.md": "role.md"},
    "tool": {"tools/NAME.py": "tool.txt"},
    "scenario": {"scenarios/NAME.yaml": "scenario.yaml"},
}
"""The files of what can be started, and their templates in serve/templates."""


def check(args: Namespace) -> Report:
    """Say everything that is wrong with the content of a project."""
    problems = _catalog(args).check()
    errors = sum(problem.severity == "error" for problem in problems)
    text = "\n".join(map(str, problems)) or "nothing is wrong"
    return Report(data=[asdict(problem) for problem in problems], text=text, status=WRONG_USE if errors else DONE)


def roles(args: Namespace) -> Report:
    """List the roles that a planner can use."""
    catalog = _catalog(args)
    found = [catalog.role(name) for name in catalog.role_names]
    data = [role.model_dump(mode="json", exclude={"prompt"}) for role in found]
    rows = [(role.name, role.model, ", ".join(role.tools), role.description) for role in found]
    return _listed(data, ("role", "model", "tools", "what it is for"), rows)


def tools(args: Namespace) -> Report:
    """List the tools that a role can be given."""
    catalog = _catalog(args)
    offer = asyncio.run(_offer(catalog, args.project))
    found = [*(catalog.tool(name) for name in catalog.tool_names), *offer.tools.values()]
    why = {tool.name: tool.missing() for tool in found}
    data = [
        {
            "name": t.title or t.name,
            "effect": t.effect,
            "description": t.description,
            "source": t.source,
            "missing": why[t.name],
        }
        for t in found
    ]
    rows = [(t.title or t.name, t.effect, why[t.name] or t.description.strip().split("\n")[0]) for t in found]
    missing = [*(f"tools are missing: {error}" for error in catalog.unreadable), *offer.missing]
    note = "\n".join(f"ori: {reason}" for reason in missing)
    return replace(_listed(data, ("tool", "effect", "what it does"), rows), note=note)


async def _offer(catalog: Catalog, folder: Path) -> Offer:
    """Ask the project's MCP servers for their tools."""
    from orchestrator.mcp.servers import opened

    async with opened(catalog.settings, folder) as servers:
        return await servers.offer(f"{server}/*" for server in catalog.settings.mcp)


def new(args: Namespace) -> Report:
    """Start a role, a tool or a scenario: its files, filled in so far that they work."""
    kind, name = args.kind, args.name
    if not re.fullmatch(r"\w[\w-]{0,39}", name):
        raise ConfigError(f"{name!r} is no name for a {kind}; use letters, digits, _ and -, at most 40")
    if kind == "tool" and (not name.isidentifier() or keyword.iskeyword(name)):
        raise ConfigError(f"{name!r} is no name for a function of Python; use letters, digits and _, no digit first")
    catalog = _catalog(args)
    known = {"role": catalog.role_names, "tool": catalog.tool_names, "scenario": catalog.scenario_names}[kind]
    if name in known:
        raise ConfigError(f"there is a {kind} {name!r} already; take another name than {', '.join(known)}")
    first = "name it in a role's tools, then: " if kind == "tool" else ""
    return _written(args.project, _started(kind, name), f"{first}ori check")


def init(args: Namespace) -> Report:
    """Lay out a project."""
    texts = {"ori.yaml": _template("ori.yaml"), ".gitignore": _template("gitignore"), **_started("scenario", "hello")}
    report = _written(args.folder, texts, "name a model in ori.yaml, then: ori run hello")
    for folder in ("roles", "prompts", "tools"):
        (args.folder / folder).mkdir(exist_ok=True)
    return report


def _started(kind: str, name: str) -> dict[str, str]:
    """Give the texts of a new role, tool or scenario by their files."""
    named = {file.replace("NAME", name): template for file, template in _TEMPLATES[kind].items()}
    return {file: _template(template).replace("NAME", name) for file, template in named.items()}


def _catalog(args: Namespace) -> Catalog:
    from orchestrator.content.catalog import Catalog
    from orchestrator.settings import load_settings

    return Catalog.from_project(args.project, settings=load_settings(args.project))


def _listed(data: object, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Report:
    from orchestrator.serve import layout

    return Report(data=data, draw=partial(layout.table, titles, rows))


def _template(name: str) -> str:
    return files("orchestrator.serve").joinpath("templates", name).read_text("utf-8")


def _written(folder: Path, texts: dict[str, str], next_step: str) -> Report:
    """Write files that must not be there yet: all of them, or none."""
    for name in texts:
        if (folder / name).exists():
            raise ConfigError("is there already; nothing was written", file=folder / name)
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    paths = [str(folder / name) for name in texts]
    return Report(data={"written": paths}, text="\n".join(paths), note=f"next: {next_step}")
