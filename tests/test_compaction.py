"""Long conversations against a scripted server: every request is linted there, and weighed here."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from operator import add
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Limits, Orchestrator, tool
from orchestrator.conversation import Conversation
from orchestrator.events import Compacted, MessageAppended, ModelCalled, ModelReplied, RunStarted, Warned
from orchestrator.models.recorder import record
from orchestrator.models.replay import ReplayModel
from orchestrator.models.tokens import estimate_tokens
from orchestrator.settings import ModelSettings
from orchestrator.testing import Answer, ScriptedServer, call, fault, text
from orchestrator.tool import Tool
from orchestrator.workspace import Workspace
from orchestrator.workspace.outputs import Outputs
from tests import engine, loops
from tests.loops import Ran
from tests.test_resume import holding

WINDOW = 6000
ROOM = WINDOW - WINDOW // 4
AMPLE = Limits(tokens=10_000_000)
FILLER = "The yard was quiet and nothing else was noted that day. "


TOO_LONG = fault(
    400,
    {"error": {"message": "The maximum context length is 3000 tokens.", "code": "context_length_exceeded"}},
)


@tool(effect="read")
async def page(n: int) -> str:
    """Read a page of the log. Use it for facts. Returns the page."""
    return f"Page {n}. {FILLER * 20}Depot {n} holds {1000 + n} pallets, says Müller. {FILLER * 20}"


@tool(effect="read")
async def flood(characters: int, word: str = "word ") -> str:
    """Return much text. Use it for tests. Returns it."""
    return word * (characters // len(word))


def is_summary(request: Mapping[str, Any]) -> bool:
    return "You sum up" in request["messages"][0]["content"]


class Reader:
    """Reads page after page, then answers; sums up as it is told.

    Args:
        pages: How many.
        summary: What it says when it is asked for a summary.
        together: Pages it reads in one turn.
    """

    def __init__(self, pages: int, summary: Callable[[str], Answer] | None = None, together: int = 1) -> None:
        self.pages, self.together = pages, together
        self.summary = summary or (lambda material: text("## Facts\n- nothing to tell"))
        self.materials: list[str] = []
        self.read = 0

    def __call__(self, request: dict[str, Any]) -> Answer:
        if is_summary(request):
            self.materials.append(request["messages"][1]["content"])
            return self.summary(self.materials[-1])
        if self.read >= self.pages:
            return text("All read.")
        first, self.read = self.read + 1, self.read + self.together
        return reduce(add, [call("page", {"n": n}) for n in range(first, self.read + 1)])


async def read(reader: Reader, *tools: Tool | str, **more: Any) -> Ran:
    role = {"limits": {"max_turns": 100}, **more.pop("role", {})}
    ran = await loops.run(reader, *(tools or (page,)), role=role, model={"window": WINDOW}, **more)
    assert ran.ending == ("done", "answer"), ran.result.failure
    return ran


def tokens(request: Mapping[str, Any]) -> int:
    return estimate_tokens(json.dumps([request["messages"], request.get("tools", [])], ensure_ascii=False))


def last_prompt(ran: Ran) -> str:
    return json.dumps(ran.requests[-1]["messages"], ensure_ascii=False)


def outputs_of(ran: Ran) -> Outputs:
    home = Path(ran.of(RunStarted)[0].workspace)
    return Workspace(home, home.parent).outputs


class TestALongConversation:
    async def test_every_request_stays_inside_the_window_and_is_one_that_providers_take(self) -> None:
        ran = await read(Reader(40))
        assert max(map(tokens, ran.requests)) <= ROOM
        assert len(ran.of(Compacted)) >= 3

    async def test_a_summary_without_end_does_not_fill_the_window_again(self) -> None:
        ran = await read(Reader(20, lambda material: text("blah " * 20_000, usage=None)), limits=AMPLE)
        assert max(map(tokens, ran.requests)) <= ROOM
        assert len(ran.of(Compacted)) >= 2

    async def test_nor_does_a_reply_from_a_server_that_keeps_to_no_limit(self) -> None:
        said = [text("blah " * 20_000) + call("page", {"n": 1}), text("All read.")]
        ran = await loops.run(said, page, model={"window": WINDOW}, limits=AMPLE)
        assert ran.ending == ("done", "answer")
        assert max(map(tokens, ran.requests)) <= ROOM
        assert "out:agent:1:model" in last_prompt(ran)

    async def test_each_compaction_begins_at_seventy_percent_and_leaves_forty(self) -> None:
        for change in (await read(Reader(40))).of(Compacted):
            assert 0.7 * ROOM < change.tokens_before < 0.9 * ROOM
            assert change.tokens_after <= 0.42 * ROOM

    async def test_old_results_become_handles_first_and_their_figures_stay(self) -> None:
        ran = await read(Reader(6))
        first = ran.of(Compacted)[0]
        assert first.became == ()
        assert "Depot 1 holds 1001 pallets, says Müller." in first.shortened[0][1]
        assert "out:agent:1:tool.0" in first.shortened[0][1]
        assert len(first.shortened[0][1]) < 900

    async def test_then_the_oldest_turns_become_a_summary_and_the_goal_and_the_last_turns_stay(self) -> None:
        ran = await read(Reader(40, lambda material: text("## Facts\n- Depot 1 holds 1001 pallets")), task="Count all.")
        messages = ran.requests[-1]["messages"]
        assert messages[0]["content"] == "You are an agent."
        assert "Count all." in messages[1]["content"]
        assert "- Depot 1 holds 1001 pallets" in messages[1]["content"]
        assert messages[-1]["content"].startswith("Page 40.")
        assert FILLER * 20 in messages[-1]["content"]

    async def test_between_two_compactions_each_request_begins_with_the_one_before(self) -> None:
        ran = await read(Reader(40))
        turns = [r["messages"] for r in ran.requests if not is_summary(r)]
        broken = sum(after[: len(before)] != before for before, after in pairwise(turns))
        assert broken == len(ran.of(Compacted))

    async def test_a_call_and_its_results_move_together(self) -> None:
        """B34: cut between a call and its results, every later request is refused."""
        ran = await read(Reader(120, together=2), role={"context": {"keep": 0.65}})
        assert sum(change.became != () for change in ran.of(Compacted)) >= 3
        for request in ran.requests:  # the server has refused none
            ids = [c["id"] for m in request["messages"] for c in m.get("tool_calls", ())]
            assert ids == [m["tool_call_id"] for m in request["messages"] if m["role"] == "tool"]

    async def test_the_log_says_what_the_conversation_became(self) -> None:
        ran = await read(Reader(40))
        rebuilt = Conversation()
        for event in ran.events:
            match event:
                case MessageAppended():
                    rebuilt.append(event.message, event.key)
                    assert rebuilt.hash == event.hash
                case Compacted():
                    rebuilt.compact(event)
                    assert rebuilt.hash == event.hash
                case ModelCalled() if event.key.endswith(":model"):
                    assert rebuilt.hash == event.hash

    async def test_it_is_replayed_with_its_summaries(self) -> None:
        ran = await read(Reader(40))
        recording = record(ran.events)
        assert recording.header.window == WINDOW
        role = loops.agent([page], limits={"max_turns": 100})
        orchestrator = Orchestrator(model=ReplayModel(recording), roles=[role], tools=[page])
        result = await orchestrator.run_role("agent", "the task")
        events = await orchestrator.journal.events(result.run_id)
        assert result.status == "done"
        assert [e.became for e in events if isinstance(e, Compacted)] == [e.became for e in ran.of(Compacted)]
        assert not [e for e in events if isinstance(e, Warned)]


class TestTheSummary:
    async def test_it_is_asked_for_within_the_budget_and_on_the_record(self) -> None:
        ran = await read(Reader(40))
        replied = [event for event in ran.of(ModelReplied) if ":summary." in event.key]
        assert replied
        assert all(event.content.startswith("## Facts") for event in replied)
        assert ran.result.usage.calls == len(ran.requests)

    async def test_what_an_earlier_summary_said_is_summed_up_again(self) -> None:
        reader = Reader(60, lambda material: text("## Decisions\n- the code word is Falke"))
        await read(reader)
        assert len(reader.materials) >= 2
        assert "the code word is Falke" in reader.materials[1]

    async def test_but_its_facts_are_carried_on_as_they_were_noted(self) -> None:
        notes = iter(range(1, 100))
        reader = Reader(60, lambda material: text(f"## Goal\nRead.\n\n## Facts\n- word {next(notes)} is Falke"))
        ran = await read(reader)
        assert len(reader.materials) >= 3
        assert "is Falke" not in "".join(reader.materials)
        assert all(f"- word {n} is Falke" in last_prompt(ran) for n in range(1, len(reader.materials) + 1))

    async def test_of_more_facts_than_fit_the_latest_stay_and_all_can_be_read_again(self) -> None:
        notes = iter(range(1, 100))
        reader = Reader(60, lambda material: text(f"## Facts\n- word {next(notes)} is {'Falke ' * 200}"))
        ran = await read(reader, page, "read_artifact")
        noted = len(reader.materials)
        assert f"- word {noted} is Falke" in last_prompt(ran)
        assert "- word 1 is Falke" not in last_prompt(ran)
        assert f"out:agent:facts (the list of all {noted})" in last_prompt(ran)
        assert outputs_of(ran).read("out:agent:facts").count("- word") == noted

    @pytest.mark.parametrize("answer", [text(""), fault(400, {"error": {"message": "no"}})], ids=["empty", "refused"])
    async def test_without_one_the_turns_go_all_the_same(self, answer: Answer) -> None:
        ran = await read(Reader(40, lambda material: answer))
        assert max(map(tokens, ran.requests)) <= ROOM
        assert "out:agent:outputs (the list of all" in last_prompt(ran)

    async def test_truncate_asks_for_none(self) -> None:
        reader = Reader(40)
        ran = await read(reader, role={"context": {"how": "truncate"}})
        assert reader.materials == []
        assert any(change.became for change in ran.of(Compacted))

    async def test_a_history_of_twice_the_window_is_summed_up_in_pieces_that_fit(self) -> None:
        """B36: the call that asks for the summary overflows the window itself."""
        reader = Reader(20)

        def small(request: dict[str, Any]) -> Answer:
            return TOO_LONG if tokens(request) > 6000 else reader(request)

        ran = await loops.run(small, page, role={"limits": {"max_turns": 100}})
        assert ran.ending == ("done", "answer")
        assert len(reader.materials) >= 4
        assert all(f"Depot {n} holds {1000 + n}" in "".join(reader.materials) for n in range(1, 12))
        assert max(tokens(request) for request in ran.requests if is_summary(request)) <= 2250

    @pytest.mark.parametrize(("window", "asked_again"), [(WINDOW, []), (WINDOW // 2, [True])])
    async def test_one_that_an_interrupted_run_has_is_used_for_what_it_is_of(
        self, window: int, asked_again: list[bool]
    ) -> None:
        reader = Reader(9)
        events = (await read(reader)).events
        cut = next(n for n, e in enumerate(events, 1) if isinstance(e, ModelReplied) and ":summary." in e.key)
        reader = Reader(0)
        async with ScriptedServer(reader) as server:
            role, model = {"limits": {"max_turns": 100}}, {"window": window}
            resumed = loops.orchestrator(server, [page], role=role, model=model, journal=holding(events[:cut]))
            result = await resumed.resume(events[0].run)
        assert result.status == "done"
        assert ["Depot 1 holds" in material for material in reader.materials[:1]] == asked_again


class TestAMessageThatAloneIsTooLong:
    @pytest.mark.parametrize("word", ["word ", "汉字"], ids=["English", "Chinese"])
    async def test_it_is_cut_inside(self, word: str) -> None:
        """B35: the last message alone exceeds the window, and the summariser is given nothing to sum up."""
        calls = [call("flood", {"characters": 2800 + n, "word": word}) for n in range(12)]
        replies = [reduce(add, calls), text("Done.")]
        ran = await loops.run(replies, flood, model={"window": WINDOW})
        assert ran.ending == ("done", "answer")
        assert max(map(tokens, ran.requests)) <= ROOM
        assert not any(map(is_summary, ran.requests))
        assert ran.observations[0] not in last_prompt(ran)
        assert "out:agent:1:tool.0" in last_prompt(ran)

    async def test_so_is_a_goal(self) -> None:
        ran = await loops.run([text("Done.")], page, task="Sum up: " + "word " * 20_000, model={"window": WINDOW})
        assert ran.ending == ("done", "answer")
        assert tokens(ran.requests[0]) <= ROOM
        assert "Sum up: word" in ran.requests[0]["messages"][1]["content"]

    async def test_a_history_of_300_000_chinese_characters_stays_inside(self) -> None:
        """B37: at four characters a token Chinese is sent until the server refuses it."""
        replies = [call("flood", {"characters": 10_000, "word": f"汉字{n}"}) for n in range(30)]
        role = {"limits": {"max_turns": 40}, "context": {"how": "truncate"}}
        ran = await loops.run([*replies, text("Done.")], flood, model={"window": 32_000}, role=role)
        assert ran.ending == ("done", "answer")
        most = max(sum(len(str(m["content"])) for m in request["messages"]) for request in ran.requests)
        assert most * 1.12 <= 24_000  # the most that any tokenizer of token_counts.json takes for a Chinese character


class TestAnOverflow:
    async def test_the_window_is_learned_the_prompt_fitted_and_the_call_made_once_more(self) -> None:
        reader = Reader(8)

        def small(request: dict[str, Any]) -> Answer:
            return TOO_LONG if tokens(request) > 2200 else reader(request)

        async with ScriptedServer(small) as server:
            orchestrator = loops.orchestrator(server, [page])
            result = await orchestrator.run_role("agent", "the task")
            events = await orchestrator.journal.events(result.run_id)
        assert result.status == "done"
        assert sum(tokens(request) > 2200 for request in server.requests) == 1
        assert next(e.key for e in events if isinstance(e, Compacted)) == "agent:5:summary"

    async def test_an_overflow_that_names_no_window_halves_the_prompt(self) -> None:
        refusal = fault(400, {"error": {"message": "too long", "code": "context_length_exceeded"}})
        reader = Reader(8)
        refused: list[Any] = []

        def once(request: dict[str, Any]) -> Answer:
            if tokens(request) > 3000 and not refused:
                refused.append(request)
                return refusal
            return reader(request)

        ran = await loops.run(once, page)
        assert ran.ending == ("done", "answer")
        [change] = ran.of(Compacted)
        assert change.tokens_after <= change.tokens_before // 2

    async def test_a_second_one_ends_the_loop(self) -> None:
        ran = await loops.run(lambda request: TOO_LONG, page, task="word " * 3000)
        assert ran.ending == ("failed", "model_unavailable")
        assert len(ran.requests) == 2


class TestRelevance:
    def asked(self, ran: Ran) -> set[int]:
        """Return which pages stand in the last prompt as they were read."""
        return {int(n) for n in re.findall(r'\\"n\\":\s*(\d+)', json.dumps(ran.requests[-1]["messages"]))}

    async def test_by_words_the_turns_stay_that_have_to_do_with_the_goal(self) -> None:
        ran = await read(
            Reader(30), task="What does depot 7 hold?", role={"context": {"relevance": "lexical", "how": "truncate"}}
        )
        change = next(change for change in ran.of(Compacted) if change.became)
        kept = [m for m in change.became if isinstance(m, int)]
        assert kept == sorted(kept)
        assert len(kept) <= 10

    async def test_a_score_that_cannot_be_read_keeps_the_turn(self) -> None:
        reader = Reader(40)

        def rank(request: dict[str, Any]) -> Answer:
            if "Score each numbered part" in request["messages"][0]["content"]:
                return text("I think all of them matter.")
            return reader(request)

        ran = await loops.run(
            rank,
            page,
            role={"context": {"relevance": "model"}, "limits": {"max_turns": 100}},
            model={"window": WINDOW},
        )
        assert ran.ending == ("done", "answer")
        assert any(":rank." in event.key for event in ran.of(ModelReplied))


class TestWhatTheEngineCarries:
    """A summariser that drops everything."""

    async def test_plan_and_figures_of_outcomes_survive(self) -> None:
        """The planner's conversation is compacted three times; each figure is still in its last prompt."""
        waves = [[f"s{wave}x{n}" for n in range(4)] for wave in range(6)]
        figures = {id: f"{70_000 + 137 * n}" for n, id in enumerate(id for wave in waves for id in wave)}
        left = [engine.delegate(*(engine.subtask(id, goal=f"count Lager {id}") for id in wave)) for wave in waves]

        def planner(request: dict[str, Any]) -> Answer:
            return left.pop(0) if left else text("All counted.")

        def worker(request: dict[str, Any]) -> Answer:
            id = re.findall(r"count Lager (\w+)", json.dumps(request["messages"]))[-1]
            return text(f"{FILLER * 8}Lager {id} holds {figures[id]} pallets. {FILLER * 8}")

        replies = {engine.ORI: planner, "You are a worker": worker, "You sum up": lambda request: text("Nothing.")}
        async with engine.serving(replies) as server:
            settings = ModelSettings(model="m", base_url=server.base_url, window=8000)
            orchestrator = Orchestrator(models={"default": settings}, roles=[engine.WORKER])
            result = await orchestrator.solve("Count the pallets. Never round a figure.")
            events = await orchestrator.journal.events(result.run_id)
        assert result.status == "done"
        assert sum(isinstance(event, Compacted) and event.path == "ori" for event in events) >= 3
        last = json.dumps(server.requests[-1]["messages"])
        assert "Never round a figure." in last
        assert [id for id, figure in figures.items() if figure not in last or f"- {id} (worker)" not in last] == []

    async def test_every_output_can_be_read_again(self) -> None:
        ran = await read(Reader(60, lambda material: text("Nothing.")), page, "read_artifact")
        assert len(ran.of(Compacted)) >= 3
        outputs = outputs_of(ran)
        named = re.findall(r"out:[\w:.]+", last_prompt(ran))
        listed = outputs.read("out:agent:outputs")
        for n in range(1, 41):
            handle = f"out:agent:{n}:tool.0"
            assert handle in named or handle in listed
            assert f"Depot {n} holds" in outputs.read(handle)
        assert "out:agent:outputs" in named

    async def test_an_output_that_strangers_wrote_stays_theirs(self) -> None:
        theirs = replace(page, untrusted=True)
        ran = await read(Reader(20, lambda material: text("Nothing.")), theirs, "read_artifact")
        outputs = outputs_of(ran)
        assert outputs.holds("agent:1:tool.0")
        assert outputs.sources("out:agent:1:tool.0") == ("page",)
        assert outputs.sources("out:agent:figures") == ("page",)

    async def test_sentences_with_figures_are_quoted(self) -> None:
        ran = await read(Reader(40, lambda material: text("Nothing.")))
        assert len(ran.of(Compacted)) >= 3
        said = ran.requests[-1]["messages"][1]["content"]
        assert [n for n in range(25, 35) if f"- Depot {n} holds {1000 + n} pallets, says Müller." not in said] == []

    async def test_files_that_were_written_are_named(self) -> None:
        reader = Reader(40)

        def writes(request: dict[str, Any]) -> Answer:
            if reader.read == 0:
                reader.read = 1
                return call("write_file", {"path": "depots.md", "content": "1001"})
            return reader(request)

        ran = await loops.run(writes, page, "write_file", role={"limits": {"max_turns": 100}}, model={"window": WINDOW})
        assert any(change.became for change in ran.of(Compacted))
        assert "Files that you wrote: depots.md" in last_prompt(ran)


async def test_the_shipped_scenario_reads_more_than_its_window_holds() -> None:
    orchestrator = Orchestrator()
    scenario = orchestrator.catalog.scenario("long_read")
    async with orchestrator.start_scenario(scenario, replay=True) as handle:
        assert (await handle.result()).status == "done"
    events = await orchestrator.journal.events(handle.run_id)
    changes = [event for event in events if isinstance(event, Compacted)]
    assert not [event.text for event in events if isinstance(event, Warned) and "does not fit" in event.text]
    assert len(changes) >= 2
    assert all(change.path == "ori/read" and change.tokens_after < change.tokens_before / 1.5 for change in changes)
