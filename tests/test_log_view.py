import io
import json
from typing import Any

import pytest
import structlog

from orchestrator.events import Event, MessageAppended, ModelFailed, TextDelta, Warned
from orchestrator.failure import Failure, FailureKind
from orchestrator.messages import Message
from orchestrator.views.log import level, log_to, stream_logger
from tests.sample_run import GOAL, run


def logged(*events: Event, verbose: bool = False, **options: Any) -> list[dict[str, Any]]:
    file = io.StringIO()
    log = log_to(stream_logger(file, verbose), **options)
    for event in events:
        log(event)
    return [json.loads(line) for line in file.getvalue().splitlines()]


def test_each_event_is_one_line_with_its_place_and_time() -> None:
    lines = logged(*run(), verbose=True)
    assert len(lines) == len(run())
    assert [line["seq"] for line in lines] == list(range(1, len(run()) + 1))
    assert lines[0]["event"] == "run.started" and lines[0]["goal"] == GOAL
    assert lines[0]["timestamp"] == "2027-01-15T08:00:00.000+00:00"
    assert {line["run"] for line in lines} == {"r1"}


def test_levels_go_by_kind() -> None:
    levels = {line["event"]: line["level"] for line in logged(*run(), verbose=True)}
    assert levels["run.started"] == levels["subtask.ended"] == levels["plan.added"] == "info"
    assert levels["warned"] == "warning"
    assert levels["message.appended"] == levels["model.called"] == "debug"
    failed = ModelFailed(failure=Failure(FailureKind.auth, "the key is wrong"), seconds=1)
    assert level(failed) == "error"
    assert [line["level"] for line in logged(*run()) if line["event"] == "review.done"] == ["warning", "info"]


def test_prompts_and_replies_are_logged_only_when_verbose() -> None:
    assert not [line for line in logged(*run()) if line["event"] == "message.appended"]
    contents = [x["content"] for x in logged(*run(), verbose=True) if x.get("content")]
    assert contents[0] == GOAL and "华东增长最快。" in contents


def test_a_long_prompt_is_cut_and_says_so() -> None:
    text = "头" + "x" * 100_000 + "尾"
    [line] = logged(MessageAppended(message=Message("user", text), hash="h"), verbose=True)
    assert len(line["content"]) < 2100
    assert line["content"].startswith("头") and line["content"].endswith("尾")
    assert "(2000 of 100002 characters)" in line["content"]


def test_a_secret_is_taken_out_before_the_cut() -> None:
    text = "x" * 1495 + "sk-secret-1" + "y" * 5000
    event = MessageAppended(message=Message("user", text, extra={"deep": ["sk-secret-1"]}), hash="h")
    lines = logged(
        event, Warned(text="sk-secret-1"), verbose=True, redact=lambda text: text.replace("sk-secret-1", "[…]")
    )
    assert "sk-" not in json.dumps(lines)


def test_the_long_role_prompts_stay_out_of_the_log() -> None:
    assert "long prompt" not in json.dumps(logged(*run(), verbose=True))


def test_passing_deltas_are_not_logged() -> None:
    assert logged(TextDelta(text="x"), verbose=True) == []


def test_a_program_s_own_structlog_logger_gets_the_events() -> None:
    logger = structlog.wrap_logger(None, processors=[capture := structlog.testing.LogCapture()])
    for event in run():
        log_to(logger)(event)
    assert len(capture.entries) == len(run())
    assert capture.entries[0]["log_level"] == "info"


def test_ori_log_chooses_the_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORI_LOG", "console")
    file = io.StringIO()
    log_to(stream_logger(file))(Warned(path="ori", text="two\nlines \x1b[2J"))
    [line] = file.getvalue().splitlines()
    assert "warned" in line and r"text='two\nlines \x1b[2J'" in line
    assert "\x1b" not in line


def test_the_library_is_silent_by_itself(capfd: pytest.CaptureFixture[str]) -> None:
    stream_logger(io.StringIO()).info("x")
    assert capfd.readouterr() == ("", "")
