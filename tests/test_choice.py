import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.tool_choice import TOP, rows, tools
from orchestrator import Role, tool
from orchestrator.choice import CALL_TOOL, CHOSEN, FIND_TOOLS, MANY, ToolSearch
from orchestrator.delegate import NAME as DELEGATE
from orchestrator.errors import ConfigError
from orchestrator.events import ApprovalAsked, ToolReturned, ToolStarted, Warned
from orchestrator.messages import ToolSpec
from orchestrator.schema import RESULT_TOOL
from orchestrator.testing import ScriptedServer, call, fault, text
from orchestrator.tool import Tool
from tests.engine import logged, orchestrator

ANIMALS = [f"animal{n}" for n in range(40)]


def spec(name: str, description: str) -> ToolSpec:
    return ToolSpec(name, description, {"type": "object", "properties": {}})


def feeder(animal: str) -> Tool:
    @tool(name=f"feed_{animal}", effect="idempotent")
    def feed(grams: int) -> str:
        """Feed it."""
        return f"{animal} ate {grams} g"

    return feed


FEEDERS = [feeder(animal) for animal in ANIMALS]
KEEPER = Role(name="keeper", description="Feeds.", prompt="You feed.", tools=tuple(t.name for t in FEEDERS))
TASK = "Feed animal3 and animal7."


def offered(body: dict[str, Any]) -> list[str]:
    return [tool["function"]["name"] for tool in body["tools"]]


@pytest.mark.parametrize("language", ["English", "Chinese"])
def test_the_right_tool_of_200_is_found_by_the_task(language: str) -> None:
    """R40."""
    search = ToolSearch(tools(when=True))
    tasks = [row for row in rows("tool_tasks.txt") if row[0].isascii() == (language == "English")]
    found = [right in [spec.name for spec in search.find(task, TOP)] for task, right, _ in tasks]
    assert len(tasks) >= 50
    assert sum(found) >= 0.8 * len(tasks)


def test_few_tools_are_all_shown() -> None:
    few = [spec(f"t{n}", f"animal{n}") for n in range(MANY)]
    assert ToolSearch(few).choose("animal3") == few


def test_of_many_tools_the_fitting_ones_are_shown_in_their_own_order() -> None:
    many = [spec(f"t{n}", f"feeds animal {n}") for n in range(MANY + 20)]
    chosen = ToolSearch(many).choose("feeds the animal 17 and 3")
    assert len(chosen) <= CHOSEN
    assert {"t3", "t17"} <= {spec.name for spec in chosen}
    assert chosen == [spec for spec in many if spec in chosen]


def test_a_tool_that_the_task_names_is_shown_whatever_its_score() -> None:
    many = [spec(f"zoo_{n}", "feeds animals feeds animals") for n in range(MANY + 10)] + [spec("qqq", "")]
    assert "qqq" in [spec.name for spec in ToolSearch(many).choose("feeds animals, then qqq, feeds animals")]
    assert "qqq" not in [spec.name for spec in ToolSearch(many).choose("feeds animals, then qqqq, feeds animals")]


def test_a_task_may_name_a_tool_in_a_script_without_spaces() -> None:
    many = [spec(f"zoo_{n}", "喂养动物") for n in range(MANY + 10)] + [spec("qqq", "")]
    assert "qqq" in [spec.name for spec in ToolSearch(many).choose("先用qqq再喂养动物")]


def test_where_nothing_fits_all_are_shown() -> None:
    many = [spec(f"t{n}", "animal") for n in range(MANY + 10)]
    assert ToolSearch(many).choose("天气") == many


