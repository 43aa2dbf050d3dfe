"""The content of a project: roles, prompts, tools, scenarios. The project's own first, then what ships."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from orchestrator.content.crosscheck import PLANNING_TOOL, Names, role_faults, scenario_faults, schema_faults
from orchestrator.content.scenario import Scenario
from orchestrator.content.toolfiles import ToolFolder
from orchestrator.document import Document, Place
from orchestrator.errors import ConfigError, collecting, nearest
from orchestrator.role import Role
from orchestrator.settings import Settings, load_settings
from orchestrator.text.placeholders import fill, names, refuse_unknown
from orchestrator.tool import Tool
from orchestrator.yaml import read, read_text

ROLE_VARIABLES = ("roles",)
"""What the prompt of a role may name: the roles that a planner can use, a line each."""
Severity = Literal["error", "warning"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that `ori check` found."""

    file: str | None
    line: int | None
    message: str
    severity: Severity

    @classmethod
    def of(cls, fault: ConfigError, severity: Severity) -> Problem:
        """Make a problem out of an error."""
        return cls(None if fault.file is None else str(fault.file), fault.line, fault.message, severity)

    def __str__(self) -> str:
        return str(ConfigError(f"{self.severity}: {self.message}", file=self.file, line=self.line))


_PACKAGE = Path(__file__).resolve().parents[1]


def shipped_root(package: Path = _PACKAGE) -> Path:
    """Return the folder that holds the shipped content: the installed package, or the checkout around it."""
    return package if (package / "roles").is_dir() else package.parent


