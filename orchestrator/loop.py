"""The engine: one turn after another, for every role. Think → act → observe until an answer or a limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import orjson

from orchestrator.answers import Answers, Ending, final_answer
from orchestrator.caller import Caller
from orchestrator.compaction import Window
from orchestrator.context import RunContext, record_key
from orchestrator.conversation import Conversation
from orchestrator.errors import LoopStopped, ModelError, OutOfBudget, ReplayMiss, RunStopped
from orchestrator.events import MessageAppended
from orchestrator.failure import RULES, Failure, FailureKind
from orchestrator.limits import Deadline, Moment
from orchestrator.messages import Json, Message, Reply, Request, ToolCall
from orchestrator.results import OutcomeStatus, StopReason
from orchestrator.role import Role
from orchestrator.schema import RESULT_TOOL, result_schema
from orchestrator.stuck import Seen, Stuck
from orchestrator.toolbox import Observation, Toolbox


class AgentLoop:
    """One agent at work. Ori, every worker and every reviewer are this class; only the role differs.

    Args:
        context: The run.
        path: Address of the loop in the run.
        role: Prompt, model, limits and ways of ending.
        conversation: Empty, or rebuilt from the log: the loop always goes on from where it stands.
        toolbox: What it may call.
        deadline: When it has to sum up, and when it is stopped.
        output: JSON Schema of the result, if one is asked for.
        goal: What it was asked, for reminders.
    """

    def __init__(
        self,
        context: RunContext,
        path: str,
        role: Role,
        conversation: Conversation,
        toolbox: Toolbox,
        deadline: Deadline,
        *,
        output: dict[str, Any] | None = None,
        goal: str = "",
    ) -> None:
        self.context, self.path, self.role, self.goal = context, path, role, goal
        self.conversation, self.toolbox, self.deadline, self.output = conversation, toolbox, deadline, output
        self.model, self.profile = context.models(role.model)
        self.turn = 0
        self.caller = Caller(context, path, role, self.model)
        self.window = Window(self.caller, conversation, toolbox, role.context, goal)
        self.stuck = Stuck(self.profile.warn_at, self.profile.stop_at)
        self.answers = Answers(role, self.profile, toolbox, conversation, self.stuck, output)
        self.acted_once = False
        """A call that must not be repeated was run, well or not."""

    async def run(self) -> Ending:
        """Go on until the loop ends; afterwards the conversation can be continued and run again.

        Raises:
            RunStopped: The run as a whole cannot go on.
        """
        try:
            async with stopped_at(self.deadline):
                await self._finish_open_turn()
                while True:
                    if ending := await self._turn():
                        return ending
        except LoopStopped as stopped:
            if stopped.stop_reason == "deadline":
                return self.answers.so_far("deadline", stopped.failure)
            return Ending("failed", stopped.stop_reason, failure=stopped.failure)
        except ModelError as error:
            if isinstance(error, ReplayMiss) or RULES[error.failure.kind].ends == "run":
                raise RunStopped(error.failure) from error
            return Ending("failed", "model_unavailable", self.conversation.last_text(), failure=error.failure)

    async def _turn(self) -> Ending | None:
        if limit := self._limit():
            return await self._wrap_up(*limit)
        try:
            reply = await self._think()
        except OutOfBudget as out:
            why = self.context.text("why_budget", limit=out.limit)
            if out.own:
                return await self._wrap_up("budget", why)
            return self.answers.so_far("budget", Failure(FailureKind.budget, why))
        return await self._act(reply)

    # think

    async def _think(self, tool_choice: Literal["auto", "none"] = "auto") -> Reply:
        """Ask the model when the budget lets it; once more with less when the server says that it was too much.

        Raises:
            OutOfBudget: There never will be room for it.
        """
        moment: Moment = "last" if tool_choice == "none" else "next" if self.turn else "first"
        turn = self.turn + 1
        await self.window.fit(turn)
        try:
            return await self._ask(turn, tool_choice, moment)
        except ModelError as error:
            too_long = error.failure.kind is FailureKind.context_overflow
            if not (too_long and await self.window.fit(turn, overflowed=True)):
                raise
            return await self._ask(turn, tool_choice, moment)

    async def _ask(self, turn: int, tool_choice: Literal["auto", "none"], moment: Moment) -> Reply:
        """Ask the model, and take what it says into the conversation."""
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
        """Judge text and calls of a reply independently: either, both or neither may be there."""
        if reply.finish_reason == "content_filter":
            failure = Failure(FailureKind.content_filter, "the model's server withheld the answer (content filter)")
            return Ending("failed", "model_unavailable", failure=failure)
        if reply.calls:
            return await self._call(reply)
        judged = self.answers.judge(reply)
        if isinstance(judged, Ending):
            return judged
        self._note(judged)
        return None

    async def _call(self, reply: Reply) -> Ending | None:
        calls, why_not = self._runnable(reply)
        observations = await self.toolbox.run(calls, self.turn)
        rejected = next((o for o in observations if o.call.name == RESULT_TOOL and not o.ok), None)
        for number, call in enumerate(reply.calls[len(calls) :], len(calls)):
            observations.append(self.toolbox.refuse(call, self.turn, number, why_not))
        self._observe(observations)
        if final := next((o for o in observations if o.final), None):
            answer = orjson.dumps(final.value).decode() if final.call.name == RESULT_TOOL else final.text
            return Ending("done", "answer", answer, final.value)
        if self.output is None and all(o.ok for o in observations) and (answer := final_answer(reply.content) or ""):
            return Ending("done", "answer", answer)
        if self.output is not None and rejected and (ending := self.answers.invalid(reply.content, rejected.text)):
            return ending
        return await self._judge(observations)

    def _runnable(self, reply: Reply) -> tuple[Sequence[ToolCall], str]:
        """Return the calls of a reply that may run, the first ones, and why the others may not."""
        if self.role.parallel_tool_calls is False and len(reply.calls) > 1:
            return reply.calls[:1], "one call a turn; make this one again"
        if reply.finish_reason == "length" and reply.calls[-1].arguments == "{}":  # where the arguments never came
            return reply.calls[:-1], "the call was cut off at the length limit; send the whole call again"
        return reply.calls, ""

    def _observe(self, observations: Sequence[Observation], first: int = 0) -> None:
        """Give every call its one tool message, and remember what the calls came to."""
        for number, observation in enumerate(observations, first):
            key = record_key(self.path, self.turn, "tool", number)
            self.add(observation.message, key)
            self.acted_once |= observation.acted_once
        self.answers.acted(observations)

    async def _judge(self, observations: Sequence[Observation]) -> Ending | None:
        """See whether the loop gets anywhere."""
        seen = [Seen(o.call.name, o.call.arguments, o.text, o.ok) for o in observations if o.counted]
        state = self.stuck.turn(seen)
        if state == "repeated":
            return await self._wrap_up("repeated_calls", self.context.text("why_repeated"))
        if state == "failing":
            return await self._keeps_failing(observations)
        if state == "warn":
            self._note(self.context.text("repeated_call"))
        if self.profile.reminder and self.goal and all(o.ok for o in observations):
            self._note(self.context.text("goal_reminder", goal=self.goal))
        if any(self.toolbox.runs_plans(o.call.name) for o in observations):
            self._tell_what_is_left()
        return None

    def _tell_what_is_left(self) -> None:
        """Tell a planner of limits that are within sight; before that nothing, as prompts should stay the same."""
        left = self.context.ledger.within_sight(self.path)
        now = time.monotonic()
        if (seconds := self.deadline.soft - now) < self.deadline.elapsed(now):
            left.append(f"{max(0, round(seconds))} seconds")
        if left:
            self._note(self.context.text("budget_left", left=", ".join(left)))

    async def _keeps_failing(self, observations: Sequence[Observation]) -> Ending:
        failure = next((o.failure for o in reversed(observations) if o.failure), None)
        if self.role.on_failure == "needs_review":
            return Ending("needs_review", "needs_person", self.conversation.last_text(), failure=failure)
        ending = await self._wrap_up("tool_failures", self.context.text("why_failing"))
        status: OutcomeStatus = "partial" if self.answers.succeeded else "failed"
        return Ending(status, "tool_failures", ending.answer, ending.value, failure)

    # limits

    def _limit(self) -> tuple[StopReason, str] | None:
        """Name the limit that keeps the loop from another ordinary turn, and say it in words."""
        if time.monotonic() >= self.deadline.soft:
            return "deadline", self.context.text("why_deadline")
        if self.turn >= self.role.limits.max_turns:
            return "max_turns", self.context.text("why_turns", turns=self.turn)
        return None

    async def _wrap_up(self, stop_reason: StopReason, why: str) -> Ending:
        """Ask for what is known, without calls; the tools are still sent, as the prompt's head must not change."""
        self._note(self.context.text("wrap_up", why=why))
        try:
            reply = await self._think("none")
        except OutOfBudget:
            return self.answers.so_far(stop_reason, Failure(FailureKind.budget, why))
        self._observe(
            [self.toolbox.refuse(c, self.turn, n, "not run: the loop ends") for n, c in enumerate(reply.calls)]
        )
        return self.answers.summed_up(reply.content, stop_reason, why)

    # the conversation

    def begin(self, prompt: str, examples: Iterable[Message] = ()) -> None:
        """Put the role's prompt, and examples, in front of an empty conversation."""
        opening = (Message("system", prompt), *examples)
        self.window.opening = len(opening)
        if not len(self.conversation):
            for message in opening:
                self.add(message)

    def say(self, text: str) -> None:
        """Put a user message in; the next `run` goes on from it."""
        self.answers.restart()
        self.add(Message("user", text))
        prompt = self.caller.meter.tokens(self.window.weight.whole)
        self.context.ledger.set_aside(self.path, self.model, prompt, self.caller.output)

    def give(self, data: str, introduced: str) -> None:
        """Put in what other loops found, behind an introduction; both join the user message before them on the wire."""
        self._note(introduced)
        self.add(Message("data", data))

    def _note(self, text: str) -> None:
        """Say something to the model; it joins the message before it on the wire."""
        self.add(Message("note", text))

    def add(self, message: Message, key: str = "") -> None:
        """Put a message in, and record it."""
        message = self.conversation.append(message, key)
        self.context.log.add(MessageAppended(path=self.path, key=key, message=message, hash=self.conversation.hash))

    async def _finish_open_turn(self) -> None:
        """Answer the calls of a rebuilt conversation that have no answer yet."""
        if calls := self.conversation.open_calls():
            answered = self.conversation.answered()
            self._observe(await self.toolbox.run(calls, self.turn, first=answered), first=answered)


@asynccontextmanager
async def stopped_at(deadline: Deadline) -> AsyncIterator[None]:
    """Stop what is inside when its time is up.

    Raises:
        LoopStopped: It was stopped.
    """
    left = deadline.hard - time.monotonic()
    try:
        async with asyncio.timeout(left) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        words = f"stopped after {deadline.elapsed(time.monotonic()):.0f} s, its time limit"
        raise LoopStopped("deadline", Failure(FailureKind.tool_timeout, words)) from None
