"""Programs in the container of one run, and the end of all that they start.

A call is told from the others in the same container by its group: the kernel gives it to each process that the call
starts and to each file that it makes, and without privileges no program can change it. So all that a call started is
found and ended, whatever sessions and names it hides in, and calls at the same time do not hurt each other.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import ToolError
from orchestrator.sandbox import Language, Ran
from orchestrator.sandbox.client import connect, find_image, hanging_up, said_plainly, sweep
from orchestrator.sandbox.container import KEEPER, Container, DockerSettings
from orchestrator.sandbox.output import Output
from orchestrator.threads import ThreadPool
from orchestrator.workspace.files import format_size

if TYPE_CHECKING:
    from docker import APIClient

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
    """Runs the programs of one run in its container; see `open`."""

    def __init__(self, api: APIClient, container: Container, settings: DockerSettings, threads: ThreadPool) -> None:
        self._api, self.container, self._settings, self._threads = api, container, settings, threads
        self._numbers = itertools.count()
        self.user = container.user

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
                return cls(api, Container(api, image, settings, run_id, workspace, home), settings, threads)

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
        file = self.container.code / f"{group}{'.mjs' if language == 'node' and _MODULE.search(code) else suffix}"
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

        self.container.code.mkdir(mode=0o755, parents=True, exist_ok=True)
        file.write_text(code, "utf-8", errors="replace")
        file.chmod(0o644)
        with said_plainly():
            try:
                self._create(call)
            except APIError:
                if not call.container:
                    raise
                # ended by a call that could not be ended otherwise, or from outside
                self.container.forget(call.container)
                self._create(call)

    def _create(self, call: _Call) -> None:
        call.container = self.container.living()
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
            await self._threads.run(self.container.forget, call.container)

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
                if self._quietly(container, ["sh", "-c", f"command -v {program}"], KEEPER) == 0
            ]
        if language not in found:
            image = self.container.image
            raise ToolError(f"the image {image!r} has no {language}; it runs {', '.join(found) or 'nothing'}")

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
        allowed = max(self.container.allowed, await self._threads.run(self.container.used))
        while not call.stopped:
            began = time.monotonic()
            if call.output.size > _PRINTED:
                call.stopped = f"it printed more than {format_size(_PRINTED)}"
            elif await self._threads.run(self.container.used) > allowed:
                call.stopped = f"by it the workspace grew more than {format_size(self._settings.disk)}"
            await asyncio.sleep(max(0.2, 10 * (time.monotonic() - began)))
        limit.reschedule(asyncio.get_running_loop().time())

    def _close(self) -> None:
        self.container.close()
        self._api.close()
