import asyncio
import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import termios
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from orchestrator.events import (
    ApprovalAsked,
    BudgetReached,
    Compacted,
    Event,
    ModelCalled,
    PlanAdded,
    RunEnded,
    RunResumed,
    RunStarted,
    SubtaskEnded,
    SubtaskStarted,
    SubtaskWaiting,
    TextDelta,
    ToolProgress,
)
from orchestrator.failure import Failure, FailureKind
from orchestrator.results import Outcome, RunResult
from orchestrator.serve import layout, plain, terminal, tree
from orchestrator.serve.asking import Asker
from orchestrator.views.progress import Progress
from tests.sample_run import GOAL, START, USAGE, beginning, called, model, run, subtask


def folded(events: list[Event]) -> Progress:
    progress = Progress()
    for event in events:
        progress.apply(event)
    return progress


def drawn(progress: Progress, width: int = 100, height: int | None = None, now: float = START + 5) -> list[str]:
    return layout.to_text(tree.tree(progress, width, now, height=height), width, False).splitlines()


def row(lines: list[str], word: str) -> str:
    return next(line for line in lines if word in line)


def test_a_running_subtask_shows_role_turn_tool_tokens_and_seconds() -> None:
    line = row(drawn(folded(beginning())), "汇总  ")
    assert re.search(r"├─ ▸ 汇总 +analyst +turn 1: query_table +按区域汇总.* 1\.3k +3s +0\.0021$", line)


def test_a_subtask_that_waits_names_what_it_comes_after() -> None:
    assert re.search(r"└─ ◌ report +writer +after 汇总, trend", row(drawn(folded(beginning())), "report"))


def test_the_planner_is_on_top_with_how_many_of_its_subtasks_ended_and_all_tokens() -> None:
    until_one_ended = run()[: next(i for i, e in enumerate(run()) if isinstance(e, SubtaskEnded)) + 1]
    lines = drawn(folded(until_one_ended))
    assert lines[0].startswith(GOAL[:20])
    assert re.search(r"^▸ ori +turn 1: delegate 1/3 +5\.2k", lines[1])


def test_a_finished_subtask_keeps_its_result_and_its_clock_stands() -> None:
    lines = drawn(folded(run()), now=START + 1000)
    assert re.search(r"✓ 汇总 +analyst +华东 1,200,000；华北 900,000 +2\.6k +5\.0s", row(lines, "✓ 汇总"))


def test_a_failure_says_why() -> None:
    outcome = Outcome(
        id="汇总",
        path="ori/汇总",
        role="analyst",
        status="failed",
        stop_reason="tool_failures",
        failure=Failure(FailureKind.tool_error, "there is no column '区'"),
    )
    lines = drawn(folded([*beginning(), SubtaskEnded(path="ori/汇总", at=START + 6, outcome=outcome)]))
    assert "✗ 汇总" in row(lines, "汇总") and "failed: there is no column '区'" in row(lines, "汇总")


def test_a_waiting_subtask_says_for_what() -> None:
    waits = SubtaskWaiting(path="ori/trend", at=START + 6, id="trend", why="send_mail needs your word")
    assert "? trend" in row(drawn(folded([*beginning(), waits])), "trend  ")
    assert "waiting: send_mail needs your word" in row(drawn(folded([*beginning(), waits])), "trend  ")


def test_text_and_progress_that_arrive_show_in_the_row() -> None:
    key = "ori/汇总:2:model"
    events = [
        *run()[: len(beginning())],
        ToolProgress(path="ori/trend", key="ori/trend:1:tool.0", at=START + 6, name="read_file", text="40 %"),
        called("ori/汇总", 1, "query_table", "{}", START + 4),
        ModelCalled(path="ori/汇总", key=key, at=START + 6, model="m", messages=3, hash="h", turn=2),
        TextDelta(path="ori/汇总", key=key, at=START + 6, text="华东"),
    ]
    lines = drawn(folded(events))
    assert "turn 2: writes (2 characters)" in row(lines, "汇总  ")
    assert "read_file: 40 %" in row(lines, "trend  ")


