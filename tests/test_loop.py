"""How a loop judges what the model says, and how it ends. Limits are in `test_loop_limits.py`."""

from __future__ import annotations

import asyncio
import json
from itertools import cycle, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, RootModel

from orchestrator import Orchestrator, ToolResult, tool
from orchestrator.failure import FailureKind
from orchestrator.messages import Json
from orchestrator.testing import Answer, ScriptedServer, call, empty, fault, text
from tests.loops import look, run

NOTHING = fault(200, {"choices": [{"index": 0, "message": {"content": None}, "finish_reason": "stop"}]})


class Total(BaseModel):
    region: str
    amount: int


class Totals(RootModel[list[Total]]):
    pass


TOTAL = Total.model_json_schema()


class TestTextAndCalls:
    async def test_text_and_calls_of_one_reply_are_judged_independently(self) -> None:
        """R20."""
        replies = [
            text("先查一下。") + call("look", {"name": "a"}),
            call("look", {"name": "b"}),
            empty(),
            text("Done."),
        ]
        ran = await run(replies, look)
        assert (ran.result.status, ran.result.answer) == ("done", "Done.")
        assert ran.observations == ["a is 42", "b is 42"]
        assert ran.said("assistant") == ["先查一下。", "", "Done."]

    async def test_a_role_may_be_held_to_one_call_a_turn(self) -> None:
        """R20."""
        three = call("look", {"name": "a"}) + call("look", {"name": "b"}) + call("look", {"name": "c"})
        ran = await run([three, text("Done.")], look, role={"parallel_tool_calls": False})
        assert [request["parallel_tool_calls"] for request in ran.requests] == [False, False]
        refused = "Error: one call a turn; make this one again"
        assert ran.observations == ["a is 42", refused, refused]

    async def test_an_answer_in_text_ends_the_loop(self) -> None:
        """B09: after the task is done the model only chats, and the loop goes on to its last turn."""
        chat = text("The task is done. Is there anything else?")
        ran = await run(lambda request: call("look", {}) if len(request["messages"]) == 2 else chat, look)
        assert (ran.result.answer, len(ran.requests)) == (chat.content, 2)

    async def test_the_prompt_only_grows_whatever_happens(self) -> None:
        """R29: a server's prefix cache keeps hitting, though notes join the messages before them."""
        same = call("look", {"name": "x"})
        replies = [same, same, same, call("lok", {}), empty(), text("It is", finish_reason="length"), text(" 42.")]
        ran = await run(replies, look)
        assert ran.result.answer == "It is 42."
        for before, after in pairwise(ran.requests):
            assert after["tools"] == before["tools"]
            kept = after["messages"][: len(before["messages"])]
            assert kept[:-1] == before["messages"][:-1]
            assert kept[-1]["content"].startswith(before["messages"][-1]["content"])


REPLIES = [
    text("I think it is 42."),
    text("FINAL_ANSWER:"),
    text("The answer is fo", finish_reason="length"),
    empty(),
    call("look", {}),
    call("look", {}, id="same") + call("look", '{"name": "a', id="same"),
    call("look", "", finish_reason="length"),
    text("看一下") + call("lok", "[1]"),
    call("submit_result", {"region": "华东"}),
]


@settings(max_examples=30)
@given(
    script=st.lists(st.sampled_from(REPLIES), min_size=1, max_size=5),
    role=st.fixed_dictionaries(
        {},
        optional={
            "parallel_tool_calls": st.just(False),
            "final_marker": st.just("required"),
            "must_use_tools": st.just(True),
            "output": st.just(TOTAL),
        },
    ),
    profile=st.sampled_from(["standard", "small"]),
)
def test_whatever_a_model_says_for_ever_the_loop_ends_and_each_call_has_one_answer(
    script: list[Answer], role: dict[str, Any], profile: str
) -> None:
    """R22, R23: and no request would be refused."""
    said = cycle(script)
    limited = {**role, "limits": {"max_turns": 6}}
    ran = asyncio.run(run(lambda request: next(said), look, role=limited, model={"profile": profile}))
    assert len(ran.requests) <= 7
    assert ran.result.stop_reason != "bug"
    assert {len(answers) for _, answers in ran.answers()} <= {1}


