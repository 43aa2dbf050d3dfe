"""The model calls of one loop: within the budget, on the record, and measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from orchestrator.context import RunContext
from orchestrator.conversation import Conversation
from orchestrator.errors import ModelError
from orchestrator.events import ModelCalled, ModelFailed, ModelReplied, delta_event
from orchestrator.limits import Moment
from orchestrator.messages import Delta, Reply, Request
from orchestrator.models import Model
from orchestrator.models.replay import observed_hash
from orchestrator.models.tokens import NOTHING, Counts, Meter, together
from orchestrator.role import Role


@dataclass(frozen=True, slots=True)
class Weight:
    """What a prompt is made of."""

    system: Counts = NOTHING
    history: Counts = NOTHING
    tools: Counts = NOTHING
    whole: Counts = field(init=False)
    """All of it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "whole", together(self.system, self.history, self.tools))


@dataclass(slots=True)
class Caller:
    """Makes the model calls of one loop.

    Args:
        context: The run.
        path: The loop.
        role: Says with which parameters the model is asked.
        model: Whom it asks.
    """

    context: RunContext
    path: str
    role: Role
    model: Model
    origin: str = field(init=False)
    """The endpoint that answered last."""

    def __post_init__(self) -> None:
        self.origin = getattr(self.model, "origin", self.model.name)

    @property
    def output(self) -> int:
        """Tokens that an answer may have."""
        params = self.role.params
        return int(params.get("max_tokens") or params.get("max_completion_tokens") or self.model.max_output)

    @property
    def room(self) -> int:
        """Tokens that a prompt may have."""
        return self.model.window - self.output

    @property
    def meter(self) -> Meter:
        """What is known of how the answering model counts."""
        return self.context.meters[self.origin]

    async def call(self, request: Request, weight: Weight, moment: Moment = "next", hash: str = "") -> Reply:
        """Ask the model when the budget lets it.

        Args:
            request: Its key says which call of the loop it is; a reply to `path:turn:model` is a turn of it.
            weight: What the prompt is made of.
            moment: Which call of the loop it is.
            hash: Of the conversation, where the prompt is one.

        Raises:
            ModelError: There is no answer.
            OutOfBudget: There never will be room for the call.
        """
        hash = hash or Conversation(request.messages).hash
        if (said := self.context.past.said.get((request.key, hash))) is not None:
            return Reply(said)
        output = request.max_output or self.output
        prompt = self.meter.tokens(weight.whole)
        async with self.context.ledger.call(self.path, self.model, prompt, output, moment) as call:
            if call.max_output:
                request = replace(request, max_output=call.max_output)
            reply = await self._recorded(request, weight, hash)
            call.usage = reply.usage
        return reply

    async def _recorded(self, request: Request, weight: Weight, hash: str) -> Reply:
        log, started, meter = self.context.log, time.monotonic(), self.meter
        is_turn = request.key.endswith(":model")
        log.add(
            ModelCalled(
                path=self.path,
                key=request.key,
                model=self.model.name,
                messages=len(request.messages),
                hash=hash,
                tool_choice=request.tool_choice,
                turn=int(request.key.rsplit(":", 2)[1]),
                system=meter.tokens(weight.system),
                history=meter.tokens(weight.history),
                tools=meter.tokens(weight.tools),
            )
        )
        try:
            reply = await self.model.generate(request, self._deltas(request.key) if is_turn and log.listening else None)
        except ModelError as error:
            failed = ModelFailed(
                path=self.path, key=request.key, failure=error.failure, seconds=time.monotonic() - started
            )
            log.add(failed)
            raise
        log.add(
            ModelReplied(
                path=self.path,
                key=request.key,
                model=reply.model or self.model.name,
                finish_reason=reply.finish_reason,
                usage=reply.usage,
                seconds=time.monotonic() - started,
                observed=observed_hash(request.observed),
                replayed=getattr(self.model, "replayed", False),
                content="" if is_turn else reply.content,
            )
        )
        self.origin = reply.origin or self.origin
        if reply.usage.prompt and not reply.usage.estimated_calls:
            self.meter.learn(weight.whole, reply.usage.prompt)
        return reply

    def _deltas(self, key: str) -> Callable[[Delta], None]:
        def on_delta(delta: Delta) -> None:
            self.context.log.add(delta_event(delta, self.path, key))

        return on_delta
