"""One run from start to end: its order, its handle, and what ties it to the log."""

from __future__ import annotations

import asyncio
import secrets
import time
import traceback
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from orchestrator import carry
from orchestrator.answers import Ending, by_outcomes
from orchestrator.context import RunContext, Variables
from orchestrator.delegate import NAME as DELEGATE
from orchestrator.delegate import Planner, sources_of
from orchestrator.errors import ConfigError, JournalError, LoopStopped, OriError, RunStopped
from orchestrator.events import Event, PlanReopened, RunEnded, RunResumed, RunStarted, Warned
from orchestrator.failure import Failure, FailureKind
from orchestrator.inbox import give_word
from orchestrator.journal import Signal
from orchestrator.journal.log import RunLog, Subscription
from orchestrator.ledger import Ledger
from orchestrator.limits import Deadline, Limits
from orchestrator.loop import Given
from orchestrator.memory import Owner, Recollection
from orchestrator.messages import Json
from orchestrator.models import Model
from orchestrator.models.endpoint import Endpoint
from orchestrator.models.route import Route
from orchestrator.models.tokens import Meter
from orchestrator.order import House, Order, Resumption, named_as_targets
from orchestrator.past import Past
from orchestrator.people import PROGRAM, People
from orchestrator.plan import FormattedGoal
from orchestrator.profile import PROFILES, Profile
from orchestrator.resources import Resources
from orchestrator.results import Outcome, RunResult, RunStatus, StopReason
from orchestrator.role import Role
from orchestrator.schedule import Slots
from orchestrator.schema import wrong_schema
from orchestrator.served import served
from orchestrator.shift import Shift
from orchestrator.subtask import Workers
from orchestrator.workspace import Workspace

_CAN_GO_ON: tuple[StopReason, ...] = ("cancelled", "model_unavailable", "needs_person", "bug")
"""How a run can have ended and yet be resumed: what stopped it may be over."""


