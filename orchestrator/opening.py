"""How the loop of a role is opened: its prompt, its tools, its limits and, where it may plan, its plan."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson
from pydantic import BaseModel

from orchestrator.caller import Caller
from orchestrator.choice import finding_tools
from orchestrator.context import RunContext, within
from orchestrator.conversation import Conversation
from orchestrator.delegate import NAME as DELEGATE
from orchestrator.delegate import Execute, Planner
from orchestrator.events import ArtifactStored, Warned
from orchestrator.fences import fenced
from orchestrator.gate import Gate
from orchestrator.limits import Limits
from orchestrator.loop import AgentLoop
from orchestrator.messages import Message, ToolCall
from orchestrator.role import Role
from orchestrator.schedule import Ticket
from orchestrator.schema import RESULT_TOOL, result_schema, result_tool
from orchestrator.selection import hidden_tools
from orchestrator.text.placeholders import fill
from orchestrator.tool import Tool
from orchestrator.toolbox import Toolbox
from orchestrator.workspace.loop import LoopWorkspace

MAX_DEPTH = 2
"""Planners below each other, the root included."""


class Opening:
    """Opens the loops of one run.

    Args:
        context: The run.
        execute: Runs a subtask for a planner.
    """

    def __init__(self, context: RunContext, execute: Execute) -> None:
        self.context, self.execute = context, execute
        self.planners: dict[str, Planner] = {}
        """By the path of the planner's loop."""
        self.warned: set[str] = set()
        """What has been said of tools that cannot be offered."""

    async def open(
        self,
        role: Role,
        path: str,
        *,
        goal: str,
        output: dict[str, Any] | None = None,
        form: type[BaseModel] | None = None,
        parent: Planner | None = None,
        ticket: Ticket | None = None,
        needs: Sequence[str] = (),
    ) -> AgentLoop:
        """Make the loop of a role, with its tools and, where it may plan, its plan.

        Args:
            role: The role.
            path: Where in the run the loop stands.
            goal: What it is asked, for reminders.
            output: JSON Schema of the result, over the role's own.
            form: The pydantic model that the schema is of.
            parent: The planner it works for; None: the root loop.
            ticket: Its working slot.
            needs: Paths of the loops whose files it may overwrite once they have ended.
        """
        context = self.context
        past = context.past.loops.get(path)
        if past:  # whatever the role is today
            role = context.offer.to(Role.model_validate(past.frozen.roles[role.name]))
        if parent:
            context.ledger.limit(path, role.limits)
        role = role.model_copy(update={"limits": Limits.combine(role.limits, context.limits)})
        output = output or role.output
        model, profile = context.models(role.model)
        above = parent.shift if parent else context.shift
        worked = context.past.active(past.began) if past else 0.0
        shift = above.below(role.limits.timeout, ticket=ticket, worked=worked)
        tools = self._tools(role, path, past.frozen.tools if past else context.schemas)
        conversation = past.conversation if past else Conversation()
        depth = parent.depth + 1 if parent else 1
        if DELEGATE in role.tools and depth <= MAX_DEPTH:
            planner = Planner(
                context,
                path,
                roles=self._may_delegate(role),
                execute=self.execute,
                shift=shift,
                depth=depth,
                window=model.window,
                short=profile.short_plan,
                sources=conversation.sources,
            )
            self.planners[path] = planner
            tools = {DELEGATE: planner.tool(), **tools}
        if output is not None and profile.structured == "tool":
            tools[RESULT_TOOL] = result_tool(output, context.text("submit_result"), form)
        own = [tool for name, tool in tools.items() if name not in (DELEGATE, RESULT_TOOL)]
        hidden = await hidden_tools(Caller(context, path, role, model), own, goal)
        if hidden:
            tools |= self._finding(tools, hidden)
        workspace = self.workspace(path, needs, conversation)
        toolbox = Toolbox(
            context,
            path,
            tools,
            workspace,
            conversation,
            Gate(context, path, shift, role.approval, role.network.allow),
            hidden=hidden,
            window=model.window,
            image_size=profile.image_size,
        )
        loop = AgentLoop(context, path, role, conversation, toolbox, shift, output=output, form=form, goal=goal)
        prompt = self._prompt(role, DELEGATE in tools)
        if output is not None and RESULT_TOOL not in tools:
            prompt += "\n\n" + context.text("answer_in_json", schema=orjson.dumps(result_schema(output)).decode())
        loop.begin(prompt, self._examples(role) if profile.example else ())
        return loop

    def _tools(self, role: Role, path: str, schemas: Mapping[str, Any]) -> dict[str, Tool]:
        """Return what a role may call and this machine has, with these schemas; say what is left out."""
        named = [replace(self.context.tool(n), **schemas.get(n, {})) for n in role.tools if n != DELEGATE]
        recording = self.context.recording
        nobody = not (self.context.memory.owned or (recording and recording.header.owned))
        tools = {tool.name: tool for tool in named if not (tool.remembers and nobody)}
        asked = {} if recording else tools  # what runs no tool needs nothing
        missing = {name: why for name, tool in asked.items() if (why := tool.missing())}
        for why in dict.fromkeys(missing.values()):
            first, *more = (name for name in missing if missing[name] == why)
            self._warn(path, f"{first}{f' (and {len(more)} more)' * bool(more)} is not offered: {why}")
        return {name: tool for name, tool in tools.items() if name not in missing}

    def _warn(self, path: str, text: str) -> None:
        """Say something once in a run, however many loops it holds for."""
        if text not in self.warned:
            self.warned.add(text)
            self.context.log.add(Warned(path=path, text=text))

    def _finding(self, tools: Mapping[str, Tool], hidden: Collection[str]) -> dict[str, Tool]:
        """Return the tools by which a loop reaches what it is not shown."""
        specs = [tools[name].spec() for name in tools if name in hidden]
        find = self.context.text("find_tools", hidden=len(hidden))
        return finding_tools(specs, find, self.context.text("call_tool"))

    def _examples(self, role: Role) -> Iterator[Message]:
        """Word a planner's examples as messages: as prose in the prompt, small models print the call as text."""
        may = set(self._may_delegate(role))
        for number, example in enumerate(e for e in role.examples if e.roles <= may):
            yield Message("user", self.context.text("planner_task", goal=example.goal, date="", files="", templates=""))
            if example.plan:
                call = ToolCall(f"example_{number}", DELEGATE, orjson.dumps({"subtasks": example.plan}).decode())
                yield Message("assistant", calls=(call,))
                shown = [fenced(s["id"], s["role"], "done", example.outcomes.get(s["id"], "")) for s in example.plan]
                yield Message("tool", "\n\n".join(shown), call_id=call.id)
            yield Message("assistant", example.answer)

    def _may_delegate(self, role: Role) -> list[str]:
        allowed = role.may_delegate if role.may_delegate is not None else self.context.delegable
        return [name for name in allowed if name in self.context.delegable and name != role.name]

    def _prompt(self, role: Role, plans: bool) -> str:
        listed = [self.context.role(name) for name in self._may_delegate(role)] if plans else []
        return fill(role.prompt, {"roles": "\n".join(f"- {r.name}: {r.description}" for r in listed)})

    def workspace(self, path: str, needs: Sequence[str], conversation: Conversation) -> LoopWorkspace:
        """Return what a loop may do with the run's files; `needs` as for `open`."""

        def may_take(owner: str) -> bool:
            return any(within(owner, need) for need in needs)

        def stored(change: ArtifactStored) -> None:
            self.context.log.add(change)

        return self.context.workspace.for_loop(path, may_take, stored, lambda: conversation.sources)
