"""What is checked and made before the first event of a run."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.content.served import served
from orchestrator.context import RunContext, Variables
from orchestrator.delegate import NAME as DELEGATE
from orchestrator.errors import ConfigError
from orchestrator.events import RunStarted
from orchestrator.house import House
from orchestrator.journal.log import RunLog
from orchestrator.ledger import Ledger
from orchestrator.limits import Deadline, Limits
from orchestrator.mcp.servers import Offer
from orchestrator.memory import Owner, Recollection
from orchestrator.models import Model
from orchestrator.models.endpoint import Endpoint
from orchestrator.models.replay import ReplayModel
from orchestrator.models.route import Route
from orchestrator.models.tokens import Meter
from orchestrator.order import Order, Resumption, named_as_targets
from orchestrator.past import Past
from orchestrator.people import People
from orchestrator.plan import FormattedGoal, Subtask
from orchestrator.profile import PROFILES, Profile
from orchestrator.resources import Resources
from orchestrator.role import Role
from orchestrator.schedule import Slots
from orchestrator.schema import wrong_schema
from orchestrator.shift import Shift
from orchestrator.workspace import Workspace


@dataclass(slots=True)
class Preparation:
    """Makes a run ready, anew or to go on."""

    house: House
    order: Order
    resumed: Resumption | None
    past: Past
    log: RunLog
    people: People
    resources: Resources
    """What its tools keep open."""
    home: Path
    """The run's own folder."""
    workspace: Path
    """Folder that it works in."""
    _models: dict[str, tuple[Model, Profile]] = field(default_factory=dict)

    async def context(self, stack: AsyncExitStack) -> RunContext:
        """Check everything that the order names, and return what the loops share; the stack closes what it opens."""
        order, house, past = self.order, self.house, self.past
        frozen = None if self.resumed and self.resumed.refresh else past.frozen
        if not order.goal.strip():
            raise ConfigError("the goal is empty; say in words what you want")
        if order.schema is not None and (fault := wrong_schema(order.schema)):
            raise ConfigError(f"output is no JSON Schema: {fault[0]}")
        roles = {n: Role.model_validate(r) for n, r in frozen.roles.items()} if frozen else self._roles()
        planned = [*(order.plan.subtasks if order.plan else ())]
        if DELEGATE in roles[order.root].tools:  # what is wrong with a template is told before anything runs
            planned += [subtask for template in house.catalog.templates() for subtask in template.plan]
        named = {name for role in roles.values() for name in role.tools} | {s.tool for s in planned if s.tool}
        offer = (await house.servers.offer(named)).as_told(frozen.tools if frozen else {})
        roles = {name: offer.to(role) for name, role in roles.items()}
        if past.started:
            self._find_tools(roles.values(), planned, offer)
        limits = Limits.model_validate(frozen.limits) if frozen else Limits.combine(house.limits, order.limits)
        workspace = self._workspace(roles.values())
        self._find_models(frozen.models if frozen else {})
        network = await stack.enter_async_context(served(order.serve, house.network))
        return RunContext(
            run_id=self.log.run,
            goal=order.goal,
            date=time.strftime("%Y-%m-%d", time.localtime(past.started.at if past.started else self.log.now())),
            log=self.log,
            catalog=house.catalog,
            roles=roles,
            delegable=frozen.delegable if frozen else tuple(name for name in self._delegable() if name in roles),
            models=self._model,
            limits=limits,
            ledger=self._ledger(Limits.combine(limits, roles[order.root].limits)),
            shift=self.shift(limits),
            slots=Slots(limits.max_parallel),
            workspace=workspace,
            variables=Variables(self.log, house.redact, past.variables),
            memory=Recollection(
                house.memory, Owner(user=order.user, session=order.session), self.log.run, house.redact
            ),
            threads=house.threads,
            meters=defaultdict(Meter) if order.model else house.meters,  # a replay counts as the first run did
            scopes={"run": self.resources, "orchestrator": house.resources.get()},
            network=network.also(order.allow),
            people=self.people,
            words=self._words(),
            redact=house.redact,
            offer=offer,
            deps=house.deps,
            params=order.params,
            recording=order.recording if isinstance(order.model, ReplayModel) and order.model.tools else None,
            preview=order.preview,
            constraints=past.constraints,
            formatted_goal=FormattedGoal.model_validate(past.formatted_goal) if past.formatted_goal else None,
            once=list(past.once),
            past=past,
            schemas=frozen.tools if frozen else {},
        )

    def _find_tools(self, roles: Iterable[Role], planned: Sequence[Subtask], offer: Offer) -> None:
        """See that all tools of a run that goes on are still there.

        Raises:
            ConfigError: One is not.
        """
        names = {name for role in roles for name in role.tools} | {s.tool for s in planned if s.tool}
        for name in sorted(names - {DELEGATE} - offer.tools.keys()):
            try:
                self.house.catalog.tool(name)
            except ConfigError as error:
                raise ConfigError(f"run {self.log.run} cannot go on: {error}") from None

    def _find_models(self, names: Mapping[str, str]) -> None:
        """See that a run that goes on has the models that it began with, by their keys.

        Raises:
            ConfigError: One is another now.
        """
        for key, name in names.items():
            if (today := self._model(key)[0].name) != name:
                raise ConfigError(
                    f"run {self.log.run} began with {name!r} as its model {key!r}, which is {today!r} now; "
                    "put it back, or resume with `--refresh`"
                )

    def _workspace(self, roles: Iterable[Role]) -> Workspace:
        """Return the workspace: with the inputs in it, or as the log says it was left."""
        order, past = self.order, self.past
        if self.workspace.is_file():
            raise ConfigError("the workspace is a file; name a folder", file=self.workspace)
        workspace = Workspace(self.workspace, self.home)
        if past.started:
            workspace.restore(past.started.read_only, past.changes)
            return workspace
        for role in roles:
            self._model(role.model)  # a run that cannot begin leaves no folder
        targets = {*order.targets, *named_as_targets(order.goal, (Path(path).name for path in order.inputs))}
        workspace.copy_inputs(order.inputs, order.base, targets)
        return workspace

    def _ledger(self, limits: Limits) -> Ledger:
        replays = getattr(self.order.model, "replayed", False)  # nobody pays for what is replayed
        today = None if replays else self.house.today
        return Ledger(limits, self.order.root, self.log, today, spent=self.past.usage)

    def _words(self) -> tuple[str, ...]:
        """Return what the user wrote, and what those who set things up allowed."""
        order = self.order
        said = [order.goal, *map(str, order.inputs), *map(str, order.params.values()), *order.allow]
        if self.resumed and self.resumed.message:
            said.append(self.resumed.message)
        return (*said, *self.house.network.allow)

    def shift(self, limits: Limits) -> Shift:
        """Return the time that the run has, from now on."""
        shift = Shift(
            Deadline.after(limits.time),
            worked=self.past.active(),
            stopped=lambda: self.people.rest(lambda: shift.running),
        )
        return shift

    def _delegable(self) -> Sequence[str]:
        return self.order.roles or self.house.roles or self.house.catalog.role_names

    def _roles(self) -> dict[str, Role]:
        """Return the root's role and, if it plans, those it may use, with their reviewers."""
        catalog, root = self.house.catalog, self.order.root
        roles = {root: catalog.role(root)}
        if DELEGATE in roles[root].tools:
            roles |= {name: catalog.role(name) for name in self._delegable()}
        elif self.order.plan:
            raise ConfigError(f"the role {root!r} cannot run a plan: {DELEGATE!r} is not among its tools")
        reviewers = {role.review.by for role in roles.values() if role.review}
        return roles | {name: catalog.role(name) for name in reviewers - set(roles)}

    def _model(self, key: str) -> tuple[Model, Profile]:
        if self.order.model is not None:
            return self.order.model, PROFILES["standard"]
        key = self.order.models.get(key, key)
        if key not in self._models:
            model, profile = self.house.model(key)
            self._models[key] = Route(model, self.log.add) if isinstance(model, Endpoint) else model, profile
        return self._models[key]

    def frozen(self, context: RunContext) -> dict[str, Any]:
        """Return what loops are made from, as it is now."""
        names = {name for role in context.roles.values() for name in role.tools} - {DELEGATE}
        tools = {name: context.tool(name) for name in sorted(names)}
        return {
            "limits": context.limits.model_dump(mode="json", exclude_unset=True),
            "roles": {name: role.frozen() for name, role in context.roles.items()},
            "tools": {name: tool.terms() for name, tool in tools.items()},
            "models": {key: context.models(key)[0].name for key in sorted({r.model for r in context.roles.values()})},
            "delegable": context.delegable,
        }

    def started(self, context: RunContext) -> RunStarted:
        """Return the first event: what the run is."""
        order = self.order
        return RunStarted(
            key=order.session or "",
            goal=order.goal,
            root=order.root,
            params=dict(order.params),
            inputs=tuple(str(path) for path in order.inputs),
            workspace=str(self.workspace),
            order=order.frozen(),
            read_only=context.workspace.read_only,
            **self.frozen(context),
            windows={role.model: context.models(role.model)[0].window for role in context.roles.values()},
            scenario=order.scenario,
            session=order.session,
            user=order.user,
        )
