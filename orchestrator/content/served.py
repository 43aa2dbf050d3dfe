"""What a scenario serves while its run works: folders as sites on loopback, under names that only its tools know."""

from __future__ import annotations

import random
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.sandbox.guard import AddressGuard

PORT = 8000


def url_of(name: str) -> str:
    """Return where a folder is served, in every run the same, for recordings to fit; `.test` is nobody's (RFC 6761)."""
    return f"http://{name}.test:{PORT}"


@asynccontextmanager
async def served(folders: Mapping[str, Path], guard: AddressGuard) -> AsyncIterator[AddressGuard]:
    """Serve folders by name, and give a guard that knows and allows these sites.

    Args:
        folders: By name, as `url_of` takes it.
        guard: What else may be reached.

    Raises:
        ConfigError: Every address that was tried is in use.
    """
    sites: dict[str, ThreadingHTTPServer] = {}

    def look_up(host: str, port: int, **more: Any) -> Any:
        if host in sites:
            return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", sites[host].server_address)]
        return guard.lookup(host, port, **more)

    try:
        for name, folder in folders.items():
            sites[f"{name}.test"] = _serve(folder)
        yield replace(guard, lookup=look_up, allow=(*guard.allow, *(f"{host}:{PORT}" for host in sites)))
    finally:
        for site in sites.values():
            await guard.threads.run(site.shutdown)
            site.server_close()


class _Handler(SimpleHTTPRequestHandler):
    error_message_format = "<!doctype html><title>%(code)d</title><h1>%(code)d %(message)s</h1>\n"
    """The same in every version of Python."""

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing on stderr."""


def _serve(folder: Path) -> ThreadingHTTPServer:
    """Serve a folder on an address of its own: all of 127.0.0.0/8 is this machine's, on Linux without being set up."""
    for _ in range(20):
        parts = [random.randint(1, 254) for _ in range(3)] if sys.platform == "linux" else [0, 0, 1]
        address = ".".join(map(str, (127, *parts)))
        with suppress(OSError):
            server = ThreadingHTTPServer((address, PORT), partial(_Handler, directory=str(folder)))
            Thread(target=partial(server.serve_forever, poll_interval=0.05), daemon=True).start()
            return server
    raise ConfigError(f"{folder} cannot be served: port {PORT} is in use")
