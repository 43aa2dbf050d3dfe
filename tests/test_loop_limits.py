"""What ends a loop that does not end by itself: turns, budgets, time, repetition, tools that keep failing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator import Limits, ToolContext, ToolResult, limits, tool
from orchestrator.events import BudgetReached
from orchestrator.failure import FailureKind
from orchestrator.testing import Answer, call, hang, text
from tests.loops import look, run

Script = Callable[[dict[str, Any]], Answer]
SUMMED_UP = text("So far: x is 42.")


def calling(answer: Answer | Script, then: Answer = SUMMED_UP) -> Script:
    """Give the same kind of answer for ever, and another one when calls are off."""

    def reply(request: dict[str, Any]) -> Answer:
        if request.get("tool_choice") == "none":
            return then
        return answer(request) if callable(answer) else answer

    return reply


def each_time_another(request: dict[str, Any]) -> Answer:
    return call("look", {"name": f"x{len(request['messages'])}"})


@tool
async def broken() -> str:
    """Try it. Use it for nothing. Returns nothing."""
    raise ConnectionError("the line is dead")


@tool(effect="read")
async def refused() -> dict[str, Any]:
    """Try it. Use it for nothing. Returns a flag."""
    return {"success": False, "reason": "no"}


class TestTurns:
    async def test_the_last_turn_is_followed_by_one_call_that_sums_up(self) -> None:
        """R22."""
        ran = await run(calling(each_time_another), look, role={"limits": {"max_turns": 3}})
        assert ran.choices == ["auto", "auto", "auto", "none"]
        assert ran.requests[-1]["tools"] == ran.requests[0]["tools"]
        assert "This was turn 3, the last one." in ran.requests[-1]["messages"][-1]["content"]
        assert (*ran.ending, ran.result.answer) == ("partial", "max_turns", "So far: x is 42.")

    async def test_a_model_that_calls_on_is_stopped_all_the_same(self) -> None:
        """B11: beyond its limit calls are refused, and the model goes on calling."""
        ran = await run(lambda request: each_time_another(request), look, role={"limits": {"max_turns": 3}})
        assert (*ran.ending, len(ran.requests)) == ("partial", "max_turns", 4)
        assert ran.observations[-1] == "Error: not run: the loop ends"
        assert all(len(answers) == 1 for _, answers in ran.answers())

    async def test_a_forced_tool_choice_is_not_sent_when_the_loop_ends(self) -> None:
        """B12: `tool_choice: required` goes on after the limit, so the model can only call."""
        role = {"params": {"tool_choice": "required"}, "limits": {"max_turns": 2}}
        ran = await run(calling(each_time_another), look, role=role)
        assert ran.choices[-1] == "none"

    async def test_what_was_found_and_written_is_kept(self) -> None:
        """B13: the step limit raises, and everything that was found is thrown away."""

        @tool(effect="idempotent")
        async def note(ctx: ToolContext) -> str:
            """Write the note. Use it at once. Returns where it is."""
            await ctx.artifact("notes/x.md", "x 是 42")
            return "notes/x.md"

        ran = await run(calling(call("note", {})), note, role={"limits": {"max_turns": 2}})
        assert (*ran.ending, ran.result.answer) == ("partial", "max_turns", "So far: x is 42.")
        assert [artifact.path for artifact in ran.result.artifacts] == ["notes/x.md"]
        assert ran.observations == ["notes/x.md", "notes/x.md"]

    async def test_a_wrap_up_without_a_word_falls_back_on_the_last_text(self) -> None:
        thinking = text("x seems to be 42.") + call("look", {})
        ran = await run(calling(thinking, then=text("")), look, role={"limits": {"max_turns": 1}})
        assert (*ran.ending, ran.result.answer) == ("partial", "max_turns", "x seems to be 42.")

    async def test_the_smaller_of_two_limits_counts(self) -> None:
        ran = await run(calling(each_time_another), look, role={"limits": {"max_turns": 9}}, limits=Limits(max_turns=2))
        assert len(ran.requests) == 3


class TestBudget:
    async def test_the_last_model_call_of_a_run_sums_up(self) -> None:
        ran = await run(calling(each_time_another), look, limits=Limits(model_calls=3))
        assert ran.choices == ["auto", "auto", "none"]
        assert (*ran.ending, ran.result.answer) == ("partial", "budget", "So far: x is 42.")
        assert [event.limit for event in ran.of(BudgetReached)] == ["model_calls: 2 of 3"]
        assert ran.result.usage.calls == 3

    async def test_a_single_call_may_answer(self) -> None:
        ran = await run([text("42")], look, limits=Limits(model_calls=1))
        assert (ran.result.status, ran.result.answer) == ("done", "42")
        ran = await run([text("I look.") + call("look", {})], look, limits=Limits(model_calls=1))
        assert (*ran.ending, ran.result.answer) == ("partial", "budget", "I look.")

    @pytest.mark.parametrize("limits", [Limits(tokens=2_000), Limits.model_validate({"cost": "0.002"})])
    async def test_tokens_and_money_are_counted(self, limits: Limits) -> None:
        usage = {"prompt_tokens": 900, "completion_tokens": 100, "total_tokens": 1000}
        same = call("look", {}, usage=usage)
        price = {"input": 1, "cached": 0.1, "output": 1, "currency": "USD"}
        ran = await run(calling(same), look, limits=limits, model={"price": price})
        assert ran.choices == ["auto", "auto", "none"]
        assert ran.ending == ("partial", "budget")


class TestTime:
    @pytest.fixture(autouse=True)
    async def _loaded(self) -> None:
        """Load the libraries that load on first use: it takes longer than these loops have."""
        await run([text("42")])

    @pytest.fixture
    def _spare(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Keep more time for summing up: a busy machine needs more than a tenth of these loops' time."""
        monkeypatch.setattr(limits, "SPARE_SHARE", 0.9)

    @pytest.mark.usefixtures("_spare")
    async def test_a_loop_sums_up_before_its_time_is_up(self) -> None:
        @tool(effect="read")
        async def ponder() -> str:
            """Think. Use it once. Returns a thought."""
            await asyncio.sleep(2.02)  # past the tenth of the time after which it sums up
            return "42"

        ran = await run(calling(call("ponder", {})), ponder, role={"limits": {"timeout": 20}})
        assert ran.choices == ["auto", "none"]
        assert (*ran.ending, ran.result.answer) == ("partial", "deadline", "So far: x is 42.")
        assert "The time for this task is up." in ran.said("note")[0]

    async def test_a_model_that_does_not_answer_is_not_waited_for(self) -> None:
        ran = await run([hang()], look, role={"limits": {"timeout": 0.2}})
        assert ran.ending == ("failed", "deadline")
        assert ran.result.failure and ran.result.failure.kind == FailureKind.tool_timeout

    @pytest.mark.usefixtures("_spare")
    async def test_a_tool_that_takes_all_of_the_loop_s_time_is_stopped_so_that_the_loop_sums_up(self) -> None:
        """It ran until the loop was cut off, which then could say nothing."""
        ended = asyncio.Event()

        @tool(timeout=None)
        async def wait() -> None:
            """Wait. Use it never. Returns nothing."""
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        script = [call("look", {}), call("wait", {}), text("So far: x is 42.")]
        ran = await run(script, look, wait, limits=Limits(time=20))
        assert ran.choices == ["auto", "auto", "none"]
        assert (*ran.ending, ran.result.answer) == ("partial", "deadline", "So far: x is 42.")
        assert ended.is_set() and ran.observations[1].endswith(" s; it was stopped")

    async def test_what_was_found_is_kept_where_no_time_is_left_to_sum_up(self) -> None:
        ran = await run([text("x is 42.") + call("look", {}), hang()], look, limits=Limits(time=2))
        assert (*ran.ending, ran.result.answer) == ("partial", "deadline", "x is 42.")


