"""What comes back: answers and streams of any dialect become one `Reply`. Pure."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

from orchestrator.errors import ModelError
from orchestrator.failure import Failure, FailureKind
from orchestrator.messages import Delta, Json, Reply, Request, ToolCall, Usage
from orchestrator.models.disguise import ThinkFilter, salvage, split_think
from orchestrator.models.faults import refusal
from orchestrator.models.tokens import Price, estimate_tokens
from orchestrator.models.wire import decode, encode, wire_name

_PLAIN_FIELDS = frozenset({"role", "content", "tool_calls", "function_call", "refusal", "annotations", "audio"})
"""Fields of a message that are read, or that no server wants back; all others go back as they came."""
_CALL_FIELDS = frozenset({"index", "id", "type", "function", "name", "arguments"})
"""Likewise, of a call."""
_MOST_CALLS = 1000
"""Of one answer: what makes more of them goes round in circles."""
_ABSURD = 10**9
"""Tokens that no call takes: who reports them has not counted."""
_LONE = re.compile(r"\\u[dD][89a-fA-F]")
"""Where an escape may be half of a character."""
_FINISH = {"max_tokens": "length", "model_length": "length", "": "stop"}
"""Other servers' words for a finish reason."""


def read_body(text: bytes) -> dict[str, Any]:
    """Read the body of a plain answer.

    Raises:
        ModelError: It is no JSON, or it says that something went wrong.
    """
    try:
        body = decode(text)
        _check(body, body["choices"][0])
    except (ValueError, TypeError, LookupError, AttributeError):
        raise refusal(200, {}, text.decode("utf-8", "replace")) from None
    return dict(body)


def _check(body: Mapping[str, Any], choice: Mapping[str, Any]) -> None:
    problem = body.get("error") or choice.get("error")
    if problem or choice.get("finish_reason") == "error":
        raise refusal(200, {}, encode({"error": problem or "the server gave up"}).decode())


class EventSplitter:
    """Splits the bytes of a stream of server-sent events into the events' data."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # of a line that has not ended
        self._data: list[bytes] = []
        self._returned = False  # the last byte was a carriage return

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Take the next bytes, wherever they were cut, and yield the data of each event that ends in them."""
        if b"\r" in chunk or self._returned:
            chunk = self._with_newlines(chunk)
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join((*self._rest, lines[0]))
            self._rest.clear()
        self._rest.append(rest)
        for line in lines:
            line = line.removeprefix(BOM_UTF8)  # may stand before the first one
            if line.startswith(b"data:"):
                self._data.append(line[5:].strip())
            elif not line and self._data:
                data, self._data = b"\n".join(self._data), []
                yield data

    def _with_newlines(self, chunk: bytes) -> bytes:
        """Write all three ends that a line may have as one."""
        if self._returned:
            chunk = chunk.removeprefix(b"\n")
        self._returned = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


class Telling:
    """What a listener hears of one answer; takes back what turns out to be wrong.

    Args:
        tell: The listener.
        names: Tools by their names on the wire.
    """

    def __init__(self, tell: Callable[[Delta], None], names: Mapping[str, str]) -> None:
        self._tell, self._names = tell, names
        self._texts: list[str] = []
        self._told = False

    def hear(self, delta: Delta) -> None:
        """Pass a piece on."""
        if delta.kind == "call":
            delta = replace(delta, name=self._names.get(delta.name, delta.name))
        elif delta.kind == "text":
            self._texts.append(delta.text)
        self._told = True
        self._tell(delta)

    def withdraw(self) -> None:
        """Take everything back."""
        if self._told:
            self._told = False
            self._texts.clear()
            self._tell(Delta("reset"))

    def settle(self, reply: Reply) -> None:
        """Tell the text of the whole reply where the pieces said something else: a call in disguise, or nothing."""
        if "".join(self._texts).strip() == reply.content.strip():
            return
        self.withdraw()
        if reply.reasoning:
            self.hear(Delta("reasoning", reply.reasoning))
        if reply.content:
            self.hear(Delta("text", reply.content))


