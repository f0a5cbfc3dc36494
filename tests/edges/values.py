"""Types, and SQL expressions of their values.

An expression may use `n`, an integer column that every table has, and that INSERTs take from generate_series. So one
expression gives many values, and a plan can be printed as the SQL that it consists of.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Draw = Callable[[random.Random], str]

# Made before any table. There is no xml: the servers of the wheel are built without libxml.
MADE = """
create schema edges;
create type edges.mood as enum ('sad', 'so "so"', 'it''s, fine');
create domain edges.percentage as numeric(5, 2) check (value between 0 and 100);
create domain edges.code as text check (length(value) < 4000);
create domain edges.moods as edges.mood[];
create type edges.pair as (a integer, "b B" text);
create type edges.nested as (p edges.pair, at date, many integer[]);
create domain edges.positive_pair as edges.pair check ((value).a > 0);
create type edges.floats as range (subtype = float8);
"""


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def one_of(*expressions: str) -> Draw:
    return lambda dice: dice.choice(expressions)


def _texts(*values: str) -> Draw:
    return one_of(*(literal(value) for value in values), "'v' || n")


@dataclass(frozen=True, slots=True)
class Kind:
    """A type as a column has it. `since`: the first major version that has it."""

    sql: str
    draw: Draw
    since: int = 14


AWKWARD = ("", " ", "\\", "\\N", "\\.", "\t\n\r", "'", '"', "{},()", "null", "NULL", "\u2028", "🐘", "ü", "a" * 300)
_LARGE = (
    "repeat(md5(n::text), 100)",
    "repeat('x', 3000) || n",
    "(select string_agg(md5(n::text || i), '') from generate_series(1, 150) i)",
    "repeat(md5(n::text), 900)",
)

KINDS: tuple[Kind, ...] = (
    Kind("boolean", one_of("true", "false", "n % 2 = 0")),
    Kind("smallint", one_of("n % 30000", "-32768", "32767", "0")),
    Kind("integer", one_of("n", "-n", "2147483647", "0")),
    Kind("bigint", one_of("n * 3000000019", "-9223372036854775808", "0")),
    Kind("real", one_of("n / 7.0", "'NaN'", "'-Infinity'", "'-0'", "1e-30")),
    Kind("double precision", one_of("n / 7.0::float8", "'NaN'", "'Infinity'", "'-0'", "1e-300", "0.1 + 0.2::float8")),
    Kind("numeric", one_of("n / 7.0", "'NaN'", "'Infinity'", "'0.000'", "1.50", "n * 1e40", "1e-40", "0")),
    Kind("numeric(9,2)", one_of("n / 8.0", "'NaN'", "0", "-9999999.99")),
    Kind("numeric(4,-2)", one_of("n * 100", "0"), 15),
    Kind("text", _texts(*AWKWARD)),
    Kind("text", one_of(*_LARGE)),
    Kind("varchar(12)", _texts("", " x ", "NULL", "\\", "ünïcödé")),
    Kind("character(5)", _texts("", "a", "ab  ", "\\")),
    Kind('"char"', _texts("a", "", "\\")),
    Kind("name", _texts("a", "B c")),
    Kind("bytea", one_of("''::bytea", "'\\x00ff5c'::bytea", "decode(md5(n::text), 'hex')")),
    Kind("bytea", one_of("convert_to(repeat(md5(n::text), 120), 'UTF8')", "''::bytea")),
    Kind("date", one_of("'2024-02-29'::date + n % 1000", "'infinity'", "'-infinity'", "'0044-03-15 BC'")),
    Kind("time(0)", one_of("'24:00:00'", "'12:34:56.789'")),
    Kind("timetz", one_of("'24:00:00+05:30'", "'00:00:00.000001-12'")),
    Kind("timestamp(0)", one_of("timestamp '2024-01-01 00:00:00.6' + n * interval '1.3 s'", "'infinity'")),
    Kind("timestamp", one_of("timestamp '2024-01-01' + n * interval '1.000001 s'", "'0044-03-15 12:00 BC'")),
    Kind("timestamptz", one_of("timestamptz '2024-01-01 UTC' + n * interval '1.1 s'", "'-infinity'", "now()")),
    Kind("interval", one_of("n * interval '1 day 3.000001 s'", "'-1 mons +2 days -00:00:00.1'", "'0'", "'24:00:00'")),
    Kind("interval day to second(0)", one_of("n * interval '1.3 s'", "'1 day'")),
    Kind("uuid", one_of("md5(n::text)::uuid", "'00000000-0000-0000-0000-000000000000'")),
    Kind("json", one_of("'null'", '\'{"a" :  1, "a": 2}\'', "json_build_array(n, null)", "'\"\\u00e9\"'")),
    Kind("jsonb", one_of("'null'", "jsonb_build_object('n', n, 'k', null)", "'[1.10, 1e3]'", '\'"\\\\ \\""\'')),
    Kind("integer[]", one_of("array[n, null, 1]", "'{}'", "'{{1,2},{3,null}}'", "'[2:3]={7,8}'")),
    Kind("text[]", one_of("array['a', null, 'NULL', '', 'b \"' || n]", "'{}'", '\'{"{}", ","}\'')),
    Kind("numeric(9,2)[]", one_of("array[n / 8.0, null]", "'{NaN}'")),
    Kind("timestamptz[]", one_of("array[now(), 'infinity']", "'{}'")),
    Kind("bytea[]", one_of("array['\\x00ff'::bytea, null]", "'{}'")),
    Kind("int4range", one_of("int4range(n, n + 2)", "'empty'", "'(,5]'")),
    Kind("numrange", one_of("numrange(n / 2.0, null)", "'(,)'", "'[1.50,2.5)'")),
    Kind("tstzrange", one_of("tstzrange(now(), null)", "'empty'")),
    Kind("int8multirange", one_of("'{[1,3),[7,9)}'", "'{}'")),
    Kind("inet", one_of("inet '10.0.0.0/8' + n", "'::1'", "'192.168.1.2/24'")),
    Kind("cidr", one_of("'10.0.0.0/8'", "'2001:db8::/32'")),
    Kind("macaddr8", one_of("'08:00:2b:01:02:03:04:05'")),
    Kind("bit(4)", one_of("b'1010'", "(n % 16)::bit(4)")),
    Kind("varbit(8)", one_of("b'101'", "b''", "(n % 16)::bit(4)::varbit(8)")),
    Kind("money", one_of("(n / 8.0)::numeric::money", "'-0.01'")),
    Kind("point", one_of("point(n, 0.1)", "'(NaN,-0)'")),
    Kind("box", one_of("box(point(n, 0), point(1, 1))")),
    Kind("polygon", one_of("'((0,0),(1,0.5),(2,-0))'")),
    Kind("circle", one_of("circle(point(0, n), 3)")),
    Kind("tsvector", one_of("to_tsvector('simple', 'a b ' || n)", "'''it''''s'':1A'")),
    Kind("tsquery", one_of("'''a'' & !''b'':*'")),
    Kind("pg_lsn", one_of("'0/0'::pg_lsn + n", "'FFFFFFFF/FFFFFFFF'")),
    Kind("xid8", one_of("n::text::xid8")),
    Kind("oid", one_of("n", "4294967295")),
    Kind("jsonpath", one_of("'$.\"a\"[*]?(@ > 1)'")),
    Kind("pg_snapshot", one_of("'10:20:10,14'")),
    Kind("int2vector", one_of("'1 2 3'", "''")),
    Kind("oidvector", one_of("'1 2 4294967295'")),
    Kind("edges.mood", one_of("'sad'", "'so \"so\"'", "'it''s, fine'")),
    Kind("edges.mood[]", one_of("'{sad,NULL}'", "array['so \"so\"', 'it''s, fine']::edges.mood[]", "'{}'")),
    Kind("edges.moods", one_of("'{sad,NULL}'", "'{}'")),
    Kind("edges.percentage", one_of("n % 100", "0.5", "100")),
    Kind("edges.percentage[]", one_of("array[n % 100, null]", "'{0.5}'")),
    Kind("edges.code", _texts("", "\\N")),
    Kind("edges.code", one_of("repeat(md5(n::text), 100)", "'short'")),
    Kind("edges.pair", one_of("row(n, 'a \"b\" (,) \\')::edges.pair", "'(,)'", "'(1,\"\")'")),
    Kind("edges.pair[]", one_of("array[row(n, null)::edges.pair, null]", "'{}'")),
    Kind("edges.nested", one_of("row(row(n, 'x')::edges.pair, 'infinity', array[n, null])::edges.nested")),
    Kind("edges.positive_pair", one_of("row(1, 'p' || n)::edges.pair")),
    Kind("edges.floats", one_of("edges.floats(n, n + 0.5)", "'empty'")),
    Kind("edges.floats[]", one_of("array[edges.floats(n, null)]")),
    Kind("regclass", one_of("'pg_class'", "'pg_catalog.pg_type'")),
    Kind("regtype", one_of("'integer'", "'text[]'")),
)

# What a column's type may be altered to, so that values come that the type before could not hold, or spelled otherwise.
WIDER: Mapping[str, str] = {
    "smallint": "integer",
    "integer": "bigint",
    "real": "double precision",
    "numeric(9,2)": "numeric(14,5)",
    "numeric(9,2)[]": "numeric(14,5)[]",
    "varchar(12)": "varchar(40)",
    "character(5)": "character(9)",
    "varbit(8)": "varbit(20)",
    "time(0)": "time(6)",
    "timestamp(0)": "timestamp(6)",
    "interval day to second(0)": "interval",
    "date": "timestamp",
    "edges.percentage": "numeric",
    "edges.code": "text",
    "json": "jsonb",
}

# The same drawn for the wider types, so that what they alone can hold comes.
WIDE: Mapping[str, Draw] = {
    "numeric(14,5)": one_of("n / 7.0", "0.12345"),
    "numeric(14,5)[]": one_of("array[n / 7.0, 0.12345]"),
    "varchar(40)": one_of("repeat('y', 40)", "'v' || n"),
    "character(9)": one_of("'abcdefghi'"),
    "varbit(20)": one_of("b'10101010101010101010'"),
    "time(6)": one_of("'12:34:56.789012'"),
    "timestamp(6)": one_of("timestamp '2024-01-01 00:00:00.123456' + n * interval '1 s'"),
}


@dataclass(frozen=True, slots=True)
class KeyKind:
    """A type of keys: the key is a function of `n`, the same key for the same n. `filters`: row filters over `{k}`."""

    sql: str
    value: str
    filters: tuple[str, ...] = ()
    external: bool = False
    respelled: str | None = None


KEY_KINDS: tuple[KeyKind, ...] = (
    KeyKind("bigint", "({n}) * 7919::bigint", ("{k} % 3 <> 0", "{k} between 0 and 3000000")),
    KeyKind("integer", "({n})", ("{k} % 5 > 1",)),
    KeyKind("uuid", "md5(({n})::text)::uuid", ("{k} > '40000000-0000-0000-0000-000000000000'",)),
    KeyKind("text", "'key ' || ({n})", ("{k} > 'key 2'", "{k} like '%1%'")),
    KeyKind("text", "repeat(md5(({n})::text), 76)", ("{k} > '4'",), external=True),
    KeyKind("bytea", "convert_to(repeat(md5(({n})::text), 76), 'UTF8')", external=True),
    KeyKind("numeric", "({n}) / 4.0", ("{k} > 10",), respelled="trim_scale({k})"),
    KeyKind("date", "date '2024-01-01' + ({n})", ("{k} > '2024-03-01'",)),
    KeyKind("timestamptz", "timestamptz '2024-01-01 UTC' + ({n}) * interval '1.1 s'"),
    KeyKind("character(12)", "'k' || ({n})"),
    KeyKind("inet", "inet '10.0.0.0' + ({n})"),
    KeyKind("double precision", "({n}) / 8.0::float8", ("{k} > 3.5",)),
    KeyKind("int4range", "int4range({n}, ({n}) + 2)"),
    KeyKind("text[]", "array['k', ({n})::text]"),
    KeyKind("jsonb", "jsonb_build_object('k', {n})"),
    KeyKind("interval", "({n}) * interval '1 hour'", respelled="justify_hours({k})"),
    KeyKind("edges.code", "'c' || ({n})"),
    KeyKind("edges.pair", "row({n}, 'p')::edges.pair"),
)
# Of few values each: only beside another column of the key.
SECOND_KEY_KINDS: tuple[KeyKind, ...] = (
    KeyKind("text", "(array['eu', 'us', 'jp'])[1 + abs({n}) % 3]", ("{k} in ('eu', 'jp')", "{k} <> 'us'")),
    KeyKind("boolean", "({n}) % 2 = 0", ("{k}",)),
    KeyKind("edges.mood", "(array['sad', 'so \"so\"', 'it''s, fine'])[1 + abs({n}) % 3]::edges.mood"),
    KeyKind("integer", "({n}) % 7", ("{k} < 4",)),
)
