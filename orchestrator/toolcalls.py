"""One tool call: on its way to the tool, and what the model gets of it."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.bounded import Overdue, bounded
from orchestrator.errors import LoopStopped, RunStopped, ToolError
from orchestrator.eventloops import is_stray_cancellation
from orchestrator.events import ApprovalAsked, ToolReturned
from orchestrator.failure import FailureKind
from orchestrator.messages import ToolCall
from orchestrator.models.replay import ToolLine
from orchestrator.policy import destinations
from orchestrator.tool import Tool, ToolContext, ToolResult, to_result


@dataclass(frozen=True, slots=True)
class Observation:
    """What came of one call."""

    call: ToolCall
    text: str
    event: ToolReturned

    @property
    def ok(self) -> bool:
        """Whether the call went well."""
        return self.event.ok


@dataclass(slots=True)
class Job:
    """A call on its way: bound to its tool, or with the reason why it cannot be."""

    call: ToolCall
    key: str
    tool: Tool | None = None
    arguments: dict[str, Any] | None = None
    result: ToolResult | None = None
    kind: FailureKind = FailureKind.tool_error
    """What a failed result is."""
    seconds: float = 0.0
    refused: bool = False
    question: ApprovalAsked | None = None
    """What a person is asked before it is run."""
    text: str = ""
    """Its arguments as JSON: the model's, or a person's."""
    answer: str = ""
    note: str = ""
    """What the model is told besides the result."""
    recorded: ToolLine | None = None
    """What a recording says came of it."""
    read: dict[str, None] = field(default_factory=dict)
    """What strangers may have written of what the tool has read within the run."""

    def refuse(self, why: str, kind: FailureKind = FailureKind.tool_error) -> None:
        """Answer it without running it; counters do not see it."""
        self.fail(why, kind)
        self.refused = True

    @property
    def name(self) -> str:
        """What people call the tool."""
        return self.tool.title or self.tool.name if self.tool else self.call.name

    @property
    def sources(self) -> tuple[str, ...]:
        """Where its result comes from, when strangers may have written it."""
        said = self.result.untrusted if self.result else None
        if said is None and self.tool and self.tool.untrusted and self.arguments is not None:
            said = " ".join(destinations(self.arguments, self.tool.destinations)) or self.tool.name
        return tuple(dict.fromkeys((*((said,) if isinstance(said, str) else said or ()), *self.read)))

    def fail(self, text: str, kind: FailureKind = FailureKind.tool_error) -> None:
        """Let it end with an error that the model is told."""
        self.result, self.kind = failed(text), kind


async def invoke(job: Job, context: Callable[[], ToolContext], seconds: float | None = None) -> None:
    """Run the tool of a call: within its time limit, and again where that may help and does no harm.

    Args:
        job: Gets the result.
        context: Makes what the tool is given.
        seconds: What there is for all attempts together; None: as much as the tool's own limit.
    """
    assert job.tool is not None
    started = time.monotonic()
    attempts = 1 + (job.tool.retries if job.tool.effect != "once" else 0)
    while attempts:
        attempts -= 1
        left = None if seconds is None else started + seconds - time.monotonic()
        if await _attempt(job, job.tool, context, left):
            break
    job.seconds = time.monotonic() - started


async def _attempt(job: Job, tool: Tool, context: Callable[[], ToolContext], left: float | None) -> bool:
    """Run the tool once; False when another attempt may go better."""
    limit = min((each for each in (tool.timeout, left) if each is not None), default=None)
    try:
        job.result, again = await bounded(_result(tool, job.arguments or {}, context), limit)
    except Overdue as late:
        after = "it may still be running" if tool.blocking or not late.stopped else "it was stopped"
        job.fail(f"{tool.name} did not finish within {round(limit or 0, 2):g} s; {after}", FailureKind.tool_timeout)
        again = limit == tool.timeout  # else there is no time left
    return not again


async def _result(tool: Tool, arguments: dict[str, Any], context: Callable[[], ToolContext]) -> tuple[ToolResult, bool]:
    """Return what came of the tool, and whether another attempt may go better."""
    try:
        return to_result(await tool.invoke(arguments, context())), False
    except (RunStopped, LoopStopped, KeyboardInterrupt):
        raise
    except ToolError as error:
        return failed(str(error)), False
    except asyncio.CancelledError:  # it may have cancelled itself; who cancels its task reads nothing of this
        why = "something that it waited for was cancelled"
    except BaseException as error:  # noqa: BLE001 - whatever a tool raises, the model can react to it
        why = told(error)
    return failed(f"{tool.name} failed: {why}"), True


async def verified(tool: Tool, key: str) -> Any:
    """Ask a tool whether the call with an idempotency key took effect.

    Raises:
        ToolError: It cannot tell.
    """
    assert tool.verify is not None
    try:
        return await tool.verify(key)
    except asyncio.CancelledError:
        if not is_stray_cancellation():
            raise
        raise ToolError(f"{tool.name} cannot tell: something that it waited for was cancelled") from None
    except Exception as error:  # the tool's own code
        raise ToolError(f"{tool.name} cannot tell: {told(error)}") from error


def repeat(job: Job, line: ToolLine, context: ToolContext) -> None:
    """Give a call the result that was recorded, and make the changes that the tool had made."""
    for name, data in line.files.items():
        if data is None:
            context.workspace.delete(name)
        else:
            context.workspace.write(name, data)
    for name, value in line.variables.items():
        if value is None:
            context.variables.pop(name, None)
        else:
            context.variables[name] = value
    job.recorded, job.refused = line, not line.counted
    job.result = ToolResult(line.text, line.value, not line.ok, untrusted=line.untrusted, final=line.final)


def failed(text: str) -> ToolResult:
    """Return an error as the model is told it."""
    return ToolResult(f"Error: {text}", error=True)


def told(error: BaseException) -> str:
    """Say what was raised; a group by what is in it."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(told, error.exceptions))
    said = traceback.TracebackException(type(error), error, None)  # also where its __str__ raises
    return f"{type(error).__name__}: {said}"


def stretches(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Split calls into stretches that run together; everything else stands alone."""
    stretch: list[Job] = []
    for job in jobs:
        if stretch and not _joins(stretch[-1], job):
            yield stretch
            stretch = []
        stretch.append(job)
    if stretch:
        yield stretch


def _joins(one: Job, other: Job) -> bool:
    if one.tool is None or other.tool is None or bool(one.question) != bool(other.question):
        return False
    if one.question:
        return True
    if one.tool.together:
        return one.tool is other.tool
    return one.tool.effect == other.tool.effect == "read" and other.tool.together is None
