"""One model behind one server, shared by all who ask it: which requests are made again, and when none is made."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from orchestrator.errors import BreakerOpen, ModelError
from orchestrator.events import BreakerChanged, Event, Warned
from orchestrator.failure import RULES, Failure
from orchestrator.messages import Delta, Reply, Request
from orchestrator.models import Model
from orchestrator.models.breaker import Breaker
from orchestrator.models.lanes import Lanes, Reserved
from orchestrator.models.tokens import Price, estimate_tokens
from orchestrator.models.wire import encode, wire_messages, wire_tools

if TYPE_CHECKING:
    from tenacity import RetryCallState

LONGEST_WAIT = 120.0
"""Seconds; a server that asks for a longer wait has given the call up."""
_FIRST_PAUSE, _GROWTH, _LONGEST_PAUSE = 1.0, 3.0, 30.0
"""Seconds between two requests where the server does not say: 1, 3, 9, …"""
_JITTER = 0.25
"""Share by which chance lengthens a pause, so that calls which failed together do not come back together."""


class Front:
    """Stands before a model, and is called and sized as that is."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @property
    def name(self) -> str:
        """As the server knows it."""
        return self.model.name

    @property
    def window(self) -> int:
        """Tokens that prompt and answer may have together."""
        return self.model.window

    @property
    def max_output(self) -> int:
        """Tokens that one answer may have."""
        return self.model.max_output

    @property
    def origin(self) -> str:
        """Model and server, as messages and events name them."""
        return getattr(self.model, "origin", self.name)

    @property
    def price(self) -> Price | None:
        """What it costs; None: unknown."""
        return getattr(self.model, "price", None)


