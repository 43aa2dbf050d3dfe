"""The scripted server itself, and the routing of parallel conversations."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from types import TracebackType
from typing import Any, Literal, Self

from orchestrator.messages import Json
from orchestrator.testing.answers import Answer, fault, rendered
from orchestrator.testing.linter import Profile, lint

_SCRIPT_ERRORS = (AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError)
"""What a mistake in a script raises."""
Replies = Sequence[Answer] | Callable[[dict[str, Any]], Answer | Awaitable[Answer]]
"""Answers in the order of requests, or a function of the request's body."""


def route(table: Mapping[str | tuple[str, ...], Answer | Replies]) -> Callable[[dict[str, Any]], Awaitable[Answer]]:
    """Answer each conversation from a script of its own, as the order of parallel workers' requests is not fixed.

    Args:
        table: The first key that fits is taken: a text, or several, that stand in the system prompt or in the last
            user message. Its value is one answer (given every time), answers in order, or a function.

    Raises:
        LookupError: No key fits, or the key's answers are used up; the server's context then ends with an error.
    """
    scripts = {
        key if isinstance(key, tuple) else (key,): _script(_always(value) if isinstance(value, Answer) else value)
        for key, value in table.items()
    }

    async def choose(request: dict[str, Any]) -> Answer:
        prompt = [m for m in request["messages"] if m["role"] in ("system", "developer")]
        asked = [m for m in request["messages"] if m["role"] == "user"][-1:]
        seen = "\n".join(str(m["content"]) for m in prompt + asked)
        for key, script in scripts.items():
            if all(part in seen for part in key):
                try:
                    return await script(request)
                except LookupError as error:
                    raise LookupError(f"{key}: {error}") from None
        raise LookupError(f"no key of the route fits: {list(scripts)} against {seen[:400]!r}")

    return choose


def _always(answer: Answer) -> Callable[[dict[str, Any]], Answer]:
    return lambda request: answer


class ScriptedServer:
    """A loopback server that speaks the OpenAI protocol and answers from a script, streamed or plain as asked.

    Leaving its context raises `AssertionError` when a request found no answer, or (with `strict`) broke a rule.

    Args:
        replies: Answers in order, or a function of the request's body; see `route` for parallel conversations.
        strict: Answer a request that breaks a rule with 400.
        profile: Whose rules apply.
        pages: JSON that is there to be read, by path, such as `/v1/models`.
        port: Where it listens; 0: wherever there is room.
    """

    def __init__(
        self,
        replies: Replies,
        *,
        strict: bool = True,
        profile: Profile = "openai",
        pages: Mapping[str, Json] | None = None,
        port: int = 0,
    ) -> None:
        self.requests: list[dict[str, Any]] = []
        """Bodies of all requests, in the order in which they came."""
        self.headers: list[dict[str, str]] = []
        """Headers of the same requests, names in lower case."""
        self.complaints: list[str] = []
        """Rules that requests broke."""
        self.connections = 0
        """Open now."""
        self.connections_made = 0
        """Opened so far."""
        self.in_flight = 0
        """Requests that are being answered now."""
        self.base_url = ""
        """Known within the context."""
        self._script = _script(replies)
        self._strict = strict
        self._profile: Profile = profile
        self._pages = dict(pages or {})
        self._port = port
        self._faults: list[str] = []
        self._ids = count(1)
        self._changed = asyncio.Event()
        self._scopes: set[asyncio.Timeout] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self.base_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for scope in self._scopes:
            scope.reschedule(0)
        await self.until(lambda server: server.connections == 0)
        problems = self._faults + (self.complaints if self._strict else [])
        if problems and error is None:
            raise AssertionError("\n".join(["the scripted server was asked wrongly:", *problems]))

    async def until(self, condition: Callable[[ScriptedServer], bool]) -> None:
        """Wait until a condition on this server holds, such as `lambda server: server.in_flight == 2`."""
        while not condition(self):
            await self._changed.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after another, until one side ends it."""
        self.connections_made += 1
        try:
            with self._counting("connections"), suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
                async with asyncio.timeout(None) as scope:
                    self._scopes.add(scope)
                    try:
                        while await self._serve_one(reader, writer):
                            pass
                    finally:
                        self._scopes.discard(scope)
        finally:
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer the next request; False: the connection is to be closed."""
        head = await reader.readuntil(b"\r\n\r\n")
        start, *lines = head.decode("latin-1").strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        path = start.split()[1].partition("?")[0]
        if path != "/v1/chat/completions":
            page = self._pages.get(path)
            answer = fault(404, {"error": {"message": f"nothing is at {path}"}}) if page is None else fault(200, page)
            return await self._send(answer, {}, reader, writer)
        request = json.loads(body)
        self.requests.append(request)
        self.headers.append(headers)
        with self._counting("in_flight"):
            answer = await self._choose(request)
            return await self._send(answer, request, reader, writer)

    async def _choose(self, request: dict[str, Any]) -> Answer:
        """Return the answer that the script has for a request, or a refusal."""
        number = len(self.requests)
        complaints = lint(request, self._profile)
        self.complaints += [f"request {number}: {code}: {words}" for code, words in complaints]
        if complaints and self._strict:
            return _refusal(*complaints[0])
        try:
            return await self._script(request)
        except _SCRIPT_ERRORS as error:
            self._faults.append(f"request {number}: {type(error).__name__}: {error}")
            return _refusal("script", str(error))

    async def _send(
        self, answer: Answer, request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Send an answer as far as it goes; False: the connection is to be closed."""
        await _wait(answer.latency, reader)
        parts = rendered(answer, request, lambda: f"call_{next(self._ids)}")
        for part in parts:
            writer.write(part)
        await writer.drain()
        if answer.ending == "hang":
            await _wait(None, reader)
        return answer.ending != "drop"

    @contextmanager
    def _counting(self, name: Literal["connections", "in_flight"]) -> Iterator[None]:
        self._change(name, 1)
        try:
            yield
        finally:
            self._change(name, -1)

    def _change(self, name: Literal["connections", "in_flight"], by: int) -> None:
        setattr(self, name, getattr(self, name) + by)
        self._changed.set()
        self._changed = asyncio.Event()


def _script(replies: Replies) -> Callable[[dict[str, Any]], Awaitable[Answer]]:
    if callable(replies):

        async def ask(request: dict[str, Any]) -> Answer:
            answer = replies(request)
            return await answer if inspect.isawaitable(answer) else answer

        return ask
    waiting = deque(replies)

    async def take(request: dict[str, Any]) -> Answer:
        if not waiting:
            raise LookupError(f"all {len(replies)} replies of the script are used up")
        return waiting.popleft()

    return take


async def _wait(seconds: float | None, reader: asyncio.StreamReader) -> None:
    """Wait (None: for ever), but no longer than the client stays."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            if seconds != 0 and not await reader.read(1):
                raise ConnectionAbortedError


def _refusal(code: str, words: str) -> Answer:
    return fault(400, {"error": {"message": words, "type": "invalid_request_error", "code": code}})
