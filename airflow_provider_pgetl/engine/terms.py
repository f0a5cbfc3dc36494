"""On what terms a table is replicated: which of it, where to, and what it is there.

A destination's table holds what was chosen when it was copied. If something else is chosen later, no stream can bring
what was left out before, nor take away what is not wanted any more: the table has to be copied anew. So the terms of
the copy are stored with the table, and held against those declared now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_pgetl.engine.tables import TableName


@dataclass(frozen=True, slots=True)
class Terms:
    """`columns`: those of the publication's column list, whose order means nothing, None without one. `where`: the row
    filter as the server spells it, so that the same filter in other words is the same. `form`: what the destination
    makes of rows, by its own keys; of one that knows no such choice it is empty."""

    columns: frozenset[str] | None
    where: str | None
    insert_only: bool
    destination: TableName
    form: Mapping[str, str] = field(default_factory=dict)

    def differences(self, other: Terms) -> tuple[str, ...]:
        """What differs, by the keys of the declaration. Of the form what both know: whether a destination of another
        kind has the table, its positions tell."""
        keys = ("columns", "where", "insert_only", "destination")
        changed = [key for key in keys if getattr(self, key) != getattr(other, key)]
        reformed = [key for key in self.form if self.form[key] != other.form.get(key, self.form[key])]
        return (*changed, *reformed)

    def as_json(self) -> dict[str, Any]:
        return {
            "columns": None if self.columns is None else sorted(self.columns),
            "where": self.where,
            "insert_only": self.insert_only,
            "destination": [self.destination.schema, self.destination.name],
            "form": dict(self.form),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Terms:
        columns = None if data["columns"] is None else frozenset(data["columns"])
        return cls(columns, data["where"], data["insert_only"], TableName(*data["destination"]), data.get("form", {}))
