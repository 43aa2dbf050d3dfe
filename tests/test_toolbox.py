"""What happens to the calls of a reply: each gets exactly one observation, whatever the tool does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from orchestrator import ToolContext, ToolError, ToolResult, tool
from orchestrator.codec import encode
from orchestrator.events import ToolProgress, ToolReturned, ToolStarted, VariableSet
from orchestrator.failure import FailureKind
from orchestrator.testing import Answer, ScriptedServer, call, route, text
from tests.loops import API_KEY, look, orchestrator, run

DONE = text("Done.")


@tool
async def never(ctx: ToolContext) -> None:
    """Wait for ever. Use it never. Returns nothing."""
    await asyncio.Event().wait()


@tool(timeout=0.05)
async def hangs() -> None:
    """Hang. Use it never. Returns nothing."""
    await asyncio.Event().wait()


@tool
async def breaks() -> None:
    """Break. Use it never. Returns nothing."""
    raise ConnectionError("the line is dead")


@tool
async def cancels() -> None:
    """Wait for something that ends. Use it never. Returns nothing."""
    waiting = asyncio.get_running_loop().create_future()
    waiting.cancel()
    await waiting


@tool
async def stops() -> None:
    """Cancel itself. Use it never. Returns nothing."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.Event().wait()


@tool
async def leaves() -> None:
    """End the program. Use it never. Returns nothing."""
    sys.exit("goodbye")


@tool(timeout=0.05)
async def clings() -> None:
    """Go on whatever happens. Use it never. Returns nothing."""
    while not let_go.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)


let_go = threading.Event()


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError


@tool
async def mutters() -> None:
    """Fail without a word. Use it never. Returns nothing."""
    raise Unspeakable


@tool
async def divides() -> None:
    """Do two things at once. Use it never. Returns nothing."""

    async def fail(error: Exception) -> None:
        raise error

    async with asyncio.TaskGroup() as group:
        group.create_task(fail(LookupError("no such order")))
        group.create_task(fail(ConnectionError("the line is dead")))


@tool(effect="read")
async def stranger() -> object:
    """Return something odd. Use it once. Returns it."""
    return [object(), {1, 2}, b"\xff", threading.Lock()]


