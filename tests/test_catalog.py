import ast
from pathlib import Path

import pytest

from orchestrator.content.catalog import Catalog, shipped_root
from orchestrator.errors import ConfigError, nearest
from orchestrator.role import Review, Role
from orchestrator.settings import load_settings
from orchestrator.tool import tool

ROOT = shipped_root()
SHOUT = '''\
from orchestrator.tool import tool


@tool(effect="read")
def shout(text: str) -> str:
    """Write a text in capitals. Use it for headlines. Returns the text.

    Args:
        text: What to write.
    """
    return text.upper()
'''


class Project:
    """A project's folder that is written file by file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return path

    def role(self, name: str, text: str, prompt: str = "Work.") -> None:
        self.write(f"roles/{name}.yaml", text)
        self.write(f"prompts/{name}.md", prompt)

    @property
    def catalog(self) -> Catalog:
        return Catalog.from_project(self.folder)

    def refused(self, name: str) -> str:
        with pytest.raises(ConfigError) as caught:
            self.catalog.role(name)
        return str(caught.value).replace(f"{self.folder}/", "")

    def problems(self) -> list[str]:
        """What `ori check` says about the project's own files."""
        own = [str(problem) for problem in self.catalog.check() if str(problem).startswith(str(self.folder))]
        return [problem.replace(f"{self.folder}/", "") for problem in own]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)
    return Project(tmp_path.resolve())


# roles and prompts


def test_two_files_make_a_role_beside_the_shipped_ones(project: Project) -> None:
    project.role("译者", "description: Translates texts.\ntools: [read_file, write_file]\n", "You translate.\n")
    role = project.catalog.role("译者")
    assert (role.name, role.prompt, role.tools) == ("译者", "You translate.", ("read_file", "write_file"))
    assert {"译者", "worker"} <= set(project.catalog.role_names)
    assert project.problems() == []


def test_a_project_s_role_and_prompt_stand_before_the_shipped_ones(project: Project) -> None:
    project.role("writer", "description: Rhymes.\n", "You rhyme.")
    project.write("prompts/coder.md", "You code in Basic.")
    catalog = project.catalog
    assert catalog.role("writer").description == "Rhymes."
    assert catalog.role("coder").prompt == "You code in Basic."
    assert catalog.role("coder").tools == Catalog.from_project().role("coder").tools


def test_a_changed_role_counts_from_its_next_use(project: Project) -> None:
    project.role("writer", "description: Rhymes.\n")
    catalog = project.catalog
    first = catalog.role("writer")
    assert catalog.role("writer") is first
    project.write("prompts/writer.md", "You rhyme no more.")
    assert catalog.role("writer").prompt == "You rhyme no more."


def test_a_role_made_in_code_stands_before_all_files() -> None:
    catalog = Catalog.from_project(roles=[Role(name="writer", description="d", prompt="p")])
    assert catalog.role("writer").prompt == "p"
    with pytest.raises(ConfigError, match=r"role 'x': unknown tool 'red_file'; did you mean 'read_file'"):
        Catalog.from_project(roles=[Role(name="x", description="d", prompt="p", tools=("red_file",))]).role("x")
    with pytest.raises(ConfigError, match="two roles made in code are called 'x'"):
        Catalog.from_project(roles=[Role(name="x", description=d, prompt="p") for d in "ab"])


