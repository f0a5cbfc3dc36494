"""A table of a lake is altered as its source was: once, whoever asks again, and only by who may write to it."""

from __future__ import annotations

import struct
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.destinations.protocol import SchemaChange
from airflow_provider_pgetl.engine.model.errors import Fenced
from airflow_provider_pgetl.engine.model.tables import Column, PgType, TableName, TableSchema
from airflow_provider_pgetl.testing.builders import Replica, sample_schema
from airflow_provider_pgetl.testing.conformance import ANN, BOB
from tests.engine.destinations.delta.landing import LANDS, merge
from tests.engine.destinations.delta.reading import rows_of

INT, TEXT = PgType(23, "integer"), PgType(25, "text")
LONG, NUMERIC = PgType(20, "bigint"), PgType(1700, "numeric")
MODES = {"rewritten": {}, "marked": {"updates": "merge_on_read"}}
CAT = (b"3", b"Cat", None, b"7")


def numbered(schema: TableSchema) -> TableSchema:
    columns = (replace(column, number=number) for number, column in enumerate(schema.columns, 1))
    return replace(schema, columns=tuple(columns))


def added(missing: str | None = None) -> Column:
    return Column("more", INT, "integer", number=9, missing=missing)


def replica(folder: Path, options: dict[str, Any] | None = None, schema: TableSchema | None = None) -> Replica:
    destination = DeltaDestination(str(folder), "shop", options)
    return Replica(destination, numbered(schema or sample_schema()), pipeline="shop")


def altered(replica: Replica, *columns: Column, key: tuple[str, ...] | None = None) -> SchemaChange:
    """The change to these columns; from now on the replica is of that version."""
    before = replica.schema
    replica.schema = replace(before, columns=columns, key=before.key if key is None else key)
    return SchemaChange(replica.target, (before, replica.schema))


def destination(replica: Replica) -> DeltaDestination:
    assert isinstance(replica.destination, DeltaDestination)
    return replica.destination


def table(folder: Path, replica: Replica) -> DeltaTable:
    return DeltaTable(folder / replica.schema.table.schema / replica.schema.table.name)


@pytest.mark.parametrize("options", MODES.values(), ids=MODES.keys())
def test_a_column_that_is_null_in_existing_rows_leaves_all_files(tmp_path: Path, options: dict[str, Any]) -> None:
    one = replica(tmp_path, options).create(ANN, BOB)
    files, version = table(tmp_path, one).file_uris(), table(tmp_path, one).version()
    change = altered(one, *one.schema.columns, added())
    assert destination(one).why_not(change) is None
    for _ in range(2):
        destination(one).change_schema(change, 1)
    now = table(tmp_path, one)
    assert (now.version(), now.file_uris()) == (version + 1, files)
    one.apply(one.wire().insert(CAT).update((b"1", b"Ann", b"x", b"5")).take())
    assert sorted(rows_of(table(tmp_path, one).table_uri)) == [
        (1, "Ann", "x", 5),
        (2, "Bob", None, None),
        (3, "Cat", None, 7),
    ]


@pytest.mark.parametrize("options", MODES.values(), ids=MODES.keys())
def test_a_value_of_existing_rows_and_another_name_are_in_the_files(tmp_path: Path, options: dict[str, Any]) -> None:
    one = replica(tmp_path, options).create(ANN, BOB)
    one.apply(one.wire().delete((b"2", None, None)).insert((b"4", b"Dan", None)).take())
    number, name, _ = one.schema.columns
    change = altered(one, replace(number, name="number"), replace(name, name="called"), added("5"), key=("number",))
    before = table(tmp_path, one).version()
    for _ in range(2):
        destination(one).change_schema(change, 1)
    now = table(tmp_path, one)
    assert now.version() == before + 1
    assert [field.name for field in now.schema().fields] == ["number", "called", "note", "more"]
    one.apply(one.wire().update((b"1", b"Anna", b"6")).take())
    found = {row[0]: row for row in rows_of(now.table_uri)}
    assert found == {1: (1, "Anna", ANN[2].decode() if ANN[2] else None, 6), 4: (4, "Dan", None, 5)}


NUMBERS = TableSchema(
    TableName("public", "numbers"),
    7,
    (
        Column("id", INT, "integer", not_null=True, number=1),
        Column("small", PgType(21, "smallint"), "smallint", number=2),
        Column("price", NUMERIC, "numeric(9,2)", modifier=589830, number=3),
        Column("rate", PgType(700, "real"), "real", number=4),
    ),
    ("id",),
)


