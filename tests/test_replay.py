import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError, ReplayMiss
from orchestrator.events import Event, MessageAppended, ModelReplied, RunStarted
from orchestrator.messages import Delta, Message, MessageRole, Reply, Request, ToolCall, Usage
from orchestrator.models.recorder import record
from orchestrator.models.replay import Recording, ReplayModel, observed_hash

HEADER = {"recording": 1, "scenario": "sales_report", "model": "qwen", "scripted": True, "note": "by hand"}
USAGE = Usage(calls=1, prompt=100, cached=60, completion=7, cost=Decimal("0.0021"))


def written(folder: Path, *lines: Any) -> Path:
    file = folder / "x.jsonl"
    text = "".join((x if isinstance(x, str) else json.dumps(x, ensure_ascii=False)) + "\n" for x in (HEADER, *lines))
    file.write_text(text, encoding="utf-8")
    return file


def line(key: str, reply: dict[str, Any], observed: str | None = None) -> dict[str, Any]:
    seen = None if observed is None else {"sha256": observed_hash(observed), "text": observed[:2000]}
    return {"key": key, "observed": seen, "reply": reply}


def asked(key: str, observed: str = "") -> Request:
    return Request(key=key, messages=(Message("user", "any prompt"),), observed=observed)


async def test_a_reply_is_found_by_its_key_and_not_by_order(tmp_path: Path) -> None:
    calls = [{"id": "c1", "name": "query_table", "arguments": {"sql": "SELECT 区域"}}]
    file = written(
        tmp_path,
        line("ori:1:model", {"content": "计划", "calls": calls}),
        "",
        line("ori:2:model", {"content": "done", "usage": json.loads(USAGE.model_dump_json())}, observed="total 5"),
    )
    model = ReplayModel(Recording.load(file))
    deltas: list[Delta] = []
    assert await model.generate(asked("ori:2:model", "total 5"), deltas.append) == Reply(
        "done", usage=USAGE, model="qwen"
    )
    assert deltas == [Delta("text", "done")]
    first = await model.generate(asked("ori:1:model", "anything"))
    assert first.calls == (ToolCall("c1", "query_table", '{"sql":"SELECT 区域"}'),)
    assert (first.content, first.finish_reason) == ("计划", "tool_calls")


async def test_a_missing_key_is_a_loud_miss_that_names_the_nearest(tmp_path: Path) -> None:
    model = ReplayModel(Recording.load(written(tmp_path, line("ori/collect:1:model", {}))))
    with pytest.raises(ReplayMiss, match=r"'ori/colect:1:model'.*did you mean 'ori/collect:1:model'") as miss:
        await model.generate(asked("ori/colect:1:model"))
    assert "x.jsonl" in str(miss.value) and "record anew" in str(miss.value)


async def test_a_stale_reply_is_never_given_and_the_miss_shows_both_texts(tmp_path: Path) -> None:
    before, now = "head " * 50 + "华东 1200 end", "head " * 50 + "华东 1300 end"
    model = ReplayModel(Recording.load(written(tmp_path, line("ori:1:model", {"content": "1200"}, before))))
    with pytest.raises(ReplayMiss) as miss:
        await model.generate(asked("ori:1:model", now))
    message = str(miss.value)
    assert "华东 1200 end" in message and "华东 1300 end" in message and "character 254" in message
    assert len(message) < 700


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ("x" * 3000 + "a", "x" * 3000 + "b", "after its first 2000 characters"),
        ("x" * 2000, "x" * 2001, "after its first 2000 characters"),
        ("same", "same and more", "and more"),
        ("same and more", "same", "and more"),
        ("", "new", "new"),
    ],
)
async def test_a_difference_anywhere_is_found(tmp_path: Path, before: str, now: str, told: str) -> None:
    model = ReplayModel(Recording.load(written(tmp_path, line("k", {}, before))))
    await model.generate(asked("k", before))
    with pytest.raises(ReplayMiss, match=told):
        await model.generate(asked("k", now))


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ("{not json", "JSON"),
        ({"key": "k"}, "reply"),
        ({"key": "k", "reply": {"contents": "x"}}, "reply.contents"),
        ({"key": "k", "reply": {"calls": [{"id": "a", "name": "f"}]}}, "reply.calls.0.arguments"),
        (line("ori:1:model", {}), "twice"),
    ],
)
def test_a_malformed_line_is_told_with_file_and_line(tmp_path: Path, bad: Any, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Recording.load(written(tmp_path, line("ori:1:model", {}), bad))
    assert "x.jsonl:3: " in str(caught.value) and told in str(caught.value)


@pytest.mark.parametrize("content", ["", '{"recording": 2, "scenario": "s", "model": "m"}\n', "\xff"])
def test_a_file_that_is_no_recording_is_told(tmp_path: Path, content: str) -> None:
    file = tmp_path / "y.jsonl"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"y\.jsonl"):
        Recording.load(file)
    with pytest.raises(ConfigError, match=r"none\.jsonl"):
        Recording.load(tmp_path / "none.jsonl")


