from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.commands import AllowList
from orchestrator.errors import ToolError

ALLOWED = AllowList.read(
    ["ls", "git status", "git log", "find", "grep", "cat", "echo", "printf", "sort", "env", "python *"]
)


@pytest.mark.parametrize(
    ("line", "run"),
    [
        ("ls", "'ls'"),
        ("ls -la 'my file' \"a b\" c\\ d", "'ls' '-la' 'my file' 'a b' 'c'' ''d'"),
        ("git status -s && ls; git log | cat || ls", "'git' 'status' '-s' && 'ls' ; 'git' 'log' | 'cat' || 'ls'"),
        ("ls\n\nls\n", "'ls' \n 'ls'"),
        ("ls &&\n ls", "'ls' && 'ls'"),
        ("ls;", "'ls'"),
        ("ls 2>/dev/null", "'ls' 2>/dev/null"),
        ("grep x a 2>&1 | cat", "'grep' 'x' 'a' 2>&1 | 'cat'"),
        ("cat *.csv a?b", "'cat' ./*'.csv' 'a'?'b'"),
        ("cat ''*", "'cat' ''./*"),
        ("echo 'it'\\''s' \"\\$x \\\" \\\\\"", "'echo' 'it'''\\''''s' '$x \" \\'"),
        ("echo a=b a~b a#b !", None),
        ("echo a=b a~b a#b a!", "'echo' 'a=b' 'a''~''b' 'a''#''b' 'a''!'"),
        ("echo 销售", "'echo' '销售'"),
        ("env", "'env'"),
        ("python3.11 -c 'print(1)'", None),
        ("python -c 'print(1)'", "'python' '-c' 'print(1)'"),
        ("find . -name '*.py'", "'find' '.' '-name' '*.py'"),
    ],
)
def test_a_line_of_allowed_commands_is_written_anew(line: str, run: str | None) -> None:
    if run is None:
        with pytest.raises(ToolError):
            ALLOWED.checked(line)
    else:
        assert ALLOWED.checked(line) == run


REFUSED = {
    "another command": "rm -rf x",
    "after a semicolon": "ls; rm x",
    "after and": "ls && rm x",
    "after or": "ls || rm x",
    "after a pipe": "ls | sh",
    "in a line of its own": "ls\nrm x",
    "after a carriage return": "ls\rrm x",
    "in the background": "ls & rm x",
    "substituted": "ls $(rm x)",
    "substituted by backticks": "ls `rm x`",
    "substituted in quotes": 'ls "$(rm x)"',
    "backticks in quotes": 'ls "`rm x`"',
    "in a process substitution": "cat <(rm x)",
    "in a subshell": "(rm x)",
    "in a group": "{ rm x; }",
    "in an if": "if ls; then rm x; fi",
    "in a function": "ls() { rm x; }; ls",
    "a variable": "ls $HOME",
    "a variable as a command": "$SHELL",
    "a variable in braces": "ls ${x:-y}",
    "arithmetic": "ls $((1))",
    "ansi quotes": "ls $'\\x41'",
    "a variable that is set": "PATH=/tmp/evil ls",
    "a preload": "LD_PRELOAD=/tmp/x.so ls",
    "written to a file": "ls > /etc/passwd",
    "appended to a file": "ls >> x",
    "written to a file nearby": "ls >/dev/nullx",
    "read from a file": "cat < /etc/shadow",
    "a here document": "cat <<EOF\nx\nEOF",
    "a here string": "cat <<< x",
    "both pipes": "ls |& sh",
    "a descriptor": "ls >&3",
    "a file by descriptor": "ls 2>x",
    "clobbering": "ls >| x",
    "a name that begins like it": "lsof",
    "another one of its name": "./ls",
    "one in another folder": "/tmp/ls",
    "a name by pattern": "l? x",
    "quoted as a part": "l's'x",
    "another subcommand": "git push",
    "an option before the subcommand": "git -c core.pager=x status",
    "an option that runs": "git log --ext-diff",
    "an option that opens": "git log -Ovi",
    "an abbreviated option": "sort --compress-pro=/tmp/x a",
    "a negation": "! ls",
    "a comment": "ls # x",
    "a tilde": "ls ~root",
    "braces": "ls {a,b}",
    "a set": "ls [a-z]",
    "a pattern that becomes an option": "find -ex* x",
    "find that runs": "find . -exec rm {} +",
    "find that runs, quoted": "find . -exec rm '{}' '+'",
    "find that runs, split": "find . -e'x'ec rm '{}' '+'",
    "find that deletes": "find . -delete",
    "env that runs": "env rm x",
    "env that sets": "env -S 'rm x'",
    "xargs": "ls | xargs rm",
    "sh": "sh -c 'rm x'",
    "a line that goes on": "ls \\\nrm",
    "nothing": "",
    "blanks": " \t\n ",
    "an operator alone": ";",
    "two operators": "ls ;; ls",
    "an operator at the start": "&& ls",
    "an operator at the end": "ls &&",
    "a pipe at the end": "ls |",
    "an operator after a line": "ls \n ; ls",
    "a redirection alone": ">/dev/null",
    "an open quote": "ls 'a",
    "an open double quote": 'ls "a',
    "a backslash at the end": "ls \\",
    "a NUL": "ls \0",
    "a NUL in quotes": "ls 'a\0b'",
    "a blank that is none": "ls\u00a0;\u00a0rm",
    "an empty command": "'' ls",
}


