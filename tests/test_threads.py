import asyncio
import contextvars
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from queue import Queue

import pytest

from orchestrator.content.toolfiles import load
from orchestrator.errors import ConfigError, ToolError
from orchestrator.threads import ThreadPool

HANGING_TOOL = """
import asyncio, threading
from orchestrator.threads import ThreadPool

async def main():
    try:
        async with asyncio.timeout(0.05):
            await ThreadPool().run(threading.Event().wait)
    except TimeoutError:
        print("gave up")

asyncio.run(main())
"""


def join_threads() -> None:
    for thread in threading.enumerate():
        if thread.name == "ori-tool":
            thread.join(5)


async def test_the_event_loop_goes_on_while_a_function_blocks() -> None:
    """R39."""
    release = threading.Event()
    async with asyncio.TaskGroup() as tasks:
        blocked = tasks.create_task(ThreadPool().run(release.wait, 5))
        await asyncio.sleep(0)
        release.set()  # only a loop that goes on gets here
    assert blocked.result() is True


async def test_a_result_an_error_and_context_variables_come_through() -> None:
    pool = ThreadPool()
    user = contextvars.ContextVar("user", default="")
    user.set("李雷")
    assert await pool.run(user.get) == "李雷"
    assert await pool.run(divmod, 7, 2) == (3, 1)
    assert await pool.run(int, "ff", base=16) == 255
    with pytest.raises(ZeroDivisionError):
        await pool.run(divmod, 1, 0)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await pool.run(next, iter(()))


async def test_a_function_that_exits_ends_its_call_and_not_the_program() -> None:
    with pytest.raises(ToolError, match="tried to end the program"):
        await ThreadPool().run(sys.exit, 3)


async def test_no_more_threads_run_than_the_pool_has_and_the_rest_waits() -> None:
    pool, busy, most = ThreadPool(3), 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        time.sleep(0.002)
        with lock:
            busy -= 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(30):
            tasks.create_task(pool.run(work))
    assert 1 < most <= 3


async def test_an_abandoned_call_keeps_its_thread_until_it_really_ends() -> None:
    """R39."""
    pool, started, release = ThreadPool(2), threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        release.wait(5)

    async with asyncio.TaskGroup() as tasks:
        abandoned = tasks.create_task(pool.run(hang))
        await asyncio.to_thread(started.wait, 30)
        abandoned.cancel()
    assert started.is_set()
    assert pool.hanging == 1
    assert await pool.run(abs, -1) == 1  # the other thread still works
    release.set()
    await asyncio.to_thread(join_threads)
    assert pool.hanging == 0


async def test_when_every_thread_hangs_the_next_call_and_those_that_wait_are_told_how_many() -> None:
    """R39."""
    pool, release, started = ThreadPool(2), threading.Event(), Queue[None]()

    def hang() -> None:
        started.put(None)
        release.wait(5)

    async with asyncio.TaskGroup() as tasks:
        hung = [tasks.create_task(pool.run(hang)) for _ in range(2)]
        for _ in hung:
            await asyncio.to_thread(started.get)
        waiting = tasks.create_task(expect_exhausted(pool))
        await asyncio.sleep(0)
        for task in hung:
            task.cancel()
        await waiting
    await expect_exhausted(pool)
    release.set()


async def expect_exhausted(pool: ThreadPool) -> None:
    with pytest.raises(ToolError, match=r"2 earlier calls .* hold all 2 threads"):
        await pool.run(abs, -1)


async def test_a_call_cancelled_while_it_waits_never_runs() -> None:
    pool, release, ran = ThreadPool(1), threading.Event(), threading.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pool.run(release.wait, 5))
        await asyncio.sleep(0)
        waiting = tasks.create_task(pool.run(ran.set))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        release.set()
    assert await pool.run(abs, -1) == 1
    assert pool.hanging == 0
    assert not ran.is_set()


def test_a_result_that_comes_after_its_event_loop_closed_is_dropped() -> None:
    """A warning about an unhandled thread exception would fail this test."""
    pool, release = ThreadPool(), threading.Event()

    async def give_up() -> None:
        async with asyncio.timeout(0.05):
            await pool.run(release.wait, 5)

    with pytest.raises(TimeoutError):
        asyncio.run(give_up())
    release.set()
    join_threads()
    assert asyncio.run(pool.run(abs, -1)) == 1  # and another loop may use the pool


def test_the_interpreter_does_not_wait_for_a_hanging_function_at_exit() -> None:
    """R39."""
    done = subprocess.run([sys.executable, "-c", HANGING_TOOL], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "gave up\n", "")


