"""What `ori.yaml` and the environment say: models, limits, tools, network, journal."""

from __future__ import annotations

import difflib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar
from urllib.parse import parse_qsl, urlsplit

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, field_validator, model_validator

from orchestrator.document import Document, Place, dotted
from orchestrator.errors import ConfigError, nearest
from orchestrator.journal import open_journal
from orchestrator.limits import Limits
from orchestrator.models.presets import PresetName, Structured
from orchestrator.models.server import Timeouts
from orchestrator.models.tokens import Price
from orchestrator.role import NAME_PATTERN, Network
from orchestrator.strict import Strict
from orchestrator.text.placeholders import fill_tree, names, texts
from orchestrator.yaml import read

M = TypeVar("M", bound=BaseModel)
FILE = "ori.yaml"
WAYS_TO_A_MODEL = (
    "set OPENAI_API_KEY and OPENAI_MODEL (in the environment or in .env); or start a local server that speaks the "
    "OpenAI protocol and set OPENAI_BASE_URL, such as http://127.0.0.1:8080/v1; or describe the model in ori.yaml "
    "under models: default:"
)
_SHORTEST_SECRET = 8
"""Characters; shorter values, such as a local server's `none`, are no secrets, and redacting them would spoil texts."""


class ModelSettings(Strict):
    """One model behind an endpoint that speaks the OpenAI protocol."""

    model: str
    """Name, as the endpoint knows it."""
    base_url: str | None = None
    """As `http://127.0.0.1:8080/v1`; None: OpenAI's own."""
    api_key: SecretStr | None = None
    window: int = Field(128_000, ge=1024)
    """Tokens that prompt and answer may have together."""
    max_output: int | None = Field(None, ge=1)
    """Tokens of one answer; None: a quarter of the window, at most 8192."""
    vision: bool = False
    """Whether it sees images."""
    image_size: int = Field(1024, ge=64)
    """Pixels of an image's longest side; larger ones are scaled down before it sees them."""
    stream: Literal["auto", "always", "never"] = "auto"
    """`auto`: only when somebody watches the answer as it arrives."""
    price: Price | None = None
    params: dict[str, Any] = {"temperature": 0.3}
    """Generation parameters."""
    headers: dict[str, SecretStr] = {}
    extra_body: dict[str, Any] = {}
    """Added to each request's body."""
    concurrency: int = Field(8, ge=1)
    """Calls at the same time."""
    rpm: int = Field(0, ge=0)
    """Requests per minute; 0: no limit."""
    tpm: int = Field(0, ge=0)
    """Tokens per minute; 0: no limit."""
    timeout: Timeouts = Timeouts()
    attempts: int = Field(3, ge=1)
    """Requests of one call, the first included."""
    when_open: Literal["wait", "fail"] = "wait"
    """What a call does while the endpoint's breaker is open and no fallback is left."""
    fallback: tuple[str, ...] = ()
    """Keys of the models to use instead, in order."""
    preset: PresetName | None = None
    """The kind of server, which says what it refuses; None: as its address tells."""
    salvage: bool = True
    """Take calls that the model writes as text for calls."""
    structured: Structured | Literal["auto"] = "auto"
    """How a structured result is asked for: by a tool, by the server's `response_format`, or in words."""
    profile: Literal["small", "standard"] = "standard"
    """`small` turns on all that helps a weak model: examples, goal reminders, mended plans, early wrap-up."""


class ProjectLimits(Limits):
    """Upper bounds for every run of a project, and for all of them together."""

    cost_per_day: Decimal | None = Field(None, gt=0)
    """Money spent by all runs of the project's log from midnight to midnight, local time; replays cost nothing."""