@pytest.mark.parametrize("line", REFUSED.values(), ids=REFUSED)
def test_what_is_not_allowed_or_not_understood_is_refused(line: str) -> None:
    """B50: each part of a line is judged, and what the parser does not know is refused."""
    with pytest.raises(ToolError):
        ALLOWED.checked(line)


def test_a_refusal_says_what_is_refused_and_what_is_allowed() -> None:
    with pytest.raises(ToolError, match=r"^'rm -rf x' is not allowed; allowed: ls, git status$"):
        AllowList.read(["ls", "git status"]).checked("ls && rm -rf x")
    with pytest.raises(ToolError, match=r"with -delete it could do more than the list says"):
        AllowList.read(["find"]).checked("find . -delete")
    with pytest.raises(ToolError, match=r"xargs runs other programs"):
        AllowList.read(["xargs"]).checked("xargs rm")
    with pytest.raises(ToolError, match=r"variables cannot be set"):
        AllowList.read(["ls"]).checked("A=1 ls")
    with pytest.raises(ToolError, match=r"'\$\(id\)' cannot be judged \(character 4\); a command is plain words"):
        AllowList.read(["ls"]).checked("ls $(id)")


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        ("timeout 10 ls", "timeout 10 ls"),
        ("find . -name '*.pyc' -delete", "find . -name '*.pyc' -delete"),
        ("find *", "find . -exec rm '{}' '+'"),
        ("/usr/bin/env *", "/usr/bin/env rm"),
        ("*", "anything $(goes) > x &"),
        ("echo '*'", "echo '*' x"),
    ],
)
def test_an_entry_can_name_all_arguments_or_any(entry: str, line: str) -> None:
    AllowList.read([entry]).checked(line)


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        ("timeout 10 ls", "timeout 10 ls -l"),
        ("timeout 10", "timeout 10 rm"),
        ("find . -name '*.pyc' -delete", "find . -name *.pyc -delete"),
        ("echo '*'", "echo x"),
        ("python3", "python3 -c 1"),
    ],
)
def test_all_arguments_are_all_of_them(entry: str, line: str) -> None:
    with pytest.raises(ToolError):
        AllowList.read([entry]).checked(line)


@pytest.mark.parametrize("entry", ["", "  ", "ls; rm", "ls | cat", "ls > x", "ls*", "$X", "(ls)", "ls 2>/dev/null"])
def test_an_entry_that_is_no_beginning_of_a_command_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match=r"beginning|begins with"):
        AllowList.read([entry])


@pytest.mark.parametrize("shell", ["sh", "bash"])
@settings(max_examples=60)
@given(line=st.text(st.sampled_from(list("ab \t\n'\"\\$`|&;<>(){}*?[]~#!=-")), max_size=12))
def test_a_shell_runs_nothing_but_what_was_judged(shell: str, line: str) -> None:
    """Whatever follows the one allowed command: the shell calls no other program, and writes nothing."""
    try:
        run = AllowList.read(["printf"]).checked(f"printf {line}")
    except ToolError:
        return
    command, environment = [f"/bin/{shell}", "-c", run], {"PATH": "/nowhere"}
    done = subprocess.run(command, cwd="/proc", capture_output=True, text=True, env=environment, check=False)
    assert "not found" not in done.stderr
    assert "yntax" not in done.stderr
