import re
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator import Limits
from orchestrator.role import Role


@pytest.mark.parametrize(
    ("make", "given", "told"),
    [
        (Limits, {"token": 5}, "Limits() got an unexpected keyword argument 'token'; did you mean 'tokens'?"),
        (
            Role,
            {"name": "a", "description": "b", "prompt": "c", "tool": ("shell",)},
            "Role() got an unexpected keyword argument 'tool'; did you mean 'tools'?",
        ),
    ],
    ids=["limits", "role"],
)
def test_a_wrong_keyword_in_code_is_told_with_the_right_one(
    make: Callable[..., Any], given: dict[str, Any], told: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(told)):
        make(**given)


def test_what_is_read_from_elsewhere_is_told_with_all_its_faults() -> None:
    with pytest.raises(ValidationError, match=r"(?s)tokens.*greater than or equal to 1.*time_out"):
        Limits.model_validate({"tokens": 0, "time_out": 5})