def test_a_pydantic_model_describes_a_role_s_result_and_an_empty_schema_none() -> None:
    assert Role(name="x", description="d", prompt="p", output={}).output is None
    schema = Role(name="x", description="d", prompt="p", output=Review).output
    assert schema is not None
    assert set(schema["properties"]) == {"by", "rounds"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tools: []\n", "roles/r.yaml: the key 'description' is missing"),
        ("description: d\ntool: []\n", "roles/r.yaml:2: unknown key 'tool'; did you mean 'tools'?"),
        (
            "description: d\ntools:\n  - red_file\n",
            "roles/r.yaml:3: unknown tool 'red_file'; did you mean 'read_file'?",
        ),
        ("description: d\ntools: [preview, preview]\n", "roles/r.yaml:2: the tool 'preview' stands there twice"),
        (
            "description: d\nlimits: {max_turn: 3}\n",
            "roles/r.yaml:2: unknown key 'max_turn' in limits; did you mean 'max_turns'?",
        ),
        (
            "description: d\nlimits:\n  timeout: 0\n",
            "roles/r.yaml:3: limits.timeout is 0: input should be greater than 0",
        ),
        ("description: d\nreview: {by: r}\n", "roles/r.yaml:2: a role cannot review itself"),
        (
            "description: d\nreview: {by: reviever}\n",
            "roles/r.yaml:2: unknown role 'reviever'; did you mean 'reviewer'?",
        ),
        (
            "description: d\nmay_delegate: [worker]\n",
            "roles/r.yaml:2: may_delegate needs 'delegate' in the role's tools",
        ),
        ("description: d\ntools: [delegate]\nmay_delegate: [wrker]\n", "roles/r.yaml:3: unknown role 'wrker'"),
        ("description: d\napproval: [write_file]\n", "roles/r.yaml:2: 'write_file' is none of the role's tools"),
        ("description: d\nname: other\n", "roles/r.yaml:2: unknown key 'name'; a role is called as its file"),
        ("description: d\nprompt: You are.\n", "roles/r.yaml:2: unknown key 'prompt'; it is prompts/r.md"),
        ("description: d\ndescription: e\n", "roles/r.yaml:2: the key 'description' stands twice, first in line 1"),
    ],
)
def test_what_is_wrong_with_a_role_is_told_with_its_line(project: Project, text: str, message: str) -> None:
    project.role("r", text)
    assert message in project.refused("r")


def test_a_schema_that_is_none_is_told_with_its_line(project: Project) -> None:
    project.role("r", "description: d\noutput:\n  type: objekt\n")
    [problem] = project.problems()
    assert problem.startswith("roles/r.yaml:3: error: is no JSON Schema: $.type: 'objekt'")


def test_a_role_without_a_prompt_is_refused(project: Project) -> None:
    project.write("roles/r.yaml", "description: d\n")
    assert "the role has no prompt; write it into prompts/r.md" in project.refused("r")


def test_an_unknown_variable_in_a_prompt_is_told_with_its_line(project: Project) -> None:
    project.role("r", "description: d\n", "Costs $5.\n\n${role}\n")
    assert project.refused("r").startswith("prompts/r.md:3: unknown variable ${role}; did you mean 'roles'?")


def test_all_faults_of_a_role_are_told_at_once(project: Project) -> None:
    project.write("roles/r.yaml", "tool: []\nlimits: {time: 0}\n")
    assert len(project.refused("r").splitlines()) == 4


def test_the_model_of_a_role_must_be_in_the_settings(project: Project) -> None:
    project.role("r", "description: d\nmodel: chaep\n")
    project.write("ori.yaml", "models: {default: {model: m}, cheap: {model: m}}\n")
    assert project.problems() == ["roles/r.yaml:2: error: unknown model 'chaep'; did you mean 'cheap'?"]


def test_an_unknown_role_is_told_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="no role 'analist'; did you mean 'analyst'"):
        Catalog.from_project().role("analist")


# tools


def test_a_file_makes_a_tool_that_a_role_can_name(project: Project) -> None:
    project.write("tools/loud.py", SHOUT)
    project.role("r", "description: d\ntools: [shout]\n")
    assert project.catalog.role("r").tools == ("shout",)
    assert project.catalog.tool("shout").effect == "read"
    assert project.problems() == []


def test_files_of_the_same_name_in_two_folders_are_two_modules(project: Project) -> None:
    project.write("tools/files.py", SHOUT)
    assert project.catalog.tool("shout").name == "shout"
    assert project.catalog.tool("read_file").name == "read_file"


def test_a_project_s_tool_stands_before_the_shipped_one_and_one_made_in_code_before_both(project: Project) -> None:
    project.write("tools/mine.py", SHOUT.replace("shout", "read_file"))
    assert "in capitals" in project.catalog.tool("read_file").description

    @tool
    def read_file(path: str) -> str:
        """Made in code."""
        return path

    assert Catalog.from_project(project.folder, tools=[read_file]).tool("read_file") is read_file


