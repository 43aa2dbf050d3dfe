"""Recordings: a run's replies by key, written from its log, and the model that answers from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from orchestrator.errors import ConfigError, ReplayMiss, nearest
from orchestrator.events import Event, MessageAppended, ModelReplied, RunStarted
from orchestrator.failure import Failure, FailureKind
from orchestrator.messages import Delta, Message, Reply, Request, ToolCall, Usage
from orchestrator.models.tokens import default_output

SCRIPTED = "scripted"
"""Who said the replies of a recording that was written by hand."""
_SHOWN = 2000
"""Characters of an observation that a recording keeps, to show what differs; the hash covers all of it."""
_AROUND = 60
"""Characters shown before and after the first difference."""


def observed_hash(text: str) -> str:
    """Return what a recording compares of an observation."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _json_text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Header(_Strict):
    """The first line of a recording."""

    recording: Literal[1] = 1
    """Version of the format."""
    scenario: str
    model: str
    """Who said the replies."""
    scripted: bool = False
    """Written by hand, not said by a model."""
    window: int = 128_000
    """Tokens of the model's window, so that a replay compacts where the run did."""
    note: str = ""


class Observed(_Strict):
    """What the loop had seen when the reply was recorded."""

    sha256: str
    text: str = ""
    """Its first 2,000 characters."""


class RecordedCall(_Strict):
    """A tool call of a recorded reply."""

    id: str
    name: str
    arguments: Annotated[str, BeforeValidator(_json_text)]
    """JSON text; may be written as an object."""


class RecordedReply(_Strict):
    """The part of a `Reply` that a replay repeats."""

    content: str = ""
    calls: tuple[RecordedCall, ...] = ()
    finish_reason: str = ""
    """Left out: the one that fits."""
    usage: Usage = Usage(calls=1)

    def reply(self, model: str) -> Reply:
        """Return it as the model's reply."""
        calls = tuple(ToolCall(call.id, call.name, call.arguments) for call in self.calls)
        finish_reason = self.finish_reason or ("tool_calls" if calls else "stop")
        return Reply(self.content, calls, finish_reason, self.usage, model)


class Line(_Strict):
    """One recorded model call."""

    key: str
    observed: Observed | None = None
    """None: the reply is right whatever was observed."""
    reply: RecordedReply


@dataclass(frozen=True, slots=True)
class Recording:
    """The replies of one run by key."""

    header: Header
    lines: Mapping[str, Line] = field(default_factory=dict)
    file: str = ""
    """Where it was read from."""

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """Read a recording.

        Raises:
            ConfigError: There is no such file, or a line is none of a recording's.
        """
        try:
            texts = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the recording cannot be read: {error}", file=path) from None
        header: Header | None = None
        lines: dict[str, Line] = {}
        for number, text in enumerate(texts, 1):
            if not text.strip():
                continue
            if header is None:
                header = _read(Header, text, path, number)
                continue
            line = _read(Line, text, path, number)
            if line.key in lines:
                raise ConfigError(f"the key {line.key!r} is there twice", file=path, line=number)
            lines[line.key] = line
        if header is None:
            raise ConfigError("the recording is empty; its first line is the header", file=path)
        return cls(header, lines, str(path))

    def dump(self) -> str:
        """Return the recording as JSON lines."""
        lines = [self.header.model_dump(mode="json")]
        lines += [line.model_dump(mode="json", exclude_defaults=True) for line in self.lines.values()]
        return "".join(orjson.dumps(line).decode() + "\n" for line in lines)


_Kind = TypeVar("_Kind", Header, Line)


def _read(kind: type[_Kind], text: str, path: str | Path, number: int) -> _Kind:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(map(str, fault["loc"]))
        raise ConfigError(f"{place}: {fault['msg']}" if place else fault["msg"], file=path, line=number) from None


