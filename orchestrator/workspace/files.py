"""Files on the disk: listing, safe reading, writing in one step, and how they are shown."""

from __future__ import annotations

import errno
import mimetypes
import os
import stat
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
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
            with suppress(OSError):  # a program at work may remove it at any moment
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
    with as_tool_error("read", name), open_regular(path) as stream:
        if (size := os.fstat(stream.fileno()).st_size) > MAX_READ:
            raise ToolError(f"{name!r} is too large to read: {format_size(size)}")
        return stream.read()


@contextmanager
def open_regular(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file for reading, by its resolved path; a link that a program put on the way since is refused.

    Raises:
        OSError: It cannot be opened, or is something else.
    """
    with open_folder(path.parent) as folder:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(path.name, flags, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        yield stream


@contextmanager
def open_folder(path: Path, *, create: bool = False) -> Iterator[int]:
    """Open a folder by its resolved path, for what takes a `dir_fd`; a link put on the way since is refused.

    Args:
        path: The folder.
        create: Make it, and those above it, where they are missing.
    """
    descriptor = os.open(path.anchor, _FOLDER)
    try:
        for part in path.parts[1:]:
            above, descriptor = descriptor, _enter(part, descriptor, create)
            os.close(above)
        yield descriptor
    finally:
        os.close(descriptor)


_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW


def _enter(part: str, above: int, create: bool) -> int:
    try:
        return os.open(part, _FOLDER, dir_fd=above)
    except FileNotFoundError:
        if not create:
            raise
    with suppress(FileExistsError):
        os.mkdir(part, dir_fd=above)
    return os.open(part, _FOLDER, dir_fd=above)


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


def remove(path: Path) -> None:
    """Delete a file by its resolved path."""
    with open_folder(path.parent) as folder:
        os.unlink(path.name, dir_fd=folder)


def replace(path: Path, data: bytes) -> None:
    """Write a file by its resolved path in one step: whoever reads it sees the old content or the new one.

    Its mode stays, and its folders are made.
    """
    draft = f".ori-{uuid.uuid4().hex}"
    with open_folder(path.parent, create=True) as folder:
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
                with suppress(FileNotFoundError):
                    os.fchmod(descriptor, os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode & 0o7777)
            os.replace(draft, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=folder)


@contextmanager
def as_tool_error(verb: str, name: str) -> Iterator[None]:
    """Turn what the operating system refuses inside the block into words for the model."""
    try:
        yield
    except IsADirectoryError as error:
        raise ToolError(f"{name!r} is a folder; name a file in it") from error
    except OSError as error:
        raise ToolError(f"cannot {verb} {name!r}: {(error.strerror or str(error)).lower()}") from error
