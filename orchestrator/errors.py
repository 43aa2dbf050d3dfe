"""Everything this package raises, one class per person who can act on it.

    OriError
    ├── ConfigError      the user: a file, a setting or an argument is wrong (exit status 2)
    ├── ToolError        the model: its call went wrong; the text is what it reads
    ├── ModelError       the endpoint: a model call failed; carries a `Failure`
    │   └── ReplayMiss   the person who recorded: the recording has no right answer for this call
    ├── RunStopped       the engine: the whole run ends now; carries a `Failure`
    └── JournalError     the operator: the log cannot be written or read

A message names the value, the place, the nearest right value and the next move.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.failure import Failure


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
        place = "" if file is None else f"{file}:{line}: " if line else f"{file}: "
        super().__init__(place + message)


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


class ReplayMiss(ModelError):
    """A recording holds no answer for this call, or the conversation went another way than the recorded one."""


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


def nearest(value: str, allowed: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the closest allowed value, else the list of what is allowed."""
    options = list(allowed)
    close = difflib.get_close_matches(value, options, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; allowed: {', '.join(map(repr, options[:20]))}" if options else ""