class ReplayModel:
    """A model that answers from a recording, by key; offline, and never with a reply to something else.

    Args:
        recording: What it knows.
    """

    replayed = True
    """Its replies cost nothing."""

    def __init__(self, recording: Recording) -> None:
        self.name = recording.header.model
        self.window = recording.header.window
        self.max_output = default_output(self.window)
        self.recording = recording

    @property
    def file(self) -> str:
        """Where the recording was read from."""
        return self.recording.file

    async def generate(self, request: Request, on_delta: Callable[[Delta], None] | None = None) -> Reply:
        """Answer with the recorded reply.

        Args:
            request: Found by its key; its `observed` must be what was observed then.
            on_delta: Called once, with the whole text.

        Raises:
            ReplayMiss: The recording has no reply, or the conversation went another way.
        """
        line = self.recording.lines.get(request.key)
        if line is None:
            hint = nearest(request.key, self.recording.lines)
            raise self._miss(f"it has no reply for {request.key!r}{hint}")
        if line.observed is not None and line.observed.sha256 != observed_hash(request.observed):
            raise self._miss(f"at {request.key!r} {_difference(line.observed.text, request.observed)}")
        reply = line.reply.reply(self.name)
        if on_delta and reply.content:
            on_delta(Delta("text", reply.content))
        return reply

    async def aclose(self) -> None:
        """Do nothing: a recording holds no connections."""

    def _miss(self, why: str) -> ReplayMiss:
        recording = f"recording {self.recording.file or self.recording.header.scenario}"
        anew = "run it with --live, then `ori record` that run"
        if self.recording.header.scripted:
            anew += "; or edit the line by hand"
        return ReplayMiss(
            Failure(FailureKind.invalid_request, f"the {recording} does not fit: {why}. To record anew: {anew}.")
        )


def _difference(recorded: str, observed: str) -> str:
    """Show two observations around the place where they part."""
    shorter = min(len(recorded), len(observed))
    same = next((i for i in range(shorter) if recorded[i] != observed[i]), shorter)
    if same == _SHOWN:
        return f"something else was observed than recorded, after its first {same} characters"
    start, end = max(0, same - _AROUND), same + _AROUND
    return (
        f"something else was observed than recorded, from character {same} on: "
        f"recorded {recorded[start:end]!r}, observed {observed[start:end]!r}"
    )


def record(events: Iterable[Event], *, scenario: str = "", note: str = "") -> Recording:
    """Return the recording of a run.

    Args:
        events: The run's whole log.
        scenario: Its name, where the log does not say it.
        note: For the header.
    """
    workspace, model, window = "", "", 0
    replies: dict[str, ModelReplied] = {}
    said: dict[str, Message] = {}
    seen: dict[str, list[str]] = defaultdict(list)  # by path: observations since the last assistant message
    observed: dict[str, str] = {}
    for event in events:
        match event:
            case RunStarted():
                workspace, scenario = event.workspace, event.scenario or scenario
                window = max(event.windows.values(), default=128_000)
            case ModelReplied():
                replies[event.key], model = event, model or event.model
                observed[event.key] = "\n\n".join(seen[event.path])
            case MessageAppended() if event.message.role == "assistant":
                said[event.key] = event.message
                seen[event.path].clear()
            case MessageAppended() if event.message.role in ("tool", "data"):
                seen[event.path].append(event.message.content)
    lines = {}
    for key, replied in replies.items():
        # as `Workspace.without_path` does, so that what is shown is what was hashed
        text = observed[key].replace(workspace, "/workspace") if workspace else observed[key]
        lines[key] = _line(replied, said.get(key, Message("assistant", replied.content)), text)
    scripted = model == SCRIPTED
    return Recording(Header(scenario=scenario, model=model, scripted=scripted, window=window, note=note), lines)


def _line(replied: ModelReplied, message: Message, observed: str) -> Line:
    reply = RecordedReply(
        content=message.content,
        calls=tuple(RecordedCall(id=call.id, name=call.name, arguments=call.arguments) for call in message.calls),
        finish_reason=replied.finish_reason,
        usage=replied.usage,
    )
    seen = Observed(sha256=replied.observed, text=observed[:_SHOWN]) if replied.observed else None
    return Line(key=replied.key, observed=seen, reply=reply)
