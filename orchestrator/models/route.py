"""The models that answer one run under one key: an endpoint, and in its place its fallbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from orchestrator.errors import ModelError
from orchestrator.events import BreakerChanged, Event, Warned
from orchestrator.failure import RULES, Failure
from orchestrator.messages import Delta, Reply, Request
from orchestrator.models.endpoint import Endpoint, Front, weight
from orchestrator.models.tokens import Price


class Route(Front):
    """An endpoint as one run sees it: what happens there, on this run's calls, enters the run's log.

    The endpoint itself is asked first at every call, so the run is back there as soon as its breaker lets it.

    Args:
        endpoint: Shared with other runs.
        tell: Called with each event.
    """

    def __init__(self, endpoint: Endpoint, tell: Callable[[Event], object]) -> None:
        super().__init__(endpoint)
        self._first = self.answering = endpoint
        """Who gave the last answer."""
        self._tell = tell
        self._states: dict[str, str] = {}

    @property
    def price(self) -> Price | None:
        """What the next call may cost: the one that answers now may well answer it, too."""
        return self.answering.price

    async def generate(self, request: Request, on_delta: Callable[[Delta], None] | None = None) -> Reply:
        """Answer a request with one whole reply.

        Args:
            request: The conversation and the offered tools.
            on_delta: Called with each piece as it arrives; None: nobody listens.

        Raises:
            ModelError: Neither the endpoint nor a fallback answers; the failure's kind is the endpoint's.
        """

        def is_last() -> bool:
            return next(self._fallbacks(request), None) is None

        try:
            reply = await self._first.generate(request, on_delta, tell=self._hear, may_wait=is_last)
        except ModelError as error:
            if not RULES[error.failure.kind].fallback:
                raise
            return await self._fall_back(request, on_delta, error.failure)
        if self.answering is not self._first:
            self._switch(self._first, request, "it answers again")
        return reply

    async def aclose(self) -> None:
        """Do nothing: the endpoint is shared."""

    async def _fall_back(self, request: Request, on_delta: Callable[[Delta], None] | None, failure: Failure) -> Reply:
        told = failure.message
        for endpoint in self._fallbacks(request):
            if self.answering is not endpoint:
                self._switch(endpoint, request, told)
            try:
                return await endpoint.generate(request, on_delta, tell=self._hear, may_wait=lambda: False)
            except ModelError as error:
                told += f"; {error.failure.message}"
        raise ModelError(replace(failure, message=told))

    def _fallbacks(self, request: Request) -> Iterator[Endpoint]:
        """Give those that could answer this request now, in order."""
        if self._first.fallback:
            tokens = weight(request)
            for endpoint in self._first.fallback:
                if endpoint.fits(tokens) and endpoint.breaker.lets_through(endpoint.clock()):
                    yield endpoint

    def _switch(self, endpoint: Endpoint, request: Request, why: str) -> None:
        self.answering = endpoint
        path = request.key.partition(":")[0]
        self._tell(Warned(path=path, key=request.key, text=f"model {endpoint.name!r} is asked now: {why}"))

    def _hear(self, event: Event) -> None:
        """Pass an event on; of a breaker's state only what the run has not heard yet."""
        if isinstance(event, BreakerChanged):
            if self._states.get(event.endpoint, "closed") == event.state:
                return
            self._states[event.endpoint] = event.state
        self._tell(event)
