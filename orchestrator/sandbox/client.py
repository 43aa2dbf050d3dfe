"""The container engine's own interface: connections, its errors in words, images, and what dead owners left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ToolError
from orchestrator.sandbox import engine
from orchestrator.sandbox.owner import is_dead

if TYPE_CHECKING:
    from docker import APIClient

BUILT = "ori-sandbox"
"""Image that `ori sandbox build` makes."""
PULLED = "python:3.12-slim"
OWNER_LABEL, RUN_LABEL = "ori.owner", "ori.run"
_CONTROL = 60.0
"""Seconds that a request to the engine may take. What a program prints is read without such a limit."""


def connect() -> APIClient:
    """Return a connection to the container engine.

    Raises:
        ToolError: There is none, or it does not answer.
    """
    if why := engine.missing():
        raise ToolError(f"no code can be run: {why}")
    from docker import APIClient
    from docker.utils import kwargs_from_env

    given: dict[str, Any] = {"base_url": engine.address(), "timeout": _CONTROL, **kwargs_from_env()}
    return APIClient(**given)


def find_image(api: APIClient, wanted: str, report: Callable[[str], None]) -> str:
    """Return the name of an image that is there, pulling it where needed.

    Args:
        api: The engine.
        wanted: Its name; empty: the one that was built here, else the one that is pulled by default.
        report: Told how far the pulling is.

    Raises:
        ToolError: It is not there and cannot be pulled.
    """
    from docker.errors import DockerException, ImageNotFound

    for name in (names := _names(wanted)):
        with suppress(ImageNotFound):
            api.inspect_image(name)
            return name
    name = names[-1]
    report(f"pulling {name}")
    try:
        for step in api.pull(name, stream=True, decode=True):
            if "error" in step:
                raise DockerException(step["error"])
            if "progress" not in step:
                report(f"pulling {name}: {step.get('id', '')} {step.get('status', '')}")
    except (DockerException, OSError) as error:
        raise ToolError(
            f"the image {name!r} is not there and cannot be pulled: {error}; `ori sandbox build` makes one from "
            "Debian's packages, or name one that is there in ori.yaml under tools: code: image:"
        ) from error
    return name


def _names(wanted: str) -> list[str]:
    return [wanted] if wanted else [BUILT, PULLED]


def readiness(wanted: str) -> str:
    """Say which image code would run in here, or which its first run will have to fetch.

    Args:
        wanted: As for `find_image`.

    Raises:
        ToolError: The engine does not answer.
    """
    with said_plainly(), closing(connect()) as api:
        names = _names(wanted)
        there = next((name for name in names if api.images(name)), None)
        if there:
            return f"ready; image {there}"
        help = "where nothing can be pulled: sudo ori sandbox build"
        return f"ready, but the image {names[-1]} is not here yet: docker pull {names[-1]}; {help}"


def sweep(api: APIClient) -> None:
    """Remove the containers of processes that died; those of living ones are left alone."""
    from docker.errors import APIError

    for container in api.containers(all=True, filters={"label": OWNER_LABEL}):
        if is_dead(container["Labels"][OWNER_LABEL]):
            with suppress(APIError):  # somebody else sweeps, too
                api.remove_container(container["Id"], force=True, v=True)


@contextmanager
def hanging_up(connection: Any) -> Iterator[Any]:
    """Close a connection that the engine's library took out of its pool, with all that it holds open."""
    try:
        yield connection
    finally:
        connection._response.close()


@contextmanager
def said_plainly() -> Iterator[None]:
    """Turn what the engine and its library raise inside the block into words for the model."""
    from docker.errors import APIError, DockerException

    try:
        yield
    except APIError as error:
        raise ToolError(f"the container engine refuses: {error.explanation or error}") from error
    except (DockerException, OSError) as error:
        raise ToolError(f"the container engine does not answer: {error}") from error
