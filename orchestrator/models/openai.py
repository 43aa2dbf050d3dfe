"""The wire: one adapter for every server that speaks the OpenAI protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal
from urllib.parse import urlsplit

import orjson

from orchestrator.errors import ModelError
from orchestrator.failure import Failure, FailureKind
from orchestrator.messages import Delta, Json, Message, Reply, Request
from orchestrator.models.faults import Answered
from orchestrator.models.presets import PresetName
from orchestrator.models.quirks import response_format, schema_words, shape, shape_messages
from orchestrator.models.refusals import longest_answer, refused, window
from orchestrator.models.replies import Telling, offered_names, read_reply
from orchestrator.models.server import Server, Timeouts
from orchestrator.models.tokens import Price, default_output, estimate_tokens
from orchestrator.models.wire import MOST_TOOLS, Transcript, encode, wire_messages, wire_tools

_REFUSING = frozenset({200, 400, 404, 405, 415, 422, 500, 501})
"""Status of an answer that may be about the form of a request; 500 for our own mistake is common."""
_OTHER_REASONS = frozenset({FailureKind.rate_limited, FailureKind.quota, FailureKind.content_filter})
"""Refusals that have nothing to do with the form of a request."""
_ANSWER_LIMITS = frozenset({"max_tokens", "max_completion_tokens"})


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
        self.server = Server(model, base_url, api_key, headers or {}, timeout or Timeouts(), preset)
        self.base_url, self.preset = self.server.base_url, self.server.preset
        self.origin = f"{model} at {urlsplit(self.base_url).netloc.rpartition('@')[2]}"
        """Who answers here, as messages name it."""
        self._params = dict(params or {})
        self.refused = set(self.preset.refused)
        """What the server is known to refuse, in the words of `quirks`; grows with what it says."""
        self._extra_body = dict(extra_body or {})
        self._stream = stream
        self.price = price
        self._salvage = salvage

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
                answer = await self.server.complete(sent, bool(frame.get("stream")), telling.hear)
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
        await self.server.aclose()

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

    def _told(self, failure: Failure) -> Failure:
        """Name the place, and leave out every secret."""
        message = f"model {self.name!r} at {self.base_url}: {failure.message}"
        return replace(failure, message=self.server.without_secrets(message))


def _answer_limit(body: Mapping[str, Any]) -> int:
    return int(next((value for field, value in body.items() if field in _ANSWER_LIMITS), 0))


def _nobody(delta: Delta) -> None:
    """Stand in for a listener."""