def test_a_running_subtask_tells_what_was_kept_out_of_its_prompts() -> None:
    events = run()
    compacted = next(n for n, event in enumerate(events) if isinstance(event, Compacted))
    progress = folded(events[: compacted + 2])
    line = row(drawn(progress, width=150), "trend")
    assert "(compacted 1 times, by 12,000 tokens)" in line


def test_a_second_attempt_shares_the_row_of_the_first() -> None:
    again = SubtaskStarted(path="ori/trend~2", at=START + 8, id="trend", role="analyst", goal="again", attempt=2)
    lines = drawn(folded([*beginning(), again, *model("ori/trend~2", 1, "", START + 8)]))
    assert "attempt 2, turn 1" in row(lines, "trend  ")
    assert len([line for line in lines if "trend" in line and "after" not in line]) == 1


def test_a_nested_planner_has_its_subtasks_below_it() -> None:
    nested = PlanAdded(
        path="ori/trend", at=START + 6, subtasks=(subtask("a", "reader", "g"), subtask("b", "reader", "g"))
    )
    lines = drawn(folded([*beginning(), nested]))
    assert [line[:8] for line in lines[3:7]] == ["├─ ▸ tre", "│  ├─ ◌ ", "│  └─ ◌ ", "└─ ◌ rep"]


def test_a_result_that_was_sent_back_looks_unlike_an_accepted_one() -> None:
    lines = drawn(folded(run()))
    assert re.search(r"✗ review 1 +reviewer +sent back: no figure is given", row(lines, "review 1"))
    assert re.search(r"✓ review 2 +reviewer +accepted", row(lines, "review 2"))


def test_the_latest_warnings_stand_below_the_tree() -> None:
    events = [*beginning(), BudgetReached(path="ori", at=START + 6, limit="tokens: 1200 of 1000")]
    assert drawn(folded(events))[-1] == "! budget reached, tokens: 1200 of 1000"


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_no_line_is_wider_than_the_terminal_even_in_chinese(width: int) -> None:
    for events in (beginning(), run()):
        lines = drawn(folded(events), width)
        assert all(cell_len(line) <= width for line in lines)
        assert len(lines) < 12, "a line was wrapped"


@given(goal=st.text(max_size=300), width=st.integers(20, 120))
def test_any_goal_stays_in_one_line_of_the_width(goal: str, width: int) -> None:
    events = [replace(e, goal=goal) if isinstance(e, RunStarted) else e for e in beginning()]
    lines = drawn(folded(events), width)
    assert len(lines) == 5 and all(cell_len(line) <= width for line in lines)


def test_escape_sequences_of_a_model_do_not_reach_the_terminal() -> None:
    events = [replace(e, goal="a\x1b[2Jb\nc") if isinstance(e, RunStarted) else e for e in run()]
    lines = drawn(folded(events))
    assert lines[0].startswith("a[2Jb c")


def test_fifty_subtasks_fit_a_small_terminal_and_the_running_one_stays() -> None:
    many = tuple(subtask(f"s{i}", "reader", "g") for i in range(50))
    started = SubtaskStarted(path="ori/s44", at=START + 3, id="s44", role="reader", goal="g")
    lines = drawn(folded([*beginning()[:5], PlanAdded(path="ori", at=START + 2, subtasks=many), started]), 80, 24)
    assert len(lines) < 24
    assert any("▸ s44" in line for line in lines)
    assert re.search(r"… \d+ pending not shown", lines[-1])


def test_without_an_end_event_what_ran_can_be_shown_as_interrupted() -> None:
    progress = folded(beginning())
    progress.stop("interrupted", START + 9)
    assert "⊘ 汇总" in row(drawn(progress), "汇总  ")
    assert "◌ report" in row(drawn(progress), "report")