def test_a_list_of_what_is_allowed_says_how_many_it_leaves_out() -> None:
    assert nearest("中", map(str, range(20))).endswith("'19'")
    assert nearest("中", map(str, range(23))).endswith("'19' and 3 more")


def test_a_broken_file_hurts_only_those_who_use_it(project: Project) -> None:
    project.write("tools/loud.py", SHOUT)
    project.write("tools/syntax.py", "x = 1\ndef broken(:\n")
    project.write("tools/runs.py", f"{SHOUT.replace('shout', 'whisper')}\n\n1 / 0\n")
    project.write("tools/script.py", "raise SystemExit(3)\n")
    assert project.catalog.tool("shout").name == "shout"
    with pytest.raises(ConfigError, match=r"runs.py:14: cannot be imported: ZeroDivisionError: division by zero"):
        project.catalog.tool("whisper")
    assert project.problems() == [
        "tools/runs.py:14: error: cannot be imported: ZeroDivisionError: division by zero",
        "tools/script.py:1: error: cannot be imported: SystemExit: 3",
        "tools/syntax.py:2: error: cannot be imported: SyntaxError: invalid syntax",
    ]


def test_a_tool_defined_twice_in_one_folder_names_both_files(project: Project) -> None:
    project.write("tools/a.py", SHOUT)
    project.write("tools/b.py", SHOUT)
    message = "tools/b.py:5: error: the tool 'shout' is also defined in tools/a.py:5"
    assert project.problems() == [message]
    with pytest.raises(ConfigError, match=r"a\.py:5"):
        project.catalog.tool("shout")


def test_names_given_to_a_tool_and_shared_helpers_are_found(project: Project) -> None:
    project.write("tools/_shared.py", "LOUD = str.upper\n")
    text = (
        "from orchestrator.tool import tool\nfrom ._shared import LOUD\n\ndef f(a: str) -> str:\n    return LOUD(a)\n\n"
    )
    project.write("tools/a.py", text + "named = tool(f, name='loud', effect='read')\nplain = tool(f)\n")
    assert {"loud", "f"} <= set(project.catalog.tool_names)
    assert project.catalog.tool("loud").effect == "read"


def test_a_tool_that_tells_too_little_is_warned_about(project: Project) -> None:
    project.write("tools/loud.py", SHOUT.replace(" Use it for headlines.", ""))
    [problem] = project.problems()
    assert problem.startswith("tools/loud.py:5: warning: tool 'shout': ")


def test_tools_from_elsewhere_are_accepted_by_pattern(project: Project) -> None:
    project.role("r", "description: d\ntools: [github/search, delegate]\n")
    assert "unknown tool 'github/search'" in project.refused("r")
    project.write("ori.yaml", "mcp: {github: {url: 'http://127.0.0.1:9/mcp'}}\n")
    catalog = Catalog.from_project(project.folder, settings=load_settings(project.folder))
    assert catalog.role("r").tools == ("github/search", "delegate")


# scenarios and texts


def test_a_scenario_is_found_by_name_and_by_file(project: Project) -> None:
    file = project.write("scenarios/hello.yaml", "goal: x\n")
    for name in ("hello", "scenarios/hello.yaml", file):
        assert project.catalog.scenario(name).file == file
    with pytest.raises(ConfigError, match="no scenario 'helo'; did you mean 'hello'"):
        project.catalog.scenario("helo")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("roles: [analist]", "2: error: unknown role 'analist'; did you mean 'analyst'?"),
        ("recording: recordings/no.jsonl", "2: error: there is no recording 'recordings/no.jsonl'"),
        ("inputs: [no.csv]", "2: error: the input 'no.csv' is neither in"),
        ("checks: [{tools: {called: red_file}}]", "2: error: unknown tool 'red_file'; did you mean 'read_file'?"),
        ("checks: [{tools: {not_called: run_shell}}]", None),
        ("plan: [{id: a, role: no, goal: g}]", "2: error: 'a' has the unknown role 'no'"),
        ("plan:\n  - {id: a, tool: no}", "3: error: 'a' has the unknown tool 'no'"),
        ("roles: [writer]\nplan: [{id: a, role: analyst, goal: g}]", "3: error: 'a' has the unknown role 'analyst'"),
        ("plan: [{id: a, role: writer, goal: g}]\nchecks: [{outcomes: {b: done}}]", "3: error: unknown subtask 'b'"),
    ],
)
def test_what_is_wrong_with_a_scenario_is_told_with_its_line(project: Project, text: str, message: str | None) -> None:
    project.write("scenarios/s.yaml", f"goal: x\n{text}\n")
    problems = project.problems()
    if message is None:
        assert problems == []
    else:
        assert problems[0].startswith(f"scenarios/s.yaml:{message}")


