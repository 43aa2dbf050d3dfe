"""Real programs in real containers, good ones and hostile ones."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ToolError
from orchestrator.sandbox.client import BUILT
from orchestrator.tool import ToolResult
from tests.parts import require
from tests.tools.conftest import Bench

COUNTDOWN = 2.0
"""Seconds of a call that is stopped on purpose."""


class Coder(Bench):
    """A bench whose tools include `run_code` with these settings."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        require("docker")
        super().__init__(folder)
        folder.chmod(0o755)
        self.configure(code={"image": BUILT, **settings})

    async def run(self, code: str, language: str = "python", **more: Any) -> ToolResult:
        return await self("run_code", language=language, code=code, **more)

    async def said(self, code: str, language: str = "python") -> str:
        """Return what a program printed, which must end well."""
        result = await self.run(code, language)
        assert not result.error, result.content
        return result.content

    async def fails(self, code: str, language: str = "python") -> str:
        result = await self.run(code, language)
        assert result.error, result.content
        return result.content

    async def processes(self) -> str:
        """Return the command lines of all processes in the container, as another call sees them."""
        look = (
            "for p in /proc/[0-9]*; do line=$(tr '\\0\\n' '  ' <$p/cmdline)\n"
            'case "$line" in *"$0"*|"") ;; *) echo "$line" ;; esac; done'
        )
        return await self.said(look, "bash")


@pytest.fixture
async def coder(tmp_path: Path) -> AsyncIterator[Coder]:
    coder = Coder(tmp_path)
    yield coder
    await coder.resources.aclose()


@pytest.fixture
async def hasty(tmp_path: Path) -> AsyncIterator[Coder]:
    """Stops a program after two seconds, and lets the workspace grow by 20 MB."""
    coder = Coder(tmp_path, timeout=COUNTDOWN, disk="20MB", pids=64)
    yield coder
    await coder.resources.aclose()


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Coder]:
    """Lets the workspace grow by 20 MB, and a busy machine take its time."""
    coder = Coder(tmp_path, disk="20MB")
    yield coder
    await coder.resources.aclose()


