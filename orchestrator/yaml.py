"""Reading YAML: version 1.2, a key may stand only once, and every message names file and line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from orchestrator.document import Document, Place
from orchestrator.errors import ConfigError


def read(file: Path) -> Document:
    """Read a YAML file that holds one mapping.

    Raises:
        ConfigError: It cannot be read, is not YAML 1.2, names a key twice, or holds something else.
    """
    from ruamel.yaml import YAML, MappingNode
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    text = read_text(file)
    try:
        root = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = f"{error.problem}{_hint(error.problem or '', text)}"
        raise ConfigError(said, file=file, line=mark.line + 1 if mark else None) from None
    except YAMLError as error:
        raise ConfigError(f"is not YAML: {error}", file=file) from None
    if root is None:
        return Document(file, {}, {})
    if not isinstance(root, MappingNode):
        raise ConfigError("holds no mapping; write `key: value` lines", file=file, line=1)
    lines: dict[Place, int] = {}
    return Document(file, _Reader(file, lines).value(root, ()), lines)


def _hint(problem: str, text: str) -> str:
    """Say what to write instead, where a tab or a Chinese colon is what YAML stumbles over."""
    if r"'\t'" in problem:
        return "; indent with spaces, not tabs"
    wide = re.search(r"^[ -]*\w+：", text, re.MULTILINE)
    return f"; write ': ' for '：' in line {text.count(chr(10), 0, wide.end()) + 1}" if wide else ""


def read_text(file: Path) -> str:
    """Return the text of a file of the project.

    Raises:
        ConfigError: It cannot be read, or is not UTF-8.
    """
    try:
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=file) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8 (byte {error.start}); save it as UTF-8", file=file) from None


class _Reader:
    """Turns nodes into plain values and notes their lines."""

    def __init__(self, file: Path, lines: dict[Place, int]) -> None:
        self.file, self.lines = file, lines
        self.open: set[int] = set()

    def value(self, node: Any, place: Place) -> Any:
        if isinstance(node.value, str):
            return _scalar(node)
        if id(node) in self.open:
            raise ConfigError("an alias contains itself", file=self.file, line=node.start_mark.line + 1)
        self.open.add(id(node))
        try:
            return self._mapping(node, place) if node.tag.endswith(":map") else self._sequence(node, place)
        finally:
            self.open.discard(id(node))

    def _mapping(self, node: Any, place: Place) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node.value, str):
                raise ConfigError("a key must be text", file=self.file, line=line)
            key = key_node.value
            if key in result:
                first = self.lines[*place, key]
                raise ConfigError(f"the key {key!r} stands twice, first in line {first}", file=self.file, line=line)
            self.lines[*place, key] = line
            result[key] = self.value(value_node, (*place, key))
        return result

    def _sequence(self, node: Any, place: Place) -> list[Any]:
        result = []
        for index, item in enumerate(node.value):
            self.lines[*place, index] = item.start_mark.line + 1
            result.append(self.value(item, (*place, index)))
        return result


def _scalar(node: Any) -> Any:
    plain = node.style is None and node.tag.startswith("tag:yaml.org,2002:") and not node.tag.endswith(":str")
    return scalar(node.value) if plain else node.value


_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def scalar(text: str) -> Any:
    """Return the value of a plain scalar by the rules of YAML 1.2: null, true, 12, 0.5, else the text itself."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text.lower() in ("true", "false") and text in (text.lower(), text.title(), text.upper()):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text
