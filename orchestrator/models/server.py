"""A server that speaks the OpenAI protocol: a request goes out as bytes, and the body of its answer comes back."""

from __future__ import annotations

import asyncio
import gc
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing, suppress
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from pydantic import Field

from orchestrator.errors import ConfigError, ModelError
from orchestrator.failure import Failure, FailureKind
from orchestrator.messages import Delta, Json
from orchestrator.models.environment import address_of, key_for, withheld_headers
from orchestrator.models.faults import refusal
from orchestrator.models.httpclient import open_http_client
from orchestrator.models.presets import PresetName, preset_for
from orchestrator.models.replies import Assembly, read_body
from orchestrator.models.wire import decode
from orchestrator.strict import Strict

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI

_SECRET = ("key", "auth", "token", "secret", "cookie")
"""A header whose name has one of these holds a secret."""
_OWN_HEADERS = ("Lang", "Package-Version", "OS", "Arch", "Runtime", "Runtime-Version", "Async")
"""What the client tells every server about this machine, `X-Stainless-…`; it is left out, and saves time that way."""
_EVENTS = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:data|event|id|retry)?:")
"""How a stream of events begins, whatever its `Content-Type` is."""
_LAST_WORDS = 5.0
"""Seconds in which a stream may still count its tokens and end, once the answer is whole."""


class Timeouts(Strict):
    """How long a model call may wait, in seconds."""

    connect: float = Field(5, gt=0)
    read: float = Field(60, gt=0)
    """Between two pieces of a streamed answer."""
    first_byte: float = Field(300, gt=0)
    """Until an answer that is not streamed comes."""


class Server:
    """One server, through the openai client: its authentication, connections and errors, without its types.

    Args:
        model: What is asked of it, for errors.
        base_url: Root of the API, usually ending in /v1; None: `OPENAI_BASE_URL`, else OpenAI's own.
        api_key: None: `OPENAI_API_KEY`, unless `base_url` names another server than the environment.
        headers: Sent with every request.
        timeout: How long it may take.
        preset: Its kind, where the address does not say it.

    Raises:
        ConfigError: `base_url` or `api_key` cannot be right.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None,
        api_key: str | None,
        headers: Mapping[str, str],
        timeout: Timeouts,
        preset: PresetName | None,
    ) -> None:
        self._given_url, self.base_url = base_url, address_of(base_url)
        self._key = key_for(base_url, api_key)
        self.preset = preset_for(self.base_url, preset)
        self.headers = ({self.preset.key_header: self._key} if self.preset.key_header else {}) | dict(headers)
        self._timeout = timeout
        # connections belong to the event loop they were made in
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncOpenAI] = WeakKeyDictionary()
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(f"base_url {self.base_url!r} of model {model!r} must begin with http:// or https://")
        if not (self._key.isascii() and self._key.isprintable()):
            raise ConfigError(f"api_key of model {model!r} has characters that no key has; was a placeholder left in?")

    async def complete(self, sent: bytes, streams: bool, tell: Callable[[Delta], None]) -> dict[str, Any]:
        """Ask for a chat completion, once.

        Args:
            sent: The body of the request.
            streams: It asks for a stream.
            tell: Hears the pieces of a stream as they arrive.

        Raises:
            ModelError: No whole answer came.
        """
        if not hasattr(sys.modules.get("openai"), "AsyncOpenAI"):  # it takes a second: other runs go on meanwhile
            await asyncio.to_thread(import_module, "openai")
        import aiohttp
        import httpx2
        import openai

        read = self._timeout.read if streams else self._timeout.first_byte
        await asyncio.sleep(0)  # lets a kept connection that the server has closed be seen as closed
        try:
            client = self._client()
            response = cast(
                "httpx2.Response",
                await client.post(
                    f"{self.base_url.rstrip('/')}/chat/completions",  # joining addresses takes the client 50 µs
                    cast_to=httpx2.Response,
                    content=sent,
                    options={"timeout": self._timeouts(read)} if streams else {},
                    stream=streams,
                ),
            )
            try:
                return await _answer(response, tell)
            finally:
                await response.aclose()
        except openai.APIStatusError as error:
            answer = error.response
            raise refusal(answer.status_code, answer.headers, _text(answer)) from None
        except (openai.APIConnectionError, httpx2.HTTPError, aiohttp.ClientError) as error:
            raise ModelError(self._unreachable(error, read)) from None
        except RuntimeError:
            if not client.is_closed():
                raise
            raise ModelError(Failure(FailureKind.connection, "the connections were closed before it came")) from None

    async def read(self, address: str) -> Json:
        """Return the JSON that the server gives at an address, such as its list of models; None: there is none.

        Args:
            address: A path below `base_url`, or a whole URL.
        """
        import aiohttp
        import httpx2
        import openai

        try:
            response = await self._client().get(
                address, cast_to=httpx2.Response, options={"timeout": self._timeout.connect}
            )
            return decode(await response.aread())
        except (openai.OpenAIError, httpx2.HTTPError, aiohttp.ClientError, ValueError):
            return None

    async def aclose(self) -> None:
        """Close this event loop's connections; the next request opens them again."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client:
            await client.close()

    def without_secrets(self, text: str) -> str:
        """Return a text without the key and other secrets that are sent to the server."""
        secrets = [value for name, value in self.headers.items() if any(part in name.lower() for part in _SECRET)]
        for secret in (self._key, *secrets):
            if len(secret) >= 8:  # shorter ones are placeholders, and words of the message
                text = text.replace(secret, "[secret]")
        return text

    def _client(self) -> AsyncOpenAI:
        """Return this event loop's client."""
        from openai import AsyncOpenAI, omit

        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            _settle()
            http_client = open_http_client()
            said = {name: http_client.headers[name] for name in ("Accept-Encoding", "Connection")}
            unsaid: dict[str, Any] = {f"X-Stainless-{name}": omit for name in _OWN_HEADERS}
            unsaid |= withheld_headers(self._given_url, self._key)
            self._clients[loop] = AsyncOpenAI(
                api_key=self._key,
                base_url=self.base_url,
                timeout=self._timeouts(self._timeout.first_byte),
                max_retries=0,  # retries have one owner, and it is not the client
                default_headers=unsaid | said | self.headers,
                http_client=http_client,
            )
        return self._clients[loop]

    def _timeouts(self, read: float) -> httpx2.Timeout:
        import httpx2

        return httpx2.Timeout(read, connect=self._timeout.connect, pool=None)

    def _unreachable(self, error: BaseException, read: float) -> Failure:
        """Tell why no answer came over the network."""
        import aiohttp
        import httpx2
        from aiohttp.http_exceptions import HttpProcessingError

        chain = list(_causes(error))
        cause = " ".join(str(chain[-1]).split())
        if isinstance(chain[-1], ConnectionRefusedError):  # asyncio says it with the number of the error
            cause = "connection refused"
        elif isinstance(chain[-1], aiohttp.ServerDisconnectedError):
            cause = "the server closed it"
        if any(isinstance(link, aiohttp.ConnectionTimeoutError) for link in chain):
            seconds = self._timeout.connect
            return Failure(FailureKind.timeout, f"no connection within {seconds:g} s (`timeout.connect`)")
        if any(isinstance(link, TimeoutError) for link in chain):
            return Failure(FailureKind.timeout, f"not a byte came for {read:g} s (`timeout` in ori.yaml)")
        if any(isinstance(link, aiohttp.ClientPayloadError) for link in chain):
            return Failure(FailureKind.truncated_stream, "the connection broke in the middle of the answer")
        if any(isinstance(link, aiohttp.ClientConnectorError) for link in chain):
            return Failure(
                FailureKind.connection, f"it cannot be reached ({cause}); is the server running, and `base_url` right?"
            )
        if any(isinstance(link, HttpProcessingError) for link in chain):
            return Failure(FailureKind.connection, f"the answer is no proper HTTP ({cause}); is `base_url` right?")
        if any(isinstance(link, httpx2.DecodingError) for link in chain):
            return Failure(FailureKind.connection, f"the answer cannot be unpacked ({cause})")
        return Failure(FailureKind.connection, f"the connection broke before an answer came ({cause})")


