"""The circuit breaker: an endpoint that keeps failing is left alone for a while, then tried with one request."""

from __future__ import annotations

from typing import Literal

from orchestrator.eventloops import Bell
from orchestrator.failure import Failure, FailureKind

State = Literal["closed", "open", "half_open"]


class Breaker:
    """Lets requests through (closed), none (open), or one whose result decides (half open).

    Each request carries a permit, the number of the state it was let through in: what a request comes to that began
    before the last change counts no more. Times are seconds of one monotonic clock.

    Args:
        threshold: Failed requests in a row that open it.
        seconds: How long it stays open before the probe.
    """

    def __init__(self, threshold: int = 5, seconds: float = 30.0) -> None:
        self.threshold, self.seconds = threshold, seconds
        self.state: State = "closed"
        self._last = Failure(FailureKind.overloaded, "")
        self._failed = 0
        self._permit = 0
        self._until = 0.0
        self._changed = Bell()

    def lets_through(self, now: float) -> bool:
        """Tell whether `enter` would give a permit."""
        return self.state == "closed" or (self.state == "open" and now >= self._until)

    def enter(self, now: float) -> int | None:
        """Return a permit for one request, which must be given to `leave`; None while none is let through."""
        if not self.lets_through(now):
            return None
        if self.state == "open":
            self._become("half_open")
        return self._permit

    def holds(self, permit: int) -> bool:
        """Tell whether a permit is still good."""
        return permit == self._permit

    def succeeded(self, permit: int) -> None:
        """Count a request that was answered, even if with a refusal: the endpoint is well."""
        if self.holds(permit):
            self._failed = 0
            if self.state == "half_open":
                self._become("closed")

    def failed(self, permit: int, failure: Failure, now: float) -> None:
        """Count a request that failed by the endpoint's fault."""
        if not self.holds(permit):
            return
        self._last = failure
        self._failed += 1
        if self.state == "half_open" or self._failed >= self.threshold:
            self._until = now + self.seconds
            self._become("open")

    def leave(self, permit: int) -> None:
        """End a request's turn; a probe that came to nothing, as it was cancelled, lets another one try at once."""
        if self.holds(permit) and self.state == "half_open":
            self._become("open")  # its time is over already

    def left(self, now: float) -> float:
        """Return the seconds until a probe is let through; 0 while one is on its way."""
        return max(0.0, self._until - now)

    def refusal(self) -> Failure:
        """Say why nothing is sent."""
        why = f"{self._failed} requests in a row failed, so none is sent for now; the last one: {self._last.message}"
        return Failure(self._last.kind, why)

    async def probed(self) -> None:
        """Wait until the probe that is on its way has ended."""
        await self._changed.wait()

    def _become(self, state: State) -> None:
        self.state = state
        self._permit += 1
        self._changed.ring()
