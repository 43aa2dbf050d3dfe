"""`ori run`, `solve`, `plan`, `test`: what starts the engine."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from orchestrator.content.checks import CheckResult, ToolsCheck, evaluate
from orchestrator.content.scenario import Scenario, parse_params
from orchestrator.errors import ConfigError
from orchestrator.handle import RunHandle
from orchestrator.run import Orchestrator, Preview
from orchestrator.serve import planfile
from orchestrator.serve.asking import Asker, interactive, who
from orchestrator.serve.inbox import describe
from orchestrator.serve.interrupt import Interrupt
from orchestrator.serve.plain import counted
from orchestrator.serve.report import DONE, FAILED, INTERRUPTED, NEEDS_A_LOOK, STDOUT, Report, write
from orchestrator.text.redact import Redactor

if TYPE_CHECKING:
    from orchestrator.results import RunResult
    from orchestrator.views.estimate import Estimate

STATUS = {"done": DONE, "failed": FAILED, "partial": NEEDS_A_LOOK, "needs_review": NEEDS_A_LOOK}
"""Exit status by how a run ended; whatever else was stopped from outside."""
_PAST_RUNS = 20
"""Runs that an estimate looks back on."""


def run(args: Namespace) -> Report:
    """Run a scenario, or the plan of a file."""
    if args.replay not in (None, "model", "all"):  # `--replay NAME`: the option has taken the word after it
        if args.scenario is not None:
            raise ConfigError(f"--replay={args.replay} is unknown; write --replay, or --replay=all")
        args.scenario, args.replay = args.replay, "model"
    asker = Asker() if interactive() else None
    orchestrator = Orchestrator.from_project(args.project, approve=asker.approve if asker else None)
    plan = planfile.read_plan(args.plan) if args.plan else None
    if args.scenario is None:
        if plan is None or not plan.goal:
            raise ConfigError("name a scenario, or a plan file that holds its goal: ori run --plan plan.yaml")
        handle = orchestrator.start(plan.goal, inputs=plan.inputs, plan=plan.delegate(), workspace=args.workspace)
        return run_to_end(orchestrator, handle, args, asker=asker)
    scenario = orchestrator.catalog.scenario(args.scenario)
    if args.replay != "all" and (lacking := _lacking(orchestrator, scenario)):
        raise scenario.error(f"cannot run here, as it needs {lacking}")
    params = parse_params(args.set)
    offline = not (args.live or orchestrator.settings.configured or scenario.recording is None)
    replay: bool | Literal["all"] = "all" if args.replay == "all" else bool(args.replay) or offline
    handle = orchestrator.start_scenario(
        scenario,
        params=params,
        workspace=args.workspace,
        plan=plan and plan.delegate(),
        replay=replay,
    )
    if replay:
        _say(f"ori: {replays(scenario, asked=bool(args.replay))}")
    return run_to_end(orchestrator, handle, args, scenario.bind(params), asker)


def solve(args: Namespace) -> Report:
    """Plan and run a goal."""
    asker = Asker() if interactive() else None
    orchestrator = Orchestrator.from_project(args.project, approve=asker.approve if asker else None)
    whose = {"session": args.session, "user": args.user}
    handle = orchestrator.start(args.goal, inputs=args.input, workspace=args.workspace, **whose)
    return run_to_end(orchestrator, handle, args, asker=asker)


def run_to_end(
    orchestrator: Orchestrator,
    handle: RunHandle,
    args: Namespace,
    scenario: Scenario | None = None,
    asker: Asker | None = None,
) -> Report:
    """Show a run while it works, and report how it ended."""
    interrupt = Interrupt()
    handle.attended = False  # whoever says `later` answers from elsewhere
    if asker:
        handle.people.who = f"{who()} at the terminal"

    async def work() -> tuple[RunResult, list[CheckResult], list[str]]:
        async with orchestrator:
            async with handle:
                interrupt.notice = _interrupted(handle)
                await _follow(orchestrator, handle, args, asker)
                result = await handle.result()
            # only now that nobody works on it: who answers from here on is told that it has to be resumed
            open = await _open_end(orchestrator, result)
            known = scenario or _resumed_scenario(orchestrator, handle)
            return result, await checked(orchestrator, result, known) if known and not open else [], open

    try:
        with redirect_stdout(sys.stderr):  # a tool that prints must not spoil the answer
            result, checks, open = interrupt.run(work())
    except KeyboardInterrupt:
        data = {"run_id": handle.run_id, "status": "interrupted"}
        return Report(data=data, note=interrupt.notice, status=INTERRUPTED)
    status = STATUS.get(result.status, INTERRUPTED)
    if status == DONE and not all(check.passed for check in checks):
        status = FAILED
    data = result.model_dump(mode="json") | {"checks": [asdict(check) for check in checks]}
    note = "\n".join((*summary(result, checks), *open))
    return Report(data=data, text=result.answer, note=note, status=status)


async def _open_end(orchestrator: Orchestrator, result: RunResult) -> list[str]:
    """Return what is to be done about a run that waits for people."""
    questions = await orchestrator.journal.questions(result.run_id)
    ended = (await orchestrator.journal.info(result.run_id)).ended
    if ended is None and not questions:
        return [f"it was answered just now; next: ori resume {result.run_id}"]
    return [line for question in questions for line in describe(question)]


def _resumed_scenario(orchestrator: Orchestrator, handle: RunHandle) -> Scenario | None:
    """Return the scenario of a run that goes on, if it is one and its file is still there."""
    order = handle.order
    with suppress(ConfigError):
        return orchestrator.catalog.scenario(order.scenario).bind(order.params) if order.scenario else None
    return None


async def _follow(orchestrator: Orchestrator, handle: RunHandle, args: Namespace, asker: Asker | None) -> None:
    """Show the run while it works: as log lines where those are asked for, else as a tree or plain lines."""
    if args.verbose or os.environ.get("ORI_LOG"):
        from orchestrator.views.log import log_to, stream_logger

        log = log_to(stream_logger(sys.stderr, args.verbose), Redactor(orchestrator.settings.secrets()).text)
        async for event in handle:
            log(event)
    else:
        from orchestrator.serve import terminal

        handle.passing = sys.stderr.isatty()
        await terminal.watch(handle, sys.stderr, asker=asker, before=handle.before)


async def checked(orchestrator: Orchestrator, result: RunResult, scenario: Scenario) -> list[CheckResult]:
    """Hold a scenario's checks against its run."""
    events = await orchestrator.journal.events(result.run_id)
    workspace = Path(result.workspace or ".")
    return evaluate(scenario.checks, result, workspace, events, inputs=scenario.input_files())


