"""Tables of a lake as their readers see them: by delta-rs' own scan, and by DuckDB's extension for Delta."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from airflow_provider_pgetl.testing.builders import Line, Replica
from tests.third_party.readers import duckdb_with_delta

Rows = list[tuple[Any, ...]]

ANN: Line = (b"1", b"Ann", b"x")
BOB: Line = (b"2", b"Bob", None)
CAT: Line = (b"3", b"Cat", None)
DAN: Line = (b"4", b"Dan", None)
EVE: Line = (b"5", b"Eve", None)


def place(folder: Path, replica: Replica) -> Path:
    """The folder of a table in a lake."""
    return folder / replica.schema.table.schema / replica.schema.table.name


def ids(folder: Path, replica: Replica) -> list[int]:
    """Of rows, or of a log's entries; where a log begins anew, None."""
    rows = place(folder, replica)
    at = [field.name for field in DeltaTable(str(rows)).schema().fields].index("id")
    return sorted(row[at] for row in rows_of(rows) if row[at] is not None)


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
