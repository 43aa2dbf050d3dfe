from __future__ import annotations

import asyncio
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.sandbox.processes import Ended, run_command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
ENVIRONMENT = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}


async def sh(line: str, folder: Path, *, seconds: float = 20, kept: int = 10_000, **variables: str) -> Ended:
    command = ("/bin/sh", "-c", line)
    return await run_command(command, folder=folder, environment=ENVIRONMENT | variables, seconds=seconds, kept=kept)


def alive(mark: str) -> list[str]:
    """Return the command lines of living processes that carry a mark; the longer numbers of others may hold it."""
    found, whole = [], re.compile(rf"(?<![\d.]){re.escape(mark)}(?![\d.])")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if whole.search(line):
                found.append(line)
    return found


async def test_output_and_exit_code_are_returned(tmp_path: Path) -> None:
    assert await sh("pwd; echo 销售 >&2; exit 3", tmp_path) == Ended(f"{tmp_path}\n销售\n", 3)


async def test_a_signal_is_told_as_shells_tell_it(tmp_path: Path) -> None:
    assert (await sh("kill -9 $$", tmp_path)).code == 137


async def test_a_program_that_is_not_there_is_said(tmp_path: Path) -> None:
    done = await run_command(["no-such-program"], folder=tmp_path, environment=ENVIRONMENT, seconds=9, kept=100)
    assert done == Ended("no-such-program: No such file or directory\n", 127)


@pytest.mark.parametrize(
    "line",
    [
        "read x; echo got:$x",
        "read x </dev/tty; echo got:$x",
        "cat",
        "head -c 1",
        "sudo -k true",
        "ssh -V; ssh -p 1 127.0.0.1",
    ],
)
async def test_what_asks_a_person_fails_at_once(tmp_path: Path, line: str) -> None:
    """B30: there is no input, and no terminal to ask on."""
    done = await sh(line, tmp_path, seconds=10)  # it ends by itself, long before
    assert done.code is not None
    assert not done.output.startswith("got:") or done.output == "got:\n"


async def test_the_environment_is_what_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "s3cret")
    done = await sh("/usr/bin/env; cat /proc/$PPID/environ", tmp_path, GIVEN="yes")
    assert "GIVEN=yes" in done.output
    assert "s3cret" not in done.output


async def test_much_output_is_cut_in_the_middle(tmp_path: Path) -> None:
    done = await sh("echo first; yes | head -c 50000000; echo last", tmp_path, kept=1000)
    assert len(done.output) < 1100
    assert done.output.startswith("first\n")
    assert done.output.endswith("last\n")
    assert "bytes left out" in done.output


ESCAPES = {
    "a child": "sleep {} & wait",
    "a child left behind": "sleep {} & sleep {} & echo out",
    "another session": "setsid sleep {} & echo out",
    "another session that lost its parent": "(setsid sh -c 'sleep {} & sleep {} & exit' &) ; echo out",
    "without its environment": "env -i setsid sleep {} & echo out",
    "one that ignores signals": "(trap '' TERM HUP INT; nohup sleep {} >/dev/null 2>&1 &); echo out",
    "one that holds no output": "setsid sleep {} >/dev/null 2>&1 & echo out",
    "one that has stopped itself": "sh -c 'kill -STOP $$; sleep {}' & echo out",
}


@pytest.mark.parametrize("line", ESCAPES.values(), ids=ESCAPES)
async def test_nothing_that_a_command_started_outlives_it(tmp_path: Path, line: str) -> None:
    mark = f"98765.{os.getpid()}"
    seconds = 2 if "wait" in line else 20
    done = await sh("echo out; " + line.replace("{}", mark), tmp_path, seconds=seconds)
    assert done.output.startswith("out\n")
    assert alive(mark) == []


async def test_a_time_limit_gives_what_was_printed_so_far(tmp_path: Path) -> None:
    assert await sh("echo so far; sleep 98766", tmp_path, seconds=2) == Ended("so far\n", None)
    assert alive("98766") == []


async def test_a_swarm_that_keeps_forking_ends_with_its_time(tmp_path: Path) -> None:
    swarm = "f() { [ $1 -gt 0 ] && { f $(($1 - 1)) & setsid sleep 98767 & }; }"
    line = f"{swarm}; while :; do f 5 & sleep 0.02; done"
    assert (await sh(line, tmp_path, seconds=0.5)).code is None
    assert alive("98767") == []


async def test_a_cancelled_call_leaves_nothing(tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as group:
        call = group.create_task(sh("setsid sleep 98768 & echo > started; wait", tmp_path))
        while not (tmp_path / "started").exists():
            await asyncio.sleep(0.01)
        call.cancel()
    assert call.cancelled()
    assert alive("98768") == []


async def test_a_command_that_kills_its_warden_loses_its_group(tmp_path: Path) -> None:
    done = await sh("echo out; sleep 98769 & kill -9 $PPID; sleep 98769", tmp_path, seconds=2)
    assert done.output == "out\n"
    assert alive("98769") == []


def test_nothing_outlives_a_program_that_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio, pathlib\n"
        "from orchestrator.sandbox.processes import run_command\n"
        "line = 'setsid sleep 98770 & echo $$ > started; sleep 98770'\n"
        "here, command = pathlib.Path('.'), ['/bin/sh', '-c', line]\n"
        "asyncio.run(run_command(command, folder=here, environment={}, seconds=99, kept=9))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    started = subprocess.Popen([sys.executable, program], cwd=tmp_path, env=environment)
    while not (tmp_path / "started").exists() or not (tmp_path / "started").read_text().strip():
        assert started.poll() is None
    warden = int(Path(f"/proc/{(tmp_path / 'started').read_text().strip()}/stat").read_text().split()[3])
    handle = os.pidfd_open(warden)
    started.send_signal(signal.SIGKILL)
    started.wait()
    assert select.select([handle], [], [], 10)[0]  # the warden has ended
    os.close(handle)
    assert alive("98770") == []


async def test_calls_leave_no_descriptor_behind(tmp_path: Path) -> None:
    await sh("true", tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(4):
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(sh("echo x", tmp_path))
    assert len(list(Path("/proc/self/fd").iterdir())) == before