class McpServer(Strict):
    """One MCP server: a program that is started here, or one that answers at a URL."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    command: str | None = Field(None, min_length=1)
    """Program to start; it speaks over its stdin and stdout."""
    args: tuple[str, ...] = ()
    env: dict[str, SecretStr] = {}
    """Its environment, besides HOME, LOGNAME, PATH, SHELL, TERM and USER; it sees nothing else of ours."""
    cwd: str | None = None
    """Folder it starts in, relative to the project; None: the project's own."""
    url: str | None = Field(None, pattern=r"^https?://")
    """Where it answers, by streamable HTTP."""
    headers: dict[str, SecretStr] = {}
    """Sent with each request."""
    timeout: float = Field(60, gt=0)
    """Seconds of one call."""
    start_timeout: float = Field(30, gt=0)
    """Seconds until it has started and said what it offers."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("give either `command` (a program to start) or `url` (where it answers)")
        other = ("args", "env", "cwd") if self.url else ("headers",)
        if wrong := [name for name in other if name in self.model_fields_set]:
            raise ValueError(f"{wrong[0]!r} does not go with {'url' if self.url else 'command'!r}")
        return self

    @property
    def secrets(self) -> list[str]:
        """Values of it that must not be shown."""
        named = [value for name, value in self.env.items() if _secret(name)]
        held = [value.get_secret_value() for value in (*named, *self.headers.values())]
        place = urlsplit(self.url or "")
        query = [value for name, value in parse_qsl(place.query) if _secret(name)]
        return [*held, *query, *([place.password] if place.password else [])]


class Embeddings(Strict):
    """A model that turns texts into vectors, behind an endpoint that speaks the OpenAI protocol."""

    model: str
    base_url: str | None = None
    api_key: SecretStr | None = None


class MemorySettings(Strict):
    """How memories are found again."""

    embeddings: Embeddings | None = None
    """Ranks by meaning what was found by words; None: words alone do."""


class Settings(Strict):
    """The settings of one project."""

    models: dict[str, ModelSettings] = {}
    """By the key that roles name; `default` is what a role without one gets."""
    limits: ProjectLimits = ProjectLimits()
    max_runs: int = Field(4, ge=1)
    """Runs at the same time."""
    tools: dict[str, dict[str, Any]] = {}
    """Settings of tools, by toolset."""
    network: Network = Network()
    mcp: dict[Annotated[str, Field(pattern=NAME_PATTERN)], McpServer] = {}
    """MCP servers by the name that whitelists give them: `name/tool`, `name/*`."""
    memory: MemorySettings = MemorySettings()
    journal: str = "sqlite"
    """`sqlite`, `memory`, or the path of the log's file."""

    @field_validator("models")
    @classmethod
    def _one_currency(cls, models: dict[str, ModelSettings]) -> dict[str, ModelSettings]:
        prices = {key: model.price for key, model in models.items() if model.price and model.price.cost(1, 0, 1)}
        if len({price.currency.upper() for price in prices.values()}) > 1:
            named = ", ".join(f"{key}: {price.currency}" for key, price in prices.items())
            raise ValueError(f"costs are summed, so all prices must be in one currency; these are not: {named}")
        return models

    _document: Document = PrivateAttr(default_factory=lambda: Document(Path(FILE), {}, {}))
    _unset: dict[Place, ConfigError] = PrivateAttr(default_factory=dict)
    _warnings: tuple[ConfigError, ...] = PrivateAttr(())
    _from_environment: tuple[str, ...] = PrivateAttr(())

    @property
    def warnings(self) -> tuple[ConfigError, ...]:
        """What a person should change, though it works."""
        return self._warnings

    @property
    def configured(self) -> bool:
        """Whether the default model can be called: it is described, and its variables are set."""
        return "default" in self.models and not self.unset("models", "default")

    def model(self, key: str) -> ModelSettings:
        """Return a model that can be called.

        Raises:
            ConfigError: There is none by that key, or an environment variable that it needs is not set.
        """
        if missing := self.unset("models", key):
            raise ConfigError.all_of(missing)
        if key in self.models:
            return self.models[key]
        if key == "default" and not self.models:
            raise ConfigError(f"no model is configured: {WAYS_TO_A_MODEL}")
        if key == "default":
            raise self._without_default()
        raise ConfigError(f"there is no model {key!r} in {FILE}{nearest(key, self.models)}")

    def mcp_server(self, name: str) -> McpServer:
        """Return an MCP server that can be reached.

        Raises:
            ConfigError: There is none by that name, or an environment variable that it needs is not set.
        """
        if missing := self.unset("mcp", name):
            raise ConfigError.all_of(missing)
        if name not in self.mcp:
            raise ConfigError(f"there is no MCP server {name!r} in {FILE}{nearest(name, self.mcp)}")
        return self.mcp[name]

    def unreachable(self) -> list[ConfigError]:
        """Return what cannot be used here, as far as that shows without trying: programs and variables are missing."""
        programs = {name: server.command for name, server in self.mcp.items() if server.command}
        missing = [
            self._document.error(f"there is no program {program!r}; is it installed?", ("mcp", name, "command"))
            for name, program in programs.items()
            if "/" not in program and shutil.which(program) is None
        ]
        return missing + list(self._unset.values())

    def unusable(self) -> list[ConfigError]:
        """Return what no run could use, as far as that shows without trying."""
        urls = {key: model.base_url for key, model in self.models.items() if not self.unset("models", key)}
        faults = [
            self._document.error(f"base_url {url!r} must begin with http:// or https://", ("models", key, "base_url"))
            for key, url in urls.items()
            if url and not url.startswith(("http://", "https://"))
        ]
        if self.models and "default" not in self.models:
            faults.append(self._without_default())
        try:
            open_journal(self.journal, Path("runs.db"))
        except ConfigError as error:
            faults.append(self._document.error(str(error), ("journal",)))
        return faults

    def unset(self, *part: str) -> list[ConfigError]:
        """Return which environment variables that a part of the file needs are not set, as of `"mcp", NAME`."""
        return [error for place, error in self._unset.items() if place[:2] == part]

    def toolset(self, name: str, kind: type[M]) -> M:
        """Return the settings under `tools: NAME`, read as what the toolset says they are.

        Raises:
            ConfigError: They are something else; all faults, each with its line.
        """
        return self._document.within("tools", name).validate(kind, self.tools.get(name, {}))

    def unknown_toolsets(self, known: Iterable[str]) -> list[ConfigError]:
        """Return what is wrong with names under `tools:` that no tool file has."""
        known = list(known)
        unknown = [name for name in self.tools if name not in known]
        return [self._document.error(f"unknown toolset {n!r}{nearest(n, known)}", ("tools", n)) for n in unknown]

    def secrets(self) -> list[str]:
        """Return every value that must not be shown, the longest first."""
        held = [m.api_key for m in self.models.values() if m.api_key]
        if (embeddings := self.memory.embeddings) and embeddings.api_key:
            held.append(embeddings.api_key)
        held += [value for m in self.models.values() for value in m.headers.values()]
        shown = {secret.get_secret_value() for secret in held} | set(self._from_environment)
        shown |= {text for place, text in texts(self.tools) if _secret(str(place[-1]))}
        shown |= {text for server in self.mcp.values() for text in server.secrets}
        shown |= {text.split()[-1] for text in shown if text.startswith(("Bearer ", "Basic "))}
        return sorted((text for text in shown if len(text) >= _SHORTEST_SECRET), key=len, reverse=True)

    def _without_default(self) -> ConfigError:
        close = difflib.get_close_matches("default", self.models, n=1) or list(self.models)
        rename = f"{'one of ' if len(close) > 1 else ''}{', '.join(map(repr, close))}"
        said = f"no model is called 'default', which roles without a `model` use; rename {rename}"
        return self._document.error(said, ("models", close[0]))


