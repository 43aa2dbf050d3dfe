import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.serve import cli, projectlog
from orchestrator.serve.interrupt import GRACE
from orchestrator.settings import Settings
from orchestrator.testing import ScriptedServer, call, text
from tests.command import HEADER, Ori, begin, spawn
from tests.engine import served

ROOT = Path(__file__).parent.parent
HELLO = HEADER + '{"key": "ori:1:model", "reply": {"content": "Hello, Ada."}}\n'
SCENARIOS = {
    "hello": """
goal: Say hello to ${name}.
params: {name: Ada}
checks: [{answer: {contains: Hello}}]
recording: recordings/hello.jsonl
""",
    "note": """
goal: |-
  Write a
  note.
plan:
  - {id: note, tool: write_file, args: {path: 记录.txt, content: 华东}}
answer: note
checks: [{file: 记录.txt, contains: 华东}]
recording: recordings/empty.jsonl
""",
    "blocked": """
goal: Wait.
plan: [{id: wait, tool: block}]
answer: wait
recording: recordings/empty.jsonl
""",
    "stubborn": """
goal: Wait.
plan: [{id: wait, tool: refuse}]
answer: wait
recording: recordings/empty.jsonl
""",
    "chatty": """
goal: Print.
plan: [{id: talk, tool: chat}]
answer: talk
recording: recordings/empty.jsonl
""",
    "broken": """
goal: Do what goes wrong.
plan:
  - {id: bad, tool: read_file, args: {path: nowhere.txt}}
  - {id: good, tool: write_file, args: {path: a.txt, content: a}}
answer: good
recording: recordings/empty.jsonl
""",
}
TOOLS = '''
import asyncio
import time

from orchestrator import tool


@tool(effect="read", timeout=60)
def block() -> str:
    """Block a thread. Use it never. Returns nothing."""
    print("blocking", flush=True)
    time.sleep(60)
    return ""


@tool(effect="read", timeout=60)
async def refuse() -> str:
    """Refuse to be cancelled. Use it never. Returns nothing."""
    print("refusing", flush=True)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            print("not yet", flush=True)


@tool(effect="read")
def chat() -> str:
    """Print to stdout, which tools should not. Use it never. Returns a word."""
    print("noise")
    return "quiet"
'''
RECORDINGS = {"hello": HELLO}


def use(project: Path, server: ScriptedServer) -> None:
    (project / ".env").write_text(f"OPENAI_BASE_URL={server.base_url}\nOPENAI_API_KEY=sk-from-the-env-file-1\n")


PLAN = {
    "subtasks": [
        {"id": "read", "role": "researcher", "goal": "Read a.txt"},
        {"id": "写", "role": "writer", "goal": "写 b.txt", "after": ["read"]},
    ]
}


# the command line


