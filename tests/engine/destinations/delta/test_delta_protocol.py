"""What a table demands of those who read and write it is what its columns need, and no more, from its first version on.

Spark refuses a table that lists its features and leaves out one that its metadata uses, as a column that is not null
does with `invariants`; and every reader refuses one that demands a feature which it has not heard of.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.schema import Field, PrimitiveType, Schema

from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.model.tables import Column, PgType
from airflow_provider_pgetl.testing.builders import Replica
from tests.engine.destinations.delta.landing import LANDS
from tests.engine.destinations.delta.reading import place

TIMESTAMP, TIMESTAMPTZ = PgType(1114, "timestamp without time zone"), PgType(1184, "timestamp with time zone")
PLAIN = (1, 2, None, None)
ZONELESS = (3, 7, {"timestampNtz"}, {"timestampNtz", "appendOnly", "invariants"})
Protocol = tuple[int, int, set[str] | None, set[str] | None]


def with_column(replica: Replica, kind: PgType) -> Replica:
    added = Column("at", kind, kind.name)
    return replace(replica, schema=replace(replica.schema, columns=(*replica.schema.columns, added)))


def protocol_of(at: Path, version: int | None = None) -> Protocol:
    found = DeltaTable(at, version=version).protocol()
    features = (None if one is None else set(one) for one in (found.reader_features, found.writer_features))
    readers, writers = features
    return found.min_reader_version, found.min_writer_version, readers, writers


@pytest.mark.parametrize(
    ("kind", "protocol"), [(None, PLAIN), (TIMESTAMPTZ, PLAIN), (TIMESTAMP, ZONELESS)], ids=["none", "zone", "zoneless"]
)
@pytest.mark.parametrize("options", [{}, {"mode": "history"}, LANDS, {"vacuum_retention": 30 * 24 * 3600}])
def test_each_kind_of_table_demands_what_its_columns_need(
    tmp_path: Path, options: dict[str, Any], kind: PgType | None, protocol: Protocol
) -> None:
    destination = DeltaDestination(str(tmp_path), "shop", options)
    replica = Replica(destination, pipeline="shop")
    row: tuple[bytes | None, ...] = (b"1", b"Ann", b"x")
    if kind is not None:
        replica, row = (
            with_column(replica, kind),
            (*row, b"2024-01-01 00:00:00" + (b"+00" if kind is TIMESTAMPTZ else b"")),
        )
    replica.create(row)
    replica.apply(replica.wire().insert((b"2", *row[1:])).take())
    at = place(tmp_path, replica)
    for version in range(DeltaTable(at).version() + 1):
        assert protocol_of(at, version) == protocol
    assert DeltaTable(at, version=0).metadata().configuration["pgetl.source_table"] == str(replica.schema.table)
    remembered = DeltaTable(at, version=0).metadata().configuration.get("delta.deletedFileRetentionDuration")
    assert remembered == ("interval 720 hours" if "vacuum_retention" in options else None)
    for path in (tmp_path / "_pgetl").rglob("_delta_log"):
        assert protocol_of(path.parent) == PLAIN, "so do the tables beside it"


@pytest.mark.parametrize("options", [{}, {"mode": "history"}])
def test_a_table_that_gets_a_timestamp_later(tmp_path: Path, options: dict[str, Any]) -> None:
    """It keeps what its version has meant until then."""
    replica = Replica(DeltaDestination(str(tmp_path), "shop", options), pipeline="shop").create((b"1", b"Ann", None))
    later = replace(with_column(replica, TIMESTAMP), generation=2)
    later.copy(2, (b"1", b"Ann", None, b"2024-01-01 00:00:00"))
    assert protocol_of(place(tmp_path, replica)) == ZONELESS


def test_what_the_version_of_a_table_meant_stays_when_it_lists_features(tmp_path: Path) -> None:
    """Here of a table of others: with a constraint, which takes the third version of writers."""
    replica = Replica(DeltaDestination(str(tmp_path), "shop"), pipeline="shop", replaces=True)
    at = place(tmp_path, replica)
    DeltaTable.create(str(at), Schema([Field("a", PrimitiveType("long"))]))
    lines = [
        {"commitInfo": {"timestamp": 1, "operation": "UPGRADE PROTOCOL"}},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}},
    ]
    (at / "_delta_log" / f"{1:020}.json").write_text("\n".join(map(json.dumps, lines)))
    with_column(replica, TIMESTAMP).copy(1, (b"1", b"Ann", None, b"2024-01-01 00:00:00"))
    features = {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "timestampNtz"}
    assert protocol_of(at) == (3, 7, {"timestampNtz"}, features)


def test_a_table_whose_features_were_left_out_gets_them_by_a_copy(tmp_path: Path) -> None:
    replica = with_column(Replica(DeltaDestination(str(tmp_path), "shop"), pipeline="shop"), TIMESTAMP)
    at = place(tmp_path, replica)
    DeltaTable.create(str(at), Schema([Field("at", PrimitiveType("timestamp_ntz"))]))
    assert protocol_of(at) == (3, 7, {"timestampNtz"}, {"timestampNtz"})
    replica.copy(1, (b"1", b"Ann", None, b"2024-01-01 00:00:00"))
    assert protocol_of(at) == ZONELESS


@pytest.mark.parametrize("options", [{}, {"mode": "history"}])
def test_a_creation_that_was_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """What it has left can be opened, holds no row, and is made whole by whoever repeats it."""
    destination: Any = DeltaDestination(str(tmp_path), "shop", options)
    replica = with_column(Replica(destination, pipeline="shop"), TIMESTAMP)
    destination.begin_copy(replica.target, 1)
    replica.stage(1, 0, [(b"1", b"Ann", None, b"2024-01-01 00:00:00")])

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", killed)
        with pytest.raises(KeyboardInterrupt):
            destination.finish_copy(replica.target, 1, replica.position)
    at = place(tmp_path, replica)
    assert (DeltaTable(at).version(), protocol_of(at)) == (0, ZONELESS)
    assert DeltaTable(at).count() == 0
    again: Any = DeltaDestination(str(tmp_path), "shop", options)
    assert again.positions("shop") == {}
    assert again.lost("shop") == {}
    again.finish_copy(replica.target, 1, replica.position)
    assert again.positions("shop")[replica.schema.table].position == replica.position
    assert protocol_of(at) == ZONELESS
    assert "Ann" in DeltaTable(at).to_pyarrow_table().column("name").to_pylist()


def test_a_property_that_changes_later_demands_nothing_of_readers(tmp_path: Path) -> None:
    """Where delta-rs could not set it without, it stays as it was, and names the first pipeline no more for an
    owner."""
    first = with_column(Replica(DeltaDestination(str(tmp_path), "shop"), pipeline="shop"), TIMESTAMP)
    row = (b"1", b"Ann", None, b"2024-01-01 00:00:00")
    first.create(row)
    other: Any = DeltaDestination(str(tmp_path), "other", {"vacuum_retention": 1000 * 3600})
    replace(first, destination=other, pipeline="other", replaces=True).copy(1, row)
    assert protocol_of(place(tmp_path, first)) == ZONELESS
    third = DeltaDestination(str(tmp_path), "third")
    assert third.foreign_rows("third", [first.schema.table]) == {
        first.schema.table: "holds rows that another pipeline wrote"
    }
