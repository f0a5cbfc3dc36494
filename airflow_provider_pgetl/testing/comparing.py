"""Compares a source with its replica, value by value, where the replica is in Postgres and where it is in a lake.

The first part compares two Postgres databases. Each row is converted to text, under the same settings on both sides.
Counts and sums of two hashes show whether two tables are the same as multisets; rows are fetched only from tables that
differ, to show which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from airflow_provider_pgetl.engine.model.tables import TableName, quote_identifier

_SETTINGS = b"""
set timezone = 'UTC'; set datestyle = 'ISO'; set intervalstyle = 'postgres'; set extra_float_digits = 3;
set bytea_output = 'hex'
"""
_COLUMNS = """select attname::text, attgenerated <> '' from pg_attribute
              where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped order by attnum"""
_SHOWN = 5
_WIDTH = 300


@dataclass(frozen=True, slots=True)
class Selection:
    """What of a table is replicated, and under which name, if not all of it under its own."""

    table: TableName
    place: TableName
    columns: Sequence[str] = ()
    where: str | None = None


def differences(
    source: psycopg.Connection, destination: psycopg.Connection, tables: Iterable[TableName | Selection]
) -> list[str]:
    """Returns a text for each table that is not the same on both sides."""
    for session in (source, destination):
        session.execute(_SETTINGS)
    selections = (each if isinstance(each, Selection) else Selection(each, each) for each in tables)
    return [text for selection in selections if (text := _difference(source, destination, selection))]


def count(session: psycopg.Connection, table: TableName) -> int | None:
    """Returns the number of rows of a table; None if there is no such table."""
    try:
        row = session.execute(f"select count(*) from {table.sql}".encode()).fetchone()
    except psycopg.errors.UndefinedTable:
        return None
    return None if row is None else int(row[0])


def _difference(source: psycopg.Connection, destination: psycopg.Connection, selection: Selection) -> str | None:
    columns = list(selection.columns) or _columns(source, destination, selection)
    here = _rows_as_text(selection.table, columns, selection.where)
    there = _rows_as_text(selection.place, columns)
    try:
        if _checksum(source, here) == _checksum(destination, there):
            return None
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
        return f"{selection.place}: {error}"
    return explain(selection.place, _fetch(source, here), _fetch(destination, there))


def _columns(source: psycopg.Connection, destination: psycopg.Connection, selection: Selection) -> list[str]:
    """Returns the columns that the source sends, and those that it generates where the destination has them too."""
    there = columns_of(destination, selection.place)
    return [name for name, generated in columns_of(source, selection.table).items() if not generated or name in there]


def columns_of(session: psycopg.Connection, table: TableName) -> dict[str, bool]:
    """Returns the columns in their order, with whether they are generated."""
    return dict(session.execute(_COLUMNS, [table.sql]).fetchall())


def _rows_as_text(table: TableName, columns: Sequence[str], where: str | None = None) -> str:
    row = ", ".join(map(quote_identifier, columns))
    return f"select row({row})::text as line from {table.sql}" + (f" where {where}" if where else "")


def _checksum(session: psycopg.Connection, lines: str) -> tuple[object, ...] | None:
    hashes = ", ".join(f"sum(hashtextextended(line, {seed})::numeric)" for seed in (0, 7))
    return session.execute(f"select count(*), {hashes} from ({lines}) l".encode()).fetchone()


def _fetch(session: psycopg.Connection, lines: str) -> Counter[str]:
    line = f"case when length(line) > {_WIDTH} then left(line, {_WIDTH}) || ' … ' || md5(line) else line end"
    return Counter(line for (line,) in session.execute(f"select {line} from ({lines}) l".encode()))


def explain(table: TableName, source: Counter[str], destination: Counter[str]) -> str:
    """Returns a text with the first rows that only one side has."""
    said = [f"{table}: {source.total()} rows at the source, {destination.total()} in the destination"]
    for where, rows in (("source", source - destination), ("destination", destination - source)):
        said += [f"  only in the {where}: {line}" for line in sorted(rows.elements())[:_SHOWN]]
    return "\n".join(said)


# -- A Postgres table compared with a Delta table, value by value. -----------------------------------------------------
#
# Both sides are converted to Python values: types that Delta has to their own, timestamps to points in time; everything
# else to the text that Postgres writes.

Row = tuple[Any, ...]

# The types for which psycopg and Arrow return equal Python values; all others are compared as text.
_SAME = ("bool", "int2", "int4", "int8", "numeric", "date", "timestamptz", "_text")
_DELTA_COLUMNS = """select attname::text, typname::text from pg_attribute a join pg_type t on t.oid = a.atttypid
              where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped order by attnum"""


def count_in_delta(place: Path) -> int | None:
    """Returns the number of rows of the Delta table in a folder; None if there is none."""
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    if not DeltaTable.is_deltatable(str(place)):
        return None
    # Not `DeltaTable.count`, which counts deleted rows as well.
    found = QueryBuilder().register("t", DeltaTable(place)).execute("select count(*) as rows from t")
    return int(pa.table(found).column("rows")[0].as_py())


def difference_in_delta(source: psycopg.Connection, table: TableName, place: Path) -> str | None:
    """Returns a text about the differences, or None."""
    columns: dict[str, str] = dict(source.execute(_DELTA_COLUMNS, [table.sql]).fetchall())
    here = _rows_here(source, table, columns)
    if count_in_delta(place) is None:
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
