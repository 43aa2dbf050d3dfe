"""Tools: what they are, and `@tool`, which makes one from a typed function."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Awaitable, Callable, Hashable, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, get_args, overload

from orchestrator.child import Reference
from orchestrator.errors import ConfigError, nearest, refuse_keywords
from orchestrator.memory import Recollection
from orchestrator.resources import Resources
from orchestrator.sandbox.guard import AddressGuard
from orchestrator.text.jsonable import to_json, well_formed
from orchestrator.threads import ThreadPool

if TYPE_CHECKING:  # importing this module loads no pydantic: `import orchestrator` needs it
    from pydantic import BaseModel

    from orchestrator.messages import Image, Json, ToolSpec
    from orchestrator.signature import Signature
    from orchestrator.workspace.loop import LoopWorkspace

T = TypeVar("T")
Scope = Literal["loop", "run", "orchestrator"]
"""How long something that a tool opened stays open."""
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
    images: tuple[Image, ...] = ()
    """What a model that sees images is shown beside the content."""
    untrusted: str | tuple[str, ...] | None = None
    """Where the content comes from, when strangers may have written it: a URL, a server."""
    final: bool = False
    """The loop that made the call ends here, with this value. Never set beside `error`."""


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
    answer: str = ""
    """What a person said, to a tool that asks."""
    threads: ThreadPool = field(default_factory=ThreadPool)
    """Where blocking functions run: `await ctx.threads.run(fn, …)`; one for all runs of a program."""
    memory: Recollection = Recollection()
    """What outlives the run."""
    untrusted: tuple[str, ...] = ()
    """Where the calling loop read what strangers may have written."""
    settings: Any = None
    """Of the tool's toolset: what `ori.yaml` says under `tools:`, as an instance of `Toolset.settings`."""
    scopes: Mapping[Scope, Resources] = field(default_factory=dict)
    network: AddressGuard = field(default_factory=AddressGuard)
    """Which addresses may be reached: connect only to what `await ctx.network.resolve(host, port)` returns."""
    report: Callable[[str], None] = field(default=lambda text: None)

    async def keep(self, key: Hashable, open: Callable[[], AbstractAsyncContextManager[T]], scope: Scope = "run") -> T:
        """Return what the scope keeps open under a key; the first call's `open` makes it.

        It is entered and left in a task of its own, and closed with its scope: the calling loop, the run, or the
        orchestrator (in this event loop).
        """
        return await self.scopes[scope].get(key, open)

    def kept(self, key: Hashable, scope: Scope = "run") -> Any:
        """Return what is kept under a key, or None where nothing is open."""
        return self.scopes[scope].held(key)

    async def drop(self, key: Hashable, scope: Scope = "run") -> None:
        """Close what is kept under a key, so that the next `keep` opens it anew."""
        await self.scopes[scope].drop(key)

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
    """As whitelists name it: letters of any language, digits, `_` and `-`, at most 64."""
    description: str
    """What it does, when to use it, what it returns."""
    parameters: Mapping[str, Json]
    """JSON Schema of the arguments, an object."""
    takes: Mapping[str, Json] | None = None
    """JSON Schema that arguments are fitted to, where the tool itself says what else is wrong; None: `parameters`."""
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
    goes_to: Callable[[ToolContext], str] | None = None
    """Says where else a call sends data, as to the page that is open; an empty text: unknown."""
    outward: bool = True
    """It may reach somebody outside the run; False: it changes only the workspace and the run itself."""
    approval: bool = False
    """A person allows each call."""
    asks: bool = False
    """Its arguments are a question to a person; it runs with the answer as `ctx.answer`."""
    remembers: bool = False
    """It keeps or finds memories: only runs with a user or a session are offered it."""
    process: bool = False
    """Run a blocking function in a process of its own, which can be killed."""
    verify: Callable[[str], Awaitable[Any]] | None = None
    """Asked with the idempotency key whether an interrupted `once` call took effect."""
    counted: bool = True
    """Whether repetition and failure counters see it."""
    together: Callable[[Sequence[dict[str, Any]], ToolContext], Awaitable[Sequence[ToolResult]]] | None = None
    """Runs a stretch of neighbouring calls of this tool as one."""
    digest: Callable[[int], str] | None = None
    """Says in about so many tokens what came of all calls so far; stands for them when they leave the conversation."""
    unwrap: Callable[[dict[str, Any]], tuple[str, str]] | None = None
    """Returns name and arguments (JSON) of the call that stands in its arguments: that one is made, never its own."""
    misused: Callable[[str], str] | None = None
    """Told what was wrong with arguments that could not be bound; returns what the model reads."""
    title: str = ""
    """What people call it, where that is another name."""
    current: Callable[[], Awaitable[Tool]] | None = None
    """Returns what it is by now, where it comes from somebody who may change it; a person is asked about a change."""
    settings: Any = None
    """What `ori.yaml` says of its toolset."""
    missing: Callable[[], str] = field(default=lambda: "")
    """Says why it cannot be offered here, and what mends that; an empty text: it can."""
    source: str = ""
    """File it comes from, for messages."""
    function: Callable[..., Any] | None = None
    """What `@tool` was put on; calling the tool calls it."""

    @property
    def blocking(self) -> bool:
        """Whether it runs in a thread, where it may go on after its time is up."""
        return self.function is not None and not self.process and not inspect.iscoroutinefunction(self.function)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The plain function, for `inspect`."""
        if self.function is None:
            raise AttributeError(f"the tool {self.name!r} was not made from a function")
        return self.function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the plain function, as in a test: `await query_orders(day)`."""
        return self.__wrapped__(*args, **kwargs)

    def terms(self) -> dict[str, Json]:
        """Return what models and people go by when they use it."""
        parameters = dict(self.parameters)
        return {
            "description": self.description,
            "parameters": parameters,
            "effect": self.effect,
            "untrusted": self.untrusted,
        }

    def spec(self) -> ToolSpec:
        """Return what a model sees."""
        from orchestrator.messages import ToolSpec

        return ToolSpec(self.name, self.description, self.parameters)


