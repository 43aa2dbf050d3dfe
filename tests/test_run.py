"""The main job, end to end, over a real HTTP server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import ConfigError, Orchestrator, Role, RunOptions, tool
from orchestrator.events import PlanAdded, RunStarted, SubtaskStarted
from orchestrator.plan import Delegate, Subtask
from orchestrator.testing import ScriptedServer, call, text
from tests.engine import (
    FILTERED,
    ORI,
    WORKER,
    delegate,
    logged,
    observed,
    orchestrator,
    said_to,
    serving,
    statuses,
    subtask,
)

READER = Role(name="reader", description="Reads.", prompt="You are a reader.", tools=("look",))

Write = Callable[[str, str], None]


@tool(effect="read")
async def look(name: str) -> str:
    """Look something up. Use it for facts. Returns the fact."""
    return f"{name} is 42"


async def test_a_trivial_goal_is_answered_in_one_call_without_a_plan() -> None:
    async with ScriptedServer([text("4")]) as server:
        result = await orchestrator(server).solve("2 + 2 = ?")
    assert (result.status, result.answer, result.outcomes) == ("done", "4", {})
    assert result.usage.calls == len(server.requests) == 1


async def test_a_goal_becomes_a_plan_workers_run_it_in_parallel_and_the_answer_comes_back() -> None:
    plan = delegate(
        subtask("a", role="reader", goal="find a"),
        subtask("b", role="reader", goal="find b"),
        subtask("c", "a b", goal="put together"),
    )
    replies = {
        ORI: [plan, text("Both are 42.")],
        "find a": [call("look", {"name": "a"}), text("a = 42")],
        "find b": [call("look", {"name": "b"}), text("b = 42")],
        "put together": [text("a and b are 42")],
    }
    async with serving(replies) as server:
        result = await orchestrator(server, [READER, WORKER], [look]).solve("What are a and b?")
    assert (result.status, result.answer) == ("done", "Both are 42.")
    assert statuses(result) == {"a": "done", "b": "done", "c": "done"}
    assert result.usage.calls == 7
    [said] = said_to(server, "put together")
    assert "a = 42" in said and "b = 42" in said


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unknown(number: int) -> Any:
        raise KeyError(number)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("HOME", "XDG_STATE_HOME", "DOCKER_HOST"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="no home folder to keep runs in: set XDG_STATE_HOME"):
        Orchestrator(model="m")
    made = Orchestrator.from_project(tmp_path)
    assert all("home" not in made.catalog.tool(name).missing() for name in made.catalog.tool_names)


@pytest.mark.parametrize(
    "plan",
    [
        [Subtask(id="a", role="worker", goal="do a")],
        [subtask("a")],
        {"subtasks": [subtask("a")]},
        Delegate(subtasks=(Subtask(id="a", role="worker", goal="do a"),)),
    ],
    ids=["subtasks", "dicts", "plan file", "delegate"],
)
async def test_a_ready_plan_may_be_given_in_any_form(plan: Any) -> None:
    async with serving({ORI: text("ok"), "do a": text("fine")}) as server:
        result = await orchestrator(server).solve("goal", plan=plan)
    assert (result.status, statuses(result), len(server.requests)) == ("done", {"a": "done"}, 2)


async def test_options_without_a_value_count_as_left_out() -> None:
    async with serving({ORI: text("ok")}) as server:
        unset: Any = dict.fromkeys(RunOptions.__annotations__)
        result = await orchestrator(server).solve("goal", **{**unset, "plan": []})
    assert (result.status, result.outcomes) == ("done", {})


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ([{"id": "a"}], r"^plan\.subtasks\[0\]: a subtask has either a role or a tool$"),
        ({"subtask": []}, r"^unknown key 'subtask' in plan; did you mean 'subtasks'\?$"),
        ("plan.yaml", r"^plan\.subtasks is 'plan\.yaml': input should be a list"),
        ([{"id": "a", "rolle": "x"}], r"unknown key 'rolle' in plan\.subtasks\[0\]; did you mean 'role'"),
    ],
    ids=["no performer", "unknown key", "file name", "unknown key within"],
)
async def test_a_plan_that_is_none_says_where_it_is_wrong(plan: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        await Orchestrator(model="m").solve("goal", plan=plan)


async def test_a_model_may_be_given_as_a_project_would_describe_it() -> None:
    async with serving({"You are a worker": text("cheap")}) as server:
        cheap = {"model": "small", "base_url": server.base_url, "params": {"temperature": 0}}
        role = Role(name="worker", description="d", prompt="You are a worker.", model="cheap", limits=None)
        made = Orchestrator(models={"cheap": cheap}, roles=[role])
        assert (await made.run_role("worker", "task")).answer == "cheap"
    assert (server.requests[0]["model"], server.requests[0]["temperature"]) == ("small", 0)
    with pytest.raises(ConfigError, match=r"^unknown key 'modle' in cheap; did you mean 'model'\?$"):
        Orchestrator(models={"cheap": {"model": "small", "modle": ""}})


async def test_one_role_alone_works_without_a_planner() -> None:
    async with serving({"You are a reader": [call("look", {"name": "a"}), text("a is 42")]}) as server:
        made = orchestrator(server, [READER], [look])
        result = await made.run_role("reader", "What is a?")
    assert (result.status, result.answer, result.outcomes) == ("done", "a is 42", {})
    assert [t["function"]["name"] for t in server.requests[0]["tools"]] == ["look"]
    [started] = await logged(made, result, RunStarted)
    assert started.root == "reader"


class TestAProject:
    @pytest.fixture
    def write(self, tmp_path: Path) -> Write:
        def write(file: str, content: str) -> None:
            (tmp_path / file).parent.mkdir(exist_ok=True)
            (tmp_path / file).write_text(content)

        return write

    async def test_two_files_make_a_role_that_the_next_plan_can_use(self, tmp_path: Path, write: Write) -> None:
        replies = {
            ORI: [text("nobody can"), delegate(subtask("a", role="poet")), text("a poem")],
            "You are a poet": [call("rhyme", {"word": "sun"}), text("fun")],
        }
        async with serving(replies) as server:
            made = orchestrator(server, (), project=tmp_path, journal="memory")
            await made.solve("Write a poem")
            assert "poet" not in str(server.requests[0])
            write("tools/rhymes.py", RHYMES)
            write("roles/poet.yaml", "description: Writes poems.\ntools: [rhyme]")
            write("prompts/poet.md", "You are a poet.")
            made = orchestrator(server, (), project=tmp_path, journal="memory")
            result = await made.solve("Write a poem")
        assert "- poet: Writes poems." in server.requests[1]["messages"][0]["content"]
        assert (result.status, statuses(result), result.outcomes["a"].answer) == ("done", {"a": "done"}, "fun")
        assert server.requests[3]["messages"][-1]["content"] == "sun rhymes with fun"

    async def test_a_changed_prompt_counts_from_the_next_run_on(self, tmp_path: Path, write: Write) -> None:
        write("roles/poet.yaml", "description: Writes poems.")
        write("prompts/poet.md", "You are a poet.")
        async with ScriptedServer([text("one"), text("two")]) as server:
            made = orchestrator(server, (), project=tmp_path, journal="memory")
            await made.run_role("poet", "Write")
            write("prompts/poet.md", "You are a poet who never rhymes.")
            await made.run_role("poet", "Write")
        assert [r["messages"][0]["content"] for r in server.requests] == [
            "You are a poet.",
            "You are a poet who never rhymes.",
        ]

    async def test_a_scenario_with_a_plan_runs_without_asking_the_planner_and_answers_with_a_subtask(
        self, tmp_path: Path, write: Write
    ) -> None:
        write("data/notes.txt", "milk")
        write("roles/teller.yaml", "description: Tells.")
        write("prompts/teller.md", "You are a teller.")
        write("scenarios/shop.yaml", SHOP + "answer: say\n")
        replies = {"say what is 3 × milk": text("three milks")}
        async with serving(replies) as server:
            made = orchestrator(server, (), project=tmp_path, journal="memory")
            scenario = made.catalog.scenario("shop")
            async with made.start_scenario(scenario, params={"count": 3}, workspace=tmp_path / "w") as handle:
                result = await handle.result()
        assert (result.status, result.answer) == ("done", "three milks")
        assert statuses(result) == {"read": "done", "say": "done"}
        assert (result.usage.calls, (tmp_path / "w/notes.txt").read_text()) == (1, "milk")
        [added] = await logged(made, result, PlanAdded)
        assert added.template == "shop"

    async def test_the_planner_is_asked_after_all_when_the_subtask_that_should_answer_failed(
        self, tmp_path: Path, write: Write
    ) -> None:
        write("data/notes.txt", "milk")
        write("roles/teller.yaml", "description: Tells.")
        write("prompts/teller.md", "You are a teller.")
        write("scenarios/shop.yaml", SHOP + "answer: say\n")
        replies = {ORI: [text("It could not be said.")], "say what is 2 × milk": FILTERED}
        async with serving(replies) as server:
            made = orchestrator(server, (), project=tmp_path, journal="memory")
            async with made.start_scenario(made.catalog.scenario("shop"), workspace=tmp_path / "w") as handle:
                result = await handle.result()
        assert (result.status, result.answer) == ("partial", "It could not be said.")
        asked = server.requests[-1]["messages"][-1]
        assert asked["role"] == "user" and "This plan was run" in asked["content"] and "milk" in asked["content"]

    async def test_a_plan_file_stands_in_for_the_plan_of_a_scenario(self, tmp_path: Path, write: Write) -> None:
        write("data/notes.txt", "milk")
        write("roles/teller.yaml", "description: Tells.")
        write("prompts/teller.md", "You are a teller.")
        write("scenarios/shop.yaml", SHOP + "answer: say\n")
        plan = Delegate.model_validate({"subtasks": [{"id": "other", "role": "teller", "goal": "tell a joke"}]})
        async with serving({ORI: [text("told")], "tell a joke": text("ha")}) as server:
            made = orchestrator(server, (), project=tmp_path, journal="memory")
            scenario = made.catalog.scenario("shop")
            async with made.start_scenario(scenario, plan=plan, workspace=tmp_path / "w") as handle:
                result = await handle.result()
        assert (result.answer, statuses(result)) == ("told", {"other": "done"})

    async def test_only_the_roles_that_a_scenario_names_can_be_used(self, tmp_path: Path, write: Write) -> None:
        write("data/notes.txt", "milk")
        write("scenarios/free.yaml", "goal: Do it.\ninputs: [data/notes.txt]\nroles: [writer]\n")
        async with serving({ORI: [text("done")]}) as server:
            made = orchestrator(server, (), project=tmp_path, journal="memory")
            async with made.start_scenario(made.catalog.scenario("free"), workspace=tmp_path / "w") as handle:
                await handle.result()
        prompt = server.requests[0]["messages"][0]["content"]
        assert "- writer: " in prompt and "- analyst: " not in prompt
        assert "notes.txt" in said_to(server, "Do it.")[0]

    async def test_a_parameter_that_a_scenario_does_not_have_is_refused(self, tmp_path: Path, write: Write) -> None:
        write("data/notes.txt", "milk")
        write("roles/teller.yaml", "description: Tells.")
        write("prompts/teller.md", "You are a teller.")
        write("scenarios/shop.yaml", SHOP)
        async with serving({}) as server:
            made = orchestrator(server, (), project=tmp_path, journal="memory")
            with pytest.raises(ConfigError, match=r"shop\.yaml:.* no parameter 'cuont'; did you mean 'count'"):
                made.start_scenario(made.catalog.scenario("shop"), params={"cuont": 3})


async def test_a_run_can_be_given_the_roles_that_it_may_use() -> None:
    other = WORKER.model_copy(update={"name": "other"})
    plan = delegate(subtask("a", role="other"))
    async with serving({ORI: [plan, text("then not")]}) as server:
        made = orchestrator(server, [WORKER, other])
        result = await made.solve("goal", roles=["worker"])
    assert await logged(made, result, SubtaskStarted) == []
    assert "the unknown role 'other'" in observed(server)


async def test_a_blocking_call_in_async_code_says_what_to_write_instead() -> None:
    with pytest.raises(RuntimeError, match=r"write: await orchestrator\.solve"):
        Orchestrator(model="m").solve_sync("goal")


@pytest.mark.parametrize("way", ["solve", "start", "stream", "plan"])
async def test_a_mistyped_option_is_told_with_the_nearest_right_one(way: str) -> None:
    async with serving({}) as server, orchestrator(server) as made:
        with pytest.raises(TypeError, match="'ouput'; did you mean 'output'"):
            await getattr(made, way)("goal", ouput=Delegate)
        with pytest.raises(TypeError, match="'imputs'; did you mean 'inputs'"):  # mypy sees it, too: no unused ignore
            await made.run_role("worker", "task", imputs=["a.csv"])  # type: ignore[call-arg]


async def test_session_and_user_are_recorded_with_the_run() -> None:
    options: dict[str, Any] = {"session": "s1", "user": "mara", "params": {"day": "Monday"}}
    async with serving({ORI: [text("4")]}) as server:
        made = orchestrator(server)
        result = await made.solve("goal", **options)
    [started] = await logged(made, result, RunStarted)
    assert (started.session, started.user, started.params) == ("s1", "mara", {"day": "Monday"})


RHYMES = '''\
from orchestrator import tool


@tool(effect="read")
def rhyme(word: str) -> str:
    """Find a rhyme. Use it for poems. Returns a rhyme."""
    return f"{word} rhymes with fun"
'''

SHOP = """\
goal: Say what is on the list.
params: {count: 2}
inputs: [data/notes.txt]
roles: [teller]
plan:
  - {id: read, tool: read_file, args: {path: notes.txt}}
  - {id: say, role: teller, goal: "say what is ${count} × milk", after: [read]}
"""
