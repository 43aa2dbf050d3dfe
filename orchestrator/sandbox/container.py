"""The container of one run: started when it is needed, gone with the run, also when this process is killed."""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ByteSize, Field

from orchestrator.errors import ToolError
from orchestrator.journal import ENGINE_FOLDER
from orchestrator.sandbox.client import OWNER_LABEL, RUN_LABEL, hanging_up, said_plainly
from orchestrator.sandbox.owner import owner
from orchestrator.strict import Strict
from orchestrator.workspace.files import disk_usage

if TYPE_CHECKING:
    from docker import APIClient

ROOTS_USER = 10_001
"""User and group that code runs as, and that the workspace is given to, where this process is root."""
KEEPER = "65534:65534"
"""The container's first process is another user's, so that code can neither signal nor trace it."""


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


_ENVIRONMENT = {"HOME": "/tmp", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
"""What programs in the container see, besides the time zone."""


class Container:
    """Where the code of one run is: one container at a time, and another when that is gone. Used in threads.

    Args:
        api: The engine.
        image: What is in it.
        settings: What it is like.
        run_id: Whose it is, for its label.
        workspace: Folder that code sees as /workspace.
        home: The run's own folder; what lies in its `outputs` code sees as /outputs.
    """

    def __init__(
        self, api: APIClient, image: str, settings: DockerSettings, run_id: str, workspace: Path, home: Path
    ) -> None:
        self._api, self.image, self._settings, self._run_id = api, image, settings, run_id
        self._workspace, self._home = workspace, home
        self.code = home / "code"
        """What lies there code sees as /code."""
        self.id = ""
        """Of the one that lives; empty: none does."""
        self.allowed = 0
        """Bytes that the workspace may have."""
        self._closed = False
        self._lock = threading.Lock()
        """Guards which one lives."""
        self._held = ExitStack()
        """While its connection is open the container lives; the kernel closes it when this process dies."""
        rootless = "name=rootless" in api.info().get("SecurityOptions", ())
        self.user = 0 if rootless else os.getuid() or ROOTS_USER
        """Who code runs as: the user of this process, as the container numbers it; never root."""

    def living(self) -> str:
        """Return the id of the one that lives, started now if there is none.

        Raises:
            ToolError: The run has ended.
        """
        with self._lock:
            if self._closed:
                raise ToolError("not run: the run has ended")
            self.id = self.id or self._start()
            return self.id

    def used(self) -> int:
        """Return how many bytes the workspace has, where code can write there."""
        return disk_usage(self._workspace) if self._settings.mount == "rw" else 0

    def forget(self, id: str) -> None:
        """End one; the next call starts another."""
        with self._lock:
            if id == self.id:
                self.id = ""
        with suppress(ToolError):
            self._remove(id)

    def close(self) -> None:
        """End the one that lives, then take away what it works with; there will be no other."""
        with self._lock:  # a call that was cancelled may be starting it still
            self._closed = True
        if self.id:
            self._remove(self.id)
        self._held.close()
        shutil.rmtree(self.code, ignore_errors=True)

    def _start(self) -> str:
        """Start one and return its id."""
        settings = self._settings
        (self._home / "outputs").mkdir(parents=True, exist_ok=True)
        self._workspace.mkdir(parents=True, exist_ok=True)
        self.allowed = self.allowed or self.used() + settings.disk
        made = self._api.create_container(
            self.image,
            entrypoint=["sh", "-c", "cat; :"],  # waits for the connection's end, and reaps what is orphaned
            stdin_open=True,
            user=KEEPER,
            hostname="sandbox",
            working_dir="/tmp" if settings.mount == "none" else "/workspace",
            environment=_ENVIRONMENT | {"TZ": _timezone()},
            labels={OWNER_LABEL: owner(), RUN_LABEL: self._run_id},
            host_config=self._host_config(),
        )
        id: str = made["Id"]
        self._held.close()
        self._held.enter_context(hanging_up(self._api.attach_socket(id, {"stdin": 1, "stream": 1})))
        self._api.start(id)
        return id

    def _host_config(self) -> Any:
        from docker.types import LogConfig, Mount, Ulimit

        settings = self._settings
        mounts = [
            Mount("/code", str(self.code), type="bind", read_only=True),
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

    def _remove(self, id: str) -> None:
        from docker.errors import APIError

        with said_plainly(), suppress(APIError):  # it ended by itself, and the engine is removing it
            self._api.remove_container(id, force=True, v=True)


def _timezone() -> str:
    """Return the name of this machine's time zone: code shall see the day that the user sees."""
    return os.environ.get("TZ") or os.path.realpath("/etc/localtime").partition("zoneinfo/")[2] or "UTC"
