"""The files of a run as one loop may use them: what it reads is marked, what it writes is recorded."""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from orchestrator.errors import ToolError
from orchestrator.events import ArtifactStored
from orchestrator.results import Artifact
from orchestrator.workspace.files import (
    FileInfo,
    as_tool_error,
    media_type,
    read_regular,
    remove,
    replace,
    walk,
)
from orchestrator.workspace.outputs import OUTPUT_PREFIX
from orchestrator.workspace.texts import decode

if TYPE_CHECKING:
    from orchestrator.workspace import Workspace

MAX_KEPT = 50_000_000
"""Bytes of the largest file whose content is kept against what a program may do to it."""


class LoopWorkspace:
    """The workspace as the tools of one loop see it. Safe to use from threads."""

    def __init__(
        self,
        workspace: Workspace,
        path: str,
        may_take: Callable[[str], bool],
        on_stored: Callable[[ArtifactStored], None],
        sources: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._workspace, self._path, self._may_take, self._on_stored = workspace, path, may_take, on_stored
        self._sources, self._changes = sources, workspace.changes
        self._read_from: dict[str, None] = {}

    def read_from(self) -> tuple[str, ...]:
        """Return what strangers may have written of what was read since the last time, and forget it."""
        read, self._read_from = self._read_from, {}
        return tuple(read)

    def note(self, sources: Iterable[str]) -> None:
        """Note what strangers may have written of what was read."""
        self._read_from |= dict.fromkeys(sources)

    def sources(self) -> tuple[str, ...]:
        """Return what strangers may have written that what is written now may come from."""
        return tuple(dict.fromkeys((*self._sources(), *self._read_from)))

    def _mark(self, path: Path | str) -> None:
        """Note that a file, a cut output, or (as the folder itself) any of them may have been read."""
        name = path if isinstance(path, str) else self.relative(path)
        self.note(self._workspace.sources(None if name == "." else name))

    @property
    def home(self) -> Path:
        """The run's own folder, which tools do not show: `outputs/` holds the texts that were cut."""
        return self._workspace.home

    @property
    def root(self) -> Path:
        """The folder, created when it is not there yet."""
        self._workspace.root.mkdir(parents=True, exist_ok=True)
        self._mark(".")
        return self._workspace.root

    def resolve(self, name: str) -> Path:
        """Return where a name leads; it need not exist.

        Args:
            name: Relative, or absolute inside the workspace; `/workspace/…` stands for the workspace too.

        Raises:
            ToolError: It is no path, or leads out of the workspace.
        """
        path = self._workspace.locate(name)
        self._mark(path)
        return path

    def existing(self, name: str) -> Path:
        """Return where an existing file or folder is; see `Workspace.existing`.

        Raises:
            ToolError: There is none; the nearest file is named.
        """
        path = self._workspace.existing(name)
        self._mark(path)
        return path

    def relative(self, path: Path) -> str:
        """Return a resolved path relative to the workspace, with forward slashes."""
        return path.relative_to(self._workspace.root).as_posix()

    def read(self, name: str) -> bytes:
        """Return a file's content.

        Raises:
            ToolError: There is no such file, or it is too large.
        """
        return read_regular(self.existing(name), name)

    def read_text(self, name: str, encoding: str | None = None) -> str:
        """Return the text of a file, or of a cut output by its handle `out:…`; see `texts.decode`.

        Raises:
            ToolError: There is no such file, or it is not text.
        """
        if name.startswith(OUTPUT_PREFIX):
            self._mark(name)
            return self._workspace.outputs.read(name)
        return decode(self.read(name), name, encoding)

    def write(self, name: str, data: bytes) -> Artifact:
        """Write a file in one step, with its folders; the content that another left there is kept for undo.

        Raises:
            ToolError: The file belongs to another loop, is an input, or cannot be written.
        """
        with self._changes.lock, as_tool_error("write", name):
            path = self._take(name)
            file, created = self.relative(path), not path.exists()
            before = self._changes.before(file, self._path)
            replace(path, data)
            return self._stored(file, len(data), hashlib.sha256(data).hexdigest(), before, created)

    def delete(self, name: str) -> None:
        """Delete a file; the content that another left there is kept for undo.

        Raises:
            ToolError: There is none, it belongs to another loop, or is an input.
        """
        with self._changes.lock, as_tool_error("delete", name):
            path = self._take(name, self._workspace.existing(name))
            file = self.relative(path)
            before = self._changes.before(file, self._path)
            remove(path)
            self._stored(file, None, None, before, False)

    def keep(self, file: str) -> str | None:
        """Keep the content of a file against what a program may do to it; return its SHA-256, None where that fails.

        Args:
            file: As a listing names it.
        """
        with suppress(OSError):
            sha256 = self._changes.sha256(file)
            if sha256 and (self._workspace.root / file).stat().st_size <= MAX_KEPT:
                self._changes.keep(file, sha256)
            return sha256
        return None

    def adopt(self, file: str, before: str | None, created: bool) -> str | None:
        """Record what a program did to a file, or undo it where this loop may not change the file.

        Args:
            file: As a listing names it.
            before: SHA-256 of what was there, if it was kept.
            created: Nothing was there.

        Returns:
            Why it was undone; an empty text: it was recorded; None: it was recorded when it was done, by a tool.
        """
        with self._changes.lock, as_tool_error("look at", file):
            sha256, last = self._changes.sha256(file), self._changes.last(file)
            if sha256 == (last.sha256 if last else before):
                return None
            if fault := self._fault(file):
                done = self._changes.put_back(file, before)
                return f"{fault}; " + ("what the program did to it was undone" if done else "it cannot be put back")
            size = None if sha256 is None else (self._workspace.root / file).lstat().st_size
            self._stored(file, size, sha256, before, created)
            return ""

    def list(self, folder: str = ".", pattern: str = "*") -> list[FileInfo]:
        """Return the files below a folder whose name, or path in it, fits a pattern; sorted by path.

        Raises:
            ToolError: There is no such folder.
        """
        top = self._workspace.root if folder in (".", "") else self._workspace.existing(folder)
        if top.is_file():
            with as_tool_error("look at", folder):
                return [FileInfo(self.relative(top), top.stat().st_size)]
        pattern = pattern.replace("**/", "*")
        prefix = "" if top == self._workspace.root else self.relative(top) + "/"
        return [
            FileInfo(prefix + file.path, file.size)
            for file in walk(top)
            if fnmatch.fnmatchcase(file.path, pattern)
            or fnmatch.fnmatchcase(PurePosixPath(file.path).name, pattern)
            or fnmatch.fnmatchcase(prefix + file.path, pattern)
        ]

    def _take(self, name: str, path: Path | None = None) -> Path:
        """Return the path of a file that this loop may change."""
        path = path or self._workspace.locate(name)
        if re.search(r"[\x00-\x1f\x7f]", name) and not path.exists():
            raise ToolError(f"{name!r} has a control character, which no list of files could show; leave it out")
        if path.is_dir() or name.endswith("/"):
            raise ToolError(f"{name!r} is a folder; name a file in it")
        if fault := self._fault(self.relative(path)):
            raise ToolError(f"{fault}; choose another name")
        return path

    def owner(self, file: str) -> str:
        """Return the path of the loop that wrote a file; where none did, of this one."""
        last = self._changes.last(file)
        return last.path if last and last.size is not None else self._path

    def _fault(self, file: str) -> str:
        """Say why this loop may not change a file."""
        if self._workspace.closed:
            return f"{file!r} comes too late: the run is over"
        if file in self._workspace._inputs:
            return f"{file!r} is an input of the run and read-only"
        owner = self.owner(file)
        if owner != self._path and not self._may_take(owner):
            return f"{file!r} was written by {owner} and belongs to it"
        return ""

    def _stored(self, file: str, size: int | None, sha256: str | None, before: str | None, created: bool) -> Artifact:
        change = ArtifactStored(
            path=self._path,
            file=file,
            size=size,
            sha256=sha256,
            media_type=media_type(file),
            before=before,
            created=created,
            sources=self.sources(),
        )
        artifact = self._changes.record(change)
        self._on_stored(change)
        return artifact
