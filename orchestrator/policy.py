"""What asks a person first: tools that need it, and what goes outside after words of strangers came in. Pure.

Whoever writes a page that a loop reads may try to make it act, or to make it carry data away. So a loop that has read
such words asks before each call that must not be repeated, and before each that goes to a destination (fetching a URL
sends it there, too), unless the user named the destination.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal
from urllib.parse import SplitResult, urlsplit

from orchestrator.messages import Json

ALL = "*"
"""In a role's `approval`: every call that changes something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What policy has to know of one call."""

    tool: str
    effect: Literal["read", "idempotent", "once"]
    outward: bool
    """It may reach somebody outside the run."""
    approval: bool
    """The tool itself says that a person decides."""
    destinations: tuple[str, ...]
    """Where it would send data, as its arguments say."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a person is asked."""

    why: str
    destination: str = ""


@dataclass(frozen=True, slots=True)
class Trust:
    """What a call is held against."""

    named: Sequence[str]
    """The user's own words: the goal, its constraints and parameters, the names of inputs."""
    sources: Collection[str] = ()
    """What strangers may have written that the loop has read."""
    seen: Callable[[str], bool] = lambda destination: False
    """Whether a text stands, as it is, in what the loop was shown."""
    local: Callable[[str], bool] = lambda destination: False
    """Whether a text names a file of the workspace."""


def reason_to_ask(act: Act, approval: Collection[str], trust: Trust) -> Reason | None:
    """Return why a person is asked before this call; None: nobody is.

    Args:
        act: The call.
        approval: Tools whose calls the role wants allowed: names, patterns as `server/*`, or `*`.
        trust: What it is held against.
    """
    where = ", ".join(act.destinations)
    if act.approval or any(_covers(pattern, act) for pattern in approval):
        return Reason("it needs a person's approval", where)
    if not trust.sources or not act.outward:
        return None
    strange = [place for place in act.destinations if not _is_fine(place, act, trust)]
    if strange:
        return Reason("the user did not name where it goes", ", ".join(strange))
    if act.effect == "once" and not act.destinations:
        return Reason("it cannot be taken back")
    return None


def _covers(pattern: str, act: Act) -> bool:
    return act.effect != "read" if pattern == ALL else fnmatchcase(act.tool, pattern)


def destinations(arguments: Mapping[str, Json], names: Iterable[str]) -> Iterator[str]:
    """Yield where a call would send data, given the names of the arguments that say so."""
    for name in names:
        value = arguments.get(name)
        for each in value if isinstance(value, list | tuple) else [value]:
            if each is not None and str(each).strip():
                yield str(each).strip()


def _is_fine(place: str, act: Act, trust: Trust) -> bool:
    if is_named(place, trust.named) or trust.local(place):
        return True
    # a link that is followed as it stands tells its host nothing of what else the loop knows
    return act.effect == "read" and trust.seen(place)


def is_named(place: str, words: Iterable[str]) -> bool:
    """Whether the user's words name a destination: a URL by its host (and port, where they say one), else all of it."""
    url = _url(place)
    if url is None:
        return any(_stands_in(_folded(place), _folded(text)) for text in words)
    if url.hostname is None:
        return False
    return any(_names_host(url, _folded(text)) for text in words)


def _url(place: str) -> SplitResult | None:
    """Return a destination as the URL that it is; one that programs read differently has no host."""
    if not re.match(r"[a-z][a-z0-9+.-]*://", place, re.IGNORECASE):
        return None
    try:
        url = urlsplit(place)
        _ = url.port
    except ValueError:
        return SplitResult("", "", "", "", "")
    return url if re.fullmatch(r"[^\s\\\x00-\x1f]+", place) else SplitResult("", "", "", "", "")


def _names_host(url: SplitResult, text: str) -> bool:
    host = (url.hostname or "").removeprefix("www.")
    port = url.port or {"http": 80, "https": 443}.get(url.scheme)
    # not a part of a longer name, nor the end of a mail address or of another URL's user
    named = re.finditer(rf"(?<![\w.@%-])(?:www\.)?\[?{re.escape(host)}\]?(?::(\d+))?(?![\w@%-]|\.\w|:\d)", text)
    return any(match[1] is None or int(match[1]) == port for match in named)


def _stands_in(place: str, text: str) -> bool:
    return re.search(rf"(?<![\w@.-]){re.escape(place)}(?![\w@-]|\.\w)", text) is not None


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()
