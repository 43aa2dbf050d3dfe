"""Which container engine there is, without loading its library."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from orchestrator.extras import not_installed

_INSTALL = "install Docker (on Debian and Ubuntu: sudo apt install docker.io) and start it"


def address() -> str:
    """Return where the engine listens: `DOCKER_HOST`, else the first of the usual sockets."""
    return os.environ.get("DOCKER_HOST") or f"unix://{next((s for s in _sockets() if s.exists()), _sockets()[0])}"


def missing() -> str:
    """Say why no code can be run here and what mends that; an empty text: it can."""
    if why := not_installed("sandbox", "docker"):
        return why
    place = address()
    if not place.startswith("unix://"):
        return ""  # a machine elsewhere: the first call tells
    path = place.removeprefix("unix://")
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(path)
    except PermissionError:
        return f"this user may not use {path}: sudo usermod -aG docker $USER, then log in again"
    except FileNotFoundError:
        return f"there is no container engine at {path}: {_INSTALL}"
    except OSError as error:
        return f"the container engine at {path} does not answer ({error}): sudo systemctl start docker"
    return ""


def _sockets() -> list[Path]:
    runtime = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    return [
        Path("/var/run/docker.sock"),
        Path(runtime, "docker.sock"),  # an engine without root
        Path(os.environ.get("HOME", "/"), ".docker/run/docker.sock"),  # Docker Desktop
    ]
