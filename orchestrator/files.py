"""Files on the disk: listing, safe reading, writing in one step, and how they are shown."""

from __future__ import annotations

import mimetypes
import os
import shutil
import stat
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from orchestrator.errors import ToolError

MAX_READ = 200_000_000
"""Bytes of the largest file that is read as a whole."""
_MEDIA_TYPES = {
    ".md": "text/markdown",
    ".csv": "text/csv",
    ".tsv": "text/tab-separated-values",
    ".log": "text/plain",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".py": "text/x-python",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}


class FileInfo(NamedTuple):
    """A file of the workspace."""

    path: str
    """Relative to the workspace, with forward slashes."""
    size: int
    """Bytes."""


def walk(root: Path) -> list[FileInfo]:
    """Return the files below a folder, sorted by path; hidden ones and links that lead out of it are left out."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(folder, name) for name in names if not name.startswith(".")):
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
                continue
            if path.is_file() and is_utf8(str(path)):
                found.append(FileInfo(path.relative_to(root).as_posix(), path.stat().st_size))
    return sorted(found)


def disk_usage(root: Path) -> int:
    """Return the bytes that a folder takes on the disk, hidden files included. A name counts as a block of its own.

    A folder that cannot be looked into counts as endless: a program may have closed it to hide its files.
    """
    total = 0

    def closed(error: OSError) -> None:
        nonlocal total
        total += 2**50 * isinstance(error, PermissionError)

    for _, folders, names, folder in os.fwalk(root, onerror=closed):
        for name in (*folders, *names):
            with suppress(OSError):  # a program at work may have removed it
                total += max(os.stat(name, dir_fd=folder, follow_symlinks=False).st_blocks * 512, 4096)
    return total


def read_regular(path: Path, name: str) -> bytes:
    """Return the content of a resolved path, never through a link put there since, never of a device or a pipe.

    Raises:
        ToolError: It is no regular file, too large, or cannot be read.
    """
    with as_tool_error("read", name):
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(path, flags)
        try:
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                raise ToolError(f"{name!r} is a folder; name a file in it")
            if not stat.S_ISREG(status.st_mode):
                raise ToolError(f"{name!r} is no regular file")
            if status.st_size > MAX_READ:
                raise ToolError(f"{name!r} is too large to read: {format_size(status.st_size)}")
            with os.fdopen(descriptor, "rb", closefd=False) as stream:
                return stream.read()
        finally:
            os.close(descriptor)


def media_type(name: str) -> str:
    """Return the media type of a file by its name."""
    known = _MEDIA_TYPES.get(PurePosixPath(name).suffix.lower())
    return known or mimetypes.guess_type(name)[0] or "application/octet-stream"


def format_size(size: int) -> str:
    """Return a number of bytes for people, as `12.3 kB`."""
    if size < 1000:
        return f"{size} B"
    return f"{size / 1000:.1f} kB" if size < 1_000_000 else f"{size / 1_000_000:.1f} MB"


def format_files(files: Sequence[FileInfo], limit: int) -> str:
    """Return files as lines of path and size, the first `limit` of them and how many more there are."""
    lines = [f"{file.path} ({format_size(file.size)})" for file in files[:limit]]
    if len(files) > limit:
        lines.append(f"… and {len(files) - limit} more")
    return "\n".join(lines)


def is_utf8(name: str) -> bool:
    """Tell whether a name can be written down; names of other encodings come from the disk with surrogates in them."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def replace(path: Path, data: bytes) -> None:
    """Write a file in one step: whoever reads it sees the old content or the new one. Its mode stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.parent / f".ori-{uuid.uuid4().hex}"
    try:
        with draft.open("xb") as stream:
            stream.write(data)
        if path.exists():
            shutil.copymode(path, draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def as_tool_error(verb: str, name: str) -> Iterator[None]:
    """Turn what the operating system refuses inside the block into words for the model."""
    try:
        yield
    except OSError as error:
        raise ToolError(f"cannot {verb} {name!r}: {(error.strerror or str(error)).lower()}") from error