def test_help_is_quick_because_it_loads_nothing_heavy() -> None:
    code = "import sys; from orchestrator.serve.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "print({'pydantic', 'rich', 'structlog', 'openai'} & sys.modules.keys(), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stderr.strip() == "set()"
    assert done.stdout.startswith("usage: ori ") and "COMMAND ..." in done.stdout


def test_every_command_has_a_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in [
        "run",
        "solve",
        "plan",
        "test",
        "doctor",
        "check",
        "roles",
        "tools",
        "init",
        "new",
        "runs",
        "show",
        "undo",
        "record",
        "gc",
    ]:
        with pytest.raises(SystemExit) as ended:
            cli.main([name, "--help"])
        assert ended.value.code == 0
        assert "--json" in capsys.readouterr().out


def test_a_help_keeps_capitals(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["mcp", "--help"])
    assert "Offer runs to MCP clients" in capsys.readouterr().out


def test_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out.startswith("ori ")


@pytest.mark.parametrize("argv", [["run", "--replay", "hello"], ["run", "hello", "--replay", "model"]])
def test_a_scenario_may_be_named_behind_the_option_to_replay_it(project: Path, ori: Ori, argv: list[str]) -> None:
    assert ori(*argv, "--json").json["status"] == "done"


def test_a_wrong_way_to_replay_is_told(project: Path, ori: Ori) -> None:
    ran = ori("run", "hello", "--replay=al")
    assert ran.status == 2 and "--replay=al is unknown; write --replay, or --replay=all" in ran.err


@pytest.mark.parametrize("argv", [["rnu"], ["run", "x", "--live", "--replay"], ["solve"], []])
def test_wrong_usage_has_status_2_and_shows_the_usage(argv: list[str], ori: Ori) -> None:
    said = ori(*argv)
    assert said.status == 2 and said.out == ""
    assert "usage: ori" in said.err


def test_wrong_usage_with_json_is_one_document(ori: Ori) -> None:
    said = ori("rnu", "--json")
    assert said.status == 2
    assert "invalid choice: 'rnu'; did you mean 'run'?" in said.json["error"]


def test_the_project_is_the_nearest_folder_with_settings_or_roles(tmp_path: Path) -> None:
    (tmp_path / "a" / "roles").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    assert cli.find_project(tmp_path / "a" / "b" / "c") == tmp_path / "a"
    (tmp_path / "a" / "b" / "ori.yaml").touch()
    assert cli.find_project(tmp_path / "a" / "b" / "c") == tmp_path / "a" / "b"


def test_a_wrong_setting_is_one_line_without_a_traceback(project: Path, ori: Ori) -> None:
    (project / "ori.yaml").write_text("limts: {}\n")
    said = ori("runs")
    assert said.status == 2
    assert said.err.splitlines() == [f"ori: {project}/ori.yaml:1: unknown key 'limts'; did you mean 'limits'?"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [\n", ":2: expected the node content, but found '<stream end>'"),
        ("journal: 3\n", ":1: journal is 3: input should be a valid string"),
        ("jurnal: x.db\n", ":1: unknown key 'jurnal'; did you mean 'journal'?"),
    ],
    ids=["no YAML", "no name", "unknown"],
)
def test_what_is_wrong_with_the_log_is_told_by_commands_that_only_read_it(
    project: Path, ori: Ori, text: str, said: str
) -> None:
    (project / "ori.yaml").write_text(text)
    assert ori("runs").err.splitlines() == [f"ori: {project}/ori.yaml{said}"]


def test_past_runs_can_be_seen_while_other_settings_are_wrong(project: Path, ori: Ori) -> None:
    ori("run", "hello")
    (project / "ori.yaml").write_text("max_runs: many\n")
    assert len(ori("runs", "--json").json) == 1


def test_the_log_is_where_the_environment_says(project: Path, ori: Ori, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "ori.yaml").write_text('journal: "${OWN_LOG}"\n')
    monkeypatch.setenv("OWN_LOG", str(project / "own.db"))
    ori("run", "hello")
    assert (project / "own.db").exists()
    assert len(ori("runs", "--json").json) == 1


def test_commands_that_only_read_the_log_know_every_part_of_the_settings() -> None:
    assert set(Settings.model_fields) == projectlog.SETTINGS


def test_a_bug_is_one_line_and_verbose_shows_the_traceback() -> None:
    try:
        raise TypeError("oops")
    except TypeError as error:
        short, long = cli.report_error(error, verbose=False), cli.report_error(error, verbose=True)
    assert short.status == long.status == 1
    assert short.note == "ori: a bug: TypeError: oops (--verbose shows where)"
    assert "Traceback" in long.note and "test_cli.py" in long.note


def test_a_file_that_cannot_be_written_is_no_bug_and_folders_are_made(project: Path, ori: Ori) -> None:
    with served([call("delegate", PLAN), call("delegate", PLAN)]) as server:
        use(project, server)
        said = ori("plan", "比较", "-o", "scenarios")
        assert (said.status, said.err.splitlines()[-1]) == (1, "ori: [Errno 21] Is a directory: 'scenarios'")
        assert ori("plan", "比较", "-o", "new/folder/plan.yaml").status == 0
    assert (project / "new/folder/plan.yaml").is_file()


def test_errors_that_came_as_a_group_are_told_each() -> None:
    group = ExceptionGroup("tasks", [ConfigError("one"), ExceptionGroup("more", [ConfigError("two")])])
    report = cli.report_error(group, verbose=False)
    assert (report.status, report.note) == (2, "ori: one\nori: two")


# content


def test_init_lays_out_a_project_that_has_nothing_wrong(tmp_path: Path, ori: Ori) -> None:
    assert ori("init", str(tmp_path / "new")).status == 0
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [
        ".gitignore",
        "ori.yaml",
        "prompts",
        "roles",
        "scenarios",
        "tools",
    ]
    assert ori("check", "--project", str(tmp_path / "new")).status == 0


def test_init_overwrites_nothing(tmp_path: Path, ori: Ori) -> None:
    (tmp_path / "ori.yaml").write_text("max_runs: 2\n")
    assert ori("init", str(tmp_path)).status == 2
    assert (tmp_path / "ori.yaml").read_text() == "max_runs: 2\n"
    assert not (tmp_path / "scenarios").exists()


def test_a_new_role_is_two_files_and_is_listed_at_once(project: Path, ori: Ori) -> None:
    said = ori("new", "role", "译者")
    assert said.out.splitlines() == [f"{project}/roles/译者.yaml", f"{project}/prompts/译者.md"]
    assert "译者" in [role["name"] for role in ori("roles", "--json").json]
    assert ori("new", "role", "译者").status == 2


@pytest.mark.parametrize(("kind", "name"), [("role", "../x"), ("scenario", "a b"), ("tool", "a-b"), ("tool", "class")])
def test_a_name_that_cannot_be_is_refused(ori: Ori, kind: str, name: str) -> None:
    said = ori("new", kind, name)
    assert said.status == 2 and repr(name) in said.err


def test_a_new_tool_can_be_called_at_once(project: Path, ori: Ori) -> None:
    said = ori("new", "tool", "查订单")
    assert said.out.splitlines() == [f"{project}/tools/查订单.py"]
    ori("new", "role", "clerk")
    role = project / "roles" / "clerk.yaml"
    role.write_text(role.read_text().replace("read_file", "查订单"))
    plan = {"subtasks": [{"id": "look", "role": "clerk", "goal": "Look it up."}]}
    looked = [call("查订单", {"text": "A-1"}), text("It is A-1.")]
    with served([call("delegate", plan), *looked, text("A-1.")]) as server:
        use(project, server)
        assert ori("check").status == 0
        assert ori("solve", "What is there?", "--json").json["outcomes"]["look"]["answer"] == "It is A-1."
    assert ori("new", "tool", "查订单").status == 2


def test_a_new_scenario_can_be_run_at_once(project: Path, ori: Ori) -> None:
    said = ori("new", "scenario", "周报")
    assert said.out.splitlines() == [f"{project}/scenarios/周报.yaml"]
    plan = {"subtasks": [{"id": "greet", "role": "worker", "goal": "Greet."}]}
    written = [call("write_file", {"path": "hello.txt", "content": "Hello Ada!"}), text("It is there.")]
    with served([call("delegate", plan), *written, text("Done.")]) as server:
        use(project, server)
        assert ori("check").status == 0
        assert ori("run", "周报").status == 0


def test_check_names_file_line_value_and_the_nearest_right_one(project: Path, ori: Ori) -> None:
    ori("new", "role", "clerk")
    role = project / "roles" / "clerk.yaml"
    role.write_text(role.read_text().replace("read_file", "raed_file"))
    said = ori("check")
    assert said.status == 2
    [line] = [line for line in said.out.splitlines() if "raed_file" in line]
    assert line.startswith(f"{role}:4: ") and "did you mean 'read_file'?" in line


def test_tools_are_listed_with_their_effect(ori: Ori) -> None:
    said = ori("tools")
    assert any(line.split()[:2] == ["block", "read"] for line in said.out.splitlines())


# runs


def test_a_scenario_without_a_model_replays_and_says_so_in_one_line(ori: Ori) -> None:
    said = ori("run", "hello")
    assert said.status == 0
    assert said.out == "Hello, Ada.\n"
    assert [line for line in said.err.splitlines() if "replay" in line] == [
        "ori: no model is configured: replaying replies scripted by hand"
    ]
    assert "ori show" in said.err and "checks: 2 passed, 0 failed" in said.err


def test_a_recorded_model_is_named(project: Path, ori: Ori) -> None:
    header = '{"recording": 1, "scenario": "hello", "model": "qwen2.5-1.5b"}\n'
    (project / "scenarios/recordings/hello.jsonl").write_text(header + HELLO.splitlines()[1] + "\n")
    assert "replaying replies recorded from qwen2.5-1.5b" in ori("run", "hello").err


def test_a_run_reports_its_files_with_their_paths(project: Path, ori: Ori) -> None:
    said = ori("run", "note", "--workspace", "out")
    assert said.status == 0
    assert (project / "out/记录.txt").read_text("utf-8") == "华东"
    assert f"{project}/out/记录.txt (6 bytes)" in said.err


def test_json_prints_one_document_even_when_a_tool_prints(ori: Ori) -> None:
    said = ori("run", "chatty", "--json")
    assert said.json["status"] == "done" and said.json["answer"] == "quiet"
    assert "noise" in said.err


def test_a_parameter_is_set_and_an_unknown_one_refused(ori: Ori) -> None:
    said = ori("run", "hello", "--set", "name=Ada", "--json")
    assert said.json["checks"][-1]["passed"] is True
    said = ori("run", "hello", "--set", "nmae=Ada")
    assert said.status == 2 and "did you mean 'name'?" in said.err


def test_the_nearest_scenario_is_named_on_a_miss(ori: Ori) -> None:
    said = ori("run", "helo")
    assert said.status == 2 and "did you mean 'hello'?" in said.err


def test_a_part_that_failed_makes_status_3(ori: Ori) -> None:
    said = ori("run", "broken")
    assert said.status == 3
    assert any(line.startswith("partial: ") for line in said.err.splitlines())
    assert "bad failed: there is no 'nowhere.txt'" in said.err


def test_a_recording_that_does_not_fit_makes_status_1(project: Path, ori: Ori) -> None:
    (project / "scenarios/recordings/hello.jsonl").write_text(HEADER)
    said = ori("run", "hello")
    assert said.status == 1 and "it has no reply for 'ori:1:model'" in said.err


def test_a_check_that_fails_makes_status_1(project: Path, ori: Ori) -> None:
    file = project / "scenarios/hello.yaml"
    file.write_text(file.read_text().replace("contains: Hello", "contains: Goodbye"))
    said = ori("run", "hello")
    assert said.status == 1 and "failed: answer contains 'Goodbye'" in said.err


@pytest.mark.parametrize("argv", [["solve", "hi"], ["plan", "hi"], ["run", "hello", "--live"], ["test", "--live"]])
def test_without_a_model_the_ways_to_get_one_are_told(argv: list[str], ori: Ori) -> None:
    said = ori(*argv)
    assert said.status == 2
    assert "OPENAI_API_KEY" in said.err and "local server" in said.err and "ori.yaml" in said.err


def test_a_run_that_cannot_begin_leaves_no_folder(project: Path, ori: Ori) -> None:
    assert ori("solve", "hi", "--input", "scenarios/hello.yaml").status == 2
    assert not list((project / ".ori" / "runs").glob("*"))


def test_env_is_read_and_never_overrides_the_environment(
    project: Path, ori: Ori, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_MODEL", "from-the-environment")
    with served([text("Four.")]) as server:
        use(project, server)
        with (project / ".env").open("a") as file:
            file.write("OPENAI_MODEL=from-the-file\n")
        said = ori("solve", "2 + 2?")
    assert (said.status, said.out) == (0, "Four.\n")
    assert server.requests[0]["model"] == "from-the-environment"


def test_verbose_logs_prompts_and_replies_without_the_key(project: Path, ori: Ori) -> None:
    with served([text("The key is sk-from-the-env-file-1.")]) as server:
        use(project, server)
        said = ori("solve", "What is the key?", "--verbose")
    lines = [json.loads(line) for line in said.err.splitlines() if line.startswith("{")]
    assert any("What is the key?" in line.get("content", "") for line in lines)
    assert "sk-from-the-env-file-1" not in said.err


def test_with_a_model_a_scenario_is_run_live(project: Path, ori: Ori) -> None:
    with served([text("Hello from the model.")]) as server:
        use(project, server)
        said = ori("run", "hello")
    assert said.out == "Hello from the model.\n" and "replay" not in said.err


def test_a_plan_is_shown_with_an_estimate_and_its_file_can_be_edited_and_run(project: Path, ori: Ori) -> None:
    with served([call("delegate", PLAN), *(text(f"answer {i}") for i in range(3))]) as server:
        use(project, server)
        said = ori("plan", "比较 a.txt 和 b.txt", "-o", "plan.yaml")
        assert said.status == 0
        assert [line.split()[:2] for line in said.out.splitlines()[1:]] == [["read", "researcher"], ["写", "writer"]]
        assert "estimate: about 6 model calls" in said.err and "read → 写" in said.err
        assert len(server.requests) == 1, "nothing was run"

        file = project / "plan.yaml"
        edited = file.read_text("utf-8").replace("Read a.txt", "Read a.txt twice")
        assert "goal: 比较 a.txt 和 b.txt" in edited and "twice" in edited
        file.write_text(edited, "utf-8")
        said = ori("run", "--plan", "plan.yaml", "--json")
    assert said.json["answer"] == "answer 2"
    assert said.json["outcomes"]["写"]["status"] == "done"
    assert "Read a.txt twice" in json.dumps(server.requests[1], ensure_ascii=False)


def test_a_dash_writes_to_standard_output(project: Path, ori: Ori) -> None:
    with served([call("delegate", PLAN)]) as server:
        use(project, server)
        plan = ori("plan", "比较 a.txt 和 b.txt", "-o", "-")
    run = ori("run", "hello", "--replay", "--json").json["run_id"]
    recording = ori("record", run, "-o", "-")
    assert not (project / "-").exists()
    assert plan.out.splitlines()[:2] == ["# Edit, then: ori run --plan FILE", "goal: 比较 a.txt 和 b.txt"]
    assert json.loads(recording.out.splitlines()[0])["scenario"] == "hello"


def test_a_plan_without_goal_or_scenario_says_what_is_missing(project: Path, ori: Ori) -> None:
    (project / "plan.yaml").write_text("subtasks: [{id: a, role: writer, goal: g}]\n")
    said = ori("run", "--plan", "plan.yaml")
    assert said.status == 2 and "name a scenario" in said.err


def test_a_wrong_plan_file_names_its_line(project: Path, ori: Ori) -> None:
    (project / "plan.yaml").write_text("goal: g\nsubtasks:\n  - {id: a, rol: writer, goal: g}\n")
    said = ori("run", "--plan", "plan.yaml")
    assert said.status == 2 and "plan.yaml:3: unknown key 'rol' in subtasks[0]; did you mean 'role'?" in said.err


# tests of scenarios


def test_scenarios_are_tested_each_in_a_workspace_of_its_own(project: Path, ori: Ori) -> None:
    said = ori("test", "hello", "note", "--json")
    assert said.status == 0
    assert [(one["scenario"], one["passed"]) for one in said.json] == [("hello", True), ("note", True)]
    runs = {one["run"] for one in said.json}
    assert len(runs) == 2 and all((project / ".ori/runs" / run).exists() for run in runs if run == said.json[1]["run"])


def test_a_failed_check_is_told_with_what_was_expected_and_found(project: Path, ori: Ori) -> None:
    file = project / "scenarios/note.yaml"
    file.write_text(file.read_text("utf-8").replace("contains: 华东", "contains: 华北"), "utf-8")
    said = ori("test", "hello", "note")
    assert said.status == 1
    assert "PASS hello" in said.out and "FAIL note" in said.out
    assert "failed: file 记录.txt: contains '华北': not found in '华东'" in said.out
    assert said.out.splitlines()[-1] == "2 scenarios, 1 passed, 1 failed"


def test_of_what_passed_the_number_is_told_and_with_verbose_each(project: Path, ori: Ori) -> None:
    assert "passed: " not in ori("test", "note").out
    assert "PASS note: 3 checks (run " in ori("test", "note").out
    assert "passed: file 记录.txt: contains '华东'" in ori("test", "note", "--verbose").out


def test_a_scenario_without_a_recording_is_skipped_and_told_how_to_get_one(project: Path, ori: Ori) -> None:
    ori("init", "fresh")
    said = ori("test", "--project", "fresh", "fresh/scenarios")
    assert (said.status, said.out.splitlines()[-1]) == (0, "1 scenario, 0 passed, 0 failed, 1 skipped")
    assert "SKIP hello" in said.out and "run it with --live, write one with `ori record RUN -o FILE`" in said.out
    (project / "fresh/scenarios/hello.yaml").write_text("goal: x\nrecording: gone.jsonl\n", "utf-8")
    assert ori("test", "--project", "fresh", "fresh/scenarios").status == 1


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("nope/", "there is no file or folder 'nope/'; did you mean 'note'?"),
        ("empty", "empty: there is no scenario (*.yaml) in this folder"),
        ("helo", "there is no scenario 'helo'; did you mean 'hello'?"),
    ],
)
def test_what_is_no_scenario_is_a_wrong_use(project: Path, ori: Ori, named: str, says: str) -> None:
    (project / "empty").mkdir()
    said = ori("test", named)
    assert (said.status, said.out) == (2, "") and said.err.startswith(f"ori: {says}")


