"""Says a JSON Schema in one line, as types are written in TypeScript. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.messages import Json

Schema = Any
"""A JSON Schema: a mapping, True or False."""


@dataclass(frozen=True, slots=True)
class Describer:
    """Describes the parts of one schema.

    Args:
        root: The whole schema, which `$ref` starts from.
    """

    root: Schema

    def resolve(self, schema: Schema) -> Mapping[str, Json]:
        """Follow a `$ref` into the root; what is true, unknown or goes round in circles allows everything."""
        for _ in range(20):
            if not isinstance(schema, Mapping):
                break
            ref = schema.get("$ref")
            if not isinstance(ref, str):
                return schema
            schema = self.root
            for step in ref.removeprefix("#").split("/")[1:]:
                step = step.replace("~1", "/").replace("~0", "~")
                schema = schema.get(step) if isinstance(schema, Mapping) else None
        return {}

    def describe(self, schema: Schema, depth: int = 4) -> str:
        """Return a schema in one line, as types are written in TypeScript."""
        schema = self.resolve(schema) if depth >= 0 else {}
        if "const" in schema or "enum" in schema:
            return _joined([as_json(v) for v in schema.get("enum", [schema.get("const")])], " | ")
        if options := schema.get("anyOf") or schema.get("oneOf"):
            return " | ".join(dict.fromkeys(self.describe(option, depth - 1) for option in options))
        kind = schema.get("type", "any")
        if isinstance(kind, list):
            return " | ".join(kind)
        if kind == "array":
            if "prefixItems" in schema:
                return f"[{', '.join(self.describe(item, depth - 1) for item in schema['prefixItems'])}]"
            item = self.describe(schema.get("items", True), depth - 1)
            return f"({item})[]" if " " in item and item[0] != "{" else f"{item}[]"
        if kind == "object" and "properties" in schema and depth > 0:
            return "{" + self.describe_members(schema, depth) + "}"
        return f"{kind} ({schema['format']})" if "format" in schema else kind

    def describe_members(self, schema: Mapping[str, Json], depth: int = 4) -> str:
        """Return the members of an object in one line: `name: type`, `name?: type`, `name: type = default`."""
        members = []
        for name, of in schema.get("properties", {}).items():
            default = of.get("default") if isinstance(of, Mapping) else None
            shown = f" = {as_json(default)}" if default else ""
            mark = "" if shown or name in schema.get("required", ()) else "?"
            members.append(f"{name}{mark}: {self.describe(of, depth - 1)}{shown}")
        return ", ".join(members)


def quote(text: str, limit: int) -> str:
    """Return a text, its end replaced by its length where it is too long."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def as_json(value: Json) -> str:
    """Return a value as JSON, Chinese in it as Chinese."""
    return json.dumps(value, ensure_ascii=False)


def _joined(texts: Sequence[str], by: str) -> str:
    return by.join(texts[:20]) + (f"{by}…" if len(texts) > 20 else "")
