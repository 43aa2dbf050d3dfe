from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from orchestrator.content.checks import CheckResult, evaluate
from orchestrator.content.scenario import Scenario
from orchestrator.errors import ConfigError
from orchestrator.events import ArtifactStored, Event, MessageAppended, ToolStarted
from orchestrator.messages import Message, Usage
from orchestrator.results import Outcome, RunResult

OUTCOME = Outcome(id="total", path="ori/total", role="analyst", status="failed", stop_reason="tool_failures")
RESULT = RunResult(
    run_id="r1",
    status="done",
    stop_reason="answer",
    answer="华东 100 元",
    outcomes={"total": OUTCOME},
    usage=Usage(calls=3, prompt=90, completion=10, cost=Decimal("0.20")),
)


def scenario(tmp_path: Path, checks: str) -> Scenario:
    file = tmp_path / "scenarios" / "s.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"goal: x\nchecks:\n{checks}\n", "utf-8")
    return Scenario.load(file)


def run(
    tmp_path: Path, checks: str, result: RunResult = RESULT, events: Sequence[Event] = (), inputs: Sequence[Path] = ()
) -> list[CheckResult]:
    return evaluate(scenario(tmp_path, checks).checks, result, tmp_path / "workspace", events, inputs=inputs)


def faults(*args: Any, **kwargs: Any) -> list[str]:
    return [f"{check.check}: {check.detail}" for check in run(*args, **kwargs) if not check.passed]


def written(tmp_path: Path, name: str, text: str) -> ArtifactStored:
    path = tmp_path / "workspace" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return ArtifactStored(path="ori/w", file=name, size=len(text), sha256="0", media_type="text/plain")


def test_without_a_status_check_the_run_must_be_done(tmp_path: Path) -> None:
    checks = "  - answer: {contains: 华东}"
    assert faults(tmp_path, checks) == []
    partial = RESULT.model_copy(update={"status": "partial", "stop_reason": "budget"})
    assert faults(tmp_path, checks, partial) == ["status: expected done, found partial (budget)"]
    assert faults(tmp_path, "  - status: partial", partial) == []


def test_a_file_counts_only_when_this_run_wrote_it(tmp_path: Path) -> None:
    event = written(tmp_path, "report.md", "# 报告")
    assert faults(tmp_path, "  - file: report.md", events=[event]) == []
    [fault] = faults(tmp_path, "  - file: report.md")
    assert "not written by this run, which wrote nothing" in fault
    gone = ArtifactStored(file="report.md", size=None, sha256=None, media_type="")
    assert faults(tmp_path, "  - file: report.md", events=[event, gone]) == [
        "file report.md: written, and then deleted"
    ]


def test_the_text_of_a_file_is_held_against_each_rule(tmp_path: Path) -> None:
    event = written(tmp_path, "report.md", "# 报告\n华东 1,234.50\n")
    good = "  - {file: report.md, contains: [报告, 华东], matches: '^华东 [\\d,.]+$', not_contains: 华北, min_size: 10}"
    assert faults(tmp_path, good, events=[event]) == []
    bad = "  - {file: report.md, contains: 华北, matches: ^华北, not_contains: 华东, min_size: 1000}"
    assert [fault.split(": ")[1].split(" ")[0] for fault in faults(tmp_path, bad, events=[event])] == [
        "min_size",
        "contains",
        "does",
        "matches",
    ]


def sales(tmp_path: Path, east: str) -> Path:
    file = tmp_path / "data" / "sales.csv"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"区域,销售额\n华东,{east}\n华东,234.5\n华北,7\n", "utf-8")
    return file


SQL = "  - {file: report.md, sql: 'SELECT 区域, sum(销售额) FROM sales GROUP BY 区域'}"


def test_every_value_of_the_query_must_stand_in_the_file(tmp_path: Path) -> None:
    event = written(tmp_path, "report.md", "| 华东 | 1,234.50 |\n| 华北 | 7.00 |\n")
    assert faults(tmp_path, SQL, events=[event], inputs=[sales(tmp_path, "1000")]) == []
    [fault] = faults(tmp_path, SQL, events=[event], inputs=[sales(tmp_path, "1001")])
    assert "file report.md: sql: expected 1235.5 (1 of 4 values), found" in fault


@pytest.mark.parametrize(
    ("sql", "fault"),
    [
        ("SELECT 区域 FROM sales WHERE false", "the query returned no rows, so nothing was checked"),
        ("SELECT nothing FROM sales", "the query failed: "),
        ("SELECT NULL", "expected None"),
    ],
)
def test_a_query_that_checks_nothing_is_a_fault(tmp_path: Path, sql: str, fault: str) -> None:
    event = written(tmp_path, "report.md", "None")
    checks = f"  - {{file: report.md, sql: {sql}}}"
    [found] = faults(tmp_path, checks, events=[event], inputs=[sales(tmp_path, "1")])
    assert fault in found


