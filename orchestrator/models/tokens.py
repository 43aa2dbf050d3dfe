"""What texts weigh in tokens, and what tokens cost. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from functools import reduce
from math import ceil
from operator import add, mul
from string import ascii_letters, digits, punctuation

from pydantic import Field

from orchestrator.strict import Strict

_MILLION = Decimal(1_000_000)

Counts = tuple[int, ...]
"""What a text is made of: words (camelCase is two) and letters of ASCII, digits, runs of marks, lines, characters of
Chinese, Japanese and Korean, other bytes; then messages and images. Sums of them are what longer texts are made of."""
NOTHING: Counts = (0,) * 9
_TYPICAL = (0.7, 0.08, 0.8, 0.9, 0.9, 0.9, 0.4, 4.0, 1000.0)
"""Tokens of each: fitted to five tokenizers (tests/data/token_counts.json), of which CJK weighs 0.58 to 1.12. A message
has its marks; an image of 1,024 × 1,024 takes 765 tokens from OpenAI, 1,400 from Anthropic."""
_SPREAD = 3.0
"""How many times more or less than is typical a model's tokenizer may need."""
_LEAST, _MOST = tuple(each / _SPREAD for each in _TYPICAL), tuple(each * _SPREAD for each in _TYPICAL)
_SQUARES = tuple(each * each for each in _TYPICAL)
_PACE = 0.5
"""Part of an error that is corrected at once."""
_BELIEVED = 0.3
"""Part of an estimate that one report can be off by; what is more is a server that counts something else."""

_LETTERS, _DIGITS = ascii_letters.encode(), digits.encode()
_ASCII, _CJK = bytes(range(128)), bytes(range(0xE3, 0xF0))  # lead bytes of U+3000 to U+FFFF
_AS_WORDS = bytes.maketrans(
    bytes(range(256)), bytes(b"aA "[0 if chr(b).islower() else 1] if b in _LETTERS else 32 for b in range(256))
)
_AS_MARKS = bytes.maketrans(bytes(range(256)), bytes(33 if b in punctuation.encode() else 32 for b in range(256)))


def count(text: str | bytes, *, messages: int = 0, images: int = 0) -> Counts:
    """Count what a text is made of; 8 µs for 1,000 letters."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    foreign = b"" if data.isascii() else data.translate(None, _ASCII)
    cjk = len(foreign) - len(foreign.translate(None, _CJK))
    words = b" " + data.translate(_AS_WORDS)
    return (
        words.count(b" a") + words.count(b" A") + words.count(b"aA"),
        len(data) - len(data.translate(None, _LETTERS)),
        len(data) - len(data.translate(None, _DIGITS)),
        (b" " + data.translate(_AS_MARKS)).count(b" !"),
        data.count(b"\n"),
        cjk,
        len(foreign) - 3 * cjk,
        messages,
        images,
    )


def together(*counts: Counts) -> Counts:
    """Add counts up."""
    return reduce(lambda total, one: tuple(map(add, total, one)), counts) if counts else NOTHING


class Meter:
    """Says what counts weigh in the tokens of one model, and learns from what its server reports.

    Each report moves the weights of what was counted, the most of what there was most of, part of the way to where they
    would have been right (normalized least mean squares). So Chinese text teaches it nothing wrong about English.
    """

    def __init__(self) -> None:
        self._each: tuple[float, ...] = _TYPICAL

    def tokens(self, counts: Counts) -> int:
        """Estimate the tokens of what was counted."""
        return ceil(sum(map(mul, self._each, counts), 0.0))

    def learn(self, counts: Counts, reported: int) -> None:
        """Take in what the server says it read."""
        estimate = sum(map(mul, self._each, counts), 0.0)
        most = _BELIEVED * estimate
        error = max(-most, min(most, reported - estimate))
        shares = tuple(map(mul, _SQUARES, counts))
        step = _PACE * error / (sum(map(mul, shares, counts)) or 1)
        learned = (each + step * share for each, share in zip(self._each, shares, strict=True))
        self._each = tuple(map(max, _LEAST, map(min, _MOST, learned)))


def estimate_tokens(text: str | bytes) -> int:
    """Estimate the tokens of a text in any script, for a model of which nothing is known."""
    return Meter().tokens(count(text))


def portion(text: str, tokens: int) -> int:
    """Return how many of a text's characters weigh so many tokens, at least one."""
    whole = estimate_tokens(text)
    return max(1, len(text) if whole <= tokens else len(text) * tokens // whole)


def ceiling(sizes: Iterable[int], room: int) -> float:
    """Return the size to which the largest have to be cut so that all of them fit."""
    ordered = sorted(sizes)
    for number, size in enumerate(ordered):
        most = max(0, room) / (len(ordered) - number)
        if size > most:
            return most
        room -= size
    return float("inf")


def default_output(window: int) -> int:
    """Return the tokens that an answer may have where nobody says it: a quarter of the window, at most 8,192."""
    return min(8192, window // 4)


class Price(Strict):
    """What a model costs, per million tokens."""

    input: Decimal = Field(ge=0)
    cached: Decimal | None = Field(None, ge=0)
    """Of prompt tokens that the server had in its cache; None: as `input`."""
    output: Decimal = Field(ge=0)
    currency: str = "USD"

    def cost(self, prompt: int, cached: int, completion: int) -> Decimal:
        """Return the cost of one call.

        Args:
            prompt: Tokens read, the cached ones included.
            cached: Tokens of the prompt that came from the server's cache.
            completion: Tokens written.
        """
        from_cache = self.input if self.cached is None else self.cached
        return ((prompt - cached) * self.input + cached * from_cache + completion * self.output) / _MILLION
