"""A Postgres table compared with a Delta table, value by value.

Both sides come as Python's values: what Delta has a type for as that, moments as moments; everything else as the text
that Postgres writes.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import psycopg

from airflow_provider_pgetl.demo.comparing import explain
from airflow_provider_pgetl.engine.tables import TableName, quote_identifier

Row = tuple[Any, ...]

# What psycopg and Arrow make the same Python values of; every other type goes as text.
_SAME = ("bool", "int2", "int4", "int8", "numeric", "date", "timestamptz", "_text")
_COLUMNS = """select attname::text, typname::text from pg_attribute a join pg_type t on t.oid = a.atttypid
              where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped order by attnum"""


def count(place: Path) -> int | None:
    """The rows of the table that lies there; None if none does."""
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    if not DeltaTable.is_deltatable(str(place)):
        return None
    # Not `DeltaTable.count`, which counts deleted rows as well.
    found = QueryBuilder().register("t", DeltaTable(place)).execute("select count(*) as rows from t")
    return int(pa.table(found).column("rows")[0].as_py())


def difference(source: psycopg.Connection, table: TableName, place: Path) -> str | None:
    """What differs, or None."""
    columns: dict[str, str] = dict(source.execute(_COLUMNS, [table.sql]).fetchall())
    here = _rows_here(source, table, columns)
    if count(place) is None:
        return f"{table} is not in {place}"
    there = _rows_there(place, list(columns))
    return None if here == there else explain(table, _spelled(here), _spelled(there))


def _rows_here(source: psycopg.Connection, table: TableName, columns: dict[str, str]) -> Counter[Row]:
    values = [f"{quote_identifier(name)}{'' if kind in _SAME else '::text'}" for name, kind in columns.items()]
    rows = source.execute(f"select {', '.join(values)} from {table.sql}".encode())
    return Counter(_hashable(row) for row in rows)


def _rows_there(place: Path, columns: list[str]) -> Counter[Row]:
    import pyarrow as pa
    from deltalake import DeltaTable

    table = pa.table(DeltaTable(place).scan()).select(columns)
    return Counter(_hashable(row.values()) for row in table.to_pylist())


def _hashable(row: Any) -> Row:
    return tuple(tuple(value) if isinstance(value, list) else value for value in row)


def _spelled(rows: Counter[Row]) -> Counter[str]:
    return Counter({str(row): times for row, times in rows.items()})