class Catalog:
    """Finds content by name and reads it when it is asked for; a changed role, prompt or scenario counts from then on.

    Args:
        folders: Where content lies, the first one first.
        roles: Roles made in code; they come before all files.
        tools: Tools made in code; they come before all files.
        models: Keys of the models that a role may name; None: any.
        settings: What the project says of its toolsets.

    Raises:
        ConfigError: Two roles or two tools made in code have the same name.
    """

    def __init__(
        self,
        folders: Iterable[Path],
        *,
        roles: Iterable[Role] = (),
        tools: Iterable[Tool] = (),
        models: Collection[str] | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.folders = tuple(dict.fromkeys(folder.resolve() for folder in folders))
        self.models = models
        self.settings = settings or Settings()
        self._elsewhere = (PLANNING_TOOL, *(f"{server}/*" for server in self.settings.mcp))
        self._roles = _by_name("roles", [(role.name, role) for role in roles])
        self._tools = _by_name("tools", [(_made(tool).name, tool) for tool in tools])
        self._tool_folders = [ToolFolder(folder / "tools", self.settings) for folder in self.folders]
        self._cache: dict[object, tuple[object, Any]] = {}

    @classmethod
    def from_project(
        cls,
        project: Path | str | None = None,
        *,
        roles: Iterable[Role] = (),
        tools: Iterable[Tool] = (),
        models: Collection[str] | None = None,
        settings: Settings | None = None,
    ) -> Catalog:
        """Return the catalog of a project's folder, if there is one, and of what ships.

        Raises:
            ConfigError: There is no such folder.
        """
        folders = [shipped_root()]
        if project is not None:
            folders.insert(0, Path(project))
            if not folders[0].is_dir():
                raise ConfigError("there is no such folder; `ori init DIR` makes a project", file=project)
        return cls(folders, roles=roles, tools=tools, models=models, settings=settings)

    @property
    def role_names(self) -> list[str]:
        """All roles by name."""
        return sorted({*self._roles, *(file.stem for file in self._files("roles", ".yaml"))})

    @cached_property
    def tool_names(self) -> list[str]:
        """All tools by name, those that no file defines left out."""
        return sorted({*self._tools, *(name for folder in self._tool_folders for name in folder.places)})

    @property
    def unreadable(self) -> list[ConfigError]:
        """What is wrong with tool files that are no Python; their tools are missing."""
        return [error for folder in self._tool_folders for error in folder.unreadable]

    @property
    def scenario_names(self) -> list[str]:
        """All scenarios by name."""
        return sorted(file.stem for file in self._files("scenarios", ".yaml"))

    def role(self, name: str) -> Role:
        """Return a role, checked against everything that it names.

        Raises:
            ConfigError: There is no such role, or its files are wrong; all faults, each with its line.
        """
        role, error = self._role(name)
        if faults := [error(*fault) for fault in role_faults(role, self._known())]:
            raise ConfigError.all_of(faults)
        return role

    def tool(self, name: str) -> Tool:
        """Return a tool; the file that defines it is imported now.

        Raises:
            ConfigError: There is no such tool, it is defined twice, or its file cannot be imported.
        """
        if name not in self._tools:
            folder = next((folder for folder in self._tool_folders if name in folder.places), None)
            if folder is None:
                raise ConfigError(f"there is no tool {name!r}{nearest(name, self.tool_names)}")
            self._tools[name] = folder.tool(name)
        return self._tools[name]

    def scenario(self, name: str | Path) -> Scenario:
        """Return a scenario by its name or its file, checked against everything that it names.

        Raises:
            ConfigError: There is no such scenario, or its file is wrong; all faults, each with its line.
        """
        scenario = self._cached(Scenario.load, self.scenario_file(name))
        if faults := list(scenario_faults(scenario, self._known())):
            raise ConfigError.all_of(faults)
        return scenario

    def scenario_file(self, name: str | Path) -> Path:
        """Return where a scenario stands, by its name or its file.

        Raises:
            ConfigError: There is no such scenario.
        """
        named = self._find("scenarios", f"{name}.yaml") or self._find(".", str(name))
        file = Path(name) if Path(name).is_file() else named
        if file is None:
            what = "file or folder" if str(name).endswith((".yaml", "/")) else "scenario"
            raise ConfigError(f"there is no {what} {str(name)!r}{nearest(Path(name).stem, self.scenario_names)}")
        return file

    def scenarios(self) -> list[Scenario]:
        """Return all scenarios.

        Raises:
            ConfigError: One is wrong.
        """
        return [self.scenario(file) for file in self._files("scenarios", ".yaml")]

    def templates(self) -> list[Scenario]:
        """Return the process templates that a planner may choose from.

        Raises:
            ConfigError: One is wrong.
        """
        files = [file for file in self._files("scenarios", ".yaml") if self._cached(_is_template, file)]
        return [template for file in files if (template := self.scenario(file)).when]

    def text(self, name: str, **values: object) -> str:
        """Return one of the engine's texts, `prompts/engine/NAME.md`, filled in.

        A paragraph whose values are all empty is left out.

        Raises:
            ConfigError: There is no such text, or it names a value that is not given.
        """
        file = self._find("prompts", f"engine/{name}.md")
        if file is None:
            raise ConfigError(f"there is no text prompts/engine/{name}.md")
        texts = {key: "" if value is None else str(value) for key, value in values.items()}
        paragraphs = self._cached(_paragraphs, file)
        return "\n\n".join(
            fill(paragraph, texts, file=file)
            for paragraph, named in paragraphs
            if not named or any(texts.get(value, "unknown") for value in named)
        )

    def check(self) -> list[Problem]:
        """Return everything that is wrong with the settings, roles, prompts, tools and scenarios."""
        errors: list[ConfigError] = []
        warnings: list[ConfigError] = []
        catalog = self
        with collecting(errors):
            settings = load_settings(self.folders[0])
            warnings += [*settings.warnings, *settings.unreachable()]
            catalog = self._with(settings)
            known = sorted({file.stem for folder in self._tool_folders for file in folder.files})
            errors += [*settings.unknown_toolsets(known), *settings.unusable()]
        catalog._check_roles(errors, warnings)
        catalog._check_tools(errors, warnings)
        catalog._check_scenarios(errors)
        problems = [
            *(Problem.of(fault, "error") for fault in errors),
            *(Problem.of(fault, "warning") for fault in warnings),
        ]
        return sorted(problems, key=lambda problem: (problem.severity, problem.file or "", problem.line or 0))

    def _check_roles(self, errors: list[ConfigError], warnings: list[ConfigError]) -> None:
        roles = self.role_names
        for name in roles:
            with collecting(errors):
                role, error = self._role(name)
                errors += [error(*fault) for fault in (*role_faults(role, self._known()), *schema_faults(role))]
        for file in self._files("prompts", ".md"):
            if file.stem not in roles:
                warnings.append(ConfigError(f"belongs to no role{nearest(file.stem, roles)}", file=file))

    def _check_tools(self, errors: list[ConfigError], warnings: list[ConfigError]) -> None:
        for folder in self._tool_folders:
            errors += [folder.twice(name) for name, places in folder.places.items() if len(places) > 1]
            for file in folder.files:
                with collecting(errors):
                    warnings += [fault for tool in folder.load(file).values() for fault in folder.advice(tool, file)]

    def _check_scenarios(self, errors: list[ConfigError]) -> None:
        for file in self._files("scenarios", ".yaml"):
            with collecting(errors):
                scenario = self.scenario(file)
                recording = scenario.recording_file()
                if recording and not recording.is_file():
                    errors.append(scenario.error(f"there is no recording {scenario.recording!r}", ("recording",)))
                scenario.input_files()
                scenario.served_folders()

    def _with(self, settings: Settings) -> Catalog:
        roles, tools = self._roles.values(), self._tools.values()
        models = settings.models if self.models is None else self.models
        return Catalog(self.folders, roles=roles, tools=tools, models=models, settings=settings)

    def _role(self, name: str) -> tuple[Role, Callable[[str, Place], ConfigError]]:
        """Return a role, and what makes the error about a place in it."""
        if name in self._roles:
            return self._roles[name], lambda message, place: ConfigError(f"role {name!r}: {message}")
        file = self._find("roles", f"{name}.yaml")
        if file is None:
            raise ConfigError(f"there is no role {name!r}{nearest(name, self.role_names)}")
        role, document = self._cached(_read_role, file, self._find("prompts", f"{name}.md"))
        return role, document.error

    def _known(self) -> Names:
        return Names(self.role_names, self.tool_names, self._elsewhere, self.models)

    def _files(self, folder: str, suffix: str) -> list[Path]:
        """Return the files that count: of those with the same name, the first."""
        found: dict[str, Path] = {}
        for root in self.folders:
            place = root / folder
            for file in sorted(place.iterdir() if place.is_dir() else ()):
                if file.suffix == suffix:
                    found.setdefault(file.name, file)
        return list(found.values())

    def _find(self, folder: str, name: str) -> Path | None:
        places = (root / folder / name for root in self.folders)
        return next((place for place in places if place.is_file()), None)

    def _cached(self, make: Callable[..., T], *files: Path | None) -> T:
        """Make something out of files, again only when they have changed."""
        stats = [file.stat() for file in files if file is not None]
        stamp = (files, [(stat.st_mtime_ns, stat.st_size) for stat in stats])
        key = (make, files[0])
        if key not in self._cache or self._cache[key][0] != stamp:
            self._cache[key] = (stamp, make(*files))
        made: T = self._cache[key][1]
        return made


def _made(tool: object) -> Tool:
    if not isinstance(tool, Tool):
        name = getattr(tool, "__name__", repr(tool))
        raise ConfigError(f"{name!r} is no tool; put @tool on the function")
    return tool


def _by_name(kind: str, pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    found: dict[str, T] = {}
    for name, thing in pairs:
        if name in found:
            raise ConfigError(f"two {kind} made in code are called {name!r}; names are unique")
        found[name] = thing
    return found


def _read_role(file: Path, prompt: Path | None) -> tuple[Role, Document]:
    document = read(file)
    faults = [
        document.error(f"unknown key {key!r}; {advice}", (key,))
        for key, advice in (("name", "a role is called as its file"), ("prompt", f"it is prompts/{file.stem}.md"))
        if key in document.data
    ]
    text = read_text(prompt).strip() if prompt else ""
    if not text:
        faults.append(document.error(f"the role has no prompt; write it into prompts/{file.stem}.md"))
    with collecting(faults):
        refuse_unknown(text, ROLE_VARIABLES, file=prompt)
    with collecting(faults):
        role = document.validate(Role, {**document.data, "name": file.stem, "prompt": text})
    if faults:
        raise ConfigError.all_of(faults)
    return role, document


def _is_template(file: Path) -> bool:
    return {"plan", "when"} <= read(file).data.keys()


def _paragraphs(file: Path) -> list[tuple[str, tuple[str, ...]]]:
    """Return the paragraphs of a text, each with the names it uses."""
    paragraphs = re.split(r"\n\s*\n", read_text(file).strip())
    return [(paragraph, tuple(names(paragraph))) for paragraph in paragraphs]
