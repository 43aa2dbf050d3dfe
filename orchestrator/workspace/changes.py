"""What a run changed in its files, and what was there before. Both are read from its `ArtifactStored` events."""

from __future__ import annotations

import hashlib
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.events import ArtifactStored
from orchestrator.results import Artifact
from orchestrator.workspace.files import open_regular, remove, replace


@dataclass(frozen=True, slots=True)
class Undone:
    """What an undo did."""

    restored: list[str] = field(default_factory=list)
    """Files that have their old content again."""
    deleted: list[str] = field(default_factory=list)
    """Files that were created, and are gone now."""
    left: list[str] = field(default_factory=list)
    """Files that were left alone, each with the reason, as `report.md: …`."""


class FileChanges:
    """The changes of one run's files, named relative to their folder.

    Args:
        root: The folder.
        kept: Where old contents are kept, each under its SHA-256; made with the first one.
    """

    def __init__(self, root: Path, kept: Path) -> None:
        self._root, self._kept = root, kept
        self._of: defaultdict[str, list[ArtifactStored]] = defaultdict(list)
        self.lock = threading.Lock()
        """Held from a look at a file until its change is recorded: tools run in threads."""

    def record(self, change: ArtifactStored) -> Artifact:
        """Take in the next change of a file, and return what the file is now."""
        self._of[change.file].append(change)
        return _artifact(change)

    def __iter__(self) -> Iterator[ArtifactStored]:
        """Yield every change so far, those of one file in their order."""
        for changes in tuple(self._of.values()):
            yield from changes

    def last(self, file: str) -> ArtifactStored | None:
        """Return the latest change of a file."""
        changes = self._of.get(file)
        return changes[-1] if changes else None

    def artifacts(self) -> tuple[Artifact, ...]:
        """Return what the run wrote and is still there, sorted by path."""
        last = (self.last(file) for file in sorted(self._of))
        return tuple(_artifact(change) for change in last if change and change.size is not None)

    def strayed(self) -> tuple[str, ...]:
        """Return the files that are not as the run left them."""
        return tuple(f for f in sorted(self._of) if (c := self.last(f)) and c.sha256 != self.sha256(f))

    def sources(self, file: str | None = None) -> tuple[str, ...]:
        """Return what strangers may have written that a file, or any file, may come from."""
        last = map(self.last, tuple(self._of) if file is None else [file])
        return tuple(dict.fromkeys(source for change in last if change for source in change.sources))

    def sha256(self, file: str) -> str | None:
        """Return the SHA-256 of what a file holds now; None: there is none."""
        try:
            with open_regular(self._root / file) as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest()
        except FileNotFoundError:
            return None

    def before(self, file: str, by: str) -> str | None:
        """Keep what a file holds before a loop changes it, and return its SHA-256; None: the loop itself wrote it."""
        sha256, last = self.sha256(file), self.last(file)
        if sha256 is None or (last and last.path == by and last.sha256 == sha256):
            return None
        self.keep(file, sha256)
        return sha256

    def keep(self, file: str, sha256: str) -> None:
        """Keep the content of a file, which has this SHA-256."""
        if not (self._kept / sha256).exists():
            with open_regular(self._root / file) as stream:
                replace(self._kept / sha256, stream.read())

    def content(self, change: ArtifactStored) -> bytes | None:
        """Return what a file held after a change; None: that is lost."""
        kept = self._kept / (change.sha256 or "-")
        if kept.exists():
            return kept.read_bytes()
        if change.sha256 is None or self.sha256(change.file) != change.sha256:
            return None
        with open_regular(self._root / change.file) as stream:
            return stream.read()

    def put_back(self, file: str, sha256: str | None) -> bool:
        """Give a file an old content; False: that was not kept."""
        if sha256 is None or not (self._kept / sha256).exists():
            return False
        replace(self._root / file, (self._kept / sha256).read_bytes())
        return True

    def undo(self, changes: Iterable[ArtifactStored], *, force: bool = False) -> Undone:
        """Put back what was there before these changes.

        Args:
            changes: All that the run, or a subtask, did, in their order.
            force: Also where somebody else changed the file since.
        """
        by_file: defaultdict[str, list[ArtifactStored]] = defaultdict(list)
        for change in changes:
            by_file[change.file].append(change)
        undone = Undone()
        with self.lock:
            for file, own in by_file.items():
                try:
                    done = self._undo(file, own, force, undone)
                except OSError as error:  # a program put a link or a folder in its place
                    undone.left.append(f"{file}: {(error.strerror or str(error)).lower()}")
                    continue
                if done:
                    loops = {change.path for change in own}
                    self._of[file] = [change for change in self._of[file] if change.path not in loops]
        return undone

    def _undo(self, file: str, own: Sequence[ArtifactStored], force: bool, undone: Undone) -> bool:
        """Put back one file; False: it was left alone."""
        before, now = own[0].before, self.sha256(file)
        if now == before:
            return True
        if now != own[-1].sha256 and not force:
            undone.left.append(f"{file}: it was changed since")
            return False
        if own[0].created:
            remove(self._root / file)
            undone.deleted.append(file)
        elif not self.put_back(file, before):
            undone.left.append(f"{file}: its old content was not kept")
            return False
        else:
            undone.restored.append(file)
        return True


def _artifact(change: ArtifactStored) -> Artifact:
    return Artifact(
        path=change.file,
        size=change.size or 0,
        sha256=change.sha256 or "",
        media_type=change.media_type,
        by=change.path,
        untrusted=bool(change.sources),
    )
