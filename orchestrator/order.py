"""What one run is asked to do: by a program, a scenario, a recording, or the log of a run that goes on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isclass
from pathlib import Path
from typing import Any, Literal, TypedDict

from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema

from orchestrator.content.scenario import Scenario
from orchestrator.document import Document
from orchestrator.errors import ConfigError, refuse_keywords
from orchestrator.events import RunStarted
from orchestrator.limits import Limits
from orchestrator.messages import Json
from orchestrator.models import Model
from orchestrator.models.replay import Asked, Recording, ReplayModel
from orchestrator.plan import Delegate, Subtask
from orchestrator.text.jsonable import well_formed

PLANNER = "ori"
"""The role that a goal starts with, and the path of its loop."""


class RunOptions(TypedDict, total=False):
    """What a run can be told besides its goal."""

    inputs: Sequence[str | Path]
    """Files and folders to copy into the workspace; relative to the working directory."""
    targets: Sequence[str]
    """Inputs that may be changed, by name; the others are read-only."""
    workspace: str | Path | None
    """Folder to work in; None: a new one under `.ori/runs/`."""
    params: Mapping[str, Json] | None
    """Values for `${params.…}` in the plan."""
    plan: Sequence[Subtask | Mapping[str, Json]] | Mapping[str, Json] | Delegate | None
    """Runs first, without asking the planner to plan: its subtasks, or what a plan file holds."""
    output: type[BaseModel] | Mapping[str, Json] | None
    """What the result must look like: a pydantic model or a JSON Schema."""
    limits: Limits | None
    """Upper bounds for this run."""
    roles: Sequence[str] | None
    """Names of the roles that the planner may use; None: all."""
    session: str | None
    """Goals of one session know what came of the ones before, and share their variables."""
    user: str | None
    """Whose memories are recalled and kept; who pays, in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What one run is asked to do."""

    goal: str
    root: str = PLANNER
    inputs: Sequence[str | Path] = ()
    targets: Sequence[str] = ()
    """Inputs that may be changed."""
    base: Path = field(default_factory=Path.cwd)
    workspace: Path | None = None
    params: Mapping[str, Json] = field(default_factory=dict)
    plan: Delegate | None = None
    """Runs first, without asking the planner to plan."""
    answer: str | None = None
    """Id of the plan's subtask whose answer is the run's."""
    output: type[BaseModel] | Mapping[str, Json] | None = None
    limits: Limits | None = None
    allow: Sequence[str] = ()
    """Addresses that tools may reach besides what the project allows."""
    serve: Mapping[str, Path] = field(default_factory=dict)
    """Folders served while the run works, by name; see `served`."""
    roles: Sequence[str] | None = None
    models: Mapping[str, str] = field(default_factory=dict)
    model: Model | None = None
    """Answers instead of every configured model: a recording."""
    scenario: str | None = None
    session: str | None = None
    user: str | None = None
    preview: bool = False

    def __post_init__(self) -> None:
        for name in ("inputs", "targets", "roles"):
            if isinstance(value := getattr(self, name), str | Path):
                raise ConfigError(f"{name} is {str(value)!r}, one alone; write a list: {name}=[{str(value)!r}]")
        for name in ("session", "user"):
            if (value := getattr(self, name)) is not None and well_formed(value) != value:
                raise ConfigError(f"{name} is {value!r}, which is no text: it cannot be stored")
        if not isinstance(self.output, Mapping | None) and self.form is None:
            name = getattr(self.output, "__name__", repr(self.output))
            raise ConfigError(f"output is {name}, which is neither a pydantic model nor a JSON Schema")

    @classmethod
    def asked(cls, goal: str, options: RunOptions) -> Order:
        """Return the order that a program gives.

        Raises:
            ConfigError: A value is of the wrong kind.
            TypeError: There is no such option.
        """
        refuse_keywords(options, RunOptions.__annotations__)
        fields: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        if "workspace" in fields:
            fields["workspace"] = Path(fields["workspace"])
        plan = fields["plan"] = options.get("plan") or None
        if plan and not isinstance(plan, Delegate):
            said = plan if isinstance(plan, Mapping) else {"subtasks": plan}
            fields["plan"] = Document.given("plan", said).validate(Delegate)
        return cls(goal=goal, **fields)

    @classmethod
    def of_scenario(
        cls,
        scenario: Scenario,
        *,
        workspace: str | Path | None,
        plan: Delegate | None = None,
        replay: bool | Literal["all"] = False,
    ) -> Order:
        """Return the order that a scenario gives, whose parameters are set; see `Orchestrator.start_scenario`.

        Raises:
            ConfigError: There is no recording.
        """
        model: Model | None = None
        if replay:
            recording = scenario.recording_file()
            if recording is None:
                raise scenario.without_recording()
            model = ReplayModel(Recording.load(recording), tools=replay == "all")
        return cls(
            goal=scenario.goal,
            inputs=scenario.input_files(),
            targets=scenario.targets,
            workspace=None if workspace is None else Path(workspace),
            params=scenario.params,
            plan=plan or (Delegate(subtasks=scenario.plan) if scenario.plan else None),
            answer=None if plan else scenario.answer,
            limits=scenario.limits,
            allow=scenario.network.allow,
            serve=scenario.served_folders(),
            roles=scenario.roles,
            models=scenario.models,
            model=model,
            scenario=scenario.name,
        )

    @classmethod
    def recorded(
        cls, asked: Asked, *, base: Path, params: Mapping[str, Json], workspace: str | Path | None, model: ReplayModel
    ) -> Order:
        """Return the order that a recording says its run was given, with other parameters and another workspace."""
        return cls(
            goal=asked.goal,
            root=asked.root,
            inputs=asked.inputs,
            base=base,
            workspace=None if workspace is None else Path(workspace),
            params={**asked.params, **params},
            plan=Delegate.model_validate(asked.plan) if asked.plan else None,
            answer=asked.answer,
            output=asked.output,
            limits=Limits.model_validate(asked.limits),
            roles=asked.roles,
            model=model,
        )

    @property
    def recording(self) -> Recording | None:
        """What it is replayed from."""
        return self.model.recording if isinstance(self.model, ReplayModel) else None

    def frozen(self) -> dict[str, Any]:
        """Return as JSON what `run.started` does not say in a field of its own; see `of`."""
        return {
            "plan": self.plan and self.plan.model_dump(mode="json", exclude_unset=True),
            "answer": self.answer,
            "output": self.schema,
            "limits": self.limits and self.limits.model_dump(mode="json", exclude_unset=True),
            "models": dict(self.models),
            "allow": list(self.allow),
            "serve": {name: str(folder) for name, folder in self.serve.items()},
            "roles": None if self.roles is None else list(self.roles),
            "preview": self.preview,
            "recording": getattr(self.model, "file", None),
            "recorded_tools": getattr(self.model, "tools", False),
        }

    @classmethod
    def of(cls, started: RunStarted) -> Order:
        """Return the order that an event says a run began with.

        Raises:
            ConfigError: The event is of a version that did not record it.
        """
        rest = started.order
        if not rest:
            raise ConfigError(f"run {started.run} was written by an older version of ori; it can be shown, not resumed")
        file = rest["recording"]
        return cls(
            goal=started.goal,
            root=started.root,
            workspace=Path(started.workspace),
            params=started.params,
            plan=Delegate.model_validate(rest["plan"]) if rest["plan"] else None,
            answer=rest["answer"],
            output=rest["output"],
            limits=Limits.model_validate(rest["limits"]) if rest["limits"] else None,
            models=rest["models"],
            allow=rest["allow"],
            serve={name: Path(folder) for name, folder in rest["serve"].items()},
            model=ReplayModel(Recording.load(file), tools=rest.get("recorded_tools", False)) if file else None,
            roles=rest["roles"],
            preview=rest["preview"],
            scenario=started.scenario,
            session=started.session,
            user=started.user,
        )

    @property
    def form(self) -> type[BaseModel] | None:
        """The pydantic model that the result is given back as."""
        return self.output if isclass(self.output) and issubclass(self.output, BaseModel) else None

    @property
    def schema(self) -> dict[str, Any] | None:
        """JSON Schema of the result, if one is asked for."""
        if self.output is None:
            return None
        if isinstance(self.output, Mapping):
            return dict(self.output)
        try:
            return self.output.model_json_schema()
        except PydanticInvalidForJsonSchema as error:
            raise ConfigError(f"output is {self.output.__name__}, which has no JSON Schema: {error.message}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """What a run that was interrupted, or has ended, is asked to do."""

    run: str
    message: str | None = None
    """One more word of the user; the run has ended."""
    refresh: bool = False
    """Loops that have not begun are as today's files say."""
    retry: bool = False
    """Try again what did not succeed; the run has ended."""
    first: str | None = None
    """Try this subtask again, and all that comes after it."""
    again: tuple[str, ...] = ()
    """Subtasks to try again, where a recording says which."""


_TARGET = (
    r"(?<!not )(?<!n't )(?<!never )(?<!不要)(?<!不)(?<!别)(?<!勿)"
    r"(?:\b(?:write|append|add)(?: \w+){0,4} (?:in)?to |"
    r"\b(?:edit|update|change|modify|fix|overwrite|rename|delete)(?: \w+){0,4}?(?: in)? |"
    r"(?:写[入到回]|存[入到]|追加到|修改|更新|编辑|改写|覆盖|删除)\s*)[`'\"“「《]?"
)
"""A verb that changes a file, with no word before it that forbids it, and the file close behind."""


def named_as_targets(goal: str, files: Iterable[str]) -> set[str]:
    """Return the files that a goal names as something to change; any doubt keeps an input read-only."""
    return {name for name in files if re.search(_TARGET + re.escape(name) + r"(?![\w.])", goal, re.IGNORECASE)}
