"""What all runs of one orchestrator share."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.content.catalog import Catalog
from orchestrator.eventloops import PerLoop
from orchestrator.journal import Journal
from orchestrator.ledger import Today
from orchestrator.limits import Limits
from orchestrator.mcp.servers import Servers
from orchestrator.memory import MemoryStore
from orchestrator.models import Model
from orchestrator.models.tokens import Meter
from orchestrator.people import Approve
from orchestrator.profile import Profile
from orchestrator.resources import Resources
from orchestrator.sandbox.guard import AddressGuard
from orchestrator.threads import ThreadPool


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What all runs of one orchestrator share."""

    catalog: Catalog
    journal: Journal
    model: Callable[[str], tuple[Model, Profile]]
    """The model behind a key, and how it is handled."""
    open: Callable[[], AbstractAsyncContextManager[object]]
    """Keeps connections open while somebody is inside."""
    redact: Callable[[str], str]
    threads: ThreadPool
    network: AddressGuard
    home: Path
    memory: MemoryStore
    resources: PerLoop[Resources]
    """What tools keep open from run to run."""
    servers: Servers
    """MCP servers, whose tools roles may name."""
    meters: defaultdict[str, Meter] = field(default_factory=lambda: defaultdict(Meter))
    """How each model counts tokens, by the endpoint that answers."""
    turns: PerLoop[asyncio.Semaphore] | None = None
    """Hold one to work; None: any number of runs may."""
    limits: Limits | None = None
    today: Today | None = None
    """What all runs may spend in a day."""
    roles: tuple[str, ...] = ()
    """The only roles that planners may use; empty: all."""
    deps: Any = None
    approve: Approve | None = None
    """Asks somebody in this program."""
