"""Puts back what a run, or a subtask of it, changed in its workspace, and tells what cannot be undone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.context import within
from orchestrator.errors import ConfigError, JournalError, nearest
from orchestrator.events import ArtifactStored, ChangesUndone, Event, SubtaskStarted, ToolStarted
from orchestrator.journal import Journal
from orchestrator.journal.log import RunLog
from orchestrator.past import Past
from orchestrator.workspace import Workspace
from orchestrator.workspace.changes import FileChanges


async def undo(journal: Journal, home: Path, run: str, subtask: str | None = None, *, force: bool) -> ChangesUndone:
    """Undo, and record it.

    Args:
        journal: Holds the run.
        home: The run's own folder, which holds old contents.
        run: Its id.
        subtask: Id of the only subtask to undo, its attempts and all below it included.
        force: Also where somebody else changed a file since.

    Raises:
        ConfigError: There is no such subtask.
        JournalError: There is no such run, or somebody works on it.
    """
    async with journal.own(run):
        events = await journal.events(run)
        past = Past.of(events)
        if past.started is None:
            raise JournalError(f"the log of run {run} does not begin with its start")
        workspace = Workspace(Path(past.started.workspace), home)
        workspace.restore(past.started.read_only, past.changes)
        roots = [past.started.root] if subtask is None else _paths(events, subtask)
        log = RunLog(run, journal)
        log.go_on(past.seq, past.at)
        undone = log.add(undo_below(roots, workspace.changes, past.once, force=force))
        await log.commit()
        return undone


def undo_below(
    paths: Sequence[str], changes: FileChanges, once: Sequence[ToolStarted], *, force: bool = False
) -> ChangesUndone:
    """Undo what loops, their attempts and all below them changed, and return that as an event."""

    def concerns(event: Event) -> bool:
        return any(within(event.path, path) for path in paths)

    own: list[ArtifactStored] = [change for change in changes if concerns(change)]
    undone = changes.undo(own, force=force)
    left = {reason.partition(":")[0] for reason in undone.left}
    return ChangesUndone(
        path=paths[0],
        files=tuple(dict.fromkeys(change.file for change in own if change.file not in left)),
        loops=tuple(dict.fromkeys(change.path for change in own)),
        restored=tuple(undone.restored),
        deleted=tuple(undone.deleted),
        left=tuple(undone.left),
        calls=tuple(f"{call.name} {call.arguments}" for call in once if concerns(call)),
    )


def _paths(events: Sequence[Event], id: str) -> list[str]:
    started = [event for event in events if isinstance(event, SubtaskStarted)]
    paths = [event.path.removesuffix(f"~{event.attempt}") for event in started if event.id == id]
    if not paths:
        raise ConfigError(f"the run has no subtask {id!r}{nearest(id, [event.id for event in started])}")
    return list(dict.fromkeys(paths))