def summary(result: RunResult, checks: Sequence[CheckResult]) -> Iterator[str]:
    """Say how a run went: what is not the answer itself."""
    from orchestrator.serve import plain

    yield f"{result.status.replace('_', ' ')}: {plain.usage_text(result.usage)}"
    if result.status != "done":
        yield f"  {plain.why(result)}"
    ended = [outcome for outcome in result.outcomes.values() if outcome.status != "done"]
    yield from (f"  {outcome.id} {outcome.status}: {plain.why(outcome)}" for outcome in ended)
    if checks:
        failed = [check for check in checks if not check.passed]
        yield f"checks: {len(checks) - len(failed)} passed, {len(failed)} failed"
        yield from (f"  {_verdict(check)}" for check in failed)
    for artifact in result.artifacts:
        yield f"  {Path(result.workspace or '') / artifact.path} ({artifact.size:,} bytes)"
    yield f"run {result.run_id}; what happened: ori show {result.run_id}"


def _verdict(check: CheckResult) -> str:
    return f"passed: {check.check}" if check.passed else f"failed: {check.check}: {check.detail}"


def _interrupted(handle: RunHandle) -> str:
    return f"ori: interrupted; go on with: ori resume {handle.run_id}"


def replays(scenario: Scenario, *, asked: bool = False) -> str:
    """Say in one line that no model is asked, and whose words these are."""
    from orchestrator.models.replay import Recording

    header = Recording.load(scenario.recording_file() or "").header
    author = "scripted by hand" if header.scripted else f"recorded from {header.model}"
    return f"{'' if asked else 'no model is configured: '}replaying replies {author}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def plan(args: Namespace) -> Report:
    """Show the plan of a goal, with an estimate; write it as a file."""
    orchestrator = Orchestrator.from_project(args.project)

    async def work() -> tuple[Preview, Estimate | None]:
        async with orchestrator:
            preview = await orchestrator.plan(args.goal, inputs=args.input)
            return preview, await _estimate(orchestrator, preview)

    with redirect_stdout(sys.stderr):
        preview, estimate = Interrupt().run(work())
    result, plan = preview.result, preview.plan
    if plan is None or estimate is None:
        note = result.failure.message if result.failure else "the planner answered at once; there is no plan"
        return Report(
            data=result.model_dump(mode="json"), text=result.answer, note=note, status=STATUS.get(result.status, FAILED)
        )
    from orchestrator.serve import layout

    note = _expected(estimate)
    data = {"plan": plan.model_dump(mode="json", exclude_defaults=True), "estimate": asdict(estimate)}
    if args.output:
        text = planfile.plan_text(plan, args.goal, args.input)
        if args.output == STDOUT:
            return Report(data=data, text=text.rstrip(), note=note)
        write(args.output, text)
        note += f"\n{args.output} is written; edit it, then: ori run --plan {args.output}"
    rows = [(s.id, s.performer, ", ".join(s.after), s.goal) for s in plan.subtasks]
    return Report(data=data, note=note, draw=partial(layout.table, ("subtask", "role", "after", "goal"), rows))