def test_templates_are_the_scenarios_with_plan_and_when(project: Project) -> None:
    project.write("scenarios/broken.yaml", "gaol: x\n")
    plan = "plan: [{id: a, role: writer, goal: g}]\n"
    project.write("scenarios/fixed.yaml", f"goal: x\n{plan}")
    project.write("scenarios/quarterly.yaml", f"goal: x\nwhen: quarters\n{plan}")
    names = [template.name for template in project.catalog.templates()]
    assert "quarterly" in names
    assert "fixed" not in names


def test_a_paragraph_whose_values_are_all_empty_is_left_out(project: Project) -> None:
    project.write("prompts/engine/task.md", "${goal}\n\nExpected: ${expect}\n\n${a} or ${b}\n\nGo.\n")
    catalog = project.catalog
    assert catalog.text("task", goal="one\n\ntwo", expect="", a="", b=2) == "one\n\ntwo\n\n or 2\n\nGo."
    assert catalog.text("task", goal="x", expect="y", a=None, b="") == "x\n\nExpected: y\n\nGo."
    with pytest.raises(ConfigError, match=r"task.md:1: unknown variable \$\{goal\}"):
        catalog.text("task")


# what ships


def test_nothing_is_wrong_with_what_ships() -> None:
    assert [str(problem) for problem in Catalog.from_project().check()] == []


def test_shipped_content_is_found_in_the_package_when_it_is_installed(tmp_path: Path) -> None:
    package = tmp_path / "orchestrator"
    assert shipped_root(package) == tmp_path
    (package / "roles").mkdir(parents=True)
    assert shipped_root(package) == package


def test_no_role_s_name_occurs_in_the_engine() -> None:
    """The root path, the command and the distribution are called `ori` too, so that name may occur."""
    names = {file.stem for file in (ROOT / "roles").glob("*.yaml")} - {"ori"}
    assert {"worker", "reviewer"} <= names
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}: {node.value!r}"
        for file in (ROOT / "orchestrator").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names
    ]
    assert found == []


def test_a_project_folder_that_is_not_there_is_told() -> None:
    with pytest.raises(ConfigError, match="there is no such folder; `ori init DIR` makes a project"):
        Catalog.from_project("no/such/folder")


def test_each_text_that_the_engine_asks_for_is_there_and_names_only_values_that_are_given() -> None:
    trees = [ast.parse(file.read_text("utf-8")) for file in (ROOT / "orchestrator").glob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    asked = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("context.text")]
    catalog = Catalog.from_project()
    for call in asked:
        if isinstance(call.args[0], ast.Constant) and all(keyword.arg for keyword in call.keywords):
            assert catalog.text(str(call.args[0].value), **{str(keyword.arg): "x" for keyword in call.keywords})
    words = {node.value for node in nodes if isinstance(node, ast.Constant)}
    assert {file.stem for file in (ROOT / "prompts" / "engine").glob("*.md")} <= words


def test_a_tool_file_that_is_no_python_is_named_and_the_others_work(project: Project) -> None:
    project.write("tools/broken.py", "def (\n")
    [error] = project.catalog.unreadable
    assert "tools/broken.py:1" in str(error) and "SyntaxError" in str(error)
    assert project.catalog.tool("read_file").name == "read_file"


def test_a_plain_function_in_place_of_a_tool_is_told(project: Project) -> None:
    def count() -> int:
        return 1

    with pytest.raises(ConfigError, match="'count' is no tool; put @tool on the function"):
        Catalog.from_project(project.folder, tools=[count])  # type: ignore[list-item]


def test_an_approval_may_be_asked_for_by_name_or_for_all_that_changes_something(project: Project) -> None:
    project.role("r", "description: d\ntools: [write_file]\napproval: [write_file, '*']\n")
    assert project.problems() == []
