"""The base of all data that enters or leaves: checked, unchangeable, and told in plain words where it is wrong."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.document import Document
from orchestrator.errors import ConfigError


class Strict(BaseModel):
    """A model that takes no unknown field; a field's docstring is its description in the schema.

    Raises:
        ConfigError: An argument is unknown or does not fit; all faults, each with its place, as of a file.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            kind = type(self)
            raise ConfigError.all_of(Document.given(kind.__name__, given).faults(error, kind)) from None

    # Else pydantic would come by here when it reads a whole, which then could not tell all that is wrong in it.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]
