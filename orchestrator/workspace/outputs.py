"""Texts that were cut from conversations: each whole, in a file of its own, under the handle `out:<key>`."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from urllib.parse import unquote

import orjson

from orchestrator.errors import ToolError, nearest
from orchestrator.workspace.files import replace

OUTPUT_PREFIX = "out:"


class Outputs:
    """The texts of one run, and which of them strangers may have written.

    Args:
        folder: Where the texts lie; made with the first one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._marks = folder.with_name(f"{folder.name}-sources")  # beside it: code in a sandbox sees only the texts

    def store(self, key: str, text: str, sources: tuple[str, ...] = ()) -> str:
        """Keep a text.

        Args:
            key: The record's key, as `ori/collect:3:tool.0`.
            text: The whole text.
            sources: What strangers may have written that it may come from.

        Returns:
            Its handle, `out:<key>`.
        """
        mark = self._mark(key)
        if sources:  # the mark comes first: a text without it would pass for the run's own
            replace(mark, orjson.dumps(sources))
        replace(self._file(key), text.encode("utf-8", "replace"))
        if not sources:
            mark.unlink(missing_ok=True)
        return OUTPUT_PREFIX + key

    def holds(self, key: str) -> bool:
        """Whether a text is kept under this key."""
        return self._file(key).is_file()

    def read(self, handle: str) -> str:
        """Return the whole text behind a handle.

        Raises:
            ToolError: There is no such handle; the nearest one is named.
        """
        file = self._file(handle.removeprefix(OUTPUT_PREFIX))
        if handle.startswith(OUTPUT_PREFIX) and file.is_file():
            return file.read_text(encoding="utf-8")
        known = [OUTPUT_PREFIX + unquote(path.stem) for path in self._folder.glob("*.txt")]
        raise ToolError(f"there is no output {handle!r}{nearest(handle, sorted(known)) or '; nothing was cut so far'}")

    def sources(self, handle: str | None = None) -> tuple[str, ...]:
        """Return what strangers may have written that the text behind a handle, or any text, may come from."""
        marks = (
            sorted(self._marks.glob("*.json")) if handle is None else [self._mark(handle.removeprefix(OUTPUT_PREFIX))]
        )
        return tuple(
            dict.fromkeys(source for mark in marks if mark.is_file() for source in orjson.loads(mark.read_bytes()))
        )

    def _mark(self, key: str) -> Path:
        return self._marks / f"{self._file(key).stem}.json"

    def _file(self, key: str) -> Path:
        name = re.sub(r"[^\w.@~-]", lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), key)
        if len(name.encode()) > 200:  # a file name has at most 255 bytes; "=" cannot come from above
            name = f"{name[:40]}={hashlib.sha256(key.encode()).hexdigest()}"
        return self._folder / f"{name}.txt"
