"""Columns that others have added to a table are theirs: whatever happens to a row, what it has in them it keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import ArrayType, MapType, PrimitiveType, StructType

from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination, maintenance
from airflow_provider_pgetl.engine.model.errors import ErrorKind
from airflow_provider_pgetl.testing.builders import Replica, sample_schema
from tests.engine.destinations.delta.landing import MergedAtOnce
from tests.engine.destinations.delta.reading import ANN, BOB, CAT, place, rows_of
from tests.raising import raises

ADDED = [
    Field("rank", PrimitiveType("integer")),
    Field("tags", ArrayType(PrimitiveType("string"), contains_null=True)),
    Field("notes", MapType(PrimitiveType("string"), PrimitiveType("double"), value_contains_null=True)),
    Field("place", StructType([Field("town", PrimitiveType("string"))])),
    Field("seen", PrimitiveType("timestamp")),
]
COUNT = len(ADDED)
Theirs = tuple[Any, ...]
NOTHING: Theirs = (None,) * COUNT
Open = Callable[[str, str], DeltaDestination]


def fill(at: Path) -> None:
    """As a person does that knows the rows by their key: all of them have something of their own."""
    DeltaTable(at).alter.add_columns(ADDED)
    DeltaTable(at).update(
        new_values=None,
        updates={
            "rank": "cast(id * 10 as int)",
            "tags": "make_array(name, 'x')",
            "notes": "map(make_array(name), make_array(cast(id as double)))",
            "place": "named_struct('town', name)",
            "seen": "to_timestamp('2024-01-01T00:00:00Z')",
        },
    )


def theirs(at: Path) -> dict[Any, Theirs]:
    """What the rows have in the added columns, by the first one's value, the key."""
    return {row[0]: row[-COUNT:] for row in rows_of(at)}


@pytest.mark.parametrize("open_", [DeltaDestination, MergedAtOnce], ids=["worker", "landing"])
def test_a_row_keeps_them_while_it_lives(tmp_path: Path, open_: Open) -> None:
    replica = Replica(open_(str(tmp_path), "shop"), pipeline="shop").create(ANN, BOB, (b"4", b"Dan", None))
    at = place(tmp_path, replica)
    fill(at)
    before = theirs(at)
    assert before[2][:2] == (20, ["Bob", "x"])
    steps = replica.wire().update((b"1", b"Ann, later", b"y")).insert(CAT).delete((b"4", None, None))
    replica.apply(steps.take())
    replica.apply(replica.wire().update((b"5", b"Bob", None), old=BOB).update((b"3", b"Cat, later", None)).take())
    after = theirs(at)
    assert after == {1: before[1], 5: before[2], 3: NOTHING}
    assert sorted(row[:2] for row in rows_of(at)) == [(1, "Ann, later"), (3, "Cat, later"), (5, "Bob")]


def test_what_may_not_be_null_within_a_struct_may_be_so_within_a_null(tmp_path: Path) -> None:
    replica = Replica(DeltaDestination(str(tmp_path), "shop"), pipeline="shop").create(ANN)
    at = place(tmp_path, replica)
    area = StructType([Field("code", PrimitiveType("string"), nullable=False)])
    listed = ArrayType(area, contains_null=True)
    kept = MapType(PrimitiveType("string"), area, value_contains_null=True)
    DeltaTable(at).alter.add_columns([Field("area", area), Field("listed", listed), Field("kept", kept)])
    replica.apply(replica.wire().update((b"1", b"Ann, later", b"y")).insert(CAT).take())
    assert [row[3:] for row in rows_of(at)] == [(None, None, None)] * 2


def test_rows_without_a_key_keep_them(tmp_path: Path) -> None:
    destination = DeltaDestination(str(tmp_path), "shop")
    replica = Replica(destination, sample_schema(key=(), identity="full"), pipeline="shop").create(ANN, BOB)
    at = place(tmp_path, replica)
    fill(at)
    before = theirs(at)
    replica.apply(replica.wire().delete(ANN).insert(CAT).take())
    assert theirs(at) == {2: before[2], 3: NOTHING}