class TestFinalAnswer:
    @pytest.mark.parametrize(
        ("said", "answer"),
        [
            ("FINAL_ANSWER: 42", "42"),
            ("I looked it up.\n  FINAL_ANSWER: first line\nsecond line", "first line\nsecond line"),
            ("**FINAL_ANSWER:** 42", "42"),
            ("**FINAL_ANSWER**: 42", "42"),
            ("**FINAL_ANSWER: 42**", "42"),
            ("__FINAL_ANSWER__: 42", "42"),
            ("FINAL_ANSWER：华东 1,200 元", "华东 1,200 元"),
            ("FINAL_ANSWER: 41\nNo, wait.\nFINAL_ANSWER: 42", "42"),
            ("It is 42.\nFINAL_ANSWER:", "It is 42."),
            ("**FINAL_ANSWER: 42** is the answer.", "42 is the answer."),
            ("FINAL_ANSWER: 2 ** 3 is **8**", "2 ** 3 is **8**"),
            (" I end with FINAL_ANSWER: when I know. ", "I end with FINAL_ANSWER: when I know."),
            ("It is 42.\n", "It is 42."),
        ],
    )
    async def test_the_answer_is_what_the_last_marker_says(self, said: str, answer: str) -> None:
        """R21."""
        ran = await run([text(said)])
        assert (ran.result.status, ran.result.answer) == ("done", answer)

    async def test_a_marker_without_any_answer_is_an_empty_reply(self) -> None:
        ran = await run([text("**FINAL_ANSWER:**"), text("FINAL_ANSWER: 42")])
        assert (ran.result.answer, ran.said("note")) == ("42", ["Your reply was empty. Make a call, or answer."])

    async def test_calls_of_the_same_message_run_first(self) -> None:
        """R21."""
        ran = await run([text("FINAL_ANSWER: 42") + call("look", {})], look)
        assert (ran.result.answer, ran.observations, len(ran.requests)) == ("42", ["x is 42"], 1)

    async def test_when_one_of_them_fails_the_loop_goes_on(self) -> None:
        ran = await run([text("FINAL_ANSWER: saved") + call("lok", {}), text("FINAL_ANSWER: not saved")], look)
        assert ran.result.answer == "not saved"

    async def test_where_the_marker_is_required_other_text_is_a_thought(self) -> None:
        """R21."""
        replies = [text("I think it is 42."), call("look", {}), text("So it is."), text("FINAL_ANSWER: 42")]
        ran = await run(replies, look, role={"final_marker": "required"})
        assert (ran.result.answer, len(ran.requests)) == ("42", 4)
        assert [note.startswith("If this is your answer") for note in ran.said("note")] == [True, True]

    async def test_the_same_thought_three_times_ends_the_loop_as_stuck(self) -> None:
        """B10: the model apologises for 20 steps; being told of it changes nothing."""
        ran = await run(
            lambda request: text("I am sorry, the value of x is 42."), look, role={"final_marker": "required"}
        )
        assert ran.ending == ("partial", "repeated_calls")
        assert (ran.result.answer, len(ran.requests)) == ("I am sorry, the value of x is 42.", 3)


class TestMustUseTools:
    async def test_a_first_answer_without_a_call_is_asked_once_more_naming_the_tools(self) -> None:
        """R21."""
        ran = await run([text("It is 41."), text("It is 41!")], look, role={"must_use_tools": True})
        assert (ran.result.answer, len(ran.requests)) == ("It is 41!", 2)
        [note] = ran.said("note")
        assert "look" in note

    async def test_after_a_call_an_answer_is_an_answer(self) -> None:
        ran = await run([call("look", {}), text("42")], look, role={"must_use_tools": True})
        assert (ran.result.answer, ran.said("note")) == ("42", [])

    async def test_a_role_without_tools_is_not_asked(self) -> None:
        ran = await run([text("42")], role={"must_use_tools": True})
        assert len(ran.requests) == 1


