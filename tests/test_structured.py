"""Structured results, over each of the ways that a model may need (R28)."""

import json
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, field_validator
from referencing.exceptions import Unresolvable

from orchestrator import Orchestrator
from orchestrator.errors import ConfigError
from orchestrator.events import PASSING, CallDelta, DeltaReset, TextDelta
from orchestrator.failure import FailureKind
from orchestrator.messages import Json
from orchestrator.schema import problems, read_result, wrong_schema
from orchestrator.testing import Answer, ScriptedServer, call, fault, text
from orchestrator.views.progress import Progress
from tests.engine import served
from tests.loops import Ran, look, orchestrator, run


class Total(BaseModel):
    model_config = ConfigDict(extra="forbid")
    region: str
    amount: int


VALUE = {"region": "华东", "amount": 42}
RIGHT = text(json.dumps(VALUE, ensure_ascii=False))
NODE = {"type": "object", "properties": {"a": {"$ref": "#/$defs/N"}}, "additionalProperties": False}
WAYS = ("tool", "json_schema", "text")


async def hand_in(replies: Any, *tools: Any, output: Any = Total, **model: Any) -> Ran:
    return await run(replies, *tools, role={"output": output}, model=model)


def formats(ran: Ran) -> list[str | None]:
    """The type of each request's `response_format`."""
    return [request.get("response_format", {}).get("type") for request in ran.requests]


def offered(ran: Ran) -> list[list[str]]:
    return [[tool["function"]["name"] for tool in request.get("tools", ())] for request in ran.requests]


@pytest.mark.parametrize("way", WAYS)
async def test_a_result_comes_back_over_each_way(way: str) -> None:
    replies = {"tool": [call("submit_result", VALUE)], "json_schema": [RIGHT], "text": [RIGHT]}[way]
    ran = await hand_in(replies, structured=way)
    assert (ran.result.status, ran.result.value) == ("done", VALUE)
    assert formats(ran) == ["json_schema" if way == "json_schema" else None]
    assert offered(ran) == [["submit_result"] if way == "tool" else []]


@pytest.mark.parametrize("way", ["json_schema", "text"])
async def test_where_no_tool_says_it_the_prompt_holds_the_schema(way: str) -> None:
    """A server that is held to a schema does not show it to the model."""
    ran = await hand_in([RIGHT], structured=way)
    prompt = ran.requests[0]["messages"][0]["content"]
    assert "You are an agent." in prompt and '"amount"' in prompt and "JSON" in prompt


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "array", "items": {"type": "integer"}}, [1, 2]),
        ({"enum": ["yes", "no"]}, "yes"),
        ({"type": "object", "properties": {"result": {"type": "string"}}, "required": ["result"]}, {"result": "x"}),
    ],
    ids=["array", "enum", "object with a result"],
)
async def test_a_result_that_is_no_object_comes_back_as_it_is(way: str, schema: dict[str, Json], value: Json) -> None:
    written = value if isinstance(value, dict) else {"result": value}
    reply = call("submit_result", written) if way == "tool" else text(f"```json\n{json.dumps(written)}\n```")
    ran = await hand_in([reply], output=schema, structured=way)
    assert ran.result.value == value
    if way == "json_schema":
        asked = ran.requests[0]["response_format"]["json_schema"]["schema"]
        assert asked["type"] == "object" and "result" in asked["properties"]


async def test_what_a_text_says_in_another_form_is_taken() -> None:
    ran = await hand_in([text('The total:\n```json\n{"region": "华东", "amount": "42"}\n```')], structured="text")
    assert ran.result.value == VALUE


@pytest.mark.parametrize(
    ("told", "schema", "value"),
    [
        ('```json\n["华东", "华北"]\n```', {"type": "array", "items": {"type": "string"}}, ["华东", "华北"]),
        ('\n```\n"华东"\n```\n', {"type": "string"}, "华东"),
        ("```\nprint(1)\n```", {"type": "string"}, "```\nprint(1)\n```"),
        ('```json\n{"a": {}}\n```', {"$ref": "#/$defs/N", "$defs": {"N": NODE}}, {"a": {}}),
    ],
    ids=["list", "text", "text with a fence of its own", "recursive"],
)
def test_what_is_no_plain_object_may_stand_in_a_fence(told: str, schema: dict[str, Any], value: Any) -> None:
    assert read_result(told, schema) == value