def load_settings(project: Path | None, environment: Mapping[str, str] = os.environ) -> Settings:
    """Read a project's `ori.yaml`, with `${NAME}` taken from the environment.

    Without a model called `default`, OPENAI_API_KEY, OPENAI_BASE_URL and OPENAI_MODEL describe it, where they are set.
    A variable that is not set (or empty) matters only when its model is used: checks and replays work without keys.

    Raises:
        ConfigError: The file is wrong; all faults, each with its line.
    """
    environment = {name: value for name, value in environment.items() if value}
    file = None if project is None else project / FILE
    document = read(file) if file is not None and file.is_file() else Document(Path(FILE), {}, {})
    data = fill_tree(document.data, environment)
    if isinstance(models := data.get("models") or {}, dict) and "default" not in models:
        data["models"] = models | _from_variables(environment)
    settings = document.validate(Settings, data)
    _check_fallbacks(settings, document)
    used = {(place, name) for place, text in texts(document.data) for name in names(text)}
    settings._document = document
    settings._unset = {
        place: document.error(_not_set(name, place, environment), place)
        for place, name in sorted(used, key=str)
        if name not in environment
    }
    named = {name for _, name in used if _secret(name)}  # and those that tools look up themselves
    secret = [value for name, value in environment.items() if name in named or name.endswith("_API_KEY")]
    settings._from_environment = tuple(secret)
    settings._warnings = tuple(_literal_keys(document))
    return settings


def _not_set(name: str, place: Place, environment: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, environment, n=1, cutoff=0.8)
    found = f" ({close[0]} is)" if close else ""
    return f"{dotted(place)} needs {name}, which is not set{found}; set it in the environment or in .env"


def _from_variables(environment: Mapping[str, str]) -> dict[str, Any]:
    base_url, key = environment.get("OPENAI_BASE_URL"), environment.get("OPENAI_API_KEY")
    # A local server mostly holds one model and does not look at the name.
    model = environment.get("OPENAI_MODEL") or ("default" if base_url else None)
    if not model or not (base_url or key):
        return {}
    return {"default": {"model": model, "base_url": base_url, "api_key": key}}


def _check_fallbacks(settings: Settings, document: Document) -> None:
    faults = [
        document.error(f"unknown model {other!r}{nearest(other, settings.models)}", ("models", key, "fallback", index))
        for key, model in settings.models.items()
        for index, other in enumerate(model.fallback)
        if other not in settings.models or other == key
    ]
    if faults:
        raise ConfigError.all_of(faults)


def _secret(name: str) -> bool:
    return re.search("key|token|secret|password", name, re.IGNORECASE) is not None


def _literal_keys(document: Document) -> Iterator[ConfigError]:
    for place, text in texts(document.data):
        name = str(place[-1])
        of_server = place[0] == "mcp" and place[2:3] in (("env",), ("headers",))
        secret = name == "api_key" or (of_server and (_secret(name) or name.lower() == "authorization"))
        if secret and not names(text) and len(text) >= _SHORTEST_SECRET:
            variable = "OPENAI_API_KEY" if name == "api_key" else "NAME"
            advice = f'write {name}: "${{{variable}}}" and keep the key in the environment or in .env'
            yield document.error(f"a key stands in the file; {advice}", place)
