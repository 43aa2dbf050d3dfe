"""One owner per run: a lock file each, which the system frees when its process dies."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import JournalError

if TYPE_CHECKING:
    from filelock import BaseFileLock

_TRIES, _PAUSE = 4, 0.05
"""How often an owner is asked for, who may be about to leave, and the seconds in between."""


class Owners:
    """The owners of the runs of one database.

    Args:
        folder: Holds a file for each run that is being worked on; made at the first use.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @asynccontextmanager
    async def own(self, run: str) -> AsyncIterator[None]:
        """Be the only one who works on a run.

        Raises:
            JournalError: Somebody else works on it, or the folder cannot be written.
        """
        lock = await self._take(run)
        try:
            yield
        finally:
            _release(lock)

    def held(self, run: str) -> bool:
        """Whether somebody works on a run. A look takes a share of the lock: others may look at the same time."""
        import fcntl

        try:
            with self._file(run).open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    async def _take(self, run: str) -> BaseFileLock:
        tries = _TRIES
        while tries:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                return _acquire(self._file(run))
            except TimeoutError:
                tries -= self.held(run)  # else it was only looked at, for an instant
                await asyncio.sleep(_PAUSE)
            except OSError as error:
                raise JournalError(f"cannot lock run {run}: {error}")
        pid = ""
        with suppress(OSError):
            pid = self._file(run).read_text().strip()
        raise JournalError(f"run {run} is already being worked on (pid {pid or 'unknown'})")

    def _file(self, run: str) -> Path:
        return self._folder / f"{run}.lock"


def _acquire(file: Path) -> BaseFileLock:
    from filelock import FileLock

    lock = FileLock(file, blocking=False)
    lock.acquire()
    file.write_text(f"{os.getpid()}\n")
    return lock


def _release(lock: BaseFileLock) -> None:
    with suppress(OSError):  # Windows keeps a file that is open
        Path(lock.lock_file).unlink()
    lock.release()
