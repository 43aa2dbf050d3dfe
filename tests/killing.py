"""Kills runs with SIGKILL at random points, lets them go on, and counts from outside what happened twice.

Model calls are counted on the model's server, tool calls in a file that the tools write. `tests/test_kill.py` has the
short form, `benchmarks/kill.py` the long one.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from pydantic import SecretStr

from orchestrator import Orchestrator, Role, RunHandle, ToolContext, tool
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.messages import Reply, Request
from orchestrator.models.replay import RecordedReply, Recording, ReplayModel
from orchestrator.models.wire import wire_messages
from orchestrator.past import Past
from orchestrator.settings import ModelSettings
from orchestrator.testing import Answer, call, text
from orchestrator.tool import Tool
from tests.engine import delegate, subtask

DAG = "dag"
KINDS = (DAG, "log_triage", "quarterly_report", "sales_report", "three_reports")
"""What is killed: a DAG with tools of every effect, and the shipped scenarios that need neither Docker nor a browser.

The one whose conversation is compacted is left out: where that happens depends on what its prompts weigh to the token.
"""
_EFFECTS = "effects"
_NUMBER = re.compile(r" ?\[run (\d+)\]")
_PAUSE = 0.015
"""Seconds that a reply and a tool take, so that a kill finds them under way."""


# what is killed


def _tools(folder: Path) -> list[Tool]:
    """Return tools that write down each effect, with the key of the call, when it is complete."""

    def effect(ctx: ToolContext, tool: str, name: str) -> None:
        with (folder / _EFFECTS).open("a") as file:
            file.write(f"{ctx.run_id} {tool} {ctx.key} {name}\n")
            file.flush()
            os.fsync(file.fileno())

    async def went_out(key: str) -> str | None:
        lines = [line.split(maxsplit=3) for line in _read(folder / _EFFECTS).splitlines()]
        return next((f"{name.strip()} is sent" for _, _, made, name in lines if made == key), None)

    @tool(effect="read")
    async def look(name: str, ctx: ToolContext) -> str:
        """Look something up. Use it for facts. Returns the fact."""
        await asyncio.sleep(_PAUSE)
        effect(ctx, "look", name)
        return f"{name} is {len(name)}"

    @tool(effect="idempotent")
    async def note(name: str, ctx: ToolContext) -> str:
        """Note something in a file. Use it for notes. Returns that it is noted."""
        await ctx.artifact(f"{name}.txt", name)
        ctx.variables[name] = len(name)
        await asyncio.sleep(_PAUSE)
        effect(ctx, "note", name)
        return f"{name} is noted"

    @tool(effect="once", verify=went_out)
    async def send(name: str, ctx: ToolContext) -> str:
        """Send something. Use it once. Returns that it is sent."""
        await asyncio.sleep(_PAUSE)
        effect(ctx, "send", name)
        return f"{name} is sent"

    return [look, note, send]


def _roles(edited: bool) -> list[Role]:
    """Return the roles of the DAG; edited ones have other descriptions and prompts."""
    more = " It has been edited." if edited else ""
    names = ("look", "note", "send")
    planner = Role(name="ori", description="Plans.", prompt=f"You are the planner.{more}", tools=("delegate",))
    worker = Role(name="worker", description=f"Works.{more}", prompt=f"You are a worker.{more}", tools=names)
    return [planner, worker]


PLAN = [
    subtask("a"),
    subtask("b"),
    subtask("c"),
    subtask("d", "a"),
    subtask("e", "a b"),
    subtask("f", "c"),
    subtask("g", "d e"),
    subtask("h", "e f", tool="note", args={"name": "h"}),
    subtask("i", "f"),
    subtask("j", "g h"),
    subtask("k", "h i", tool="send", args={"name": "${outcomes.h.answer}"}),
    subtask("l", "j k"),
]
"""Twelve subtasks; two of them are tools without a model."""


def _dag_reply(said: str, turn: int) -> Answer:
    """Answer as planner or worker: each subtask calls two tools and tells its name."""
    if "You are the planner" in said:
        return [delegate(*PLAN), text("all twelve")][turn]
    name = re.findall(r"do (\w)\b", said)[0]
    kinds = ("look", "note", "send")
    first = ord(name) % 3
    calls = [call(kinds[first], {"name": name}), call(kinds[(first + 1) % 3], {"name": name})]
    return [*calls, text(f"{name} is done")][turn]


Death = tuple[Literal["before", "after"], str]
"""Before or after the commit that stores the first event of a type."""


@dataclass(frozen=True, slots=True)
class Life:
    """What one process does: begin a run, or go on with it."""

    folder: Path
    base_url: str
    what: str
    """The DAG, or the name of a shipped scenario."""
    window: int
    number: int
    """Stands in the goal, and in the model's name, so that the server's requests can be told apart."""
    resume: str | None = None
    edited: bool = False
    dies: Death | None = None
    """When it kills itself; None: somebody else does."""


class _Dying(SqliteJournal):
    """Kills its process at one commit."""

    def __init__(self, path: Path, dies: Death | None) -> None:
        super().__init__(path)
        self._dies = dies

    def _store(self, db: Any, upto: int) -> None:
        types = {row.type for row in self._rows[: max(0, upto - self._stored)]}
        self._die("before", types)
        super()._store(db, upto)
        self._die("after", types)

    def _die(self, when: str, types: set[str]) -> None:
        if self._dies and self._dies[0] == when and self._dies[1] in types:
            os.kill(os.getpid(), signal.SIGKILL)


def _handle(life: Life, journal: SqliteJournal) -> tuple[Orchestrator, RunHandle]:
    model = ModelSettings(
        model=f"m{life.number}", base_url=life.base_url, api_key=SecretStr("k"), structured="tool", window=life.window
    )
    if life.what == DAG:
        made = Orchestrator(
            models={"default": model}, roles=_roles(life.edited), tools=_tools(life.folder), journal=journal
        )
        handle = made.start(f"goal [run {life.number}]")
    else:
        made = Orchestrator(models={"default": model}, journal=journal, project=life.folder)
        handle = made.start_scenario(made.catalog.scenario(life.what))
        handle.order = replace(handle.order, goal=f"{handle.order.goal} [run {life.number}]")
    return made, made.start_resumed(life.resume) if life.resume else handle


def live(life: Life, pipe: Connection) -> None:
    """Be the process."""

    async def work() -> None:
        made, handle = _handle(life, _Dying(life.folder / "runs.db", life.dies))
        async with made, handle:
            pipe.send(handle.run_id)
            pipe.send(_told(await handle.result()))

    asyncio.run(work())


def _told(result: Any) -> dict[str, Any]:
    """Return what has to be the same whether a run was killed or not."""
    return {
        "status": result.status,
        "answer": _NUMBER.sub("", result.answer),
        "outcomes": {id: (o.status, o.answer, o.value) for id, o in result.outcomes.items()},
        "artifacts": [(a.path, a.sha256, a.by) for a in result.artifacts],
        "calls": result.usage.calls,
    }


# what it talks to


def _identity(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return what makes a request: all that was said, without the run's number and the calls' ids."""
    said = []
    for m in messages:
        calls = [(c["function"]["name"], c["function"]["arguments"]) for c in m.get("tool_calls", ())]
        said.append((m["role"], m["content"], calls))
    return sha256(_NUMBER.sub("", repr(said)).encode()).hexdigest()


