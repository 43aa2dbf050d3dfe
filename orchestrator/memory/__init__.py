"""What outlives a run: facts for a day or for good, of one user, found again by their words.

The working layer of memory is the run itself: its conversations and variables. Here are the other two: short-term
memories belong to a session and expire after a day, long-term ones belong to a user. `MemoryStore` is the protocol;
`sqlite` is the store that ships.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from orchestrator.describing import quote
from orchestrator.errors import ToolError

SHORT_TERM = 24 * 3600.0
"""Seconds after which what belongs to a session is forgotten."""
RECALLED = 5
"""Memories that one recall gives."""
LONGEST = 1000
"""Characters of a memory: a loop is told five at its start, whatever its window."""
_PROFILE = 2
"""Of those, what is told of the user whatever the question; at most half."""
MemoryKind = Literal["fact", "profile", "failure"]
"""`profile`: what the user is like and wants results to be like; `failure`: a tool that did not work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose memories are meant; at least one of the two is given."""

    user: str | None = None
    session: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One thing to remember."""

    text: str
    owner: Owner
    kind: MemoryKind = "fact"
    at: float = field(default_factory=time.time)
    """When it was last said, in seconds since the epoch."""
    expires: float | None = None
    """Seconds since the epoch; None: kept for good."""
    untrusted: tuple[str, ...] = ()
    """Where it comes from, when strangers may have written it."""
    run: str = ""
    """The run that said it."""
    id: int = 0
    """Given by the store."""


class MemoryStore(Protocol):
    """Keeps memories. Safe to use from several event loops and processes."""

    async def add(self, memory: Memory) -> Memory:
        """Keep a memory and return it as it is kept; one that says the same of the same owner is renewed."""

    async def search(self, query: str, owner: Owner, count: int = RECALLED) -> Sequence[Memory]:
        """Return the memories of an owner that fit a query best, the best first: its user's, and its session's."""

    async def profile(self, owner: Owner, count: int) -> Sequence[Memory]:
        """Return what was last said of the user."""

    async def all(self, owner: Owner | None = None) -> Sequence[Memory]:
        """Return the memories of an owner, or of everybody, the newest first."""

    async def forget(self, ids: Sequence[int]) -> int:
        """Delete memories by id and return how many there were."""


@dataclass(frozen=True, slots=True)
class Recollection:
    """What the loops of one run remember: a store, seen by the run's owner. Without one it is empty, and stays so."""

    store: MemoryStore | None = None
    owner: Owner = Owner()
    run: str = ""
    redact: Callable[[str], str] = str

    @property
    def owned(self) -> bool:
        """Whether there is somebody to remember for."""
        return self.store is not None and self.owner != Owner()

    async def remember(self, text: str, *, kind: MemoryKind = "fact", untrusted: Sequence[str] = ()) -> Memory:
        """Keep something: for good where the run has a user, else for a day of its session; failures for a day.

        Raises:
            ToolError: There is nothing to keep, too much, or nobody to keep it for.
        """
        text = self.redact(text).strip().encode("utf-8", "replace").decode()
        if not text:
            raise ToolError("the text is empty; say in a sentence what to remember")
        if self.store is None or not self.owned:
            raise ToolError("nothing is kept: the run has neither a user nor a session (solve(…, user=…), ori --user)")
        if len(text) > LONGEST:
            raise ToolError(f"{len(text)} characters are too many to remember; say the fact in {LONGEST} at most")
        owner = self.owner if self.owner.user is None else Owner(user=self.owner.user)
        lasting = owner.user is not None and kind != "failure"  # what failed may work tomorrow
        return await self.store.add(
            Memory(
                text=text,
                owner=owner,
                kind=kind,
                expires=None if lasting else time.time() + SHORT_TERM,
                untrusted=tuple(untrusted),
                run=self.run,
            )
        )

    async def recall(self, query: str, count: int = RECALLED) -> list[Memory]:
        """Return what fits a query, with the user's profile before it; nothing for a run of nobody."""
        if self.store is None or not self.owned:
            return []
        profile = list(await self.store.profile(self.owner, min(_PROFILE, count // 2)))
        known = {memory.id for memory in profile}
        found = [m for m in await self.store.search(query, self.owner, count) if m.id not in known]
        return [replace(memory, text=quote(memory.text, LONGEST)) for memory in (profile + found)[:count]]
