"""Asks the person at the terminal about calls that wait, while the run goes on."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from orchestrator.events import ApprovalAsked

_HELP = "y: yes · n WHY: no · e JSON: yes, with these arguments · later: leave it in `ori inbox`"


def interactive() -> bool:
    """Whether a person sits at this terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


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
                    except ValueError as error:
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


def read_word(line: str, question: ApprovalAsked) -> bool | str | Mapping[str, Any] | None:
    """Return what a person's line means.

    Raises:
        ValueError: It means nothing; says what can be written.
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
        case "e" if question.expects == "approval":
            changed = json.loads(rest)
            if isinstance(changed, dict):
                return changed
        case "a" if rest and question.expects == "either":
            return rest
    raise ValueError(_help(question))


def _help(question: ApprovalAsked) -> str:
    return _HELP if question.expects == "approval" else "y: accept it · n: no · a TEXT: this instead · later"


def _worded(question: ApprovalAsked) -> str:
    from orchestrator.serve.report import one_line

    where = f": {question.destination}" if question.destination else ""
    lines = [f"? {question.path} wants: {question.name} {one_line(question.arguments)}", f"  {question.why}{where}"]
    if question.sources:
        lines.append(f"  it was read before: {', '.join(question.sources)}")
    lines.append("  your answer · later" if question.expects == "answer" else f"  {_help(question)}")
    return "\n".join(lines)