@dataclass(frozen=True, slots=True)
class Toolset:
    """What the tools of one file have in common; the file holds it under the name `toolset`."""

    settings: type[BaseModel] | None = None
    """What `ori.yaml` may say under `tools:` and the file's name; its defaults count where that says nothing."""
    missing: Callable[[Any], str] = lambda settings: ""
    """Told the settings; says why the tools cannot be offered here, and what mends that. Quick: asked for each loop."""


class ToolOptions(TypedDict, total=False):
    """What `@tool` can be told: fields of `Tool`."""

    effect: Effect
    timeout: float | None
    retries: int
    cut: bool
    untrusted: bool
    destinations: Sequence[str]
    goes_to: Callable[[ToolContext], str] | None
    outward: bool
    approval: bool
    asks: bool
    counted: bool
    remembers: bool
    process: bool
    verify: Callable[[str], Awaitable[Any]] | None


@overload
def tool(fn: Callable[..., Any], /) -> Tool: ...
@overload
def tool(*, name: str | None = None, **options: Unpack[ToolOptions]) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    fn: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Unpack[ToolOptions]
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a typed function, sync or async: `@tool`, or `@tool(effect="read", timeout=60)`.

    The docstring says to the model what the function does, when to use it, its parameters, what it returns. A parameter
    annotated `ToolContext` is filled in by the engine. A sync function runs in a thread, so it may block.

    Args:
        fn: The function.
        name: What the model calls it; the function's name if left out.
        **options: See the fields of `Tool`.

    Raises:
        ConfigError: The function or an option does not make a tool.
        TypeError: There is no such option.
    """
    from orchestrator.signature import read_signature

    names = sys._getframe(1).f_locals  # types that are defined beside the function, inside another one
    refuse_keywords(options, ToolOptions.__annotations__)
    given: dict[str, Any] = {**options, "destinations": tuple(options.get("destinations", ()))}

    def decorate(function: Callable[..., Any]) -> Tool:
        signature = read_signature(function, ToolContext, names)
        made = Tool(
            name=name or signature.name,
            description=signature.description,
            parameters=signature.parameters,
            invoke=_invoker(function, signature.injected, in_process=options.get("process", False)),
            validate=signature.validate,
            source=inspect.getsourcefile(inspect.unwrap(function)) or "",
            function=function,
            **given,
        )
        _check(made, signature)
        return made

    return decorate(fn) if fn else decorate


_NAME = re.compile(r"[\w-]{1,64}")
RESERVED = frozenset({"delegate", "submit_result", "find_tools", "call_tool"})
"""Tools that the engine itself adds to a loop."""


def _check(made: Tool, signature: Signature) -> None:
    """Raise `ConfigError` for what a tool cannot be."""
    where = f"tool {made.name!r}"
    if not _NAME.fullmatch(made.name):
        raise ConfigError(f"{where}: a name has 1 to 64 letters, digits, '_' or '-'; give another one: @tool(name=…)")
    if made.name in RESERVED:
        raise ConfigError(f"{where}: the engine has a tool of this name; give another one: @tool(name=…)")
    if made.effect not in get_args(Effect):
        raise ConfigError(f"{where}: no effect is called {made.effect!r}{nearest(str(made.effect), get_args(Effect))}")
    if made.timeout is not None and made.timeout <= 0:
        raise ConfigError(f"{where}: a timeout of {made.timeout} leaves no time; give seconds, or None for no limit")
    if made.retries and made.effect == "once":
        raise ConfigError(f"{where}: retries={made.retries} would repeat it, so its effect must be read or idempotent")
    for unknown in set(made.destinations) - signature.parameters["properties"].keys():
        hint = nearest(unknown, signature.parameters["properties"])
        raise ConfigError(f"{where}: destinations names {unknown!r}, which is no parameter{hint}")
    function = inspect.unwrap(made.__wrapped__)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"{where}: a tool returns one value; return a list instead of yielding")
    if made.process:
        if inspect.iscoroutinefunction(function) or signature.injected:
            raise ConfigError(f"{where}: process=True is for a plain function without a ToolContext")
        Reference.to(made.__wrapped__)


def _invoker(
    function: Callable[..., Any], injected: Sequence[str], *, in_process: bool
) -> Callable[[dict[str, Any], ToolContext], Awaitable[Any]]:
    """Return how the engine runs a function: on the event loop, in a thread, or in a process."""
    is_async = inspect.iscoroutinefunction(function)

    async def invoke(arguments: dict[str, Any], context: ToolContext) -> Any:
        arguments = {**arguments, **dict.fromkeys(injected, context)}
        if is_async:
            return await function(**arguments)
        run = context.threads.run_in_process if in_process else context.threads.run
        value = await run(function, **arguments)
        return await value if inspect.isawaitable(value) else value  # a decorator may hide that it is async

    return invoke


def to_result(value: object) -> ToolResult:
    """Turn whatever a tool returned into text for the model and JSON for programs.

    An empty value says that it is empty. What JSON cannot hold becomes its `str`, with its type. A mapping that says
    that something went wrong makes it a failed call.
    """
    if isinstance(value, ToolResult):
        text = well_formed(value.content) if value.content.strip() else _EMPTY_TEXT
        return replace(value, content=text, value=None if value.value is None else to_json(value.value)[1])
    text, form = to_json(value)
    if form is None:
        text = "Done; there is no result."
    elif form in ([], {}):
        text = f"The result is an empty {'list' if form == [] else 'object'}."
    elif not text.strip():
        text = _EMPTY_TEXT
    return ToolResult(text, form, error=isinstance(form, dict) and _says_failure(form))


_EMPTY_TEXT = "The result is empty."


def _says_failure(form: Mapping[str, Json]) -> bool:
    """Whether a result carries one of the usual error flags."""
    status = [form.get(key) for key in ("status", "status_code")]
    exit_codes = [form.get(key) for key in ("exit_code", "returncode")]
    return (
        bool(form.get("error"))
        or form.get("isError") is True
        or any(form.get(key) is False for key in ("success", "ok"))
        or any(type(code) is int and 400 <= code <= 599 for code in status)
        or any(type(code) is int and code != 0 for code in exit_codes)
    )
