"""What programs leave in a workspace behind the engine's back: found by looking before and after each of them."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from orchestrator.journal import ENGINE_FOLDER
from orchestrator.workspace.files import is_utf8
from orchestrator.workspace.loop import LoopWorkspace

MAX_RECORDED = 1_000
"""Files of one program that become artifacts."""
MAX_LISTED = 50
"""Files that an observation names."""


class Mark(NamedTuple):
    """What tells a changed file: the time of its last change of any kind cannot be set by a program."""

    size: int
    changed: int
    inode: int
    group: int


@dataclass(slots=True)
class Changes:
    """What one program did to files."""

    written: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)
    """What it may not do and was put right, each with the reason."""
    unrecorded: int = 0
    """Files beyond the number that is recorded."""

    def lines(self) -> Iterator[str]:
        """Say what was done, for whoever called the program."""
        for what, files in (("written", self.written), ("deleted", self.deleted)):
            if files:
                more = f" and {len(files) - MAX_LISTED} more" if len(files) > MAX_LISTED else ""
                yield f"{what}: {', '.join(files[:MAX_LISTED])}{more}"
        yield from self.undone[:MAX_LISTED]
        if self.unrecorded:
            yield f"{self.unrecorded} more files were changed; they do not count as results of the run"


class Traces:
    """The files of one run, as programs of several loops change them at the same time. Safe to use from threads.

    Args:
        user: Who programs run as; where this process is root, the files are given to them. None: as this process.
    """

    def __init__(self, user: int | None) -> None:
        self._user = user
        self._marks: dict[str, Mark] = {}
        self._kept: dict[str, str | None] = {}
        """SHA-256 of each file as it was marked."""
        self._at_work: dict[int, str] = {}
        """The loop of each program at work, by the program's group."""
        self._lock = threading.Lock()

    def before(self, workspace: LoopWorkspace, loop: str, group: int) -> None:
        """Note what is there, and keep what a program of this group could change.

        Args:
            workspace: As the loop sees it.
            loop: The loop's path.
            group: The program's group.
        """
        with self._lock:
            now = look(workspace.root, self._user)
            for file in self._changed(now):
                if not self._others(workspace, file, now.get(file)):
                    self._note(workspace, file, now.get(file))
            self._at_work[group] = loop

    def after(self, workspace: LoopWorkspace, group: int) -> Changes:
        """Record what the program of this group did, put back what it may not change, and return both."""
        with self._lock:
            del self._at_work[group]
            now, changes = look(workspace.root, self._user, group), Changes()
            mine = [file for file in sorted(self._changed(now)) if not self._others(workspace, file, now.get(file))]
            for file in mine[:MAX_RECORDED]:
                why = workspace.adopt(file, self._kept.get(file), file not in self._marks)
                if why == "":
                    (changes.written if file in now else changes.deleted).append(file)
                elif why:
                    changes.undone.append(why)
            for file in mine:
                self._note(workspace, file, _mark(workspace.root / file))
            changes.unrecorded = len(mine[MAX_RECORDED:])
            return changes

    def _changed(self, now: dict[str, Mark]) -> set[str]:
        return {file for file in now.keys() | self._marks.keys() if now.get(file) != self._marks.get(file)}

    def _others(self, workspace: LoopWorkspace, file: str, mark: Mark | None) -> bool:
        """Whether a change is one of a program still at work: it made the file, or its loop owns it."""
        return (mark is not None and mark.group in self._at_work) or workspace.owner(file) in self._at_work.values()

    def _note(self, workspace: LoopWorkspace, file: str, mark: Mark | None) -> None:
        if mark is None:
            self._marks.pop(file, None)
            self._kept.pop(file, None)
        else:
            self._marks[file], self._kept[file] = mark, workspace.keep(file)


def look(root: Path, user: int | None, group: int | None = None) -> dict[str, Mark]:
    """Return the regular files of a folder; hidden ones are left out, as in listings.

    Args:
        root: The folder.
        user: Where this process is root, everything in it is given to this user, if there is one.
        group: What has this group is given back to the owner's.
    """
    found = {}
    for folder, folders, names, descriptor in os.fwalk(root):
        place = PurePosixPath(folder).relative_to(root)
        if not place.parts:
            folders[:] = [name for name in folders if name != ENGINE_FOLDER]
            _given(".", descriptor, user, group)
        for name in (*folders, *names):
            with suppress(OSError):  # another program at work may have removed it
                status = _given(name, descriptor, user, group)
                if stat.S_ISREG(status.st_mode) and not _hidden(place / name) and is_utf8(name):
                    found[str(place / name)] = _as_mark(status)
    return found


def _given(name: str, folder: int, user: int | None, group: int | None) -> os.stat_result:
    """Make the user the owner of a file, wherever a program has led its name meanwhile; return its status."""
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    to = user if os.geteuid() == 0 else None
    if status.st_gid == group or to not in (None, status.st_uid):
        os.chown(name, *((-1, os.getegid()) if to is None else (to, to)), dir_fd=folder, follow_symlinks=False)
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    return status


def _hidden(path: PurePosixPath) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _mark(path: Path) -> Mark | None:
    with suppress(OSError):
        return _as_mark(path.lstat())
    return None


def _as_mark(status: os.stat_result) -> Mark:
    return Mark(status.st_size, status.st_ctime_ns, status.st_ino, status.st_gid)
