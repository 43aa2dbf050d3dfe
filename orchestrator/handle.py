"""One run from start to end: its order, its handle, and what ties it to the log."""

from __future__ import annotations

import asyncio
import secrets
import time
import traceback
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Self

from orchestrator import carry
from orchestrator.context import RunContext
from orchestrator.course import Course
from orchestrator.delegate import NAME as DELEGATE
from orchestrator.errors import ConfigError, JournalError, LoopStopped, OriError, RunStopped
from orchestrator.events import Event, PlanReopened, RunEnded, RunResumed, Warned
from orchestrator.failure import Failure, FailureKind, StopReason
from orchestrator.house import House
from orchestrator.inbox import give_word
from orchestrator.journal import Signal
from orchestrator.journal.log import RunLog, Subscription
from orchestrator.messages import Json
from orchestrator.models.replay import Further, is_cut_off
from orchestrator.order import Order, Resumption
from orchestrator.past import Past
from orchestrator.people import PROGRAM, People
from orchestrator.preparation import Preparation
from orchestrator.resources import Resources
from orchestrator.results import RunResult

_CAN_GO_ON: tuple[StopReason, ...] = ("cancelled", "model_unavailable", "needs_person", "bug")
"""How a run can have ended and yet be resumed: what stopped it may be over."""


