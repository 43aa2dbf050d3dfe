"""Asks the person at the terminal about calls that wait, while the run goes on."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TextIO

from orchestrator.errors import ConfigError
from orchestrator.inbox import check_arguments
from orchestrator.serve.report import one_line

if TYPE_CHECKING:
    from orchestrator.events import ApprovalAsked


def interactive() -> bool:
    """Whether a person sits at this terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def who() -> str:
    """Return the name of whoever runs this program."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have none
        return f"user {os.getuid()}"


class Asker:
    """Puts questions one after another.

    Args:
        read: Where the person writes.
        write: Where the questions go.
    """

    def __init__(self, read: TextIO = sys.stdin, write: TextIO = sys.stderr) -> None:
        self._in, self._out = read, write
        self._one = asyncio.Lock()
        self._typed = b""
        self.aside: Callable[[], AbstractContextManager[object]] = nullcontext
        """Takes what else is drawn out of the way."""

    async def approve(self, question: ApprovalAsked) -> bool | str | Mapping[str, Any] | None:
        """Ask one question; as `Orchestrator(approve=…)` wants it."""
        async with self._one:
            with self.aside():
                self._say(_worded(question))
                while True:
                    line = await self._line("> ")
                    if not line:  # the end of the input
                        return None
                    try:
                        return read_word(line.strip(), question)
                    except (ValueError, ConfigError) as error:
                        self._say(str(error))

    def _say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    async def _line(self, prompt: str) -> str:
        """Read a line without a thread: a cancelled question leaves nothing that waits for the keyboard."""
        print(prompt, end="", file=self._out, flush=True)
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._in, ready.set)
        try:
            while b"\n" not in self._typed:
                ready.clear()
                await ready.wait()
                if not (typed := os.read(self._in.fileno(), 4096)):
                    return ""
                self._typed += typed
        finally:
            loop.remove_reader(self._in)
        line, _, self._typed = self._typed.partition(b"\n")
        return line.decode("utf-8", "replace") + "\n"


def what(question: ApprovalAsked) -> str:
    """Say which call waits for a person; a question stands there in its own words."""
    if question.expects != "answer":
        return f"{question.name} {one_line(question.arguments)}"
    try:
        said = json.loads(question.arguments).values()
    except (ValueError, AttributeError):
        said = [question.arguments]
    words = (f"({' · '.join(map(str, part))})" if isinstance(part, list) else str(part) for part in said if part)
    return one_line(" ".join(words))


def why(question: ApprovalAsked) -> list[str]:
    """Say, line by line, why a call waits, where it goes, and what strangers may have to do with it."""
    where = f": {question.destination}" if question.destination else ""
    lines = [] if question.expects == "answer" else f"{question.why}{where}".splitlines()
    if question.sources:
        lines.append(f"it was read before: {', '.join(question.sources)}")
    return [one_line(line, len(line)) for line in lines]


def read_word(line: str, question: ApprovalAsked) -> bool | str | Mapping[str, Any] | None:
    """Return what a person's line means.

    Raises:
        ValueError: It means nothing; says what can be written.
        ConfigError: The arguments do not fit the call.
    """
    word, _, rest = line.partition(" ")
    rest = rest.strip()
    if line == "later":
        return None
    if question.expects == "answer":
        if line:
            return line
        raise ValueError("write the answer, or: later")
    match word.lower():
        case "y" | "yes" | "是":
            return True
        case "n" | "no" | "否":
            return rest if rest and question.expects == "approval" else False
        case "e" if question.parameters is not None:
            try:
                changed = json.loads(rest)
            except ValueError as error:
                raise ValueError(f"no JSON after e: {error}") from None
            if isinstance(changed, dict):
                check_arguments(question, changed)
                return changed
        case "a" if rest and question.expects == "either":
            return rest
    raise ValueError(_help(question))


def _help(question: ApprovalAsked) -> str:
    if question.expects == "answer":
        return "your answer · later"
    if question.expects == "either":
        return "y: accept it · n: no · a TEXT: this instead · later"
    change = "" if question.parameters is None else "e JSON: yes, with these arguments · "
    return f"y: yes · n WHY: no · {change}later: `ori inbox`"


def _worded(question: ApprovalAsked) -> str:
    verb = "asks" if question.expects == "answer" else "wants"
    return "\n  ".join([f"? {question.path} {verb}: {what(question)}", *why(question), _help(question)])
