"""What a text is about, by its words: lexical, in any script. Pure."""

from __future__ import annotations

import re

_LATIN = re.compile(r"[^\W\d_]{4,}")
"""Shorter words say little."""
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")


def content_words(text: str) -> set[str]:
    """Return words of at least four letters, and each two neighbouring characters of Chinese, Japanese or Korean."""
    runs = _CJK.findall(text)
    words = {word.lower() for word in _LATIN.findall(_CJK.sub(" ", text))}
    return words | {run[i : i + 2] for run in runs for i in range(len(run) - 1)}
