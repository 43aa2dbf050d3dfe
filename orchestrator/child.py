"""A call in a process of its own, which can be killed with all that it starts."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConfigError, ToolError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


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


class Child:
    """One call on its way through a process.

    Args:
        fn: Stands at the top of a module.
        args: What it is called with.
        kwargs: Likewise, by name.

    Raises:
        ConfigError: The function does not stand at the top of a module.
        ToolError: An argument cannot be sent.
    """

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._reference = Reference.to(fn)
        self._arguments = _sendable((args, kwargs), f"an argument of {fn.__qualname__}")
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


def _sendable(value: object, what: str) -> bytes:
    try:
        return pickle.dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ToolError(f"{what} cannot be sent between processes: {error}") from error


def _portable(error: BaseException) -> Exception:
    """Return the error if it survives the way to the other process, else one with its words."""
    if isinstance(error, Exception):
        error.add_note("".join(traceback.format_exception(error)))
        with suppress(Exception):
            pickle.loads(pickle.dumps(error))
            return error
    return ToolError(f"{type(error).__name__}: {error}")
