"""A hand-made run with one of each lasting thing: two workers, a failed call, a review, a mended plan, a cut."""

from dataclasses import replace
from decimal import Decimal

from orchestrator.events import (
    Compacted,
    Event,
    MessageAppended,
    ModelCalled,
    ModelReplied,
    PlanAdded,
    ReviewDone,
    RunEnded,
    RunStarted,
    SubtaskEnded,
    SubtaskStarted,
    ToolReturned,
    ToolStarted,
    Warned,
)
from orchestrator.failure import Failure, FailureKind
from orchestrator.messages import Message, ToolCall, Usage
from orchestrator.results import Artifact, Outcome, RunResult

GOAL = "统计 sales.csv 中各区域的销售总额，写成 Markdown 报告，并说明哪个区域增长最快以及可能的原因"
START = 1_800_000_000.0
REPORT = Artifact(path="report.md", size=120, sha256="0" * 64, media_type="text/markdown", by="ori/report")
USAGE = Usage(calls=1, prompt=1200, cached=1000, completion=100, cost=Decimal("0.0021"))


def model(path: str, turn: int, text: str, at: float, *calls: ToolCall) -> list[Event]:
    key = f"{path}:{turn}:model"
    message = Message("assistant", text, calls)
    return [
        ModelCalled(path=path, key=key, at=at, model="qwen", messages=2, hash="h", turn=turn),
        ModelReplied(path=path, key=key, at=at + 1, model="qwen-1.5b", finish_reason="stop", usage=USAGE, seconds=1.0),
        MessageAppended(path=path, key=key, at=at + 1, message=message, hash="h"),
    ]


def called(path: str, turn: int, name: str, arguments: str, at: float) -> ToolStarted:
    return ToolStarted(
        path=path, key=f"{path}:{turn}:tool.0", at=at, call_id="c", name=name, arguments=arguments, effect="read"
    )


def returned(path: str, turn: int, name: str, at: float, error: str = "", cut: str | None = None) -> ToolReturned:
    failure = Failure(FailureKind.tool_error, error) if error else None
    return ToolReturned(
        path=path,
        key=f"{path}:{turn}:tool.0",
        at=at,
        call_id="c",
        name=name,
        ok=not error,
        seconds=0.2,
        characters=5000,
        cut=cut,
        failure=failure,
    )


def outcome(id: str, role: str, answer: str, usage: Usage) -> Outcome:
    return Outcome(
        id=id, path=f"ori/{id}", role=role, status="done", stop_reason="answer", answer=answer, usage=usage, attempts=1
    )


def subtask(id: str, role: str, goal: str, *after: str) -> dict[str, object]:
    return {"id": id, "role": role, "tool": None, "goal": goal, "after": list(after)}


def beginning() -> list[Event]:
    """Until both workers have asked for a tool."""
    plan = (
        subtask("汇总", "analyst", "按区域汇总 sales.csv 的销售额"),
        subtask("trend", "analyst", "Find the region that grew fastest"),
        subtask("report", "writer", "写 report.md", "汇总", "trend"),
    )
    return [
        RunStarted(
            path="ori",
            at=START,
            goal=GOAL,
            root="ori",
            params={},
            inputs=("sales.csv",),
            workspace="/tmp/ws",
            limits={},
            roles={"analyst": {"name": "analyst", "prompt": "long prompt", "review": {"by": "reviewer", "rounds": 2}}},
            tools={},
            models={"default": "qwen"},
        ),
        MessageAppended(path="ori", at=START, message=Message("user", GOAL), hash="h"),
        *model("ori", 1, "", START + 1, ToolCall("c", "delegate", "{}")),
        called("ori", 1, "delegate", '{"subtasks": []}', START + 2),
        PlanAdded(path="ori", at=START + 2, subtasks=plan, mended=("'汇总' came after itself; dropped",)),
        SubtaskStarted(path="ori/汇总", at=START + 2, id="汇总", role="analyst", goal=str(plan[0]["goal"])),
        SubtaskStarted(path="ori/trend", at=START + 2, id="trend", role="analyst", goal=str(plan[1]["goal"])),
        *model("ori/汇总", 1, "I look at the file.", START + 3),
        *model("ori/trend", 1, "", START + 3),
        called("ori/汇总", 1, "query_table", '{"sql": "select 区域, sum(销售额) from sales"}', START + 4),
        called("ori/trend", 1, "read_file", '{"path": "sale.csv"}', START + 5),
    ]


def rest() -> list[Event]:
    """From there to the end."""
    ended = outcome("汇总", "analyst", "华东 1,200,000；华北 900,000", USAGE + USAGE)
    result = RunResult(
        run_id="r1",
        status="done",
        stop_reason="answer",
        answer="华东增长最快。",
        artifacts=(REPORT,),
        usage=USAGE + USAGE,
        workspace="/tmp/ws",
    )
    return [
        returned("ori/汇总", 1, "query_table", START + 5, cut="2000 of 5000 characters"),
        returned("ori/trend", 1, "read_file", START + 5, error="no file 'sale.csv'; did you mean 'sales.csv'?"),
        *model("ori/汇总", 2, "华东 1,200,000；华北 900,000", START + 6),
        SubtaskEnded(path="ori/汇总", at=START + 7, outcome=ended),
        *model("ori/trend", 2, "华东", START + 6),
        *model("ori/trend/@review1", 1, "wrong", START + 7),
        ReviewDone(path="ori/trend", at=START + 8, id="trend", round=1, accepted=False, feedback="no figure is given"),
        Compacted(
            path="ori/trend",
            key="ori/trend:3:summary",
            at=START + 8,
            shortened=((3, "…"),),
            start=2,
            end=6,
            became=(Message("data", "summary"), 4, 5),
            tokens_before=21_000,
            tokens_after=9_000,
            hash="h",
        ),
        *model("ori/trend", 3, "华东 +30 %", START + 8),
        *model("ori/trend/@review2", 1, "fine", START + 9),
        ReviewDone(path="ori/trend", at=START + 10, id="trend", round=2, accepted=True, feedback=""),
        SubtaskEnded(path="ori/trend", at=START + 10, outcome=outcome("trend", "analyst", "华东 +30 %", USAGE)),
        Warned(path="ori", at=START + 10, text="the journal is slow"),
        SubtaskStarted(path="ori/report", at=START + 10, id="report", role="writer", goal="写 report.md"),
        *model("ori/report", 1, "report.md is written", START + 11),
        SubtaskEnded(path="ori/report", at=START + 12, outcome=outcome("report", "writer", "", USAGE)),
        returned("ori", 1, "delegate", START + 12),
        *model("ori", 2, "华东增长最快。", START + 13),
        RunEnded(path="ori", at=START + 14, result=result),
    ]


def run() -> list[Event]:
    """The whole run, as it stands in a log."""
    return [replace(event, run="r1", seq=seq) for seq, event in enumerate(beginning() + rest(), 1)]
