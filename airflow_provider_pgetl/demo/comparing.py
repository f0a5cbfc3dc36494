"""Two Postgres databases compared, value by value.

Each row is spelled as text, under the same settings on both sides. Counts and sums of two hashes tell whether two
tables are the same as multisets; only of those that differ are rows fetched, to show which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import psycopg

from airflow_provider_pgetl.engine.tables import TableName, quote_identifier

_SETTINGS = b"""
set timezone = 'UTC'; set datestyle = 'ISO'; set intervalstyle = 'postgres'; set extra_float_digits = 3;
set bytea_output = 'hex'
"""
_COLUMNS = """select attname::text from pg_attribute
              where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped order by attnum"""
_SHOWN = 5


def differences(source: psycopg.Connection, destination: psycopg.Connection, tables: Iterable[TableName]) -> list[str]:
    """A text for each table that is not the same on both sides."""
    for session in (source, destination):
        session.execute(_SETTINGS)
    return [text for table in tables if (text := _difference(source, destination, table))]


def count(session: psycopg.Connection, table: TableName) -> int | None:
    """The rows of a table; None if there is no such table."""
    try:
        row = session.execute(f"select count(*) from {table.sql}".encode()).fetchone()
    except psycopg.errors.UndefinedTable:
        return None
    return None if row is None else int(row[0])


def _difference(source: psycopg.Connection, destination: psycopg.Connection, table: TableName) -> str | None:
    columns = [quote_identifier(name) for (name,) in source.execute(_COLUMNS, [table.sql])]
    lines = f"select row({', '.join(columns)})::text as line from {table.sql}"
    try:
        if _checksum(source, lines) == _checksum(destination, lines):
            return None
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
        return f"{table}: {error}"
    return explain(table, _fetch(source, lines), _fetch(destination, lines))


def _checksum(session: psycopg.Connection, lines: str) -> tuple[object, ...] | None:
    hashes = ", ".join(f"sum(hashtextextended(line, {seed})::numeric)" for seed in (0, 7))
    return session.execute(f"select count(*), {hashes} from ({lines}) l".encode()).fetchone()


def _fetch(session: psycopg.Connection, lines: str) -> Counter[str]:
    return Counter(line for (line,) in session.execute(lines.encode()))


def explain(table: TableName, source: Counter[str], destination: Counter[str]) -> str:
    """The first rows that only one side has."""
    said = [f"{table}: {source.total()} rows at the source, {destination.total()} in the destination"]
    for where, rows in (("source", source - destination), ("destination", destination - source)):
        said += [f"  only in the {where}: {line}" for line in sorted(rows)[:_SHOWN]]
    return "\n".join(said)
