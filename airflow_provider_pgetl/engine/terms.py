"""On what terms a table is replicated: which of it, and where to.

A destination's table holds what was chosen when it was copied. If something else is chosen later, no stream can bring
what was left out before, nor take away what is not wanted any more: the table has to be copied anew. So the terms of
the copy are stored with the table, and held against those declared now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_pgetl.engine.tables import TableName


@dataclass(frozen=True, slots=True)
class Terms:
    """`columns`: those of the publication's column list, whose order means nothing, None without one. `where`: the row
    filter as the server spells it, so that the same filter in other words is the same."""

    columns: frozenset[str] | None
    where: str | None
    insert_only: bool
    destination: TableName

    def differences(self, other: Terms) -> tuple[str, ...]:
        """What differs, by the keys of the declaration."""
        keys = ("columns", "where", "insert_only", "destination")
        return tuple(key for key in keys if getattr(self, key) != getattr(other, key))

    def as_json(self) -> dict[str, Any]:
        return {
            "columns": None if self.columns is None else sorted(self.columns),
            "where": self.where,
            "insert_only": self.insert_only,
            "destination": [self.destination.schema, self.destination.name],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Terms:
        columns = None if data["columns"] is None else frozenset(data["columns"])
        return cls(columns, data["where"], data["insert_only"], TableName(*data["destination"]))