@pytest.mark.parametrize("ended", [False, True])
def test_the_time_between_an_interruption_and_the_resume_is_nobodys(ended: bool) -> None:
    before = beginning()
    last = max(event.at for event in before)
    progress = folded(before)
    at_work = [tree.spent(node, last) for node in progress.root.walk()]
    if ended:
        cancelled = RunResult(run_id="r", status="cancelled", stop_reason="cancelled", workspace="w")
        progress.apply(RunEnded(path="ori", at=last, result=cancelled))
    progress.apply(RunResumed(run="r", seq=99, at=last + 9000, reused=0, again=0, paid_twice=0))
    for event in (e for e in before if isinstance(e, SubtaskStarted)):
        progress.apply(replace(event, at=last + 9000))
    assert [tree.spent(node, last + 9000) for node in progress.root.walk()] == at_work


def test_show_tells_turns_calls_cuts_failures_reviews_and_usage_by_role() -> None:
    text = layout.to_text(tree.show(folded(run()), 160), 160, False)
    for part in (
        'query_table {"sql": "select 区域, sum(销售额) from sales"} → cut to 2000 of 5000 characters in 0.2s',
        "read_file {\"path\": \"sale.csv\"} → no file 'sale.csv'; did you mean 'sales.csv'?",
        "turn 2 (qwen-1.5b, 1.0s, 1.3k tokens): 华东 1,200,000；华北 900,000",
        "plan mended: '汇总' came after itself; dropped",
        "sent back: no figure is given",
        "turn 3: messages 1 shortened, 2 summed up: 21,000 → 9,000 tokens",
        "kept out of prompts: results cut 1 times, by 3,000 characters; compacted 1 times, by 12,000 tokens",
        "workspace: /tmp/ws",
        "analyst: 5 model calls, 6,500 tokens, 5,000 of them cached, cost 0.0105",
        "reviewer: 2 model calls, 2,600 tokens, 2,000 of them cached, cost 0.0042",
        "total: 10 model calls, 13,000 tokens, 10,000 of them cached, cost 0.0210",
    ):
        assert part in text


def test_the_sums_by_role_add_up_to_the_total() -> None:
    progress = folded(run())
    assert sum(u.tokens for u in progress.by_role.values()) == progress.root.usage.tokens == 10 * USAGE.tokens


async def arriving(events: list[Event]) -> AsyncIterator[Event]:
    for event in events:
        await asyncio.sleep(0)
        yield event


async def test_without_a_terminal_each_lasting_change_is_one_plain_line() -> None:
    file = io.StringIO()
    await terminal.watch(arriving(run()), file)
    lines = [line.split("s  ", 1)[1] for line in file.getvalue().splitlines()]
    assert lines[0] == "ori plans 汇总 (analyst); trend (analyst); report (writer) after 汇总, trend"
    assert lines[1] == "汇总 started (analyst): 按区域汇总 sales.csv 的销售额"
    assert "trend sent back in review 1: no figure is given" in lines
    assert "trend, turn 3: messages 1 shortened, 2 summed up: 21,000 → 9,000 tokens" in lines
    assert "warning: the journal is slow" in lines
    assert lines[-1].startswith("ori done (14s): ")
    assert "\x1b" not in file.getvalue()


async def test_a_call_that_waits_is_one_plain_line_with_the_command_that_answers() -> None:
    file, at = io.StringIO(), START + 6
    asks = ApprovalAsked(
        run="r1", path="ori/trend", key="ori/trend:2:tool.0", at=at, name="ask_person", expects="answer",
        arguments='{"question": "哪一年？", "options": ["2024", "2025"]}', why="it asks you",
    )  # fmt: skip
    waits = SubtaskWaiting(path="ori/trend", at=at, id="trend", why="ask_person: it asks you")
    await terminal.watch(arriving([*beginning(), asks, waits]), file)
    [line] = [line for line in file.getvalue().splitlines() if "  trend " in line and "started" not in line]
    assert line.endswith("s  trend asks: ori answer r1 ori/trend:2:tool.0 哪一年？ (2024 · 2025)")