class Assembly:
    """Puts the chunks of a stream together into the body that a plain answer would have had."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        """None: the answer is not whole yet."""
        self.begun = False
        """An event has come."""
        self.done = False
        """Nothing more comes."""
        self._foreign: bytes | None = None  # the first event that is no part of an answer
        self._index: object = None  # of the choice that is read; there may be more
        self._events = EventSplitter()
        self._body: dict[str, Any] = {}
        self._message: dict[str, list[Json]] = {"content": []}  # in pieces, as adding to a long text copies it
        self._thought: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._think = ThinkFilter()

    def feed(self, chunk: bytes) -> Iterator[Delta]:
        """Take the next bytes of the stream and yield what a listener may see of them.

        Raises:
            ModelError: An event is an error, or no JSON.
        """
        for event in self._events.feed(chunk):
            self.begun = True
            if event == b"[DONE]":
                self.done = True
                return
            yield from self._add(event)

    def _add(self, event: bytes) -> Iterator[Delta]:
        try:
            chunk = decode(event)
            choices = chunk.get("choices")
        except (ValueError, AttributeError):
            raise refusal(200, {}, event.decode("utf-8", "replace")) from None
        if chunk.get("error") or not isinstance(choices, list | None):
            raise refusal(200, {}, event.decode("utf-8", "replace"))
        if chunk.get("model"):
            self._body["model"] = chunk["model"]
        if usage := chunk.get("usage"):  # one chunk may count what was read, another one what was written
            self._body["usage"] = _dict(self._body.get("usage")) | {k: v for k, v in _dict(usage).items() if v}
        if choices is None and not usage:
            self._foreign = self._foreign or event
        for choice in _dicts(choices):
            index = choice.get("index") or 0
            self._index = index if self._index is None else self._index
            if index != self._index:
                continue
            _check(chunk, choice)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            yield from self._add_delta(_dict(choice.get("delta") or choice.get("message")))

    def body(self) -> dict[str, Any]:
        """Return the whole body.

        Raises:
            ModelError: The stream ended before the answer did.
        """
        if not self.done:
            list(self.feed(b"\n\n"))  # a last event may lack the empty line that ends it
        if self.finish_reason is None:
            if self._foreign and self._index is None:
                raise refusal(200, {}, self._foreign.decode("utf-8", "replace"))
            raise ModelError(
                Failure(FailureKind.truncated_stream, "the stream ended without a finish reason; its half is dropped")
            )
        message = {name: _joined(pieces) for name, pieces in self._message.items()}
        message["content"] = [{"thinking": "".join(self._thought)}, {"text": message["content"]}]
        message["tool_calls"] = [{**call, "arguments": _joined(call["arguments"])} for call in self._calls]
        return {**self._body, "choices": [{"message": message, "finish_reason": self.finish_reason}]}

    def _add_delta(self, delta: Mapping[str, Any]) -> Iterator[Delta]:
        for name, value in delta.items():
            if name in ("content", "refusal"):
                reasoning, text = _texts(value)
                self._message["content"].append(text)
                if reasoning:
                    self._thought.append(reasoning)
                    yield Delta("reasoning", reasoning)
                yield from self._think.feed(text)
            elif name == "tool_calls":
                for part in _dicts(value):
                    yield self._add_call(part)
            elif name == "function_call" and _dict(value) and not delta.get("tool_calls"):
                yield self._add_call({"function": value})
            elif name not in _PLAIN_FIELDS and value is not None:
                _add_piece(self._message.setdefault(name, []), value)
                if name in ("reasoning_content", "reasoning") and isinstance(value, str) and value:
                    yield Delta("reasoning", value)

    def _add_call(self, part: Mapping[str, Any]) -> Delta:
        function = _dict(part.get("function"))
        name, arguments = function.get("name"), function.get("arguments")
        call = self._call_of(part, starts=bool(name), more=bool(arguments))
        call |= {field: value for field, value in part.items() if field not in _CALL_FIELDS}
        call["id"] = call["id"] or part.get("id")
        call["name"] = call["name"] or name  # some servers repeat the whole name: names are never joined
        if arguments is not None:
            _add_piece(call["arguments"], arguments)
        return Delta("call", arguments if isinstance(arguments, str) else "", str(call["name"] or ""))

    def _call_of(self, part: Mapping[str, Any], *, starts: bool, more: bool) -> dict[str, Any]:
        """Find the call that a delta belongs to, or begin one."""
        index, id_ = part.get("index"), part.get("id")
        known: dict[str, Any]
        for known in reversed(self._calls):
            if index is None:  # by id; with neither it goes on with the last one
                belongs = known["id"] == id_ if id_ else not starts
            else:  # an index that comes again with a name is another call if its id is, or if the known one is whole
                other = bool(id_) and known["id"] not in (None, id_)
                belongs = known["index"] == index and not (starts and (other or (more and _is_whole(known))))
            if belongs:
                return known
        call: dict[str, Any] = {"index": index, "id": None, "name": None, "arguments": []}
        self._calls.append(call)
        _refuse_many(self._calls)
        return call


def _is_whole(call: Mapping[str, Any]) -> bool:
    """Whether the arguments of a call are all there."""
    last = next((piece for piece in reversed(call["arguments"]) if piece), None)
    if not (isinstance(last, str) and last.rstrip().endswith("}")):
        return False
    try:
        return isinstance(decode(_joined(call["arguments"]).encode()), dict)
    except ValueError:
        return False


def _add_piece(pieces: list[Json], value: Json) -> None:
    """Add text to text and a list to a list; anything else takes the place of what there was."""
    if pieces and not (isinstance(value, str | list) and type(value) is type(pieces[-1])):
        pieces.clear()
    pieces.append(value)


def _joined(pieces: Sequence[Json]) -> Json:
    if pieces and isinstance(pieces[0], list):
        return [item for piece in pieces for item in piece]
    return pieces[0] if pieces and not isinstance(pieces[0], str) else "".join(pieces)


def _refuse_many(calls: Collection[object]) -> None:
    if len(calls) > _MOST_CALLS:
        raise ModelError(Failure(FailureKind.bad_model_output, f"more than {_MOST_CALLS} tool calls in one answer"))


def read_reply(
    body: Mapping[str, Any],
    request: Request,
    *,
    sent: bytes,
    price: Price | None,
    salvaging: bool = True,
    origin: str = "",
    taken: Collection[str] = (),
) -> Reply:
    """Turn the body of an answer into a reply whose ids are unique and whose text is only text.

    Args:
        body: As `read_body` and `Assembly.body` return it.
        request: What was asked.
        sent: The request on the wire, to estimate its tokens where the server does not count them.
        price: What the model costs.
        salvaging: Take calls that were written as text for calls.
        origin: The endpoint that answered.
        taken: Ids of earlier calls.

    Raises:
        ModelError: A call was required, and none came.
    """
    choice = body["choices"][0]
    message = _dict(choice.get("message"))
    reasoning, content = _texts(message.get("content") or message.get("refusal"))
    thought, content = split_think(content)
    names = {} if request.output else offered_names(request)
    called = _dicts(message.get("tool_calls")) or _dicts([message.get("function_call")])  # its name of 2023
    _refuse_many(called)
    calls = tuple(_call(item, names) for item in called)
    if salvaging and names and not calls:
        content, found = salvage(content, names)
        if request.tool_choice != "none":  # else they are neither calls nor an answer
            calls = tuple(replace(c, name=names[c.name], arguments=_arguments(c.arguments)) for c in found)
    if request.tool_choice == "required" and names and not calls:
        raise ModelError(Failure(FailureKind.bad_model_output, "a tool call was required, and none came"))
    extra = {k: v for k, v in message.items() if k not in _PLAIN_FIELDS and v}
    given = extra.get("reasoning_content") or extra.get("reasoning")
    finish = str(choice.get("finish_reason") or "")
    return Reply(
        content=content,
        calls=_unique(calls, request.key, taken),
        finish_reason=_FINISH.get(finish, finish),
        usage=_usage(body, sent, price, said=bool(content or calls or thought)),
        model=str(body.get("model") or ""),
        reasoning=given if isinstance(given, str) else reasoning or thought,
        extra=extra,
        origin=origin,
    )


def offered_names(request: Request) -> dict[str, str]:
    """Return the offered tools by the names that a model may call them, those on the wire and their own."""
    return {called: tool.name for tool in request.tools for called in (tool.name, wire_name(tool.name))}


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _texts(content: Json) -> tuple[str, str]:
    """Return reasoning and text of a content, which may be a list of parts."""
    if not isinstance(content, list):
        return "", content if isinstance(content, str) else ""
    parts = _dicts(content)
    text = "".join(part["text"] for part in parts if isinstance(part.get("text"), str))
    return "".join(_texts(part.get("thinking"))[1] for part in parts), text


def _call(item: Mapping[str, Any], names: Mapping[str, str]) -> ToolCall:
    function = _dict(item.get("function")) or item
    name = str(function.get("name") or "").strip()
    if name not in names:  # some servers leave a template's marks on it
        name = name.removeprefix("functions.").partition("<|")[0]
    extra = {field: value for field, value in item.items() if field not in _CALL_FIELDS and value}
    return ToolCall(str(item.get("id") or ""), names.get(name, name), _arguments(function.get("arguments")), extra)


def _arguments(value: Json) -> str:
    """Return arguments as JSON text; malformed text stays as the model wrote it."""
    if value is None or value == "":
        return "{}"
    if not isinstance(value, str):
        return encode(value).decode()
    if _LONE.search(value):
        try:
            return encode(decode(value.encode())).decode()
        except ValueError:
            return value
    if value.lstrip().startswith('"'):  # encoded twice?
        try:
            inner = decode(value.encode())
            if isinstance(decode(inner.encode()), dict):
                return str(inner)
        except (ValueError, AttributeError):
            pass
    return value


def _unique(calls: tuple[ToolCall, ...], key: str, taken: Collection[str]) -> tuple[ToolCall, ...]:
    """Give each call an id that is its own within the conversation."""
    unique: dict[str, ToolCall] = {}
    for number, call in enumerate(calls):
        id_, tries = call.id, 0
        while not id_ or id_ in taken or id_ in unique:  # 9 letters and digits: what the strictest server accepts
            id_ = sha256(f"{key}.{number}.{tries}".encode()).hexdigest()[:9]
            tries += 1
        unique[id_] = call if id_ == call.id else replace(call, id=id_)
    return tuple(unique.values())


def _usage(body: Mapping[str, Any], sent: bytes, price: Price | None, *, said: bool) -> Usage:
    usage = _dict(body.get("usage"))
    prompt, completion = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    cached = (
        _count(usage.get("prompt_tokens_details"), "cached_tokens")
        or _count(usage, "prompt_cache_hit_tokens")
        or _count(usage, "cached_tokens")
    )
    estimated = not prompt or (said and not completion)
    if estimated:
        prompt = prompt or estimate_tokens(sent)
        completion = completion or estimate_tokens(encode(body["choices"][0].get("message")))
    cached = min(cached, prompt)
    return Usage(
        calls=1,
        prompt=prompt,
        cached=cached,
        completion=completion,
        reasoning=_count(usage.get("completion_tokens_details"), "reasoning_tokens"),
        cost=price.cost(prompt, cached, completion) if price else None,
        estimated_calls=int(estimated),
    )


def _count(counts: Json, name: str) -> int:
    value = _dict(counts).get(name)
    return int(value) if isinstance(value, int | float) and 0 < value < _ABSURD else 0
