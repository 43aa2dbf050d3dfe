"""How a server's tool is called: `server/tool` by people, and by models as their protocol allows. Pure."""

from __future__ import annotations

import re
from hashlib import sha256

SEPARATOR = "/"
EVERYTHING = "*"

_LONGEST = 64
_DIGITS = 10
"""Of a hash: forty bits."""


def shown_name(server: str, tool: str) -> str:
    """Return what people and whitelists call it."""
    return f"{server}{SEPARATOR}{tool}"


def wire_name(server: str, tool: str) -> str:
    """Return what models call it: `server__tool`, unlike that of any other server or tool.

    The first `__` parts the two. A name with other characters than letters, digits, `_` and `-`, a long one, and one
    that could be parted in two ways gets a hash instead, and no `__`.
    """
    plain = f"{server}__{tool}"
    if re.fullmatch(rf"[a-zA-Z0-9_-]{{1,{_LONGEST}}}", plain) and "__" not in f"{server}_":
        return plain
    readable = re.sub(r"[^a-zA-Z0-9-]+", "_", plain)[: _LONGEST - _DIGITS - 1]
    return f"{readable}-{sha256(shown_name(server, tool).encode()).hexdigest()[:_DIGITS]}"
