"""What rules make of some rows: the result of a preview. It holds values of the source, and is for the eyes of the
person who asked: it is printed, and neither logged nor stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_pgetl.engine.model.errors import ErrorData
from airflow_provider_pgetl.engine.model.tables import TableName, written

Text = str | None


@dataclass(frozen=True, slots=True)
class ColumnPreview:
    """A column, the transformer that replaces its values (None: they pass as they are), and its values before and
    after."""

    name: str
    sql_type: str
    use: str | None
    before: Sequence[Text] = field(repr=False)
    after: Sequence[Text] = field(repr=False)


@dataclass(frozen=True, slots=True)
class TablePreview:
    """Some rows of a table. `failure`: why they cannot be transformed."""

    table: TableName
    columns: tuple[ColumnPreview, ...] = ()
    failure: ErrorData | None = None

    @property
    def rows(self) -> int:
        return len(self.columns[0].before) if self.columns else 0

    @property
    def transformed(self) -> tuple[ColumnPreview, ...]:
        return tuple(column for column in self.columns if column.use is not None)

    def as_json(self) -> dict[str, Any]:
        return {
            "table": written(self.table),
            "columns": {column.name: {"type": column.sql_type, "use": column.use} for column in self.columns},
            "rows": [
                {
                    "before": {column.name: column.before[at] for column in self.columns},
                    "after": {column.name: column.after[at] for column in self.columns},
                }
                for at in range(self.rows)
            ],
            "error": None if self.failure is None else {"message": self.failure.message, "remedy": self.failure.remedy},
        }
