"""One run's way into the log: stamps its events, stores them and hands them to whoever watches."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from orchestrator.errors import JournalError
from orchestrator.events import PASSING, Event
from orchestrator.journal import Journal

_PASSING_KEPT = 1_000
"""A subscriber that is more passing events behind loses those that wait; lasting ones are never dropped."""

E = TypeVar("E", bound=Event)


def _steady_clock(earliest: float = 0.0) -> Callable[[], float]:
    """Return the time of day as it is now, running on without jumps whoever sets the clock meanwhile."""
    start, since = max(time.time(), earliest), time.monotonic()
    return lambda: start + time.monotonic() - since


@dataclass(frozen=True, slots=True, eq=False)
class _Listener:
    """Called in its own event loop, which reports what it raises: a broken view never breaks the run."""

    loop: asyncio.AbstractEventLoop
    callback: Callable[[Event], None]
    passing: bool
    ended: Callable[[], None]

    def call(self, function: Callable[..., None], *arguments: object) -> None:
        """Call a function soon; from another thread that needs a system call, which wakes the loop."""
        try:
            here = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            here = False
        (self.loop.call_soon if here else self.loop.call_soon_threadsafe)(function, *arguments)


class RunLog:
    """The events of one run. `add` may be called from any thread, the rest from an event loop.

    Args:
        run: Id of the run.
        journal: Where lasting events are stored.
        clock: Gives seconds since the epoch; None: a steady one.
        seq: Number of the last event that is stored already.
    """

    def __init__(self, run: str, journal: Journal, *, clock: Callable[[], float] | None = None, seq: int = 0) -> None:
        self.run, self.seq = run, seq
        self._journal = journal
        self._clock = clock or _steady_clock()
        self._listeners: list[_Listener] = []
        self._closed = False
        self._lock = threading.Lock()

    def add(self, event: E) -> E:
        """Stamp an event with run, number and time, store it if it is a lasting one, and hand it on.

        Raises:
            JournalError: The log is closed; a passing event is dropped then.
        """
        passing = isinstance(event, PASSING)
        with self._lock:
            if not passing:
                if self._closed:
                    raise JournalError(f"run {self.run} is over: {event.type} came too late for its log")
                self.seq += 1
            # stamped in place, though it is frozen: nobody else has it yet, and a copy costs ten times as much
            stamp = object.__setattr__
            stamp(event, "run", self.run)
            stamp(event, "seq", 0 if passing else self.seq)
            stamp(event, "at", self._clock())
            if not passing:
                self._journal.write(event)
            for listener in self._listeners:
                if listener.passing or not passing:
                    listener.call(listener.callback, event)
        return event

    def go_on(self, seq: int, at: float) -> None:
        """Go on after the last event that is stored."""
        self.seq, self._clock = seq, _steady_clock(at)

    def now(self) -> float:
        """Return the time that an event would get now, in seconds since the epoch."""
        return self._clock()

    async def commit(self) -> None:
        """Wait until everything added so far is durable.

        Raises:
            JournalError: The journal cannot be written.
        """
        await self._journal.commit()

    @property
    def listening(self) -> bool:
        """Whether somebody wants passing events."""
        return any(listener.passing for listener in self._listeners)

    def subscribe(self, *, passing: bool = True) -> Subscription:
        """Return the events from now on, in a queue of their own, until the log is closed."""
        return Subscription(self, passing=passing)

    def listen(
        self, callback: Callable[[Event], None], *, passing: bool = False, ended: Callable[[], None] = lambda: None
    ) -> Callable[[], None]:
        """Call back with each event from now on, soon after it was added, in the running event loop.

        Args:
            callback: Must be quick. What it raises goes to the event loop's exception handler.
            passing: Whether it wants passing events too.
            ended: Called when the log is closed.

        Returns:
            What stops it.
        """
        listener = _Listener(asyncio.get_running_loop(), callback, passing, ended)
        with self._lock:
            if self._closed:
                ended()
            else:
                self._listeners.append(listener)

        def stop() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return stop

    def close(self) -> None:
        """End all subscriptions, once they have read what waits."""
        with self._lock:
            self._closed = True
            listeners, self._listeners = self._listeners, []
            for listener in listeners:
                listener.call(listener.ended)


class Subscription:
    """An async iterator over the events of a log, for one reader.

    Args:
        log: The log to follow.
        passing: Whether passing events come too.
    """

    def __init__(self, log: RunLog, *, passing: bool) -> None:
        self._queue: deque[Event] = deque()
        self._passing = 0
        self._ended = False
        self._news = asyncio.Event()
        self._stop = log.listen(self._put, passing=passing, ended=self._end)

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        while not self._queue:
            if self._ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        event = self._queue.popleft()
        self._passing -= not event.seq
        return event

    async def aclose(self) -> None:
        """Stop following; what waits is dropped."""
        self._stop()
        self._queue.clear()
        self._end()

    def _put(self, event: Event) -> None:
        if not event.seq:
            if self._passing == _PASSING_KEPT:
                self._queue = deque(kept for kept in self._queue if kept.seq)
                self._passing = 0
            self._passing += 1
        self._queue.append(event)
        self._news.set()

    def _end(self) -> None:
        self._ended = True
        self._news.set()
