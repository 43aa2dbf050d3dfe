"""What a run does between its first and its last event: the root loop at work, and the result that comes of it."""

from __future__ import annotations

from dataclasses import replace

from orchestrator import carry
from orchestrator.answers import Ending, by_outcomes
from orchestrator.context import RunContext
from orchestrator.delegate import Planner
from orchestrator.errors import ToolError
from orchestrator.failure import Failure, FailureKind, StopReason
from orchestrator.fences import sources_of
from orchestrator.journal import Journal
from orchestrator.loop import Given
from orchestrator.order import Order
from orchestrator.results import Outcome, RunResult, RunStatus
from orchestrator.schema import as_model
from orchestrator.subtask import Workers


class Course:
    """The work of one run.

    Args:
        context: The run.
        order: What it is asked to do.
        journal: Knows the earlier runs of its session.
    """

    def __init__(self, context: RunContext, order: Order, journal: Journal) -> None:
        self.context, self.order, self.journal = context, order, journal
        self.workers = Workers(context)

    async def solve(self) -> Ending:
        """Open the root loop, tell it the goal, and run it to its end."""
        context, order = self.context, self.order
        given = [] if order.root in context.past.loops else await self._given()
        role = context.roles[order.root]
        loop = await self.workers.opening.open(role, order.root, goal=order.goal, output=order.schema, form=order.form)
        planner = self.workers.opening.planners.get(order.root)
        if not loop.begun:
            loop.say(self._brief(planner))
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

    async def _given(self) -> list[Given]:
        """Take over the variables of the session's earlier goals; return what came of those, and what is remembered."""
        given = await carry.recall(self.context, self.order.root, self.order.goal)
        if self.order.session is not None:
            earlier = await self.journal.session(self.order.session, self.order.user)
            others = [event for event in earlier if event.run != self.context.run_id]
            given = carry.session(self.context, others) + given
        return given

    def _brief(self, planner: Planner | None) -> str:
        """Word the first message: the goal, and what there is to work with."""
        if planner is None:
            return self.context.text(
                "worker_task", goal=self.order.goal, files="", expect="", constraints="", request=""
            )
        templates = planner.templates.values()
        return self.context.text(
            "planner_task",
            goal=self.order.goal,
            date=self.context.date,
            files=self.context.workspace.listing(),
            templates="\n".join(f"- {t.name}({', '.join(t.params)}): {t.when}" for t in templates),
        )

    def result(self, ending: Ending) -> RunResult:
        """Return how the run ended, judged by its outcomes: the planner's own words do not make it a success."""
        planner = self.workers.opening.planners.get(self.order.root)
        if planner:
            ending = by_outcomes(ending, planner.plan, planner.rejected > 0)
        status: RunStatus = "partial" if ending.status == "skipped" else ending.status
        said = {"answer": ending.answer, "value": ending.value, "untrusted": ending.untrusted}
        return self._typed(self.collect(status, ending.stop_reason, ending.failure).model_copy(update=said))

    def failed(self, reason: StopReason, failure: Failure) -> RunResult:
        """Return how a run ended that was stopped; what is finished stays."""
        status: RunStatus = "cancelled" if reason == "cancelled" else "failed"
        return self.collect(status, reason, failure)

    def collect(self, status: RunStatus, reason: StopReason, failure: Failure | None) -> RunResult:
        """Return the result of a run as it stands."""
        planner = self.workers.opening.planners.get(self.order.root)
        formatted, workspace = self.context.formatted_goal, self.context.workspace
        return RunResult(
            run_id=self.context.run_id,
            status=status,
            stop_reason=reason,
            formatted_goal=formatted.model_dump(mode="json") if formatted else None,
            outcomes=self._outcomes(planner, reason) if planner else {},
            artifacts=workspace.changes.artifacts(),
            usage=self.context.ledger.spent,
            failure=failure,
            workspace=str(workspace.root) if workspace.root.exists() else None,
        )

    def _outcomes(self, planner: Planner, reason: StopReason) -> dict[str, Outcome]:
        """Return how the subtasks ended, in plan order; of a cancelled run also those that had not ended."""
        plan, outcomes = planner.plan, planner.plan.outcomes
        if reason == "cancelled":
            now, started = self.context.log.now(), plan.started
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
        form = self.order.form
        if result.value is None or form is None:
            return result
        try:
            return result.model_copy(update={"value": as_model(result.value, form)})
        except ToolError as error:  # it came from a plan, not from the loop
            message = f"the result does not fit {form.__name__}: {error}"
            failure = Failure(FailureKind.bad_model_output, message)
            return result.model_copy(update={"status": "failed", "stop_reason": "invalid_output", "failure": failure})
