"""Where the answer stands in a text of a model. Pure."""

from __future__ import annotations

import re

_MARKER = re.compile(
    r"^[ \t]*(?P<bold>\*\*|__)?FINAL_ANSWER(?P<closed>\*\*|__)?[ \t]*[:：][ \t]*(?P<closed_late>\*\*|__)?", re.MULTILINE
)


def final_answer(text: str) -> str | None:
    """Return the answer that a `FINAL_ANSWER:` at a line's start marks, or None.

    It is what follows the last marker, or what stands before it when nothing follows.
    """
    marks = list(_MARKER.finditer(text))
    if not marks:
        return None
    mark, after = marks[-1], text[marks[-1].end() :]
    if mark["bold"] and not mark["closed"] and not mark["closed_late"]:
        after = after.replace(mark["bold"], "", 1)  # the answer was bold, too
    return after.strip() or text[: mark.start()].strip()