@cache
def _settle() -> None:
    """Keep garbage collections from what is loaded by now: a full one through all modules stops the loop for 100 ms."""
    gc.collect()
    gc.freeze()


async def _answer(response: httpx2.Response, tell: Callable[[Delta], None]) -> dict[str, Any]:
    """Read an answer, streamed or not: some servers do not do as they were asked."""
    import aiohttp
    import httpx2

    assembly = Assembly()
    if "event-stream" not in response.headers.get("content-type", ""):
        text = await response.aread()
        if not _EVENTS.match(text):
            return read_body(text)
        for delta in assembly.feed(text):
            tell(delta)
        return assembly.body()
    before = []  # the first event, and all there is if none comes
    try:
        async with asyncio.timeout(None) as patience, aclosing(response.aiter_bytes()) as chunks:
            async for chunk in chunks:
                for delta in assembly.feed(chunk):
                    tell(delta)
                if assembly.done:
                    break
                if not assembly.begun:
                    before.append(chunk)
                if assembly.finish_reason is not None and patience.when() is None:
                    patience.reschedule(asyncio.get_running_loop().time() + _LAST_WORDS)
    except (httpx2.HTTPError, aiohttp.ClientError, TimeoutError):
        if assembly.finish_reason is None:
            raise
    return assembly.body() if assembly.begun else read_body(b"".join(before))


def _text(response: httpx2.Response) -> str:
    """Return the body of a refusal: in UTF-8, or as it says, or as servers in China write that say nothing."""
    for encoding in ("utf-8", response.charset_encoding or "utf-8", "gb18030"):
        with suppress(LookupError, UnicodeError):
            return response.content.decode(encoding)
    return response.content.decode("utf-8", "replace")


def _causes(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__
