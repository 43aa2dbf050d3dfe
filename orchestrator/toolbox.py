"""What one loop may call: the whitelist, the order, the time limit, the cut, and exactly one observation per call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import orjson

from orchestrator.binding import BindingError, bind
from orchestrator.context import RunContext, record_key
from orchestrator.conversation import Conversation
from orchestrator.describing import quote
from orchestrator.errors import ReplayMiss, RunStopped, ToolError, nearest
from orchestrator.events import ToolProgress, ToolReturned, ToolStarted, Warned
from orchestrator.failure import Failure, FailureKind
from orchestrator.fences import cut_text, fence
from orchestrator.gate import Gate
from orchestrator.images import fit
from orchestrator.journal import Signal
from orchestrator.messages import Message, ToolCall
from orchestrator.models.tokens import count
from orchestrator.resources import Resources
from orchestrator.text.redact import redact_json
from orchestrator.tool import RESERVED, Tool, ToolContext, ToolResult, to_result
from orchestrator.toolcalls import Job, Observation, invoke, repeat, stretches, told, verified
from orchestrator.workspace.loop import LoopWorkspace

CUT_AT = 12_000
"""Characters of an observation that enter the conversation whole: about 4,000 tokens of English."""


class Toolbox:
    """The tools of one loop.

    Args:
        context: The run.
        path: The loop.
        tools: By name; nothing else can be called.
        workspace: What the loop may do with the run's files.
        conversation: Gets every observation.
        hidden: Tools that the model is not shown, though they can be called.
        window: Tokens of the loop's model; small windows get shorter observations.
        image_size: Pixels of the longest side of an image that the model is shown; 0: it sees none.
        gate: Where calls wait for a person.
        for_programs: A program reads the results, so their values are recorded beside their texts.
    """

    def __init__(
        self,
        context: RunContext,
        path: str,
        tools: Mapping[str, Tool],
        workspace: LoopWorkspace,
        conversation: Conversation,
        gate: Gate,
        *,
        window: int,
        hidden: Collection[str] = (),
        image_size: int = 0,
        for_programs: bool = False,
    ) -> None:
        self.network = context.network.also(gate.allow)
        self.context, self.path, self.workspace = context, path, workspace
        self.conversation, self.gate, self.for_programs = conversation, gate, for_programs
        self.resources = Resources()
        """What the loop's tools keep open; whoever runs the loop closes it."""
        self._hidden = hidden
        self._offer(tools)
        self.cut_at = min(CUT_AT, window // 2)
        self.image_size = image_size

    def _offer(self, tools: Mapping[str, Tool]) -> None:
        """Let the loop call these tools."""
        self.tools = tools
        self.specs = tuple(tool.spec() for tool in tools.values() if tool.name not in self._hidden)
        self.counts = count(orjson.dumps(self.specs))
        """What the tools are made of, as a prompt has them."""

    async def run(
        self, calls: Sequence[ToolCall], turn: int, *, most: int | None = None, why_not: str = ""
    ) -> list[Observation]:
        """Answer the calls of one message, in message order.

        A stretch of neighbouring `read` calls runs together; so does one of a tool that says how (`together`).
        Neighbours that wait for a person run as people allow them; all questions are put before anything runs. A call
        that was answered before the run was interrupted is not run again.

        Args:
            calls: All calls of the message.
            turn: The turn they belong to.
            most: How many of them may run, the first ones; None: all.
            why_not: What the others are told.
        """
        observed = {observation.event.key: observation for observation in self.recall(calls, turn)}
        jobs = [Job(call, record_key(self.path, turn, "tool", number)) for number, call in enumerate(calls)]
        for job in jobs[:most]:
            self._bind(job, job.call.arguments)
        for job in jobs[len(jobs[:most]) :]:
            job.refuse(why_not)
        jobs = [job for job in jobs if job.key not in observed]
        await self._catch_up(jobs)
        await self._ask(jobs)
        for stretch in stretches(jobs):
            answered = await (self._run_as_allowed(stretch) if stretch[0].question else self._run(stretch))
            observed |= {observation.event.key: observation for observation in answered}
        return [observed[record_key(self.path, turn, "tool", number)] for number in range(len(calls))]

    async def _catch_up(self, jobs: Sequence[Job]) -> None:
        """Take tools that have changed as they are now, where a person accepts that; else refuse their calls."""
        changed: dict[str, Tool] = {}
        for job in jobs:
            if job.tool is None or job.tool.current is None or self._is_recorded(job.tool):
                continue
            try:
                now = await job.tool.current()
            except ToolError as error:
                job.fail(str(error))
                job.arguments = None
            else:
                if now.terms() != job.tool.terms():
                    job.question, changed[job.key] = self.gate.change(job.tool, now, job.text), now
        self._put(jobs)
        for job in jobs:
            if (question := job.question) is None:
                continue
            job.question, word = None, await self.gate.first({question.key: question})
            if word.kind == "deny":
                self._deny(job, word)
                continue
            now, job.result = changed[job.key], None
            self.context.offer = self.context.offer.changed(now)
            self._offer({**self.tools, now.name: now})
            self._bind(job, job.text)

    async def _ask(self, jobs: Sequence[Job]) -> None:
        """Find out which calls wait for a person, and ask."""
        for job in jobs:
            if not job.tool or job.arguments is None or self._is_recorded(job.tool):
                continue
            if not await self._is_in_doubt(job, job.tool):
                loop = (self.conversation, self.workspace)
                try:
                    goes_to = job.tool.goes_to(self._context_of(job)) if job.tool.goes_to else ""
                except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the tool's own code, without a wait
                    job.fail(f"{job.name} failed: it cannot say where it sends data: {told(error)}")
                    job.arguments = None
                    continue
                job.question = self.gate.question(job.key, job.tool, job.arguments, job.text, loop, goes_to)
        self._put(jobs)

    def _put(self, jobs: Sequence[Job]) -> None:
        """Put the questions on calls to people; where nobody can be asked, the calls are refused."""
        if self.context.people.reachable:
            self.gate.ask(job.question for job in jobs if job.question)
            return
        for job in jobs:
            if job.question:
                why = f"{job.question.why} {job.question.destination}".rstrip()
                job.fail(self.context.text("nobody_to_ask", why=why))
                job.arguments = job.question = None

    def _deny(self, job: Job, word: Signal) -> None:
        why = str(word.data.get("why") or "")
        job.refuse(self.context.text("denied", by=word.by, why=why).rstrip(), FailureKind.needs_person)
        job.arguments = None

    async def _is_in_doubt(self, job: Job, tool: Tool) -> bool:
        """Whether a call that must not be repeated was begun before the interruption: its tool tells, or a person."""
        intent = self.context.past.intents.get(job.key)
        if intent is None or tool.effect != "once":
            return False
        if tool.verify:
            try:
                found = await verified(tool, self.context.idempotency_key(job.key))
            except ToolError as error:  # then a person has to look
                self.context.log.add(Warned(path=self.path, text=str(error)))
            else:
                if not found:
                    return False
                job.result = to_result(self.context.text("took_effect") if found is True else found)
                job.arguments = None
                return True
        job.question = self.gate.doubt(intent)
        return True

    async def _run(self, stretch: Sequence[Job]) -> list[Observation]:
        """Run calls together, and observe them."""
        runnable = [job for job in stretch if job.arguments is not None]
        for job in runnable:
            self._intend(job)
        await self.context.log.commit()  # the reply, and what is about to happen, before it happens
        await self._run_stretch([job for job in runnable if not self._repeat(job)])
        read = dict.fromkeys(self.workspace.read_from())  # by any of them: nobody knows which
        for job in stretch:
            job.read |= read
        answered = [self._observe(job) for job in stretch]
        if any(job.tool and job.tool.effect == "once" for job in runnable):
            await self.context.log.commit()  # what cannot be repeated is on record before anybody reads of it
        return answered

    async def _run_as_allowed(self, stretch: Sequence[Job]) -> list[Observation]:
        """Run each call when a person has said a word on it."""
        waiting = {job.question.key: job for job in stretch if job.question}
        answered: list[Observation] = []
        while waiting:
            word = await self.gate.first({key: job.question for key, job in waiting.items() if job.question})
            job = waiting.pop(word.key)
            self._heed(job, word)
            answered += await self._run([job])
        return answered

    def _heed(self, job: Job, word: Signal) -> None:
        """Make of a call what a person said."""
        assert job.tool is not None
        said = str(word.data.get("text") or "")
        if word.kind == "deny":
            self._deny(job, word)
        elif word.kind == "answer" and job.tool.asks:
            job.answer = said
        elif word.kind == "answer":
            job.result, job.arguments = ToolResult(said), None
        elif word.key != job.key and (allowed := self.context.people.word(job.key)):
            self._heed(job, allowed)  # it is made again, as it was allowed the first time
        elif "arguments" in word.data:
            changed = orjson.dumps(word.data["arguments"]).decode()
            self._bind(job, changed)
            job.note = self.context.text("approved_changed", by=word.by, arguments=changed)

    def recall(self, calls: Sequence[ToolCall], turn: int) -> Iterator[Observation]:
        """Yield what came of those calls of a message that were answered before the run was interrupted."""
        for number, call in enumerate(calls):
            job = Job(call, record_key(self.path, turn, "tool", number))
            if (returned := self.context.past.returned.get(job.key)) is None:
                continue
            self._bind(job, call.arguments)
            yield Observation(job.call, returned.message.content, returned.event)

    def runs_plans(self, name: str) -> bool:
        """Whether this is a tool by which the loop gives work to others."""
        return name in self.tools and self.tools[name].together is not None

    def _bind(self, job: Job, arguments: str) -> None:
        """Find the tool of a call and read its arguments, or note why that cannot be."""
        job.text, job.arguments = arguments, None
        tool = self.tools.get(job.call.name)
        if tool is None:
            name = quote(job.call.name, 100)
            job.fail(f"there is no tool {name!r} here{nearest(name, self.tools)}")
            return
        job.tool = tool
        try:
            bound = bind(arguments, tool)
            inner = tool.unwrap(bound) if tool.unwrap else None
        except BindingError as error:
            job.fail(tool.misused(str(error)) if tool.misused else str(error))
        except Exception as error:  # noqa: BLE001 - a validator of the tool's own models may raise anything
            job.fail(f"the arguments of {tool.name} could not be checked: {type(error).__name__}: {error}")
        else:
            if inner is None:
                job.arguments = bound
            else:
                job.tool, job.call = None, replace(job.call, name=inner[0], arguments=inner[1])
                self._bind(job, inner[1])

    def _intend(self, job: Job) -> None:
        assert job.tool is not None
        intent = self.context.log.add(
            ToolStarted(
                path=self.path,
                key=job.key,
                call_id=job.call.id,
                name=job.name,
                arguments=self.context.redact(job.text),
                effect=job.tool.effect,
            )
        )
        if intent.effect == "once":
            self.context.once.append(intent)

    def _is_recorded(self, tool: Tool) -> bool:
        """Whether a recording says what comes of a tool's calls."""
        return self.context.recording is not None and tool.name not in RESERVED

    def _repeat(self, job: Job) -> bool:
        """Give a call the result and the changes that were recorded; False: it has to run."""
        recording, tool = self.context.recording, job.tool
        if recording is None or tool is None or not self._is_recorded(tool):
            return False
        try:
            line = recording.came_of(job.key, job.name, job.text)
        except ReplayMiss as miss:
            raise RunStopped(miss.failure) from miss
        repeat(job, line, self._context_of(job))
        return True

    async def _run_stretch(self, jobs: Sequence[Job]) -> None:
        if jobs and (tool := jobs[0].tool) and tool.together:
            started = time.monotonic()
            results = await tool.together([job.arguments or {} for job in jobs], self._context_of(jobs[0]))
            for job, result in zip(jobs, results, strict=True):
                job.result, job.seconds = result, time.monotonic() - started
        elif len(jobs) == 1:
            await self._run_job(jobs[0])
        else:
            async with asyncio.TaskGroup() as group:
                for job in jobs:
                    group.create_task(self._run_job(job))

    async def _run_job(self, job: Job) -> None:
        seconds = None if self.for_programs else self.gate.shift.for_a_tool  # nobody sums up for a program
        await invoke(job, partial(self._context_of, job), seconds)
        if job.result and job.result.images:
            job.result = await self._with_images(job.result)

    async def _with_images(self, result: ToolResult) -> ToolResult:
        """Return a result with its images as the model can see them."""
        images, faults = await self.context.threads.run(fit, result.images, self.image_size)
        return replace(result, images=images, content="\n".join([result.content, *faults]))

    def _context_of(self, job: Job) -> ToolContext:
        def report(text: str) -> None:
            text = self.context.redact(text)
            self.context.log.add(ToolProgress(path=self.path, key=job.key, name=job.name, text=text))

        return ToolContext(
            run_id=self.context.run_id,
            path=self.path,
            key=self.context.idempotency_key(job.key),
            workspace=self.workspace,
            deps=self.context.deps,
            variables=self.context.variables.seen_by(self.workspace.sources, self.workspace.note, self.path),
            answer=job.answer,
            threads=self.context.threads,
            memory=self.context.memory,
            untrusted=tuple(self.conversation.sources),
            settings=self.tools[job.call.name].settings,
            scopes={**self.context.scopes, "loop": self.resources},
            network=self.network,
            report=report,
        )

    def _observe(self, job: Job) -> Observation:
        """Turn a result into what the conversation gets, and record both."""
        result = job.result or ToolResult("", error=True)
        sources = job.sources
        whole = self.context.redact(result.content)
        text, handle = self._cut(job, whole, sources)
        failure = Failure(job.kind, whole.removeprefix("Error: ")[:500]) if result.error else None
        failure = job.recorded.failure if job.recorded else failure
        value = whole if result.value == result.content else redact_json(result.value, self.context.redact)
        final = result.final and not result.error
        counted = not job.refused and (job.tool is None or job.tool.counted)
        if job.arguments is not None and self.context.broken_tools.get(job.name, True) is not None:
            self.context.broken_tools[job.name] = (failure.message, sources) if failure else None
        event = self.context.log.add(
            ToolReturned(
                path=self.path,
                key=job.key,
                call_id=job.call.id,
                name=job.name,
                ok=not result.error,
                seconds=job.seconds,
                characters=len(whole),
                cut=f"{self.cut_at} of {len(whole)} characters" if handle else None,
                handle=handle,
                failure=failure,
                counted=counted,
                final=final,
                value=value if final or self.for_programs else None,
            )
        )
        shown = text
        fenced = job.recorded or (job.tool and job.tool.together)  # outcomes have fences of their own
        if sources and not (fenced or self.for_programs):
            shown = fence(self.context, text, sources)
        shown = f"{job.note}\n{shown}" if job.note else shown
        message = Message("tool", shown, call_id=job.call.id, images=result.images, untrusted=sources)
        self.context.say(self.conversation, self.path, message, job.key)
        return Observation(job.call, text, event)

    def _cut(self, job: Job, whole: str, sources: tuple[str, ...]) -> tuple[str, str | None]:
        """Return what the conversation holds of a result; if that is a part, also where the whole can be read."""
        if job.recorded or len(whole) <= self.cut_at or (job.tool and not job.tool.cut):
            return whole, None
        handle = self.context.workspace.outputs.store(job.key, whole, sources)
        return cut_text(self.context, whole, handle, self.cut_at), handle