async def test_where_nothing_fits_and_servers_refuse_so_many_a_few_are_shown_and_all_can_be_found() -> None:
    herd = [feeder(f"animal{n}") for n in range(200)]
    role = KEEPER.model_copy(update={"tools": tuple(tool.name for tool in herd)})
    replies = [call(CALL_TOOL, {"name": "feed_animal150", "arguments": {"grams": 5}}), text("done")]
    async with ScriptedServer(replies) as server:
        result = await orchestrator(server, [role], herd).run_role("keeper", "做点什么")
    assert result.status == "done", result.failure
    assert len(offered(server.requests[0])) == CHOSEN + 2
    assert "animal150 ate 5 g" in str(server.requests[1]["messages"][-1])


async def test_what_is_not_shown_is_found_and_called_like_any_other() -> None:
    script = [
        call("find_tools", {"query": "feed animal20"}),
        call("call_tool", {"name": "feed_animal20", "arguments": {"grams": "5"}}),
        text("fed"),
    ]
    async with ScriptedServer(script) as server, orchestrator(server, [KEEPER], FEEDERS) as orch:
        result = await orch.run_role("keeper", TASK)
        started = await logged(orch, result, ToolStarted)
    shown = offered(server.requests[0])
    assert shown[-2:] == ["find_tools", "call_tool"]
    assert "feed_animal3" in shown
    assert "feed_animal20" not in shown
    assert [offered(body) for body in server.requests] == [shown] * 3
    observations = [m["content"] for m in server.requests[-1]["messages"] if m["role"] == "tool"]
    assert '"grams"' in observations[0]
    assert observations[1] == "animal20 ate 5 g"
    assert [event.name for event in started] == ["find_tools", "feed_animal20"]


async def test_a_call_within_is_checked_like_any_other() -> None:
    script = [
        call("call_tool", {"name": "feed_animal99", "arguments": {}}),
        call("call_tool", {"name": "feed_animal20", "arguments": {"grams": "many"}}),
        call("feed_animal20", {"grams": 1}),
        text("fed"),
    ]
    async with ScriptedServer(script) as server, orchestrator(server, [KEEPER], FEEDERS) as orch:
        result = await orch.run_role("keeper", TASK)
        returned = await logged(orch, result, ToolReturned)
    unknown, wrong, right = [m["content"] for m in server.requests[-1]["messages"] if m["role"] == "tool"]
    assert "there is no tool 'feed_animal99'" in unknown
    assert "feed_animal20" in wrong
    assert "grams" in wrong
    assert right == "animal20 ate 1 g"
    assert [event.ok for event in returned] == [False, False, True]


async def test_a_role_may_have_all_its_tools_shown() -> None:
    everything = KEEPER.model_copy(update={"choose_tools": "all"})
    async with ScriptedServer([text("no")]) as server, orchestrator(server, [everything], FEEDERS) as orch:
        await orch.run_role("keeper", TASK)
    assert offered(server.requests[0]) == [t.name for t in FEEDERS]


def within(depth: int, grams: object = 5) -> dict[str, Any]:
    """Return a call of `call_tool` in a call of `call_tool`, so many deep."""
    call = {"name": "feed_animal20", "arguments": {"grams": grams}}
    for _ in range(depth):
        call = {"name": "call_tool", "arguments": call}
    return call


async def test_calls_within_calls_are_made_or_refused_but_end_nothing() -> None:
    deep: Any = []
    for _ in range(400):
        deep = [deep]
    script = [call("call_tool", within(n)) for n in (3, 400)] + [call("call_tool", within(0, deep)), text("fed")]
    async with ScriptedServer(script) as server, orchestrator(server, [KEEPER], FEEDERS) as orch:
        result = await orch.run_role("keeper", TASK)
    made, *refused = [m["content"] for m in server.requests[-1]["messages"] if m["role"] == "tool"]
    assert result.status == "done"
    assert made == "animal20 ate 5 g"
    assert all("call_tool could not be checked" in told for told in refused)


