"""A scenario: a goal with its inputs, parameters, limits and checks, as a YAML file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import PrivateAttr, model_validator

from orchestrator.content.checks import Check
from orchestrator.content.served import url_of
from orchestrator.document import Document, Place
from orchestrator.errors import ConfigError, nearest
from orchestrator.limits import Limits
from orchestrator.plan import Subtask
from orchestrator.role import Network
from orchestrator.strict import Strict
from orchestrator.text.placeholders import fill_tree, names, texts
from orchestrator.yaml import read, scalar

_FILLED = ("goal", "inputs", "plan", "checks")
"""Keys in whose texts parameters are put."""


class Scenario(Strict):
    """A goal with everything around it; with `plan` and `when` it is also a process template."""

    goal: str
    description: str = ""
    params: dict[str, Any] = {}
    """Parameters and their defaults; null: it must be given."""
    inputs: tuple[str, ...] = ()
    """Files and folders that are copied to the top of the workspace; relative to the scenario, else to the project."""
    targets: tuple[str, ...] = ()
    """Inputs that may be changed, by name; the others are read-only."""
    roles: tuple[str, ...] | None = None
    """Roles that a planner may use; None: all."""
    models: dict[str, str] = {}
    """The model to use instead, by the key it replaces: `{default: cheap}`."""
    serve: dict[str, str] = {}
    """Folders served over HTTP while a run works, by name; `${name}` is the URL. They are found as inputs are."""
    limits: Limits = Limits()
    network: Network = Network()
    """What tools may reach in its runs besides what the project allows."""
    plan: tuple[Subtask, ...] = ()
    """Runs without asking the planner to plan."""
    when: str | None = None
    """Goals that the plan is right for; a planner may then choose it."""
    answer: str | None = None
    """Id of the plan's subtask whose answer is the run's, without a call that combines."""
    checks: tuple[Check, ...] = ()
    recording: str | None = None
    """File with recorded replies, relative to the scenario's folder."""

    _document: Document = PrivateAttr()
    _project: Path = PrivateAttr()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        ids = [subtask.id for subtask in self.plan]
        if not self.goal.strip():
            raise ValueError("the goal is empty")
        if self.answer is not None and self.answer not in ids:
            raise ValueError(f"the answer comes from the unknown subtask {self.answer!r}{nearest(self.answer, ids)}")
        for name in self.serve:
            if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
                raise ValueError(f"serve: {name!r} makes no host name; use lower-case letters, digits and '-'")
        if self.when is not None and not self.plan:
            raise ValueError("when belongs to a plan, and there is none")
        return self

    @classmethod
    def load(cls, file: Path) -> Scenario:
        """Read a scenario with the defaults of its parameters; its project is the folder above its own.

        Raises:
            ConfigError: The file is wrong; all faults, each with its line.
        """
        return cls._from(read(file), {}, file.absolute().parent.parent)

    @property
    def name(self) -> str:
        """The file's name without its suffix."""
        return self.file.stem

    @property
    def file(self) -> Path:
        """The file it was read from."""
        assert self._document.file  # scenarios are read
        return self._document.file

    def bind(self, params: Mapping[str, Any] | None = None) -> Scenario:
        """Return the scenario with parameters set, over their defaults.

        Raises:
            ConfigError: A parameter is unknown or has no value, or the scenario does not fit with it.
        """
        params = params or {}
        for name in params:
            if name not in self.params:
                raise self.error(f"there is no parameter {name!r}{nearest(name, self.params)}", ("params",))
        bound = self._from(self._document, params, self._project)
        for name, value in bound.params.items():
            if value is None:
                raise self.error(f"the parameter {name!r} needs a value: --set {name}=…", ("params", name))
        return bound

    def input_files(self) -> list[Path]:
        """Return where the inputs are, as absolute paths.

        Raises:
            ConfigError: One is not there, or two have the same name.
        """
        files: dict[str, Path] = {}
        for index, name in enumerate(self.inputs):
            place = ("inputs", index)
            found = self._found("input", name, place)
            if found.name in files:
                raise self.error(f"two inputs are called {found.name!r}; the workspace has room for one", place)
            files[found.name] = found
        return list(files.values())

    def served_folders(self) -> dict[str, Path]:
        """Return what is served while a run works, as absolute paths by name.

        Raises:
            ConfigError: One is not there.
        """
        return {name: self._found("folder", folder, ("serve", name)) for name, folder in self.serve.items()}

    def _found(self, what: str, name: str, place: Place) -> Path:
        """Return where a file or folder is that stands at a place of the scenario."""
        folders = (self.file.absolute().parent, self._project)
        found = next((folder / name for folder in folders if (folder / name).exists()), None)
        if found is None:
            raise self.error(f"the {what} {name!r} is neither in {folders[0]} nor in {folders[1]}", place)
        return found

    def recording_file(self) -> Path | None:
        """Return where the recording is, or should be."""
        return self.file.parent / self.recording if self.recording else None

    def error(self, message: str, place: Place = ()) -> ConfigError:
        """Make the error about what stands at a place of the file."""
        return self._document.error(message, place)

    def without_recording(self) -> ConfigError:
        """Make the error that there is no recording to replay, with how to get one."""
        how = "run it with --live, write one with `ori record RUN -o FILE`, and name it under recording:"
        return self.error(f"the scenario has no recording to replay; {how}")

    @classmethod
    def _from(cls, document: Document, params: Mapping[str, Any], project: Path) -> Scenario:
        defaults = document.data.get("params", {})
        if not isinstance(defaults, dict):
            raise document.error("params is a mapping of names to defaults", ("params",))
        params = {**defaults, **params}
        sites = document.data.get("serve", {})
        urls = {name: url_of(name) for name in (sites if isinstance(sites, dict) else {})}
        if unknown := list(_unknown(document, params | urls)):
            raise ConfigError.all_of(unknown)
        values = {name: value for name, value in params.items() if value is not None}
        values |= {f"params.{name}": value for name, value in values.items()} | urls
        filled = {key: fill_tree(value, values) for key, value in document.data.items() if key in _FILLED}
        scenario = document.validate(cls, {**document.data, **filled, "params": params})
        scenario._document, scenario._project = document, project
        return scenario


def parse_params(assignments: Iterable[str]) -> dict[str, Any]:
    """Read `key=value` texts; the value has the type that YAML gives a plain scalar, quotes make it a text.

    Raises:
        ConfigError: One has no `=`.
    """
    params: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not name.strip() or not equals:
            raise ConfigError(f"{assignment!r} sets nothing; write key=value")
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        params[name.strip()] = value[1:-1] if quoted else scalar(value)
    return params


def _unknown(document: Document, params: Mapping[str, Any]) -> Iterator[ConfigError]:
    for key in _FILLED:
        for place, text in texts(document.data.get(key), (key,)):
            for name in names(text):
                if name.startswith("outcomes.") and key == "plan":
                    continue  # filled in when the subtask runs
                if name.removeprefix("params.") not in params:
                    hint = nearest(name, params) or "; the scenario has no params"
                    yield document.error(
                        f"unknown parameter ${{{name}}}{hint} (write $${{{name}}} for the text)", place
                    )