@pytest.mark.parametrize("options", MODES.values(), ids=MODES.keys())
def test_wider_types_are_in_the_files(tmp_path: Path, options: dict[str, Any]) -> None:
    one = replica(tmp_path, options, NUMBERS).create((b"1", b"-7", b"1.50", b"0.1"), (b"2", None, b"-0.05", None))
    one.apply(one.wire().delete((b"2", None, None, None)).insert((b"3", b"5", b"0.00", b"Infinity")).take())
    number, small, price, rate = one.schema.columns
    wider = (
        replace(number, type=LONG, sql_type="bigint"),
        replace(small, type=INT, sql_type="integer", name="size"),
        replace(price, sql_type="numeric(12,3)", modifier=786439),
        replace(rate, type=PgType(701, "double precision"), sql_type="double precision"),
    )
    change, before = altered(one, *wider), table(tmp_path, one).version()
    assert destination(one).why_not(change) is None
    for _ in range(2):
        destination(one).change_schema(change, 1)
    now = table(tmp_path, one)
    assert now.version() == before + 1
    assert [str(field.type) for field in now.schema().fields] == [
        'PrimitiveType("long")', 'PrimitiveType("integer")', 'PrimitiveType("decimal(12,3)")', 'PrimitiveType("double")'
    ]  # fmt: skip
    one.apply(
        one.wire().insert((str(1 << 40).encode(), b"99999", b"1.234", b"0.2")).update((b"3", b"6", b"1", b"2")).take()
    )
    found = {row[0]: row[1:] for row in rows_of(now.table_uri)}
    real = struct.unpack("f", struct.pack("f", 0.1))[0]
    assert found == {
        1: (-7, Decimal("1.500"), real), 3: (6, Decimal("1.000"), 2.0), 1 << 40: (99999, Decimal("1.234"), 0.2)
    }  # fmt: skip
    text = altered(one, *wider[:2], replace(wider[2], sql_type="numeric", modifier=-1), wider[3])
    destination(one).change_schema(text, 1)
    assert {row[0]: row[2] for row in rows_of(now.table_uri)} == {1: "1.500", 3: "1.000", 1 << 40: "1.234"}


@pytest.mark.parametrize(
    ("index", "kind", "modifier"),
    [
        (0, PgType(21, "smallint"), -1),
        (1, TEXT, -1),
        (1, PgType(700, "real"), -1),
        (1, NUMERIC, 655364),  # numeric(10)
        (1, PgType(26, "oid"), -1),
        (2, NUMERIC, 786437),  # numeric(12,1)
        (2, NUMERIC, 589831),  # numeric(9,3)
        (3, LONG, -1),
    ],
)
def test_what_is_no_wider_type_is_refused(tmp_path: Path, index: int, kind: PgType, modifier: int) -> None:
    one = replica(tmp_path, schema=NUMBERS).create((b"1", b"-7", b"1.50", b"0.1"))
    columns = list(one.schema.columns)
    columns[index] = replace(columns[index], type=kind, sql_type=kind.name, modifier=modifier)
    why = destination(one).why_not(altered(one, *columns))
    assert why == f"{columns[index].name} would have another type in the lake"


def test_a_history_keeps_its_types_and_what_lands_waits(tmp_path: Path) -> None:
    for folder, options in (("history", {"mode": "history"}), ("landing", LANDS)):
        one = replica(tmp_path / folder, options, NUMBERS).create((b"1", b"-7", b"1.50", b"0.1"))
        change = altered(one, replace(NUMBERS.columns[0], type=LONG, sql_type="bigint"), *NUMBERS.columns[1:])
        assert destination(one).why_not(change) is not None


def test_columns_of_others_stay(tmp_path: Path) -> None:
    one = replica(tmp_path).create(ANN)
    table(tmp_path, one).alter.add_columns([Field("theirs", PrimitiveType("string"))])
    number, name, note = one.schema.columns
    destination(one).change_schema(altered(one, number, replace(name, name="called"), note, added("5")), 1)
    fields = [field.name for field in table(tmp_path, one).schema().fields]
    assert fields == ["id", "called", "note", "theirs", "more"]


def test_a_dropped_column_is_kept_and_may_be_null(tmp_path: Path) -> None:
    schema = sample_schema()
    strict = replace(schema, columns=tuple(replace(one, not_null=one.name != "note") for one in schema.columns))
    one = replica(tmp_path, schema=strict).create(ANN)
    number, _, note = one.schema.columns
    files = table(tmp_path, one).file_uris()
    destination(one).change_schema(altered(one, number, note), 1)
    assert table(tmp_path, one).file_uris() == files
    one.apply(one.wire().insert((b"3", b"new")).take())
    rows = table(tmp_path, one).to_pyarrow_table().to_pylist()
    assert {row["id"]: (row["name"], row["note"]) for row in rows} == {1: ("Ann", ANN[2].decode()), 3: (None, "new")}


