"""Models: one protocol, whatever answers behind it.

`openai` is the wire, `replay` answers from a recording. A user's own class fits when it has these members.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from orchestrator.messages import Delta, Reply, Request


class Model(Protocol):
    """Something that turns a conversation into a reply."""

    @property
    def name(self) -> str:
        """As its server knows it."""

    @property
    def window(self) -> int:
        """Tokens that prompt and answer may have together."""

    @property
    def max_output(self) -> int:
        """Tokens that one answer may have."""

    async def generate(self, request: Request, on_delta: Callable[[Delta], None] | None = None) -> Reply:
        """Answer a request with one whole reply.

        Args:
            request: The conversation and the offered tools.
            on_delta: Called with each piece as it arrives; None: nobody listens.

        Raises:
            ModelError: No answer can be had.
        """

    async def aclose(self) -> None:
        """Close connections; the next `generate` opens them again."""
