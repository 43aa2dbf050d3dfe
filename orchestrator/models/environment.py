"""What the environment says of one server: its address, key and headers are for that server, and for no other."""

from __future__ import annotations

import os
from typing import Any


def address_of(base_url: str | None) -> str:
    """Return the root of a server's API: as it was given, else the environment's, else OpenAI's own."""
    return base_url or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"


def key_for(base_url: str | None, api_key: str | None) -> str:
    """Return the key to send to a server: as it was given, else the environment's, if it is for this server."""
    known = _is_its_server(base_url) and os.environ.get("OPENAI_API_KEY")
    return (api_key or known or "none").strip()


def withheld_headers(base_url: str | None, key: str) -> dict[str, Any]:
    """Return headers that keep from any other server what the openai client would send it of the environment.

    Args:
        base_url: Of the server, as it was given.
        key: The server's own.
    """
    from openai import omit

    if _is_its_server(base_url):
        return {}
    headers: dict[str, Any] = {"OpenAI-Organization": omit, "OpenAI-Project": omit}
    for line in os.environ.get("OPENAI_CUSTOM_HEADERS", "").split("\n"):
        name = line.partition(":")[0].strip()
        if name.lower() == "authorization":
            headers["Authorization"] = f"Bearer {key}"
        elif name:
            headers[name] = omit
    return headers


def _is_its_server(base_url: str | None) -> bool:
    return base_url in (None, os.environ.get("OPENAI_BASE_URL"))
