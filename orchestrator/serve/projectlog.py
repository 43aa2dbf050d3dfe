"""The log of a project, for commands that look at past runs: opened without what working on a run needs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.journal import ENGINE_FOLDER, Journal, open_journal
from orchestrator.text.placeholders import fill_tree

if TYPE_CHECKING:
    from orchestrator.text.redact import Redactor

SETTINGS = frozenset({"models", "limits", "max_runs", "tools", "network", "mcp", "memory", "journal"})
"""What `ori.yaml` may say, as `settings.Settings` has it: loading that takes longer than a look at the log."""


@dataclass(frozen=True, slots=True)
class ProjectLog:
    """The log of a project."""

    project: Path
    journal: Journal
    runs: Path
    """Holds a folder for each run."""

    def redactor(self) -> Redactor:
        """Return what takes the project's secrets out of texts."""
        from orchestrator.settings import load_settings
        from orchestrator.text.redact import Redactor

        return Redactor(load_settings(self.project).secrets())


def open_log(project: Path) -> ProjectLog:
    """Return the log of a project.

    Raises:
        ConfigError: `ori.yaml` is no YAML, has an unknown key, or says something wrong of the log. What is wrong with
            its other parts is told by the commands that use them, and by `ori check`.
    """
    home = project.resolve() / ENGINE_FOLDER
    return ProjectLog(project, open_journal(_journal(project), home / "runs.db"), home / "runs")


def _journal(project: Path) -> str:
    from orchestrator.yaml import read

    file = project / "ori.yaml"
    data = read(file).data if file.is_file() else {}
    journal = fill_tree(data.get("journal", "sqlite"), {name: value for name, value in os.environ.items() if value})
    if isinstance(journal, str) and data.keys() <= SETTINGS:
        return journal
    from orchestrator.settings import load_settings

    return load_settings(project).journal  # it says what is wrong
