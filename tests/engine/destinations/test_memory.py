"""The destination in memory keeps the contract, and undoes a batch that fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider_pgetl.engine.changes.batch import Change, Truncate
from airflow_provider_pgetl.engine.destinations.memory import MemoryDestination, MemoryStorage
from airflow_provider_pgetl.engine.model.positions import CommitLsn
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema
from airflow_provider_pgetl.testing import DestinationConformance
from airflow_provider_pgetl.testing.builders import Replica


class TestMemory(DestinationConformance):
    @pytest.fixture(autouse=True)
    def _place(self) -> None:
        self.storage = MemoryStorage()

    def open(self) -> MemoryDestination:
        return MemoryDestination(self.storage)

    def read(self, table: TableName) -> list[tuple[object, ...]]:
        return [(row["id"], row["name"], row["note"]) for row in self.open().rows(table)]


class _Failing:
    """A step that fails when it is read."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema

    def __len__(self) -> int:
        return 1

    def changes(self) -> Iterator[Change]:
        raise ZeroDivisionError
        yield


def test_a_failing_batch_changes_nothing() -> None:
    destination = MemoryDestination()
    replica = Replica(destination).create((b"1", b"a", None), (b"2", b"b", None))
    before = destination.rows(replica.schema.table)
    wire = replica.wire().update((b"3", b"a", None), old=(b"1", b"a", None)).delete((b"2", b"b", None))
    truncate = Truncate(replica.schema, CommitLsn(1), 1)
    again = replica.wire().insert((b"1", b"x", None)).take()
    with pytest.raises(ZeroDivisionError):
        replica.apply(wire.take(), truncate, again, _Failing(replica.schema))
    after = destination.rows(replica.schema.table)
    assert [row for row in after if row not in before] == []
    assert len(after) == len(before)
    assert destination.positions(replica.pipeline)[replica.schema.table].position == replica.position
