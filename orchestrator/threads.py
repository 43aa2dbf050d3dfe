"""Where blocking functions run: daemon threads of our own, and processes that can be killed.

The threads of `asyncio.to_thread` are joined when the interpreter exits and are never given back by a function that
hangs. These are bounded, counted while they hang, and never joined.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import importlib.util
import inspect
import os
import pickle
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from orchestrator.errors import ConfigError, ToolError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

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
        with suppress(RuntimeError):  # the loop is closed meanwhile: nobody waits any more
            self.loop.call_soon_threadsafe(self._set, value, error)

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
        child = _Child(Reference.to(fn), _sendable((args, kwargs), f"an argument of {fn.__qualname__}"))
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


@dataclass(frozen=True, slots=True)
class Reference:
    """A function by name, so that another process can find it."""

    module: str
    folders: tuple[str, ...]
    """Where the package of the module looks for its modules."""
    name: str

    @classmethod
    def to(cls, fn: Callable[..., Any]) -> Reference:
        """Return where to find a function.

        Raises:
            ConfigError: It does not stand at the top of a module.
        """
        if not inspect.isfunction(fn) or "<" in fn.__qualname__:
            name = getattr(fn, "__qualname__", repr(fn))
            raise ConfigError(f"{name} cannot run in a process of its own: move it to the top of a module")
        package = sys.modules.get(fn.__module__.rpartition(".")[0])
        return cls(fn.__module__, tuple(getattr(package, "__path__", ())), fn.__qualname__)

    def find(self) -> Callable[..., Any]:
        """Import the module and return the function."""
        package = self.module.rpartition(".")[0]
        if package and importlib.util.find_spec(package.partition(".")[0]) is None:
            made = sys.modules[package] = ModuleType(package)  # a folder of tool files, which no import finds by itself
            made.__path__ = list(self.folders)
        target: Any = importlib.import_module(self.module)
        for part in self.name.split("."):
            target = getattr(target, part)
        found: Callable[..., Any] = inspect.unwrap(target, stop=inspect.isfunction)  # `@tool` put a Tool in its place
        return found


def _sendable(value: object, what: str) -> bytes:
    try:
        return pickle.dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ToolError(f"{what} cannot be sent between processes: {error}") from error


class _Child:
    """One call in a process of its own."""

    def __init__(self, reference: Reference, arguments: bytes) -> None:
        self._reference, self._arguments = reference, arguments
        self._lock = threading.Lock()
        self._killed = False
        self._kill: Callable[[], None] = lambda: None

    def run(self) -> bytes:
        """Start the process, wait for its pickled result, and leave nothing of it behind."""
        import multiprocessing

        spawn = multiprocessing.get_context("spawn")
        with self._lock:
            if self._killed:
                return b""
            ours, theirs = spawn.Pipe(duplex=False)
            process = spawn.Process(target=_serve, args=(theirs, self._reference, self._arguments), daemon=True)
            process.start()
            if process.pid:
                self._kill = partial(_kill_group, process.pid)
        theirs.close()
        try:
            return ours.recv_bytes()
        except EOFError:
            process.join()
            raise ToolError(f"the process of {self._reference.name} died (exit code {process.exitcode})") from None
        finally:
            ours.close()
            self.kill()
            process.join()
            process.close()

    def kill(self) -> None:
        """End the process, or keep it from being started."""
        with self._lock:
            self._killed = True
            self._kill()
            self._kill = lambda: None  # its number may soon belong to another


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):  # it ended by itself, or has no group yet
        if sys.platform != "win32":
            os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)


def _serve(pipe: Connection, reference: Reference, arguments: bytes) -> None:
    """Make the call: what the process does."""
    if sys.platform != "win32":
        os.setsid()  # a group, so that what the function starts ends with it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    value, error = None, None
    try:
        fn = reference.find()  # first: the arguments may be of classes that its module defines
        args, kwargs = pickle.loads(arguments)
        value = fn(*args, **kwargs)
    except BaseException as raised:  # noqa: BLE001 - carried to the caller, who raises it
        error = _portable(raised)
    try:
        data = _sendable((value, error), f"the result of {reference.name}")
    except ToolError as unsendable:
        data = pickle.dumps((None, unsendable))
    sys.stdout.flush()
    sys.stderr.flush()
    pipe.send_bytes(data)


def _end_with_parent() -> None:
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    _kill_group(os.getpid())


def _portable(error: BaseException) -> Exception:
    """Return the error if it survives the way to the other process, else one with its words."""
    if isinstance(error, Exception):
        error.add_note("".join(traceback.format_exception(error)))
        with suppress(Exception):
            pickle.loads(pickle.dumps(error))
            return error
    return ToolError(f"{type(error).__name__}: {error}")
