"""The container of a run: how it begins, what it outlives, how it ends. tests/tools/test_code.py: what programs do."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
import tarfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.errors import ToolError
from orchestrator.events import Warned
from orchestrator.sandbox import Ran, client, engine
from orchestrator.sandbox.client import BUILT, OWNER_LABEL, RUN_LABEL
from orchestrator.sandbox.container import DockerSettings
from orchestrator.sandbox.docker import DockerSandbox
from orchestrator.sandbox.output import Output
from orchestrator.sandbox.owner import is_dead, owner
from orchestrator.serve import cli
from orchestrator.testing import call, text
from orchestrator.threads import ThreadPool
from tests import loops
from tests.parts import require

if TYPE_CHECKING:
    from docker import APIClient

ROOT = Path(__file__).parent.parent
Open = Callable[..., AbstractAsyncContextManager[DockerSandbox]]


@pytest.fixture
def api() -> Iterator[APIClient]:
    require("docker")
    with closing(client.connect()) as made:
        yield made


@pytest.fixture
def opened(api: APIClient, tmp_path: Path) -> Open:
    """Opens a sandbox for a run that is called as the test's folder."""
    tmp_path.chmod(0o755)
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws").chmod(0o777)

    def opened(**settings: Any) -> AbstractAsyncContextManager[DockerSandbox]:
        made = DockerSettings(**{"image": BUILT, **settings})
        home, threads = tmp_path / "home", ThreadPool()
        return DockerSandbox.open(made, run_id=str(tmp_path), workspace=tmp_path / "ws", home=home, threads=threads)

    return opened


@pytest.fixture
async def sandbox(opened: Open) -> AsyncIterator[DockerSandbox]:
    async with opened() as sandbox:
        yield sandbox


