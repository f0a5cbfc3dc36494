"""Copies into a destination with the plain contract alone: typed batches, dropped first, at least once."""

from concurrent.futures import ThreadPoolExecutor
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_provider_pgetl.engine.config.spec import DestinationSpec
from airflow_provider_pgetl.engine.copy.runners import LocalRunner
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.phases import RolledBack
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema
from tests.engine.copy import folder_destination
from tests.engine.copy.copies import Copies, public
from tests.engine.copy.folder_destination import FolderDestination

BIG, EMPTY = public("big"), public("empty")


class BreaksOff(FolderDestination):
    """Loses its connection after the first batch of rows that it has stored."""

    def write_table_rows(self, schema: TableSchema, rows: pa.RecordBatch) -> None:
        super().write_table_rows(schema, rows)
        if len(rows):
            raise PgetlError(ErrorKind.CONNECTION, "The folder is away.", table=str(schema.table))


@pytest.fixture
def folder(tmp_path: Path) -> FolderDestination:
    return FolderDestination(str(tmp_path))


@pytest.fixture
def plain(copies: Copies, tmp_path: Path) -> Copies:
    copies.destination = DestinationSpec(folder_destination.PATH, options={"folder": str(tmp_path)})
    copies.source.execute("create table big (id int primary key, n numeric(8,2), d date)")
    copies.source.execute("insert into big select g, g / 4.0, date '2000-01-01' + g from generate_series(1, 5000) g")
    copies.source.execute("create table empty (id int primary key)")
    copies.publish()
    return copies


def test_rows_come_typed_and_once(plain: Copies, folder: FolderDestination) -> None:
    result = plain.copy(BIG, EMPTY)

    assert set(result.published) == {BIG, EMPTY}
    rows = folder.rows(BIG).sort_by("id")
    assert rows.column("id").to_pylist() == list(range(1, 5001))
    assert rows.slice(0, 1).to_pylist() == [{"id": 1, "n": Decimal("0.25"), "d": date(2000, 1, 2)}]


def test_empty_tables_come_to_exist(plain: Copies, folder: FolderDestination) -> None:
    plain.copy(EMPTY)

    assert folder.rows(EMPTY).schema == pa.schema([("id", pa.int32())])
    assert len(folder.rows(EMPTY)) == 0


def test_the_earlier_table_goes_first_under_the_name_it_had(plain: Copies, folder: FolderDestination) -> None:
    old, new = TableName("old", "place"), TableName("new", "place")
    plain.register(BIG)
    plain.copy_as({BIG: old})
    plain.store.apply({BIG: RolledBack(plain.store.tables()[BIG].state.generation, slot_alive=False)})

    plain.copy_as({BIG: new})

    assert not folder.holds(old)
    assert len(folder.rows(new)) == 5000


def test_a_value_that_cannot_be_held_fails_its_table_alone(plain: Copies) -> None:
    plain.source.execute("insert into big values (0, 0, 'infinity')")

    result = plain.copy(BIG, EMPTY)

    assert result.published == (EMPTY,)
    assert result.failed[BIG].kind is ErrorKind.VALUE
    assert "infinity" in result.failed[BIG].message


def test_a_range_that_broke_off_is_not_written_twice(plain: Copies, folder: FolderDestination, tmp_path: Path) -> None:
    """There is no ledger, so the table's attempt is given up; the next one starts by dropping the table."""
    plain.destination = DestinationSpec(f"{__name__}:BreaksOff", options={"folder": str(tmp_path)})
    plain.range_bytes = 1 << 30

    result = plain.copy(BIG, runner=LocalRunner(1))

    assert result.failed[BIG].kind is ErrorKind.COPY_DIED
    assert len(folder.rows(BIG)) == 5000
    plain.destination = DestinationSpec(folder_destination.PATH, options={"folder": str(tmp_path)})
    plain.store.apply({BIG: RolledBack(plain.store.tables()[BIG].state.generation)})
    assert plain.copy(BIG).published == (BIG,)
    assert len(folder.rows(BIG)) == 5000


def test_a_stream_that_still_writes_is_waited_for(plain: Copies, folder: FolderDestination) -> None:
    """Nothing else would keep its last write from coming on top of the copy."""
    plain.copy(BIG)
    plain.store.acquire_lease("a worker", 60.0)
    plain.store.apply({BIG: RolledBack(plain.store.tables()[BIG].state.generation, slot_alive=False)})
    generation = plain.store.tables()[BIG].state.generation
    with ThreadPoolExecutor() as threads:
        copying = threads.submit(plain.copy, BIG, register=False)
        with pytest.raises(TimeoutError):
            copying.result(1.5)
        assert len(folder.rows(BIG)) == 5000
        plain.store.acknowledge({BIG: generation})
        assert copying.result(60).published == (BIG,)