class TestEvidence:
    """A small model's "done" counts only when a tool has worked."""

    async def test_an_answer_without_a_successful_call_fails(self) -> None:
        ran = await run([text("It is 41."), text("It is 41.")], look, model={"profile": "small"})
        assert ran.ending == ("failed", "tool_failures")
        assert ran.result.failure and "look" in ran.result.failure.message

    async def test_an_answer_after_a_failed_call_fails(self) -> None:
        replies = [call("look", {}), call("lok", {}), text("All done!")]
        ran = await run(replies, look, model={"profile": "small"})
        assert ran.ending == ("failed", "tool_failures")

    async def test_the_goal_is_repeated_after_good_observations_only(self) -> None:
        replies = [call("lok", {}), call("look", {}), text("42")]
        ran = await run(replies, look, task="What is x?", model={"profile": "small"})
        assert ran.result.status == "done"
        assert ["What is x?" in str(request["messages"][-1]["content"]) for request in ran.requests[1:]] == [
            False,
            True,
        ]


class TestCutAndWithheld:
    async def test_a_text_cut_by_length_goes_on_once(self) -> None:
        """R21."""
        ran = await run([text("The answer is fo", finish_reason="length"), text("rty-two.")])
        assert (ran.result.status, ran.result.answer) == ("done", "The answer is forty-two.")

    async def test_a_text_cut_twice_is_partial(self) -> None:
        """R21."""
        ran = await run([text("One, ", finish_reason="length"), text("two, ", finish_reason="length")])
        assert (*ran.ending, ran.result.answer) == ("partial", "cut", "One, two,")

    async def test_half_a_text_is_not_glued_to_an_answer_that_came_after_a_call(self) -> None:
        replies = [text("Let me see, I wou", finish_reason="length"), call("look", {}), text("42")]
        assert (await run(replies, look)).result.answer == "42"

    async def test_a_content_filter_is_a_failure(self) -> None:
        """R21."""
        ran = await run([text("The first step is", finish_reason="content_filter")])
        assert ran.result.status == "failed"
        assert ran.result.failure and ran.result.failure.kind == FailureKind.content_filter


class TestEmptyReplies:
    @pytest.mark.parametrize("nothing", [NOTHING, empty(), text(" \n")], ids=["null", "empty", "blank"])
    async def test_an_empty_reply_is_asked_again_once(self, nothing: Answer) -> None:
        """B17: a reply with neither content nor calls raises."""
        ran = await run([nothing, text("42")])
        assert ran.result.answer == "42"
        ran = await run([nothing, nothing])
        assert ran.ending == ("failed", "empty_replies")
        assert ran.result.failure and ran.result.failure.kind == FailureKind.bad_model_output

    async def test_two_empty_replies_with_work_between_them_end_nothing(self) -> None:
        ran = await run([empty(), call("look", {}), empty(), text("42")], look)
        assert ran.result.answer == "42"

    async def test_what_was_found_before_is_kept(self) -> None:
        ran = await run([text("x seems to be 42.") + call("look", {}), empty(), empty()], look)
        assert (*ran.ending, ran.result.answer) == ("partial", "empty_replies", "x seems to be 42.")


class TestAToolThatEnds:
    async def test_its_text_is_the_answer(self) -> None:
        @tool
        async def order() -> ToolResult:
            """Order it. Use it last. Returns the number."""
            return ToolResult("Ordered: number 7.", value=7, final=True)

        ran = await run([text("Ordering now.") + call("order", {})], order)
        assert (ran.result.status, ran.result.answer, ran.result.value) == ("done", "Ordered: number 7.", 7)
        assert len(ran.requests) == 1

    @pytest.mark.parametrize("raises", [True, False])
    async def test_an_error_is_never_the_answer(self, raises: bool) -> None:
        """B15: a tool whose result is the answer fails, and its error becomes the final answer."""

        @tool
        async def order() -> ToolResult:
            """Order it. Use it last. Returns the number."""
            if raises:
                raise ConnectionError("the shop is closed")
            return ToolResult("the shop is closed", error=True, final=True)

        ran = await run([call("order", {}), text("I could not order it.")], order)
        assert ran.result.answer == "I could not order it."
        assert "the shop is closed" in ran.observations[0]


