"""Tables that are changed by deletion vectors, by ourselves and among others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_pgetl.engine.changes.batch import Truncate
from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination, apply
from airflow_provider_pgetl.engine.destinations.delta.log.actions import with_vectors
from airflow_provider_pgetl.engine.destinations.delta.log.snapshot import loosened_stats
from airflow_provider_pgetl.engine.destinations.delta.log.storage import TableFolder
from airflow_provider_pgetl.engine.destinations.delta.log.table_log import TableLog
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import CommitLsn
from airflow_provider_pgetl.testing.builders import Line, Replica, sample_schema
from tests.engine.destinations.delta.test_foreign_state import commit, metadata
from tests.raising import raises
from tests.third_party.readers import knowing_vectors

MARKING = {"updates": "merge_on_read", "housekeeping": False}
REWRITING = {"updates": "rewrite", "housekeeping": False}


def line(number: int, note: bytes | None = None) -> Line:
    return b"%d" % number, b"n%d" % number, note


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    return Replica(DeltaDestination(str(tmp_path), "shop", MARKING), pipeline="shop").create(*map(line, range(10)))


@pytest.fixture
def path(tmp_path: Path, replica: Replica) -> Path:
    return tmp_path / replica.schema.table.schema / replica.schema.table.name


def ids(path: Path) -> list[int]:
    found = [sorted(row[0] for row in reader.rows(path)) for reader in knowing_vectors()]
    assert all(one == found[0] for one in found)
    return found[0]


@pytest.mark.parametrize("options", [MARKING, REWRITING], ids=["merge_on_read", "rewrite"])
def test_no_row_leaves_a_table_that_is_only_to_be_added_to(
    tmp_path: Path, replica: Replica, path: Path, options: dict[str, Any]
) -> None:
    """Neither one that is marked, nor a file that has marks."""
    replica.apply(replica.wire().delete(line(4)).take())
    commit(path, metadata(path, {"delta.appendOnly": "true"}))
    replica.destination = DeltaDestination(str(tmp_path), "shop", options)
    before = DeltaTable(path).version()
    for wire in (replica.wire().delete(line(5)), replica.wire().update(line(6, b"x"))):
        with raises(ErrorKind.SCHEMA, replica.schema.table, match="append-only"):
            replica.apply(wire.take())
    assert DeltaTable(path).version() == before
    replica.apply(replica.wire().insert(line(20)).take())
    assert ids(path) == [0, 1, 2, 3, 5, 6, 7, 8, 9, 20]


def test_vectors_are_allowed_again_where_somebody_has_forbidden_them(replica: Replica, path: Path) -> None:
    """By the property that says whether writers make any; the feature of the protocol stays."""
    replica.apply(replica.wire().delete(line(4)).take())
    commit(path, metadata(path, {"delta.enableDeletionVectors": "false"}))
    replica.apply(replica.wire().delete(line(5)).take())
    assert DeltaTable(path).metadata().configuration["delta.enableDeletionVectors"] == "true"
    assert ids(path) == [0, 1, 2, 3, 6, 7, 8, 9]


def test_rewriting_does_not_allow_vectors(tmp_path: Path, replica: Replica, path: Path) -> None:
    replica.apply(replica.wire().delete(line(4)).take())
    commit(path, metadata(path, {"delta.enableDeletionVectors": "false"}))
    replica.destination = DeltaDestination(str(tmp_path), "shop", REWRITING)
    replica.apply(replica.wire().delete(line(5)).take())
    assert DeltaTable(path).metadata().configuration["delta.enableDeletionVectors"] == "false"
    assert ids(path) == [0, 1, 2, 3, 6, 7, 8, 9]


class Killed(BaseException):
    """As nobody catches it."""


MOMENTS = ["before the vectors", "after the vectors", "before the commit", "after the commit", "at the checkpoint"]


@pytest.mark.parametrize("lost", [False, True], ids=["killed", "answer lost"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_who_dies_has_committed_all_or_nothing(
    tmp_path: Path, replica: Replica, path: Path, moment: str, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is the process that ends, or the store that does not answer, the batch counts once."""
    failure: BaseException = PgetlError(ErrorKind.CONNECTION, "no answer") if lost else Killed()
    write, create = TableFolder.write, TableFolder.create

    def writes(place: TableFolder, name: str, data: bytes) -> None:
        if moment == "before the vectors":
            raise failure
        write(place, name, data)
        if moment == "after the vectors":
            raise failure

    def creates(place: TableFolder, name: str, data: bytes) -> None:
        if moment == "before the commit":
            raise failure
        create(place, name, data)
        if moment == "after the commit":
            raise failure

    def checkpoints(*_: object) -> None:
        if moment == "at the checkpoint":
            raise failure

    batch = replica.batch(replica.wire().delete(line(3)).update(line(4, b"new")).insert(line(20)).take())
    with monkeypatch.context() as patch:
        patch.setattr(TableFolder, "write", writes)
        patch.setattr(TableFolder, "create", creates)
        patch.setattr(TableLog, "_checkpoint", checkpoints)
        with pytest.raises(type(failure)):
            replica.destination.write_events(batch)
    has_landed = moment in ("after the commit", "at the checkpoint")
    again: Any = replica.destination if lost else DeltaDestination(str(tmp_path), "shop", MARKING)
    assert (
        again.positions("shop")[replica.schema.table].position == batch.moves[replica.schema.table].to
    ) == has_landed
    again.write_events(batch)
    assert ids(path) == [0, 1, 2, 4, 5, 6, 7, 8, 9, 20]
    again.write_events(batch)
    assert ids(path) == [0, 1, 2, 4, 5, 6, 7, 8, 9, 20]


