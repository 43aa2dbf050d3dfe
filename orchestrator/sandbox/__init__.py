"""What tools may touch: where code runs, and which addresses are reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Language = Literal["python", "bash", "node", "java"]


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of one program."""

    output: str
    """What it printed, errors among it in their order."""
    exit_code: int | None
    """None: it was stopped."""
    stopped: str = ""
    """Why it was stopped, and what was done about what it started; empty: it ended by itself."""


class Sandbox(Protocol):
    """Where code runs that nobody has looked at. Never in this process, never on this machine itself."""

    user: int
    """Who programs run as."""

    def next_group(self) -> int:
        """Return a group for a program, which those at work do not have."""
        ...

    async def run(self, language: Language, code: str, group: int) -> Ran:
        """Run a program to its end. All that it started ends with it, also when the call is cancelled.

        Args:
            language: What it is written in.
            code: All of it.
            group: Of its processes and of the files that it makes.

        Raises:
            ToolError: It cannot be run here.
        """
        ...
