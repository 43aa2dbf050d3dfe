"""How often the right one of 200 tools is shown: with and without the sentence that says when to use it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from orchestrator.choice import ToolSearch
from orchestrator.messages import ToolSpec

DATA = Path(__file__).with_name("data")
TOP = 8


def rows(name: str) -> Iterator[list[str]]:
    for line in (DATA / name).read_text("utf-8").splitlines():
        yield [part.strip() for part in line.split("|")]


def tools(*, when: bool) -> list[ToolSpec]:
    files = ("tools_en.txt", "tools_zh.txt")
    listed = [row for file in files for row in rows(file)]
    return [ToolSpec(name, f"{what} {use}" if when else what, {"properties": {}}) for name, what, use in listed]


def main() -> int:
    missed = 0
    print(f"the right tool among the first {TOP} of 200     by the task   or by find_tools   shown by default")
    for when in (True, False):
        search = ToolSearch(tools(when=when))
        for language in ("English", "Chinese"):
            tasks = [row for row in rows("tool_tasks.txt") if row[0].isascii() == (language == "English")]
            at_once = [right in _names(search.find(task, TOP)) for task, right, _ in tasks]
            asked = [right in _names(search.find(query, TOP)) for _, right, query in tasks]
            shown = [right in _names(search.choose(task)) for task, right, _ in tasks]
            after = [one or other for one, other in zip(at_once, asked, strict=True)]
            rates = [sum(found) / len(tasks) for found in (at_once, after, shown)]
            label = f"{len(tasks)} tasks in {language}, {'with' if when else 'without'} when"
            print(f"  {label:<42}" + "".join(f"{rate:>14.0%}" for rate in rates))
            missed += when and (rates[0] < 0.8 or rates[1] < 0.95)
    return 1 if missed else 0


def _names(specs: list[ToolSpec]) -> list[str]:
    return [spec.name for spec in specs]


if __name__ == "__main__":
    sys.exit(main())
