"""The destinations of the demo, and how a source is compared with them. Another destination is another class here, and
a DAG file of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import psycopg

from airflow_provider_pgetl import declarations
from airflow_provider_pgetl.connections import DESTINATION
from airflow_provider_pgetl.declarations import DestinationDeclaration
from airflow_provider_pgetl.engine.model.tables import TableName, quote_identifier
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Server

# ----------------------------------------------------------------------------------------------------------------------
# Two Postgres databases compared, value by value.
#
# Each row is converted to text, under the same settings on both sides. Counts and sums of two hashes show whether two
# tables are the same as multisets; rows are fetched only from tables that differ, to show which.

_SETTINGS = b"""
set timezone = 'UTC'; set datestyle = 'ISO'; set intervalstyle = 'postgres'; set extra_float_digits = 3;
set bytea_output = 'hex'
"""
_COLUMNS = """select attname::text from pg_attribute
              where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped order by attnum"""
_SHOWN = 5


def differences(source: psycopg.Connection, destination: psycopg.Connection, tables: Iterable[TableName]) -> list[str]:
    """Returns a text for each table that is not the same on both sides."""
    for session in (source, destination):
        session.execute(_SETTINGS)
    return [text for table in tables if (text := _difference(source, destination, table))]


def count(session: psycopg.Connection, table: TableName) -> int | None:
    """Returns the number of rows of a table; None if there is no such table."""
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
    """Returns a text with the first rows that only one side has."""
    said = [f"{table}: {source.total()} rows at the source, {destination.total()} in the destination"]
    for where, rows in (("source", source - destination), ("destination", destination - source)):
        said += [f"  only in the {where}: {line}" for line in sorted(rows)[:_SHOWN]]
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


# -- An example query on the replica, revenue by day, in SQL that Postgres and DuckDB share. ---------------------------

QUESTION = """select date_trunc('day', paid at time zone 'UTC')::date as day,
       count(distinct customer_id) as customers, count(*) as payments, sum(amount) as revenue
from orders join payments on payments.order_id = orders.id
group by day order by day desc limit 7"""


@dataclass(frozen=True, slots=True)
class ShownAnswer:
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


def ask_postgres(session: psycopg.Connection) -> ShownAnswer:
    cursor = session.execute(QUESTION.encode())
    return ShownAnswer([column.name for column in cursor.description or ()], cursor.fetchall())


def ask_lake(tables: Mapping[str, Path]) -> ShownAnswer:
    """Runs the query in DuckDB, on Delta tables that it reads through Arrow."""
    import duckdb
    from deltalake import DeltaTable

    with duckdb.connect() as connection:
        for name, place in tables.items():
            connection.register(name, DeltaTable(place).to_pyarrow_dataset())
        cursor = connection.execute(QUESTION)
        return ShownAnswer([column[0] for column in cursor.description], cursor.fetchall())


# -- Destinations. -----------------------------------------------------------------------------------------------------

LAKE = "PGETL_DEMO_LAKE"


class DemoDestination(Protocol):
    """One of the demo's destinations, with its server running."""

    @property
    def dag_id(self) -> str:
        """The DAG that replicates into it; its file in `dags` has the same name."""

    @property
    def declaration(self) -> DestinationDeclaration:
        """The declaration in that DAG file."""

    @property
    def connections(self) -> Mapping[str, str]:
        """The Airflow connections that the DAG names, for this destination alone."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The values of the declaration's references."""

    @property
    def settings(self) -> Mapping[str, str]:
        """Environment variables that the DAG file reads."""

    @property
    def place(self) -> str:
        """The address or path that is shown to the user."""

    def count(self, table: TableName) -> int | None:
        """Returns the number of rows of a table; None while it does not exist."""

    def differences(self, source: Database, tables: tuple[TableName, ...]) -> list[str]:
        """Returns a text for each table that is not equal to the source's, value by value."""

    def ask(self) -> ShownAnswer:
        """Returns the replica's answer to the example query."""


class DemoPostgres:
    """A database of another server, of another major version."""

    dag_id = "shop_to_postgres"
    declaration = declarations.Postgres("replica_db")
    settings: Mapping[str, str] = MappingProxyType({})

    def __init__(self, server: Server, _folder: Path) -> None:
        self._database = server.create_database("replica")

    @property
    def connections(self) -> Mapping[str, str]:
        return {self.declaration.conn_id: self._database.uri}

    @property
    def environment(self) -> Mapping[str, str]:
        return {DESTINATION: self._database.uri}

    @property
    def place(self) -> str:
        return self._database.uri

    def count(self, table: TableName) -> int | None:
        with self._database.connect() as session:
            return count(session, table)

    def differences(self, source: Database, tables: tuple[TableName, ...]) -> list[str]:
        with source.connect() as here, self._database.connect() as there:
            return differences(here, there, tables)

    def ask(self) -> ShownAnswer:
        with self._database.connect() as session:
            return ask_postgres(session)


class DemoDeltaLake:
    """A folder of Delta tables."""

    dag_id = "shop_to_delta"
    connections: Mapping[str, str] = MappingProxyType({})
    environment: Mapping[str, str] = MappingProxyType({})

    def __init__(self, _server: Server, folder: Path) -> None:
        self._folder = folder

    @property
    def declaration(self) -> DestinationDeclaration:
        return declarations.DeltaLake(str(self._folder))

    @property
    def settings(self) -> Mapping[str, str]:
        return {LAKE: str(self._folder)}

    @property
    def place(self) -> str:
        return str(self._folder)

    def count(self, table: TableName) -> int | None:
        return count_in_delta(self._place(table))

    def differences(self, source: Database, tables: tuple[TableName, ...]) -> list[str]:
        with source.connect() as session:
            found = (difference_in_delta(session, table, self._place(table)) for table in tables)
            return [text for text in found if text]

    def ask(self) -> ShownAnswer:
        return ask_lake({name: self._place(TableName("public", name)) for name in ("orders", "payments")})

    def _place(self, table: TableName) -> Path:
        return self._folder / table.schema / table.name


OpenDestination = Callable[[Server, Path], DemoDestination]

# By the name that `--destination` accepts. Each is given a server on which to create a database, and a folder for
# files.
DESTINATIONS: Mapping[str, OpenDestination] = {
    "delta": DemoDeltaLake,
    "postgres": DemoPostgres,
}