class TestOneAnswerForEachCall:
    @pytest.mark.parametrize(
        ("wrong", "told"),
        [
            (call("breaks", {}), "breaks failed: ConnectionError: the line is dead"),
            (call("hangs", {}), "hangs did not finish within 0.05 s; it was stopped"),
            (call("cancels", {}), "cancels failed: something that it waited for was cancelled"),
            (call("stops", {}), "stops failed: something that it waited for was cancelled"),
            (call("leaves", {}), "leaves failed: SystemExit: goodbye"),
            (call("mutters", {}), "mutters failed: Unspeakable"),
            (call("divides", {}), "LookupError: no such order; ConnectionError: the line is dead"),
            (call("look", '{"name": "a'), "look was not run: the arguments are cut off"),
            (call("look", "", finish_reason="length"), "the call was cut off at the length limit"),
            (call("reed_file", {}), "there is no tool 'reed_file'"),
        ],
        ids=lambda value: value.calls[0][0] + value.finish_reason if isinstance(value, Answer) else "",
    )
    async def test_whatever_goes_wrong(self, wrong: Answer, told: str) -> None:
        """R23."""
        tools = (look, breaks, hangs, cancels, stops, leaves, mutters, divides)
        both = call("look", {"name": "a"}, finish_reason=wrong.finish_reason) + wrong
        ran = await run([both, DONE], *tools)
        assert ran.result.status == "done"
        assert ran.observations[0] == "a is 42"
        assert told in ran.observations[1]
        assert [len(answers) for _, answers in ran.answers()] == [1, 1]
        assert [event.ok for event in ran.of(ToolReturned)] == [True, False]

    async def test_siblings_of_a_call_that_raises_keep_their_results(self) -> None:
        """B21: one of several parallel calls raises, and what its siblings found is thrown away."""

        @tool(effect="read")
        async def fetch(url: str) -> str:
            """Fetch it. Use it for facts. Returns the page."""
            if url == "b":
                raise ConnectionError("refused")
            return f"page {url}"

        ran = await run([call("fetch", {"url": "a"}) + call("fetch", {"url": "b"}) + call("fetch", {"url": "c"}), DONE],
                        fetch)  # fmt: skip
        assert ran.observations == ["page a", "Error: fetch failed: ConnectionError: refused", "page c"]

    async def test_a_call_that_is_stopped_has_its_answer(self) -> None:
        """B22: a timeout cancels one of two parallel calls, which gets no message: the next request is refused."""

        @tool(effect="read", timeout=0.05)
        async def fetch(url: str) -> str:
            """Fetch it. Use it for facts. Returns the page."""
            if url == "slow":
                await asyncio.Event().wait()
            return f"page {url}"

        ran = await run([call("fetch", {"url": "slow"}) + call("fetch", {"url": "a"}), DONE], fetch)
        assert ran.result.status == "done"
        assert ["did not finish within 0.05 s" in text for text in ran.observations] == [True, False]
        [failure] = [event.failure for event in ran.of(ToolReturned) if event.failure]
        assert failure.kind == FailureKind.tool_timeout

    async def test_one_that_swallows_its_cancellation_is_left_behind(self) -> None:
        let_go.clear()
        ran = await run([call("clings", {}) + call("look", {"name": "a"}), DONE], clings, look)
        let_go.set()
        assert ran.observations[0] == "Error: clings did not finish within 0.05 s; it may still be running"
        assert ran.observations[1] == "a is 42"

    async def test_and_changes_no_file_once_the_run_is_over(self, tmp_path: Path) -> None:
        over, told = threading.Event(), asyncio.Event()
        here, said = asyncio.get_running_loop(), []

        @tool(timeout=0.05)
        def dawdles(ctx: ToolContext) -> None:
            """Write late. Use it never. Returns nothing."""
            over.wait()
            try:
                ctx.workspace.write("late.txt", b"late")
            except ToolError as error:
                said.append(str(error))
            here.call_soon_threadsafe(told.set)

        await run([call("dawdles", {}), DONE], dawdles, workspace=tmp_path)
        over.set()
        await told.wait()
        assert said == ["'late.txt' comes too late: the run is over; choose another name"]
        assert list(tmp_path.iterdir()) == []

    async def test_and_does_not_keep_a_run_from_being_cancelled(self) -> None:
        let_go.clear()
        plan = {"subtasks": [{"id": "cling", "role": "agent", "goal": "cling", "after": []}]}
        script = route({"You are Ori": [call("delegate", plan)], "You are an agent": [call("clings", {})]})
        endless = replace(clings, timeout=None)
        async with ScriptedServer(script) as server, orchestrator(server, [endless]).start("cling") as handle:
            async for event in handle:
                if isinstance(event, ToolStarted) and event.name == "clings":
                    async with asyncio.timeout(5):
                        result = await handle.cancel()
        let_go.set()
        assert (result.status, result.outcomes["cling"].status) == ("cancelled", "cancelled")

    async def test_a_cancelled_run_sends_no_conversation_that_lacks_an_answer(self) -> None:
        """R23."""
        plan = {"subtasks": [{"id": "wait", "role": "agent", "goal": "wait", "after": []}]}
        script = route({"You are Ori": [call("delegate", plan)], "You are an agent": [call("never", {})]})
        async with ScriptedServer(script) as server:
            async with orchestrator(server, [never]).start("wait") as handle:
                async for event in handle:
                    if isinstance(event, ToolStarted) and event.name == "never":
                        result = await handle.cancel()
            assert (result.status, len(server.requests)) == ("cancelled", 2)