class RunHandle:
    """One run. Entering it with `async with` starts the run, leaving it early stops it; `async for` gives its events.

    Args:
        house: What it shares with other runs.
        order: What it is asked to do, anew or to a run of the log.
        passing: Whether its events include passing ones, such as text as it arrives.
        followed: Whether it has events to iterate over; without them a turn is cheaper.
    """

    def __init__(
        self, house: House, order: Order | Resumption, *, passing: bool = False, followed: bool = True
    ) -> None:
        self._resumed = order if isinstance(order, Resumption) else None
        self.run_id = order.run if isinstance(order, Resumption) else _new_id()
        self.order = order if isinstance(order, Order) else Order(goal="")  # the log knows it
        self._past = Past()
        self.before: Sequence[Event] = ()
        """What happened in the run before this handle."""
        self._house = house
        self._home = house.home / "runs" / self.run_id
        self.passing = passing
        """Whether its events will include passing ones; may be set until it is entered."""
        self._says_attended = False
        self._followed = followed
        self._events: Subscription | None = None
        self._log = RunLog(self.run_id, house.journal)
        self._stack = AsyncExitStack()
        self._resources = Resources()
        self._models: dict[str, tuple[Model, Profile]] = {}
        self._task: asyncio.Task[RunResult | OriError] | None = None
        self._ending = False
        """It is being cancelled, or its end is being recorded: nothing is left to cancel."""
        self._parking = False
        """It ends here, until it is resumed: all that could work waits for people."""
        self.people = People(
            self._log, house.journal, house.approve, cancelled=self._stop, parked=lambda: self._stop(parking=True)
        )

    @property
    def workspace(self) -> Path:
        """Folder that the run works in."""
        return (self.order.workspace or self._home / "workspace").absolute()

    @property
    def attended(self) -> bool:
        """Whether somebody in this program answers questions; unless it is set, whoever follows the events does."""
        return self.people.attended

    @attended.setter
    def attended(self, value: bool) -> None:
        self.people.attended, self._says_attended = value, True

    async def __aenter__(self) -> Self:
        """Check the order and start.

        Raises:
            ConfigError: The run cannot start: an empty goal, a missing input, a wrong role or template, no model; or
                it cannot go on: there is nothing left to do.
            JournalError: The log cannot be written; or there is no such run, or somebody else works on it.
        """
        try:
            await self._stack.enter_async_context(self._house.open())
            await self._stack.enter_async_context(self._house.journal.own(self.run_id))
            if self._resumed:
                await self._read(self._resumed)
            await self._stack.enter_async_context(self.people.open())
            context = await self._context()
            if self._followed:
                self._events = self._log.subscribe(passing=self.passing)
            for event in self._going_on(self._resumed, context) if self._resumed else [self._started(context)]:
                self._past.apply(self._log.add(event))
            for error in self._house.catalog.unreadable:
                self._log.add(Warned(text=f"tools are missing: {error}"))
            for text in context.offer.missing:
                self._log.add(Warned(text=text))
            await self._log.commit()
            await self._stack.enter_async_context(self._resources)
            group = await self._stack.enter_async_context(asyncio.TaskGroup())
            self._task = group.create_task(self._run(context), name=self.run_id)
            await asyncio.sleep(0)  # let it begin: a task that is cancelled before its first step can record nothing
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._task is not None:
            self._task.cancel()
        await self._stack.aclose()

    def __aiter__(self) -> AsyncIterator[Event]:
        self._begun()
        if self._events is None:
            raise ConfigError("this run was started without events to follow")
        self.people.attended |= not self._says_attended
        return self._events

    def _begun(self) -> asyncio.Task[RunResult | OriError]:
        if self._task is None:
            raise ConfigError("the run has not begun; enter its handle first, with `async with`")
        return self._task

    async def result(self) -> RunResult:
        """Wait for the end and return the result.

        Raises:
            JournalError: The log could not be written.
            RunStopped: The handle was left before the run ended.
        """
        task = self._begun()
        await asyncio.wait([task])
        if task.cancelled():
            failure = Failure(FailureKind.cancelled, "the run was left before it ended, so it has no result")
            raise RunStopped(failure)
        result = task.result()
        if isinstance(result, OriError):
            raise result
        return result

    async def cancel(self) -> RunResult:
        """Stop everything the run does, and return the result; finished work is kept, and the run can be resumed."""
        self._begun()
        self._stop()
        return await self.result()

    def _stop(self, *, parking: bool = False) -> None:
        if not self._ending and self._task:
            self._ending, self._parking = True, parking
            self._task.cancel()

    async def approve(self, call: str, arguments: Mapping[str, Json] | None = None, *, by: str = PROGRAM) -> Signal:
        """Let a call be made that waits for a person, or accept a result; return the word that counts.

        Args:
            call: Its key, as `approval.asked` names it.
            arguments: To use instead, all of them.
            by: Whose word it is.

        Raises:
            ConfigError: No such call waits, or the arguments do not fit it.
        """
        data = {} if arguments is None else {"arguments": dict(arguments)}
        return await give_word(self._house.journal, self.run_id, call, "approve", by, **data)

    async def deny(self, call: str, why: str = "", *, by: str = PROGRAM) -> Signal:
        """Keep a call from being made; the model is told why. Else like `approve`."""
        return await give_word(self._house.journal, self.run_id, call, "deny", by, why=why)

    async def answer(self, call: str, text: str, *, by: str = PROGRAM) -> Signal:
        """Answer a question, or put a result in the place of one that waits. Else like `approve`."""
        return await give_word(self._house.journal, self.run_id, call, "answer", by, text=text)

    # the run

    async def _context(self) -> RunContext:
        """Check everything that the order names, before the first event."""
        order, house, past = self.order, self._house, self._past
        frozen = None if self._resumed and self._resumed.refresh else past.frozen
        if not order.goal.strip():
            raise ConfigError("the goal is empty; say in words what you want")
        if order.schema is not None and (fault := wrong_schema(order.schema)):
            raise ConfigError(f"output is no JSON Schema: {fault[0]}")
        roles = {n: Role.model_validate(r) for n, r in frozen.roles.items()} if frozen else self._roles()
        planned = [*(order.plan.subtasks if order.plan else ())]
        if DELEGATE in roles[order.root].tools:  # what is wrong with a template is told before anything runs
            planned += [subtask for template in house.catalog.templates() for subtask in template.subtasks]
        named = {name for role in roles.values() for name in role.tools} | {s.tool for s in planned if s.tool}
        offer = (await house.servers.offer(named)).as_told(frozen.tools if frozen else {})
        roles = {name: offer.to(role) for name, role in roles.items()}
        limits = Limits.model_validate(frozen.limits) if frozen else Limits.combine(house.limits, order.limits)
        workspace = Workspace(self.workspace, self._home)
        if past.started:
            workspace.restore(past.started.read_only, past.changes)
        else:
            targets = {*order.targets, *named_as_targets(order.goal, (Path(path).name for path in order.inputs))}
            workspace.copy_inputs(order.inputs, order.base, targets)
        for key, name in (frozen.models if frozen else {}).items():
            if (today := self._model(key)[0].name) != name:
                raise ConfigError(
                    f"run {self.run_id} began with {name!r} as its model {key!r}, which is {today!r} now; "
                    "put it back, or resume with `--refresh`"
                )
        network = await self._stack.enter_async_context(served(order.serve, house.network))
        return RunContext(
            run_id=self.run_id,
            goal=order.goal,
            date=time.strftime("%Y-%m-%d", time.localtime(past.started.at if past.started else self._log.now())),
            log=self._log,
            catalog=house.catalog,
            roles=roles,
            delegable=frozen.delegable if frozen else tuple(name for name in self._delegable() if name in roles),
            models=self._model,
            limits=limits,
            ledger=self._ledger(Limits.combine(limits, roles[order.root].limits)),
            shift=self._shift(limits),
            slots=Slots(limits.max_parallel),
            workspace=workspace,
            variables=Variables(self._log, house.redact, past.variables),
            memory=Recollection(house.memory, Owner(user=order.user, session=order.session), self.run_id, house.redact),
            threads=house.threads,
            meters=defaultdict(Meter) if order.model else house.meters,  # a replay counts as the first run did
            scopes={"run": self._resources, "orchestrator": house.resources.get()},
            network=network.also(order.allow),
            people=self.people,
            words=self._words(),
            redact=house.redact,
            offer=offer,
            deps=house.deps,
            params=order.params,
            preview=order.preview,
            constraints=past.constraints,
            formatted_goal=FormattedGoal.model_validate(past.formatted_goal) if past.formatted_goal else None,
            past=past,
            schemas=frozen.tools if frozen else {},
        )

    def _ledger(self, limits: Limits) -> Ledger:
        replays = getattr(self.order.model, "replayed", False)  # nobody pays for what is replayed
        today = None if replays else self._house.today
        return Ledger(limits, self.order.root, self._log, today, spent=self._past.usage)

    def _words(self) -> tuple[str, ...]:
        """Return what the user wrote, and what those who set things up allowed."""
        order = self.order
        said = [order.goal, *map(str, order.inputs), *map(str, order.params.values()), *order.allow]
        if self._resumed and self._resumed.message:
            said.append(self._resumed.message)
        return (*said, *self._house.network.allow)

    def _shift(self, limits: Limits) -> Shift:
        shift = Shift(
            Deadline.after(limits.time),
            worked=self._past.active(),
            stopped=lambda: self.people.rest(lambda: shift.running),
        )
        return shift

    def _delegable(self) -> Sequence[str]:
        return self.order.roles or self._house.roles or self._house.catalog.role_names

    def _roles(self) -> dict[str, Role]:
        """Return the root's role and, if it plans, those it may use, with their reviewers."""
        catalog, root = self._house.catalog, self.order.root
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
            model, profile = self._house.model(key)
            self._models[key] = Route(model, self._log.add) if isinstance(model, Endpoint) else model, profile
        return self._models[key]

    async def _run(self, context: RunContext) -> RunResult | OriError:
        """Solve, and record the end. A run that is cancelled from outside leaves no end: it can go on.

        What stops the record itself is returned, not raised: a task that raises would cancel whoever waits for it.
        """
        try:
            return await self._recorded(context)
        except OriError as error:
            return error
        finally:
            self._log.close()

    async def _recorded(self, context: RunContext) -> RunResult:
        workers = Workers(context)
        try:
            async with self._turn(context):
                ending = await self._solve(context, workers)
            result = self._typed(self._result(context, workers, ending))
        except RunStopped as stopped:
            result = self._failed(context, workers, "model_unavailable", stopped.failure)
        except LoopStopped as stopped:
            result = self._failed(context, workers, stopped.stop_reason, stopped.failure)
        except asyncio.CancelledError:
            if not self._ending:
                raise
            if self._parking:
                return await self._parked(context, workers)
            failure = Failure(FailureKind.cancelled, "the run was cancelled")
            result = self._failed(context, workers, "cancelled", failure)
        except OriError:
            raise
        except Exception as error:  # noqa: BLE001 - the run's edge: a fault of ours becomes a failed run
            self._log.add(Warned(text=context.redact(traceback.format_exc())))
            failure = Failure(FailureKind.bug, context.redact(f"{type(error).__name__}: {error}"))
            result = self._failed(context, workers, "bug", failure)
        self._ending = True
        await carry.keep(context, result)
        self._log.add(RunEnded(result=result))
        await self._log.commit()
        return result

    async def _parked(self, context: RunContext, workers: Workers) -> RunResult:
        """Return how a run stands that waits for people and can do nothing else; its log says no end."""
        await self._log.commit()
        waiting = len(self.people.waiting)
        message = (
            f"{waiting} call{'s wait' if waiting > 1 else ' waits'} for a person: `ori inbox` lists what to answer"
        )
        failure = Failure(FailureKind.needs_person, message)
        return self._collect(context, workers, "needs_review", "needs_person", failure)

    async def _read(self, resumed: Resumption) -> None:
        """Read what the run was asked and has done.

        Raises:
            ConfigError: It cannot go on in this way.
        """
        self.before = await self._house.journal.events(self.run_id)
        past = self._past = Past.of(self.before)
        if past.started is None:
            raise JournalError(f"the log of run {self.run_id} does not begin with its start")
        anew = resumed.message is not None or resumed.retry
        if anew and past.ended is None:
            raise ConfigError(f"run {self.run_id} has not ended; first let it go on: ori resume {self.run_id}")
        if not anew and past.ended and past.ended.result.stop_reason not in _CAN_GO_ON:
            raise ConfigError(
                f"run {self.run_id} has ended ({past.ended.result.status}); what did not succeed can be tried again "
                f"(ori retry {self.run_id}), and a message makes it go on (--message)"
            )
        self.order = Order.of(past.started)
        self._log.go_on(past.seq, past.at)

    def _going_on(self, resumed: Resumption, context: RunContext) -> Iterator[Event]:
        past, root = self._past, self.order.root
        calls = [intent for intent in past.intents.values() if intent.name != DELEGATE]
        again = past.plans[root].plan.to_retry(resumed.first) if resumed.retry and root in past.plans else ()
        message = context.text("try_again") if resumed.retry and not again else resumed.message
        yield RunResumed(
            reused=past.replies + len(past.returned),
            again=len(past.called) + len(calls),
            paid_twice=len(past.called),
            changed=context.workspace.changes.strayed(),
            message=message,
            **(self._frozen(context) if resumed.refresh else {}),
        )
        if again:
            yield PlanReopened(path=root, ids=again)

    def _frozen(self, context: RunContext) -> dict[str, Any]:
        """Return what loops are made from, as it is now."""
        names = {name for role in context.roles.values() for name in role.tools} - {DELEGATE}
        tools = {name: context.tool(name) for name in sorted(names)}
        return {
            "limits": context.limits.model_dump(mode="json", exclude_unset=True),
            "roles": {name: role.frozen() for name, role in context.roles.items()},
            "tools": {n: {"description": t.description, "parameters": dict(t.parameters)} for n, t in tools.items()},
            "models": {key: context.models(key)[0].name for key in sorted({r.model for r in context.roles.values()})},
            "delegable": context.delegable,
        }

    def _started(self, context: RunContext) -> RunStarted:
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
            **self._frozen(context),
            windows={role.model: context.models(role.model)[0].window for role in context.roles.values()},
            scenario=order.scenario,
            session=order.session,
            user=order.user,
        )

    @asynccontextmanager
    async def _turn(self, context: RunContext) -> AsyncIterator[None]:
        """Wait until fewer runs than `max_runs` are at work; the run's time begins then."""
        if self._house.turns is None:
            yield
            return
        turns = self._house.turns.get()
        if turns.locked():
            self._log.add(Warned(text="waiting: as many runs are at work as `max_runs` allows"))
        async with turns:
            context.shift = self._shift(context.limits)
            yield

    async def _solve(self, context: RunContext, workers: Workers) -> Ending:
        """Open the root loop, tell it the goal, and run it to its end."""
        order = self.order
        given = [] if order.root in context.past.loops else await self._given(context)
        loop = await workers.opening.open(context.roles[order.root], order.root, goal=order.goal, output=order.schema)
        planner = workers.opening.planners.get(order.root)
        if not loop.begun:
            loop.say(self._brief(context, planner))
            loop.give(*given)
        if context.past.message:
            loop.say(context.past.message)
        elif planner and planner.reopened:
            async with loop.shift.limited():
                table = await planner.run_reopened()
            sources = sources_of(planner.plan.outcomes.values())
            loop.give(Given(context.text("tried_again"), table, sources))
        elif planner and order.plan and not loop.turn and (planner.open or not planner.plan.subtasks):
            async with loop.shift.limited():
                table = await planner.run_ready(order.plan, order.scenario)
            answer = planner.plan.outcomes.get(order.answer or "")
            if answer and answer.status == "done":
                return Ending("done", "answer", answer.answer, answer.value, untrusted=answer.untrusted)
            sources = sources_of(planner.plan.outcomes.values())
            loop.give(Given(context.text("template_ran"), table, sources))
        async with loop.toolbox.resources:
            ending = await loop.run()
        return replace(ending, untrusted=tuple(loop.conversation.sources))

    async def _given(self, context: RunContext) -> list[Given]:
        """Take over the variables of the session's earlier goals; return what came of those, and what is remembered."""
        given = await carry.recall(context, self.order.root, self.order.goal)
        if self.order.session is not None:
            earlier = await self._house.journal.session(self.order.session, self.order.user)
            given = carry.session(context, [event for event in earlier if event.run != self.run_id]) + given
        return given

    def _brief(self, context: RunContext, planner: Planner | None) -> str:
        """Word the first message: the goal, and what there is to work with."""
        if planner is None:
            return context.text("worker_task", goal=self.order.goal, files="", expect="", constraints="", request="")
        templates = planner.templates.values()
        return context.text(
            "planner_task",
            goal=self.order.goal,
            date=context.date,
            files=context.workspace.listing(),
            templates="\n".join(f"- {t.name}({', '.join(t.params)}): {t.when}" for t in templates),
        )

    # the result

    def _result(self, context: RunContext, workers: Workers, ending: Ending) -> RunResult:
        """Judge the run by its outcomes: the planner's own words do not make it a success."""
        planner = workers.opening.planners.get(self.order.root)
        if planner:
            ending = by_outcomes(ending, planner.plan, planner.rejected > 0)
        status: RunStatus = "partial" if ending.status == "skipped" else ending.status
        return self._collect(context, workers, status, ending.stop_reason, ending.failure).model_copy(
            update={"answer": ending.answer, "value": ending.value, "untrusted": ending.untrusted}
        )

    def _failed(self, context: RunContext, workers: Workers, reason: StopReason, failure: Failure) -> RunResult:
        status: RunStatus = "cancelled" if reason == "cancelled" else "failed"
        return self._collect(context, workers, status, reason, failure)

    def _collect(
        self, context: RunContext, workers: Workers, status: RunStatus, reason: StopReason, failure: Failure | None
    ) -> RunResult:
        planner = workers.opening.planners.get(self.order.root)
        formatted = context.formatted_goal
        return RunResult(
            run_id=self.run_id,
            status=status,
            stop_reason=reason,
            formatted_goal=formatted.model_dump(mode="json") if formatted else None,
            outcomes=self._outcomes(planner, reason) if planner else {},
            artifacts=context.workspace.changes.artifacts(),
            usage=context.ledger.spent,
            failure=failure,
            workspace=str(self.workspace) if self.workspace.exists() else None,
        )

    def _outcomes(self, planner: Planner, reason: StopReason) -> dict[str, Outcome]:
        """Return how the subtasks ended, in plan order; of a cancelled run also those that had not ended."""
        plan, outcomes = planner.plan, planner.plan.outcomes
        if reason == "cancelled":
            now, started = self._log.now(), plan.started
            outcomes = outcomes | {
                id: Outcome(
                    id=id,
                    path=f"{planner.path}/{id}",
                    role=subtask.performer,
                    status="cancelled",
                    stop_reason="cancelled",
                    attempts=int(id in started),
                    ended=now,
                )
                for id, subtask in plan.subtasks.items()
                if id not in outcomes
            }
        return {id: outcomes[id] for id in plan.subtasks if id in outcomes}

    def _typed(self, result: RunResult) -> RunResult:
        """Give the value back as the model that was asked for."""
        output = self.order.output
        if result.value is None or not isinstance(output, type):
            return result
        try:
            return result.model_copy(update={"value": output.model_validate(result.value)})
        except ValidationError as error:
            message = f"the result does not fit {output.__name__}: {error}"
            failure = Failure(FailureKind.bad_model_output, message)
            return result.model_copy(update={"status": "failed", "stop_reason": "invalid_output", "failure": failure})


def _new_id() -> str:
    return time.strftime("%y%m%d-%H%M%S-") + secrets.token_hex(4)
