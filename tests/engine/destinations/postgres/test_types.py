"""A value of any type arrives as it was: from text and from binary, by a single statement and in bulk."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest

import pytest

from airflow_provider_pgetl.engine.destinations.postgres import PostgresDestination, apply
from airflow_provider_pgetl.engine.model.tables import Column, PgType, TableName, TableSchema
from airflow_provider_pgetl.testing.builders import INT8, Replica, Wire
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases

VALUES: dict[str, list[str]] = {
    "boolean": ["true", "false"],
    "smallint": ["-32768"],
    "integer": ["2147483647"],
    "bigint": ["-9223372036854775808"],
    "real": ["NaN", "Infinity", "-0", "1e-30", "3.4028235e38"],
    "double precision": ["NaN", "-Infinity", "-0", "0.1", "1.7976931348623157e308"],
    "numeric": ["NaN", "Infinity", "-Infinity", "1.500", "0.00000000000000000001", "123456789012345678901234567890"],
    "numeric(10,2)": ["1.50", "-99999999.99"],
    "money": ["12.34", "-0.01"],
    "text": ["", "NULL", r"\N", "tab\tnewline\n\r\\ 'quoted' \"double\"", "ünïcødé 🐘", "{a,b}"],
    "character varying(5)": ["abc", ""],
    "character(5)": ["ab", ""],
    '"char"': ["x", ""],
    "name": ["a name"],
    "bytea": [r"\x", r"\x00ff5c27"],
    "date": ["infinity", "-infinity", "0044-03-15 BC", "5874897-12-31"],
    "time without time zone": ["24:00:00", "00:00:00.000001"],
    "time with time zone": ["24:00:00+15:59", "12:00:00.5-08"],
    "timestamp without time zone": ["infinity", "4713-01-01 00:00:00 BC", "2000-01-01 00:00:00.123456"],
    "timestamp with time zone": ["-infinity", "294276-12-31 23:59:59.999999+00", "2024-02-29 12:00:00+05:30"],
    "interval": ["1 year -2 days 03:04:05.000006", "-1 mons"],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "json": ["null", '{"b": 1,   "a": [1, 2]}'],
    "jsonb": ["null", '{"a": [1, null, "x"]}'],
    "integer[]": ["{}", "{1,NULL,3}", "{{1,2},{3,4}}", "[0:1]={5,6}"],
    "text[]": ['{"a b","NULL",NULL,"\\"q\\"",""}'],
    "inet": ["192.168.0.1/24", "::1"],
    "cidr": ["10.0.0.0/8"],
    "macaddr": ["08:00:2b:01:02:03"],
    "bit(3)": ["101"],
    "bit varying": ["10101", ""],
    "point": ["(1,2.5)"],
    "polygon": ["((0,0),(1,1),(2,0))"],
    "tsvector": ["'a':1A 'fat':2,4"],
    "tsquery": ["'fat' & 'rat'"],
    "int4range": ["empty", "[1,10)", "(,)"],
    "tstzmultirange": ['{["2024-01-01 00:00:00+00","2024-02-01 00:00:00+00")}'],
    "oid": ["4294967295"],
    "pg_lsn": ["16/B374D848"],
    "public.mood": ["happy", "it's"],
    "public.positive": ["5"],
    "public.pair": ['(1,"a,b")', "(,)"],
    "public.mood[]": ["{happy,NULL}"],
}
# What embeds the OIDs of its server's own types has no binary form that another server understands.
TEXT_ONLY = frozenset({"public.pair", "public.mood[]"})
MADE = (
    "create type public.mood as enum ('happy', 'it''s')",
    "create domain public.positive as numeric(9,3) check (value > 0)",
    "create type public.pair as (a int, b text)",
)


def column_of(database: Database, sql_type: str) -> Column:
    oid, name = database.execute(
        "select t.oid::int8, format_type(t.oid, -1) from pg_type t where t.oid = %s::regtype", (sql_type,)
    )[0]
    kind = "domain" if sql_type == "public.positive" else "base"
    inner = PgType(1700, "numeric") if kind == "domain" else None
    return Column("v", PgType(oid, name if oid < 16384 else sql_type, kind, inner), sql_type)


def wire_form(database: Database, sql_type: str, value: str, kind: bytes) -> bytes:
    """The value as a source would send it."""
    literal = "'" + value.replace("'", "''") + "'"
    with database.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        connection.execute("set search_path = pg_catalog")
        if kind == b"t":
            sent = connection.execute(f"select ({literal}::{sql_type})::text".encode()).fetchone()
            assert sent is not None
            padded = sent[0].ljust(5) if sql_type == "character(5)" else sent[0]
            return str(padded).encode()
        with connection.cursor().copy(
            f"copy (select {literal}::{sql_type}) to stdout (format binary)".encode()
        ) as copy:
            data = b"".join(bytes(block) for block in copy)
    length = struct.unpack("!i", data[21:25])[0]
    return data[25 : 25 + length]


@pytest.fixture
def database(databases: Databases) -> Database:
    for statement in MADE:
        databases.destination.execute(statement)
    return databases.destination


@pytest.fixture
def destination(database: Database) -> Iterator[PostgresDestination]:
    opened = PostgresDestination(database.uri, "shop", "apply")
    yield opened
    opened.shutdown()


@pytest.mark.parametrize("at_most", [1000, -1], ids=["single", "bulk"])
@pytest.mark.parametrize("kind", [b"t", b"b"], ids=["text", "binary"])
def test_every_type(
    database: Database, destination: PostgresDestination, kind: bytes, at_most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One table with a column for each type; its rows hold the values, and NULL where a type has no more of them."""
    monkeypatch.setattr(apply, "AT_MOST", at_most)
    types = [sql_type for sql_type in VALUES if kind == b"t" or sql_type not in TEXT_ONLY]
    columns = [replace(column_of(database, sql_type), name=f"v{at}") for at, sql_type in enumerate(types)]
    schema = TableSchema(TableName("public", "t"), 7, (Column("id", INT8, "bigint"), *columns), ("id",))
    replica = Replica(destination, schema, pipeline="shop").create()
    rows = [
        (struct.pack("!q", number) if kind == b"b" else b"%d" % number, *values)
        for number, values in enumerate(zip_longest(*(all_sent(database, name, kind) for name in types)))
    ]
    wire = Wire(schema, kind)
    for row in rows:
        wire.insert(row)
    replica.apply(wire.take())
    assert_equal(database, schema, types)
    for row in rows:
        wire.update((row[0], *(None for _ in types)))
    replica.apply(wire.take())
    for row in rows:
        wire.update(row)
    replica.apply(wire.take())
    assert_equal(database, schema, types)


def all_sent(database: Database, sql_type: str, kind: bytes) -> list[bytes]:
    return [wire_form(database, sql_type, value, kind) for value in VALUES[sql_type]]


def assert_equal(database: Database, schema: TableSchema, types: list[str]) -> None:
    """To the byte of the text form."""
    for at, sql_type in enumerate(types):
        literals = ", ".join("'" + value.replace("'", "''") + "'" for value in VALUES[sql_type])
        wanted = database.execute(f"select (v::{sql_type})::text from unnest(array[{literals}]) v")
        found = database.execute(
            f"select v{at}::text from {schema.table.sql} where v{at}::text is not null order by id"
        )
        assert found == wanted, sql_type
