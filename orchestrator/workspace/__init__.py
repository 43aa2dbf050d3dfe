"""The files of one run: where they lie, and who may write them.

A `Workspace` belongs to a run. A tool sees it through the `LoopWorkspace` of the loop that called it.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import shutil
import unicodedata
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from orchestrator.errors import ConfigError, ToolError, nearest
from orchestrator.events import ArtifactStored
from orchestrator.journal import ENGINE_FOLDER
from orchestrator.results import Artifact
from orchestrator.workspace.changes import FileChanges
from orchestrator.workspace.files import (
    FileInfo,
    as_tool_error,
    format_files,
    is_utf8,
    media_type,
    read_regular,
    remove,
    replace,
    walk,
)
from orchestrator.workspace.outputs import OUTPUT_PREFIX, Outputs
from orchestrator.workspace.texts import decode

MAX_KEPT = 50_000_000
"""Bytes of the largest file whose content is kept against what a program may do to it."""
_LOOKS = "paths are relative to the workspace, as 'notes/summary.md'"


class Workspace:
    """The files of one run. Nothing is created before the first file is written.

    Args:
        root: The folder that tools see.
        home: The run's own folder: `outputs/` holds cut texts, `kept/` old content by its SHA-256.
    """

    def __init__(self, root: Path, home: Path) -> None:
        self.root = Path(os.path.realpath(root))
        self.home = Path(os.path.realpath(home))
        self.changes = FileChanges(self.root, self.home / "kept")
        self.outputs = Outputs(self.home / "outputs")
        self._inputs: set[str] = set()

    def copy_inputs(self, paths: Sequence[str | Path], base: Path, targets: Container[str] = ()) -> None:
        """Copy files and folders into the workspace, where they are read-only for every loop.

        Args:
            paths: What to copy, to the top of the workspace by its name; what is in the workspace already stays.
            base: The folder that relative paths start from.
            targets: Inputs that may be changed all the same, by path in the workspace or by name.

        Raises:
            ConfigError: One does not exist, or two would have the same place.
        """
        taken: dict[PurePosixPath, Path] = {}
        for path in paths:
            source = base / path
            if not source.exists():
                siblings = [p.name for p in source.parent.iterdir()] if source.parent.is_dir() else []
                raise ConfigError(f"the input {str(path)!r} does not exist{nearest(source.name, siblings)}", file=base)
            place = self._place_of(source)
            if taken.setdefault(place, source) != source:
                raise ConfigError(f"the inputs {str(taken[place])!r} and {str(source)!r} both go to {str(place)!r}")
            try:
                self._copy(source, self.root / place)
            except (OSError, shutil.Error) as error:
                raise ConfigError(f"the input {str(path)!r} cannot be copied: {error}") from error
            copied = [f"{place}/{f.path}" for f in walk(source)] if source.is_dir() else [str(place)]
            self._inputs.update(f for f in copied if f not in targets and PurePosixPath(f).name not in targets)

    @property
    def read_only(self) -> tuple[str, ...]:
        """Files that no loop may change."""
        return tuple(sorted(self._inputs))

    def restore(self, read_only: Iterable[str], changes: Iterable[ArtifactStored]) -> None:
        """Take in what the log of an interrupted run says of its files."""
        self._inputs.update(read_only)
        for change in changes:
            self.changes.record(change)

    def _place_of(self, source: Path) -> PurePosixPath:
        real = source.resolve()
        return PurePosixPath(real.relative_to(self.root) if real.is_relative_to(self.root) else real.name)

    def files(self) -> list[FileInfo]:
        """Return the files of the workspace, sorted by path."""
        return walk(self.root)

    def listing(self, limit: int = 50) -> str:
        """Return the workspace's files as lines of path and size, the first `limit` of them."""
        return format_files(self.files(), limit)

    def without_path(self, text: str) -> str:
        """Return a text with this workspace's place on disk replaced: the same for every run."""
        return text.replace(str(self.root), "/workspace")

    def sources(self, name: str | None = None) -> tuple[str, ...]:
        """Return what strangers may have written that a file, a cut output, or any of them may come from."""
        if name is None:
            return tuple(dict.fromkeys((*self.changes.sources(None), *self.outputs.sources())))
        return self.outputs.sources(name) if name.startswith(OUTPUT_PREFIX) else self.changes.sources(name)

    def for_loop(
        self,
        path: str,
        may_take: Callable[[str], bool],
        on_stored: Callable[[ArtifactStored], None],
        sources: Callable[[], Iterable[str]] = tuple,
    ) -> LoopWorkspace:
        """Return the workspace as the tools of one loop see it.

        Args:
            path: The loop's path.
            may_take: Whether this loop may overwrite what the loop of the given path wrote.
            on_stored: Told of each change, in the order of changes, in the thread that made it. It must not block.
            sources: Tells what strangers may have written that the loop has read.
        """
        return LoopWorkspace(self, path, may_take, on_stored, sources)

    def locate(self, name: str) -> Path:
        """Return where a name that a model wrote leads: a path in the workspace, links resolved.

        Raises:
            ToolError: It is no path, or leads out of the workspace.
        """
        relative = _relative_name(name, self.root)
        path = self.root / relative
        with as_tool_error("find", name):
            if not path.exists() and not relative.isascii():  # the same name may be stored decomposed, or composed
                forms = (self.root / unicodedata.normalize(form, relative) for form in ("NFC", "NFD"))
                path = next((p for p in forms if p.exists()), path)
            real = Path(os.path.realpath(path))  # fails where a program changes a link meanwhile
        if not real.is_relative_to(self.root):
            raise ToolError(f"{name!r} leads out of the workspace; {_LOOKS}")
        if ENGINE_FOLDER in real.relative_to(self.root).parts:
            raise ToolError(f"{name!r} belongs to the engine; {_LOOKS}")
        return real

    def existing(self, name: str) -> Path:
        """Return where an existing file or folder is; full-width and half-width forms of a name count as equal.

        Raises:
            ToolError: There is none; the nearest file is named.
        """
        path = self.locate(name)
        if path.exists():
            return path
        wanted = path.relative_to(self.root).as_posix()
        files = [file.path for file in self.files()]
        same = [f for f in files if _folded(f) == _folded(wanted)]
        if len(same) == 1:
            return self.locate(same[0])
        named = [f for f in files if PurePosixPath(f).name == PurePosixPath(wanted).name]
        hint = f"; did you mean {named[0]!r}?" if named else nearest(wanted, files[:2000])
        raise ToolError(f"there is no {wanted!r} in the workspace{hint or ', it is empty'}")

    def _copy(self, source: Path, target: Path) -> None:
        if target.exists() and source.samefile(target):
            return
        if target.is_file() and (source.is_dir() or source.read_bytes() != target.read_bytes()):
            raise ConfigError(
                f"the workspace holds another {target.name!r} already; use another folder", file=self.root
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, ignore=_left_out)
        else:
            shutil.copy2(source, target)


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

    def _mark(self, path: Path | str) -> None:
        """Note that a file, a cut output, or (as the folder itself) any of them may have been read."""
        name = path if isinstance(path, str) else self.relative(path)
        self._read_from |= dict.fromkeys(self._workspace.sources(None if name == "." else name))

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
        if path.is_dir():
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
            sources=tuple(self._sources()),
        )
        artifact = self._changes.record(change)
        self._on_stored(change)
        return artifact


def _left_out(folder: str, names: list[str]) -> set[str]:
    """What a copied folder leaves out: the runs' own folder, which may hold this very workspace, and keys."""
    return {name for name in names if name in (".ori", ".env")}


def _relative_name(name: str, root: Path) -> str:
    """Return a name as it is below the root, not yet resolved."""
    if not name.strip():
        raise ToolError(f"the path is empty; {_LOOKS}")
    if "\0" in name or not is_utf8(name):
        raise ToolError(f"{name!r} is no path; {_LOOKS}")
    if not name.startswith("/"):
        return name
    for prefix in (root.as_posix(), "/workspace"):
        if name == prefix or name.startswith(prefix + "/"):
            return name[len(prefix) :].lstrip("/")
    raise ToolError(f"{name!r} is outside the workspace; {_LOOKS}")


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name)
