"""A site on loopback that answers with whatever bytes a test says, well formed or not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Self

Handler = Callable[[asyncio.StreamWriter], Awaitable[None]]


def page(
    body: str | bytes = b"",
    *,
    status: str = "200 OK",
    kind: str = "text/plain",
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Return a whole answer."""
    content = body.encode() if isinstance(body, str) else body
    fields = {"Content-Type": kind, "Content-Length": str(len(content)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + content


def moved(to: str, status: str = "302 Found") -> bytes:
    """Return a redirect."""
    return page(status=status, headers={"Location": to})


class Site:
    """Serves answers by path; every other path is not found. Keeps what it was asked.

    Args:
        answers: Whole answers, or what writes one.
    """

    def __init__(self, **answers: bytes | Handler) -> None:
        self.answers: dict[str, bytes | Handler] = {f"/{name}": answer for name, answer in answers.items()}
        self.requests: list[bytes] = []
        self.connections = 0

    @property
    def port(self) -> int:
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._writers: set[asyncio.StreamWriter] = set()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (int(line[15:]) for line in head.split(b"\r\n") if line.lower()[:15] == b"content-length:"), 0
                )
                self.requests.append(head + await reader.readexactly(length))
                path = head.split(b" ")[1].decode().partition("?")[0]
                answer = self.answers.get(path, page("nothing is here", status="404 Not Found"))
                if isinstance(answer, bytes):
                    writer.write(answer)
                    await writer.drain()
                else:
                    await answer(writer)
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self._writers.discard(writer)
            writer.close()
