"""What a text is about, by its words: lexical, in any script. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
_WORD = re.compile(r"[A-Z]+(?![^\W\d_A-Z])|[^\W\d_][^\W\d_A-Z]*|\d+")
"""A word, a number, or a part of an identifier: `readCSVFile` and `read_csv_file` are the same three words."""
_ENDINGS = re.compile(r"(?<=[^\W\d_]{3})(?:ing|ed|es|s|e)$")
"""What words of the same stem differ in, roughly: `files`, `filed` and `filing` meet."""
_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be but by can do does for from has have how i if in into is it its me my no not of on or"
        " our so than that the their them then there they this to was we were what when where which who will with you",
    )
)
"""Words that say nothing of what a text is about."""
_K1, _B = 1.2, 0.75
"""Of BM25, as Robertson and Zaragoza (2009) recommend where nothing was tuned."""


def content_words(text: str) -> set[str]:
    """Return what says something: words of at least four letters, and each two neighbouring CJK characters."""
    return {term for term in _terms(text, stem=False) if len(term) >= 4 or _CJK.match(term)}


def terms(text: str) -> list[str]:
    """Return what a search compares: stems of words, numbers, and each two neighbouring CJK characters."""
    return list(_terms(text, stem=True))


def _terms(text: str, *, stem: bool) -> Iterator[str]:
    for run in _CJK.findall(text):
        yield from (run[i : i + 2] for i in range(len(run) - 1)) if len(run) > 1 else run
    for word in _WORD.findall(_CJK.sub(" ", text)):
        word = word.lower()
        if word not in _FUNCTION_WORDS:
            yield _ENDINGS.sub("", word) if stem else word


class Bm25:
    """Scores documents against queries by BM25.

    Args:
        documents: The `terms` of each.
        rarity: How much a term tells, where these are only some of the documents; None: as rare as it is in them.
    """

    def __init__(self, documents: Sequence[Sequence[str]], rarity: Callable[[str], float | None] | None = None) -> None:
        self._rarity = rarity or self._rarity_here
        counts, lengths = list(map(Counter, documents)), list(map(len, documents))
        mean = sum(lengths) / len(lengths) if any(lengths) else 1.0
        self._size = len(documents)
        self._weights: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        for number, (count, length) in enumerate(zip(counts, lengths, strict=True)):
            norm = _K1 * (1 - _B + _B * length / mean)
            for term, times in count.items():
                self._weights[term].append((number, times * (_K1 + 1) / (times + norm)))

    def scores(self, query: str) -> list[float]:
        """Return how well each document answers a query, in their order; 0 where no word is shared."""
        scores = [0.0] * self._size
        for term in set(terms(query)):
            rarity = self._rarity(term) or 0.0
            for number, weight in self._weights.get(term, ()):
                scores[number] += rarity * weight
        return scores

    def _rarity_here(self, term: str) -> float:
        found = len(self._weights.get(term, ()))
        return math.log(1 + (self._size - found + 0.5) / (found + 0.5))

    def best(self, query: str, count: int) -> list[int]:
        """Return the numbers of the documents that answer a query best, the best first; none that shares no word."""
        scores = self.scores(query)
        order = sorted((n for n, score in enumerate(scores) if score), key=lambda n: -scores[n])
        return order[:count]


def read_scores(reply: str, number: int, unread: float = 1.0) -> list[float]:
    """Read a model's scores of numbered texts, as `{"1": 0.8, "2": 0.0}`; one that cannot be read is `unread`."""
    read = {int(n): float(score) for n, score in _SCORE.findall(reply)}
    return [read.get(n, unread) for n in range(1, number + 1)]


def gist(text: str, most: int) -> str:
    """Return so many characters of a text: half of them its beginning, the others of sentences with figures in them."""
    if len(text) <= most:
        return text
    return "\n".join([text[: most // 2], *with_figures(text[most // 2 :], most - most // 2)])


def with_figures(text: str, most: int, digits: int = 1) -> list[str]:
    """Return the first sentences that have so many digits, so many characters together."""
    kept = []
    for sentence in _SENTENCE_END.split(text):
        sentence = sentence.strip()
        if len(sentence) < most and sum(map(str.isdigit, sentence)) >= digits:
            kept.append(sentence)
            most -= len(sentence) + 1
    return kept


_SCORE = re.compile(r'"?(\d{1,4})"?\s*:\s*"?(1(?:\.0+)?|0(?:\.\d+)?)(?![\d.])')
_SENTENCE_END = re.compile(r"\n|(?<=[。！？；])|(?<=[.!?;])\s")