class TestRepetition:
    async def test_the_same_call_with_the_same_result_is_warned_of_at_3_and_ended_at_5(self) -> None:
        """R25."""
        ran = await run(calling(call("look", {"name": "x"})), look)
        assert ran.choices == ["auto"] * 5 + ["none"]
        warned = ["has come back with the same result before" in r["messages"][-1]["content"] for r in ran.requests]
        assert warned == [False, False, False, True, True, False]
        assert ran.ending == ("partial", "repeated_calls")

    async def test_calls_that_alternate_are_seen_too_however_they_are_written(self) -> None:
        """R25."""
        forms = ['{"name": "a"}', '{"name": "b"}', '{ "name":"a" }']

        def alternate(request: dict[str, Any]) -> Answer:
            return call("look", forms[len(request["messages"]) // 2 % 3])

        ran = await run(calling(alternate), look)
        assert ran.ending == ("partial", "repeated_calls")
        assert len(ran.requests) == 9

    async def test_another_result_is_progress(self) -> None:
        values = iter(range(100))

        @tool(effect="read")
        async def poll() -> int:
            """Ask again. Use it often. Returns how far it is."""
            return next(values)

        ran = await run(calling(call("poll", {})), poll, role={"limits": {"max_turns": 8}})
        assert ran.ending == ("partial", "max_turns")

    async def test_a_small_model_is_ended_at_2_without_a_warning(self) -> None:
        """R25: a small model does not heed warnings."""
        ran = await run(calling(call("look", {})), look, model={"profile": "small"})
        assert ran.choices == ["auto", "auto", "none"]
        assert not any("come back with the same result before" in note for note in ran.said("note"))


class TestFailingTools:
    @pytest.mark.parametrize(
        ("wrong", "told"),
        [
            (call("look", {"nmae": "a"}), ["nmae", "did you mean 'name'"]),
            (call("look", {"name": ["a"]}), ["name", "expected string"]),
            (call("look", '{"name": "a'), ["cut off"]),
            (call("look", "name=a"), ["no JSON object", "name=a"]),
            (call("lok", {"name": "a"}), ["no tool 'lok'", "did you mean 'look'"]),
        ],
        ids=["unknown name", "wrong type", "half", "no JSON", "unknown tool"],
    )
    async def test_a_wrong_call_is_told_and_the_model_corrects_itself(self, wrong: Answer, told: list[str]) -> None:
        """R24."""
        ran = await run([wrong, call("look", {"name": "a"}), text("42")], look)
        assert ran.result.status == "done"
        assert [words for words in told if words not in ran.observations[0]] == []
        assert ran.observations[1] == "a is 42"

    @pytest.mark.parametrize("failing", [broken, refused], ids=["raises", "says so"])
    async def test_a_tool_that_fails_in_3_turns_in_a_row_ends_the_loop(self, failing: Any) -> None:
        """R24: an error flag inside a result counts, too."""
        ran = await run(calling(call(failing.name, {})), failing)
        assert (*ran.ending, ran.choices) == ("failed", "tool_failures", ["auto"] * 3 + ["none"])
        assert ran.result.failure and ran.result.failure.kind == FailureKind.tool_error

    async def test_what_was_found_before_makes_it_partial(self) -> None:
        """R24."""
        ran = await run(calling(call("look", {}) + call("broken", {})), look, broken)
        assert (*ran.ending, ran.result.answer) == ("partial", "tool_failures", "So far: x is 42.")

    async def test_a_role_may_ask_a_person_instead(self) -> None:
        """R24."""
        ran = await run(calling(call("broken", {})), broken, role={"on_failure": "needs_review"})
        assert (*ran.ending, len(ran.requests)) == ("needs_review", "needs_person", 3)

    async def test_failures_are_counted_by_turns_and_forgotten_after_a_success(self) -> None:
        """R24: three wrong calls of one message are one failing turn."""
        wrong = [call("look", {"wrong": n}) for n in range(6)]
        replies = [wrong[0] + wrong[1] + wrong[2], wrong[3], call("look", {}), wrong[4], wrong[5], text("42")]
        ran = await run(replies, look)
        assert ran.result.status == "done"

    async def test_an_empty_result_says_so(self) -> None:
        """R24."""

        @tool(effect="read")
        async def find() -> list[str]:
            """Find it. Use it for anything. Returns what was found."""
            return []

        @tool
        async def act() -> None:
            """Do it. Use it once. Returns nothing."""

        @tool(effect="read")
        async def blank() -> ToolResult:
            """Read it. Use it once. Returns its text."""
            return ToolResult(" ")

        ran = await run([call("find", {}) + call("act", {}) + call("blank", {}), text("none")], find, act, blank)
        assert ran.observations == [
            "The result is an empty list.",
            "Done; there is no result.",
            "The result is empty.",
        ]

    async def test_a_model_that_invents_tools_for_ever_is_stopped(self) -> None:
        def invent(request: dict[str, Any]) -> Answer:
            return call(f"json_tool_call_{len(request['messages'])}", json.dumps({"n": 1}))

        ran = await run(calling(invent), look, role={"limits": {"max_turns": 6}})
        assert (ran.result.stop_reason, len(ran.requests)) == ("max_turns", 7)