async def _estimate(orchestrator: Orchestrator, preview: Preview) -> Estimate | None:
    """Estimate a plan from the subtasks of the latest runs."""
    from orchestrator.events import SubtaskEnded
    from orchestrator.views.estimate import estimate

    if preview.plan is None:
        return None
    journal = orchestrator.journal
    latest = [info for info in await journal.runs() if info.ended][:_PAST_RUNS]
    events = [event for info in latest for event in await journal.events(info.run)]
    return estimate(preview.plan.subtasks, [e.outcome for e in events if isinstance(e, SubtaskEnded)])


def _expected(estimate: Estimate) -> str:
    from orchestrator.serve import plain

    basis = (
        f"{estimate.past} earlier subtasks" if estimate.past else "a rule of thumb: no earlier subtasks of these roles"
    )
    size = f"{estimate.calls} model calls, {estimate.tokens:,} tokens, {plain.duration(estimate.seconds)}"
    return f"estimate: about {size}\n  along {' → '.join(estimate.chain)}, from {basis}"


@dataclass(frozen=True, slots=True)
class Tested:
    """How one scenario's test went."""

    scenario: str
    run: str | None = None
    checks: tuple[CheckResult, ...] = ()
    error: str = ""
    """Why it could not run."""
    skipped: str = ""
    """What is lacking to run it."""

    @property
    def passed(self) -> bool:
        """It ran, and every check holds."""
        return not self.skipped and not self.error and all(check.passed for check in self.checks)

    def lines(self, verbose: bool) -> Iterator[str]:
        """Say it for people: what failed with what was expected and what was found; `verbose`: what passed, too."""
        if self.skipped:
            yield f"SKIP {self.scenario}\n  {self.skipped}"
            return
        failed = [check for check in self.checks if not check.passed]
        checks = counted(len(self.checks), "check")
        count = f"{len(failed)} of {checks} failed" if failed else checks
        ran = f": {count} (run {self.run})" if self.run else ""
        yield f"{'PASS' if self.passed else 'FAIL'} {self.scenario}{ran}"
        if self.error:
            yield f"  {self.error}"
        yield from (f"  {_verdict(check)}" for check in (self.checks if verbose else failed))


def test(args: Namespace) -> Report:
    """Run scenarios, each in a workspace of its own, and hold their checks against them."""
    orchestrator = Orchestrator.from_project(args.project)
    if args.live:
        orchestrator.settings.model("default")
    names, interrupt = _named(orchestrator, args.scenarios), Interrupt()

    async def work() -> list[Tested]:
        async with orchestrator:
            return [await _test(orchestrator, name, args.live, interrupt) for name in names]

    with redirect_stdout(sys.stderr):
        tested = interrupt.run(work())
    skipped, passed = sum(bool(one.skipped) for one in tested), sum(one.passed for one in tested)
    failed = len(tested) - passed - skipped
    lines = [line for one in tested for line in one.lines(args.verbose)]
    total = counted(len(tested), "scenario")
    lines.append(f"{total}, {passed} passed, {failed} failed" + (f", {skipped} skipped" * bool(skipped)))
    data = [asdict(one) | {"passed": one.passed} for one in tested]
    return Report(data=data, text="\n".join(lines), status=FAILED if failed else DONE)


def _named(orchestrator: Orchestrator, names: Sequence[str]) -> list[str]:
    """Return the scenarios that a command line means: all, or those of folders, files and names."""
    found: list[str] = []
    for name in names:
        if not Path(name).is_dir():
            orchestrator.catalog.scenario_file(name)  # a wrong word is no scenario that fails
            found.append(name)
        elif inside := sorted(map(str, Path(name).glob("*.yaml"))):
            found += inside
        else:
            raise ConfigError("there is no scenario (*.yaml) in this folder", file=name)
    return found if names else orchestrator.catalog.scenario_names


async def _test(orchestrator: Orchestrator, name: str, live: bool, interrupt: Interrupt) -> Tested:
    title = Path(name).stem
    _say(f"{title} …")
    try:
        scenario = orchestrator.catalog.scenario(name)
        if lacking := _lacking(orchestrator, scenario):
            return Tested(title, skipped=lacking)
        if not live and scenario.recording is None:
            return Tested(title, skipped=str(scenario.without_recording()))
        handle = orchestrator.start_scenario(scenario, replay=not live)
        interrupt.notice = _interrupted(handle)
        async with handle:
            result = await handle.result()
        checks = await checked(orchestrator, result, scenario.bind())
    except ConfigError as error:
        return Tested(title, error=str(error))
    return Tested(title, result.run_id, tuple(checks))


def _lacking(orchestrator: Orchestrator, scenario: Scenario) -> str:
    """Say which of the tools that a scenario surely calls this machine cannot offer, and what mends that."""
    catalog = orchestrator.catalog
    wanted = {subtask.tool for subtask in scenario.plan if subtask.tool}
    wanted |= {name for check in scenario.checks if isinstance(check, ToolsCheck) for name in check.tools.called}
    missing = {name: catalog.tool(name).missing() for name in sorted(wanted.intersection(catalog.tool_names))}
    return "; ".join(f"{name}: {why}" for name, why in missing.items() if why)