class TestWhatMayBeCalled:
    async def test_a_tool_with_a_chinese_name(self) -> None:
        @tool(effect="read")
        async def 查询订单(区域: str) -> str:  # noqa: N802, N803, PLC2401
            """查询订单。Use it for orders. Returns their number."""
            return f"{区域} 12"

        def ask(request: dict[str, Any]) -> Answer:
            offered = request["tools"][0]["function"]["name"]
            return DONE if request["messages"][-1]["role"] == "tool" else call(offered, {"区域": "华东"})

        ran = await run(ask, 查询订单)
        assert ran.observations == ["华东 12"]
        assert ran.of(ToolReturned)[0].name == "查询订单"

    async def test_only_what_the_whitelist_names(self) -> None:
        """R33: it is checked when the call is made, not only when tools are listed."""
        ran = await run([call("wipe", {}) + call("write_file", {"path": "a", "content": "x"}), DONE], look)
        assert ran.of(ToolStarted) == []
        assert [offered["function"]["name"] for offered in ran.requests[0]["tools"]] == ["look"]
        assert ran.result.artifacts == ()
        assert ran.observations == [
            f"Error: there is no tool {name!r} here; allowed: 'look'" for name in ("wipe", "write_file")
        ]

    async def test_an_invented_name_is_answered_with_the_nearest_one(self) -> None:
        """B18: a name that the model made up raises and ends the run."""

        @tool
        async def browser_fill_form(field: str) -> str:
            """Fill in a field. Use it for forms. Returns the form."""
            return f"{field} is filled in"

        replies = [call("browser_fill", {"field": "a"}), call("browser_fill_form", {"field": "a"}), DONE]
        ran = await run(replies, browser_fill_form)
        assert "did you mean 'browser_fill_form'?" in ran.observations[0]
        assert (ran.result.status, ran.observations[1]) == ("done", "a is filled in")

    async def test_half_a_call_is_not_run_and_goes_back_as_valid_json(self) -> None:
        """B19: bad arguments are replaced by `{}`, and the tool runs."""
        wiped: list[str] = []

        @tool
        async def wipe(path: str = "everything") -> None:
            """Delete a file, or everything. Use it with care. Returns nothing."""
            wiped.append(path)

        ran = await run([call("wipe", '{"path": "a'), DONE], wipe)
        assert wiped == []
        assert "cut off" in ran.observations[0]
        assert ran.requests[1]["messages"][2]["tool_calls"][0]["function"]["arguments"] == "{}"

    @pytest.mark.parametrize(
        "arguments", ["null", "[]", '"x"', "7", "{" * 1_000_000, '{"name": "' + "x" * 1_000_000], ids=lambda a: a[:9]
    )
    async def test_arguments_that_are_no_object_cost_the_next_prompt_little(self, arguments: str) -> None:
        """B20: they crash the dispatch, or a megabyte of them is echoed into the next prompt."""
        usage = {"prompt_tokens": 1, "completion_tokens": 1}  # so that this is not about the budget
        ran = await run([call("look", arguments, usage=usage), DONE], look)
        assert ran.result.status == "done"
        assert ran.of(ToolStarted) == []
        assert len(json.dumps(ran.requests[1])) < len(json.dumps(ran.requests[0])) + 1_500

    async def test_a_megabyte_of_a_name_costs_it_little_too(self) -> None:
        ran = await run([call("look" * 250_000, {}, usage={"prompt_tokens": 1}), DONE], look)
        assert len(json.dumps(ran.requests[1])) < len(json.dumps(ran.requests[0])) + 1_500


class TestOrder:
    async def test_calls_of_one_message_run_in_message_order(self) -> None:
        """B23: two calls run at the same time, though the second reads what the first writes."""
        files: list[str] = []

        @tool
        async def write(name: str) -> None:
            """Write a file. Use it to keep a text. Returns nothing."""
            await asyncio.sleep(0)
            files.append(name)

        @tool(effect="read")
        async def names() -> list[str]:
            """List the files. Use it to see what there is. Returns their names."""
            return files

        both = call("write", {"name": "a"}) + call("names", {}) + call("write", {"name": "b"}) + call("names", {})
        ran = await run([both, DONE], write, names)
        assert ran.observations[1::2] == ['["a"]', '["a","b"]']

    async def test_neighbouring_reads_run_together_and_answer_in_order(self) -> None:
        meeting = asyncio.Barrier(3)
        order: list[str] = []

        @tool(effect="read", timeout=5)
        async def fetch(url: str) -> str:
            """Fetch it. Use it for facts. Returns the page."""
            await meeting.wait()  # passes only when three are here
            order.append(url)
            return f"page {url}"

        @tool(effect="idempotent")
        async def write() -> None:
            """Write. Use it to keep a text. Returns nothing."""
            order.append("write")

        three = call("fetch", {"url": "a"}) + call("fetch", {"url": "b"}) + call("fetch", {"url": "c"})
        ran = await run([three + call("write", {}) + three, DONE], fetch, write)
        assert ran.observations[:3] == ["page a", "page b", "page c"]
        assert order[3] == "write"
        assert sorted(order[:3]) == sorted(order[4:]) == ["a", "b", "c"]


class TestRetries:
    async def test_a_repeatable_tool_is_tried_again_under_the_same_key(self) -> None:
        keys: list[str] = []

        @tool(effect="idempotent", retries=2)
        async def put(ctx: ToolContext) -> str:
            """Put it there. Use it once. Returns how often it took."""
            keys.append(ctx.key)
            if len(keys) < 3:
                raise ConnectionError("not yet")
            return f"{len(keys)} tries"

        ran = await run([call("put", {}), DONE], put)
        assert ran.observations == ["3 tries"]
        assert len(set(keys)) == 1
        assert [event.failure for event in ran.of(ToolReturned)] == [None]

    async def test_an_ordinary_error_is_not(self) -> None:
        tries: list[None] = []

        @tool(effect="read", retries=2)
        async def find() -> None:
            """Find it. Use it once. Returns it."""
            tries.append(None)
            raise ToolError("there is no such order")

        ran = await run([call("find", {}), DONE], find)
        assert (ran.observations, len(tries)) == (["Error: there is no such order"], 1)


