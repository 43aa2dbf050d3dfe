"""Checks of a scenario: what must be true of a run's result, its files and its log."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Discriminator, Field, Tag, model_validator

from orchestrator.content.png import read_png
from orchestrator.errors import OriError, nearest
from orchestrator.events import ArtifactStored, Event, MessageAppended, ToolStarted
from orchestrator.results import OutcomeStatus, RunResult, RunStatus
from orchestrator.strict import Strict
from orchestrator.text.figures import stands_in
from orchestrator.workspace import Workspace

SQL_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Whether one check holds."""

    check: str
    """As `file report.md: sql`."""
    passed: bool
    detail: str = ""
    """What was expected and what was found, when it failed."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What checks look at."""

    result: RunResult
    workspace: Path
    events: Sequence[Event]
    inputs: Sequence[Path]
    """The run's input files, as they were."""

    @property
    def tools(self) -> list[str]:
        """Names of the tools that ran, in order of their first call."""
        return list(dict.fromkeys(event.name for event in self.events if isinstance(event, ToolStarted)))

    def observations(self, tool: str) -> list[str]:
        """Return what the calls of a tool gave back, as conversations hold it."""
        calls = {(e.path, e.call_id) for e in self.events if isinstance(e, ToolStarted) and e.name == tool}
        said = [e for e in self.events if isinstance(e, MessageAppended) and e.message.call_id]
        return [e.message.content for e in said if (e.path, e.message.call_id) in calls]


Finding = tuple[str, str | None]
"""A rule of a check, and what is wrong (None: it holds)."""


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from None
    return text


def _inside(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts:
        raise ValueError(f"{path!r} is no path within the workspace, such as report.md")
    return path


def _one_or_more(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Regex = Annotated[str, AfterValidator(_regex)]
Strings = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_one_or_more)]


class _Rules(Strict):
    @model_validator(mode="after")
    def _checks_something(self) -> _Rules:
        if all(getattr(self, name) in (None, ()) for name in type(self).model_fields):
            raise ValueError(f"nothing to check; give one of {', '.join(type(self).model_fields)}")
        return self


class _TextRules(_Rules):
    """What a text must be like."""

    contains: Strings = ()
    """Texts that stand in it."""
    not_contains: Strings = ()
    matches: Regex | None = None
    """A regular expression that is found in it; `^` and `$` also match at line ends."""

    def _text_findings(self, text: str) -> Iterator[Finding]:
        for part in self.contains:
            yield f"contains {part!r}", None if part in text else f"not found in {_head(text)}"
        for part in self.not_contains:
            yield f"does not contain {part!r}", f"found in {_head(text)}" if part in text else None
        if self.matches is not None:
            found = re.search(self.matches, text, re.MULTILINE)
            yield f"matches {self.matches!r}", None if found else f"no match in {_head(text)}"


class ImageRules(_Rules):
    """What a PNG must be like."""

    min_width: int | None = Field(None, ge=1)
    """Pixels."""
    min_height: int | None = Field(None, ge=1)
    """Pixels."""
    not_blank: Literal[True] | None = None
    """Not all of its pixels have one colour."""

    def faults(self, data: bytes) -> Iterator[Finding]:
        """Hold the rules against a file."""
        try:
            image = read_png(data)
        except ValueError as error:
            yield "image", str(error)
            return
        for name, least, found in (
            ("min_width", self.min_width, image.width),
            ("min_height", self.min_height, image.height),
        ):
            if least is not None:
                yield f"image {name}", f"expected {least} pixels, found {found}" if found < least else None
        if self.not_blank:
            yield "image not_blank", "every pixel has the same colour" if image.blank else None