class Endpoint(Front):
    """A model that is asked again where that helps, and left alone while it is ill.

    Args:
        model: Makes one request a call.
        attempts: Requests of one call, the first included.
        when_open: What a call does while the breaker is open and no fallback is left.
        fallback: What answers instead, in order; see `Route`.
        breaker: Shared by the endpoints of one server and model.
        lanes: Shared likewise.
        clock: Monotonic seconds.
        sleep: Waits so many seconds.
    """

    def __init__(
        self,
        model: Model,
        *,
        attempts: int = 3,
        when_open: Literal["wait", "fail"] = "wait",
        fallback: Sequence[Endpoint] = (),
        breaker: Breaker | None = None,
        lanes: Lanes | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(model)
        self.attempts, self.when_open, self.fallback = attempts, when_open, fallback
        self.breaker, self.lanes = breaker or Breaker(), lanes or Lanes()
        self.clock, self.sleep = clock, sleep

    async def generate(
        self,
        request: Request,
        on_delta: Callable[[Delta], None] | None = None,
        *,
        tell: Callable[[Event], None] = lambda event: None,
        may_wait: Callable[[], bool] = lambda: True,
    ) -> Reply:
        """Answer a request with one whole reply, for which the server is asked `attempts` times at most.

        Args:
            request: The conversation and the offered tools.
            on_delta: Called with each piece as it arrives; None: nobody listens.
            tell: Called with what happens on the way.
            may_wait: Whether the call has to wait for an endpoint that is left alone, as there is nothing better.

        Raises:
            BreakerOpen: The endpoint is left alone, and this call does not wait.
            ModelError: No answer can be had.
        """
        return await _Call(self, request, on_delta, tell, may_wait).run()

    async def aclose(self) -> None:
        """Close connections; the next `generate` opens them again."""
        await self.model.aclose()

    def fits(self, weight: int) -> bool:
        """Tell whether a request of so many tokens and its answer fit into the window."""
        return weight + self.max_output <= self.window


@dataclass(slots=True)
class _Call:
    """One call on its way through an endpoint."""

    endpoint: Endpoint
    request: Request
    on_delta: Callable[[Delta], None] | None
    tell: Callable[[Event], None]
    may_wait: Callable[[], bool]
    asked: int = 0
    """Requests made."""

    async def run(self) -> Reply:
        """Ask until there is an answer, or no hope for one."""
        try:
            return await self._ask()  # most calls need no tenacity, which costs as much as the rest of a turn
        except ModelError as error:
            if not _may_go_better(error):
                raise
            failed = error
        return await self._ask_again(failed)

    async def _ask_again(self, failed: ModelError) -> Reply:
        """Go on after the first request."""
        from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt

        first = [failed]

        async def ask() -> Reply:
            if first:
                raise first.pop()
            return await self._ask()

        retrying = AsyncRetrying(
            stop=stop_after_attempt(self.endpoint.attempts),
            retry=retry_if_exception(_may_go_better),
            wait=_pause,
            sleep=self.endpoint.sleep,
            before_sleep=self._say_when,
            reraise=True,
        )
        try:
            reply: Reply = await retrying(ask)
        except BreakerOpen:
            raise
        except ModelError as error:
            if self.asked < 2:
                raise
            failure = error.failure
            raise ModelError(replace(failure, message=f"{failure.message} (asked {self.asked} times)")) from None
        return reply

    async def _ask(self) -> Reply:
        """Make one request, when it may be made."""
        endpoint, breaker = self.endpoint, self.endpoint.breaker
        tokens = weight(self.request) + endpoint.max_output if endpoint.lanes.tpm else 0
        while True:
            permit = await self._permit()
            try:
                async with endpoint.lanes.turn(tokens) as turn:
                    if breaker.holds(permit):  # else it opened while this call stood in line
                        return await self._request(permit, turn)
                    turn.tokens = 0
            finally:
                breaker.leave(permit)

    async def _permit(self) -> int:
        """Wait, without holding a place, until a request may be made."""
        endpoint, breaker = self.endpoint, self.endpoint.breaker
        while True:
            now = endpoint.clock()
            if (quiet := endpoint.lanes.quiet_until - now) > 0:
                await endpoint.sleep(quiet)
                continue
            permit = breaker.enter(now)
            self._tell_state()
            if permit is not None:
                return permit
            if endpoint.when_open == "fail" or not self.may_wait():
                raise BreakerOpen(breaker.refusal())
            if left := breaker.left(now):
                await endpoint.sleep(left)
                continue
            await breaker.probed()
            if breaker.left(endpoint.clock()):  # the probe failed, and this call with it
                raise ModelError(breaker.refusal())

    async def _request(self, permit: int, turn: Reserved) -> Reply:
        endpoint, breaker = self.endpoint, self.endpoint.breaker
        self.asked += 1
        try:
            reply = await endpoint.model.generate(self.request, self.on_delta)
        except ModelError as error:
            turn.tokens = 0
            self._failed(error.failure, permit)
            raise
        turn.tokens = reply.usage.tokens
        breaker.succeeded(permit)
        self._tell_state()
        return reply

    def _failed(self, failure: Failure, permit: int) -> None:
        endpoint, breaker, now = self.endpoint, self.endpoint.breaker, self.endpoint.clock()
        if RULES[failure.kind].breaker:
            breaker.failed(permit, failure, now)
        else:
            breaker.succeeded(permit)  # what refuses is well
        if failure.retry_after and _is_bearable(failure):
            endpoint.lanes.quiet_until = max(endpoint.lanes.quiet_until, now + failure.retry_after)
        self._tell_state()

    def _tell_state(self) -> None:
        self.tell(BreakerChanged(endpoint=self.endpoint.origin, state=self.endpoint.breaker.state))

    def _say_when(self, state: RetryCallState) -> None:
        key, text = self.request.key, f"{_failure(state).message}; asking again in {state.upcoming_sleep:.1f} s"
        self.tell(Warned(path=key.partition(":")[0], key=key, text=text))


def weight(request: Request) -> int:
    """Estimate the tokens of a request."""
    return estimate_tokens(encode([wire_messages(request.messages), wire_tools(request.tools)]))


def _may_go_better(error: BaseException) -> bool:
    if not isinstance(error, ModelError) or isinstance(error, BreakerOpen):
        return False  # a cancelled call above all
    return RULES[error.failure.kind].retry and _is_bearable(error.failure)


def _is_bearable(failure: Failure) -> bool:
    return (failure.retry_after or 0) <= LONGEST_WAIT


def _pause(state: RetryCallState) -> float:
    """Return the seconds until the next request."""
    usual = min(_FIRST_PAUSE * _GROWTH ** (state.attempt_number - 1), _LONGEST_PAUSE)
    return (_failure(state).retry_after or usual) * (1 + random.uniform(0, _JITTER))


def _failure(state: RetryCallState) -> Failure:
    error = state.outcome and state.outcome.exception()
    assert isinstance(error, ModelError)
    return error.failure