@pytest.mark.parametrize("options", MODES.values(), ids=MODES.keys())
def test_a_dropped_column_is_dropped_where_that_is_declared(tmp_path: Path, options: dict[str, Any]) -> None:
    one = replica(tmp_path, options).create(ANN, BOB)
    one.apply(one.wire().delete((b"2", None, None)).insert((b"4", b"Dan", None)).take())
    table(tmp_path, one).alter.add_columns([Field("theirs", PrimitiveType("string"))])
    number, name, note = one.schema.columns
    change = replace(altered(one, number, note), dropped=("name",))
    assert destination(one).why_not(change) is None
    before = table(tmp_path, one).version()
    for _ in range(2):
        destination(one).change_schema(change, 1)
    now = table(tmp_path, one)
    assert now.version() == before + 1
    assert [field.name for field in now.schema().fields] == ["id", "note", "theirs"]
    one.apply(one.wire().insert((b"5", b"new")).take())
    again = replace(name, number=9, missing="again")
    first, second = change.versions
    one.schema = replace(second, columns=(number, note, again))
    third = SchemaChange(one.target, (first, second, one.schema))
    assert destination(one).why_not(third) is None
    destination(one).change_schema(third, 1)
    assert {row[0]: (row[1], row[3]) for row in rows_of(table(tmp_path, one).table_uri)} == {
        1: (ANN[2].decode() if ANN[2] else None, "again"), 4: (None, "again"), 5: ("new", "again")
    }  # fmt: skip


def test_the_name_of_a_column_that_is_kept_is_taken(tmp_path: Path) -> None:
    one = replica(tmp_path).create(ANN)
    number, name, note = one.schema.columns
    first, second = altered(one, number, note).versions
    destination(one).change_schema(SchemaChange(one.target, (first, second)), 1)
    one.schema = replace(second, columns=(number, note, replace(name, number=9)))
    why = destination(one).why_not(SchemaChange(one.target, (first, second, one.schema)))
    assert why == "name was dropped and added again"


def test_a_history_keeps_its_entries(tmp_path: Path) -> None:
    one = replica(tmp_path, {"mode": "history"}).create(ANN)
    number, name, note = one.schema.columns
    change = altered(one, number, replace(name, name="called"), note, added("5"))
    assert destination(one).why_not(change) is None
    files = table(tmp_path, one).file_uris()
    destination(one).change_schema(change, 1)
    assert table(tmp_path, one).file_uris() == files
    one.apply(one.wire().insert(CAT).take())
    names = [field.name for field in table(tmp_path, one).schema().fields]
    assert names[-5:] == ["id", "name", "note", "called", "more"]
    entries = table(tmp_path, one).to_pyarrow_table().select(names[-5:]).to_pylist()
    assert sorted((entry["id"], entry["name"], entry["called"], entry["more"]) for entry in entries) == [
        (1, "Ann", None, None),
        (3, None, "Cat", 7),
    ]


def test_what_has_landed_before_is_merged_as_it_was(tmp_path: Path) -> None:
    one = replica(tmp_path, LANDS).create(ANN)
    one.apply(one.wire().insert((b"2", b"Bob", None)).take())
    before = one.schema
    change = altered(one, *before.columns, added())
    filled = replace(one.target, schema=replace(before, columns=(*before.columns, added("5"))))
    refused = SchemaChange(filled, (before, filled.schema))
    assert "changes land beside the table" in (destination(one).why_not(refused) or "")
    assert destination(one).why_not(change) is None
    destination(one).change_schema(change, 1)
    one.apply(one.wire().insert(CAT).update((b"2", b"Bob", None, b"8")).take())
    merge(one.destination, one)
    found = {row[0]: row[3] for row in rows_of(table(tmp_path, one).table_uri)}
    assert found == {1: None, 2: 8, 3: 7}


def test_nobody_else_alters_it(tmp_path: Path) -> None:
    one = replica(tmp_path).create(ANN)
    change = altered(one, *one.schema.columns, added())
    version = table(tmp_path, one).version()
    with pytest.raises(Fenced):
        destination(one).change_schema(change, 2)
    with pytest.raises(Fenced):
        destination(one).change_schema(replace(change, target=replace(change.target, generation=2)), 1)
    destination(one).claim("shop", 2)
    with pytest.raises(Fenced):
        destination(one).change_schema(change, 1)
    assert table(tmp_path, one).version() == version + 1
    destination(one).change_schema(change, 2)


def test_names_that_delta_does_not_tell_apart(tmp_path: Path) -> None:
    one = replica(tmp_path).create(ANN)
    change = altered(one, *one.schema.columns, replace(added(), name="NAME"))
    assert "Delta tells no names apart by their case" in (destination(one).why_not(change) or "")