class FileCheck(_TextRules):
    """A file that the run wrote."""

    file: Annotated[str, AfterValidator(_inside)]
    """Relative to the workspace."""
    min_size: int | None = Field(None, ge=1)
    """Bytes."""
    sql: str | None = None
    """A query over the inputs; every value of its result must stand in the file."""
    image: ImageRules | None = None
    """It is a PNG like this."""

    def _findings(self, facts: Facts) -> Iterator[Finding]:
        label = f"file {self.file}"
        fault, data = self._written(facts)
        yield label, fault
        if fault:
            return
        if self.min_size is not None:
            short = len(data) < self.min_size
            yield f"{label}: min_size", f"expected {self.min_size} bytes, found {len(data)}" if short else None
        for rule, problem in self.image.faults(data) if self.image else ():
            yield f"{label}: {rule}", problem
        text = data.decode("utf-8-sig", "replace")
        for rule, problem in self._text_findings(text):
            yield f"{label}: {rule}", problem
        if self.sql is not None:
            yield f"{label}: sql", _missing_figures(self.sql, text, facts)

    def _written(self, facts: Facts) -> tuple[str | None, bytes]:
        stored = [event for event in facts.events if isinstance(event, ArtifactStored)]
        changes = [event for event in stored if PurePosixPath(event.file) == PurePosixPath(self.file)]
        path = facts.workspace / self.file
        if not changes:
            there = "was there before and was" if path.is_file() else "was"
            others = sorted({event.file for event in stored})
            return f"it {there} not written by this run, which wrote {', '.join(others) or 'nothing'}", b""
        if changes[-1].size is None or not path.is_file():
            return "written, and then deleted", b""
        return None, path.read_bytes()


class AnswerRules(_TextRules):
    """What the answer must be like."""

    min_length: int | None = Field(None, ge=1)
    """Characters."""


class AnswerCheck(Strict):
    """The run's answer."""

    answer: AnswerRules

    def _findings(self, facts: Facts) -> Iterator[Finding]:
        text = facts.result.answer
        for rule, problem in self.answer._text_findings(text):
            yield f"answer {rule}", problem
        least = self.answer.min_length
        if least is not None:
            short = len(text) < least
            yield "answer min_length", f"expected {least} characters, found {len(text)}" if short else None


class Bounds(_Rules):
    """A range, its ends included."""

    max: Decimal | None = None
    min: Decimal | None = None

    def fault(self, value: Decimal | int | None) -> str | None:
        """Say why a value is outside, or None."""
        if value is None:
            return "unknown: the model has no price in ori.yaml"
        if self.max is not None and value > self.max:
            return f"expected at most {self.max}, found {value}"
        if self.min is not None and value < self.min:
            return f"expected at least {self.min}, found {value}"
        return None


class UsageRules(_Rules):
    """What the run may cost."""

    model_calls: Bounds | None = None
    tokens: Bounds | None = None
    cost: Bounds | None = None


class UsageCheck(Strict):
    """What the run used."""

    usage: UsageRules

    def _findings(self, facts: Facts) -> Iterator[Finding]:
        used = facts.result.usage
        for name, value in (("model_calls", used.calls), ("tokens", used.tokens), ("cost", used.cost)):
            bounds: Bounds | None = getattr(self.usage, name)
            if bounds is not None:
                yield f"usage {name}", bounds.fault(value)


class ToolsRules(_Rules):
    """Which tools must have run, and which must not."""

    called: Strings = ()
    not_called: Strings = ()


class ToolsCheck(Strict):
    """The tools that ran."""

    tools: ToolsRules

    def _findings(self, facts: Facts) -> Iterator[Finding]:
        ran = facts.tools
        for name in self.tools.called:
            yield f"tool {name} called", None if name in ran else f"called: {', '.join(ran) or 'none'}"
        for name in self.tools.not_called:
            yield f"tool {name} not called", "it was called" if name in ran else None


class ObservationCheck(_TextRules):
    """What a tool told the models, in any of its calls."""

    observation: str = Field(min_length=1)
    """The tool's name."""

    def _findings(self, facts: Facts) -> Iterator[Finding]:
        texts = facts.observations(self.observation)
        if not texts:
            yield f"observation {self.observation}", f"it was not called; called: {', '.join(facts.tools) or 'none'}"
        for rule, problem in self._text_findings("\n".join(texts)) if texts else ():
            yield f"observation {self.observation}: {rule}", problem


