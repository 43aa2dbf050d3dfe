"""Everything this package raises, one class per person who can act on it.

    OriError
    ├── ConfigError      the user: a file, a setting or an argument is wrong (exit status 2)
    ├── ToolError        the model: its call went wrong; the text is what it reads
    ├── ModelError       the endpoint: a model call failed; carries a `Failure`
    │   ├── BreakerOpen  the engine: the endpoint is left alone for a while, and nothing was sent to it
    │   └── ReplayMiss   the person who recorded: the recording has no right answer for this call
    ├── LoopStopped      the engine: the loop that made this call ends now; carries a `Failure`
    ├── OutOfBudget      the engine: the loop cannot make another model call; it sums up or ends
    ├── RunStopped       the engine: the whole run ends now; carries a `Failure`
    ├── JournalError     the operator: the log cannot be written or read
    └── MemoryStoreError the operator: what outlives runs cannot be written or read

A message names the value, the place, the nearest right value and the next move.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.failure import Failure, StopReason


class OriError(Exception):
    """Base of all errors of this package."""


class ConfigError(OriError):
    """Something the user wrote (a file, a setting, an argument) is wrong.

    Args:
        message: What is wrong and what to do, without the place.
        file: The file it stands in.
        line: Its line, counted from 1.
    """

    def __init__(self, message: str, *, file: str | Path | None = None, line: int | None = None) -> None:
        self.message, self.file, self.line = message, file, line
        self._faults: tuple[ConfigError, ...] = ()
        place = "" if file is None else f"{file}:{line}: " if line else f"{file}: "
        super().__init__(place + message)

    @property
    def faults(self) -> tuple[ConfigError, ...]:
        """Every fault that was found at once, each with its own place."""
        return self._faults or (self,)

    @classmethod
    def all_of(cls, errors: Sequence[ConfigError]) -> ConfigError:
        """Return one error that tells all of these, a line each."""
        faults = tuple(fault for error in errors for fault in error.faults)
        joint = cls(faults[0].message, file=faults[0].file, line=faults[0].line)
        joint._faults, joint.args = faults, ("\n".join(map(str, faults)),)
        return joint


class ToolError(OriError):
    """A tool call went wrong in an ordinary way; the model reads the text as the observation."""


class ModelError(OriError):
    """A model call failed for good.

    Args:
        failure: What happened; its kind decides what follows (see `failure.RULES`).
    """

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.message)


class BreakerOpen(ModelError):
    """Too many requests to an endpoint failed in a row: none is sent to it for a while."""


class ReplayMiss(ModelError):
    """A recording holds no answer for this call, or the conversation went another way than the recorded one."""


class LoopStopped(OriError):
    """The loop that made this call cannot go on; it ends `failed`.

    Args:
        stop_reason: As in `Outcome.stop_reason`.
        failure: What ended it.
    """

    def __init__(self, stop_reason: StopReason, failure: Failure) -> None:
        self.stop_reason: StopReason = stop_reason
        self.failure = failure
        super().__init__(failure.message)


class OutOfBudget(OriError):
    """A limit leaves no room for a model call.

    Args:
        limit: The limit, as `tokens: 1200 of 1000`.
        own: It is one of the loop's own, which has something set aside for summing up.
    """

    def __init__(self, limit: str, *, own: bool) -> None:
        self.limit, self.own = limit, own
        super().__init__(limit)


class RunStopped(OriError):
    """The run as a whole cannot go on; it ends `failed` with this failure, and planners are not asked.

    Args:
        failure: What ended the run.
    """

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.message)


class JournalError(OriError):
    """The log cannot be written, or a stored row cannot be read."""


class MemoryStoreError(OriError):
    """Memories cannot be written or read."""


def nearest(value: str, allowed: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the closest allowed value, else the list of what is allowed."""
    options = list(allowed)
    close = difflib.get_close_matches(value, options, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    more = f" and {len(options) - 20} more" if len(options) > 20 else ""
    return f"; allowed: {', '.join(map(repr, options[:20]))}{more}" if options else ""


def refuse_keywords(given: Iterable[str], allowed: Iterable[str]) -> None:
    """Refuse keyword arguments that are none, as Python does, and name the nearest right one.

    Raises:
        TypeError: One is unknown.
    """
    allowed = list(allowed)
    for name in given:
        if name not in allowed:
            raise TypeError(f"unexpected keyword argument {name!r}{nearest(name, allowed)}")


@contextmanager
def collecting(faults: list[ConfigError]) -> Iterator[None]:
    """Note what is wrong in a list and go on, so that all of it can be told at once."""
    try:
        yield
    except ConfigError as error:
        faults.extend(error.faults)
