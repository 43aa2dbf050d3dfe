"""Notices a loop that gets nowhere: the same call with the same result, or a tool that keeps failing. Pure."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

WINDOW = 20
"""Calls that are remembered: a loop that alternates between a few calls is seen, too."""
FAILING_TURNS = 3
"""Turns in a row in which a tool has only failed (R24)."""


class Seen(NamedTuple):
    """One call and what came of it."""

    name: str
    arguments: str
    result: str
    ok: bool


@dataclass(slots=True)
class Stuck:
    """Counts over the turns of one loop."""

    warn_at: int | None
    stop_at: int
    _recent: deque[tuple[str, str, str]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _failing: Counter[str] = field(default_factory=Counter)

    def turn(self, seen: Sequence[Seen]) -> Literal["fine", "warn", "repeated", "failing"]:
        """Take in the calls of one turn and say where the loop stands."""
        repeats = max((self._count(call) for call in seen), default=0)
        by_tool: dict[str, bool] = {}
        for call in seen:
            by_tool[call.name] = by_tool.get(call.name, False) or call.ok
        for name, worked in by_tool.items():
            self._failing[name] = 0 if worked else self._failing[name] + 1
        if repeats >= self.stop_at:
            return "repeated"
        if any(self._failing[name] >= FAILING_TURNS for name in by_tool):
            return "failing"
        return "warn" if self.warn_at is not None and repeats >= self.warn_at else "fine"

    def said(self, text: str) -> bool:
        """Take in an answer that does not end the loop; True when it came three times."""
        return self._count(Seen("", "", text, True)) >= 3

    def _count(self, call: Seen) -> int:
        entry = (call.name, canonical(call.arguments), call.result)
        self._recent.append(entry)
        return self._recent.count(entry)


def canonical(arguments: str) -> str:
    """Return JSON text in one form, whatever its spacing and key order; other text as it is."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True, ensure_ascii=False)
    except (ValueError, RecursionError):  # no JSON, or nested too deeply
        return arguments