class RunHandle:
    """One run. Entering it with `async with` starts the run, leaving it early stops it; `async for` gives its events.

    Where it was not entered, `async for` does that, too: the run lasts as long as the iteration.

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
            await self._stack.enter_async_context(self.people.open(self._recorded_words()))
            context = await self._prepare(self._resumed, self._stack)
            if self._followed:
                self._events = self._log.subscribe(passing=self.passing)
            self._begin(self._resumed, context)
            for error in self._house.catalog.unreadable:
                self._log.add(Warned(text=f"tools are missing: {error}"))
            for text in context.offer.missing:
                self._log.add(Warned(text=text))
            await self._log.commit()
            await self._stack.enter_async_context(self._resources)
            group = await self._stack.enter_async_context(asyncio.TaskGroup())
            self._task = group.create_task(self._run(context), name=self.run_id)
            await asyncio.sleep(0)  # let it begin: a task that is cancelled before its first step can record nothing
            if self._ending:  # somebody cancelled it while it was made ready
                self._task.cancel()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._task is not None:
            self._task.cancel()
        await self._stack.aclose()

    async def _prepare(self, resumed: Resumption | None, stack: AsyncExitStack) -> RunContext:
        self._prepared = Preparation(
            self._house,
            self.order,
            resumed,
            self._past,
            self._log,
            self.people,
            self._resources,
            self._home,
            self.workspace,
        )
        return await self._prepared.context(stack)

    def _begin(self, resumed: Resumption | None, context: RunContext) -> None:
        """Record that the run begins, or goes on."""
        first = [self._prepared.started(context)] if resumed is None else self._going_on(resumed, context)
        for event in first:
            self._past.apply(self._log.add(event))

    def __aiter__(self) -> AsyncIterator[Event]:
        if self._task is None:
            return self._from_start()
        if self._events is None:
            raise ConfigError("this run was started without events to follow")
        self.people.attended |= not self._says_attended
        return self._events

    async def _from_start(self) -> AsyncIterator[Event]:
        async with self:
            async for event in self:
                yield event

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
        if not self._ending:
            self._ending, self._parking = True, parking
            if self._task:
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

    async def _run(self, context: RunContext) -> RunResult | OriError:
        """Solve, and record the end. A run that is cancelled from outside leaves no end: it can go on.

        What stops the record itself is returned, not raised: a task that raises would cancel whoever waits for it.
        """
        try:
            result = await self._recorded(context)
            for further in self._recorded_further():
                if self._parking or is_cut_off(result):
                    break
                result = await self._go_further(further)
            return result
        except OriError as error:
            return error
        finally:
            context.workspace.close()
            self._log.close()

    def _recorded_words(self) -> dict[str, Signal]:
        """Return what people said in the run that this one replays."""
        words = self.order.recording.words if self.order.recording else {}
        return {
            key: Signal(run=self.run_id, key=key, kind=word.word, by=word.by, at=0.0, data=word.data)
            for key, word in words.items()
        }

    def _recorded_further(self) -> Sequence[Further]:
        """Return how the run that this one replays went on after its end, as far as this one has not."""
        done = sum(isinstance(e, PlanReopened) or (isinstance(e, RunResumed) and bool(e.message)) for e in self.before)
        return self.order.recording.further[done:] if self.order.recording else ()

    async def _go_further(self, further: Further) -> RunResult:
        """Let the run go on after its end."""
        self._past = Past.of(await self._house.journal.events(self.run_id))
        resumed = Resumption(run=self.run_id, message=further.further, retry=bool(further.again), again=further.again)
        async with AsyncExitStack() as stack:
            context = await self._prepare(resumed, stack)
            stack.callback(context.workspace.close)
            self._begin(resumed, context)
            self._ending = False
            return await self._recorded(context)

    async def _recorded(self, context: RunContext) -> RunResult:
        course = Course(context, self.order, self._house.journal)
        try:
            async with self._turn(context):
                ending = await course.solve()
            result = course.result(ending)
        except RunStopped as stopped:
            result = course.failed("model_unavailable", stopped.failure)
        except LoopStopped as stopped:
            result = course.failed(stopped.stop_reason, stopped.failure)
        except asyncio.CancelledError:
            if not self._ending:
                raise
            if self._parking:
                return await self._parked(course)
            failure = Failure(FailureKind.cancelled, "the run was cancelled")
            result = course.failed("cancelled", failure)
        except OriError:
            raise
        except Exception as error:  # noqa: BLE001 - the run's edge: a fault of ours becomes a failed run
            self._log.add(Warned(text=context.redact(traceback.format_exc())))
            failure = Failure(FailureKind.bug, context.redact(f"{type(error).__name__}: {error}"))
            result = course.failed("bug", failure)
        self._ending = True
        await carry.keep(context, result)
        self._log.add(RunEnded(result=result))
        await self._log.commit()
        return result

    async def _parked(self, course: Course) -> RunResult:
        """Return how a run stands that waits for people and can do nothing else; its log says no end."""
        await self._log.commit()
        waiting = len(self.people.waiting)
        message = (
            f"{waiting} call{'s wait' if waiting > 1 else ' waits'} for a person: `ori inbox` lists what to answer"
        )
        failure = Failure(FailureKind.needs_person, message)
        return course.collect("needs_review", "needs_person", failure)

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
        if resumed.retry and past.ended and past.ended.result.status == "done" and not self._to_retry(resumed):
            raise ConfigError(
                f"run {self.run_id} is done, and so are all its subtasks; --from SUBTASK tries one again with all that "
                f"comes after it, and a message makes the run go on (ori resume {self.run_id} --message)"
            )
        self._log.go_on(past.seq, past.at)

    def _to_retry(self, resumed: Resumption) -> tuple[str, ...]:
        """Return the subtasks that are tried again."""
        planner = self._past.plans.get(self.order.root)
        return resumed.again or (planner.plan.to_retry(resumed.first) if resumed.retry and planner else ())

    def _going_on(self, resumed: Resumption, context: RunContext) -> Iterator[Event]:
        past, root = self._past, self.order.root
        stopped = resumed.message is not None  # what was going on is left
        calls = [intent for intent in past.intents.values() if intent.name != DELEGATE and not stopped]
        asking = set(past.asking) - self._waiting()
        again = self._to_retry(resumed)
        message = context.text("try_again") if resumed.retry and not again else resumed.message
        yield RunResumed(
            reused=past.replies + len(past.returned),
            again=len(calls) + len(asking - {call.path for call in calls}),
            paid_twice=len(asking),
            changed=context.workspace.changes.strayed(),
            message=message,
            **(self._prepared.frozen(context) if resumed.refresh else {}),
        )
        if again:
            yield PlanReopened(path=root, ids=again)

    def _waiting(self) -> set[str]:
        """Return the paths of loops that surely wait for a person: an allowed call is on record before it is made."""
        words = {key: self.people.word(key) for key in self._past.questions}
        unsaid = [key for key, word in words.items() if word is None or (word.kind == "approve" and not word.data)]
        return {self._past.questions[key] for key in unsaid}

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
            context.shift = self._prepared.shift(context.limits)
            yield


def _new_id() -> str:
    return time.strftime("%y%m%d-%H%M%S-") + secrets.token_hex(4)
