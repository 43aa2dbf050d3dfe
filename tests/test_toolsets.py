from pathlib import Path

import pytest

from orchestrator import ConfigError, Orchestrator
from orchestrator.content.catalog import Catalog
from orchestrator.events import Warned
from orchestrator.settings import load_settings
from orchestrator.testing import ScriptedServer, call, text

TOOLS = '''
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import BaseModel

from orchestrator import ToolContext, Toolset, tool


class Settings(BaseModel, extra="forbid"):
    on: bool = False
    greeting: str = "hello"


def missing(settings: Settings) -> str:
    return "" if settings.on else "it is off; set tools: {greet: {on: true}} in ori.yaml"


toolset = Toolset(Settings, missing)


@asynccontextmanager
async def door(file: Path) -> AsyncIterator[str]:
    with file.open("a") as out:
        print("open", file=out)
    yield "door"
    with file.open("a") as out:
        print("closed", file=out)


@tool(effect="read")
async def greet(scope: str, ctx: ToolContext) -> str:
    """Greet. Use it when somebody comes. Returns words."""
    await ctx.keep("door", lambda: door(Path(ctx.deps)), scope)
    return ctx.settings.greeting
'''
ROLE = "description: Greets.\ntools: [greet, read_file]\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, content in {"tools/greet.py": TOOLS, "roles/host.yaml": ROLE, "prompts/host.md": "You greet."}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


def write_settings(project: Path, text: str) -> None:
    (project / "ori.yaml").write_text(text)


async def greeted(project: Path, *scopes: str, tasks: int = 1) -> list[str]:
    """Run the role and return what its door saw."""
    calls = [*(call("greet", {"scope": scope}) for scope in scopes), text("done")]
    async with (
        ScriptedServer(calls * tasks) as server,
        Orchestrator(
            project=project,
            model="m",
            base_url=server.base_url,
            journal="memory",
            deps=project / "door",
        ) as orchestrator,
    ):
        for _ in range(tasks):
            result = await orchestrator.run_role("host", "Greet.")
            assert result.status == "done"
        with (project / "door").open("a") as out:
            print("left", file=out)
    return (project / "door").read_text().split()


async def test_what_a_run_keeps_open_closes_with_it_and_what_all_runs_share_with_the_orchestrator(
    project: Path,
) -> None:
    write_settings(project, "tools: {greet: {on: true, greeting: 你好}}\n")
    assert await greeted(project, "run", "run", tasks=2) == ["open", "closed", "open", "closed", "left"]
    (project / "door").unlink()
    assert await greeted(project, "loop") == ["open", "closed", "left"]
    (project / "door").unlink()
    assert await greeted(project, "orchestrator", tasks=2) == ["open", "left", "closed"]


def test_a_tool_is_given_what_the_project_says_of_its_toolset(project: Path) -> None:
    write_settings(project, "tools: {greet: {on: true, greeting: 你好}}\n")
    greet = Catalog.from_project(project, settings=load_settings(project)).tool("greet")
    assert (greet.settings.greeting, greet.missing()) == ("你好", "")


def test_an_unknown_setting_is_an_error_that_names_its_line(project: Path) -> None:
    write_settings(project, "tools:\n  greet:\n    greting: hi\n")
    with pytest.raises(ConfigError, match=r"ori\.yaml:3: unknown key 'greting' in tools.greet.*greeting"):
        Catalog.from_project(project, settings=load_settings(project)).tool("greet")


def test_a_wrong_value_is_an_error_that_names_its_place(project: Path) -> None:
    write_settings(project, "tools:\n  greet:\n    on: perhaps\n")
    with pytest.raises(ConfigError, match=r"ori\.yaml:3: tools\.greet\.on is 'perhaps'"):
        Catalog.from_project(project, settings=load_settings(project)).tool("greet")


def test_a_variable_that_is_not_set_is_why_tools_are_missing(project: Path) -> None:
    write_settings(project, "tools:\n  greet:\n    on: '${GREETING_ON}'\n")
    catalog = Catalog.from_project(project, settings=load_settings(project, {"GREETINGS_ON": "true"}))
    assert (
        catalog.tool("greet")
        .missing()
        .endswith(
            "ori.yaml:3: tools.greet.on needs GREETING_ON, which is not set (GREETINGS_ON is); "
            "set it in the environment or in .env"
        )
    )


