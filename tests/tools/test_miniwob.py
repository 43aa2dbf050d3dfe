"""Tasks of MiniWoB++ (Liu et al. 2018), done with the tools of the browser and judged by the reward of the page."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from orchestrator.resources import Resources
from orchestrator.sandbox.tabs import Tabs
from orchestrator.workspace import Workspace
from tests.browsing import Surfer
from tests.parts import require

require("chromium")
require("miniwob")
pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass
class Player:
    """Does a task with what the tools show of it, and knows nothing else."""

    surfer: Surfer
    lines: list[str] = field(default_factory=list)

    async def look(self) -> None:
        self.lines = (await self.surfer("read")).splitlines()

    def all(self, kind: str, name: str = "") -> list[str]:
        """Return the references of elements of a kind, in order: their role, and what else their line says."""
        wanted = re.compile(rf"- '?{kind}\b.*{re.escape(name)}")
        return [line.split("[ref=")[1].split("]")[0] for line in self.lines if wanted.search(line) and "[ref=" in line]

    async def click(self, kind: str, name: str = "", number: int = 0) -> None:
        told = await self.surfer("click", ref=self.all(kind, name)[number])
        assert "Error" not in told, told
        await self.look()

    async def type(self, text: str, number: int = 0, kind: str = "textbox") -> None:
        told = await self.surfer("type", ref=self.all(kind)[number], text=text)
        assert "Error" not in told, told

    async def submit(self) -> None:
        await self.click("button", "Submit")


Solver = Callable[..., Awaitable[None]]
TASKS: dict[str, tuple[str, Solver]] = {}
"""By the name of the page: what the task says, and what does it; the groups of the pattern are its arguments."""


def task(name: str, words: str = "") -> Callable[[Solver], Solver]:
    def add(solver: Solver) -> Solver:
        TASKS[name] = (words, solver)
        return solver

    return add


@task("click-test")
@task("click-test-2")
async def click_the_first_button(player: Player) -> None:
    await player.click("button")


@task("click-button", r'Click on the "(.+)" button')
@task("click-tab", r"Click on (Tab #\d)\.")
@task("click-dialog-2", r'labeled "(.+)"')
async def click_what_is_named(player: Player, name: str) -> None:
    await player.click("(button|'link)", {"x": "Close"}.get(name, name))


@task("click-dialog")
async def close_the_dialog(player: Player) -> None:
    await player.click("button", "Close")


@task("click-button-sequence")
async def click_one_then_two(player: Player) -> None:
    await player.click("button", "ONE")
    await player.click("button", "TWO")


@task("click-checkboxes", r"Select (.+) and click Submit")
@task("click-checkboxes-large", r"Select (.+) and click Submit")
async def check_the_named_boxes(player: Player, names: str) -> None:
    for name in names.split(", ") if names != "nothing" else []:
        await player.click("checkbox", f'"{name}"')
    await player.submit()


@task("click-option", r"Select (.+) and click Submit")
async def choose_the_named_option(player: Player, name: str) -> None:
    await player.click("radio", f'"{name}"')
    await player.submit()


@task("click-widget", r'Click on a "(.+)" widget')
async def click_a_widget(player: Player, kind: str) -> None:
    await player.click({"textarea": "textbox", "text": "textbox"}.get(kind, kind), number=-1)


@task("click-collapsible")
async def expand_and_submit(player: Player) -> None:
    await player.click("'tab", "Section")
    await player.surfer("wait", seconds=0.5)
    await player.look()
    await player.submit()


@task("choose-list", r"Select (.+) from the list")
async def choose_from_the_list(player: Player, name: str) -> None:
    await player.surfer("select", ref=player.all("combobox")[0], values=[name])
    await player.submit()


@task("click-scroll-list", r"Select (.+) from the scroll list")
async def choose_several(player: Player, names: str) -> None:
    await player.surfer("select", ref=player.all("listbox")[0], values=names.split(", "))
    await player.submit()


@task("enter-text", r'"(.+)"')
@task("enter-text-dynamic", r'"(.+)"')
async def enter_text(player: Player, text: str) -> None:
    await player.type(text)
    await player.submit()


@task("enter-text-2", r'Type "(.+)" in all (upper|lower) case')
async def enter_text_in_a_case(player: Player, text: str, case: str) -> None:
    await enter_text(player, text.upper() if case == "upper" else text.lower())


@task("enter-password", r'"(.+)"')
async def enter_a_password_twice(player: Player, text: str) -> None:
    await player.type(text, 0)
    await player.type(text, 1)
    await player.submit()


@task("login-user", r'username "(.+)" and the password "(.+)"')
async def log_in(player: Player, name: str, password: str) -> None:
    await player.type(name, 0)
    await player.type(password, 1)
    await player.click("button", "Login")


@task("focus-text")
async def focus(player: Player) -> None:
    await player.click("textbox")


@task("focus-text-2", r"the (\d)")
async def focus_on_one_of_them(player: Player, number: str) -> None:
    await player.click("textbox", number=int(number) - 1)


@task("enter-date", r"Enter (\d\d)/(\d\d)/(\d{4})")
async def enter_a_date(player: Player, month: str, day: str, year: str) -> None:
    await enter_text(player, f"{year}-{month}-{day}")


@task("enter-time", r"Enter (\d+):(\d\d) ([AP])M")
async def enter_a_time(player: Player, hour: str, minute: str, half: str) -> None:
    await enter_text(player, f"{int(hour) % 12 + 12 * (half == 'P'):02}:{minute}")


@task("simple-arithmetic")
async def calculate(player: Player) -> None:
    one, sign, other = re.findall(r"(\d+) ([x+-]) (\d+) =", "\n".join(player.lines))[0]
    await enter_text(
        player, str({"x": int(one) * int(other), "+": int(one) + int(other)}.get(sign, int(one) - int(other)))
    )


@task("read-table", r"the value of (.+) into")
async def look_up_in_a_table(player: Player, name: str) -> None:
    row = next(number for number, line in enumerate(player.lines) if f'cell "{name}"' in line)
    await enter_text(player, player.lines[row + 1].split('"')[1])


@task("find-word", r"the (\d+)")
async def find_a_word(player: Player, number: str) -> None:
    paragraph = next(line for line in player.lines if "- paragraph" in line).split("]: ")[1]
    await enter_text(player, re.findall(r"\w+", paragraph)[int(number) - 1])


@task("navigate-tree", r'named "(.+)"')
async def look_through_a_tree(player: Player, name: str) -> None:
    for _ in range(10):
        if player.all("generic", f": {name}"):
            break
        await player.click("listitem", number=0)
    await player.click("generic", f": {name}")


@task("use-autocomplete", r'starts with "(.+?)"')
async def take_what_is_suggested(player: Player, start: str) -> None:
    await player.surfer("type", ref=player.all("textbox")[0], text=start, keys=True)
    await player.surfer("wait", seconds=0.6)
    for key in ("ArrowDown", "Enter"):
        await player.surfer("press", key=key)
    await player.submit()


@task("form-sequence-2", r'Check the (\d)\w+ radio button and enter the number "(.+)" into the (\d)')
async def fill_in_a_form(player: Player, radio: str, text: str, field: str) -> None:
    await player.click("radio", number=int(radio) - 1)
    await player.type(text, int(field) - 1)
    await player.submit()


@task("guess-number")
async def guess_by_halves(player: Player) -> None:
    low, high = 0, 9
    while low <= high:
        guess = (low + high) // 2
        await player.type(str(guess), kind="spinbutton")
        await player.submit()
        text = "\n".join(player.lines)
        if "higher than" in text:
            low = guess + 1
        elif "lower than" in text:
            high = guess - 1
        else:
            return


@task("search-engine", r'enter "(.+)" and press "Search", then find and click the (\d+)')
async def find_on_a_later_page(player: Player, text: str, number: str) -> None:
    await player.type(text)
    await player.click("button", "Search")
    pages, place = divmod(int(number) - 1, 3)
    for _ in range(pages):
        await player.click("link", '">"')
    # a result is a link with an address and a text below it; the pages are numbered links
    results = [ref for ref in player.all("link") if ref not in player.all("link", '">"') + player.all("link", '"<"')]
    await player.surfer("click", ref=results[place])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def surfer(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Surfer]:
    folder = tmp_path_factory.mktemp("miniwob")
    spec = importlib.util.find_spec("miniwob")
    assert spec is not None and spec.submodule_search_locations
    shutil.copytree(Path(spec.submodule_search_locations[0]) / "html", folder / "ws" / "html")
    async with Resources() as run:
        made = Surfer(Workspace(folder / "ws", folder / "home"), run)
        async with made.loop:
            yield made


@pytest.mark.parametrize("name", TASKS)
async def test_a_task_is_done(surfer: Surfer, name: str) -> None:
    words, solve = TASKS[name]
    await surfer("open", url=f"file:///workspace/html/miniwob/{name}.html")
    tabs: Tabs = await surfer.loop.get("tabs", lambda: pytest.fail("it is open"))
    # the same task each time, and time enough for a busy machine
    await tabs.page.evaluate("Math.seedrandom('1'); core.EPISODE_MAX_TIME = 1e6")
    await surfer("click", ref=await surfer.ref("START"))
    player = Player(surfer)
    await player.look()
    told = await tabs.page.evaluate("document.querySelector('#query').innerText")
    found = re.search(words, " ".join(told.split()))
    assert found, f"the task says {told!r}"
    await solve(player, *found.groups())
    assert await tabs.page.evaluate("[WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL]") == [True, 1]