def test_a_scenario_that_cannot_run_fails_and_the_others_go_on(project: Path, ori: Ori) -> None:
    (project / "scenarios/bad.yaml").write_text("gaol: x\n")
    said = ori("test", "scenarios/bad.yaml", "hello")
    assert said.status == 1
    assert "scenarios/bad.yaml:1: unknown key 'gaol'; did you mean 'goal'?" in said.out and "PASS hello" in said.out


def test_a_scenario_whose_tools_are_missing_is_skipped_with_what_mends_that(
    project: Path, ori: Ori, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{project}/none.sock")
    (project / "scenarios/code.yaml").write_text("goal: x\nchecks: [{tools: {called: [run_code]}}]\n", "utf-8")
    said = ori("test", "hello", "code")
    assert said.status == 0
    assert "SKIP code\n  run_code: there is no container engine at" in said.out
    assert said.out.splitlines()[-1] == "2 scenarios, 1 passed, 0 failed, 1 skipped"
    said = ori("run", "code")
    assert said.status == 2, "no model is asked for what cannot pass"
    assert "scenarios/code.yaml: cannot run here, as it needs run_code: there is no container" in said.err
    plan = "plan: [{id: a, tool: run_code, args: {language: python, code: '1'}}]"
    (project / "scenarios/code.yaml").write_text(f"goal: x\n{plan}\nanswer: a\n", "utf-8")
    assert "SKIP code\n  run_code: there is no container engine at" in ori("test", "code").out


def test_a_folder_without_scenarios_is_an_error(project: Path, ori: Ori) -> None:
    said = ori("test", "tools")
    assert said.status == 2 and "no scenario" in said.err


# the past


def test_a_run_is_listed_shown_and_recorded(project: Path, ori: Ori) -> None:
    assert ori("runs").out == "" and "there is no run yet" in ori("show").err
    run = ori("run", "hello", "--json").json["run_id"]
    assert ori("runs").out.splitlines()[1].split()[:2] == [run, "done"]
    assert "✓ ori" in ori("show", run).out and ori("show").out == ori("show", run).out
    assert ori("show", run, "--json").json["events"][0]["type"] == "run.started"
    assert "1 answer of the model; name the file" in ori("record", run, "-o", "again.jsonl").err
    (project / "scenarios/recordings/hello.jsonl").write_bytes((project / "again.jsonl").read_bytes())
    assert ori("run", "hello").out == "Hello, Ada.\n"


def age(project: Path, run: str, *, days: int) -> None:
    """Let a run have happened some days ago."""
    with closing(sqlite3.connect(project / ".ori/runs.db")) as database, database:
        earlier = {"seconds": days * 86_400, "run": run}
        database.execute(
            "UPDATE run SET started = started - :seconds, ended = ended - :seconds WHERE run = :run", earlier
        )


def test_old_runs_are_deleted_and_the_rest_is_kept(project: Path, ori: Ori) -> None:
    old, new = (ori("run", "note", "--json").json["run_id"] for _ in range(2))
    age(project, old, days=31)
    told = ori("gc", "--older", "30d", "--dry-run").out
    assert told.startswith(f"would delete {old} (done, ") and told.endswith("): Write a note.\n")
    said = ori("gc", "--older", "30d", "--json")
    assert (said.status, said.json["deleted"], said.json["left"]) == (0, [old], {})
    assert said.json["freed_bytes"] > 1000
    assert [run["run"] for run in ori("runs", "--json").json] == [new]
    assert [folder.name for folder in (project / ".ori/runs").iterdir()] == [new]
    assert ori("gc", "--older", "4w").out == "nothing to delete\n"


@pytest.mark.parametrize("age", ["30", "d", "-1d", "1.5h", "30m", "٣d"])
def test_an_age_without_a_known_unit_is_wrong_usage(age: str, ori: Ori) -> None:
    said = ori("gc", f"--older={age}")
    assert said.status == 2 and "as in 12h, 30d, 4w" in said.err


def test_an_unknown_run_is_wrong_usage(ori: Ori) -> None:
    said = ori("show", "no-such-run")
    assert said.status == 2 and "no run 'no-such-run'" in said.err


def test_undo_puts_back_what_a_run_changed(project: Path, ori: Ori) -> None:
    (project / "out").mkdir()
    (project / "out/记录.txt").write_text("old", "utf-8")
    run = ori("run", "note", "--workspace", "out", "--json").json["run_id"]
    assert ori("undo", run, "nota").status == 2
    said = ori("undo", run, "note")
    assert (said.status, said.out) == (0, "restored 记录.txt\n")
    assert (project / "out/记录.txt").read_text("utf-8") == "old"


def test_undo_leaves_what_a_person_changed_since(project: Path, ori: Ori) -> None:
    run = ori("run", "note", "--workspace", "out", "--json").json["run_id"]
    (project / "out/记录.txt").write_text("mine", "utf-8")
    said = ori("undo", run)
    assert said.status == 3 and "left 记录.txt: it was changed since" in said.out
    assert (project / "out/记录.txt").read_text("utf-8") == "mine"


def test_a_project_whose_settings_are_all_commented_out_is_right(project: Path, ori: Ori) -> None:
    (project / "ori.yaml").write_text("models:\nlimits:\ntools:\nnetwork:\nmcp:\nmemory:\njournal:\n")
    assert (ori("check").status, ori("run", "hello").status) == (0, 0)


def test_common_options_may_stand_on_both_sides_of_the_command(project: Path, ori: Ori) -> None:
    assert ori("--json", "--project", str(project), "roles").json == ori("roles", "--json").json
    assert ori("--project", "nowhere", "roles", "--project", str(project)).status == 0


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_command_whose_streams_are_closed_does_its_work(project: Path, closed: str) -> None:
    command = f'"{sys.executable}" -m orchestrator run note --workspace out {closed}'
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", "-c", command], cwd=project, env=environment, capture_output=True, check=False)
    assert done.returncode == 0 and (project / "out/记录.txt").exists()


def test_the_package_is_the_command_too(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "orchestrator", "cancel"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.returncode == 2 and done.stderr.startswith("ori: the following arguments are required: RUN")


# signals and pipes


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_run_whose_tool_hangs(project: Path, ori: Ori, number: signal.Signals) -> None:
    """B58: Ctrl-C while a blocking tool sleeps ends within 2 s, and the run can be looked at."""
    process = begin("run", "blocked", until="blocking")
    sent = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert GRACE < 2 and time.monotonic() - sent < 30, "the tool sleeps for 60 s; a busy machine ends a program slowly"
    assert (process.returncode, out) == (130, "")
    [run] = ori("runs", "--json").json
    assert run["status"] == "interrupted"
    assert f"ori resume {run['run']}" in err
    assert "⊘ wait" in ori("show", run["run"]).out


def test_a_tool_that_refuses_to_stop_does_not_hold_the_exit(project: Path, ori: Ori) -> None:
    process = begin("run", "stubborn", until="refusing")
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert GRACE <= time.monotonic() - sent < 30
    assert process.returncode == 130 and "ori resume" in err
    assert ori("runs", "--json").json[0]["status"] == "interrupted"


def test_nor_does_it_hold_a_run_that_is_cancelled_from_outside(project: Path, ori: Ori) -> None:
    process = begin("run", "stubborn", "--json", until="refusing")
    [run] = ori("runs", "--json").json
    assert ori("cancel", run["run"]).status == 0
    out, _ = process.communicate(timeout=30)
    assert json.loads(out)["status"] == "cancelled"


def test_a_second_signal_ends_it_at_once(project: Path, ori: Ori) -> None:
    patient = "import sys; from orchestrator.serve import cli, interrupt; interrupt.GRACE = 600; sys.exit(cli.main())"
    process = begin("run", "stubborn", until="refusing", program=("-c", patient))
    process.send_signal(signal.SIGINT)
    assert process.stderr and any("not yet" in line for line in process.stderr), "the first one is told to the tool"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)  # and not for as long as the first one may take
    assert process.returncode == 130


def test_an_interrupted_run_with_json_is_one_document(project: Path, ori: Ori) -> None:
    process = begin("run", "blocked", "--json", until="blocking")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert json.loads(out)["status"] == "interrupted"


def test_a_reader_that_goes_away_is_no_error(project: Path, ori: Ori) -> None:
    run = ori("run", "hello", "--json").json["run_id"]
    for argv in (["show", run], ["--help"]):
        read, write = os.pipe()
        os.close(read)
        with spawn(*argv, stdout=write, stderr=subprocess.PIPE) as process:
            os.close(write)
            _, err = process.communicate()
        assert (process.returncode, err) == (0, "")


def test_a_recording_is_written_into_a_new_folder(ori: Ori, project: Path) -> None:
    run = ori("run", "hello", "--json").json["run_id"]
    said = ori("record", run[-8:], "-o", str(project / "new/folder/hello.jsonl"))  # a part of the id is enough
    assert (said.status, (project / "new/folder/hello.jsonl").is_file()) == (0, True)


def test_a_new_role_does_not_hide_one_that_is_there(ori: Ori, project: Path) -> None:
    said = ori("new", "role", "analyst")
    assert said.status == 2 and "there is a role 'analyst' already" in said.err
    assert not (project / "roles/analyst.yaml").exists()