async def test_a_plan_that_names_only_what_is_done_says_so() -> None:
    file = io.StringIO()
    named_again = PlanAdded(run="r1", path="ori", at=START + 6, subtasks=(), reused=("trend",))
    await terminal.watch(arriving([*beginning(), named_again]), file)
    assert file.getvalue().splitlines()[-1].endswith("ori plans nothing new")


def screen(events: AsyncIterator[Event], asker: Asker | None = None) -> str:
    """What a run writes to a real terminal of 80 columns, until it ends or breaks."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    written = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):  # the other side is closed
            while piece := os.read(ours, 4096):
                written.extend(piece)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with os.fdopen(theirs, "w", encoding="utf-8") as file, contextlib.suppress(BaseExceptionGroup):
            asyncio.run(terminal.watch(events, file, clock=lambda: START + 5, asker=asker))
    finally:
        reader.join()
        os.close(ours)
    return written.decode()


def test_in_a_terminal_the_last_frame_stays_and_the_cursor_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    written = screen(arriving(run()))
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1
    assert "华东增长最快。" in written
    assert "\x1b[32m✓" in written


def test_what_is_asked_is_not_drawn_over_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    asker = Asker()

    async def asking() -> AsyncIterator[Event]:
        async for event in arriving(run()):
            yield event
            if isinstance(event, PlanAdded):
                await asyncio.sleep(0.15)  # one frame
                with asker.aside():
                    pass

    *_, before, after = screen(asking(), asker).split("\x1b[?25l")
    drawn = before.rpartition("汇总")[0].rpartition("\x1b[2K")[2]
    erased = before.rpartition("汇总")[2].count("\x1b[2K")
    assert erased > drawn.count("\n") > 0, "no tree stands still above the question, and looks live"
    assert "\x1b[1A" not in after.partition("汇总")[0], "the next frame is drawn below it"


def test_a_question_that_outlasts_the_run_is_followed_by_the_last_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    asker = Asker()
    question = contextlib.ExitStack()

    async def asking() -> AsyncIterator[Event]:
        async for event in arriving(run()):
            yield event
            if isinstance(event, PlanAdded):
                question.enter_context(asker.aside())

    written = screen(asking(), asker)
    question.close()  # as it is where a run is cancelled: after its events, and with nothing left to draw
    assert "华东增长最快。" in written
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h"), "the cursor comes back"


def test_no_color_turns_colours_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[(\d+;)*3\dm", screen(arriving(run())))


def test_a_burst_of_deltas_is_drawn_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    key = "ori/汇总:2:model"
    burst: list[Event] = [TextDelta(path="ori/汇总", key=key, at=START + 6, text="x") for _ in range(2000)]
    assert screen(arriving([*beginning(), *burst])).count("sales.csv 中各区域的") < len(burst) / 10


def test_a_watch_that_breaks_leaves_a_whole_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")

    async def broken() -> AsyncIterator[Event]:
        for event in beginning():
            yield event
        raise RuntimeError

    written = screen(broken())
    assert written.rstrip().endswith("\x1b[?25h")
    assert "⊘" in written


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0s"), (9.9, "9.9s"), (59.4, "59s"), (59.6, "1:00"), (185, "3:05"), (3723, "1:02:03")],
)
def test_times_read_well(seconds: float, text: str) -> None:
    assert plain.duration(seconds) == text


def test_the_run_ends_in_the_state_its_result_has() -> None:
    end = run()[-1]
    assert isinstance(end, RunEnded)
    failed = replace(end, result=end.result.model_copy(update={"status": "partial"}))
    assert drawn(folded([*run()[:-1], failed]))[1].startswith("~ ori")
