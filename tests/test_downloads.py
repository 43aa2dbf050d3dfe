import pytest

from orchestrator.sandbox import downloads


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("../../evil.txt", "evil.txt"),
        ("..\\..\\evil.txt", "evil.txt"),
        ("/etc/passwd", "passwd"),
        (".bashrc", "bashrc"),
        ("....//x", "x"),
        ("", "file"),
        ("a\x00b\nc", "abc"),
        ("长" * 300 + ".txt", "长" * 96 + ".txt"),
    ],
)
def test_a_suggested_name_is_only_a_name(header: str, name: str) -> None:
    assert downloads.file_name(header) == name
