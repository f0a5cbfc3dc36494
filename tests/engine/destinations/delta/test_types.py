"""Every Postgres type arrives as the Delta type that the documentation says, with the same value by both paths."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import fields, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from airflow_provider_pgetl.engine.changes.batch import EventBatch, Move, Target, wire_rows
from airflow_provider_pgetl.engine.config.pipeline_file import read_pipeline_file
from airflow_provider_pgetl.engine.copy.rows import text_batches
from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.destinations.delta.options import DeltaOptions
from airflow_provider_pgetl.engine.destinations.delta.types import HeldColumn
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import Column, PgType, TableName, TableSchema
from airflow_provider_pgetl.engine.source.catalog import PublishedTable, read_tables
from airflow_provider_pgetl.engine.source.connecting import Connection, connect
from airflow_provider_pgetl.engine.source.range_reading import copy_blocks, plan_ranges, range_query
from airflow_provider_pgetl.testing.builders import Replica, sample_schema
from airflow_provider_pgetl.testing.conformance import ANN
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases
from tests.comparing import hashable
from tests.engine.destinations.delta.reading import by_duckdb
from tests.raising import raises

TABLE = TableName("public", "types")
NOON = datetime(2024, 2, 29, 12, 0, 0, 123456)  # noqa: DTZ001  a timestamp without a zone
# type at the source, a literal of it, the Delta type, the value there
TYPES: list[tuple[str, str, str, Any]] = [
    ("boolean", "true", "boolean", True),
    ("smallint", "-32768", "short", -32768),
    ("integer", "7", "integer", 7),
    ("bigint", "-9223372036854775808", "long", -(2**63)),
    ("oid", "4294967295", "long", 2**32 - 1),
    ("real", "0.1", "float", 0.10000000149011612),
    ("double precision", "NaN", "double", float("nan")),
    ("double precision", "-0", "double", -0.0),
    ("double precision", "-Infinity", "double", float("-inf")),
    ("numeric(12,3)", "1.5", "decimal(12,3)", Decimal("1.500")),
    ("numeric(38,0)", "9" * 38, "decimal(38,0)", Decimal("9" * 38)),
    ("numeric(5,-2)", "12345", "decimal(7,0)", Decimal(12300)),
    ("numeric", "1.500", "string", "1.500"),
    ("numeric(50,2)", "1", "string", "1.00"),
    ("text", "tab\t \\N 'ü' \"", "string", "tab\t \\N 'ü' \""),
    ("text", "", "string", ""),
    ("varchar(5)", "ab", "string", "ab"),
    ("char(4)", "ab", "string", "ab  "),
    ("bytea", "\\x00ff", "binary", b"\x00\xff"),
    ("date", "2024-02-29", "date", date(2024, 2, 29)),
    ("timestamp", NOON.isoformat(), "timestamp_ntz", NOON),
    ("timestamptz", f"{NOON.isoformat()}+03", "timestamp", NOON.replace(hour=9, tzinfo=UTC)),
    ("time", "24:00", "string", "24:00:00"),
    ("interval", "1 day 3 s", "string", "1 day 00:00:03"),
    ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "string", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("json", "null", "string", "null"),
    ("jsonb", '{"b":1, "a":[1.0]}', "string", '{"a": [1.0], "b": 1}'),
    ("inet", "10.0.0.1", "string", "10.0.0.1"),
    ("int4range", "[1,5)", "string", "[1,5)"),
    ("bit varying", "101", "string", "101"),
    ("money", "12.5", "string", "$12.50"),
    ("point", "(1,2)", "string", "(1,2)"),
    ("tsvector", "b a", "string", "'a' 'b'"),
    ("mood", "so, so", "string", "so, so"),
    ("amount", "7", "integer", 7),
    ("price", "1.5", "decimal(20,4)", Decimal("1.5000")),
    ("list_price", "1.5", "decimal(20,4)", Decimal("1.5000")),
    ("price[]", "{1.5,NULL}", "array<decimal(20,4)>", [Decimal("1.5000"), None]),
    ("prices", "{1.5,NULL}", "array<decimal(20,4)>", [Decimal("1.5000"), None]),
    ("pair", "(,)", "string", "(,)"),
    ("int4[]", "{1,NULL,-3}", "array<integer>", [1, None, -3]),
    ("text[]", '{"a b","NULL",NULL,"q\\"\\\\",""}', "array<string>", ["a b", "NULL", None, 'q"\\', ""]),
    ("mood[]", '{sad,"so, so"}', "array<string>", ["sad", "so, so"]),
    ("numeric(6,2)[]", "{1.5,NULL}", "array<decimal(6,2)>", [Decimal("1.50"), None]),
    ("timestamptz[]", '{"2024-02-29 12:00+03"}', "array<timestamp>", [datetime(2024, 2, 29, 9, tzinfo=UTC)]),
    ("bytea[]", '{"\\\\x00ff"}', "array<binary>", [b"\x00\xff"]),
    ("box[]", "{(1,1),(0,0)}", "string", "{(1,1),(0,0)}"),
]


@pytest.fixture
def source(databases: Databases) -> Database:
    databases.source.execute("create type mood as enum ('sad', 'so, so')")
    databases.source.execute("create domain amount as int check (value >= 0)")
    databases.source.execute("create domain price as numeric(20,4); create domain list_price as price")
    databases.source.execute("create domain prices as numeric(20,4)[]")
    databases.source.execute("create type pair as (a int, b text)")
    return databases.source


def create(source: Database, types: list[str]) -> PublishedTable:
    columns = ", ".join(f"c{at} {name}" for at, name in enumerate(types))
    source.execute(f"create table {TABLE.sql} (id int primary key, {columns})")
    source.execute(f"comment on column {TABLE.sql}.id is 'the key'; comment on table {TABLE.sql} is 'all \"types\"'")
    source.execute("create publication p for all tables")
    source.execute("select pg_create_logical_replication_slot('types', 'pgoutput')")
    with closing(connect(source.uri, "test")) as connection:
        (published,) = read_tables(connection, ["p"], [TABLE])
    return published


def insert(source: Database, number: int, literals: list[str | None], types: list[str]) -> None:
    places = ", ".join(f"%s::text::{name}" for name in types)
    source.execute(f"insert into {TABLE.sql} values ({number}, {places})", literals)


def copy(connection: Connection, published: PublishedTable, destination: DeltaDestination) -> Target:
    target = Target("shop", published.schema, 1)
    destination.begin_copy(target, 1)
    for one in plan_ranges(published.leaves, 1 << 30):
        batches = text_batches(published.schema, copy_blocks(connection, range_query(published.schema, one, "csv")))
        destination.write_range_rows(target, 1, one.number, Boundary(10), batches)
    destination.finish_copy(target, 1, Boundary(10))
    destination.claim("shop", 1)
    return target


def follow(connection: Connection, target: Target, destination: DeltaDestination) -> None:
    """The inserts that the slot has."""
    query = (
        "select data from pg_logical_slot_get_binary_changes('types', null, null,"
        " 'proto_version', '1', 'publication_names', 'p')"
    )
    messages = [bytes(data) for (data,) in connection.execute(query)]
    inserts = [bytes(25) + message for message in messages if message[:1] == b"I"]
    rows = wire_rows(target.schema, inserts, [(0, 1, 0)], list(range(len(inserts))))
    move = Move(target, Boundary(10), Boundary(20))
    destination.write_events(EventBatch("shop", 1, {target.schema.table: move}, [rows]))


def read(folder: Path) -> tuple[DeltaTable, list[dict[str, Any]]]:
    table = DeltaTable(str(folder / "public" / "types"))
    rows = pa.table(table.scan()).to_pylist()
    assert sorted(map(repr, map(hashable, by_duckdb(table)))) == sorted(
        repr(hashable(tuple(row.values()))) for row in rows
    )
    return table, sorted(rows, key=lambda row: row["id"])


def spelled(field: Any) -> str:
    kind = field.type
    return kind.type if kind.type != "array" else f"array<{kind.element_type.type}>"


@pytest.mark.parametrize("source_server", [18], indirect=True)
def test_every_type_by_both_paths(source: Database, tmp_path: Path) -> None:
    types = [name for name, *_ in TYPES]
    literals: list[str | None] = [literal for _, literal, *_ in TYPES]
    published = create(source, types)
    insert(source, 1, literals, types)
    insert(source, 2, [None] * len(types), types)
    destination = DeltaDestination(str(tmp_path), "shop")
    with closing(connect(source.uri, "test")) as connection:
        connection.execute("select pg_logical_slot_get_binary_changes('types', null, null, 'proto_version', '1', "
                           "'publication_names', 'p')")  # fmt: skip
        target = copy(connection, published, destination)
        insert(source, 3, literals, types)
        insert(source, 4, [None] * len(types), types)
        follow(connection, target, destination)
    table, (copied, null, changed, null_again) = read(tmp_path)
    fields = {field.name: field for field in table.schema().fields}
    for at, (name, _, wanted, value) in enumerate(TYPES):
        column = f"c{at}"
        assert spelled(fields[column]).replace(" ", "") == wanted, name
        assert hashable(copied[column]) == hashable(value), name
        assert type(copied[column]) is type(value), name
        assert str(copied[column]) == str(value) or isinstance(value, list | datetime), "-0.0 is not 0.0"
        assert repr(copied[column]) == repr(changed[column]), name
        assert null[column] is None, name
        assert null_again[column] is None, name


@pytest.mark.parametrize("source_server", [18], indirect=True)
def test_comments_nullability_and_properties_go_along(source: Database, tmp_path: Path) -> None:
    published = create(source, ["text"])
    with closing(connect(source.uri, "test")) as connection:
        copy(connection, published, DeltaDestination(str(tmp_path), "shop"))
    table, rows = read(tmp_path)
    identity, other = table.schema().fields
    assert rows == []
    assert (identity.nullable, other.nullable) == (False, True)
    assert identity.metadata == {"comment": "the key"}
    assert table.metadata().description == 'all "types"'
    properties = table.metadata().configuration
    assert properties["pgetl.pipeline"] == "shop"
    assert properties["pgetl.source_table"] == "public.types"


UNHELD = [
    ("date", "infinity"),
    ("timestamptz", "-infinity"),
    ("timestamp", "infinity"),
    ("numeric(5,2)", "NaN"),
    ("int4[]", "{{1,2},{3,4}}"),
    ("int4[]", "[2:3]={7,8}"),
]


@pytest.mark.parametrize("source_server", [18], indirect=True)
@pytest.mark.parametrize("policy", ["error", "null", "text"])
def test_what_a_type_cannot_hold_follows_the_policy(source: Database, tmp_path: Path, policy: str) -> None:
    published = create(source, [name for name, _ in UNHELD])
    types = [name for name, _ in UNHELD]
    insert(source, 1, [literal for _, literal in UNHELD], types)
    insert(source, 2, ["2024-01-01", "2024-01-01", "2024-01-01", "1", "{1}", "{1}"], types)
    destination = DeltaDestination(str(tmp_path), "shop", {"out_of_range": policy})
    with closing(connect(source.uri, "test")) as connection:
        if policy == "error":
            with raises(ErrorKind.VALUE, "public.types", match="cannot represent"):
                copy(connection, published, destination)
            return
        copy(connection, published, destination)
    _, (odd, plain) = read(tmp_path)
    if policy == "null":
        assert list(odd.values()) == [1, *[None] * len(UNHELD)]
        assert plain["c3"] == Decimal("1.00")
    else:
        assert list(odd.values()) == [1, *(literal for _, literal in UNHELD)]
        assert plain["c3"] == "1.00"


@pytest.mark.parametrize(("is_key", "remedy"), [(True, 'to "text" in'), (False, 'to "null" or "text" in')])
def test_what_is_refused_is_told_with_the_policies_that_would_take_it(is_key: bool, remedy: str) -> None:
    moment = Column("c", PgType(1184, "timestamptz"), "timestamptz")
    with pytest.raises(PgetlError, match="holds infinity") as caught:
        HeldColumn(moment, is_key, DeltaOptions()).decode(pa.array([b"2024-01-01 00:00:00+00", b"infinity"]))
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("source_server", [18], indirect=True)
def test_a_numeric_without_precision_may_be_a_decimal(source: Database, tmp_path: Path) -> None:
    published = create(source, ["numeric"])
    insert(source, 1, ["1.5"], ["numeric"])
    destination = DeltaDestination(str(tmp_path), "shop", {"numeric": "decimal(20,3)"})
    with closing(connect(source.uri, "test")) as connection:
        copy(connection, published, destination)
        _, (row,) = read(tmp_path)
        assert row["c0"] == Decimal("1.500")
        insert(source, 2, ["1.23456"], ["numeric"])
        insert(source, 3, ["7"], ["numeric"])
        with pytest.raises(PgetlError, match=r"c0 .* holds 1\.23456, which decimal128\(20, 3\) cannot represent"):
            copy(connection, published, replace_attempt(destination))


@pytest.mark.parametrize("source_server", [18], indirect=True)
def test_with_text_no_numeric_is_a_decimal(source: Database, tmp_path: Path) -> None:
    """Whatever one without precision is to be otherwise."""
    published = create(source, ["numeric", "numeric[]"])
    insert(source, 1, ["NaN", "{1.23456789012}"], ["numeric", "numeric[]"])
    insert(source, 2, ["1.23456789012", "{NaN}"], ["numeric", "numeric[]"])
    options = {"numeric": "decimal(38,10)", "out_of_range": "text"}
    with closing(connect(source.uri, "test")) as connection:
        copy(connection, published, DeltaDestination(str(tmp_path), "shop", options))
    _, rows = read(tmp_path)
    assert [tuple(row.values()) for row in rows] == [(1, "NaN", "{1.23456789012}"), (2, "1.23456789012", "{NaN}")]


def replace_attempt(destination: DeltaDestination) -> Any:
    """The next attempt."""

    class Next:
        def __getattr__(self, name: str) -> Any:
            call = getattr(destination, name)
            if name == "claim":
                return call
            return lambda target, attempt, *rest: call(replace(target, generation=2), attempt + 1, *rest)

    return Next()


def test_the_documentation_has_every_type() -> None:
    """The rows of its table are those of the code."""
    from airflow_provider_pgetl.engine.destinations.delta import types

    documentation = (Path(__file__).parents[4] / "docs" / "reference" / "delta.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .* \|$", types.__doc__ or "", re.MULTILINE)
    assert len(rows) == 12
    for row in rows:
        assert row in documentation


def test_the_documentation_has_every_option_and_its_example_is_read(tmp_path: Path) -> None:
    docs = Path(__file__).parents[4] / "docs"
    documentation = (docs / "reference" / "delta.md").read_text(encoding="utf-8")
    example = (docs / "how-to" / "lake-on-s3.md").read_text(encoding="utf-8")
    section = documentation.partition("## Options")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` ", section, re.MULTILINE)) == {one.name for one in fields(DeltaOptions)}
    (tmp_path / "shop.toml").write_text(re.findall(r"```toml\n(.*?)```", example, re.DOTALL)[0])
    assert read_pipeline_file(tmp_path / "shop.toml").spec.destination.type == "delta"


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ('mode = "upser"', 'mode: it must be "upsert" or "history", perhaps "upsert"'),
        ('out_of_range = "zero"', "out_of_range: it must be"),
        ('numeric = "decimal(50,2)"', "numeric:"),
        ('target_file_bytes = "1KiB"', "target_file_bytes: it must be at least 1MiB"),
        ('target_file_bytes = "9999999999TiB"', "target_file_bytes: it must be at most 1024TiB"),
        ('vacuum_retention = "1s"', "vacuum_retention:"),
        ('vacuum_retention = "999999999999h"', "vacuum_retention: it must be at most 876000h"),
        ('modus = "x"', "modus: there is no such key"),
        ('storage = { AWS_SECRET_ACCESS_KEY = "abc" }', "it looks like a secret"),
        ('storage_from = "abc"', "storage_from: it is no reference"),
    ],
)
def test_options_are_checked_with_their_line(tmp_path: Path, option: str, complaint: str) -> None:
    text = 'id = "shop"\ntables = ["public.*"]\n[source]\nuri = "env:A"\n[destination]\ntype = "delta"\nuri = "/lake"\n'
    (tmp_path / "shop.toml").write_text(f"{text}{option}\n")
    with pytest.raises(PgetlError) as caught:
        read_pipeline_file(tmp_path / "shop.toml")
    assert "shop.toml:8: destination." in caught.value.message
    assert complaint.partition(", perhaps")[0] in caught.value.message


# -- names of columns that Delta cannot tell apart are told before a copy, and are their table's trouble alone ---------


def with_names(*names: str) -> TableSchema:
    """The key is the first of them."""
    schema = sample_schema()
    columns = tuple(replace(column, name=name) for column, name in zip(schema.columns, names, strict=True))
    return replace(schema, columns=columns, key=names[:1])


CLASHES = [
    ("upsert", ("id", "Note", "note"), "a column note beside Note:"),
    ("upsert", ("É", "x", "é"), "a column é beside É:"),
    ("history", ("id", "x", "_PGETL_kind"), "beside _pgetl_kind, which its history needs for itself:"),
]


@pytest.mark.parametrize(("mode", "names", "words"), CLASHES)
def test_names_that_differ_in_case_alone(tmp_path: Path, mode: str, names: tuple[str, ...], words: str) -> None:
    destination = DeltaDestination(str(tmp_path), "shop", {"mode": mode})
    schema = with_names(*names)
    (finding,) = destination.inspect_table(schema)
    assert words in finding.problem
    assert "columns = [...]" in finding.remedy
    assert (finding.severity, finding.kind) == ("error", ErrorKind.SCHEMA)
    with pytest.raises(PgetlError) as refused:
        destination.begin_copy(Replica(destination, schema).target, 1)
    assert (refused.value.message, refused.value.table) == (finding.problem, str(schema.table))
    assert not refused.value.transient
    assert not list(tmp_path.iterdir())


def test_names_that_differ_otherwise(tmp_path: Path) -> None:
    destination = DeltaDestination(str(tmp_path), "shop")
    schema = with_names("id", "_pgetl_kind", "ID of it")
    assert destination.inspect_table(schema) == []
    Replica(destination, schema, pipeline="shop").create(ANN)
