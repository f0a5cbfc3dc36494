"""Tables that are changed by deletion vectors, by ourselves and among others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.destinations.delta.log import with_vectors
from airflow_provider_pgetl.engine.destinations.delta.snapshot import loosened_stats
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.testing.replica import Line, Replica
from tests.engine.destinations.delta.test_foreign_state import commit, metadata
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
        with pytest.raises(PgetlError, match="append-only") as caught:
            replica.apply(wire.take())
        assert (caught.value.kind, caught.value.table) == (ErrorKind.SCHEMA, str(replica.schema.table))
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
