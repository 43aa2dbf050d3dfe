"""A role: what one kind of agent is for, may call and may spend."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from orchestrator.addresses import Allowed
from orchestrator.limits import Limits
from orchestrator.strict import Strict

NAME_PATTERN = r"^\w[\w-]{0,39}$"


def _schema(value: Any) -> Any:
    """Take a pydantic model for its JSON Schema; an empty schema asks for nothing."""
    if isinstance(value, type) and issubclass(value, BaseModel):
        return value.model_json_schema()
    return value or None


def _entry(text: str) -> str:
    Allowed.read(text)
    return text


class Network(Strict):
    """Which addresses tools may reach besides public ones."""

    allow: tuple[Annotated[str, AfterValidator(_entry)], ...] = ()
    """Hosts, `host:port`, addresses and networks, as `localhost:8080` or `10.0.0.0/8`."""


class Review(Strict):
    """Who checks a role's results, and how often they may be sent back."""

    by: str
    """Name of the role that reviews."""
    rounds: int = Field(2, ge=1)
    """How often the reviewer is asked before the result ends as `needs_review`."""


class Example(Strict):
    """A goal and what a planner does about it; shown to small models as messages before the goal."""

    goal: str
    plan: tuple[dict[str, Any], ...] = ()
    """Subtasks; empty: the goal is answered at once."""
    outcomes: dict[str, str] = {}
    """The answer of each subtask by its id."""
    answer: str

    @property
    def roles(self) -> set[str]:
        """Roles that the plan names."""
        return {subtask["role"] for subtask in self.plan if "role" in subtask}


class Fitting(Strict):
    """When a conversation is compacted to fit its model's window, and how."""

    compact_at: float = Field(0.7, gt=0, le=0.95)
    """Part of what a prompt may have (the window without the longest answer) from which on it is compacted."""
    keep: float = Field(0.4, gt=0, le=0.9)
    """Part of it that is left then."""
    how: Literal["summarise", "truncate"] = "summarise"
    """What becomes of the oldest turns when shorter results are not enough: a summary by the model, or nothing."""
    relevance: Literal["off", "lexical", "model"] = "off"
    """Which turns stay then: the latest, or the five that have most to do with the goal, by their words or as the model
    judges."""

    @model_validator(mode="after")
    def _leaves_room(self) -> Fitting:
        if self.keep >= self.compact_at:
            raise ValueError(f"keep must be less than compact_at, which is {self.compact_at:g}")
        return self


class Role(Strict):
    """What one kind of agent is for, may call and may spend; all that makes it differ from another."""

    name: str = Field(pattern=NAME_PATTERN)
    description: str = Field(min_length=1)
    """What a planner sees when it chooses a role."""
    prompt: str
    """The static system prompt."""
    tools: tuple[str, ...] = ()
    """The whitelist: nothing else can be called."""
    choose_tools: Literal["words", "model", "all"] = "words"
    """Of more than 20 tools, which are shown: those whose words fit the task, those that the model chooses in one call,
    or all. The others are found and called by two fixed tools."""
    model: str = "default"
    """A key of `ori.yaml`'s models."""
    params: dict[str, Any] = {}
    """Generation parameters, over the model's own."""
    limits: Annotated[Limits, BeforeValidator(lambda limits: limits or {})] = Limits()
    context: Fitting = Fitting()
    network: Network = Network()
    """What its tools may reach besides what the project and the scenario allow."""
    output: Annotated[dict[str, Any] | None, BeforeValidator(_schema)] = None
    """JSON Schema of the result (in code also a pydantic model); the loop ends only with a valid one."""
    review: Review | None = None
    approval: tuple[str, ...] = ()
    """Tools whose calls a person must allow; `*`: every call that changes something."""
    may_delegate: tuple[str, ...] | None = None
    """Roles that a planner of this role may use; None: all but itself. Needs `delegate` in `tools`."""
    examples: tuple[Example, ...] = ()
    """Shown to a small model; one that names a role which the run does not have is left out."""
    parallel_tool_calls: bool | None = None
    """False: at most one call a turn."""
    final_marker: Literal["optional", "required"] = "optional"
    """Whether the answer must follow `FINAL_ANSWER:`."""
    must_use_tools: bool = False
    """Ask once more when the first answer comes without any call."""
    min_confidence: float | None = Field(None, ge=0, le=1)
    """As a reviewer: a verdict with less confidence goes to a person."""
    on_failure: Literal["end", "needs_review"] = "end"
    """What follows when a tool keeps failing: end with what there is, or ask a person."""

    def frozen(self) -> dict[str, Any]:
        """Return the role as JSON; limits that were not set stay so, as others then count."""
        whole = self.model_dump(mode="json")
        return whole | {"limits": self.limits.model_dump(mode="json", exclude_unset=True)}
