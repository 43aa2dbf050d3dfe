"""The base of all data that enters or leaves: checked, unchangeable, and without names that mean nothing."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from orchestrator.errors import refuse_keywords


class Strict(BaseModel):
    """A model that takes no unknown field; a field's docstring is its description in the schema."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def __new__(cls, **given: Any) -> Self:
        """Refuse an unknown keyword as Python does; what is read from elsewhere never comes by here.

        Raises:
            TypeError: One is unknown.
        """
        refuse_keywords(given, cls.model_fields, of=cls.__name__)
        return super().__new__(cls)
