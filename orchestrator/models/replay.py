"""Recordings: what models, people (and tools) said in a run, written from its log; and what answers from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import orjson
from pydantic import BeforeValidator, ConfigDict, ValidationError, model_validator

from orchestrator.errors import ConfigError, ModelError, ReplayMiss, nearest
from orchestrator.failure import RULES, Failure, FailureKind
from orchestrator.messages import Delta, Reply, Request, ToolCall, Usage
from orchestrator.models.tokens import default_output
from orchestrator.results import RunResult
from orchestrator.strict import Strict

SCRIPTED = "scripted"
"""Who said the replies of a recording that was written by hand."""
SHOWN = 2000
"""Characters of an observation that a recording keeps, to show what differs; the hash covers all of it."""
_OWN = re.compile(r"(.*):(\d+):(summary|rank)\.(\d+)")
"""Path, turn, kind and number of a question of the engine's own."""
_AROUND = 60
"""Characters shown before and after the first difference."""


def observed_hash(text: str) -> str:
    """Return what a recording compares of an observation."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _json_text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def is_cut_off(result: RunResult) -> bool:
    """Whether something outside stopped a run: an outage, or a person. Its replay does not stop there."""
    outage = result.stop_reason == "model_unavailable" and result.failure and RULES[result.failure.kind].ends == "run"
    return bool(outage) or result.status == "cancelled"


class _Recorded(Strict):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


class Asked(_Recorded):
    """What the run was asked, so that it can be asked again."""

    goal: str
    root: str
    inputs: tuple[str, ...] = ()
    """Relative to the project where they are in it."""
    params: dict[str, Any] = {}
    plan: dict[str, Any] | None = None
    answer: str | None = None
    output: dict[str, Any] | None = None
    roles: tuple[str, ...] | None = None
    limits: dict[str, Any] = {}
    """So that a replay sums up where the run did."""


class Header(_Recorded):
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
    owned: bool = False
    """The run had a user or a session, and so the tools of memories."""
    note: str = ""
    asked: Asked | None = None
    """None: the scenario says it."""


class Observed(_Recorded):
    """What the loop had seen when the reply was recorded."""

    sha256: str
    text: str = ""
    """Its first 2,000 characters."""


class RecordedCall(_Recorded):
    """A tool call of a recorded reply."""

    id: str
    name: str
    arguments: Annotated[str, BeforeValidator(_json_text)]
    """JSON text; may be written as an object."""


class RecordedReply(_Recorded):
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


class Line(_Recorded):
    """One recorded model call."""

    key: str
    observed: Observed | None = None
    """None: the reply is right whatever was observed."""
    reply: RecordedReply | None = None
    failure: Failure | None = None
    """Why there was no reply."""

    @model_validator(mode="after")
    def _says_what_came(self) -> Self:
        if (self.reply is None) == (self.failure is None):
            raise ValueError("needs a reply or a failure")
        return self


class ToolLine(_Recorded):
    """What came of one recorded tool call, and what it changed in the run. Images are not kept."""

    key: str
    tool: str
    arguments: Annotated[str, BeforeValidator(_json_text)]
    """JSON text; may be written as an object."""
    text: str
    """As the model read it."""
    ok: bool = True
    value: Any = None
    final: bool = False
    counted: bool = True
    failure: Failure | None = None
    untrusted: tuple[str, ...] = ()
    files: dict[str, bytes | None] = {}
    """What it wrote, in base64; null: it deleted the file. What was replaced later in the run may be left out."""
    variables: dict[str, Any] = {}
    """What it set; null: it deleted the variable."""


class Word(_Recorded):
    """What a person said of a call or a result that waited."""

    key: str
    word: Literal["approve", "deny", "answer"]
    by: str
    data: dict[str, Any] = {}


class Further(_Recorded):
    """How a person let the run go on after it had ended: with a message, or by trying subtasks again."""

    further: str | None
    """The message."""
    again: tuple[str, ...] = ()
    """Ids of the subtasks."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The replies of one run by key, what people said, and what came of its tool calls where that was recorded, too."""

    header: Header
    lines: Mapping[str, Line] = field(default_factory=dict)
    tools: Mapping[str, ToolLine] = field(default_factory=dict)
    words: Mapping[str, Word] = field(default_factory=dict)
    """In the order in which they were acted on."""
    further: Sequence[Further] = ()
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
        further: list[Further] = []
        keyed: dict[type[_Keyed], dict[str, Any]] = {Line: {}, ToolLine: {}, Word: {}}
        for number, text in enumerate(texts, 1):
            if not text.strip():
                continue
            if header is None:
                header = _read(Header, text, path, number)
                continue
            line = _read(_kind(text), text, path, number)
            if isinstance(line, Further):
                further.append(line)
            elif line.key in (known := keyed[type(line)]):
                raise ConfigError(f"the key {line.key!r} is there twice", file=path, line=number)
            else:
                known[line.key] = line
        if header is None:
            raise ConfigError("the recording is empty; its first line is the header", file=path)
        return cls(header, keyed[Line], keyed[ToolLine], keyed[Word], further, str(path))

    def dump(self) -> str:
        """Return the recording as JSON lines."""
        lines = [self.header.model_dump(mode="json", exclude={"asked"} if self.header.asked is None else None)]
        said = (*self.lines.values(), *self.tools.values(), *self.words.values(), *self.further)
        lines += [line.model_dump(mode="json", exclude_defaults=True) for line in said]
        return "".join(orjson.dumps(line).decode() + "\n" for line in lines)

    def came_of(self, key: str, tool: str, arguments: str) -> ToolLine:
        """Return what came of a tool call.

        Raises:
            ReplayMiss: The recording has no such call, or another one in its place.
        """
        line = self.tools.get(key)
        if line is None:
            how = nearest(key, self.tools) if self.tools else "; it was made without `ori record --tools`"
            raise self.miss(f"it has no result of a tool for {key!r}{how}")
        if line.tool != tool:
            raise self.miss(f"at {key!r} another tool was called: recorded {line.tool!r}, called {tool!r}")
        if _json(line.arguments) != _json(arguments):
            raise self.miss(f"at {key!r} {_difference(line.arguments, arguments, 'called with')}")
        return line

    def miss(self, why: str) -> ReplayMiss:
        """Return the error that says what does not fit, and how to record anew."""
        anew = "run it with --live, then `ori record` that run"
        if self.header.scripted:
            anew += "; or edit the line by hand"
        text = f"the recording {self.file or self.header.scenario} does not fit: {why}. To record anew: {anew}."
        return ReplayMiss(Failure(FailureKind.replay_miss, text))


