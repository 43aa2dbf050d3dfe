"""A container for the code of one run: started on first use, gone with the run, also when this process is killed.

A call is told from the others in the same container by its group: the kernel gives it to each process that the call
starts and to each file that it makes, and without privileges no program can change it. So all that a call started is
found and ended, whatever sessions and names it hides in, and calls at the same time do not hurt each other.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ByteSize, Field

from orchestrator.errors import ToolError
from orchestrator.journal import ENGINE_FOLDER
from orchestrator.sandbox import Language, Ran
from orchestrator.sandbox.client import OWNER_LABEL, RUN_LABEL, connect, find_image, hanging_up, said_plainly, sweep
from orchestrator.sandbox.output import Output
from orchestrator.sandbox.owner import owner
from orchestrator.strict import Strict
from orchestrator.threads import ThreadPool
from orchestrator.workspace.files import disk_usage, format_size

if TYPE_CHECKING:
    from docker import APIClient

ROOTS_USER = 10_001
"""User and group that code runs as, and that the workspace is given to, where this process is root."""
_KEEPER = "65534:65534"
"""The container's first process is another user's, so that code can neither signal nor trace it."""
_FIRST_GROUP, _GROUPS = 60_000, 5_000
"""Groups that mark calls; Debian keeps this range free of users."""
_PRINTED = 50_000_000
"""Bytes that a program may print before it is stopped: thousands of times what anybody reads."""
_ENDING = 3.0
"""Seconds that ending a call's processes may take; then the container is ended."""

_LANGUAGES: dict[Language, tuple[str, tuple[str, ...]]] = {
    "python": (".py", ("python3", "-u")),
    "bash": (".sh", ("bash",)),
    "node": (".js", ("node",)),
    "java": (".java", ("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")),
}
"""Of each language the suffix of its files, and what runs them."""
_MODULE = re.compile(r"^\s*(import\s.*['\"]|export\s)", re.MULTILINE)
"""JavaScript that is a module: node takes it only from a file that is called so."""

_END = """
end() {
  left=1
  while [ "$left" ]; do
    left=
    for signal in STOP KILL; do
      for status in /proc/[0-9]*/status; do
        pid= state= group=
        while read -r name value _; do
          case $name in State:) state=$value ;; Pid:) pid=$value ;; Gid:) group=$value; break ;; esac
        done <"$status"
        [ "$group" = "$1" ] && [ "$pid" != $$ ] && [ "$state" != Z ] && kill -$signal "$pid" && left=1
      done
    done
  done
} 2>/dev/null
"""
"""Ends all processes of a group but the shell itself. Stopped first, or those that multiply outrun it; with commands
that are built in, for a full table of processes has no room for others."""
_RUN = f"""{_END}
group=$1; shift
exec 3>&1 2>/dev/null
umask 022
"$@" </dev/null 2>&3
code=$?
end "$group"
exit $code
"""
"""Runs a program with what it prints and its errors in one stream, then ends what it left."""


class DockerSettings(Strict):
    """What `ori.yaml` may say under `tools: code:`."""

    image: str = ""
    """Image that code runs in; empty: the one that `ori sandbox build` made, else python:3.12-slim."""
    memory: ByteSize = ByteSize(512 * 1024**2)
    cpus: float = Field(1.0, gt=0)
    timeout: float = Field(300.0, gt=0)
    """Seconds of one call."""
    pids: int = Field(256, ge=16)
    """Processes and threads at a time."""
    disk: ByteSize = ByteSize(1024**3)
    """Bytes by which the workspace may grow, and that one file may have."""
    network: str = "none"
    """Network of the engine that the container joins. On any but `none` nothing guards addresses: code can reach what
    this machine can, services of its own network included."""
    mount: Literal["rw", "ro", "none"] = "rw"
    """How code sees the workspace."""


@dataclass(slots=True)
class _Call:
    """One program at work: a thread starts it and reads what it prints, another may end it."""

    group: int
    command: Sequence[str]
    output: Output = field(default_factory=Output)
    container: str = ""
    exec_id: str = ""
    begun: bool = False
    over: bool = False
    stopped: str = ""
    """Why it was stopped."""
    fault: ToolError | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> bool:
        """Whether it may start: it has not been given up meanwhile."""
        with self.lock:
            self.begun = not self.over
            return self.begun

    def give_up(self) -> bool:
        """Whether it has started, and so must be ended; else it will not start any more."""
        with self.lock:
            self.over = True
            return self.begun