class TestBlockingTools:
    async def test_the_event_loop_goes_on_while_one_blocks(self) -> None:
        """R39."""
        release = threading.Event()

        @tool(effect="read", timeout=10)
        def block() -> bool:
            """Block. Use it once. Returns whether it was let go."""
            return release.wait(5)

        @tool(effect="read")
        async def let_go() -> None:
            """Let it go. Use it once. Returns nothing."""
            release.set()

        ran = await run([call("block", {}) + call("let_go", {}), DONE], block, let_go)
        assert ran.observations[0] == "true"

    async def test_one_that_hangs_is_left_alone_and_counted(self) -> None:
        """R39: its thread cannot be stopped, and the observation does not say that it was."""
        release = threading.Event()

        @tool(timeout=0.05)
        def block() -> None:
            """Block. Use it once. Returns nothing."""
            release.wait(30)

        @tool(effect="read")
        async def count(ctx: ToolContext) -> int:
            """Count. Use it once. Returns how many calls hang."""
            return ctx.threads.hanging

        ran = await run([call("block", {}) + call("count", {}), DONE], block, count)
        release.set()
        assert ran.observations == ["Error: block did not finish within 0.05 s; it may still be running", "1"]

    def test_a_program_does_not_wait_for_one_that_hangs(self) -> None:
        """R39."""
        root = Path(__file__).resolve().parent.parent
        done = subprocess.run([sys.executable, "-c", HANGING], cwd=root, capture_output=True, text=True, timeout=30)
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


HANGING = """
import asyncio, threading
from orchestrator import tool
from orchestrator.testing import call, text
from tests.loops import run

@tool(timeout=0.05)
def block() -> None:
    "Block. Use it never. Returns nothing."
    threading.Event().wait()

print(asyncio.run(run([call("block", {}), text("Done.")], block)).result.status)
"""


