from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.errors import ConfigError, ToolError

if TYPE_CHECKING:
    from tests.tools.conftest import Bench


def on(bench: Bench, *allow: str, **settings: Any) -> None:
    bench.configure(shell={"enabled": True, "allow": list(allow), **settings})


def test_it_is_off_until_the_settings_turn_it_on(bench: Bench) -> None:
    assert bench.tools["run_shell"].missing() == (
        "off; to turn it on, write tools: {shell: {enabled: true, allow: [ls, git status]}} into ori.yaml"
    )
    bench.configure(shell={"enabled": True})
    assert bench.tools["run_shell"].missing().startswith("on, but no command is allowed")
    on(bench, "ls")
    assert not bench.tools["run_shell"].missing()


@pytest.mark.parametrize(
    "settings",
    [{"allow": ["ls; rm"]}, {"allow": "ls"}, {"timeout": 0}, {"alow": []}, {"environment": {"A": 1}}],
    ids=str,
)
def test_wrong_settings_are_told(bench: Bench, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        bench.configure(shell={"enabled": True, **settings})


async def test_an_allowed_command_runs_in_the_workspace(bench: Bench) -> None:
    on(bench, "ls", "pwd", "cat")
    bench.put("区域.csv", "a\n")
    result = await bench("run_shell", command="pwd && ls | cat")
    assert result.content == f"{bench.root}\n区域.csv\n(exit code 0)"
    assert result.value == {"output": f"{bench.root}\n区域.csv\n", "exit_code": 0, "files": []}
    assert not result.error
    assert result.untrusted is None


async def test_a_failed_command_is_a_failed_call(bench: Bench) -> None:
    on(bench, "ls", "false")
    assert (await bench("run_shell", command="ls none")).error
    assert await bench.text("run_shell", command="false") == "(exit code 1)"


async def test_a_command_that_is_not_allowed_does_not_run(bench: Bench) -> None:
    """B50: nor does what stands before it."""
    on(bench, "touch")
    for rest in ("; rm -rf .", "&& echo x", "$(id)", "> b", "\nrm a", "& rm a", "| sh", "`id`"):
        with pytest.raises(ToolError, match=r"is not allowed|cannot be judged"):
            await bench("run_shell", command=f"touch a {rest}")
    assert not (bench.root / "a").exists()


async def test_a_star_allows_anything(bench: Bench) -> None:
    on(bench, "*")
    assert await bench.text("run_shell", command="x=$(echo 1); echo $((x + 1)) > a; cat a") == (
        "2\n(exit code 0)\nwritten: a"
    )


async def test_what_a_command_changes_belongs_to_its_loop_and_can_be_undone(bench: Bench) -> None:
    on(bench, "*")
    await bench("write_file", path="theirs.txt", content="theirs", loop="ori/b")
    bench.put("old.txt", "old")
    result = await bench("run_shell", command="echo new > old.txt; echo x > new.txt; echo mine > theirs.txt")
    assert "written: new.txt, old.txt\n" in result.content
    assert "'theirs.txt' was written by ori/b and belongs to it" in result.content
    assert (bench.root / "theirs.txt").read_text() == "theirs"
    kept = {change.file: (change.created, change.before is not None) for change in bench.stored}
    assert kept["old.txt"] == (False, True)
    assert kept["new.txt"] == (True, False)


async def test_secrets_of_the_environment_are_not_passed_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-s3cret-s3cret")
    monkeypatch.setenv("PATH", f".:{os.environ['PATH']}:relative")
    on(bench, "env", environment={"GIVEN": "yes"})
    output = await bench.text("run_shell", command="env")
    assert "s3cret" not in output
    assert "GIVEN=yes" in output
    assert "HOME=/nonexistent" in output
    assert "PATH=/" in output
    assert "relative" not in output


async def test_a_time_limit_returns_what_was_printed(bench: Bench) -> None:
    on(bench, "*", timeout=2)
    result = await bench("run_shell", command="echo so far; sleep 98771")
    assert result.error
    assert result.content.startswith("so far\n(stopped after 2 s, with all that it started;")


async def test_a_command_that_reaches_out_may_print_the_words_of_strangers(bench: Bench) -> None:
    on(bench, "*")
    assert (await bench("run_shell", command="curl --version")).untrusted == "a command that reaches out"


@pytest.mark.parametrize("command", ["", " ", "ls \0", "'", "ls |"])
async def test_what_is_no_command_is_refused(bench: Bench, command: str) -> None:
    on(bench, "ls")
    with pytest.raises(ToolError):
        await bench("run_shell", command=command)
