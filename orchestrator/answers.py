"""What a model's words are worth: an answer, a thought in between, or nothing of use."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel

from orchestrator.conversation import Conversation
from orchestrator.errors import ToolError
from orchestrator.failure import Failure, FailureKind, StopReason
from orchestrator.messages import Json, Reply
from orchestrator.plan import Plan
from orchestrator.profile import Profile
from orchestrator.results import OutcomeStatus
from orchestrator.role import Role
from orchestrator.schema import RESULT_TOOL, read_result
from orchestrator.stuck import Stuck
from orchestrator.toolbox import Toolbox
from orchestrator.toolcalls import Observation

MENDS = 2
"""How often a model may mend a structured result before the loop gives up."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a loop ended."""

    status: OutcomeStatus
    stop_reason: StopReason
    answer: str = ""
    value: Json = None
    failure: Failure | None = None
    untrusted: tuple[str, ...] = ()
    """Sources outside the run that the answer may carry words of."""


@dataclass(slots=True)
class Answers:
    """Judges what the loop of a role says, by what the loop has to show for it.

    Args:
        role: Says what an answer must be like.
        profile: Of the role's model.
        toolbox: What the loop may call.
        conversation: What was said so far.
        stuck: Knows when the same was said too often.
        output: JSON Schema of the result, if one is asked for.
        model: The pydantic model that the schema is of.
    """

    role: Role
    profile: Profile
    toolbox: Toolbox
    conversation: Conversation
    stuck: Stuck
    output: dict[str, Any] | None = None
    model: type[BaseModel] | None = None
    last: Observation | None = None
    """What came of the last call."""
    succeeded: bool = False
    """A call went well."""
    failure: Failure | None = None
    """Of the last call that did not."""
    faults: list[str] = field(default_factory=list)
    """Of the structured results so far: where each one did not fit."""
    _asked: set[str] = field(default_factory=set)
    _parts: list[str] = field(default_factory=list)
    """Of an answer that was cut by the length limit."""

    def restart(self) -> None:
        """Begin anew: the user has spoken."""
        self._asked.clear()
        self._parts.clear()
        self.faults.clear()

    def acted(self, observations: Sequence[Observation]) -> None:
        """Take in what the calls of a turn came to."""
        self._asked.discard("empty_reply")
        self._parts.clear()
        for observation in observations:
            self.last = observation
            self.succeeded |= observation.ok
            self.failure = observation.event.failure or self.failure

    def judge(self, reply: Reply) -> Ending | str:
        """Return how a reply without calls ends the loop, or what to tell the model so that it goes on."""
        if not reply.content.strip():
            return self._empty()
        self._asked.discard("empty_reply")
        self._parts.append(reply.content)
        text = "".join(self._parts)
        if reply.finish_reason == "length":
            return self._cut(text)
        self._parts.clear()
        if self._lacks_evidence():
            if "use_tools" not in self._asked:
                self._asked.add("use_tools")
                return self._text("use_tools", tools=", ".join(self.toolbox.tools))
            if self.profile.evidence:
                return self._unproven(text)
        return self._plain(text) if self.output is None else self._structured(text)

    def _text(self, name: str, **values: object) -> str:
        return self.toolbox.context.text(name, **values)

    def _plain(self, text: str) -> Ending | str:
        answer = final_answer(text)
        if answer == "":
            return self._empty()
        if answer is None and self.role.final_marker == "required":
            return self._thought(text)
        if self.profile.evidence and self.last and self.last.event.counted and not self.last.ok:
            return Ending("failed", "tool_failures", text, failure=self.last.event.failure)
        return Ending("done", "answer", text.strip() if answer is None else answer)

    def _thought(self, text: str) -> Ending | str:
        """Let a text pass as a thought in between, unless it only repeats itself."""
        if self.stuck.said(text):
            failure = Failure(FailureKind.bad_model_output, "the model said the same three times without ending")
            return Ending("partial", "repeated_calls", text.strip(), failure=failure)
        return self._text("final_marker")

    def _lacks_evidence(self) -> bool:
        tools = self.toolbox.tools
        if self.profile.evidence and tools and not any(map(self.toolbox.runs_plans, tools)):
            return not self.succeeded
        return self.role.must_use_tools and self.last is None and bool(tools)

    def _unproven(self, text: str) -> Ending:
        message = f"it answered without a successful call of {', '.join(self.toolbox.tools)}"
        failure = self.last and self.last.event.failure
        return Ending("failed", "tool_failures", text, failure=failure or Failure(FailureKind.tool_error, message))

    def _structured(self, text: str) -> Ending | str:
        """Take a structured result that came as text, or ask for it again."""
        assert self.output is not None
        told = {"told": 1} if self.profile.fault_by_fault else {}
        try:
            return Ending("done", "answer", text.strip(), read_result(text, self.output, model=self.model, **told))
        except ToolError as error:
            if ending := self.invalid(text, str(error)):
                return ending
            tool = RESULT_TOOL if self.profile.structured == "tool" else ""
            return self._text("invalid_output", faults=error, tool=tool, json="" if tool else "JSON")

    def invalid(self, text: str, fault: str) -> Ending | None:
        """Count a structured result that does not fit; None while it may be mended."""
        place = fault.partition(":")[0]
        hopeless = place in self.faults if self.profile.fault_by_fault else len(self.faults) == MENDS
        self.faults.append(place)
        if not hopeless:
            return None
        failure = Failure(FailureKind.bad_model_output, f"no valid result: {fault}")
        return Ending("failed", "invalid_output", text.strip(), failure=failure)

    def _empty(self) -> Ending | str:
        if "empty_reply" in self._asked:
            failure = Failure(FailureKind.bad_model_output, "two replies in a row had neither text nor calls")
            return self.so_far("empty_replies", failure)
        self._asked.add("empty_reply")
        return self._text("empty_reply")

    def _cut(self, text: str) -> Ending | str:
        """Let a text that the length limit cut go on, once."""
        if len(self._parts) > 1:
            failure = Failure(FailureKind.bad_model_output, "the answer was cut by the model's length limit, twice")
            return Ending("partial", "cut", text.strip(), failure=failure)
        return self._text("continue_cut")

    def summed_up(self, text: str, stop_reason: StopReason, why: str) -> Ending:
        """Return how a loop ends whose last words were asked for by a limit."""
        marked = final_answer(text)
        text = text.strip() if marked is None else marked
        if not text:
            return self.so_far(stop_reason, Failure(FailureKind.bad_model_output, why))
        value: Json = None
        if self.output is not None:
            try:
                value = read_result(text, self.output, model=self.model)
            except ToolError:
                value = None  # words are better than nothing
        return Ending("partial", stop_reason, text, value)

    def so_far(self, stop_reason: StopReason, failure: Failure) -> Ending:
        """End with what there is: partial when something was found or done, else failed."""
        text = self.conversation.last_text().strip()
        return Ending("partial" if text or self.succeeded else "failed", stop_reason, text, failure=failure)