def test_usage_is_held_against_its_bounds(tmp_path: Path) -> None:
    good = "  - usage: {model_calls: {max: 3, min: 3}, tokens: {max: 100}, cost: {max: 0.2}}"
    assert faults(tmp_path, good) == []
    bad = "  - usage: {model_calls: {min: 4}, tokens: {max: 99}, cost: {max: 0.1}}"
    assert faults(tmp_path, bad) == [
        "usage model_calls: expected at least 4, found 3",
        "usage tokens: expected at most 99, found 100",
        "usage cost: expected at most 0.1, found 0.20",
    ]


def test_a_bound_on_an_unknown_cost_does_not_pass(tmp_path: Path) -> None:
    free = RESULT.model_copy(update={"usage": Usage(calls=1)})
    assert faults(tmp_path, "  - usage: {cost: {max: 1}}", free) == [
        "usage cost: unknown: the model has no price in ori.yaml"
    ]


def test_tools_are_those_that_really_ran(tmp_path: Path) -> None:
    events = [ToolStarted(call_id="1", name="query_table", arguments="{}", effect="read")]
    assert faults(tmp_path, "  - tools: {called: query_table, not_called: [run_shell]}", events=events) == []
    assert faults(tmp_path, "  - tools: {called: [read_file], not_called: query_table}", events=events) == [
        "tool read_file called: called: query_table",
        "tool query_table not called: it was called",
    ]


def test_outcomes_are_checked_by_id(tmp_path: Path) -> None:
    assert faults(tmp_path, "  - outcomes: {total: failed}") == []
    assert faults(tmp_path, "  - outcomes: {total: done, totl: done}") == [
        "outcome total: expected done, found failed",
        "outcome totl: there is no such subtask; did you mean 'total'?",
    ]


@pytest.mark.parametrize(
    ("check", "message"),
    [
        ("report.md", "checks[0] is 'report.md': a check is a mapping, as `file: report.md`"),
        ("fil: report.md", "unknown check 'fil'; did you mean 'file'?"),
        ("file: report.md\n    contain: x", "s.yaml:4: unknown key 'contain' in checks[0]; did you mean 'contains'?"),
        ("file: report.md\n    matches: '['", "s.yaml:4: checks[0].matches: '[' is no regular expression"),
        ("file: ../report.md", "s.yaml:3: checks[0].file: '../report.md' is no path within the workspace"),
        ("file: /etc/passwd", "is no path within the workspace"),
        ("file: report.md\n    contains: ['']", "checks[0].contains[0] is ''"),
        ("answer: {}", "s.yaml:3: checks[0].answer: nothing to check; give one of contains, not_contains, matches"),
        ("answer: {match: x}", "s.yaml:3: unknown key 'match' in checks[0].answer; did you mean 'matches'?"),
        ("usage: {tokens: {}}", "nothing to check; give one of max, min"),
        ("usage: {model_call: {max: 1}}", "unknown key 'model_call' in checks[0].usage; did you mean 'model_calls'?"),
        ("tools: {}", "nothing to check; give one of called, not_called"),
        ("status: doen", "checks[0].status is 'doen'; did you mean 'done'?"),
        ("outcomes: {a: finished}", "checks[0].outcomes.a is 'finished'"),
        ("outcomes: {}", "checks[0].outcomes is {}"),
    ],
)
def test_a_bad_check_is_refused_when_it_is_loaded(tmp_path: Path, check: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scenario(tmp_path, f"  - {check}")
    assert message in str(caught.value)
    assert "s.yaml:" in str(caught.value)


def test_a_picture_has_a_size_and_something_on_it(tmp_path: Path) -> None:
    check = "  - {file: a.png, image: {min_width: 20, min_height: 10, not_blank: true}}"
    event = written(tmp_path, "a.png", "")
    path = tmp_path / "workspace" / "a.png"
    image = Image.new("RGB", (20, 10), (255, 255, 255))
    image.save(path)
    assert faults(tmp_path, check, events=[event]) == ["file a.png: image not_blank: every pixel has the same colour"]
    image.putpixel((3, 3), (0, 0, 0))
    image.save(path)
    assert faults(tmp_path, check, events=[event]) == []
    image.crop((0, 0, 19, 10)).save(path)
    assert faults(tmp_path, check, events=[event]) == ["file a.png: image min_width: expected 20 pixels, found 19"]
    path.write_text("no picture")
    assert faults(tmp_path, check, events=[event]) == ["file a.png: image: it is no PNG"]


def test_what_a_tool_told_is_held_against_its_rules(tmp_path: Path) -> None:
    def called(path: str, id: str, name: str, text: str) -> list[Event]:
        return [
            ToolStarted(path=path, key=f"{path}:1:tool.0", call_id=id, name=name, arguments="{}", effect="read"),
            MessageAppended(path=path, message=Message("tool", text, call_id=id), hash=""),
        ]

    events = [*called("ori/a", "1", "look", "a red door"), *called("ori/b", "1", "write_file", "blue")]
    assert faults(tmp_path, "  - {observation: look, contains: [red, door], not_contains: blue}", events=events) == []
    assert faults(tmp_path, "  - {observation: look, contains: green}", events=events) == [
        "observation look: contains 'green': not found in 'a red door'"
    ]
    assert faults(tmp_path, "  - {observation: peek, contains: x}", events=events) == [
        "observation peek: it was not called; called: look, write_file"
    ]
