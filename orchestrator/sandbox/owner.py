"""Whose container it is, written into a label, so that what a dead process left can be told from what lives."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def owner() -> str:
    """Return what tells this process from every other one, also from one that gets its number later."""
    return "|".join([*_place(), str(os.getpid()), _started(os.getpid())])


def is_dead(label: str) -> bool:
    """Whether the process behind a label has surely ended. Those of other machines and other containers may live."""
    node, boot, space, pid, started = [*label.split("|"), "", "", "", ""][:5]
    here = _place()
    if node != here[0]:
        return False
    if boot != here[1]:
        return True
    return space == here[2] and pid.isdigit() and not _lives(int(pid), started)


def _place() -> tuple[str, str, str]:
    """Return machine, boot, and the space that process numbers count in; the latter two are known on Linux only."""
    boot = space = ""
    with suppress(OSError):
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        space = (_PROC / "self/ns/pid").readlink().name
    return platform.node(), boot, space


def _lives(pid: int, started: str) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _started(pid) == started


def _started(pid: int) -> str:
    """Return when a process began, in ticks since the boot; empty where it cannot be known."""
    with suppress(OSError):
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19]
    return ""
