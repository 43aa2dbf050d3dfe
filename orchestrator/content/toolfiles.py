"""Tool files: Python files whose module-level tools a role can name. Found by reading, imported on first use."""

from __future__ import annotations

import ast
import hashlib
import importlib
import re
import sys
import traceback
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType

from orchestrator.errors import ConfigError
from orchestrator.settings import Settings
from orchestrator.tool import Tool, Toolset


class ToolFolder:
    """The tools of one `tools/` folder. A file that nobody asks for is never imported.

    Files that begin with `_` hold no tools; the others can import from them, as `from ._shared import client`.

    Args:
        folder: The folder; it need not exist.
        settings: What the project says of its toolsets.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder, self.settings = folder, settings

    @cached_property
    def files(self) -> list[Path]:
        """Its tool files, by name."""
        return sorted(path for path in self.folder.glob("*.py") if not path.name.startswith("_"))

    @cached_property
    def places(self) -> Mapping[str, list[tuple[Path, int]]]:
        """Where each tool is defined: file and line, read without importing anything."""
        found: defaultdict[str, list[tuple[Path, int]]] = defaultdict(list)
        for file, body in self._bodies.items():
            for name, line in _defined(body) if isinstance(body, list) else ():
                found[name].append((file, line))
        return found

    @property
    def unreadable(self) -> list[ConfigError]:
        """What is wrong with files that are no Python; their tools are missing."""
        return [body for body in self._bodies.values() if isinstance(body, ConfigError)]

    @cached_property
    def _bodies(self) -> dict[Path, list[ast.stmt] | ConfigError]:
        return {file: _read(file) for file in self.files}

    def tool(self, name: str) -> Tool:
        """Import the file that defines a tool and return it.

        Raises:
            ConfigError: The tool is defined twice, or its file cannot be imported.
        """
        first, *others = self.places[name]
        if others:
            raise self.twice(name)
        tools = self.load(first[0])
        if name not in tools:
            raise ConfigError(f"{name!r} is no tool after the import", file=first[0], line=first[1])
        return tools[name]

    def load(self, file: Path) -> dict[str, Tool]:
        """Import a tool file and return its tools by name, with what the project says of their toolset.

        Raises:
            ConfigError: The import fails, or the settings do not fit.
        """
        tools, toolset = load(file), getattr(_module(file), "toolset", None)
        if not isinstance(toolset, Toolset):
            return tools
        if unset := self.settings.unset("tools", file.stem):
            return {name: replace(tool, missing=lambda: str(unset[0])) for name, tool in tools.items()}
        settings = self.settings.toolset(file.stem, toolset.settings) if toolset.settings else None
        missing = partial(toolset.missing, settings)
        return {name: replace(tool, settings=settings, missing=missing) for name, tool in tools.items()}

    def twice(self, name: str) -> ConfigError:
        """Make the error about a tool that is defined more than once."""
        (first, first_line), (file, line), *_ = self.places[name]
        return ConfigError(f"the tool {name!r} is also defined in {first}:{first_line}", file=file, line=line)

    def advice(self, tool: Tool, file: Path) -> Iterator[ConfigError]:
        """Say what could be better about an imported tool."""
        if tool.name not in self.places:
            message = (
                f"the tool {tool.name!r} is not found without an import; define it at the top level, with its name"
            )
            yield ConfigError(message, file=file)
            return
        for sentence in missing_sentences(tool):
            yield ConfigError(f"tool {tool.name!r}: {sentence}", file=file, line=self.places[tool.name][0][1])


def missing_sentences(tool: Tool) -> list[str]:
    """Return what the description of a tool leaves unsaid, of what a model needs in order to choose it."""
    return [f"no sentence says {what}" for what, words in _SENTENCES.items() if not words.search(tool.description)]


_SENTENCES = {
    "when to use it": re.compile(
        r"(?i)\b(when(ever)?|if you|useful|prefer|instead of|(use|call) (it|this)|use (for|to|before|after))\b"
        r"|时使用|时调用|时候|用于|用来|适用|适合|何时|使用场景|如果|当[^，。]{1,30}时"
    ),
    "what it returns": re.compile(
        r"(?i)\b(return(s|ed)?|yields?|gives? back|answers? with|results? (is|are))\b|返回|输出|结果"
    ),
}


def load(file: Path) -> dict[str, Tool]:
    """Import a tool file, once in the life of the process, and return its tools by name.

    Raises:
        ConfigError: The import fails; with the line of the file that it got to.
    """
    return {value.name: value for value in vars(_module(file)).values() if isinstance(value, Tool)}


def _module(file: Path) -> ModuleType:
    package = _package(file.parent.resolve())
    try:
        return importlib.import_module(f"{package}.{file.stem}")
    except (Exception, SystemExit) as error:  # a tool file is a user's program, and may raise anything
        raise ConfigError(_words(error), file=file, line=_line(error, file.resolve())) from error


def _package(folder: Path) -> str:
    """Make the folder importable under a name of its own, so that two folders may have files of the same name."""
    name = f"ori_tools_{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        package = ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    return name


def _read(file: Path) -> list[ast.stmt] | ConfigError:
    try:
        return ast.parse(file.read_bytes(), str(file)).body
    except (OSError, SyntaxError, ValueError) as error:
        return ConfigError(_words(error), file=file, line=_line(error, file))


def _defined(body: Sequence[ast.stmt]) -> Iterator[tuple[str, int]]:
    """Yield the name and line of each tool that a file defines at its top level."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for decorator in node.decorator_list:
                if _called(decorator) == "tool":
                    yield _given_name(decorator) or node.name, node.lineno
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and _called(node.value) in ("tool", "Tool"):
            call = node.value
            wrapped = call.args[0] if isinstance(call, ast.Call) and call.args else None
            name = _given_name(call) or (wrapped.id if isinstance(wrapped, ast.Name) else None)
            if name:
                yield name, node.lineno


def _called(node: ast.expr | None) -> str | None:
    """Return the last part of the name of what is called, or named without a call."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _given_name(node: ast.expr | None) -> str | None:
    keywords = node.keywords if isinstance(node, ast.Call) else []
    values = [keyword.value for keyword in keywords if keyword.arg == "name"]
    return next((v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)), None)


def _words(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"cannot be imported: {type(error).__name__}: {text}"


def _line(error: BaseException, file: Path) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if Path(frame.filename) == file), None)