async def test_with_tools_the_model_works_first_and_is_held_to_the_schema_when_its_words_do_not_fit() -> None:
    """Tools and a response format are never sent together."""
    ran = await hand_in([call("look", {}), text("It is 42."), RIGHT], look, structured="json_schema")
    assert (ran.result.status, ran.result.value) == ("done", VALUE)
    assert formats(ran) == [None, None, "json_schema"]
    assert offered(ran) == [["look"], ["look"], []]


async def test_with_tools_a_text_that_fits_is_taken_at_once() -> None:
    ran = await hand_in([call("look", {}), RIGHT], look, structured="json_schema")
    assert ran.result.value == VALUE and len(ran.requests) == 2


async def test_a_forced_end_gives_a_value_too() -> None:
    """R28: what was found when the turns ran out is still structured."""
    limits = {"output": Total, "limits": {"max_turns": 1}}
    ran = await run([call("look", {}), RIGHT], look, role=limits, model={"structured": "json_schema"})
    assert ran.ending == ("partial", "max_turns") and ran.result.value == VALUE
    assert formats(ran) == [None, "json_schema"]


@pytest.mark.parametrize(
    ("model", "way"),
    [
        ({}, "tool"),
        ({"profile": "small"}, "json_schema"),
        ({"preset": "ollama"}, "json_schema"),
        ({"preset": "ollama", "structured": "tool"}, "tool"),
        ({"preset": "deepseek"}, "tool"),
    ],
)
async def test_by_itself_the_way_follows_from_profile_and_server(model: dict[str, str], way: str) -> None:
    ran = await hand_in([call("submit_result", VALUE) if way == "tool" else RIGHT], **model)
    assert ran.result.value == VALUE
    assert formats(ran) == [None if way == "tool" else "json_schema"]


async def test_a_server_that_refuses_response_formats_is_asked_in_words_from_then_on() -> None:
    def answer(request: dict[str, Any]) -> Answer:
        if "response_format" in request:
            return fault(400, {"error": {"message": "response_format is not supported by this model"}})
        return RIGHT

    async with ScriptedServer(answer) as server:
        asked = orchestrator(server, role={"output": Total}, model={"structured": "auto", "preset": "vllm"})
        async with asked:
            values = [(await asked.run_role("agent", "the task")).value for _ in range(2)]
    assert values == [VALUE, VALUE]
    kinds = [request.get("response_format", {}).get("type") for request in server.requests]
    assert kinds == ["json_schema", "json_object", None, None]


async def test_a_server_that_refuses_a_keyword_gets_a_narrower_schema() -> None:
    class Ranked(BaseModel):
        model_config = ConfigDict(extra="forbid")
        rank: int
        region: str

    schema = Ranked.model_json_schema()
    schema["properties"]["rank"]["exclusiveMinimum"] = 0

    def answer(request: dict[str, Any]) -> Answer:
        if "exclusiveMinimum" in json.dumps(request.get("response_format")):
            return fault(400, {"error": {"message": "schema keyword 'exclusiveMinimum' is not supported"}})
        rank = 0 if len(request["messages"]) < 3 else 1
        return text(json.dumps({"rank": rank, "region": "east"}))

    async with ScriptedServer(answer) as server:
        asked = orchestrator(server, role={"output": schema}, model={"structured": "json_schema"})
        result = await asked.run_role("agent", "the task")
    assert result.value == {"rank": 1, "region": "east"}  # what the server could not check was checked here
    assert len(server.requests) == 3


# mending


class Even(BaseModel):
    model_config = ConfigDict(strict=True)
    day: date
    number: int

    @field_validator("number")
    @classmethod
    def is_even(cls, number: int) -> int:
        if number % 2:
            raise ValueError(f"{number} is odd")
        return number


@pytest.mark.parametrize("way", WAYS)
async def test_what_only_a_validator_of_the_model_refuses_is_mended_like_the_rest(way: str) -> None:
    wrong, right = ({"day": "2026-12-01", "number": number} for number in (3, 4))
    answers = [call("submit_result", v) if way == "tool" else text(json.dumps(v)) for v in (wrong, right)]
    async with ScriptedServer(answers) as server:
        result = await orchestrator(server, model={"structured": way}).run_role("agent", "the task", output=Even)
    assert result.value == Even(day=date(2026, 12, 1), number=4), result.failure
    assert "$.number: Value error, 3 is odd" in str(server.requests[1]["messages"][-1]["content"])