class TestLongResults:
    @pytest.mark.parametrize("line", ["a line of output\n", "一行输出，很多很多行\n"])
    async def test_a_result_of_5_megabytes_is_cut_and_can_be_read_whole(self, line: str) -> None:
        """B38: results have no limit; each one fills the window, to the last turn. (R42)"""
        whole = "HEAD" + line * (5_000_000 // len(line.encode())) + "TAIL"

        @tool(effect="read")
        async def dump() -> str:
            """Dump it all. Use it once. Returns everything."""
            return whole

        handle = "out:agent:1:tool.0"
        page = call("read_artifact", {"handle": handle, "start": len(whole) - 20, "characters": 100})
        ran = await run([call("dump", {}), page, DONE], dump, "read_artifact")
        seen, last_page = ran.observations
        assert seen.startswith("HEAD") and seen.endswith("TAIL") and handle in seen
        assert len(seen) < 12_500
        [returned] = [event for event in ran.of(ToolReturned) if event.cut]
        assert (returned.cut, returned.handle) == (f"12000 of {len(whole)} characters", handle)
        assert returned.characters == len(whole)
        assert last_page.endswith(whole[-20:])

    async def test_the_whole_is_what_tools_get_behind_the_handle(self) -> None:
        """R42."""
        whole = "".join(f"{n}\n" for n in range(50_000))

        @tool(effect="read")
        async def dump() -> str:
            """Dump it all. Use it once. Returns everything."""
            return whole

        @tool(effect="read")
        async def same(handle: str, ctx: ToolContext) -> bool:
            """Compare. Use it once. Returns whether nothing is missing."""
            return ctx.workspace.read_text(handle) == whole

        ran = await run([call("dump", {}), call("same", {"handle": "out:agent:1:tool.0"}), DONE], dump, same)
        assert ran.observations[1] == "true"

    async def test_a_small_window_gets_less(self) -> None:
        @tool(effect="read")
        async def dump() -> str:
            """Dump it all. Use it once. Returns everything."""
            return "x" * 20_000

        ran = await run([call("dump", {}), DONE], dump, model={"window": 4096})
        assert len(ran.observations[0]) < 2_500

    async def test_a_tool_may_see_to_the_length_itself(self) -> None:
        @tool(effect="read", cut=False)
        async def dump() -> str:
            """Dump it all. Use it once. Returns everything."""
            return "x" * 20_000

        ran = await run([call("dump", {}), DONE], dump)
        assert len(ran.observations[0]) == 20_000
        assert [event.cut for event in ran.of(ToolReturned)] == [None]


class TestOddResults:
    async def test_what_json_cannot_hold_is_described(self) -> None:
        ran = await run([call("stranger", {}), DONE], stranger)
        assert ran.result.status == "done"
        for words in ("builtins.object", "[1,2]", "1 bytes that are not text", "_thread.lock"):
            assert words in ran.observations[0]

    @pytest.mark.parametrize(
        ("value", "form"), [(2**70, 2**70), (date(2026, 1, 2), "2026-01-02"), ({1: {2}}, {"1": [2]})]
    )
    async def test_the_value_of_a_result_is_json(self, value: object, form: object) -> None:
        @tool
        async def last() -> ToolResult:
            """End it. Use it last. Returns nothing."""
            return ToolResult("ended", value=value, final=True)

        ran = await run([call("last", {})], last)
        assert (ran.result.status, ran.result.value) == ("done", form)


class TestSecrets:
    @pytest.mark.parametrize("key", [API_KEY, "no-shape-that-is-known"])
    async def test_none_is_in_what_the_model_sees_or_in_the_log(self, key: str) -> None:
        """R70: by value, in observations, failures, progress and values."""

        @tool
        async def fail(ctx: ToolContext) -> None:
            """Fail. Use it never. Returns nothing."""
            await ctx.progress(f"asking with {key}")
            raise PermissionError(f"401 for {key}")

        @tool
        async def show() -> ToolResult:
            """Show it. Use it never. Returns it."""
            return ToolResult(f"the key is {key}", value={"headers": [{"authorization": key}]}, final=True)

        script = [call("fail", {}), call("show", {})]
        async with ScriptedServer(script) as server:
            orchestrated = orchestrator(server, [fail, show], model={"api_key": key})
            result = await orchestrated.run_role("agent", "the task")
            events = await orchestrated.journal.events(result.run_id)
        assert result.answer == "the key is [redacted]"
        assert result.value == {"headers": [{"authorization": "[redacted]"}]}
        assert key not in json.dumps(server.requests)
        assert key not in "".join(encode(event).decode() for event in events)


class TestToolContext:
    async def test_a_tool_gets_what_the_program_gave_and_a_place_of_its_own(self) -> None:
        seen: list[ToolContext] = []

        @tool
        async def act(ctx: ToolContext, note: str = "") -> None:
            """Do it. Use it once. Returns nothing."""
            seen.append(ctx)
            ctx.variables["note"] = f"{ctx.variables.get('note', '')}{note}"
            await ctx.artifact(f"out/{note}.txt", "文本")

        both = call("act", {"note": "a"}) + call("act", {"note": "b"})
        ran = await run([both, call("act", {"note": "c"}), DONE], act, deps={"shop": 7})
        assert [ctx.deps for ctx in seen] == [{"shop": 7}] * 3
        assert {ctx.path for ctx in seen} == {"agent"}
        assert {ctx.run_id for ctx in seen} == {ran.result.run_id}
        assert len({ctx.key for ctx in seen}) == 3
        assert [(event.name, event.value) for event in ran.of(VariableSet)] == [
            ("note", "a"),
            ("note", "ab"),
            ("note", "abc"),
        ]
        assert [artifact.path for artifact in ran.result.artifacts] == ["out/a.txt", "out/b.txt", "out/c.txt"]
        assert "ctx" not in json.dumps(ran.requests[0]["tools"])

    async def test_progress_reaches_who_watches_and_not_the_log(self) -> None:
        @tool(effect="read")
        async def walk(ctx: ToolContext) -> None:
            """Walk. Use it once. Returns nothing."""
            await ctx.progress(f"half way, with {API_KEY}")

        plan = {"subtasks": [{"id": "go", "role": "agent", "goal": "walk", "after": []}]}
        script = route({"You are Ori": [call("delegate", plan), DONE], "You are an agent": [call("walk", {}), DONE]})
        async with ScriptedServer(script) as server:
            orchestrated = orchestrator(server, [walk])
            async with orchestrated.stream("walk") as handle:
                told = [e async for e in handle if isinstance(e, ToolProgress) and e.name == "walk"]
            kept = await orchestrated.journal.events(handle.run_id)
        assert [(event.path, event.text) for event in told] == [("ori/go", "half way, with [redacted]")]
        assert not any(isinstance(event, ToolProgress) for event in kept)
