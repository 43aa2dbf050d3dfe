"""Tools: what they are, and `@tool`, which makes one from a typed function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.messages import Json, ToolSpec

if TYPE_CHECKING:
    from orchestrator.workspace import LoopWorkspace

Effect = Literal["read", "idempotent", "once"]
"""What repeating a call does: `read` changes nothing, `idempotent` repeats harmlessly, `once` must not be repeated."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool gives back when a plain value does not say enough."""

    content: str
    """What the model reads."""
    value: Json = None
    """The same for programs: `${outcomes.<id>.value}` of a tool subtask."""
    error: bool = False
    """The call failed; the content says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What a running tool may know and do; injected into a parameter annotated with this class."""

    run_id: str
    path: str
    """Path of the calling loop."""
    key: str
    """Idempotency key: the same when the same call is made again after a crash."""
    workspace: LoopWorkspace
    deps: Any
    """Whatever the program gave to `Orchestrator(deps=…)`."""
    variables: MutableMapping[str, Json]
    """Shared by all loops of the run; setting one is an event."""
    read_output: Callable[[str], str]
    """Return the whole text behind a handle `out:<key>`; raises `ToolError`."""
    report: Callable[[str], None] = field(default=lambda text: None)

    async def progress(self, text: str) -> None:
        """Tell watchers how far the call is."""
        self.report(text)

    async def artifact(self, name: str, data: bytes | str) -> None:
        """Write a file of the result into the workspace."""
        self.workspace.write(name, data.encode() if isinstance(data, str) else data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Something a role may call."""

    name: str
    """As whitelists name it: letters, digits, `_` and `-`, at most 64."""
    description: str
    """What it does, when to use it, what it returns."""
    parameters: Mapping[str, Json]
    """JSON Schema of the arguments, an object."""
    invoke: Callable[[dict[str, Any], ToolContext], Awaitable[Any]]
    """Run with validated arguments."""
    validate: Callable[[dict[str, Json]], dict[str, Any]]
    """Turn JSON arguments into typed ones; raises `pydantic.ValidationError`."""
    effect: Effect = "once"
    timeout: float | None = 30.0
    """Seconds; None: the tool has limits of its own."""
    retries: int = 0
    """How often a raised error is tried again (never for `once`)."""
    cut: bool = True
    """Cut a long observation; False: the tool sees to it itself."""
    untrusted: bool = False
    """What it returns may be written by strangers."""
    destinations: tuple[str, ...] = ()
    """Names of the arguments that say where data goes."""
    process: bool = False
    """Run a blocking function in a process of its own, which can be killed."""
    verify: Callable[[str], Awaitable[Any]] | None = None
    """Asked with the idempotency key whether an interrupted `once` call took effect."""
    counted: bool = True
    """Whether repetition and failure counters see it."""
    together: Callable[[Sequence[dict[str, Any]], ToolContext], Awaitable[Sequence[ToolResult]]] | None = None
    """Runs a stretch of neighbouring calls of this tool as one."""
    source: str = ""
    """File it comes from, for messages."""

    def spec(self) -> ToolSpec:
        """Return what a model sees."""
        return ToolSpec(self.name, self.description, self.parameters)
