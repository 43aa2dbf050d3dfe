"""Writes the recording of a run from its log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.events import (
    ApprovalAsked,
    ArtifactStored,
    ChangesUndone,
    Event,
    MessageAppended,
    ModelFailed,
    ModelReplied,
    PlanReopened,
    RunEnded,
    RunResumed,
    RunStarted,
    SignalTaken,
    ToolReturned,
    ToolStarted,
    VariableSet,
)
from orchestrator.messages import Message
from orchestrator.models.replay import (
    SCRIPTED,
    SHOWN,
    Asked,
    Further,
    Header,
    Line,
    Observed,
    RecordedCall,
    RecordedReply,
    Recording,
    ToolLine,
    Word,
    is_cut_off,
)

Content = Callable[[ArtifactStored], bytes | None]
"""Returns what a file held after a change; None: that is lost."""


def record(
    events: Iterable[Event],
    *,
    note: str = "",
    project: Path | None = None,
    content: Content | None = None,
) -> Recording:
    """Return the recording of a run.

    Args:
        events: The run's whole log.
        note: For the header.
        project: What inputs are named relative to.
        content: Looks up what tools wrote; None: what came of tool calls is not recorded.

    Raises:
        ConfigError: A person let the run go on in a way that no replay can repeat.
    """
    recorder = _Recorder(project, content)
    for event in events:
        recorder.take(event)
    return recorder.recording(note)


class _Recorder:
    """Folds the events of a run."""

    def __init__(self, project: Path | None, content: Content | None) -> None:
        self.project, self.content = project, content
        self.started: RunStarted | None = None
        self.answers: dict[str, ModelReplied | ModelFailed] = {}
        """The last one to each call: one that failed may have been made again."""
        self.said: dict[str, Message] = {}
        self.seen: defaultdict[str, list[str]] = defaultdict(list)
        """By path: observations since the last assistant message."""
        self.observed: dict[str, str] = {}
        self.called: dict[str, ToolStarted | ApprovalAsked] = {}
        """As the model made the call, where a person changed it."""
        self.changed: defaultdict[str, list[ArtifactStored | VariableSet]] = defaultdict(list)
        """By path: what its tools changed since the last one returned."""
        self.returned: dict[str, tuple[ToolReturned, list[ArtifactStored | VariableSet]]] = {}
        self.read: dict[str, Message] = {}
        self.words: dict[str, Word] = {}
        self.further: list[Further] = []
        self.ended: RunEnded | None = None
        """The last end."""
        self.cut_off = ""
        """Why no replay comes to where the run stood at its last end."""

    def take(self, event: Event) -> None:
        """Take the next event in."""
        match event:
            case RunStarted():
                self.started = event
            case ModelReplied():
                self.answers[event.key] = event
                if event.key.endswith(":model"):
                    self.observed[event.key] = "\n\n".join(self.seen[event.path])
            case ModelFailed():
                self.answers[event.key] = event
            case MessageAppended() if event.message.role == "assistant":
                self.said[event.key] = event.message
                self.seen[event.path].clear()
            case MessageAppended() if event.message.role in ("tool", "data"):
                self.seen[event.path].append(event.message.content)
                self.read[event.key] = event.message
            case ToolStarted() | ApprovalAsked():
                self.called.setdefault(event.key, event)
            case ArtifactStored() | VariableSet():
                self.changed[event.path].append(event)
            case ToolReturned():
                self.returned[event.key] = event, self.changed.pop(event.path, [])
            case SignalTaken(signal="approve" | "deny" | "answer" as word):
                self.words[event.key] = Word(key=event.key, word=word, by=event.by, data=event.data)
            case RunEnded(result=result):
                self.ended = event
                self.cut_off = f"stopped ({result.stop_reason})" if is_cut_off(result) else ""
            case ChangesUndone() if self.ended:
                self.cut_off = "undone"
            case RunResumed():
                self.ended = None
                if event.message is not None:
                    self._go_on(event, Further(further=event.message))
            case PlanReopened():
                self._go_on(event, Further(further=None, again=event.ids))

    def _go_on(self, event: Event, further: Further) -> None:
        """Note how the run went on after its end, which a replay comes to only where nothing was cut off there."""
        if self.cut_off:
            raise ConfigError(
                f"run {event.run} cannot be recorded: with event {event.seq} it went on from where it was "
                f"{self.cut_off}, and no replay comes to that point"
            )
        self.further.append(further)

    def recording(self, note: str) -> Recording:
        """Return what was taken in as a recording."""
        model = next((answer.model for answer in self.answers.values() if isinstance(answer, ModelReplied)), "")
        started = self.started
        header = Header(
            scenario=(started and started.scenario) or "",
            model=model,
            scripted=model == SCRIPTED,
            window=max(started.windows.values(), default=128_000) if started else 128_000,
            owned=bool(started and (started.session or started.user)),
            note=note,
            asked=self._asked(started) if started and not started.scenario else None,
        )
        lines = {key: self._line(answer) for key, answer in self.answers.items()}
        tools = {key: self._tool_line(key) for key in self.returned if key in self.called} if self.content else {}
        return Recording(header, lines, tools, self.words, self.further)

    def _asked(self, started: RunStarted) -> Asked:
        order = started.order
        return Asked(
            goal=self._relative(started.goal),
            root=started.root,
            inputs=tuple(self._in_project(name) for name in started.inputs),
            params=started.params,
            plan=order.get("plan"),
            answer=order.get("answer"),
            output=order.get("output"),
            roles=order.get("roles"),
            limits=started.limits,
        )

    def _in_project(self, name: str) -> str:
        path = Path(name)
        inside = self.project is not None and path.is_relative_to(self.project)
        return str(path.relative_to(self.project)) if self.project and inside else name

    def _line(self, replied: ModelReplied | ModelFailed) -> Line:
        if isinstance(replied, ModelFailed):
            return Line(key=replied.key, failure=replied.failure)
        message = self.said.get(replied.key, Message("assistant", replied.content))
        calls = (RecordedCall(id=c.id, name=c.name, arguments=self._relative(c.arguments)) for c in message.calls)
        reply = RecordedReply(
            content=self._relative(message.content),
            calls=tuple(calls),
            finish_reason=replied.finish_reason,
            usage=replied.usage,
        )
        told = self._is_told_of_others(replied.key)
        text = self._placeless(self.observed.get(replied.key, ""))[:SHOWN]
        return Line(
            key=replied.key,
            observed=Observed(sha256=replied.observed, text=text) if replied.observed and not told else None,
            reply=reply,
        )

    def _is_told_of_others(self, key: str) -> bool:
        """Whether the root loop's first reply comes after what other runs left: a replay is given none of that."""
        if not self.started or not (self.started.session or self.started.user) or self.started.order.get("plan"):
            return False
        return "/" not in key and key.endswith(":1:model")

    def _tool_line(self, key: str) -> ToolLine:
        returned, changed = self.returned[key]
        called, read = self.called[key], self.read.get(key, Message("tool"))
        files: dict[str, bytes | None] = {}
        for change in changed:
            if isinstance(change, ArtifactStored):
                data = self.content(change) if self.content and change.size is not None else None
                if data is not None or change.size is None:
                    files[change.file] = data
        return ToolLine(
            key=key,
            tool=called.name,
            arguments=self._relative(called.arguments),
            text=self._placeless(read.content),
            ok=returned.ok,
            value=returned.value,
            final=returned.final,
            counted=returned.counted,
            failure=returned.failure,
            untrusted=read.untrusted,
            files=files,
            variables={c.name: c.value for c in changed if isinstance(c, VariableSet)},
        )

    @property
    def _workspace(self) -> str:
        return self.started.workspace if self.started else ""

    def _placeless(self, text: str) -> str:
        """Do as `Workspace.without_path` does, so that what is shown is what was hashed."""
        return text.replace(self._workspace, "/workspace") if self._workspace else text

    def _relative(self, text: str) -> str:
        """Name the files of the workspace relative to it."""
        place = self._workspace
        return text.replace(f"{place}/", "").replace(place, ".") if place else text