@pytest.mark.parametrize("mode", ["upsert", "history"])
def test_rows_that_are_compacted_keep_them(tmp_path: Path, mode: str) -> None:
    destination = DeltaDestination(str(tmp_path), "shop", {"mode": mode})
    replica = Replica(destination, pipeline="shop").create(ANN)
    at = place(tmp_path, replica)
    fill(at)
    (before,) = [row[-COUNT:] for row in rows_of(at)]
    for number in range(maintenance.SMALL_FILES):
        replica.apply(replica.wire().insert((b"%d" % (10 + number), None, None)).take())
    assert len(DeltaTable(at).file_uris()) < maintenance.SMALL_FILES
    found = [row[-COUNT:] for row in rows_of(at)]
    assert sorted(found, key=repr) == sorted([before, *[NOTHING] * maintenance.SMALL_FILES], key=repr)


def test_entries_of_a_history_keep_a_column_that_the_source_has_lost(tmp_path: Path) -> None:
    """They are compacted with those that came later, and do not have it."""
    destination: Any = DeltaDestination(str(tmp_path), "shop", {"mode": "history"})
    replica = Replica(destination, pipeline="shop").create(ANN)
    fewer = replace(replica, schema=replace(replica.schema, columns=replica.schema.columns[:2]), generation=2)
    fewer.copy(2, ANN[:2])
    for number in range(maintenance.SMALL_FILES):
        fewer.apply(fewer.wire().insert((b"%d" % (10 + number), None)).take())
    table = DeltaTable(place(tmp_path, replica))
    assert len(table.file_uris()) < maintenance.SMALL_FILES
    assert "x" in table.to_pyarrow_table().column("note").to_pylist()


def change_schema(at: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """As `ALTER TABLE` of Spark writes it."""
    table = DeltaTable(at)
    fields = json.loads(table.schema().to_json())["fields"]
    change(fields)
    about = table.metadata()
    metadata = {
        "id": str(about.id),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": about.configuration,
    }
    lines = [{"commitInfo": {"timestamp": 1, "operation": "CHANGE COLUMN"}}, {"metaData": metadata}]
    (at / "_delta_log" / f"{table.version() + 1:020}.json").write_text("\n".join(map(json.dumps, lines)))


def lose(fields: list[dict[str, Any]]) -> None:
    fields.pop()


def retype(fields: list[dict[str, Any]]) -> None:
    fields[0]["type"] = "string"


@pytest.mark.parametrize(("change", "name"), [(lose, "note"), (retype, "id")])
@pytest.mark.parametrize("open_", [DeltaDestination, MergedAtOnce], ids=["worker", "landing"])
def test_a_column_of_the_source_that_is_not_there_as_it_was(
    tmp_path: Path, open_: Open, change: Callable[[list[dict[str, Any]]], None], name: str
) -> None:
    replica = Replica(open_(str(tmp_path), "shop"), pipeline="shop").create(ANN)
    change_schema(place(tmp_path, replica), change)
    with raises(
        ErrorKind.SCHEMA, replica.schema.table, match=f"{name} of .* in the destination is not there, or of another"
    ):
        replica.apply(replica.wire().update(ANN).take())


@pytest.mark.parametrize("which", ["note", "theirs"])
def test_a_null_where_others_allow_none(tmp_path: Path, which: str) -> None:
    """Rows that have a value there are written as before."""

    def forbid(fields: list[dict[str, Any]]) -> None:
        if which == "theirs":
            fields.append({"name": "theirs", "type": "string", "nullable": True, "metadata": {}})
        fields[-1]["nullable"] = False

    replica = Replica(DeltaDestination(str(tmp_path), "shop"), pipeline="shop").create(ANN)
    change_schema(place(tmp_path, replica), forbid)
    if which == "note":
        replica.apply(replica.wire().update((b"1", b"Ann", b"not null")).take())
    with raises(ErrorKind.CONSTRAINT, replica.schema.table, match=f"Column {which} is declared not null"):
        replica.apply(replica.wire().insert(BOB).take())


@pytest.mark.parametrize("content", [b"no Parquet at all", None])
def test_a_file_of_others_that_cannot_be_read_as_the_tables(tmp_path: Path, content: bytes | None) -> None:
    replica = Replica(DeltaDestination(str(tmp_path), "shop"), pipeline="shop").create(ANN)
    (path,) = place(tmp_path, replica).rglob("*.parquet")
    if content is None:
        pa.parquet.write_table(pa.table({"id": ["not a number"]}), path)
    else:
        path.write_bytes(content)
    with raises(ErrorKind.DAMAGED, replica.schema.table, match="cannot be read as the table's"):
        replica.apply(replica.wire().update(ANN).take())