async def test_a_model_without_a_schema_is_refused_by_name() -> None:
    class Called(BaseModel):
        back: Callable[[], None]

    async with ScriptedServer([]) as server:
        with pytest.raises(ConfigError, match=r"output is Called, which has no JSON Schema: .*Callable"):
            await orchestrator(server).run_role("agent", "the task", output=Called)


@pytest.mark.parametrize("reference", ["{url}/models", "#/$defs/nothing"])
def test_a_reference_out_of_a_schema_is_refused_and_followed_nowhere(reference: str) -> None:
    with served([]) as server:
        schema = {"type": "object", "properties": {"a": {"$ref": reference.format(url=server.base_url)}}}
        fault = wrong_schema(schema)
        with pytest.raises(Unresolvable):
            problems({"a": 1}, schema)
        assert server.connections_made == 0
    assert fault is not None and "names nothing in it" in fault[0]


@pytest.mark.parametrize(
    ("pattern", "fits"), [("^(a+)+$", False), ("^b", False), ("^b(?=a)", True), (r"(b)\1", True), ("(", True)]
)
def test_a_value_is_held_to_a_pattern_however_long_that_takes_others(pattern: str, fits: bool) -> None:
    """Python's own search for the first one takes longer than the world is old; the others only Python reads."""
    assert (problems("a" * 99 + "!", {"type": "string", "pattern": pattern}) == []) == fits


def test_references_within_a_schema_may_go_round_in_circles() -> None:
    class Node(BaseModel):
        children: list["Node"] = []

    assert wrong_schema(Node.model_json_schema()) is None


FAULTY = [
    ('{"amount": 42}', "$.region is required"),
    ('{"region": [], "amount": "many"}', "$.region"),
    ('{"region": "华东", "amount": "many"}', "$.amount"),
]


async def test_a_weak_model_mends_one_fault_a_turn() -> None:
    ran = await hand_in([*(text(wrong) for wrong, _ in FAULTY), RIGHT], profile="small")
    assert (ran.result.status, ran.result.value) == ("done", VALUE)
    notes = ran.said("note")
    assert len(notes) == 3
    for note, (_, names) in zip(notes, FAULTY, strict=True):
        assert names in note and ";" not in note
        assert "JSON" in note and "submit_result" not in note


async def test_a_weak_model_gets_one_turn_for_each_fault_and_no_second() -> None:
    replies = [text('{"region": "x", "amount": "many"}'), text('{"region": "x", "amount": "very many"}')]
    ran = await hand_in(replies, profile="small")
    assert ran.ending == ("failed", "invalid_output")
    assert ran.result.failure and ran.result.failure.kind is FailureKind.bad_model_output


async def test_a_missing_field_is_another_fault_than_another_missing_field() -> None:
    ran = await hand_in([text("{}"), text('{"region": "华东"}'), RIGHT], profile="small")
    assert ran.result.value == VALUE


async def test_a_strong_model_is_told_all_faults_at_once() -> None:
    ran = await hand_in([text('{"region": [], "amount": "many"}'), RIGHT], structured="text")
    [note] = ran.said("note")
    assert "$.region" in note and "$.amount" in note and ran.result.value == VALUE


# what a listener hears


async def test_a_listener_hears_calls_as_they_are_written_and_what_is_withdrawn() -> None:
    """R27."""
    disguised = text('I look.\n{"name": "list_files", "arguments": {}}')
    async with ScriptedServer([call("list_files", {}), disguised, text("Nothing is there.")]) as server:
        asked = Orchestrator(model="m", base_url=server.base_url, api_key="none")
        async with asked.stream("What is there?") as handle:
            heard = [event async for event in handle if isinstance(event, PASSING)]
            result = await handle.result()
    assert result.answer == "Nothing is there."
    first, second, third = ([e for e in heard if e.key == f"ori:{turn}:model"] for turn in (1, 2, 3))
    assert {(type(e), e.name) for e in first if isinstance(e, CallDelta)} == {(CallDelta, "list_files")}
    withdrawn = next(n for n, event in enumerate(second) if isinstance(event, DeltaReset))
    assert [e.text for e in second[withdrawn:] if isinstance(e, TextDelta)] == ["I look."]
    assert "".join(e.text for e in third if isinstance(e, TextDelta)) == "Nothing is there."


async def test_the_live_view_forgets_what_is_withdrawn() -> None:
    progress, key = Progress(), "ori:1:model"
    for event in (TextDelta(path="ori", key=key, text="half"), DeltaReset(path="ori", key=key)):
        progress.apply(event)
    [turn] = progress.node("ori").turns.values()
    assert turn.text == ""