def test_variables_that_are_not_set_are_named_by_the_check(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_KEY", raising=False)
    write_settings(project, "models:\n  default:\n    model: m\n    api_key: '${NO_KEY}'\n")
    [said] = [str(problem) for problem in Catalog.from_project(project).check() if "NO_KEY" in str(problem)]
    assert "ori.yaml:4: warning: models.default.api_key needs NO_KEY, which is not set; set it in" in said


@pytest.mark.parametrize(
    ("keys", "line", "advice"),
    [
        (["fast", "defaut"], 3, "rename 'defaut'"),
        (["fast"], 2, "rename 'fast'"),
        (["fast", "strong"], 2, "rename one of 'fast', 'strong'"),
    ],
    ids=["mistyped", "one", "several"],
)
def test_models_without_a_default_one_are_named_by_the_check(
    project: Path, keys: list[str], line: int, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    write_settings(project, "models:\n" + "".join(f"  {key}: {{model: m}}\n" for key in keys))
    [said] = [str(problem) for problem in Catalog.from_project(project).check() if "ori.yaml" in str(problem)]
    assert f"ori.yaml:{line}: error: no model is called 'default', which roles without a `model` use; {advice}" in said
    with pytest.raises(ConfigError, match="no model is called 'default'"):
        load_settings(project).model("default")


def test_what_no_run_could_use_is_named_by_the_check(project: Path) -> None:
    write_settings(project, "models:\n  default: {model: m, base_url: '127.0.0.1:80'}\njournal: postgres\n")
    said = [str(problem) for problem in Catalog.from_project(project).check() if "ori.yaml" in str(problem)]
    assert len(said) == 2
    assert "ori.yaml:2: error: base_url '127.0.0.1:80' must begin with http:// or https://" in said[0]
    assert "ori.yaml:3: error: journal 'postgres' is not known; allowed: 'memory', 'sqlite'" in said[1]


def test_a_toolset_that_no_file_has_is_named_by_the_check(project: Path) -> None:
    write_settings(project, "tools:\n  gret: {on: true}\n")
    problems = Catalog.from_project(project).check()
    said = [str(problem) for problem in problems if "unknown toolset" in problem.message]
    assert len(said) == 1
    assert "ori.yaml:2: error: unknown toolset 'gret'" in said[0]
    assert "greet" in said[0].split("'gret'")[1]


async def test_what_several_tools_and_loops_lack_is_said_once(project: Path) -> None:
    (project / "tools/greet.py").write_text(TOOLS + TOOLS[TOOLS.index("@tool") :].replace("def greet", "def wave"))
    (project / "roles/host.yaml").write_text(ROLE.replace("greet", "greet, wave"))
    tasks = [{"id": id, "role": "host", "goal": "Greet."} for id in ("a", "b")]
    async with (
        ScriptedServer([call("delegate", {"subtasks": tasks}), *[text("nobody came")] * 3]) as server,
        Orchestrator(project=project, model="m", base_url=server.base_url, journal="memory") as orchestrator,
    ):
        result = await orchestrator.solve("Greet two.")
        events = await orchestrator.journal.events(result.run_id)
    said = [event.text for event in events if isinstance(event, Warned) and "not offered" in event.text]
    assert said == [f"greet (and 1 more) is not offered: {said[0].partition(': ')[2]}"]


async def test_a_tool_that_is_missing_is_not_offered_and_the_run_says_why(project: Path) -> None:
    async with (
        ScriptedServer([text("nobody came")]) as server,
        Orchestrator(project=project, model="m", base_url=server.base_url, journal="memory") as orchestrator,
    ):
        result = await orchestrator.run_role("host", "Greet.")
        events = await orchestrator.journal.events(result.run_id)
    assert [tool["function"]["name"] for tool in server.requests[0]["tools"]] == ["read_file"]
    assert any("greet is not offered: it is off" in event.text for event in events if isinstance(event, Warned))