class TestStructuredResults:
    @pytest.mark.parametrize("prose", ["", "Here is the total."])
    async def test_a_handed_in_result_ends_the_loop_and_is_the_answer(self, prose: str) -> None:
        """R28: whoever reads the answer sees the value, whatever the model says beside the call."""
        handed_in = text(prose) + call("submit_result", {"region": "华东", "amount": "42"})
        ran = await run([call("look", {}), handed_in], look, role={"output": Total})
        assert ran.result.status == "done"
        assert ran.result.value == {"region": "华东", "amount": 42}
        assert ran.result.answer == '{"region":"华东","amount":42}'

    @pytest.mark.parametrize("fence", ["%s", "```json\n%s\n```", "The result:\n%s"])
    async def test_text_that_is_a_valid_result_is_taken(self, fence: str) -> None:
        """R28."""
        ran = await run([text(fence % '{"region": "华东", "amount": 42}')], role={"output": TOTAL})
        assert (ran.result.status, ran.result.value) == ("done", {"region": "华东", "amount": 42})

    @pytest.mark.parametrize(
        "wrong",
        [text("It is 42."), text('{"region": "华东"}'), call("submit_result", {"region": 1, "amount": "many"})],
        ids=["prose", "incomplete", "wrong type"],
    )
    async def test_a_wrong_result_may_be_mended_twice(self, wrong: Answer) -> None:
        """R28."""
        right = call("submit_result", {"region": "华东", "amount": 42})
        ran = await run([wrong, wrong, right], role={"output": TOTAL})
        assert ran.result.value == {"region": "华东", "amount": 42}
        ran = await run(lambda request: wrong, role={"output": TOTAL})
        assert (*ran.ending, len(ran.requests)) == ("failed", "invalid_output", 3)
        assert ran.result.failure and ran.result.failure.kind == FailureKind.bad_model_output

    async def test_what_is_wrong_with_it_is_told(self) -> None:
        right = call("submit_result", {"region": "华东", "amount": 42})
        ran = await run([text('{"region": "华东"}'), right], role={"output": TOTAL})
        [note] = ran.said("note")
        assert "$.amount is required" in note
        assert "submit_result" in note

    @pytest.mark.parametrize(
        ("schema", "value"),
        [
            ({"type": "array", "items": {"type": "integer"}}, [1, 2]),
            ({"enum": ["yes", "no"]}, "yes"),
            ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 3),
        ],
        ids=["array", "enum", "anyOf"],
    )
    async def test_a_schema_that_is_no_object_is_wrapped(self, schema: dict[str, Json], value: Json) -> None:
        """R28."""
        ran = await run([call("submit_result", {"result": value})], role={"output": schema})
        assert ran.result.value == value
        [offered] = ran.requests[0]["tools"]
        assert offered["function"]["parameters"]["properties"] == {"result": schema}
        for said in (str(value), json.dumps({"result": value})):
            assert (await run([text(said)], role={"output": schema})).result.value == value

    async def test_definitions_of_a_wrapped_schema_can_still_be_found(self) -> None:
        rows = [{"region": "华东", "amount": 42}]
        ran = await run([call("submit_result", {"result": rows})], role={"output": Totals})
        assert ran.result.value == rows
        offered = ran.requests[0]["tools"][0]["function"]["parameters"]
        assert Draft202012Validator(offered).is_valid({"result": rows})
        assert not Draft202012Validator(offered).is_valid({"result": [{"region": "华东"}]})

    @pytest.mark.parametrize("model", [Total, Totals])
    async def test_a_pydantic_model_that_was_asked_for_comes_back_as_an_instance(self, model: type[BaseModel]) -> None:
        """R28."""
        total = Total(region="华东", amount=42)
        expected = total if model is Total else Totals([total])
        async with ScriptedServer([text(expected.model_dump_json())]) as server:
            orchestrator = Orchestrator(model="m", base_url=server.base_url, api_key="k")
            result = await orchestrator.solve("What is the total?", output=model)
        assert result.value == expected

    async def test_a_wrapped_up_result_has_its_value_where_it_is_valid(self) -> None:
        summed_up = text('{"region": "华东", "amount": 42}')
        role = {"output": TOTAL, "limits": {"max_turns": 1}}
        ran = await run([call("look", {}), summed_up], look, role=role)
        assert (*ran.ending, ran.result.value) == ("partial", "max_turns", {"region": "华东", "amount": 42})
        ran = await run([call("look", {}), text("About 42.")], look, role=role)
        assert (*ran.ending, ran.result.value, ran.result.answer) == ("partial", "max_turns", None, "About 42.")
