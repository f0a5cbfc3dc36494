"""The same value comes out of COPY and out of pgoutput, for every type, as the same Arrow value."""

import math
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from psycopg import sql

from airflow_provider_pgetl.engine.changes.batch import wire_rows
from airflow_provider_pgetl.engine.changes.values import decode
from airflow_provider_pgetl.engine.copy.rows import arrow_schema, record_batches
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.source.catalog import PublishedTable, read_tables
from airflow_provider_pgetl.engine.source.connecting import Connection, connect
from airflow_provider_pgetl.engine.source.range_reading import copy_blocks, plan_ranges, range_query
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases

TABLE = TableName("public", "every type")
SLOT = "both_paths"

text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
moments = st.datetimes().map(lambda moment: moment.isoformat(" "))
TYPES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int2": st.integers(-(2**15), 2**15 - 1),
    "int4": st.integers(-(2**31), 2**31 - 1),
    "int8": st.integers(-(2**63), 2**63 - 1),
    "oid": st.integers(0, 2**32 - 1),
    "float4": st.floats(width=32),
    "float8": st.floats(),
    "numeric(12,3)": st.decimals("-999999999", "999999999", places=3, allow_nan=False),
    "numeric": st.decimals(allow_nan=False).map(str) | st.sampled_from(["NaN", "-Infinity", "1.500"]),
    "text": text,
    "varchar(30)": text,
    "char(20)": text,
    '"char"': st.sampled_from("aZ ~"),
    "bytea": st.binary(max_size=50),
    "date": st.dates() | st.sampled_from(["0044-03-15 BC", "5874897-12-31"]),
    "timestamp": moments | st.sampled_from(["4713-01-01 00:00 BC", "20000-01-01 00:00"]),
    "timestamptz": moments.map("{}+03".format) | st.just("10000-01-01 00:00+00"),
    "time": st.times().map(str) | st.just("24:00"),
    "interval": st.timedeltas().map(lambda delta: f"{delta.days} days {delta.seconds} s"),
    "uuid": st.uuids().map(str),
    "json": st.sampled_from(["null", '{"a": 1}', '"ü"', "[]"]),
    "jsonb": st.sampled_from(["null", '{"b": 1, "a": [1.0]}', '"ü"']),
    "inet": st.ip_addresses().map(str),
    "int4[]": st.sampled_from(["{}", "{1,NULL,-3}", "{{1,2},{3,4}}", "[2:3]={7,8}"]),
    "text[]": st.lists(text.map(lambda part: part[:5]) | st.none(), max_size=4),
    "int4range": st.sampled_from(["empty", "[1,5)", "(,)"]),
    "bit varying": st.text("01", max_size=12),
    "money": st.decimals("-1000", "1000", places=2).map(str),
    "point": st.sampled_from(["(1,2)", "(-0.5,1e300)"]),
    "mood": st.sampled_from(["sad", "happy, or 'so'"]),
    "amount": st.integers(0, 100),
    "pair": st.sampled_from(["(1,)", '(,"a b")', "(,)"]),
}
rows_of_every_type = st.lists(st.tuples(*(st.none() | values for values in TYPES.values())), min_size=1, max_size=8)