class TestPrograms:
    @pytest.mark.parametrize(
        ("language", "code"),
        [
            ("python", "import sys; print('一' * 2, file=sys.stderr); print(sys.version_info[0])"),
            ("bash", "echo 一一 >&2; echo $((2 + 1))"),
            ("node", "console.error('一一'); console.log(require('os').EOL.length + 2)"),
            ("node", "import { EOL } from 'os';\nconsole.log('一一\\n' + (EOL.length + 2))"),
            (
                "java",
                'public class Sum { public static void main(String[] a) { System.err.println("一一");'
                " System.out.println(1 + 2); } }",
            ),
        ],
        ids=["python", "bash", "node", "node-module", "java"],
    )
    async def test_all_languages_print_and_their_errors_stand_in_order(
        self, coder: Coder, language: str, code: str
    ) -> None:
        assert await coder.said(code, language) == "一一\n3"

    async def test_a_failed_program_tells_its_exit_code_and_where_it_failed(self, coder: Coder) -> None:
        said = await coder.fails("import os\nprint('before')\nos.stat('nowhere')")
        assert said.startswith("Error: exit code 1\nbefore\nTraceback")
        assert "line 3, in <module>\n    os.stat" in said

    async def test_the_exit_code_and_the_output_are_values_for_programs(self, coder: Coder) -> None:
        assert (await coder.run("open('a', 'w'); print('x'); exit(3)")).value == {
            "output": "x\n", "exit_code": 3, "files": ["a"],
        }  # fmt: skip

    @pytest.mark.parametrize("code", ["true", "exit 0", ""])
    async def test_a_program_that_ends_at_once_is_told_promptly(self, coder: Coder, code: str) -> None:
        """B26: a container or command that ends before anybody listens hangs the client."""
        assert await coder.said(code, "bash") == "(nothing was printed)"

    async def test_code_is_taken_as_it_is_written(self, coder: Coder) -> None:
        code = "print('''$HOME `id` \"$(id)\" \\\\ 'q' 中 \\x00''')"
        assert await coder.said(code) == "$HOME `id` \"$(id)\" \\ 'q' 中 \x00"

    async def test_a_program_in_a_fence_of_markdown_is_run(self, coder: Coder) -> None:
        assert await coder.said("```python\nprint('```')\n```\n") == "```"

    async def test_it_is_the_same_day_for_code_as_for_the_user(
        self, coder: Coder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TZ", "Asia/Shanghai")
        assert await coder.said("import time; print(time.strftime('%z'))") == "+0800"
        assert await coder.said("console.log(new Date().getTimezoneOffset())", "node") == "-480"

    async def test_it_has_no_input_to_wait_for(self, coder: Coder) -> None:
        assert "EOFError" in await coder.fails("input()")

    async def test_a_cut_output_lies_in_outputs_and_cannot_be_changed(self, coder: Coder) -> None:
        coder.workspace.outputs.store("ori/a:1:tool.0", "华东")
        assert await coder.said("cat /outputs/*", "bash") == "华东"
        assert "Read-only file system" in await coder.fails("echo x > /outputs/y", "bash")

    async def test_the_run_keeps_one_container_and_its_tmp(self, coder: Coder) -> None:
        first = await coder.said("hostname; cat /etc/hostname; echo 1 > /tmp/kept", "bash")
        assert await coder.said("hostname; cat /etc/hostname; test -e /tmp/kept", "bash") == first

    async def test_a_long_output_keeps_head_and_tail_and_says_what_is_missing(self, coder: Coder) -> None:
        said = await coder.said("for i in range(0, 10**6, 1000): print(chr(10).join(map(str, range(i, i + 1000))))")
        assert len(said) < 1_100_000
        assert said.startswith("0\n1\n2\n") and said.endswith("\n999998\n999999")
        assert re.search(r"\n\[\d+ bytes left out\]\n", said)

    async def test_two_programs_at_once_run_side_by_side(self, coder: Coder) -> None:
        meet = (
            "import os, time\nopen('{0}', 'w').close()\n"
            "while not os.path.exists('{1}'): time.sleep(0.01)\nprint('met {1}')"
        )
        async with asyncio.TaskGroup() as group:
            one = group.create_task(coder.run(meet.format("a", "b"), loop="ori/a"))
            two = group.create_task(coder.run(meet.format("b", "a"), loop="ori/b"))
        assert (one.result().content, two.result().content) == ("met b\nwritten: a", "met a\nwritten: b")
        assert {(change.file, change.path) for change in coder.stored} == {("a", "ori/a"), ("b", "ori/b")}


class TestTheTimeLimit:
    async def test_what_was_printed_comes_back_and_nothing_is_left_running(self, hasty: Coder) -> None:
        """B24: a command that is given up lives on in the container."""
        said = await hasty.fails("print('so far')\nwhile True: pass")
        assert said == (
            "Error: stopped, for it did not end within 2 s; all that it started was ended. "
            "What it printed until then:\nso far"
        )
        assert "python" not in await hasty.processes()

    async def test_processes_that_hide_end_with_it(self, hasty: Coder) -> None:
        code = "setsid env -i sh -c 'exec -a innocent sleep 600; sleep 600' </dev/null >/dev/null 2>&1 & sleep 600"
        assert "2 s" in await hasty.fails(code, "bash")
        assert "sleep" not in await hasty.processes()

    async def test_processes_that_a_program_leaves_end_with_it_too(self, hasty: Coder) -> None:
        began = asyncio.get_running_loop().time()
        assert await hasty.said("setsid sleep 600 & echo done", "bash") == "done"
        assert asyncio.get_running_loop().time() - began < COUNTDOWN + 1
        assert "sleep" not in await hasty.processes()

    async def test_a_call_at_the_same_time_is_not_hurt(self, coder: Coder) -> None:
        await coder.said("pass")
        async with asyncio.TaskGroup() as group:
            other = group.create_task(coder.run("import time; time.sleep(1); print('unharmed')", loop="ori/b"))
            doomed = group.create_task(coder.run("import time; time.sleep(600)"))
            await asyncio.sleep(0.3)
            doomed.cancel()
        assert other.result().content == "unharmed"
        assert "600" not in await coder.processes()

    async def test_a_cancelled_call_ends_what_it_started_and_what_it_wrote_is_known(self, coder: Coder) -> None:
        """B27: files are taken away before what writes them is stopped."""
        code = "import time\nfor i in range(10**9): open('log', 'a').write('x'); time.sleep(0.01)"
        async with asyncio.TaskGroup() as group:
            call = group.create_task(coder.run(code))
            while not (coder.root / "log").exists():
                await asyncio.sleep(0.02)
            call.cancel()
        size = (coder.root / "log").stat().st_size
        assert "python" not in await coder.processes()
        assert (coder.root / "log").stat().st_size == size == coder.stored[-1].size


class TestFiles:
    async def test_files_that_code_writes_belong_to_the_run(self, coder: Coder) -> None:
        coder.put("data.csv", "a\n1\n")
        said = await coder.said("import os; os.mkdir('图'); open('图/a b.txt', 'w').write(open('data.csv').read())")
        assert said == "(nothing was printed)\nwritten: 图/a b.txt"
        [artifact] = coder.workspace.changes.artifacts()
        assert (artifact.path, artifact.size, artifact.by) == ("图/a b.txt", 4, "ori/a")
        assert await coder.text("read_file", path="图/a b.txt") == "a\n1\n"

    async def test_what_code_changed_can_be_undone(self, coder: Coder) -> None:
        coder.put("old.txt", "old")
        coder.put("gone.txt", "gone")
        said = await coder.said("echo new >> old.txt; rm gone.txt; echo 1 > made.txt", "bash")
        assert said.splitlines()[1:] == ["written: made.txt, old.txt", "deleted: gone.txt"]
        coder.workspace.changes.undo(coder.stored)
        assert {file.path: (coder.root / file.path).read_text() for file in coder.workspace.files()} == {
            "old.txt": "old", "gone.txt": "gone",
        }  # fmt: skip

    async def test_inputs_and_files_of_others_are_put_back(self, coder: Coder, tmp_path: Path) -> None:
        (tmp_path / "sales.csv").write_text("原")
        coder.workspace.copy_inputs(["sales.csv"], tmp_path)
        await coder("write_file", path="theirs.md", content="theirs", loop="ori/b")
        said = await coder.said("rm sales.csv; echo mine > theirs.md; echo mine > mine.md", "bash")
        assert said.splitlines()[1:] == [
            "written: mine.md",
            "'sales.csv' is an input of the run and read-only; what the program did to it was undone",
            "'theirs.md' was written by ori/b and belongs to it; what the program did to it was undone",
        ]
        assert (coder.root / "sales.csv").read_text() == "原"
        assert (coder.root / "theirs.md").read_text() == "theirs"

    async def test_a_file_can_be_changed_by_code_and_by_tools_in_turn(self, coder: Coder) -> None:
        await coder("write_file", path="a.txt", content="1")
        assert await coder.said("echo 2 >> a.txt; cat a.txt", "bash") == "12\nwritten: a.txt"
        await coder("write_file", path="a.txt", content="3")
        assert await coder.said("cat a.txt", "bash") == "3"
        assert [change.path for change in coder.stored] == ["ori/a"] * 3

    @pytest.mark.parametrize(("mount", "place"), [("ro", "/workspace"), ("none", "/tmp")])
    async def test_a_workspace_that_is_not_to_be_written_is_not(self, tmp_path: Path, mount: str, place: str) -> None:
        coder = Coder(tmp_path, mount=mount)
        coder.put("a.txt", "a")
        assert (await coder.said("pwd; ls", "bash")).splitlines() == [place, *(["a.txt"] if mount == "ro" else [])]
        assert (await coder.run("open('/workspace/b', 'w')")).error
        assert [file.path for file in coder.workspace.files()] == ["a.txt"]
        await coder.resources.aclose()

    async def test_the_engines_own_folder_in_a_workspace_is_covered(self, coder: Coder) -> None:
        coder.put(".ori/runs.db", "log")
        assert await coder.said("ls -A .ori; echo x > .ori/y || true", "bash") != "runs.db"
        assert [path.name for path in (coder.root / ".ori").iterdir()] == ["runs.db"]


class TestHostilePrograms:
    """Each leaves the machine, the run and the next call whole, and says what happened."""

    async def still_works(self, coder: Coder) -> None:
        assert await coder.said("print('still here')") == "still here"

    async def test_a_fork_bomb(self, hasty: Coder) -> None:
        said = await hasty.fails("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass")
        assert "2 s" in said
        await self.still_works(hasty)
        assert (await hasty.processes()).count("python") == 0

    async def test_a_fork_bomb_whose_first_process_ends(self, hasty: Coder) -> None:
        await hasty.fails(":(){ :|:& };:; exit 1", "bash")  # or it waits for room to fork until its time is up
        await self.still_works(hasty)

    async def test_two_gigabytes_of_memory(self, coder: Coder) -> None:
        assert "it was killed; the container has 536.9 MB of memory" in await coder.fails("x = bytearray(2 * 10**9)")
        await self.still_works(coder)

    async def test_a_file_that_fills_the_disk(self, small: Coder) -> None:
        said = await small.fails("with open('big', 'wb') as f:\n    while True: f.write(bytes(10**6))")
        assert "File too large" in said
        assert (small.root / "big").stat().st_size <= 20_000_000
        await self.still_works(small)

    async def test_many_files_that_fill_the_disk(self, small: Coder) -> None:
        said = await small.fails(
            "import itertools, time\nfor i in itertools.count():\n"
            "    open(f'{i}', 'wb').write(bytes(10**6)); time.sleep(0.01)"
        )
        assert "by it the workspace grew more than 20.0 MB" in said
        await self.still_works(small)

    async def test_files_hidden_in_a_closed_folder_that_fill_the_disk(self, hasty: Coder) -> None:
        code = "import os, time\nos.mkdir('.d'); os.chdir('.d'); os.chmod('.', 0)\ntime.sleep(600)"
        said = await hasty.fails(code)
        assert ("grew" if os.geteuid() else "2 s") in said  # nothing is closed to root
        (hasty.root / ".d").chmod(0o700)

    async def test_a_zip_bomb(self, small: Coder) -> None:
        code = (
            "import zipfile\nwith zipfile.ZipFile('bomb.zip', 'w', zipfile.ZIP_DEFLATED) as z:\n"
            "    z.writestr('bomb', bytes(30 * 10**6))\n"
            "zipfile.ZipFile('bomb.zip').extractall('out')"
        )
        assert "File too large" in await small.fails(code)  # workbooks as bombs: tests/test_tables.py
        await self.still_works(small)

    async def test_a_repr_that_prints_for_ever(self, hasty: Coder) -> None:
        code = "class A:\n    def __repr__(self):\n        while True: print('A' * 10000)\nprint(A())"
        result = await hasty.run(code)
        assert result.error and re.search(r"printed more than 50.0 MB|did not end within 2 s", result.content)
        assert len(result.content) < 1_100_000
        await self.still_works(hasty)

    async def test_the_network(self, coder: Coder) -> None:
        code = (
            "import socket\nprint(sorted(name for _, name in socket.if_nameindex()))\n"
            "for place in [('1.1.1.1', 53), ('169.254.169.254', 80), ('172.17.0.1', 80)]:\n"
            "    try: socket.create_connection(place, 3); print('open')\n"
            "    except OSError as error: print(error.errno)"
        )
        assert await coder.said(code) == "['lo']\n101\n101\n101"

    async def test_what_proc_tells(self, coder: Coder) -> None:
        status = await coder.said("grep -E 'Uid|Gid|Cap|NoNewPrivs|Seccomp:' /proc/self/status", "bash")
        rows = {line.split()[0]: line.split()[1:] for line in status.splitlines()}
        assert int(rows["Uid:"][0]) > 0
        assert {value for name, [value, *_] in rows.items() if name.startswith("Cap")} == {"0" * 16}
        assert (rows["NoNewPrivs:"], rows["Seccomp:"]) == (["1"], ["2"])
        for secret in ("/proc/1/environ", "/proc/1/mem", "/proc/1/root/etc/shadow", "/proc/kcore", "/etc/shadow"):
            assert (await coder.run(f"print(open({secret!r}, 'rb').read(9))")).error, secret
        assert "PATH" in (environment := await coder.said("env", "bash"))
        assert not re.search("(?i)key|token|secret|ori", environment)

    async def test_the_root_and_the_kernels_switches_cannot_be_written(self, coder: Coder) -> None:
        for path in ("/usr/x", "/etc/passwd", "/proc/sys/kernel/core_pattern", "/sys/kernel/x", "/code/x", "/dev/sda"):
            assert (await coder.run(f"open({path!r}, 'w').write('x')")).error, path

    async def test_the_first_process_and_its_own_shell(self, coder: Coder) -> None:
        said = (await coder.run("kill -9 1 || true; setsid sleep 600 & kill -9 $PPID; sleep 1", "bash")).content
        assert "Operation not permitted" in said
        assert "sleep" not in await coder.processes()

    async def test_ctypes_reaches_the_container_and_no_further(self, coder: Coder) -> None:
        here = Path("/tmp/ori-was-here")
        said = await coder.said("import ctypes; ctypes.CDLL(None).system(b'id -u; hostname; touch /tmp/ori-was-here')")
        assert said.splitlines()[1] == "sandbox" and said.splitlines()[0] != "0"
        assert not here.exists()

    async def test_links_out_of_the_workspace_lead_nowhere(self, coder: Coder, tmp_path: Path) -> None:
        (tmp_path / "secret.txt").write_text("secret")
        (tmp_path / "folder").mkdir()
        code = f"ln -s {tmp_path}/secret.txt a.txt; ln -s {tmp_path}/folder d; ln -s /etc/passwd b.txt; ln -s / root"
        assert "written" not in await coder.said(code, "bash")
        for path in ("a.txt", "b.txt", "root/etc/passwd", "d/x.txt"):
            with pytest.raises(ToolError, match="leads out of the workspace"):
                await coder("read_file", path=path)
            with pytest.raises(ToolError, match="leads out of the workspace"):
                await coder("write_file", path=path, content="x")
        assert list((tmp_path / "folder").iterdir()) == []
        assert await coder.text("list_files") == "no files in '.' match '*'"

    async def test_a_link_that_comes_and_goes_is_never_followed(self, coder: Coder, tmp_path: Path) -> None:
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside" / "f.txt").write_text("secret")
        code = (
            "import os\nos.mkdir('real'); open('real/f.txt', 'w').write('ours'); os.mkdir('d')\n"
            f"os.symlink({str(tmp_path / 'outside')!r}, 'link')\n"
            "while True:\n    os.rename('d', 'x'); os.rename('link', 'd'); os.rename('d', 'link'); os.rename('x', 'd')"
        )
        tried = threading.Event()
        async with asyncio.TaskGroup() as group:
            call = group.create_task(coder.run(code, loop="ori/b"))
            while not (coder.root / "link").is_symlink():
                await asyncio.sleep(0.02)
            for number in range(300):
                try:
                    await coder("write_file", path="d/f.txt", content=str(number))
                    assert "secret" not in await coder.text("read_file", path="d/f.txt")
                except ToolError:
                    tried.set()
            call.cancel()
        assert (tmp_path / "outside" / "f.txt").read_text() == "secret"
        assert [path.name for path in (tmp_path / "outside").iterdir()] == ["f.txt"]