def _json(text: str) -> Any:
    try:
        return orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return text


_Keyed = Line | ToolLine | Word


def _kind(text: str) -> type[_Keyed | Further]:
    """Return what a line is, by the field that only its kind has."""
    data = _json(text)
    named: dict[str, type[_Keyed | Further]] = {"tool": ToolLine, "word": Word, "further": Further}
    return next((kind for name, kind in named.items() if isinstance(data, dict) and name in data), Line)


_Kind = TypeVar("_Kind", bound=_Recorded)


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
        tools: Also what comes of tool calls is as it was recorded; no tool runs.
    """

    replayed = True
    """Its replies cost nothing."""

    def __init__(self, recording: Recording, *, tools: bool = False) -> None:
        self.name = recording.header.model
        self.window = recording.header.window
        self.max_output = default_output(self.window)
        self.recording, self.tools = recording, tools

    @property
    def file(self) -> str:
        """Where the recording was read from."""
        return self.recording.file

    async def generate(self, request: Request, on_delta: Callable[[Delta], None] | None = None) -> Reply:
        """Answer with the recorded reply.

        Args:
            request: Found by its key (a summary by the nearest turn); its `observed` must be what was observed then.
            on_delta: Called once, with the whole text.

        Raises:
            ModelError: The recorded call failed.
            ReplayMiss: The recording has no reply, or the conversation went another way.
        """
        line = self.recording.lines.get(request.key) or self._nearest(request.key)
        if line is None:
            hint = nearest(request.key, self.recording.lines)
            raise self.recording.miss(f"it has no reply for {request.key!r}{hint}")
        if line.observed is not None and line.observed.sha256 != observed_hash(request.observed):
            raise self.recording.miss(f"at {request.key!r} {_difference(line.observed.text, request.observed)}")
        if line.reply is None:
            assert line.failure is not None
            raise ModelError(line.failure)
        reply = line.reply.reply(self.name)
        if on_delta and reply.content:
            on_delta(Delta("text", reply.content))
        return reply

    async def aclose(self) -> None:
        """Do nothing: a recording holds no connections."""

    def _nearest(self, key: str) -> Line | None:
        """Return the reply to the engine's own question of this kind that was asked nearest to this turn.

        After which turn a loop is compacted depends on what its tools weigh, and which of them this machine has.
        """
        asked = _OWN.fullmatch(key)
        if asked is None:
            return None
        path, turn, kind, number = asked.groups()
        known = ((_OWN.fullmatch(other), line) for other, line in self.recording.lines.items())
        alike = [
            (it[4] != number, abs(int(it[2]) - int(turn)), line)
            for it, line in known
            if it and it[1] == path and it[3] == kind
        ]
        return min(alike, key=lambda one: one[:2])[2] if alike else None


def _difference(recorded: str, observed: str, what: str = "observed") -> str:
    """Show two texts around the place where they part."""
    shorter = min(len(recorded), len(observed))
    same = next((i for i in range(shorter) if recorded[i] != observed[i]), shorter)
    if same == SHOWN:
        return f"something else was {what} than recorded, after its first {same} characters"
    start, end = max(0, same - _AROUND), same + _AROUND
    return (
        f"something else was {what} than recorded, from character {same} on: "
        f"recorded {recorded[start:end]!r}, {what} {observed[start:end]!r}"
    )
