from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator import ConfigError, Limits, Role


@pytest.mark.parametrize(
    ("kind", "given", "told"),
    [
        (Limits, {"token": 5}, "unknown key 'token' in Limits; did you mean 'tokens'?"),
        (Limits, {"max_turns": 0}, "Limits.max_turns is 0: input should be greater than or equal to 1"),
        (
            Role,
            {"name": "a", "prompt": "p", "tool": ["x"], "limits": {"tokns": 1}},
            "the key 'description' is missing in Role\n"
            "unknown key 'tokns' in Role.limits; did you mean 'tokens'?\n"
            "unknown key 'tool' in Role; did you mean 'tools'?",
        ),
    ],
    ids=["an unknown name", "a value", "several faults"],
)
def test_what_is_wrong_in_code_is_told_as_in_a_file(
    kind: type[Limits | Role], given: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(**given)
    assert str(caught.value) == told


def test_what_is_read_as_part_of_a_whole_tells_its_faults_to_the_whole() -> None:
    with pytest.raises(ValidationError) as caught:
        Role.model_validate({"name": "a", "prompt": "p", "limits": {"tokns": 1}})
    assert [error["loc"] for error in caught.value.errors()] == [("description",), ("limits", "tokns")]
