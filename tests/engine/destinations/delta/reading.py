"""Tables of a lake as their readers see them: by delta-rs' own scan, and by DuckDB's extension for Delta."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

Rows = list[tuple[Any, ...]]
_PACKAGE = Path(str(next(iter(importlib.util.find_spec("duckdb_extension_delta").submodule_search_locations))))
EXTENSION = next(_PACKAGE.glob("extensions/*/delta.duckdb_extension"))


def rows_of(place: Path) -> Rows:
    """By delta-rs; and DuckDB must see the same."""
    table = DeltaTable(str(place))
    rows = _tuples(pa.table(table.scan()))
    assert sorted(rows, key=repr) == sorted(by_duckdb(table), key=repr)
    return rows


def by_duckdb(table: DeltaTable) -> Rows:
    with duckdb.connect() as connection:
        connection.execute(f"load '{EXTENSION}'")
        connection.execute("set timezone = 'UTC'")
        found = connection.execute("select * from delta_scan($1)", [table.table_uri])
        return _tuples(found.to_arrow_table())


def _tuples(table: pa.Table) -> Rows:
    return [tuple(row.values()) for row in table.to_pylist()]


def hashable(row: Any) -> Any:
    """A row, or what is in it, as something that can be counted; NaN is itself."""
    if isinstance(row, float) and row != row:
        return "NaN"
    return tuple(map(hashable, row)) if isinstance(row, list | tuple) else row
