"""Libraries that only some tools need, and how they are installed."""

from __future__ import annotations

from importlib.util import find_spec


def not_installed(extra: str, *modules: str) -> str:
    """Say which of an extra's modules are missing, and the command that installs them; empty when none is."""
    absent = [module for module in modules if find_spec(module) is None]
    return f"{' and '.join(absent)} not installed: pip install 'ori-orchestrator[{extra}]'" if absent else ""