@pytest.fixture
def every_type(databases: Databases) -> Iterator[tuple[Database, Connection, PublishedTable]]:
    source = databases.source
    source.execute("create type mood as enum ('sad', 'happy, or ''so''')")
    source.execute("create domain amount as int check (value >= 0)")
    source.execute("create type pair as (a int, b text)")
    columns = ", ".join(f"c{index} {name}" for index, name in enumerate(TYPES))
    source.execute(f"create table {TABLE.sql} (id int generated always as identity primary key, {columns})")
    source.execute("create publication p for all tables")
    source.execute(f"select pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
    with closing(connect(source.uri, "test")) as connection:
        (published,) = read_tables(connection, ["p"], [TABLE])
        yield source, connection, published


@pytest.mark.servers
@settings(
    max_examples=30, phases=[Phase.generate], deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=rows_of_every_type)
def test_copy_and_changes_agree(
    every_type: tuple[Database, Connection, PublishedTable], rows: Sequence[tuple[Any, ...]]
) -> None:
    source, connection, published = every_type
    source.execute(f"truncate {TABLE.sql}")
    insert(source, rows)

    copied, changed = by_copy(connection, published), by_changes(connection, published)

    assert copied.num_rows == len(rows)
    for name in copied.schema.names:
        assert same(copied.column(name), changed.column(name)), name


def insert(source: Database, rows: Sequence[tuple[Any, ...]]) -> None:
    parameters = ", ".join(f"%s::{name}" for name in TYPES)
    columns = ", ".join(f"c{index}" for index in range(len(TYPES)))
    statement = sql.SQL(f"insert into {TABLE.sql} ({columns}) values ({parameters})")  # type: ignore[arg-type]
    with source.connect(autocommit=False) as connection, connection.cursor() as cursor:
        cursor.execute("set local timezone = 'UTC'")
        cursor.executemany(statement, rows)


def by_copy(connection: Connection, published: PublishedTable) -> pa.Table:
    (one,) = plan_ranges(published.leaves, 1 << 30)
    blocks = copy_blocks(connection, range_query(published.schema, one, "csv"))
    return pa.Table.from_batches(record_batches(published.schema, blocks))


def by_changes(connection: Connection, published: PublishedTable) -> pa.Table:
    query = (
        "select data from pg_logical_slot_get_binary_changes(%s, null, null,"
        " 'proto_version', '1', 'publication_names', 'p')"
    )
    messages = [bytes(data) for (data,) in connection.execute(query, [SLOT])]
    inserts = [bytes(25) + message for message in messages if message[:1] == b"I"]
    tuples = wire_rows(published.schema, inserts, [(0, 1, 0)], list(range(len(inserts)))).new
    columns = published.schema.columns
    arrays = [decode(column, tuples.column_array(index)) for index, column in enumerate(columns)]
    return pa.Table.from_arrays(arrays, schema=arrow_schema(published.schema))


def same(left: pa.ChunkedArray, right: pa.ChunkedArray) -> bool:
    """Equal to the bit: NaN equals itself, and -0.0 is not 0.0."""
    if not pa.types.is_floating(left.type):
        return bool(left.equals(right))
    return [bits(value) for value in left.to_pylist()] == [bits(value) for value in right.to_pylist()]


def bits(value: float | None) -> bytes | None:
    return None if value is None else struct.pack("d", math.nan if math.isnan(value) else value)


KNOWN: list[tuple[str, str, object]] = [
    ("bool", "true", True),
    ("numeric(12,3)", "1.5", Decimal("1.500")),
    ("char(20)", "ab", "ab" + " " * 18),
    ("inet", "10.0.0.1", "10.0.0.1"),
    ("date", "2024-02-29", date(2024, 2, 29)),
    ("timestamptz", "2024-02-29 12:00+03", datetime(2024, 2, 29, 9, tzinfo=UTC)),
    ("bytea", r"\x00ff", b"\x00\xff"),
    ("float8", "-0", -0.0),
    ("json", "null", "null"),
    ("pair", "(,)", "(,)"),
]


@pytest.mark.servers
@pytest.mark.parametrize(("type_name", "literal", "value"), KNOWN, ids=[name for name, _, _ in KNOWN])
def test_and_it_is_the_value_that_was_written(
    every_type: tuple[Database, Connection, PublishedTable], type_name: str, literal: str, value: object
) -> None:
    source, connection, published = every_type
    name = f"c{list(TYPES).index(type_name)}"
    source.execute(f"insert into {TABLE.sql} ({name}) values (%s::{type_name})", [literal])

    for table in (by_copy(connection, published), by_changes(connection, published)):
        assert table.column(name).to_pylist() == [value]


@pytest.mark.servers
@pytest.mark.parametrize("literal", ["4714-11-24 BC", "0001-12-31 BC", "9999-12-31", "10000-01-01", "5874897-12-31"])
def test_days_are_reckoned_as_the_server_does(
    every_type: tuple[Database, Connection, PublishedTable], literal: str
) -> None:
    source, connection, published = every_type
    name = f"c{list(TYPES).index('date')}"
    source.execute(f"insert into {TABLE.sql} ({name}) values (%s::date)", [literal])
    ((days,),) = source.execute(f"select {name} - date '1970-01-01' from {TABLE.sql}")

    assert by_copy(connection, published).column(name).combine_chunks().view(pa.int32()).to_pylist() == [days]
