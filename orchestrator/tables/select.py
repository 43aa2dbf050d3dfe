"""What a SELECT says, by the syntax tree that DuckDB gives of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import ToolError

_WRITES = {"INSERT_QUERY_NODE", "UPDATE_QUERY_NODE", "DELETE_QUERY_NODE", "MERGE_QUERY_NODE"}


@dataclass(frozen=True, slots=True)
class Select:
    """The one SELECT that a query may be."""

    tree: dict[str, Any]

    @classmethod
    def read(cls, connection: Any, sql: str) -> Select:
        """Read a query.

        Raises:
            ToolError: It is no SELECT, or more than one.
        """
        statements = connection.extract_statements(sql)
        if len(statements) != 1:
            raise ToolError(f"give one SELECT statement, not {len(statements)}")
        kind = statements[0].type.name
        if kind != "SELECT":
            hint = "; give PIVOT its values with IN (…)" if kind == "MULTI" else ""
            raise ToolError(f"only SELECT can be run here, not {kind}{hint}")
        tree: dict[str, Any] = json.loads(connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchone()[0])
        if tree["error"]:
            raise ToolError(f"SQL: {tree['error_message']}")
        if any(node.get("type") in _WRITES for node in _nodes(tree)):
            raise ToolError("only SELECT can be run here, within WITH too")
        return cls(tree)

    @property
    def lists_tables(self) -> bool:
        """Whether it asks which tables there are."""
        return any(node.get("show_type") == "SHOW_SPECIAL" for node in _nodes(self.tree))

    @property
    def tables(self) -> list[tuple[str, str]]:
        """Schema and name of each table that it names, once, those that it defines itself left out."""
        names: dict[tuple[str, str], tuple[str, str]] = {}
        maps = [node.get("cte_map", {}).get("map", ()) for node in _nodes(self.tree)]
        defined = {entry["key"].casefold() for entries in maps for entry in entries}
        for node in _nodes(self.tree):
            schema = node.get("schema_name", "")
            if node.get("type") == "BASE_TABLE" and schema != "information_schema":
                table = ("" if schema == "main" else schema, node["table_name"])
                names.setdefault((table[0].casefold(), table[1].casefold()), table)
        return [table for (schema, name), table in names.items() if schema or name not in defined]

    @property
    def is_ordered(self) -> bool:
        """Whether the rows come in a certain order: one that is asked for, or that of the file."""
        node = self.tree["statements"][0]["node"]
        modifiers = {modifier["type"] for modifier in node["modifiers"]}
        if "ORDER_MODIFIER" in modifiers:
            return True
        return (
            node["type"] == "SELECT_NODE"
            and node["from_table"]["type"] in ("BASE_TABLE", "EXPRESSION_LIST", "SHOW_REF")
            and node["aggregate_handling"] == "STANDARD_HANDLING"
            and not (node["group_expressions"] or node["cte_map"]["map"] or "DISTINCT_MODIFIER" in modifiers)
        )


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
    for child in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _nodes(child)
