"""The wire: one adapter for every server that speaks the OpenAI protocol."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import orjson
from pydantic import BaseModel, ConfigDict, Field

from orchestrator.errors import ConfigError, ModelError
from orchestrator.failure import Failure, FailureKind
from orchestrator.messages import Delta, Json, Message, Reply, Request
from orchestrator.models.faults import Answered, refusal
from orchestrator.models.presets import PresetName, preset_for
from orchestrator.models.quirks import response_format, schema_words, shape, shape_messages
from orchestrator.models.refusals import longest_answer, refused, window
from orchestrator.models.replies import Assembly, Telling, offered_names, read_body, read_reply
from orchestrator.models.tokens import Price, default_output, estimate_tokens
from orchestrator.models.wire import MOST_TOOLS, Transcript, decode, encode, wire_messages, wire_tools

if TYPE_CHECKING:
    from ssl import SSLContext

    import httpx2
    from openai import AsyncOpenAI

_SECRET = ("key", "auth", "token", "secret", "cookie")
"""A header whose name has one of these holds a secret."""
_REFUSING = frozenset({200, 400, 404, 405, 415, 422, 500, 501})
"""Status of an answer that may be about the form of a request; 500 for our own mistake is common."""
_OTHER_REASONS = frozenset({FailureKind.rate_limited, FailureKind.quota, FailureKind.content_filter})
"""Refusals that have nothing to do with the form of a request."""
_OWN_HEADERS = ("Lang", "Package-Version", "OS", "Arch", "Runtime", "Runtime-Version", "Async")
"""What the client tells every server about this machine, `X-Stainless-…`; it is left out, and saves time that way."""
_ANSWER_LIMITS = frozenset({"max_tokens", "max_completion_tokens"})


class Timeouts(BaseModel):
    """How long a model call may wait, in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    connect: float = Field(5, gt=0)
    read: float = Field(60, gt=0)
    """Between two pieces of a streamed answer."""
    first_byte: float = Field(300, gt=0)
    """Until an answer that is not streamed comes."""


