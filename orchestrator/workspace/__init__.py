"""The files of one run: where they lie, and who may write them.

A `Workspace` belongs to a run. A tool sees it through the `LoopWorkspace` of the loop that called it.
"""

from __future__ import annotations

import os
import shutil
import unicodedata
from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path, PurePosixPath

from orchestrator.errors import ConfigError, ToolError, nearest
from orchestrator.events import ArtifactStored
from orchestrator.journal import ENGINE_FOLDER
from orchestrator.workspace.changes import FileChanges
from orchestrator.workspace.files import (
    FileInfo,
    as_tool_error,
    format_files,
    is_utf8,
    walk,
)
from orchestrator.workspace.loop import LoopWorkspace
from orchestrator.workspace.outputs import OUTPUT_PREFIX, Outputs

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
        self.closed = False

    def close(self) -> None:
        """Let no loop change files any more: the run is over, though a tool that was left behind may still work."""
        with self.changes.lock:
            self.closed = True

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
                siblings = sorted(p.name for p in source.parent.glob("[!.]*"))
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
