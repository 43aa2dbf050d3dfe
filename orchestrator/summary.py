"""The form of a summary: what is rewritten each time, and facts that are only added to. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from orchestrator.models.tokens import portion
from orchestrator.text.figures import numbers
from orchestrator.text.relevance import with_figures

LEAST_DIGITS = 3
"""Of a sentence that is quoted for its figures: small counts are everywhere."""
_FACTS = re.compile(r"(?ms)^#+ Facts\b[^\n]*\n(.*?)(?=^#|\Z)")


def split_facts(summary: str) -> tuple[str, list[str]]:
    """Return a summary without its facts, and these, one a line."""
    facts = [line.strip() for found in _FACTS.finditer(summary) for line in found[1].splitlines()]
    return _FACTS.sub("", summary).strip(), [line for line in facts if line]


def with_facts(summary: str, lists: Iterable[str]) -> str:
    """Return a summary with lists of facts."""
    facts = "\n".join(lists)
    return f"{summary}\n\n## Facts\n{facts}".strip() if facts else summary


def figures(text: str, noted: Iterable[str], most: int, but: str) -> str:
    """Return the sentences of a text with figures that no noted fact has, so many characters at most.

    Args:
        text: Of a result.
        noted: Facts, one a line.
        most: Characters.
        but: A sentence with these words is none of it.
    """
    known = [set(numbers(fact)) for fact in noted]
    sentences = with_figures(text, most, LEAST_DIGITS)
    return " ".join(s for s in sentences if but not in s and not any(have.issuperset(numbers(s)) for have in known))


def pieces(texts: Iterable[str], room: int, weigh: Callable[[str], int]) -> Iterator[str]:
    """Join texts to pieces of so many tokens at most; a text that is longer by itself is split."""
    piece: list[str] = []
    left = room
    for text in texts:
        each = portion(text, room)
        for part in (text[at : at + each] for at in range(0, len(text), each)):
            size = weigh(part)
            if piece and size > left:
                yield "\n\n".join(piece)
                piece, left = [], room
            piece.append(part)
            left -= size
    if piece:
        yield "\n\n".join(piece)