class OpenAIModel:
    """A model behind any server that speaks the OpenAI protocol.

    Args:
        model: Its name, as the server knows it.
        base_url: Root of the API, usually ending in /v1; None: `OPENAI_BASE_URL`, else OpenAI's own.
        api_key: None: `OPENAI_API_KEY`, unless `base_url` names another server than the environment.
        window: Tokens that prompt and answer may have together.
        max_output: Tokens that one answer may have; None: a quarter of the window, at most 8,192.
        params: Generation parameters (`temperature`, …); those of a request win.
        headers: Sent with every request.
        extra_body: Fields that only this server understands.
        stream: `auto` streams when somebody listens.
        price: None: unknown, so replies have no cost.
        timeout: How long it may take.
        vision: It can see images.
        salvage: Take calls that the model writes as text for calls.
        preset: The server's kind, where the address does not say it.

    Raises:
        ConfigError: `base_url` or `api_key` cannot be right.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        window: int = 128_000,
        max_output: int | None = None,
        params: Mapping[str, Json] | None = None,
        headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Json] | None = None,
        stream: Literal["auto", "always", "never"] = "auto",
        price: Price | None = None,
        timeout: Timeouts | None = None,
        vision: bool = False,
        salvage: bool = True,
        preset: PresetName | None = None,
    ) -> None:
        self.name = model
        self.window = window
        self.max_output = max_output or default_output(window)
        self._most: int | None = None  # tokens of an answer, as the server said
        self.vision = vision
        self.base_url = base_url or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
        self.origin = f"{model} at {urlsplit(self.base_url).netloc.rpartition('@')[2]}"
        """Who answers here, as messages name it."""
        known = base_url in (None, os.environ.get("OPENAI_BASE_URL"))  # a key goes only to the server it is for
        self._key = (api_key or (known and os.environ.get("OPENAI_API_KEY")) or "none").strip()
        self._params = dict(params or {})
        self.preset = preset_for(self.base_url, preset)
        self.refused = set(self.preset.refused)
        """What the server is known to refuse, in the words of `quirks`; grows with what it says."""
        self._headers = dict(headers or {})
        if self.preset.key_header:
            self._headers.setdefault(self.preset.key_header, self._key)
        self._extra_body = dict(extra_body or {})
        self._stream = stream
        self.price = price
        self._timeout = timeout or Timeouts()
        self._salvage = salvage
        # connections belong to the event loop they were made in
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncOpenAI] = WeakKeyDictionary()
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(f"base_url {self.base_url!r} of model {model!r} must begin with http:// or https://")
        if not (self._key.isascii() and self._key.isprintable()):
            raise ConfigError(f"api_key of model {model!r} has characters that no key has; was a placeholder left in?")

    async def generate(self, request: Request, on_delta: Callable[[Delta], None] | None = None) -> Reply:
        """Answer a request with one whole reply.

        One call is one HTTP request, and one more for each thing that the server refuses for the first time.

        Args:
            request: The conversation and the offered tools.
            on_delta: Called with each piece as it arrives; None: nobody listens.

        Raises:
            ModelError: No whole answer came; the message names the model, the address and what to do.
        """
        if len(request.tools) > MOST_TOOLS:
            told = f"{len(request.tools)} tools are offered, {MOST_TOOLS} is the most; shorten the role's `tools`"
            raise ModelError(self._told(Failure(FailureKind.invalid_request, told)))
        telling = Telling(on_delta or _nobody, offered_names(request))
        while True:
            known = frozenset(self.refused)
            frame = self._frame(request, self._streams(on_delta is not None), known)
            transcript = request.scratch.setdefault(self.origin, Transcript())
            sent = self._written(frame, request, known, transcript)
            try:
                answer = await self._ask(sent, bool(frame.get("stream")), telling.hear)
                reply = self._read(answer, request, sent, transcript)
            except ModelError as error:
                telling.withdraw()
                if not (isinstance(error, Answered) and self._learn(error, self._filled(frame, request, known), known)):
                    raise ModelError(self._told(error.failure)) from None
            else:
                telling.settle(reply)
                return reply

    async def aclose(self) -> None:
        """Close this event loop's connections; the next `generate` opens them again."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client:
            await client.close()

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

    def body(self, request: Request, *, stream: bool) -> dict[str, Any]:
        """Return the body of a request, as this server takes it."""
        refused = frozenset(self.refused)
        return self._filled(self._frame(request, stream, refused), request, refused)

    def _filled(self, frame: dict[str, Any], request: Request, refused: frozenset[str]) -> dict[str, Any]:
        return frame | {"messages": self._messages(request.messages, refused)}

    def _written(
        self, frame: dict[str, Any], request: Request, refused: frozenset[str], transcript: Transcript
    ) -> bytes:
        """Write a body: the same bytes as `encode` makes of it, at the cost of what is new."""
        messages = transcript.write(request.messages, lambda part: self._messages(part, refused), refused)
        try:
            return orjson.dumps(frame | {"messages": messages})
        except TypeError:  # see `encode`
            return encode(self._filled(frame, request, refused))

    def _messages(self, messages: Sequence[Message], refused: frozenset[str]) -> list[dict[str, Any]]:
        vision = self.vision and "image_url" not in refused
        return shape_messages(wire_messages(messages, origin=self.origin, vision=vision), refused)

    def _frame(self, request: Request, stream: bool, refused: frozenset[str]) -> dict[str, Any]:
        """Return a body with a place for its messages.

        What stays the same in a conversation comes first and what grows comes late, so that each request repeats
        the bytes of the one before up to the end of its messages.
        """
        body: dict[str, Any] = {"model": self.name, **self._params, **request.params, **self._extra_body}
        if not body.keys() & _ANSWER_LIMITS:
            body["max_tokens"] = self.max_output
        for field in body.keys() & _ANSWER_LIMITS:
            body[field] = min(most for most in (body[field], self._most, request.max_output) if most)
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        tools = () if request.output else request.tools
        if tools:
            body["tools"] = wire_tools(tools, schema_words(refused))
            if request.parallel_tool_calls is not None:
                body["parallel_tool_calls"] = request.parallel_tool_calls
        body["messages"] = ()
        if tools:
            body["tool_choice"] = request.tool_choice
        elif request.output:
            body["response_format"] = response_format(request.output)
        return shape(body, refused)

    @property
    def streams(self) -> bool:
        """Whether an answer is streamed when somebody listens."""
        return self._streams(True)

    def _streams(self, heard: bool) -> bool:
        if "stream" in self.refused or "plain" in self.refused:
            return "plain" in self.refused
        return self._stream == "always" or (self._stream == "auto" and heard)

    def _read(self, answer: Mapping[str, Any], request: Request, sent: bytes, transcript: Transcript) -> Reply:
        return read_reply(
            answer,
            request,
            sent=sent,
            price=self.price,
            salvaging=self._salvage,
            origin=self.origin,
            taken=transcript.ids,
        )

    def _learn(self, error: Answered, body: Mapping[str, Any], known: frozenset[str]) -> bool:
        """Remember what a refusal says about the server; True: it may take the same request in another form.

        Args:
            error: The refusal.
            body: What was refused.
            known: What was left out of it; others may have learned more meanwhile.
        """
        if error.failure.kind is FailureKind.context_overflow:
            return self._learn_window(error, body)
        if error.status not in _REFUSING or error.failure.kind in _OTHER_REASONS:
            return False
        most = longest_answer(error.said)
        if most and most < _answer_limit(body):
            self._most, self.max_output = most, min(most, self.max_output)
            return True
        new = refused(error.said, body) - known
        self.refused |= new
        return bool(new)

    def _learn_window(self, error: Answered, body: Mapping[str, Any]) -> bool:
        """Take the window that an overflow names for the window; True: only the room for the answer was too large."""
        tokens = window(error.said)
        if tokens is None:
            return False
        self.window = min(tokens, self.window)
        self._most = self.max_output = min(self.max_output, self.window // 4)
        return self.max_output < _answer_limit(body) and estimate_tokens(encode(body)) + self.max_output <= tokens

    async def _ask(self, sent: bytes, streams: bool, tell: Callable[[Delta], None]) -> dict[str, Any]:
        """Send a request and return the body of its answer."""
        if not hasattr(sys.modules.get("openai"), "AsyncOpenAI"):  # it takes a second: other runs go on meanwhile
            await asyncio.to_thread(import_module, "openai")
        import aiohttp
        import httpx2
        import openai

        read = self._timeout.read if streams else self._timeout.first_byte
        await asyncio.sleep(0)  # lets a kept connection that the server has closed be seen as closed
        try:
            response = cast(
                "httpx2.Response",
                await self._client().post(
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
            raise refusal(answer.status_code, answer.headers, answer.text) from None
        except (openai.APIConnectionError, httpx2.HTTPError, aiohttp.ClientError) as error:
            raise ModelError(self._unreachable(error, read)) from None

    def _client(self) -> AsyncOpenAI:
        """Return this event loop's client."""
        from openai import AsyncOpenAI, DefaultAioHttpClient, omit

        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            _settle()
            unsaid: dict[str, Any] = {f"X-Stainless-{name}": omit for name in _OWN_HEADERS}
            self._clients[loop] = AsyncOpenAI(
                api_key=self._key,
                base_url=self.base_url,
                timeout=self._timeouts(self._timeout.first_byte),
                max_retries=0,  # retries have one owner, and it is not the client
                default_headers=unsaid | self._headers,
                http_client=DefaultAioHttpClient(verify=_tls()),
            )
        return self._clients[loop]

    def _timeouts(self, read: float) -> httpx2.Timeout:
        import httpx2

        return httpx2.Timeout(read, connect=self._timeout.connect, pool=None)

    def _unreachable(self, error: BaseException, read: float) -> Failure:
        """Tell why no answer came over the network."""
        import aiohttp

        chain = list(_causes(error))
        cause = chain[-1]
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
        return Failure(FailureKind.connection, f"the connection broke before an answer came ({cause})")

    def _told(self, failure: Failure) -> Failure:
        """Name the place, and leave out every secret."""
        message = f"model {self.name!r} at {self.base_url}: {failure.message}"
        secrets = [value for name, value in self._headers.items() if any(part in name.lower() for part in _SECRET)]
        for secret in (self._key, *secrets):
            if len(secret) >= 8:  # shorter ones are placeholders, and words of the message
                message = message.replace(secret, "[secret]")
        return replace(failure, message=message)


@cache
def _tls() -> SSLContext:
    """Return the one TLS context of this process: reading the certificates takes 80 ms."""
    import httpx2

    return httpx2.create_ssl_context()


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
        if not text.lstrip().startswith(b"data:"):
            return read_body(text)
        for delta in assembly.feed(text):
            tell(delta)
        return assembly.body()
    try:
        async with aclosing(response.aiter_bytes()) as chunks:
            async for chunk in chunks:
                for delta in assembly.feed(chunk):
                    tell(delta)
                if assembly.done:
                    break
    except (httpx2.HTTPError, aiohttp.ClientError):
        if assembly.finish_reason is None:
            raise
    return assembly.body()


def _answer_limit(body: Mapping[str, Any]) -> int:
    return int(next((value for field, value in body.items() if field in _ANSWER_LIMITS), 0))


def _causes(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__


def _nobody(delta: Delta) -> None:
    """Stand in for a listener."""
