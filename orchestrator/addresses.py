"""Hosts and addresses: how they are written, which of them are public, and what an allow list names. Pure."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Self

Address = IPv4Address | IPv6Address

_SPECIAL: dict[IPv4Network | IPv6Network, str] = {
    ip_network(network): kind
    for network, kind in {
        "169.254.169.254/32": "a cloud's metadata address",
        "168.63.129.16/32": "a cloud's metadata address",  # Azure's, within the public space
        "100.100.100.200/32": "a cloud's metadata address",
        "fd00:ec2::254/128": "a cloud's metadata address",
        "0.0.0.0/8": "an address of this machine",
        "127.0.0.0/8": "a loopback address",
        "10.0.0.0/8": "a private address",
        "172.16.0.0/12": "a private address",
        "192.168.0.0/16": "a private address",
        "169.254.0.0/16": "a link-local address",
        "100.64.0.0/10": "an address behind a carrier's NAT",
        "224.0.0.0/4": "a multicast address",
        "192.0.0.0/24": "a reserved address",
        "192.0.2.0/24": "a reserved address",
        "192.88.99.0/24": "a reserved address",
        "198.18.0.0/15": "a reserved address",
        "198.51.100.0/24": "a reserved address",
        "203.0.113.0/24": "a reserved address",
        "240.0.0.0/4": "a reserved address",
        "::/128": "an address of this machine",
        "::1/128": "a loopback address",
        "fc00::/7": "a private address",
        "fe80::/10": "a link-local address",
        "ff00::/8": "a multicast address",
        "2001::/23": "a reserved address",  # with Teredo, whose IPv4 parts anybody can choose
        "2001:db8::/32": "a reserved address",
        "3fff::/20": "a reserved address",
    }.items()
}
"""Not public, by IANA's registries of special-purpose addresses; the narrowest first where two overlap."""

_PUBLIC_V6 = ip_network("2000::/3")
"""All that is given out as global unicast."""

_EMBEDS_V4 = {
    IPv6Network("::ffff:0:0/96"): 0,  # mapped
    IPv6Network("::ffff:0:0:0/96"): 0,  # translated
    IPv6Network("64:ff9b::/96"): 0,  # NAT64
    IPv6Network("2002::/16"): 80,  # 6to4
}
"""Forms of IPv6 that lead to an IPv4 address, and how many bits follow it."""


def not_public(address: Address) -> str | None:
    """Return what keeps an address from being a public one, as `a loopback address`; None: nothing does."""
    if isinstance(address, IPv6Address):
        for network, bits in _EMBEDS_V4.items():
            if address in network:
                inner = IPv4Address(int(address) >> bits & 0xFFFF_FFFF)
                return (kind := not_public(inner)) and f"{kind} within IPv6 ({inner})"
    kinds = (kind for network, kind in _SPECIAL.items() if address in network)
    outside = "a reserved address" if address.version == 6 and address not in _PUBLIC_V6 else None
    return next(kinds, outside)


_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


def read_host(text: str) -> str | Address:
    """Return a host as an address or as a name in the form that DNS knows: lower case, ASCII.

    Raises:
        ValueError: It is none, or an address in a form that programs read differently, as `0x7f.1`.
    """
    if ":" in text:
        return _read_v6(text[1:-1] if text[0] + text[-1] == "[]" else text)
    if len(text) > 253:
        raise ValueError(f"{text[:40]!r}… is no host name: it is longer than 253 characters")
    name = (text if text.isascii() else _punycode(text)).lower().removesuffix(".")
    *_, last = labels = name.split(".")
    if len(name) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise ValueError(f"{text!r} is no host name")
    return _read_v4(name, text) if _NUMBER.fullmatch(last) else name


def _punycode(text: str) -> str:
    import idna

    try:
        return idna.encode(text, uts46=True).decode()
    except UnicodeError as error:
        raise ValueError(f"{text!r} is no host name: {error}") from None


def _read_v6(text: str) -> IPv6Address:
    if "%" in text:
        raise ValueError(f"{text!r} names a zone of this machine, as no public address does")
    try:
        return IPv6Address(text)
    except ValueError:
        raise ValueError(f"{text!r} is no IPv6 address") from None


def _read_v4(name: str, text: str) -> IPv4Address:
    """Read a name that ends in a number; nothing but four plain decimal numbers means the same to all programs."""
    try:
        if name == text:
            return IPv4Address(name)
    except ValueError:
        pass
    try:
        means = f"; it may mean {socket.inet_ntoa(socket.inet_aton(name))}"
    except OSError:
        means = ""
    raise ValueError(f"{text!r} is an unusual way to write an address{means}; write four plain decimal numbers")


@dataclass(frozen=True, slots=True)
class Allowed:
    """One entry of an allow list: a name or a network, at one port or at all."""

    host: str | IPv4Network | IPv6Network
    port: int | None = None

    @classmethod
    def read(cls, text: str) -> Self:
        """Read `intranet.example`, `localhost:8080`, `10.0.0.7`, `[::1]:80` or `10.0.0.0/8`.

        Raises:
            ValueError: It is none of these.
        """
        if "://" in text:
            raise ValueError(f"{text!r} is a URL; write only its host, or host:port")
        if "/" in text:
            return cls(ip_network(text))
        host, port = text, None
        if match := re.fullmatch(r"(\[.*\]|[^:\[\]]*):([0-9]+)", text):
            host, port = match[1], int(match[2])
            if not 0 < port < 65536:
                raise ValueError(f"{text!r}: a port is 1 to 65535")
        read = read_host(host)
        return cls(read if isinstance(read, str) else ip_network(read), port)

    def covers(self, name: str | Address, address: Address, port: int) -> bool:
        """Whether this allows to reach an address under a name (or as itself)."""
        if self.port not in (None, port):
            return False
        return name == self.host if isinstance(self.host, str) else address in self.host
