"""Parts that not every machine has: a test skips without them, or fails where ORI_REAL_PARTS=1 says they are there."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import pytest

NODE_MODULES = Path(__file__).resolve().parent.parent / ".parts/node_modules"
"""Where `.ci/run` installs what comes from npm."""

Part = Literal["chromium", "mcp servers", "miniwob"]


def _has_chromium() -> bool:
    from orchestrator.sandbox.chromium import BrowserSettings, missing

    return not missing(BrowserSettings())


_THERE: Mapping[str, Callable[[], bool]] = {
    "chromium": _has_chromium,
    "mcp servers": lambda: (NODE_MODULES / ".package-lock.json").is_file(),
    "miniwob": lambda: importlib.util.find_spec("miniwob") is not None,
}
_BRINGS: Mapping[str, str] = {
    "chromium": "apt-get install chromium, or playwright install chromium; and pip install playwright",
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