async def test_a_call_within_asks_a_person_as_any_other_does() -> None:
    @tool(effect="once", approval=True)
    def sell(animal: str) -> str:
        """Sell one."""
        return f"{animal} is sold"

    role = KEEPER.model_copy(update={"tools": (*KEEPER.tools, "sell")})
    asked: list[str] = []

    async def approve(question: ApprovalAsked) -> dict[str, Any]:
        asked.append(f"{question.name} {question.arguments}")
        return {"animal": "animal2"}

    script = [call("call_tool", {"name": "sell", "arguments": {"animal": "animal1"}}), text("sold")]
    for options, told in (({}, "nobody can be asked"), ({"approve": approve}, "animal2 is sold")):
        async with ScriptedServer(script) as server, orchestrator(server, [role], [*FEEDERS, sell], **options) as orch:
            await orch.run_role("keeper", TASK)
        assert "sell" not in offered(server.requests[0])
        assert told in server.requests[-1]["messages"][-1]["content"]
    assert asked == ['sell {"animal":"animal1"}']


async def test_a_search_shows_no_more_than_a_conversation_bears() -> None:
    def wordy(number: int) -> Tool:
        @tool(name=f"wordy_{number}", effect="read")
        def wordy() -> str:
            return ""

        return replace(wordy, description=f"Says zebra {number}. " + "And more. " * 5000)

    wordies = [wordy(number) for number in range(10)]
    role = KEEPER.model_copy(update={"tools": (*KEEPER.tools, *(w.name for w in wordies))})
    script = [call("find_tools", {"query": "zebra"}), text("seen")]
    async with ScriptedServer(script) as server, orchestrator(server, [role], [*FEEDERS, *wordies]) as orch:
        await orch.run_role("keeper", TASK)
    assert len(server.requests[-1]["messages"][-1]["content"]) < 13_000


@pytest.mark.parametrize("name", ["delegate", "submit_result", "find_tools", "call_tool"])
def test_the_names_of_the_engines_own_tools_are_taken(name: str) -> None:
    assert name in (DELEGATE, RESULT_TOOL, FIND_TOOLS, CALL_TOOL)
    with pytest.raises(ConfigError, match="the engine has a tool of this name"):

        @tool(name=name)
        def mine() -> str:
            """Do something of mine."""
            return ""


CHOOSER = KEEPER.model_copy(update={"choose_tools": "model"})


async def test_the_model_may_choose_in_one_call_for_all_tools() -> None:
    scores = dict.fromkeys(range(1, 41), 0.0) | {2: 0.1, 6: 1.0, 31: 0.7}
    script = [text(json.dumps(scores)), text("fed")]
    async with ScriptedServer(script) as server, orchestrator(server, [CHOOSER], FEEDERS) as orch:
        result = await orch.run_role("keeper", TASK)
    ranking, turn = server.requests
    assert "feed_animal39" in ranking["messages"][1]["content"]
    assert "tools" not in ranking
    assert offered(turn) == ["feed_animal5", "feed_animal30", "find_tools", "call_tool"]
    assert result.usage.calls == 2


@pytest.mark.parametrize("said", ["I cannot rank these.", "", "{}", '{"1": 2, "2": -1}', '{"1": 0.0}'])
async def test_scores_that_cannot_be_read_leave_it_to_the_words(said: str) -> None:
    script = [text(said), text("fed")]
    async with ScriptedServer(script) as server, orchestrator(server, [CHOOSER], FEEDERS) as orch:
        await orch.run_role("keeper", TASK)
    assert {"feed_animal3", "feed_animal7"} <= set(offered(server.requests[-1]))


async def test_a_model_that_does_not_choose_leaves_it_to_the_words() -> None:
    script = [fault(400), text("fed")]
    async with ScriptedServer(script) as server, orchestrator(server, [CHOOSER], FEEDERS) as orch:
        result = await orch.run_role("keeper", TASK)
        warned = await logged(orch, result, Warned)
    assert result.status == "done"
    assert "feed_animal3" in offered(server.requests[-1])
    assert any("tools are chosen without the model" in event.text for event in warned)