class DockerSandbox:
    """The container of one run; see `open`."""

    def __init__(
        self, api: APIClient, image: str, settings: DockerSettings, run_id: str, workspace: Path, home: Path,
        threads: ThreadPool,
    ) -> None:  # fmt: skip
        self._api, self._image, self._settings, self._run_id = api, image, settings, run_id
        self._workspace, self._home, self._threads = workspace, home, threads
        self._code = home / "code"
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        """Guards the container and what holds it."""
        self._container = ""
        self._closed = False
        self._held = ExitStack()
        """While its connection is open the container lives; the kernel closes it when this process dies."""
        self._allowed = 0
        """Bytes that the workspace may have."""
        rootless = "name=rootless" in api.info().get("SecurityOptions", ())
        self.user = 0 if rootless else os.getuid() or ROOTS_USER
        """Who code runs as: the user of this process, as the container numbers it; never root."""

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        settings: DockerSettings,
        *,
        run_id: str,
        workspace: Path,
        home: Path,
        threads: ThreadPool,
        report: Callable[[str], None] = lambda text: None,
    ) -> AsyncIterator[DockerSandbox]:
        """Make ready to run code; the container itself starts with the first program.

        Args:
            settings: What the container is like.
            run_id: Whose it is, for its label.
            workspace: Folder that code sees as /workspace.
            home: The run's own folder; what lies in its `outputs` code sees as /outputs.
            threads: Where the engine is waited for.
            report: Told how far the pulling of an image is.

        Raises:
            ToolError: The engine cannot be reached, or the image cannot be had.
        """

        def ready() -> DockerSandbox:
            with said_plainly():
                api = connect()
                image = find_image(api, settings.image, report)
                sweep(api)
                return cls(api, image, settings, run_id, workspace, home, threads)

        sandbox = await threads.run(ready)
        try:
            yield sandbox
        finally:
            await threads.run(sandbox._close)

    def next_group(self) -> int:
        """Return a group for a program, which those at work do not have."""
        return _FIRST_GROUP + next(self._numbers) % _GROUPS

    async def run(self, language: Language, code: str, group: int) -> Ran:
        """Run a program to its end; see `Sandbox.run`."""
        suffix, command = _LANGUAGES[language]
        file = self._code / f"{group}{'.mjs' if language == 'node' and _MODULE.search(code) else suffix}"
        call = _Call(group, [*command, f"/code/{file.name}"])
        exit_code = None
        try:
            await self._threads.run(self._prepare, call, file, code)
            async with asyncio.timeout(self._settings.timeout) as limit, asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(self._watch(call, limit))
                exit_code = await self._threads.run(self._exec, call)
                watching.cancel()
        except TimeoutError:
            call.stopped = call.stopped or f"it did not end within {self._settings.timeout:g} s"
        finally:
            if exit_code is None or exit_code > 128:  # the shell that ends what is left may have been killed itself
                await self._end(call)
            file.unlink(missing_ok=True)
        if call.fault and not call.stopped:
            raise call.fault
        if exit_code == 127:
            await self._threads.run(self._require, language, call.container)
        return Ran(call.output.text(), None if call.stopped else exit_code, call.stopped)

    # one call, in threads

    def _prepare(self, call: _Call, file: Path, code: str) -> None:
        """Write the code and make the call's process ready, in a container that lives."""
        from docker.errors import APIError

        self._code.mkdir(mode=0o755, parents=True, exist_ok=True)
        file.write_text(code, "utf-8", errors="replace")
        file.chmod(0o644)
        with said_plainly():
            try:
                self._create(call)
            except APIError:
                if not call.container:
                    raise
                self._forget(call.container)  # ended by a call that could not be ended otherwise, or from outside
                self._create(call)

    def _create(self, call: _Call) -> None:
        with self._lock:
            if self._closed:
                raise ToolError("not run: the run has ended")
            call.container = self._container = self._container or self._start()
        made = self._api.exec_create(
            call.container, ["sh", "-c", _RUN, "sh", str(call.group), *call.command], user=self._as(call)
        )
        call.exec_id = made["Id"]

    def _exec(self, call: _Call) -> int | None:
        """Start the process, read what it prints until it ends, and return its exit code."""
        from docker.utils.socket import frames_iter

        try:
            with said_plainly():
                if not call.begin():
                    return None
                with hanging_up(self._api.exec_start(call.exec_id, socket=True)) as connection:
                    for _, data in frames_iter(connection, tty=False):  # waits for as long as the program is quiet
                        call.output.add(data)
                return self._exit_code(call.exec_id)
        except ToolError as error:
            call.fault = error
            return None

    async def _end(self, call: _Call) -> None:
        """End what a call started. Where that cannot be, end the container: the next call gets another."""
        try:
            async with asyncio.timeout(_ENDING):
                await self._threads.run(self._end_group, call)
        except (TimeoutError, ToolError):  # a bomb of processes leaves no other its turn; or the container is gone
            call.stopped = call.stopped or "its container was ended"
            await self._threads.run(self._forget, call.container)

    def _end_group(self, call: _Call) -> None:
        if not call.give_up():
            return
        with said_plainly():
            end = ["sh", "-c", f"{_END} end {call.group}; exit 0"]
            while self._quietly(call.container, end, self._as(call)) or self._exit_code(call.exec_id) is None:
                time.sleep(0.02)  # the engine has not started it yet

    def _require(self, language: Language, container: str) -> None:
        """Raise `ToolError` if the image does not have what runs a language."""
        with said_plainly():
            found = [
                name
                for name, (_, [program, *_]) in _LANGUAGES.items()
                if self._quietly(container, ["sh", "-c", f"command -v {program}"], _KEEPER) == 0
            ]
        if language not in found:
            raise ToolError(f"the image {self._image!r} has no {language}; it runs {', '.join(found) or 'nothing'}")

    def _quietly(self, container: str, command: Sequence[str], user: str) -> int | None:
        """Run a command of ours and return its exit code."""
        made = self._api.exec_create(container, command, user=user)
        self._api.exec_start(made["Id"])
        return self._exit_code(made["Id"])

    def _exit_code(self, exec_id: str) -> int | None:
        code: int | None = self._api.exec_inspect(exec_id)["ExitCode"]
        return code

    def _as(self, call: _Call) -> str:
        return f"{self.user}:{call.group}"

    async def _watch(self, call: _Call, limit: asyncio.Timeout) -> None:
        """Stop a program that prints without end, or by which the workspace grows too much."""
        allowed = max(self._allowed, await self._threads.run(self._used))
        while not call.stopped:
            began = time.monotonic()
            if call.output.size > _PRINTED:
                call.stopped = f"it printed more than {format_size(_PRINTED)}"
            elif await self._threads.run(self._used) > allowed:
                call.stopped = f"by it the workspace grew more than {format_size(self._settings.disk)}"
            await asyncio.sleep(max(0.2, 10 * (time.monotonic() - began)))
        limit.reschedule(asyncio.get_running_loop().time())

    def _used(self) -> int:
        return disk_usage(self._workspace) if self._settings.mount == "rw" else 0

    # the container, in threads

    def _start(self) -> str:
        """Start the container and return its id."""
        settings = self._settings
        (self._home / "outputs").mkdir(parents=True, exist_ok=True)
        self._workspace.mkdir(parents=True, exist_ok=True)
        self._allowed = self._allowed or self._used() + settings.disk
        made = self._api.create_container(
            self._image,
            entrypoint=["sh", "-c", "cat; :"],  # waits for the connection's end, and reaps what is orphaned
            stdin_open=True,
            user=_KEEPER,
            hostname="sandbox",
            working_dir="/tmp" if settings.mount == "none" else "/workspace",
            environment={"HOME": "/tmp", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            labels={OWNER_LABEL: owner(), RUN_LABEL: self._run_id},
            host_config=self._host_config(),
        )
        container: str = made["Id"]
        self._held.close()
        self._held.enter_context(hanging_up(self._api.attach_socket(container, {"stdin": 1, "stream": 1})))
        self._api.start(container)
        return container

    def _host_config(self) -> Any:
        from docker.types import LogConfig, Mount, Ulimit

        settings = self._settings
        mounts = [
            Mount("/code", str(self._code), type="bind", read_only=True),
            Mount("/outputs", str(self._home / "outputs"), type="bind", read_only=True),
        ]
        if settings.mount != "none":
            mounts.append(Mount("/workspace", str(self._workspace), type="bind", read_only=settings.mount == "ro"))
        return self._api.create_host_config(
            auto_remove=True,
            cap_drop=["ALL"],
            log_config=LogConfig(type="none"),
            mem_limit=int(settings.memory),
            memswap_limit=int(settings.memory),
            mounts=mounts,
            nano_cpus=int(settings.cpus * 1e9),
            network_mode=settings.network,
            pids_limit=settings.pids,
            read_only=True,
            security_opt=["no-new-privileges"],
            tmpfs={"/tmp": f"exec,nosuid,nodev,size={settings.memory // 4}"} | self._masks(),
            ulimits=[Ulimit(name="fsize", soft=settings.disk, hard=settings.disk), Ulimit(name="core", soft=0, hard=0)],
        )

    def _masks(self) -> dict[str, str]:
        """Cover the engine's own folder where the workspace holds it: logs of runs, old content of files."""
        covered = self._settings.mount != "none" and (self._workspace / ENGINE_FOLDER).is_dir()
        return {f"/workspace/{ENGINE_FOLDER}": "ro,size=4k"} if covered else {}

    def _forget(self, container: str) -> None:
        """End a container; the next call starts another."""
        with self._lock:
            if container == self._container:
                self._container = ""
        with suppress(ToolError):
            self._remove(container)

    def _remove(self, container: str) -> None:
        from docker.errors import APIError

        with said_plainly(), suppress(APIError):  # it ended by itself, and the engine is removing it
            self._api.remove_container(container, force=True, v=True)

    def _close(self) -> None:
        """End the container first, then take away what it works with."""
        with self._lock:  # a call that was cancelled may be starting it still
            self._closed = True
        if self._container:
            self._remove(self._container)
        self._held.close()
        self._api.close()
        shutil.rmtree(self._code, ignore_errors=True)
