"""The engine: one turn after another, for every role. Think → act → observe until an answer or a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import orjson
from pydantic import BaseModel

from orchestrator.answers import Answers, Ending, final_answer
from orchestrator.caller import Caller
from orchestrator.compaction import Window
from orchestrator.context import RunContext, record_key
from orchestrator.conversation import Conversation
from orchestrator.errors import LoopStopped, ModelError, OutOfBudget, RunStopped
from orchestrator.eventloops import is_stray_cancellation
from orchestrator.events import LoopClosing
from orchestrator.failure import RULES, Failure, FailureKind, StopReason
from orchestrator.limits import Moment
from orchestrator.messages import Json, Message, Reply, Request
from orchestrator.past import LoopPast
from orchestrator.results import OutcomeStatus
from orchestrator.role import Role
from orchestrator.schema import RESULT_TOOL, result_schema
from orchestrator.shift import Shift
from orchestrator.stuck import Seen, Stuck
from orchestrator.toolbox import Toolbox
from orchestrator.toolcalls import Observation


class Given(NamedTuple):
    """What a loop is given to work with, besides words of the user."""

    introduced: str
    data: str
    sources: tuple[str, ...] = ()
    """What strangers may have written that it may carry words of."""


class AgentLoop:
    """One agent at work. Ori, every worker and every reviewer are this class; only the role differs.

    Args:
        context: The run.
        path: Address of the loop in the run.
        role: Prompt, model, limits and ways of ending.
        conversation: Empty, or rebuilt from the log: the loop always goes on from where it stands.
        toolbox: What it may call.
        shift: How long it has worked, and may.
        output: JSON Schema of the result, if one is asked for.
        form: The pydantic model that the schema is of.
        goal: What it was asked, for reminders.
    """

    def __init__(
        self,
        context: RunContext,
        path: str,
        role: Role,
        conversation: Conversation,
        toolbox: Toolbox,
        shift: Shift,
        *,
        output: dict[str, Any] | None = None,
        form: type[BaseModel] | None = None,
        goal: str = "",
    ) -> None:
        self.context, self.path, self.role, self.goal = context, path, role, goal
        self.conversation, self.toolbox, self.shift, self.output = conversation, toolbox, shift, output
        self.model, self.profile = context.models(role.model)
        self.turn = 0
        self.closing: LoopClosing | None = None
        """Why the loop sums up; None: it goes on."""
        self.caller = Caller(context, path, role, self.model)
        self.window = Window(self.caller, conversation, toolbox, role.context, goal)
        self.stuck = Stuck(self.profile.warn_at, self.profile.stop_at)
        self.answers = Answers(role, self.profile, toolbox, conversation, self.stuck, output, form)
        self._open: Reply | None = None
        """A reply of the past that nothing followed."""
        self._asked_at = 0
        """The turn after which the user has spoken last."""
        past = context.past.loops.get(path)
        self.begun = past is not None
        """It goes on with a conversation of before the interruption."""
        if past:
            self._recall(past)

    async def run(self) -> Ending:
        """Go on until the loop ends; afterwards the conversation can be continued and run again.

        Raises:
            RunStopped: The run as a whole cannot go on.
        """
        try:
            async with self.shift.limited():
                await self.context.log.commit()  # that it is there, before anybody is asked: calls cost
                while True:
                    if ending := await self._turn():
                        return ending
        except LoopStopped as stopped:
            if stopped.stop_reason == "deadline":
                return self.answers.so_far("deadline", stopped.failure)
            return Ending("failed", stopped.stop_reason, failure=stopped.failure)
        except ModelError as error:
            if RULES[error.failure.kind].ends == "run":
                raise RunStopped(error.failure) from error
            return Ending("failed", "model_unavailable", self.conversation.last_text(), failure=error.failure)
        except asyncio.CancelledError:
            if not is_stray_cancellation():
                raise
            raise RuntimeError("something that the loop waited for was cancelled, but not the loop") from None

    async def _turn(self) -> Ending | None:
        reply, self._open = self._open, None
        if reply is not None:
            return await self._act(reply)
        if self.closing is None and (limit := self._limit()):
            self._close(limit)
        try:
            reply = await self._think()
        except OutOfBudget as out:
            return self._out_of_budget(out)
        return await self._act(reply)

    def _out_of_budget(self, out: OutOfBudget) -> Ending | None:
        why = self.context.text("why_budget", limit=out.limit)
        if self.closing is None and out.own:
            self._close(self._because("budget", why))
            return None
        reason, why = (self.closing.stop_reason, self.closing.why) if self.closing else ("budget", why)
        return self._closed(self.answers.so_far(reason, Failure(FailureKind.budget, why)))

    # think

    async def _think(self) -> Reply:
        """Ask the model when the budget lets it; once more with less when the server says that it was too much.

        Raises:
            OutOfBudget: There never will be room for it.
        """
        turn = self.turn + 1
        await self.window.fit(turn)
        try:
            return await self._ask(turn)
        except ModelError as error:
            too_long = error.failure.kind is FailureKind.context_overflow
            if not (too_long and await self.window.fit(turn, overflowed=True)):
                raise
            return await self._ask(turn)

    async def _ask(self, turn: int) -> Reply:
        """Ask the model, and take what it says into the conversation.

        In the last call the tools are still sent: the head of the prompt must not change.
        """
        moment: Moment = "last" if self.closing else "next" if self.turn else "first"
        tool_choice: Literal["auto", "none"] = "none" if self.closing else "auto"
        request = Request(
            key=record_key(self.path, turn, "model"),
            messages=self.conversation.messages,
            scratch=self.conversation.scratch,
            tools=self.toolbox.specs,
            tool_choice=tool_choice,
            output=self._held_to(tool_choice),
            parallel_tool_calls=self.role.parallel_tool_calls,
            params=self.role.params,
            observed=self.context.workspace.without_path(self.conversation.observed()),
        )
        reply = await self.caller.call(request, self.window.weight, moment, self.conversation.hash)
        self.turn = turn
        if reply.calls or reply.content.strip():
            self.add(reply.message(), request.key)
        return reply

    def _held_to(self, tool_choice: str) -> dict[str, Json] | None:
        """Return the schema that this answer has to fit: where nothing can be called, or after a wrong result."""
        if self.output is None or self.profile.structured != "json_schema":
            return None
        hands_in = not self.toolbox.specs or self.answers.faults or tool_choice == "none"
        return result_schema(self.output) if hands_in else None

    # act, observe

    async def _act(self, reply: Reply) -> Ending | None:
        """Run what a reply calls, and go on as it came out."""
        observations = await self._call(reply)
        follows = self._conclude(reply, observations)
        if isinstance(follows, Ending):
            return follows
        if isinstance(follows, LoopClosing):
            self._close(follows)
        else:
            for note in follows:
                self._note(note)
            if any(self.toolbox.runs_plans(o.call.name) for o in observations):
                self._tell_what_is_left()
        if not reply.calls:
            await self.context.log.commit()  # the reply, before the next one is asked for
        return None

    async def _call(self, reply: Reply) -> list[Observation]:
        """Give every call its one tool message, whether it may run or not."""
        most, why_not = self._runnable(reply)
        return await self.toolbox.run(reply.calls, self.turn, most=most, why_not=why_not) if reply.calls else []

    def _runnable(self, reply: Reply) -> tuple[int | None, str]:
        """Return how many calls of a reply may run, the first ones, and why the others may not."""
        if self.closing or reply.finish_reason == "content_filter":
            return 0, self.context.text("loop_ends")
        if self.role.parallel_tool_calls is False:
            return 1, self.context.text("one_call")
        if reply.finish_reason == "length" and reply.calls and reply.calls[-1].arguments == "{}":
            return len(reply.calls) - 1, self.context.text("call_cut")
        return None, ""

    def _conclude(self, reply: Reply, observations: Sequence[Observation]) -> Ending | LoopClosing | Sequence[str]:
        """Return how the loop ends, why it has to sum up, or what to tell the model so that it goes on.

        Text and calls of a reply are judged independently: either, both or neither may be there. Nothing is said or
        recorded here, so that a turn of the past leaves the same traces in the counters as a new one.
        """
        if self.closing:
            return self._closed(self.answers.summed_up(reply.content, self.closing.stop_reason, self.closing.why))
        if reply.finish_reason == "content_filter":
            failure = Failure(FailureKind.content_filter, "the model's server withheld the answer (content filter)")
            return Ending("failed", "model_unavailable", failure=failure)
        if not reply.calls:
            judged = self.answers.judge(reply)
            return judged if isinstance(judged, Ending) else [judged]
        self.answers.acted(observations)
        if final := next((o for o in observations if o.event.final), None):
            answer = orjson.dumps(final.event.value).decode() if final.call.name == RESULT_TOOL else final.text
            return Ending("done", "answer", answer, final.event.value)
        if self.output is None and all(o.ok for o in observations) and (answer := final_answer(reply.content) or ""):
            return Ending("done", "answer", answer)
        rejected = next((o for o in observations if o.call.name == RESULT_TOOL and not o.ok), None)
        if self.output is not None and rejected and (ending := self.answers.invalid(reply.content, rejected.text)):
            return ending
        return self._judge(observations)

    def _judge(self, observations: Sequence[Observation]) -> Ending | LoopClosing | Sequence[str]:
        """See whether the loop gets anywhere."""
        seen = [Seen(o.call.name, o.call.arguments, o.text, o.ok) for o in observations if o.event.counted]
        state = self.stuck.turn(seen)
        if state == "repeated":
            return self._because("repeated_calls", self.context.text("why_repeated"))
        if state == "failing":
            if self.role.on_failure == "needs_review":
                text = self.conversation.last_text()
                return Ending("needs_review", "needs_person", text, failure=self.answers.failure)
            return self._because("tool_failures", self.context.text("why_failing"))
        notes = [self.context.text("repeated_call")] if state == "warn" else []
        if self.profile.reminder and self.goal and all(o.ok for o in observations):
            notes.append(self.context.text("goal_reminder", goal=self.goal))
        return notes

    def _tell_what_is_left(self) -> None:
        """Tell a planner of limits that are within sight; before that nothing, as prompts should stay the same."""
        left = self.context.ledger.within_sight(self.path)
        if (seconds := self.shift.left) < self.shift.worked:
            left.append(f"{max(0, round(seconds))} seconds")
        if left:
            self._note(self.context.text("budget_left", left=", ".join(left)))

    # limits

    def _limit(self) -> LoopClosing | None:
        """Name the limit that keeps the loop from another ordinary turn."""
        if self.shift.left <= 0:
            return self._because("deadline", self.context.text("why_deadline"))
        if (turns := self.turn - self._asked_at) >= self.role.limits.max_turns:
            return self._because("max_turns", self.context.text("why_turns", turns=turns))
        return None

    def _because(self, reason: StopReason, why: str) -> LoopClosing:
        return LoopClosing(path=self.path, stop_reason=reason, why=why)

    def _close(self, closing: LoopClosing) -> None:
        """Ask for what is known; the next call of the model is the last one."""
        self.closing = self.context.log.add(closing)
        self._note(self.context.text("wrap_up", why=closing.why))

    def _closed(self, ending: Ending) -> Ending:
        """Return how a loop that summed up ended: whose tools kept failing has failed, unless one worked."""
        if self.closing is None or self.closing.stop_reason != "tool_failures":
            return ending
        status: OutcomeStatus = "partial" if self.answers.succeeded else "failed"
        return Ending(status, "tool_failures", ending.answer, ending.value, self.answers.failure)

    # the conversation

    def begin(self, prompt: str, examples: Iterable[Message] = ()) -> None:
        """Put the role's prompt, and examples, in front of an empty conversation."""
        opening = (Message("system", prompt), *examples)
        self.window.opening = len(opening)
        if not len(self.conversation):
            for message in opening:
                self.add(message)

    def say(self, text: str, sources: Iterable[str] = ()) -> None:
        """Put a user message in; the next `run` goes on from it.

        Args:
            text: The message.
            sources: What strangers may have written that it may carry words of.
        """
        self._leave_open_turn()
        self.add(Message("user", text, untrusted=tuple(sources)))
        prompt = self.caller.meter.tokens(self.window.weight.whole)
        self.context.ledger.set_aside(self.path, self.model, prompt, self.caller.output)

    def give(self, *given: Given) -> None:
        """Put in what others found, each behind its introduction; all joins the user message before it on the wire."""
        self._leave_open_turn()
        for each in given:
            self._note(each.introduced)
            self.add(Message("data", each.data, untrusted=each.sources))

    def _note(self, text: str) -> None:
        """Say something to the model; it joins the message before it on the wire."""
        self.add(Message("note", text))

    def add(self, message: Message, key: str = "") -> None:
        """Put a message in, and record it."""
        self.context.say(self.conversation, self.path, message, key)

    def _leave_open_turn(self) -> None:
        """Answer the calls that were stopped while they ran, and go on from what comes now."""
        for number, call in self.conversation.open_calls().items():
            stopped = Message("tool", self.context.text("call_stopped"), call_id=call.id)
            self.add(stopped, record_key(self.path, self.turn, "tool", number))
        self._open = None
        self._restart()

    def _restart(self) -> None:
        """Count anew: somebody asks."""
        self.answers.restart()
        self.closing = None
        self._asked_at = self.turn

    def _recall(self, past: LoopPast) -> None:
        """Take in the turns of a rebuilt conversation; what nothing follows in the log is left for `run` to act on."""
        for turn in past.turns:
            self.turn, self.closing = turn.number, turn.closing
            if not turn.followed:
                self._open = turn.reply
                break
            self._conclude(turn.reply, list(self.toolbox.recall(turn.reply.calls, turn.number)))
            if turn.followed == "asked":
                self._restart()
        self.closing = past.closing
