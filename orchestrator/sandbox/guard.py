"""Which addresses a tool may reach. Names are resolved first, and the connection goes to what was checked."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Self
from urllib.parse import urlsplit

from orchestrator.addresses import Address, Allowed, not_public, read_host
from orchestrator.errors import ToolError
from orchestrator.threads import ThreadPool

_PORTS = {"http": 80, "https": 443}
_ALLOW = "add {host}:{port} (or the address, or its network) under network: allow: in ori.yaml"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a URL leads."""

    scheme: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class AddressGuard:
    """Lets public addresses pass, and those that somebody allowed. Shared by every tool that reaches out.

    A client that asks `resolve` and connects to the answer cannot be led elsewhere by DNS; redirects are new URLs.

    Args:
        allow: Hosts (`intranet.example`, `localhost:8080`), addresses and networks that need not be public.
        lookup: Resolves a name, as `socket.getaddrinfo`; may block.
    """

    allow: tuple[str, ...] = ()
    lookup: Callable[..., Iterable[tuple[Any, ...]]] = socket.getaddrinfo
    threads: ThreadPool = field(default_factory=ThreadPool, repr=False, compare=False)
    _allowed: tuple[Allowed, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_allowed", tuple(map(Allowed.read, self.allow)))

    def also(self, allow: Iterable[str]) -> Self:
        """Return a guard that lets more pass."""
        more = tuple(allow)
        return type(self)(self.allow + more, self.lookup, self.threads) if more else self

    def check_url(self, url: str) -> Target:
        """Return where an `http` or `https` URL leads, if it is plainly written and not known to be refused.

        Raises:
            ToolError: It is not, or its host is an address that may not be reached.
        """
        if re.search(r"[\x00-\x20\x7f\\]", url):
            raise ToolError(f"the URL {url!r} holds a space, a control character or a backslash; encode it")
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ToolError(f"{url!r} is no URL: {error}") from None
        if parts.scheme not in _PORTS:
            raise ToolError(f"the URL {url!r} has the scheme {parts.scheme!r}; only http:// and https:// can be used")
        if not host or "@" in parts.netloc:
            what = "a user name before its host" if host else "no host"
            raise ToolError(f"the URL {url!r} has {what}; write it as https://host/path")
        port = _PORTS[parts.scheme] if port is None else port
        name = _read(host)
        if not isinstance(name, str):
            self._passing(name, [name], port)
        return Target(parts.scheme, str(name), port)

    async def resolve(self, host: str, port: int) -> list[str]:
        """Return those addresses of a host that may be reached.

        Raises:
            ToolError: The name is not known, or no address of it may be reached.
        """
        name = _read(host)
        found = await self._look_up(name, port) if isinstance(name, str) else [name]
        return [str(address) for address in self._passing(name, found, port)]

    async def _look_up(self, name: str, port: int) -> list[Address]:
        try:
            rows = await self.threads.run(self.lookup, name, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise ToolError(f"the host {name!r} cannot be found: {error}; is it spelled right?") from None
        return [ip_address(row[4][0]) for row in rows]

    def _passing(self, name: str | Address, addresses: Sequence[Address], port: int) -> list[Address]:
        passing = [a for a in addresses if not_public(a) is None or any(e.covers(name, a, port) for e in self._allowed)]
        if not passing:
            host = f"[{name}]" if ":" in str(name) else name
            leads = f"{host} leads to {addresses[0]}, which" if isinstance(name, str) else host
            raise ToolError(
                f"refused: {leads} is {not_public(addresses[0])} that tools may not reach; "
                f"a person can allow it: {_ALLOW.format(host=host, port=port)}"
            )
        return passing


def _read(host: str) -> str | Address:
    try:
        return read_host(host)
    except ValueError as error:
        raise ToolError(f"refused: {error}") from None