def log(workspace: str) -> list[Event]:
    """Two loops at once; the second reply of `ori/a` is empty, so it has no message."""

    def said(path: str, turn: int, message: Message | None, observed: str = "") -> list[Event]:
        key = f"{path}:{turn}:model"
        hash_ = observed_hash(observed.replace(workspace, "/workspace"))
        replied = ModelReplied(
            path=path, key=key, model="qwen-1.5b", finish_reason="stop", usage=USAGE, seconds=1, observed=hash_
        )
        return [replied] + ([MessageAppended(path=path, key=key, message=message, hash="")] if message else [])

    def put(path: str, role: MessageRole, text: str) -> Event:
        return MessageAppended(path=path, key=f"{path}:1:tool.0", message=Message(role, text), hash="")

    call = ToolCall("c", "read_file", '{"path": "a"}')
    return [
        RunStarted(
            goal="g",
            root="ori",
            params={},
            inputs=(),
            workspace=workspace,
            limits={},
            roles={},
            tools={},
            models={},
            scenario="three_reports",
        ),
        put("ori/a", "user", "goal"),
        put("ori/a", "data", "fenced"),
        *said("ori/a", 1, Message("assistant", "look", (call,)), "fenced"),
        put("ori/b", "tool", "of another loop"),
        put("ori/a", "tool", f"one {workspace}/a"),
        put("ori/a", "tool", "two"),
        put("ori/a", "note", "hurry"),
        *said("ori/a", 2, None, f"one {workspace}/a\n\ntwo"),
        *said("ori/a", 3, Message("assistant", "end"), f"one {workspace}/a\n\ntwo"),
    ]


async def test_a_run_that_was_recorded_replays_and_its_file_names_no_place_of_this_machine(tmp_path: Path) -> None:
    recording = record(log(str(tmp_path)), note="on a small model")
    file = tmp_path / "r.jsonl"
    file.write_text(recording.dump(), encoding="utf-8")
    assert str(tmp_path) not in recording.dump()
    again = Recording.load(file)
    assert again.header == recording.header and again.lines == recording.lines
    assert (again.header.scenario, again.header.model, again.header.scripted) == ("three_reports", "qwen-1.5b", False)
    model = ReplayModel(again)
    first = await model.generate(asked("ori/a:1:model", "fenced"))
    assert first == Reply(
        "look", (ToolCall("c", "read_file", '{"path": "a"}'),), usage=USAGE, model="qwen-1.5b", finish_reason="stop"
    )
    assert (await model.generate(asked("ori/a:2:model", "one /workspace/a\n\ntwo"))).content == ""
    assert (await model.generate(asked("ori/a:3:model", "one /workspace/a\n\ntwo"))).content == "end"
    with pytest.raises(ReplayMiss, match="one /workspace/b"):
        await model.generate(asked("ori/a:3:model", "one /workspace/b\n\ntwo"))


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("a:8:summary.1", "second of 8"),
        ("a:6:summary.0", "first of 8"),
        ("a:13:summary.0", "first of 12"),
        ("a:13:summary.1", "second of 8"),
        ("a:6:summary.2", "first of 8"),
        ("a:6:rank.0", None),
        ("a:6:model", None),
        ("b:8:summary.0", None),
    ],
)
async def test_a_summary_is_found_where_other_tools_move_its_turn(
    asked: str, answered: str | None, tmp_path: Path
) -> None:
    keys = {"a:8:summary.0": "first of 8", "a:8:summary.1": "second of 8", "a:12:summary.0": "first of 12"}
    lines = [line(key, {"content": content}) for key, content in {**keys, "a:8:model": "turn"}.items()]
    model = ReplayModel(Recording.load(written(tmp_path, *lines)))
    if answered is None:
        with pytest.raises(ReplayMiss, match="no reply"):
            await model.generate(Request(asked, ()))
    else:
        assert (await model.generate(Request(asked, ()))).content == answered
