"""Which command lines an allow list covers. Pure.

A line is taken apart by a grammar that is much smaller than a shell's, and written anew from its parts with every word
quoted, so that the shell sees nothing that was not understood here. What the grammar does not have is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from orchestrator.errors import ToolError

_NAMES = """
    sh bash dash ash zsh ksh fish csh tcsh busybox toybox command builtin exec eval source . trap alias
    env xargs parallel nohup nice ionice chrt taskset setsid timeout time stdbuf unbuffer script watch flock setarch
    unshare nsenter chroot sudo doas su runuser pkexec ssh scp sftp systemd-run at batch crontab tmux screen entr
    python pypy perl ruby node deno bun php lua tclsh awk gawk mawk nawk sed ed ex vi vim nvim emacs less more man m4 dc
    gdb lldb strace ltrace make cmake ninja tar zip rsync docker podman kubectl expect socat nc ncat
    npx npm pnpm yarn uv uvx pip pipx cargo go java
"""
_RUNNERS = frozenset(_NAMES.split())
"""Programs that run others, or programs written in their arguments."""

_OPTIONS = {
    "find": "-exec -execdir -ok -okdir -delete -fprint -fprint0 -fprintf -fls",
    "git": "-c -x -O --config-env --exec --exec-path --ext-diff --open-files-in-pager --upload-pack --receive-pack "
    "--textconv",
    "sort": "--compress-program",
    "split": "--filter",
    "rg": "--pre --hostname-bin",
    "fd": "-x -X --exec --exec-batch",
}
"""Options by which other programs run some, or (find) write and delete."""

_OPERATORS = ("&&", "||", ";", "|", "\n")
_DISCARDS = re.compile(r"2>&1|[12]?>[ \t]*/dev/null|<[ \t]*/dev/null")
"""The only redirections: they touch no file."""
_PLAIN = re.compile(r"[^\s'\"\\$`|&;<>(){}*?\[\]~#!]+")
_SINGLE = re.compile(r"'([^']*)'")
_ESCAPED = re.compile(r"\\([^\n])")
_PATTERN = re.compile(r"[*?]")
_INNER = re.compile(r"[~#!]")
"""What means something to a shell only at the beginning of a word."""
_DOUBLE = re.compile(r'"((?:[^"\\$`]|\\["\\$`])*)"')


@dataclass(slots=True)
class _Word:
    text: str = ""
    """What the program gets."""
    shell: str = ""
    """How the shell has to read it."""
    pattern: bool = False
    """The shell replaces it by names of files."""

    def add(self, text: str) -> None:
        self.text += text
        self.shell += "'" + text.replace("'", "'\\''") + "'"


@dataclass(slots=True)
class _Segment:
    """One command of a line."""

    words: list[_Word] = field(default_factory=list)
    redirections: list[str] = field(default_factory=list)
    ends: str = ""
    """The operator after it."""

    @property
    def texts(self) -> list[str]:
        return [word.text for word in self.words]

    def __str__(self) -> str:
        return " ".join([*self.texts, *self.redirections])


@dataclass(frozen=True, slots=True)
class _Entry:
    words: tuple[str, ...]
    anything: bool
    """Whether any arguments may follow, whatever the program does with them."""

    @classmethod
    def read(cls, text: str) -> _Entry:
        anything = text.split()[-1:] == ["*"]
        if text.strip() == "*":
            return cls((), anything)
        try:
            [first, *others] = _parse(text.rstrip().removesuffix("*") if anything else text)
        except ToolError as error:
            raise ValueError(f"{text!r} is no beginning of a command: {error}") from None
        if others or first.redirections or any(word.pattern for word in first.words):
            raise ValueError(f"{text!r} is more than one plain command; write the words that it begins with")
        return cls(tuple(first.texts), anything)

    def __str__(self) -> str:
        return " ".join((*self.words, "*") if self.anything else self.words)

    def covers(self, segment: _Segment) -> bool:
        texts = tuple(segment.texts)
        if texts[: len(self.words)] != self.words or segment.words[0].pattern or "=" in texts[0]:
            return False
        if self.anything or not (_program(texts[0]) in _RUNNERS or _risky(texts)):
            return True
        return texts == self.words and not any(word.pattern for word in segment.words)


@dataclass(frozen=True, slots=True)
class AllowList:
    """Commands that may run.

    An entry is the beginning of a command: `ls`, `git status`; any arguments may follow. Programs that run others
    (`env`, `xargs`, `sh`, `python`, …) are covered only by an entry with all of their arguments, or by one that ends in
    `*`, as `python *`; so are options by which others do, as `find -exec`. The entry `*` alone covers everything.
    It says which programs run, not what they do: one that may run may be led by the files that it reads.
    """

    entries: tuple[_Entry, ...]

    @classmethod
    def read(cls, texts: Iterable[str]) -> AllowList:
        """Read entries.

        Raises:
            ValueError: One is no beginning of a command.
        """
        return cls(tuple(map(_Entry.read, texts)))

    def checked(self, line: str) -> str:
        """Return the line as a shell may run it.

        Raises:
            ToolError: A command in it is not covered, or a part of it cannot be told apart for sure.
        """
        if "\0" in line:
            raise ToolError("a command holds no NUL character")
        if any(entry.anything and not entry.words for entry in self.entries):
            return line
        segments = _parse(line)
        for segment in segments:
            if not any(entry.covers(segment) for entry in self.entries):
                allowed = ", ".join(map(str, self.entries)) or "nothing"
                raise ToolError(f"{str(segment)!r} is not allowed; allowed: {allowed}{_why(segment)}")
        return "".join(
            " ".join([*(word.shell for word in segment.words), *segment.redirections]) + f" {segment.ends} "
            for segment in segments
        ).rstrip(" ")


def _why(segment: _Segment) -> str:
    words = segment.texts
    if "=" in words[0]:
        return "; variables cannot be set for a command"
    if option := _risky(words):
        return f"; with {option} it could do more than the list says"
    return f"; {words[0]} runs other programs" if _program(words[0]) in _RUNNERS else ""


def _program(word: str) -> str:
    """Return the name of a program without its folder and version: `/usr/bin/python3.11` is python."""
    return re.sub(r"[-\d.]+$", "", PurePosixPath(word).name) or word


def _risky(words: Sequence[str]) -> str | None:
    """Return the first argument that may be, or abbreviate, one of the options that need an entry of their own."""
    options = _OPTIONS.get(_program(words[0]), "").split()
    for word in words[1:]:
        name = word.partition("=")[0]
        for option in options:
            single = len(option) == 2
            if (
                name == option
                or (option.startswith("--") and len(name) > 2 and option.startswith(name))
                or (single and re.match(rf"-[A-Za-z]*{option[1]}", word) and not word.startswith("--"))
            ):
                return word
    return None


def _parse(line: str) -> list[_Segment]:
    segments = [segment for segment in _segments(line) if str(segment) or segment.ends not in ("\n", "")]
    if segments and segments[-1].ends in (";", "\n"):
        segments[-1].ends = ""
    if not segments or segments[-1].ends or not all(segment.words for segment in segments):
        raise ToolError("a command is missing: before, after or between operators")
    return segments


def _segments(line: str) -> Iterator[_Segment]:
    segment, position = _Segment(), 0
    while True:
        while line[position : position + 1] in (" ", "\t"):
            position += 1
        if position == len(line):
            yield segment
            return
        if discard := _DISCARDS.match(line, position):
            if discard.end() < len(line) and not re.match(r"[\s;&|]", line[discard.end()]):
                raise _unclear(line, position)
            segment.redirections.append(discard[0])
            position = discard.end()
        elif operator := next((o for o in _OPERATORS if line.startswith(o, position)), None):
            if operator == "|" and line.startswith("|&", position):
                raise _unclear(line, position)
            segment.ends = operator
            yield segment
            segment, position = _Segment(), position + len(operator)
        else:
            word, position = _word(line, position)
            segment.words.append(word)


def _word(line: str, start: int) -> tuple[_Word, int]:
    word, position = _Word(), start
    while position < len(line) and line[position] not in " \t\n|&;":
        if match := _SINGLE.match(line, position):
            word.add(match[1])
        elif match := _DOUBLE.match(line, position):
            word.add(re.sub(r'\\(["\\$`])', r"\1", match[1]))
        elif match := _ESCAPED.match(line, position):
            word.add(match[1])
        elif match := _PATTERN.match(line, position):
            if not word.text:
                word.shell += "./"  # a file's name that begins with a dash must not become an option
            elif word.text.startswith("-"):
                raise _unclear(line, position)
            word.text += match[0]
            word.shell += match[0]
            word.pattern = True
        elif (match := _PLAIN.match(line, position)) or (position > start and (match := _INNER.match(line, position))):
            word.add(match[0])
        else:
            raise _unclear(line, position)
        position = match.end()
    if position == start:
        raise _unclear(line, position)
    return word, position


def _unclear(line: str, position: int) -> ToolError:
    return ToolError(
        f"{line[position : position + 10]!r} cannot be judged (character {position + 1}); a command is plain words and "
        "quotes, joined by ; && || | or in lines; no variables, substitutions, groups, background, redirection to files"
    )
