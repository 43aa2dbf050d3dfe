"""Holds the calls of one loop back until a person has said a word, where policy asks for it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import orjson

from orchestrator.context import RunContext, record_key
from orchestrator.conversation import Conversation
from orchestrator.errors import ToolError
from orchestrator.events import ApprovalAsked, SubtaskWaiting, ToolStarted
from orchestrator.journal import Signal
from orchestrator.messages import Json
from orchestrator.policy import Act, Reason, Trust, destinations, reason_to_ask
from orchestrator.shift import Shift
from orchestrator.tool import Tool
from orchestrator.workspace.loop import LoopWorkspace


@dataclass(frozen=True, slots=True)
class Gate:
    """Where the calls of one loop wait."""

    context: RunContext
    path: str
    shift: Shift
    """Of the loop, which rests while it waits."""
    approval: Collection[str] = ()
    """Tools whose calls the role wants allowed."""
    allow: tuple[str, ...] = ()
    """Hosts that the role may reach; a person wrote them down."""

    def question(
        self,
        key: str,
        tool: Tool,
        arguments: Mapping[str, Any],
        text: str,
        loop: tuple[Conversation, LoopWorkspace],
        goes_to: str = "",
    ) -> ApprovalAsked | None:
        """Return what a person is asked before a call; None: nothing.

        Args:
            key: Of the call.
            tool: What it calls.
            arguments: As the tool gets them.
            text: The same as JSON.
            loop: What the loop has read, and its files.
            goes_to: Where it sends data besides what its arguments say.
        """
        conversation, workspace = loop
        sources = tuple(conversation.sources)
        reason: Reason | None = Reason("it asks you") if tool.asks else None
        if reason is None:
            act = Act(
                tool=tool.title or tool.name,
                effect=tool.effect,
                outward=tool.outward,
                approval=tool.approval,
                destinations=(*destinations(arguments, tool.destinations), *filter(None, [goes_to])),
            )
            named = (*self.context.words, *self.context.constraints, *self.allow)
            trust = Trust(
                named, sources, lambda url: _stands_in(url, conversation), lambda name: _is_file(name, workspace)
            )
            reason = reason_to_ask(act, self.approval, trust)
        if reason is None:
            return None
        return ApprovalAsked(
            path=self.path,
            key=key,
            name=tool.title or tool.name,
            arguments=self.context.redact(text),
            parameters=None if tool.asks else dict(tool.parameters),
            why=reason.why,
            expects="answer" if tool.asks else "approval",
            destination=reason.destination,
            sources=sources,
        )

    def doubt(self, intent: ToolStarted) -> ApprovalAsked:
        """Return what a person is asked about a call that was begun, and of which nobody knows whether it took effect.

        Each time that it is begun it is another question.
        """
        place, turn, _ = intent.key.rsplit(":", 2)
        return ApprovalAsked(
            path=self.path,
            key=record_key(place, int(turn), "person", intent.seq),
            name=intent.name,
            arguments=intent.arguments,
            why=self.context.text("in_doubt"),
            expects="either",
        )

    def change(self, was: Tool, now: Tool, arguments: str) -> ApprovalAsked:
        """Return what a person is asked about a tool that is no longer what the run was told.

        Whichever loops call it, that is one question, and the word on it holds until the tool changes again.

        Args:
            was: The tool as the loop knows it.
            now: As it is.
            arguments: Of the call, as JSON.
        """
        terms, told = now.terms(), was.terms()
        changes = [f"{name}: {_json(told[name])} → {_json(terms[name])}" for name in terms if terms[name] != told[name]]
        identity = f"{now.name}-{sha256(_json(terms).encode()).hexdigest()[:8]}"
        return ApprovalAsked(
            path=self.path,
            key=record_key(self.path.partition("/")[0], 0, "person", identity),
            name=now.title or now.name,
            arguments=self.context.redact(arguments),
            why=self.context.redact(self.context.text("tool_changed", changes="\n".join(changes))),
        )

    async def first(self, questions: Mapping[str, ApprovalAsked]) -> Signal:
        """Wait for the first word on any of these; meanwhile others work, and the loop's time stands."""
        people = self.context.people
        if not people.answered(questions):
            told = "; ".join(f"{question.name}: {question.why}" for question in questions.values())
            self.context.log.add(SubtaskWaiting(path=self.path, id=self.path.rpartition("/")[2], why=told))
            await self.context.log.commit()  # a person can see what is asked
            async with self.shift.away():
                await people.wait(questions)
        return people.take(questions)

    def ask(self, questions: Iterable[ApprovalAsked]) -> None:
        """Put questions to people."""
        for question in questions:
            self.context.people.ask(question)


def _json(value: Json) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _stands_in(url: str, conversation: Conversation) -> bool:
    """Whether a URL stands, as it is, in what tools and other loops said."""
    whole = re.compile(rf"(?<!\w){re.escape(url)}(?![\w/%=&?#+~-]|\.\w)")
    return any(whole.search(m.content) for m in conversation.messages if m.role in ("tool", "data"))


def _is_file(name: str, workspace: LoopWorkspace) -> bool:
    try:
        return workspace.existing(name.removeprefix("file://")).is_file()
    except ToolError:
        return False