class Teacher(ReplayModel):
    """Answers from a recording by key, and notes which request got which reply."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        self.learned: dict[str, RecordedReply] = {}

    async def generate(self, request: Request, on_delta: Any = None) -> Reply:
        reply = self.recording.lines[request.key].reply
        assert reply is not None
        self.learned[_identity(wire_messages(request.messages))] = reply
        return reply.reply(self.name)


@dataclass(slots=True)
class Server:
    """Answers each conversation by what is in it, so that the same request gets the same reply, and counts by run."""

    folder: Path
    requests: Counter[int] = field(default_factory=Counter)
    """By the number of the run."""
    windows: dict[str, int] = field(default_factory=dict)
    """Of the recorded models, by scenario."""
    _learned: dict[str, RecordedReply] = field(default_factory=dict)

    async def learn(self, scenario: str) -> None:
        """Run a scenario from its recording, to know which request gets which reply."""
        async with Orchestrator(project=self.folder, journal="memory") as made:
            handle = made.start_scenario(made.catalog.scenario(scenario), replay=True)
            assert isinstance(handle.order.model, ReplayModel)
            teacher = Teacher(handle.order.model.recording)
            handle.order = replace(handle.order, model=teacher, goal=f"{handle.order.goal} [run 0]")
            async with handle:
                result = await handle.result()
            assert result.status == "done", result
        self._learned |= teacher.learned
        self.windows[scenario] = teacher.window

    async def __call__(self, request: dict[str, Any]) -> Answer:
        said = repr([m["content"] for m in request["messages"]])
        self.requests[int(request["model"].removeprefix("m"))] += 1
        await asyncio.sleep(_PAUSE)
        if "You are the planner." in said or "You are a worker." in said:
            return _dag_reply(said, sum(m["role"] == "assistant" for m in request["messages"]))
        reply = self._learned[_identity(request["messages"])]
        answer = text(reply.content, usage=None)
        for one in reply.calls:
            answer += call(one.name, one.arguments)
        return answer


# killing it


@dataclass(slots=True)
class Verdict:
    """What came of one run that was killed."""

    what: str
    kills: int = 0
    faults: list[str] = field(default_factory=list)
    repeated: int = 0
    """Model calls that were made more than once: they were under way when it was killed."""


class Killer:
    """Begins runs in processes of their own, kills them, and lets them go on.

    Args:
        server: Where the model is.
        base_url: Its address.
        seed: Of all chance.
    """

    def __init__(self, server: Server, base_url: str, seed: int) -> None:
        self.server, self.base_url, self.chance = server, base_url, random.Random(seed)
        self.folder = server.folder
        self.processes = get_context("forkserver")
        self.processes.set_forkserver_preload(["tests.killing", "orchestrator.models.openai", "orchestrator.tables"])
        self.whole: dict[str, tuple[dict[str, Any], int, float]] = {}
        """By what it is: the result of a run that nobody killed, its commits, its seconds."""
        self.number = 0
        self.lasted = 0.0
        """Seconds that the latest run was at work."""
        self._seen: dict[str, int] = {}

    def life(self, what: str, **more: Any) -> Life:
        return Life(self.folder, self.base_url, what, self.server.windows.get(what, 128_000), self.number, **more)

    async def live(self, life: Life, seconds: float | None = None) -> dict[str, Any] | None:
        """Let a process live, and kill it after some seconds of its run; None: it died."""
        ours, theirs = self.processes.Pipe()
        process = self.processes.Process(target=live, args=(life, theirs))
        process.start()
        theirs.close()
        try:
            begun = await _receive(ours)
            since = time.monotonic()
            if begun is not None and seconds is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await asyncio.to_thread(process.join)
                process.kill()
            ended = await _receive(ours) if begun is not None else None
            self.lasted = time.monotonic() - since
            await asyncio.to_thread(process.join)
        except BaseException:  # the test's time is up: the threads that wait for a process that hangs would never end
            process.kill()
            raise
        process.close()
        return ended

    async def measure(self, what: str) -> None:
        """Run it once without killing it."""
        self.number += 1
        if what != DAG:
            await self.server.learn(what)
        result = await self.live(self.life(what))
        assert result is not None and result["status"] == "done", result
        run = await self._run()
        assert run is not None
        events = await SqliteJournal(self.folder / "runs.db").events(run)
        self.whole[what] = result, len(events), self.lasted

    async def kill(self, what: str, dies: Death | None = None, *, edited: bool = False) -> Verdict:
        """Begin a run, kill it once or more, let it go on to its end, and judge what happened.

        Args:
            what: The DAG, or a scenario.
            dies: When; None: at any moment, and perhaps again when it goes on.
            edited: Its roles are edited before it goes on.
        """
        self.number += 1
        verdict = Verdict(what)
        whole, _, seconds = self.whole[what]
        result = await self.live(self.life(what, dies=dies), None if dies else self.chance.uniform(0, seconds))
        while result is None:
            verdict.kills += 1
            run = await self._run()
            if run is None:  # it died before it was there
                if self.server.requests[self.number]:
                    verdict.faults.append("the model was asked before the run was in the log")
                return verdict
            past = Past.of(await SqliteJournal(self.folder / "runs.db").events(run))
            under_way = self.server.requests[self.number] - past.replies - verdict.repeated
            verdict.repeated += under_way
            if not 0 <= under_way <= len(past.asking):
                verdict.faults.append(f"{under_way} replies are not in the log, where {len(past.asking)} loops asked")
            self._judge_effects(run, past, verdict)
            if past.ended:
                result = _told(past.ended.result)
                break
            again = dies is None and self.chance.random() < 0.3 and verdict.kills < 4
            moment = self.chance.uniform(0, seconds) if again else None
            result = await self.live(self.life(what, resume=run, edited=edited), moment)
            if result is None and moment is None:
                verdict.faults.append("it did not go on")
                return verdict
        asked, calls = self.server.requests[self.number], whole["calls"]
        if asked != calls + verdict.repeated:
            verdict.faults.append(f"{asked} model calls, where {calls} and {verdict.repeated} repeated ones were right")
        verdict.faults += [f"{k}: {result[k]} instead of {whole[k]}" for k in whole if result[k] != whole[k]]
        return verdict

    async def _run(self) -> str | None:
        """Return the id of the run with the current number."""
        runs = await SqliteJournal(self.folder / "runs.db").runs()
        return next((info.run for info in runs if f"[run {self.number}]" in info.goal), None)

    def _judge_effects(self, run: str, past: Past, verdict: Verdict) -> None:
        """See that no recorded call had its effect twice by now, and none that must not be repeated ever."""
        effects = Counter(line for line in _read(self.folder / _EFFECTS).splitlines() if line.startswith(run))
        finished = {sha256((run + key).encode()).hexdigest() for key in past.returned}
        for line, count in effects.items():
            _, name, key, _ = line.split(maxsplit=3)
            before = self._seen.setdefault(line, count) if key in finished else count
            if before != count:
                verdict.faults.append(f"a finished call of {name} was made again")
            if name == "send" and count > 1:
                verdict.faults.append("a call that must not be repeated was")


async def _receive(pipe: Connection) -> Any:
    """Return what a process says; None: it died."""
    try:
        return await asyncio.to_thread(pipe.recv)
    except EOFError:
        return None


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
