"""Where blocking functions run: daemon threads of our own, from which some go on into a process (`child`).

The threads of `asyncio.to_thread` are joined when the interpreter exits and are never given back by a function that
hangs. These are bounded, counted while they hang, and never joined.
"""

from __future__ import annotations

import asyncio
import contextvars
import pickle
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, TypeVar

from orchestrator.child import Child
from orchestrator.errors import ToolError
from orchestrator.eventloops import call_soon

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Job:
    """One call on its way through a thread. Its state is guarded by the pool's lock."""

    call: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[tuple[Any, BaseException | None]]
    ended: bool = False
    abandoned: bool = False

    def settle(self, value: Any, error: BaseException | None) -> None:
        """Hand the result to the event loop that waits for it, from any thread."""
        call_soon(self.loop, self._set, value, error)

    def _set(self, value: Any, error: BaseException | None) -> None:
        if not self.done.done():
            self.done.set_result((value, error))


@dataclass(slots=True, eq=False)
class ThreadPool:
    """Runs blocking functions in at most `size` daemon threads. Belongs to no event loop and needs no closing.

    A call waits while all threads work. One whose caller gave up keeps its thread until it really ends.
    """

    size: int = 32
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _waiting: deque[_Job] = field(default_factory=deque, init=False, repr=False)
    _threads: int = field(default=0, init=False)
    _hanging: int = field(default=0, init=False)

    @property
    def hanging(self) -> int:
        """Calls that nobody waits for any more and that still run."""
        return self._hanging

    async def run(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a blocking function without blocking the event loop. Cancelling abandons it: it may still be running.

        Raises:
            ToolError: Every thread is held by a call that hangs.
        """
        loop = asyncio.get_running_loop()
        call = partial(contextvars.copy_context().run, partial(fn, *args, **kwargs))
        job = _Job(call, loop, loop.create_future())
        self._submit(job)
        try:
            value, error = await job.done
        except asyncio.CancelledError:
            self._abandon(job)
            raise
        if isinstance(error, Exception):
            raise error
        if error is not None:  # sys.exit() in a tool ends the call, not the program
            raise ToolError(f"the function tried to end the program: {error!r}")
        result: T = value
        return result

    async def run_in_process(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function of a module in a process of its own. Cancelling kills it and the processes it started.

        The process is spawned, so a script that is run as the program needs its `if __name__ == "__main__":`.

        Raises:
            ConfigError: The function does not stand at the top of a module.
            ToolError: An argument or the result cannot be sent, or the process died.
        """
        child = Child(fn, args, kwargs)
        try:
            value, error = pickle.loads(await self.run(child.run))
        except BaseException:
            child.kill()
            raise
        if error is not None:
            raise error
        result: T = value
        return result

    def _submit(self, job: _Job) -> None:
        with self._lock:
            if self._hanging >= self.size:
                raise self._exhausted()
            self._waiting.append(job)
            if self._threads >= self.size:
                return
            self._threads += 1
        threading.Thread(target=self._work, name="ori-tool", daemon=True).start()

    def _work(self) -> None:
        while job := self._next():
            value, error = None, None
            try:
                value = job.call()
            except BaseException as raised:  # noqa: BLE001 - carried to the caller, who raises it
                error = raised
            with self._lock:
                job.ended = True
                self._hanging -= job.abandoned
            job.settle(value, error)
            del job, value, error  # a thread that waits for work holds nothing

    def _next(self) -> _Job | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._threads -= 1
            return None

    def _abandon(self, job: _Job) -> None:
        stranded: list[_Job] = []
        with self._lock:
            if job in self._waiting:
                self._waiting.remove(job)
            elif not job.ended:
                job.abandoned = True
                self._hanging += 1
                if self._hanging >= self.size:
                    stranded = list(self._waiting)
                    self._waiting.clear()
        for other in stranded:
            other.settle(None, self._exhausted())

    def _exhausted(self) -> ToolError:
        return ToolError(
            f"not run: {self._hanging} earlier calls of blocking tools hang and hold all {self.size} threads; "
            "use another tool, or answer with what there is"
        )