def square(number: int) -> int:
    print("computing")  # noqa: T201 - the output of a tool is no part of its result
    return number * number


def whoami() -> tuple[int, int]:
    return os.getpid(), os.getpgid(0)


def fail() -> None:
    raise LookupError("no such order")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    sys.exit(4)


def hang_with_child(fifo: str) -> None:
    child = subprocess.Popen(["sleep", "600"])
    Path(fifo).write_text(f"{os.getpid()} {child.pid}")
    threading.Event().wait()


def touch(file: str) -> None:
    Path(file).touch()


def make_lock() -> object:
    return threading.Lock()


async def test_a_process_brings_its_result_or_its_error_back() -> None:
    pool = ThreadPool()
    async with asyncio.TaskGroup() as tasks:
        number = tasks.create_task(pool.run_in_process(square, 12))
        place = tasks.create_task(pool.run_in_process(whoami))
    assert number.result() == 144
    assert place.result()[0] == place.result()[1] != os.getpid()
    with pytest.raises(LookupError, match="no such order") as caught:
        await pool.run_in_process(fail)
    assert "in fail" in caught.value.__notes__[0]


TOOL_FILE = """
from dataclasses import dataclass
from orchestrator import tool

@dataclass
class Order:
    id: int

@tool(process=True)
def double(order: Order) -> Order:
    'Double.'
    return Order(2 * order.id)
"""


async def test_a_tool_file_of_a_project_is_found_in_the_process(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text(TOOL_FILE)
    double = load(file)["double"].function
    assert double is not None
    order = double.__globals__["Order"]
    assert await ThreadPool().run_in_process(double, order(4)) == order(8)


EXITING_PROGRAM = """
import asyncio, os, sys
from pathlib import Path
from orchestrator.threads import ThreadPool
from tests.test_threads import hang_with_child

async def main():
    task = asyncio.ensure_future(ThreadPool().run_in_process(hang_with_child, sys.argv[1]))
    print(await asyncio.to_thread(Path(sys.argv[1]).read_text), flush=True)
    os._exit(0) if sys.argv[2] == "at once" else os.kill(os.getpid(), 9) if sys.argv[2] == "killed" else sys.exit(0)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["properly", "at once", "killed"])
async def test_no_process_outlives_the_program(tmp_path: Path, how: str) -> None:
    fifo = tmp_path / "pids"
    os.mkfifo(fifo)
    command = [sys.executable, "-c", EXITING_PROGRAM, str(fifo), how]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=20, check=False)
    pids = [int(pid) for pid in ended.stdout.split()]
    assert len(pids) == 2
    async with asyncio.timeout(5):
        while any(map(alive, pids)):
            await asyncio.sleep(0.01)


async def test_a_process_that_dies_or_exits_is_an_error_that_says_so() -> None:
    pool = ThreadPool()
    with pytest.raises(ToolError, match=r"process of die died \(exit code -9\)"):
        await pool.run_in_process(die)
    with pytest.raises(ToolError, match="SystemExit: 4"):
        await pool.run_in_process(leave)


async def test_what_cannot_be_sent_between_processes_is_named() -> None:
    pool = ThreadPool()
    with pytest.raises(ToolError, match="an argument of square cannot be sent"):
        await pool.run_in_process(square, threading.Lock())  # type: ignore[arg-type]
    with pytest.raises(ToolError, match="the result of make_lock cannot be sent"):
        await pool.run_in_process(make_lock)
    with pytest.raises(ConfigError, match="top of a module"):
        await pool.run_in_process(lambda: 1)


async def test_a_process_is_gone_with_all_it_started_when_its_time_is_up(tmp_path: Path) -> None:
    """R39."""
    fifo = tmp_path / "pids"
    os.mkfifo(fifo)
    pool = ThreadPool()
    task: asyncio.Task[None]
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(pool.run_in_process(hang_with_child, str(fifo)))
        pids = [int(pid) for pid in (await asyncio.to_thread(fifo.read_text)).split()]
        task.cancel()
    await asyncio.to_thread(join_threads)
    assert [pid for pid in pids if alive(pid)] == []
    assert pool.hanging == 0


def alive(pid: int) -> bool:
    """Whether a process runs: an orphan that nobody has reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


async def test_a_process_cancelled_before_it_starts_never_starts(tmp_path: Path) -> None:
    pool, release = ThreadPool(1), threading.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pool.run(release.wait, 5))
        await asyncio.sleep(0)
        waiting = tasks.create_task(pool.run_in_process(touch, str(tmp_path / "made")))
        await asyncio.sleep(0)
        waiting.cancel()
        release.set()
    assert not (tmp_path / "made").exists()