def test_two_workers_with_lists_of_their_own_take_turns(tmp_path: Path, replica: Replica, path: Path) -> None:
    """Each has a list of files that is older than what the other has committed."""
    workers: list[Any] = [DeltaDestination(str(tmp_path), "shop", options) for options in (MARKING, REWRITING)]
    for number in range(8):
        replica.destination = workers[number % 2]
        replica.apply(replica.wire().delete(line(number)).insert(line(number + 100)).take())
    assert ids(path) == [8, 9, *range(100, 108)]


def test_rows_are_truncated_swapped_and_written_again_within_a_batch(
    replica: Replica, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in several pieces, each of which finds the rows of those before."""
    monkeypatch.setattr(apply, "GATHERED_BYTES", 1)
    monkeypatch.setattr(apply, "NET_BYTES", 1)
    swap = replica.wire().update(line(50), line(1)).update(line(1), line(2)).update(line(2), line(50))
    again = replica.wire().update(line(1, b"x")).delete(line(2)).insert(line(2, b"y")).update(line(2, b"z"))
    replica.apply(swap.take(), again.take())
    assert ids(path) == list(range(10))
    later = replica.wire().insert(line(7)).update(line(7, b"after")).take()
    replica.apply(replica.wire().delete(line(5)).take(), Truncate(replica.schema, CommitLsn(1), 1), later)
    assert [reader.rows(path) for reader in knowing_vectors()] == [[(7, "n7", "after")]] * 4


def test_a_file_that_a_batch_has_made_and_marked_is_added_once(
    replica: Replica, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "GATHERED_BYTES", 1)
    monkeypatch.setattr(apply, "NET_BYTES", 1)
    made = replica.wire().insert(line(20)).insert(line(21)).insert(line(22)).take()
    replica.apply(made, replica.wire().update(line(21, b"x")).take(), replica.wire().delete(line(22)).take())
    assert ids(path) == [*range(10), 20, 21]
    last = path / "_delta_log" / f"{DeltaTable(path).version():020}.json"
    added = [json.loads(one)["add"]["path"] for one in last.read_text().splitlines() if '{"add"' in one]
    assert len(added) == len(set(added)) == 2


def test_equal_rows_without_a_key_go_as_often_as_they_are_deleted(tmp_path: Path) -> None:
    replica = Replica(
        DeltaDestination(str(tmp_path), "shop", MARKING), sample_schema(key=(), identity="full"), pipeline="shop"
    ).create(line(1), line(1), line(1), line(2), line(3))
    path = tmp_path / replica.schema.table.schema / replica.schema.table.name
    replica.apply(replica.wire().delete(line(1)).take(), replica.wire().delete(line(1)).insert(line(3)).take())
    assert ids(path) == [1, 2, 3, 3]
    replica.apply(replica.wire().delete(line(3)).delete(line(3)).delete(line(3)).take())
    assert ids(path) == [1, 2]


def protocol(reader: int, writer: int, **features: list[str]) -> dict[str, Any]:
    return {"minReaderVersion": reader, "minWriterVersion": writer, **features}


@pytest.mark.parametrize(
    ("before", "readers", "writers"),
    [
        (protocol(1, 1), [], []),
        (protocol(1, 2), [], ["appendOnly", "invariants"]),
        (protocol(1, 3), [], ["appendOnly", "invariants", "checkConstraints"]),
        (
            protocol(2, 5),
            ["columnMapping"],
            ["appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "columnMapping"],
        ),
        (protocol(1, 7, writerFeatures=["invariants"]), [], ["invariants"]),
        (protocol(2, 7, writerFeatures=["columnMapping"]), ["columnMapping"], ["columnMapping"]),
        (
            protocol(3, 7, readerFeatures=["timestampNtz"], writerFeatures=["timestampNtz", "appendOnly"]),
            ["timestampNtz"],
            ["timestampNtz", "appendOnly"],
        ),
    ],
    ids=str,
)
def test_a_table_that_gets_vectors_keeps_what_its_protocol_has_meant(
    before: dict[str, Any], readers: list[str], writers: list[str]
) -> None:
    said, about = with_vectors(before, {"id": "x", "configuration": {"a": "b"}})
    own = ["deletionVectors"]
    assert said == {"protocol": protocol(3, 7, readerFeatures=[*readers, *own], writerFeatures=[*writers, *own])}
    assert about["metaData"] == {"id": "x", "configuration": {"a": "b", "delta.enableDeletionVectors": "true"}}
    assert with_vectors(said["protocol"], about["metaData"]) == []


@pytest.mark.parametrize(
    ("stats", "expected"),
    [
        (None, '{"numRecords": 5, "tightBounds": false}'),
        ('{"numRecords":7,"tightBounds":true}', '{"numRecords": 7, "tightBounds": false}'),
        ('{"numRecords":7,"tightBounds":false}', '{"numRecords": 7, "tightBounds": false}'),
        (
            '{"numRecords":7,"maxValues":{"a":0.10000000000000000000000000001,"tightBounds":true}}',
            (
                '{"numRecords": 7, "maxValues": {"a": 0.10000000000000000000000000001, "tightBounds": true}, '
                '"tightBounds": false}'
            ),
        ),
    ],
)
def test_bounds_are_loosened_and_nothing_else(stats: str | None, expected: str) -> None:
    assert loosened_stats(stats, 5) == expected
    assert json.loads(expected)["tightBounds"] is False
