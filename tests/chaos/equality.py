"""Source and destination compared, value by value.

Each row is spelled as text under the same settings on both sides; counts and sums of hashes tell whether two tables are
the same as multisets, and only of those that differ are rows fetched, to show which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import psycopg

from airflow_provider_pgetl.engine.model.tables import TableName, quote_identifier
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from tests.chaos.shop import ShopTable

_SETTINGS = """
set timezone = 'UTC'; set datestyle = 'ISO'; set intervalstyle = 'postgres'; set extra_float_digits = 3;
set bytea_output = 'hex'
"""
_SHOWN = 8
_WIDTH = 300


def assert_equal(databases: Databases, tables: Iterable[ShopTable]) -> None:
    """Fails with the first rows that differ, of every table that does."""
    found = differences(databases, tables)
    assert not found, "source and destination differ\n" + "\n".join(found)


def differences(databases: Databases, tables: Iterable[ShopTable]) -> list[str]:
    """One text for each table that is not the same on both sides."""
    with databases.source.connect() as source, databases.destination.connect() as destination:
        source.execute(_SETTINGS)
        destination.execute(_SETTINGS)
        return [text for table in tables if (text := _difference(source, destination, table))]


def _difference(source: psycopg.Connection, destination: psycopg.Connection, table: ShopTable) -> str | None:
    columns = list(table.columns) or _columns(source, destination, table)
    left = _rows_as_text(table.table, columns, table.where)
    right = _rows_as_text(table.place, columns, None)
    try:
        if _checksum(source, left) == _checksum(destination, right):
            return None
    except psycopg.errors.UndefinedTable:
        return f"{table.place} is not in the destination"
    except psycopg.errors.UndefinedColumn as error:
        return f"{table.place}: {error}"
    return _explain(table, Counter(_fetch(source, left)), Counter(_fetch(destination, right)))


def _columns(source: psycopg.Connection, destination: psycopg.Connection, table: ShopTable) -> list[str]:
    """Those that the source sends, and what it generates where the destination has that too."""
    there = columns_of(destination, table.place)
    return [name for name, generated in columns_of(source, table.table).items() if not generated or name in there]


def columns_of(connection: psycopg.Connection, table: TableName) -> dict[str, bool]:
    """The columns in their order, with whether they are generated."""
    statement = """select attname::text, attgenerated <> '' from pg_attribute
                   where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped order by attnum"""
    return dict(connection.execute(statement, [table.sql]).fetchall())


def _rows_as_text(table: TableName, columns: list[str], where: str | None) -> str:
    row = ", ".join(quote_identifier(column) for column in columns)
    return f"select row({row})::text as line from {table.sql}" + (f" where {where}" if where else "")


def _checksum(connection: psycopg.Connection, rows: str) -> tuple[object, ...] | None:
    hashes = ", ".join(f"sum(hashtextextended(line, {seed})::numeric)" for seed in (0, 7))
    statement = f"select count(*), {hashes} from ({rows}) r"
    return connection.execute(statement.encode()).fetchone()


def _fetch(connection: psycopg.Connection, rows: str) -> list[str]:
    line = f"case when length(line) > {_WIDTH} then left(line, {_WIDTH}) || ' … ' || md5(line) else line end"
    statement = f"select {line} from ({rows}) r"
    return [line for (line,) in connection.execute(statement.encode())]


def _explain(table: ShopTable, source: Counter[str], destination: Counter[str]) -> str:
    missing, surplus = source - destination, destination - source
    lines = [f"{table.name}: {source.total()} rows at the source, {destination.total()} in the destination"]
    lines += _some("only at the source", missing)
    lines += _some("only in the destination", surplus)
    return "\n".join(lines)


def _some(where: str, rows: Counter[str]) -> list[str]:
    if not rows:
        return []
    shown = [f"    {count} × {line}" for line, count in sorted(rows.items())[:_SHOWN]]
    return [f"  {rows.total()} {where}", *shown]
