"""What the loops of one run share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.errors import ConfigError, nearest
from orchestrator.events import MessageAppended, ToolStarted, VariableSet
from orchestrator.ledger import Ledger
from orchestrator.limits import Limits
from orchestrator.mcp.servers import Offer
from orchestrator.memory import Recollection
from orchestrator.messages import Json, Message
from orchestrator.models import Model
from orchestrator.models.replay import Recording
from orchestrator.models.tokens import Meter
from orchestrator.past import Past
from orchestrator.people import People
from orchestrator.plan import FormattedGoal
from orchestrator.profile import Profile
from orchestrator.resources import Resources
from orchestrator.role import Role
from orchestrator.sandbox.guard import AddressGuard
from orchestrator.schedule import Slots
from orchestrator.shift import Shift
from orchestrator.text.redact import redact_json
from orchestrator.threads import ThreadPool
from orchestrator.tool import Scope, Tool

if TYPE_CHECKING:
    from orchestrator.content.catalog import Catalog
    from orchestrator.conversation import Conversation
    from orchestrator.journal.log import RunLog
    from orchestrator.workspace import Workspace


class Variables(MutableMapping[str, Json]):
    """The run's variables; every change is an event, so that a resumed run has them again."""

    def __init__(
        self,
        log: RunLog,
        redact: Callable[[str], str],
        values: dict[str, VariableSet],
        sources: Callable[[], Iterable[str]] = tuple,
        read: Callable[[Iterable[str]], object] = tuple,
        path: str = "",
    ) -> None:
        self._log, self._redact, self._set, self._path = log, redact, values, path
        self._sources, self._read = sources, read

    def seen_by(
        self, sources: Callable[[], Iterable[str]], read: Callable[[Iterable[str]], object], path: str = ""
    ) -> Variables:
        """Return the same variables as one loop sees them.

        Args:
            sources: Tells what strangers may have written that the loop has read: what it sets may come from there.
            read: Told what a value that it gets may come from.
            path: The loop.
        """
        return Variables(self._log, self._redact, self._set, sources, read, path)

    def __getitem__(self, name: str) -> Json:
        variable = self._set[name]
        self._read(variable.sources)
        return variable.value

    def __setitem__(self, name: str, value: Json) -> None:
        shown = redact_json(value, self._redact)
        told = VariableSet(path=self._path, name=name, value=shown, sources=tuple(self._sources()))
        self._log.add(told)
        self._set[name] = replace(told, value=value)

    def __delitem__(self, name: str) -> None:
        del self._set[name]
        self._log.add(VariableSet(path=self._path, name=name, value=None, deleted=True))

    def __iter__(self) -> Iterator[str]:
        return iter(self._set)

    def __len__(self) -> int:
        return len(self._set)


@dataclass(slots=True, kw_only=True)
class RunContext:
    """One run: what it was asked, what it may use, what it has spent. Nothing of it is shared with another run."""

    run_id: str
    goal: str
    """The user's own words."""
    date: str
    """Day of `run.started`, as prompts name it."""
    log: RunLog
    catalog: Catalog
    roles: Mapping[str, Role]
    """Every role of the run by name, reviewers included."""
    delegable: tuple[str, ...]
    """Names of those that planners may use."""
    models: Callable[[str], tuple[Model, Profile]]
    """The model behind a key of `ori.yaml`, and how it is handled."""
    limits: Limits
    ledger: Ledger
    """What it spends."""
    shift: Shift
    """The run's time."""
    slots: Slots
    workspace: Workspace
    variables: Variables
    threads: ThreadPool
    """Where blocking tools run."""
    meters: Mapping[str, Meter]
    """How each model counts tokens, by the endpoint that answers."""
    scopes: Mapping[Scope, Resources]
    """What tools keep open, for as long as the run or the orchestrator is."""
    network: AddressGuard
    """What tools may reach."""
    memory: Recollection
    """What its user's earlier runs kept, and where it keeps things for later ones."""
    people: People
    """Whom its loops can ask."""
    words: tuple[str, ...]
    """What the user wrote, or allowed: the goal, parameters, names of inputs, hosts."""
    redact: Callable[[str], str]
    """Takes secrets out of a text."""
    offer: Offer = field(default_factory=Offer)
    """What there is of the tools of MCP servers."""
    deps: Any = None
    params: Mapping[str, Json] = field(default_factory=dict)
    recording: Recording | None = None
    """Says what comes of tool calls; none is run."""
    preview: bool = False
    """Stop at the first accepted plan."""
    once: list[ToolStarted] = field(default_factory=list)
    """Calls that must not be repeated and were begun."""
    past: Past = field(default_factory=Past)
    """What was done before the run was interrupted; empty in a new one."""
    schemas: Mapping[str, Any] = field(default_factory=dict)
    """How tools were described when the run began; those that are not in it are as today."""
    broken_tools: dict[str, tuple[str, Sequence[str]] | None] = field(default_factory=dict)
    """Why a tool failed, by the tool, and who may have written that; None once a call of it went well."""
    constraints: tuple[str, ...] = ()
    formatted_goal: FormattedGoal | None = None

    def say(self, conversation: Conversation, path: str, message: Message, key: str = "") -> None:
        """Put a message into the conversation of the loop at `path`, and record it."""
        message = conversation.append(message, key)
        self.log.add(MessageAppended(path=path, key=key, message=message, hash=conversation.hash))

    def text(self, name: str, **values: object) -> str:
        """Return one of the engine's own texts, filled in."""
        return self.catalog.text(name, **values)

    def role(self, name: str) -> Role:
        """Return a role of this run.

        Raises:
            ConfigError: The run has no such role.
        """
        if name not in self.roles:
            raise ConfigError(f"the run has no role {name!r}{nearest(name, self.roles)}")
        return self.roles[name]

    def tool(self, name: str) -> Tool:
        """Return a tool by name."""
        return self.offer.tools.get(name) or self.catalog.tool(name)

    @property
    def tool_names(self) -> list[str]:
        """All tools that a plan of a person may name."""
        return [*self.catalog.tool_names, *self.offer.tools]

    def idempotency_key(self, key: str) -> str:
        """Return what identifies a call to the outside, also after a crash."""
        return sha256((self.run_id + key).encode()).hexdigest()


CallKind = Literal["person", "model", "tool", "summary", "rank"]


def record_key(path: str, turn: int, kind: CallKind, number: int | str | None = None) -> str:
    """Return the address of a record: `path:turn:kind`, with `.number` for one of several."""
    return f"{path}:{turn}:{kind}" if number is None else f"{path}:{turn}:{kind}.{number}"


def within(path: str, root: str) -> bool:
    """Whether a loop is another one, an attempt of it, or somewhere below it."""
    return path == root or path.startswith((f"{root}/", f"{root}~"))
