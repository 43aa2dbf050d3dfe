"""The files of one run: where they lie, who may write them, and what was there before.

A `Workspace` belongs to a run. A tool sees it through the `LoopWorkspace` of the loop that called it. The changes are
`ArtifactStored` events; owners, artifacts and undo are read from them.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import shutil
import threading
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from orchestrator.errors import ConfigError, ToolError, nearest
from orchestrator.events import ArtifactStored
from orchestrator.files import (
    ENGINE_FOLDER,
    FileInfo,
    as_tool_error,
    format_files,
    is_utf8,
    media_type,
    open_regular,
    read_regular,
    remove,
    replace,
    walk,
)
from orchestrator.results import Artifact
from orchestrator.texts import decode

OUTPUT_PREFIX = "out:"
MAX_KEPT = 50_000_000
"""Bytes of the largest file whose content is kept against what a program may do to it."""
_LOOKS = "paths are relative to the workspace, as 'notes/summary.md'"


@dataclass(frozen=True, slots=True)
class Undone:
    """What an undo did."""

    restored: list[str] = field(default_factory=list)
    """Files that have their old content again."""
    deleted: list[str] = field(default_factory=list)
    """Files that were created, and are gone now."""
    left: list[str] = field(default_factory=list)
    """Files that were left alone, each with the reason, as `report.md: …`."""


class Workspace:
    """The files of one run. Nothing is created before the first file is written.

    Args:
        root: The folder that tools see.
        home: The run's own folder: `outputs/` holds cut texts, `kept/` old content by its SHA-256.
    """

    def __init__(self, root: Path, home: Path) -> None:
        self.root = Path(os.path.realpath(root))
        self.home = Path(os.path.realpath(home))
        self._inputs: set[str] = set()
        self._changes: defaultdict[str, list[ArtifactStored]] = defaultdict(list)
        self._outputs: dict[str, tuple[str, ...]] = {}
        self._lock = threading.Lock()  # tools run in threads

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
            self._changes[change.file].append(change)

    def changed(self) -> tuple[str, ...]:
        """Return the files that are not as the run left them."""
        return tuple(f for f, changes in sorted(self._changes.items()) if changes[-1].sha256 != self._sha256(f))

    def _place_of(self, source: Path) -> PurePosixPath:
        real = source.resolve()
        return PurePosixPath(real.relative_to(self.root) if real.is_relative_to(self.root) else real.name)

    def files(self) -> list[FileInfo]:
        """Return the files of the workspace, sorted by path."""
        return walk(self.root)

    def listing(self, limit: int = 50) -> str:
        """Return the workspace's files as lines of path and size, the first `limit` of them."""
        return format_files(self.files(), limit)

    def artifacts(self) -> tuple[Artifact, ...]:
        """Return what the run wrote and is still there, sorted by path."""
        last = [changes[-1] for _, changes in sorted(self._changes.items()) if changes]
        return tuple(_artifact(change) for change in last if change.size is not None)

    def changes(self) -> list[ArtifactStored]:
        """Return every change of a file by the run so far, those of one file in their order."""
        return [change for changes in self._changes.values() for change in changes]

    def without_path(self, text: str) -> str:
        """Return a text with this workspace's place on disk replaced: the same for every run."""
        return text.replace(str(self.root), "/workspace")

    def sources(self, file: str | None = None) -> tuple[str, ...]:
        """Return what strangers may have written that a file may come from, or any file, or a cut output."""
        if file is not None and file.startswith(OUTPUT_PREFIX):
            return self._outputs.get(file, ())
        files = self._changes if file is None else [file]
        last = [changes[-1] for name in tuple(files) if (changes := self._changes.get(name))]
        return tuple(dict.fromkeys(source for change in last for source in change.sources))

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

    def undo(self, changes: Iterable[ArtifactStored], *, force: bool = False) -> Undone:
        """Put back what was there before these changes of a run, or of a subtask.

        Args:
            changes: All `artifact.stored` events of the run, or of the subtask, in their order.
            force: Also where somebody else changed the file since.
        """
        by_file: defaultdict[str, list[ArtifactStored]] = defaultdict(list)
        for change in changes:
            by_file[change.file].append(change)
        undone = Undone()
        with self._lock:
            for file, own in by_file.items():
                if self._undo_file(file, own, force, undone):
                    loops = {change.path for change in own}
                    self._changes[file] = [change for change in self._changes[file] if change.path not in loops]
        return undone

    def _undo_file(self, file: str, own: Sequence[ArtifactStored], force: bool, undone: Undone) -> bool:
        """Put back one file; False: it was left alone."""
        path, before, now = self.locate(file), own[0].before, self._sha256(file)
        if now == before:
            return True
        if now != own[-1].sha256 and not force:
            undone.left.append(f"{file}: it was changed since")
            return False
        if own[0].created:
            remove(path)
            undone.deleted.append(file)
        elif not self._put_back(path, before):
            undone.left.append(f"{file}: its old content was not kept")
            return False
        else:
            undone.restored.append(file)
        return True

    def _put_back(self, path: Path, sha256: str | None) -> bool:
        """Give a file an old content; False: that was not kept."""
        if sha256 is None or not self._kept(sha256).exists():
            return False
        replace(path, self._kept(sha256).read_bytes())
        return True

    def store_output(self, key: str, text: str, sources: tuple[str, ...] = ()) -> str:
        """Keep a text that was cut from a conversation.

        Args:
            key: The record's key, as `ori/collect:3:tool.0`.
            text: The whole text.
            sources: What strangers may have written that it may come from.

        Returns:
            Its handle, `out:<key>`.
        """
        replace(self._output(key), text.encode("utf-8", "replace"))
        self._outputs[OUTPUT_PREFIX + key] = sources
        return OUTPUT_PREFIX + key

    def has_output(self, key: str) -> bool:
        """Whether a text is kept under this key."""
        return self._output(key).is_file()

    def read_output(self, handle: str) -> str:
        """Return the whole text behind a handle.

        Raises:
            ToolError: There is no such handle; the nearest one is named.
        """
        path = self._output(handle.removeprefix(OUTPUT_PREFIX))
        if handle.startswith(OUTPUT_PREFIX) and path.is_file():
            return path.read_text(encoding="utf-8")
        known = [OUTPUT_PREFIX + unquote(p.stem) for p in self._output("").parent.glob("*.txt")]
        raise ToolError(f"there is no output {handle!r}{nearest(handle, sorted(known)) or '; nothing was cut so far'}")

    def _output(self, key: str) -> Path:
        name = re.sub(r"[^\w.@~-]", lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), key)
        if len(name.encode()) > 200:  # a file name has at most 255 bytes; "=" cannot come from above
            name = f"{name[:40]}={hashlib.sha256(key.encode()).hexdigest()}"
        return self.home / "outputs" / f"{name}.txt"

    def _kept(self, sha256: str) -> Path:
        return self.home / "kept" / sha256

    def _keep(self, file: str, by: str) -> str | None:
        """Keep a file's content before it changes, unless it is the loop's own last version; return its SHA-256."""
        sha256 = self._sha256(file)
        changes = self._changes[file]
        if sha256 is None or (changes and changes[-1].path == by and changes[-1].sha256 == sha256):
            return None
        self._store_content(file, sha256)
        return sha256

    def _store_content(self, file: str, sha256: str) -> None:
        if not self._kept(sha256).exists():
            with open_regular(self.root / file) as stream:
                replace(self._kept(sha256), stream.read())

    def _sha256(self, file: str) -> str | None:
        try:
            with open_regular(self.root / file) as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest()
        except FileNotFoundError:
            return None

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
        self._sources = sources
        self._read_from: dict[str, None] = {}

    def read_from(self) -> tuple[str, ...]:
        """Return what strangers may have written of what was read since the last time, and forget it."""
        read, self._read_from = self._read_from, {}
        return tuple(read)

    def _mark(self, path: Path | str) -> None:
        """Note that a file, a cut output, or (as the folder itself) any file may have been read."""
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
            return self.read_output(name)
        return decode(self.read(name), name, encoding)

    def read_output(self, handle: str) -> str:
        """Return the whole text behind a handle `out:…`; see `Workspace.read_output`."""
        self._mark(handle)
        return self._workspace.read_output(handle)

    def write(self, name: str, data: bytes) -> Artifact:
        """Write a file in one step, with its folders; the content that another left there is kept for undo.

        Raises:
            ToolError: The file belongs to another loop, is an input, or cannot be written.
        """
        with self._workspace._lock, as_tool_error("write", name):
            path = self._take(name)
            created, before = not path.exists(), self._workspace._keep(self.relative(path), self._path)
            replace(path, data)
            return self._stored(self.relative(path), len(data), hashlib.sha256(data).hexdigest(), before, created)

    def delete(self, name: str) -> None:
        """Delete a file; the content that another left there is kept for undo.

        Raises:
            ToolError: There is none, it belongs to another loop, or is an input.
        """
        with self._workspace._lock, as_tool_error("delete", name):
            path = self._take(name, self._workspace.existing(name))
            before = self._workspace._keep(self.relative(path), self._path)
            remove(path)
            self._stored(self.relative(path), None, None, before, False)

    def keep(self, file: str) -> str | None:
        """Keep the content of a file against what a program may do to it; return its SHA-256, None where that fails.

        Args:
            file: As a listing names it.
        """
        with suppress(OSError):
            sha256 = self._workspace._sha256(file)
            if sha256 and (self.root / file).stat().st_size <= MAX_KEPT:
                self._workspace._store_content(file, sha256)
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
        with self._workspace._lock, as_tool_error("look at", file):
            sha256, changes = self._workspace._sha256(file), self._workspace._changes[file]
            if sha256 == (changes[-1].sha256 if changes else before):
                return None
            path = self.root / file
            if fault := self._fault(file):
                done = self._workspace._put_back(path, before)
                return f"{fault}; " + ("what the program did to it was undone" if done else "it cannot be put back")
            size = None if sha256 is None else path.lstat().st_size
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
        changes = self._workspace._changes[file]
        return changes[-1].path if changes and changes[-1].size is not None else self._path

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
        self._workspace._changes[change.file].append(change)
        self._on_stored(change)
        return _artifact(change)


def _artifact(change: ArtifactStored) -> Artifact:
    return Artifact(
        path=change.file,
        size=change.size or 0,
        sha256=change.sha256 or "",
        media_type=change.media_type,
        by=change.path,
        untrusted=bool(change.sources),
    )


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
