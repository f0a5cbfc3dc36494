"""Tables of a lake as their readers see them: by delta-rs' own scan, and by DuckDB's extension for Delta."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from tests.third_party.readers import duckdb_with_delta

Rows = list[tuple[Any, ...]]


def rows_of(place: Path) -> Rows:
    """By delta-rs; and DuckDB must see the same."""
    table = DeltaTable(str(place))
    rows = _tuples(pa.table(table.scan()))
    assert sorted(rows, key=repr) == sorted(by_duckdb(table), key=repr)
    return rows


def by_duckdb(table: DeltaTable) -> Rows:
    with duckdb_with_delta().cursor() as connection:
        return _tuples(connection.execute("select * from delta_scan($1)", [table.table_uri]).to_arrow_table())


def _tuples(table: pa.Table) -> Rows:
    return [tuple(row.values()) for row in table.to_pylist()]
