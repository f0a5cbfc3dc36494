"""What lies in a lake already where a table is to go, and was not written by pgetl."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.testing.builders import Replica
from airflow_provider_pgetl.testing.conformance import ANN, BOB
from tests.engine.destinations.delta.reading import rows_of
from tests.raising import raises

THEIRS = pa.table({"id": pa.array([7], pa.int64()), "what": ["theirs"]})


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    return Replica(DeltaDestination(str(tmp_path), "shop"), pipeline="shop")


@pytest.fixture
def place(tmp_path: Path, replica: Replica) -> Path:
    table = replica.schema.table
    return tmp_path / table.schema / table.name


def foreign_rows(replica: Replica) -> list[str]:
    destination: Any = replica.destination
    return list(destination.foreign_rows("shop", [replica.schema.table]).values())


def assert_refused(replica: Replica, place: Path, kind: ErrorKind = ErrorKind.OCCUPIED) -> None:
    destination: Any = replica.destination
    before = sorted(place.rglob("*"))
    with raises(kind):
        destination.begin_copy(replica.target, 1)
    destination.abort_copy(replica.target, 1)
    destination.forget("shop")
    assert sorted(place.rglob("*")) == before


def test_a_table_that_somebody_else_wrote(replica: Replica, place: Path) -> None:
    write_deltalake(place, THEIRS)
    assert foreign_rows(replica) == ["holds rows that pgetl did not write"]
    assert_refused(replica, place)
    replica.replaces = True
    replica.create(ANN)
    assert DeltaTable(place).to_pyarrow_table().to_pydict()["name"] == ["Ann"]
    assert foreign_rows(replica) == []
    assert DeltaTable(place, version=0).to_pyarrow_table() == THEIRS, "it can be had back"


def test_files_that_are_no_table_of_deltas(replica: Replica, place: Path) -> None:
    (place / "copy-of-mine").mkdir(parents=True)
    (place / "copy-of-mine" / "notes.csv").write_text("1,theirs")
    assert foreign_rows(replica) == ["lies where there are files that are no Delta table's"]
    assert_refused(replica, place)


def test_a_table_without_rows_takes_the_form_of_the_source(replica: Replica, place: Path) -> None:
    write_deltalake(place, THEIRS.slice(0, 0))
    assert foreign_rows(replica) == []
    replica.create(ANN, BOB)
    assert DeltaTable(place).to_pyarrow_table().num_rows == 2


def test_a_history_of_our_own_is_only_added_to(tmp_path: Path, replica: Replica) -> None:
    destination: Any = replica.destination
    history = DeltaDestination(str(tmp_path), "shop", {"mode": "history"})
    replace(replica, destination=history).create(ANN)
    assert foreign_rows(replica) == ['holds the entries of a history, which mode = "upsert" does not keep']
    with pytest.raises(PgetlError, match="the entries of a history"):
        destination.begin_copy(replace(replica.target, generation=2), 2)
    assert history.foreign_rows("shop", [replica.schema.table]) == {}


def test_a_history_whose_columns_have_other_types_now_is_not_added_to(tmp_path: Path, replica: Replica) -> None:
    """No reader could read the old entries beside the new ones."""
    destination: Any = DeltaDestination(str(tmp_path), "shop", {"mode": "history"})
    before = replace(replica, destination=destination).create(ANN)
    number, *others, last = before.schema.columns
    columns = (number, *others, replace(last, type=number.type, sql_type=number.sql_type))
    now = replace(before, schema=replace(before.schema, columns=columns), generation=2)
    with raises(ErrorKind.OCCUPIED, match=rf"a history, in which {last.name} had another type: .*"):
        destination.begin_copy(now.target, 2)
    now.replaces = True
    now.copy(2, (b"7", b"Ann", b"8"))
    place = tmp_path / now.schema.table.schema / now.schema.table.name
    assert [row[-3:] for row in rows_of(place)] == [(7, "Ann", 8)]


def test_a_partitioned_table_cannot_be_replaced(replica: Replica, place: Path) -> None:
    """Its partition columns stay for ever, and the source's table may not have them."""
    write_deltalake(place, THEIRS, partition_by=["what"])
    replica.replaces = True
    assert_refused(replica, place, ErrorKind.SCHEMA)


def test_what_a_dead_copy_of_ours_left_is_ours(replica: Replica, place: Path) -> None:
    destination: Any = replica.destination
    destination.begin_copy(replica.target, 1)
    replica.stage(1, 0, [ANN])
    assert list(place.rglob("*.parquet"))
    assert foreign_rows(replica) == []
    destination.begin_copy(replica.target, 2)
    assert not list(place.rglob("*.parquet"))
