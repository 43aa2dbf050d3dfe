"""Parts that not every machine has: a test skips without them, or fails where ORI_REAL_PARTS=1 says they are there."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest

NODE_MODULES = Path(__file__).resolve().parent.parent / ".parts/node_modules"
"""Where `.ci/run` installs what comes from npm."""

Part = Literal["chromium", "docker", "mcp servers", "miniwob"]


def _has_chromium() -> bool:
    from orchestrator.sandbox.chromium import BrowserSettings, missing

    return not missing(BrowserSettings())


def _has_docker() -> bool:
    from orchestrator.sandbox import client, engine

    if engine.missing():
        return False
    with closing(client.connect()) as api:
        return bool(api.images(client.BUILT))


_THERE: Mapping[str, Callable[[], bool]] = {
    "chromium": _has_chromium,
    "docker": _has_docker,
    "mcp servers": lambda: (NODE_MODULES / ".package-lock.json").is_file(),
    "miniwob": lambda: importlib.util.find_spec("miniwob") is not None,
}
_BRINGS: Mapping[str, str] = {
    "chromium": "apt-get install chromium, or playwright install chromium; and pip install playwright",
    "docker": "a container engine, and: sudo ori sandbox build --package nodejs --package default-jdk-headless",
    "mcp servers": ".ci/npm",
    "miniwob": "pip install --no-deps miniwob",
}


def require(part: Part) -> None:
    """Skip the test, or the module that is being imported, unless the part is there."""
    if _THERE[part]():
        return
    why = f"{part} is missing: {_BRINGS[part]}"
    if os.environ.get("ORI_REAL_PARTS") == "1":
        pytest.fail(why, pytrace=False)
    pytest.skip(why, allow_module_level=True)
