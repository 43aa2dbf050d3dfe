"""Start here. A goal becomes a run: one loop for the planner, one for each subtask, one log for all of it.

    goal ─▶ AgentLoop(planner) ─▶ Model ─▶ Reply ─▶ toolbox ─▶ delegate ─▶ schedule ─▶ AgentLoop(role) ─▶ Outcome
                 ▲                                                                                          │
                 └──────── outcomes, as the tool's result: combine, or delegate again ◀─────────────────────┘

`handle.py` is one run from start to end, `course.py` its work, `loop.py` the engine, `delegate.py` the plan as a tool
call, `subtask.py` what happens to one subtask.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from orchestrator import bounded
from orchestrator.connections import Connections, read_models
from orchestrator.content.catalog import Catalog
from orchestrator.errors import ConfigError
from orchestrator.eventloops import PerLoop, refuse_to_block
from orchestrator.handle import RunHandle
from orchestrator.house import House
from orchestrator.journal import ENGINE_FOLDER, Journal, open_journal
from orchestrator.ledger import Today
from orchestrator.limits import Limits
from orchestrator.mcp.servers import Servers
from orchestrator.memory import MemoryStore
from orchestrator.messages import Json
from orchestrator.models import Model
from orchestrator.order import Order, Resumption, RunOptions
from orchestrator.people import Approve
from orchestrator.plan import Delegate
from orchestrator.resources import Resources
from orchestrator.results import RunResult
from orchestrator.role import Role
from orchestrator.sandbox.guard import AddressGuard
from orchestrator.settings import ModelSettings, Settings, load_settings
from orchestrator.text.redact import Redactor
from orchestrator.threads import ThreadPool
from orchestrator.tool import Tool

if TYPE_CHECKING:
    from orchestrator.content.scenario import Scenario
    from orchestrator.events import ChangesUndone


@dataclass(frozen=True, slots=True)
class Preview:
    """What the planner would do about a goal."""

    plan: Delegate | None
    """The first accepted plan; None when the planner answered at once."""
    result: RunResult


class Orchestrator:
    """Solves goals with agents. Holds models, roles and tools; every run has a context of its own.

    As an async context manager it keeps its connections from run to run; otherwise they are opened at the first run
    and closed after the last.

    Args:
        model: Name of the default model, or a model of your own.
        base_url: Its server's root, usually ending in /v1.
        api_key: Its key.
        models: More models by key: what `ori.yaml` would say of them, or models of your own.
        roles: Roles made in code; if there are any, planners use only these.
        tools: Tools made in code.
        limits: Upper bounds for every run.
        max_runs: Runs at a time, others wait; None: as the project's `ori.yaml` says, without a project any number.
        memory: Where facts of users are kept between runs; None: in a database beside the log.
        journal: Where the log goes: `memory`, `sqlite`, a path, or a journal of your own.
        deps: Handed to tools as `ctx.deps`.
        approve: Asks a person about calls that wait for one. Without it such calls wait in the log where that is on
            disk, else they are refused.
        project: Folder with `ori.yaml`, `roles/`, `prompts/`, `tools/` and `scenarios/`.

    Raises:
        ConfigError: Something in the arguments or in the project's `ori.yaml` is wrong.
    """

    def __init__(
        self,
        *,
        model: str | Model | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        models: Mapping[str, ModelSettings | Model | Mapping[str, Json]] | None = None,
        roles: Iterable[Role] = (),
        tools: Iterable[Tool] = (),
        limits: Limits | None = None,
        max_runs: int | None = None,
        journal: str | Path | Journal | None = None,
        memory: MemoryStore | None = None,
        deps: Any = None,
        approve: Approve | None = None,
        project: str | Path | None = None,
    ) -> None:
        self.project = None if project is None else Path(project).resolve()
        self.settings: Settings = load_settings(self.project)
        named: dict[str, ModelSettings | Model | Mapping[str, Json]] = dict(models or {})
        if model is not None:
            said = {"model": model, "base_url": base_url, "api_key": api_key}
            named["default"] = said if isinstance(model, str) else model
        given = read_models(named)
        self._connections = Connections(self.settings, given)
        roles = tuple(roles)
        self.catalog = Catalog.from_project(
            self.project,
            roles=roles,
            tools=tools,
            models={*self.settings.models, *given} or None,
            settings=self.settings,
        )
        self.home = self.project / ENGINE_FOLDER if self.project else _state_home()
        if journal is None:
            journal = self.settings.journal if self.project else "memory"
        self.journal: Journal = open_journal(journal, self.home / "runs.db")
        self.memory: MemoryStore = memory or _memory(self.settings, self.home / "memory.db")
        self._entered: PerLoop[Counter[str]] = PerLoop(Counter)
        """Who is inside, in each event loop: connections belong to the loop they were made in."""
        if max_runs is None and self.project:
            max_runs = self.settings.max_runs
        described = {key: m for key, m in given.items() if isinstance(m, ModelSettings)}
        redactor = Redactor([*self.settings.secrets(), *Settings(models=self.settings.models | described).secrets()])
        threads = ThreadPool()
        resources = PerLoop(Resources)
        self._house = House(
            catalog=self.catalog,
            journal=self.journal,
            model=self._connections.model,
            open=lambda: self,
            redact=redactor.text,
            threads=threads,
            memory=self.memory,
            network=AddressGuard(self.settings.network.allow, threads=threads),
            home=self.home,
            limits=Limits.combine(self.settings.limits, limits),
            today=Today(cap, self.journal) if (cap := self.settings.limits.cost_per_day) else None,
            roles=tuple(role.name for role in roles),
            resources=resources,
            servers=Servers(self.settings, self.project or Path(), resources.get, redactor.text),
            turns=PerLoop(lambda: asyncio.Semaphore(max_runs)) if max_runs else None,
            deps=deps,
            approve=approve,
        )

    @classmethod
    def from_project(
        cls,
        path: str | Path = ".",
        *,
        journal: str | Path | Journal | None = None,
        deps: Any = None,
        approve: Approve | None = None,
    ) -> Self:
        """Return the orchestrator of a project's folder; what it does not have itself comes from the shipped content.

        Args:
            path: The folder; `ori.yaml` and the content folders in it are optional.
            journal: Over the one in `ori.yaml`; by default SQLite at `.ori/runs.db`.
            deps: Handed to tools as `ctx.deps`.
            approve: Asks a person about calls that wait for one.
        """
        return cls(project=path, journal=journal, deps=deps, approve=approve)

    # the ways to run something

    async def solve(self, goal: str, **options: Unpack[RunOptions]) -> RunResult:
        """Plan, work and combine until the goal is answered or a limit is reached.

        A failed run is a result, too: its `status` and `failure` say what happened.

        Raises:
            ConfigError: The run cannot start: an empty goal, a missing input, no model.
            JournalError: The log cannot be written.
        """
        return await self._result(Order.asked(goal, options))

    def solve_sync(self, goal: str, **options: Unpack[RunOptions]) -> RunResult:
        """Do the same from code that is not async."""
        refuse_to_block("await orchestrator.solve(…)")
        return bounded.run(self.solve(goal, **options))

    def start(self, goal: str, **options: Unpack[RunOptions]) -> RunHandle:
        """Return a run that begins when its `async with` is entered.

        Args:
            goal: What is wanted, in words.
            options: See `RunOptions`.
        """
        return RunHandle(self._house, Order.asked(goal, options))

    def stream(self, goal: str, **options: Unpack[RunOptions]) -> RunHandle:
        """Return the same run as `start`, whose events include each piece of text as it arrives."""
        return RunHandle(self._house, Order.asked(goal, options), passing=True)

    async def run_role(self, role: str, task: str, **options: Unpack[RunOptions]) -> RunResult:
        """Run one loop of a role, without a planner."""
        return await self._result(replace(Order.asked(task, options), root=role))

    async def resume(self, run_id: str, message: str | None = None, *, refresh: bool = False) -> RunResult:
        """Go on with a run that was interrupted, or has ended, from where its log says it stands.

        Args:
            run_id: The run.
            message: One more word of the user; for a run that has ended.
            refresh: Roles and tools that have not been used yet are as today's files say; else as when it began.

        Raises:
            ConfigError: It cannot go on, or something that it needs is no longer there.
            JournalError: There is no such run, or somebody else works on it.
        """
        async with self.start_resumed(run_id, message, refresh=refresh) as handle:
            return await handle.result()

    async def retry(self, run_id: str, *, first: str | None = None, refresh: bool = False) -> RunResult:
        """Try again what did not succeed in a run that has ended, and let its planner answer anew.

        Args:
            run_id: The run.
            first: Id of a subtask: try it again whatever it came to, and all that comes after it.
            refresh: As for `resume`.
        """
        async with self.start_resumed(run_id, retry=True, first=first, refresh=refresh) as handle:
            return await handle.result()

    async def undo(self, run_id: str, subtask: str | None = None, *, force: bool = False) -> ChangesUndone:
        """Put back what a run, or one subtask of it, changed in its workspace; tell what cannot be undone.

        Args:
            run_id: The run; nobody may work on it.
            subtask: Id of the only subtask to undo; None: the whole run.
            force: Also where somebody changed a file since.

        Raises:
            ConfigError: There is no such subtask.
            JournalError: There is no such run, or somebody works on it.
        """
        from orchestrator.undo import undo

        return await undo(self.journal, self.home / "runs" / run_id, run_id, subtask, force=force)

    def start_resumed(
        self,
        run_id: str,
        message: str | None = None,
        *,
        refresh: bool = False,
        retry: bool = False,
        first: str | None = None,
    ) -> RunHandle:
        """Return a run that goes on when its `async with` is entered: `resume`, or `retry`, as a handle."""
        again = Resumption(run=run_id, message=message, refresh=refresh, retry=retry, first=first)
        return RunHandle(self._house, again)

    async def plan(self, goal: str, **options: Unpack[RunOptions]) -> Preview:
        """Ask for a plan and stop at the first accepted one."""
        order = replace(Order.asked(goal, options), preview=True, output=None)
        result = await self._result(order)
        return Preview(Delegate.model_validate(result.value) if result.value else None, result)

    def start_scenario(
        self,
        scenario: Scenario,
        *,
        params: Mapping[str, Json] | None = None,
        workspace: str | Path | None = None,
        plan: Delegate | None = None,
        replay: bool | Literal["all"] = False,
    ) -> RunHandle:
        """Return the run of a scenario.

        Args:
            scenario: From `catalog.scenario(name)`.
            params: Over the scenario's own.
            workspace: Folder to work in; None: a new one.
            plan: Over the scenario's own.
            replay: Take the model's replies from the scenario's recording; `all`: also what came of tool calls.

        Raises:
            ConfigError: A parameter is unknown, or there is no recording.
        """
        bound = scenario.bind(params)
        return RunHandle(self._house, Order.of_scenario(bound, workspace=workspace, plan=plan, replay=replay))

    def start_replay(
        self,
        file: str | Path,
        *,
        tools: bool = False,
        params: Mapping[str, Json] | None = None,
        workspace: str | Path | None = None,
    ) -> RunHandle:
        """Return the run that a recording was made of, asked again offline.

        Args:
            file: The recording, relative to the project.
            tools: Also what came of tool calls is as it was recorded; no tool runs.
            params: Over those it was recorded with.
            workspace: Folder to work in; None: a new one.

        Raises:
            ConfigError: It cannot be read, or says neither its scenario nor what the run was asked.
        """
        from orchestrator.models.replay import Recording, ReplayModel

        base = self.project or Path.cwd()
        model = ReplayModel(Recording.load(base / file), tools=tools)
        header = model.recording.header
        if header.asked is None:
            scenario = self.catalog.scenario(header.scenario).bind(params)
            order = replace(Order.of_scenario(scenario, workspace=workspace), model=model)
        else:
            order = Order.recorded(header.asked, base=base, params=params or {}, workspace=workspace, model=model)
        return RunHandle(self._house, order)

    async def _result(self, order: Order) -> RunResult:
        async with RunHandle(self._house, order, followed=False) as handle:
            return await handle.result()

    # connections

    async def __aenter__(self) -> Self:
        self._entered.get()["open"] += 1
        return self

    async def __aexit__(self, *error: object) -> None:
        entered = self._entered.get()
        entered["open"] -= 1
        if not entered["open"]:
            await self.aclose()

    async def aclose(self) -> None:
        """Close connections and the log's file; both open again at the next use."""
        await self._house.resources.get().aclose()
        await self._connections.aclose()
        await self.journal.aclose()


def _memory(settings: Settings, file: Path) -> MemoryStore:
    from orchestrator.memory.sqlite import SqliteMemory

    given = settings.memory.embeddings
    if given is None:
        return SqliteMemory(file)
    from orchestrator.models.embedding import OpenAIEmbedder

    key = given.api_key.get_secret_value() if given.api_key else None
    return SqliteMemory(file, embedder=OpenAIEmbedder(given.model, base_url=given.base_url, api_key=key))


def _state_home() -> Path:
    """Return the user's folder for the runs of programs without a project.

    Raises:
        ConfigError: There is none, as for a user of a container whose number has no name.
    """
    from platformdirs import user_state_path

    try:
        return user_state_path("ori")
    except RuntimeError:
        raise ConfigError(
            "this user has no home folder to keep runs in: set XDG_STATE_HOME, or give project="
        ) from None