class StatusCheck(Strict):
    """How the run ended; `done`, unless a scenario says otherwise."""

    status: RunStatus

    def _findings(self, facts: Facts) -> Iterator[Finding]:
        result = facts.result
        why = result.failure.message if result.failure else result.stop_reason
        wrong = result.status != self.status
        yield "status", f"expected {self.status}, found {result.status} ({why})" if wrong else None


class OutcomesCheck(Strict):
    """How subtasks ended, by id."""

    outcomes: dict[str, OutcomeStatus] = Field(min_length=1)

    def _findings(self, facts: Facts) -> Iterator[Finding]:
        for id, expected in self.outcomes.items():
            outcome = facts.result.outcomes.get(id)
            if outcome is None:
                yield f"outcome {id}", f"there is no such subtask{nearest(id, facts.result.outcomes)}"
            else:
                found = outcome.status
                yield f"outcome {id}", None if found == expected else f"expected {expected}, found {found}"


KINDS = {
    "file": FileCheck,
    "answer": AnswerCheck,
    "usage": UsageCheck,
    "tools": ToolsCheck,
    "observation": ObservationCheck,
    "status": StatusCheck,
    "outcomes": OutcomesCheck,
}
"""Each kind of check by the key that makes it one."""


def _known(value: Any) -> Any:
    if isinstance(value, Mapping) and value and not KINDS.keys() & value.keys():
        wrong = str(next(iter(value)))
        raise ValueError(f"unknown check {wrong!r}{nearest(wrong, KINDS)}")
    return value


def _kind(value: Any) -> str | None:
    if isinstance(value, BaseModel):
        return type(value).__name__
    return next((kind.__name__ for key, kind in KINDS.items() if isinstance(value, Mapping) and key in value), None)


_Kinds = Annotated[
    Annotated[FileCheck, Tag("FileCheck")]
    | Annotated[AnswerCheck, Tag("AnswerCheck")]
    | Annotated[UsageCheck, Tag("UsageCheck")]
    | Annotated[ToolsCheck, Tag("ToolsCheck")]
    | Annotated[ObservationCheck, Tag("ObservationCheck")]
    | Annotated[StatusCheck, Tag("StatusCheck")]
    | Annotated[OutcomesCheck, Tag("OutcomesCheck")],
    Discriminator(
        _kind, custom_error_type="no_check", custom_error_message="a check is a mapping, as `file: report.md`"
    ),
]
Check = Annotated[_Kinds, BeforeValidator(_known)]


def evaluate(
    checks: Iterable[Check],
    result: RunResult,
    workspace: Path,
    events: Sequence[Event],
    *,
    inputs: Sequence[Path] = (),
) -> list[CheckResult]:
    """Hold the checks against a run, a result for each of their rules.

    Args:
        checks: Where none is about the status, it must be `done`.
        result: How the run ended.
        workspace: The run's folder.
        events: The run's log.
        inputs: The files that the run got, as they were; `sql` reads them.
    """
    checks = list(checks)
    if not any(isinstance(check, StatusCheck) for check in checks):
        checks.insert(0, StatusCheck(status="done"))
    facts = Facts(result, workspace, events, inputs)
    return [
        CheckResult(label, problem is None, problem or "")
        for check in checks
        for label, problem in check._findings(facts)
    ]


def _missing_figures(sql: str, text: str, facts: Facts) -> str | None:
    from orchestrator.tables import query

    with tempfile.TemporaryDirectory(prefix="ori-check-") as folder:
        root, home = Path(folder, "inputs"), Path(folder, "home")
        try:
            Workspace(root, home).copy_inputs(facts.inputs, Path.cwd())
            rows = query(root, sql, timeout=SQL_SECONDS).rows
        except OriError as error:
            return f"the query failed: {error}"
    values = [value for row in rows for value in row]
    if not values:
        return "the query returned no rows, so nothing was checked"
    missing = [str(value) for value in values if not stands_in(value, text)]
    if not missing:
        return None
    return f"expected {', '.join(missing[:10])} ({len(missing)} of {len(values)} values), found {_head(text, 400)}"


def _head(text: str, most: int = 120) -> str:
    return repr(text if len(text) <= most else f"{text[:most]}…") if text else "an empty text"