def containers(api: APIClient, run: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.containers(all=True, filters={"label": f"{RUN_LABEL}={run}"})
    return found


@contextmanager
def changed_image(api: APIClient, command: str, **options: Any) -> Iterator[str]:
    """Make an image of the one that was built, with what a command changes in it."""
    name = f"ori-test-{uuid.uuid4().hex}"
    made = api.create_container(BUILT, ["sh", "-c", command])["Id"]
    try:
        api.start(made)
        api.wait(made)
        api.commit(made, name, **options)
    finally:
        api.remove_container(made, force=True)
    try:
        yield name
    finally:
        api.remove_image(name, force=True)


async def run(sandbox: DockerSandbox, code: str) -> Ran:
    return await sandbox.run("bash", code, sandbox.next_group())


class TestTheContainer:
    async def test_it_starts_with_the_first_program_and_ends_with_the_run(
        self, opened: Open, api: APIClient, tmp_path: Path
    ) -> None:
        async with opened() as sandbox:
            assert containers(api, tmp_path) == []
            assert await run(sandbox, "echo a") == Ran("a\n", 0)
            [container] = containers(api, tmp_path)
            assert (container["State"], container["Ports"]) == ("running", [])
            assert container["Labels"][OWNER_LABEL] == owner()
        assert containers(api, tmp_path) == []
        assert not (tmp_path / "home" / "code").exists()

    async def test_it_is_shut_in(self, sandbox: DockerSandbox, api: APIClient, tmp_path: Path) -> None:
        await run(sandbox, "true")
        [container] = containers(api, tmp_path)
        config = api.inspect_container(container["Id"])["HostConfig"]
        shut_in = {
            "Memory": 512 * 1024**2, "MemorySwap": 512 * 1024**2, "NanoCpus": 10**9, "PidsLimit": 256,
            "NetworkMode": "none", "ReadonlyRootfs": True, "CapDrop": ["ALL"], "SecurityOpt": ["no-new-privileges"],
            "Privileged": False, "AutoRemove": True, "PortBindings": {},
        }  # fmt: skip
        assert {name: config[name] or type(value)() for name, value in shut_in.items()} == shut_in

    async def test_it_ends_before_what_it_works_with_is_taken_away(
        self, opened: Open, api: APIClient, tmp_path: Path
    ) -> None:
        """B27: the work folder is removed while code still writes into it."""
        async with asyncio.TaskGroup() as group:
            async with opened() as sandbox:
                writing = group.create_task(run(sandbox, "while true; do echo x >> log; done"))
                while not (tmp_path / "ws" / "log").exists():
                    await asyncio.sleep(0.02)
            assert containers(api, tmp_path) == []
            size = (tmp_path / "ws" / "log").stat().st_size
            assert (await writing).stopped == "its container was ended"
        assert (tmp_path / "ws" / "log").stat().st_size == size

    async def test_one_that_is_gone_is_replaced(self, sandbox: DockerSandbox, api: APIClient, tmp_path: Path) -> None:
        await run(sandbox, "true")
        api.remove_container(containers(api, tmp_path)[0]["Id"], force=True)
        assert (await run(sandbox, "echo again")).output == "again\n"

    async def test_a_program_whose_container_is_removed_is_told_so(
        self, sandbox: DockerSandbox, api: APIClient, tmp_path: Path
    ) -> None:
        async with asyncio.TaskGroup() as group:
            cut = group.create_task(run(sandbox, "echo 1 > started; echo so far; sleep 600"))
            while not (tmp_path / "ws" / "started").exists():
                await asyncio.sleep(0.02)
            api.remove_container(containers(api, tmp_path)[0]["Id"], force=True)
        assert cut.result() == Ran("so far\n", None, "its container was ended")

    async def test_a_quiet_program_outlasts_the_clients_own_time_limit(
        self, opened: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """B25: the client's read timeout fires while a quiet command is still working."""
        async with opened() as sandbox:
            await run(sandbox, "true")
            monkeypatch.setattr(sandbox._api, "timeout", 0.5)
            assert await run(sandbox, "sleep 1.5; echo ok") == Ran("ok\n", 0)

    async def test_an_image_without_a_shell_is_told_at_once_and_leaves_nothing(
        self, opened: Open, api: APIClient, tmp_path: Path
    ) -> None:
        empty = io.BytesIO()
        with tarfile.open(fileobj=empty, mode="w") as tar:
            tar.addfile(tarfile.TarInfo("nothing"))
        api.import_image_from_data(empty.getvalue(), repository="ori-test-empty")
        try:
            async with opened(image="ori-test-empty") as sandbox:
                with pytest.raises(ToolError, match=r'refuses: .*"sh": executable file not found'):
                    await run(sandbox, "true")
                assert containers(api, tmp_path) == []
        finally:
            api.remove_image("ori-test-empty")

    async def test_what_an_image_would_start_by_itself_does_not_matter(self, opened: Open, api: APIClient) -> None:
        """B26: a container that ends at once, as its entry point is missing, hangs the client."""
        with changed_image(api, "true", changes='ENTRYPOINT ["/missing"]') as image:
            async with opened(image=image) as sandbox:
                assert await run(sandbox, "true") == Ran("", 0)

    async def test_a_language_that_the_image_lacks_is_told_with_those_it_has(
        self, opened: Open, api: APIClient
    ) -> None:
        with changed_image(api, "rm -f /usr/bin/node /usr/bin/nodejs") as image:
            async with opened(image=image) as sandbox:
                with pytest.raises(ToolError, match=f"the image '{image}' has no node; it runs python, bash, java"):
                    await sandbox.run("node", "1", sandbox.next_group())
                assert (await run(sandbox, "no-such-command")).exit_code == 127

    async def test_an_image_that_is_not_there_is_told_with_what_helps(self, opened: Open) -> None:
        with pytest.raises(
            ToolError, match=r"'ori-no-such-image' is not there and cannot be pulled: .*`ori sandbox build`"
        ):
            async with opened(image="ori-no-such-image"):
                pass


class TestOwners:
    def test_this_process_lives_and_those_elsewhere_may(self) -> None:
        node, boot, space, _, started = owner().split("|")
        assert not is_dead(owner())
        assert not is_dead("|".join(["another", boot, space, "1", started]))
        assert not is_dead("|".join([node, boot, "pid:[1]", "999999999", started]))

    def test_one_that_ended_is_dead_also_when_its_number_was_given_again(self) -> None:
        node, boot, space, pid, started = owner().split("|")
        assert is_dead("|".join([node, boot, space, "999999999", started]))
        assert is_dead("|".join([node, boot, space, pid, "1"]))
        assert is_dead("|".join([node, "an earlier boot", space, pid, started]))

    async def test_what_dead_owners_left_is_swept_and_the_living_are_left_alone(
        self, opened: Open, api: APIClient, tmp_path: Path
    ) -> None:
        node, boot, space, _, started = owner().split("|")
        dead = {OWNER_LABEL: "|".join([node, boot, space, "999999999", started]), RUN_LABEL: str(tmp_path)}
        living = {OWNER_LABEL: owner(), RUN_LABEL: str(tmp_path)}
        made = [api.create_container(BUILT, "true", labels=labels)["Id"] for labels in (dead, living)]
        try:
            async with opened():
                assert [container["Id"] for container in containers(api, tmp_path)] == made[1:]
        finally:
            api.remove_container(made[1])

    async def test_a_killed_owner_leaves_no_container(self, api: APIClient, tmp_path: Path) -> None:
        script = f"""
import asyncio
from pathlib import Path
from orchestrator.sandbox.container import DockerSettings
from orchestrator.sandbox.docker import DockerSandbox
from orchestrator.threads import ThreadPool
async def main():
    place = Path({str(tmp_path)!r})
    async with DockerSandbox.open(DockerSettings(image="{BUILT}"), run_id=str(place), workspace=place / "ws",
                                  home=place / "home", threads=ThreadPool()) as sandbox:
        print((await sandbox.run("bash", "echo up", sandbox.next_group())).output, flush=True)
        await sandbox.run("bash", "sleep 600", sandbox.next_group())
asyncio.run(main())
"""
        child = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        assert child.stdout is not None
        with child.stdout:
            assert child.stdout.readline() == b"up\n"
            [container] = containers(api, tmp_path)
            child.send_signal(signal.SIGKILL)
            child.wait()
        with suppress(Exception):  # it may be gone already
            api.wait(container["Id"], timeout=10)
        async with asyncio.timeout(10):
            while containers(api, tmp_path):
                await asyncio.sleep(0.05)


class TestTheEngine:
    def test_without_one_it_is_said_how_to_get_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
        assert engine.missing() == (
            f"there is no container engine at {tmp_path}/none.sock: "
            "install Docker (on Debian and Ubuntu: sudo apt install docker.io) and start it"
        )

    def test_one_that_does_not_answer_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "s").touch()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/s")
        assert "does not answer" in engine.missing()

    def test_without_its_library_the_command_names_the_extra(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setitem(sys.modules, "docker", None)
        monkeypatch.setattr("os.geteuid", lambda: 0)
        monkeypatch.setattr("shutil.which", lambda name: name)
        assert cli.main(["sandbox", "build"]) == 1
        assert "pip install 'ori-orchestrator[sandbox]'" in capsys.readouterr().err

    async def test_one_that_goes_away_is_an_error_in_words(
        self, opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
        with pytest.raises(ToolError, match=r"no code can be run: there is no container engine at .*none\.sock"):
            async with opened():
                pass

    def test_the_doctor_says_which_image_code_runs_in(self, api: APIClient) -> None:
        assert client.readiness("") == f"ready; image {BUILT}"
        missing = client.readiness("ori-no-such-image")
        assert missing.startswith(
            "ready, but the image ori-no-such-image is not here yet: docker pull ori-no-such-image"
        )

    def test_an_image_cannot_be_built_without_what_builds_it(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("PATH", "")
        assert cli.main(["sandbox", "build"]) == 2
        assert ("sudo ori sandbox build" if os.geteuid() else "sudo apt install debootstrap") in capsys.readouterr().err

    async def test_without_one_no_code_is_run_at_all(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """B49: code that a model wrote is run in the program's own process."""
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
        code = f"import ctypes; ctypes.CDLL(None).system(b'touch {tmp_path}/escaped')"
        ran = await loops.run([call("run_code", {"language": "python", "code": code}), text("done")], "run_code")
        assert ran.observations[0].startswith("Error: there is no tool 'run_code' here")
        assert not (tmp_path / "escaped").exists()
        assert "run_code is not offered: there is no container engine" in ran.of(Warned)[0].text


class TestOutput:
    def test_what_fits_is_kept_whole(self) -> None:
        output = Output(kept=10)
        for piece in (b"12345", b"678", b"90"):
            output.add(piece)
        assert (output.text(), output.size) == ("1234567890", 10)

    def test_of_more_the_first_and_the_last_lines_are_kept(self) -> None:
        output = Output(kept=20)
        for number in range(1000):
            output.add(f"{number}\n".encode())
        assert output.text() == "0\n1\n2\n3\n4\n\n[3872 bytes left out]\n998\n999\n"

    def test_a_flood_takes_no_memory(self) -> None:
        output = Output(kept=1000)
        for _ in range(10_000):
            output.add(b"x" * 10_000)
        assert output.size == 100_000_000
        assert sys.getsizeof(output._head) + sys.getsizeof(output._tail) < 30_000
        assert "[99999000 bytes left out]" in output.text()
