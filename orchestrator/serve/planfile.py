"""A plan as a file that a person edits between `ori plan` and `ori run --plan`."""

from __future__ import annotations

from collections.abc import Sequence
from io import SEEK_END, StringIO
from pathlib import Path

from orchestrator.plan import Delegate
from orchestrator.yaml import read


class PlanFile(Delegate):
    """A plan, and the goal it is for."""

    goal: str = ""
    """Needed where no scenario gives it."""
    inputs: tuple[str, ...] = ()
    """Files and folders to copy into the workspace; relative to the working directory."""

    def delegate(self) -> Delegate:
        """Return the plan alone."""
        return Delegate.model_validate(self.model_dump(exclude={"goal", "inputs"}, exclude_unset=True))


def read_plan(file: Path) -> PlanFile:
    """Read a plan file.

    Raises:
        ConfigError: It cannot be read or is no plan; all faults, each with its line.
    """
    return read(file).validate(PlanFile)


def plan_text(plan: Delegate, goal: str, inputs: Sequence[str]) -> str:
    """Return what a plan file holds."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 120
    yaml.indent(mapping=2, sequence=4, offset=2)
    about = {"goal": goal} | ({"inputs": list(inputs)} if inputs else {})
    stream = StringIO("# Edit, then: ori run --plan FILE\n")
    stream.seek(0, SEEK_END)
    yaml.dump(about | plan.model_dump(mode="json", exclude_defaults=True), stream)
    return stream.getvalue()