_MARKER = re.compile(
    r"^[ \t]*(?P<bold>\*\*|__)?FINAL_ANSWER(?P<closed>\*\*|__)?[ \t]*[:：][ \t]*(?P<closed_late>\*\*|__)?", re.MULTILINE
)


def by_outcomes(ending: Ending, plan: Plan, refused: bool) -> Ending:
    """Return how a planner's loop ended by its outcomes: its own words do not make it a success.

    Args:
        ending: How the loop itself ended.
        plan: Its plan.
        refused: Whether its last plan was told back.
    """
    spoiled = plan.spoiled()
    if ending.status != "done" or not (spoiled or (refused and not plan.subtasks)):
        return ending
    if not spoiled:
        failure = Failure(FailureKind.bad_model_output, "the plan was refused, no other came, and nothing was run")
        return replace(ending, status="partial", stop_reason="plan_invalid", failure=failure)
    review = any(outcome.status == "needs_review" for outcome in spoiled)
    useful = any(outcome.status in ("done", "partial") for outcome in plan.outcomes.values())
    status: OutcomeStatus = "needs_review" if review else "partial" if useful else "failed"
    first = next((outcome for outcome in spoiled if outcome.status != "skipped"), spoiled[0])
    return replace(ending, status=status, stop_reason=first.stop_reason, failure=first.failure)


def final_answer(text: str) -> str | None:
    """Return the answer that a `FINAL_ANSWER:` at a line's start marks, or None.

    It is what follows the last marker, or what stands before it when nothing follows.
    """
    marks = list(_MARKER.finditer(text))
    if not marks:
        return None
    mark, after = marks[-1], text[marks[-1].end() :]
    if mark["bold"] and not mark["closed"] and not mark["closed_late"]:
        after = after.replace(mark["bold"], "", 1)  # the answer was bold, too
    return after.strip() or text[: mark.start()].strip()
