"""How rows lie in files, and what is left of them when a merge fails half way."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.destinations.delta.files import data_files
from airflow_provider_pgetl.engine.destinations.delta.files.data_files import FilesWriter, Layout, new_name, repetitive
from airflow_provider_pgetl.engine.destinations.delta.log.snapshot import LiveFile
from airflow_provider_pgetl.engine.destinations.delta.log.storage import TableFolder
from airflow_provider_pgetl.engine.destinations.delta.merge.file_merge import Changes
from airflow_provider_pgetl.engine.destinations.delta.merge.working_set import WorkingSet
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.testing.builders import Replica
from tests.engine.destinations.delta.reading import rows_of

COLUMNS = pa.schema([("id", pa.int64()), ("kind", pa.string()), ("tags", pa.list_(pa.field("element", pa.string())))])
LAYOUT = Layout(COLUMNS, ("id",))


def rows(first: int, last: int) -> pa.Table:
    ids = list(range(first, last))
    kinds, tags = [f"kind {n % 7}" for n in ids], [["a", "b"] for _ in ids]
    return pa.table([pa.array(ids), pa.array(kinds), pa.array(tags, COLUMNS.field("tags").type)], schema=COLUMNS)


def written(place: TableFolder, *tables: pa.Table) -> list[data_files.WrittenFile]:
    writer = FilesWriter(place, LAYOUT, new_name("part"))
    for table in tables:
        writer.write(table)
    return writer.close()


def test_a_dictionary_is_made_of_what_repeats(tmp_path: Path) -> None:
    few = rows(0, 10_000)
    assert repetitive(few) == ["kind", "tags.list.element"]
    (file,) = written(TableFolder(str(tmp_path)), few)
    group = pq.ParquetFile(tmp_path / file.path).metadata.row_group(0)
    assert ["RLE_DICTIONARY" in group.column(at).encodings for at in range(3)] == [False, True, True]
    assert pq.read_table(tmp_path / file.path).equals(few)


@pytest.mark.parametrize("bytes_per_group", [1 << 30, 200_000])
def test_groups_are_bounded_however_rows_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_per_group: int
) -> None:
    monkeypatch.setattr(data_files, "GROUP_ROWS", 4000)
    monkeypatch.setattr(data_files, "GROUP_BYTES", bytes_per_group)
    tables = [rows(0, 1), rows(1, 30_000), rows(30_000, 30_100), rows(30_100, 33_000)]
    (file,) = written(TableFolder(str(tmp_path)), *tables)
    found = pq.ParquetFile(tmp_path / file.path)
    sizes = [found.metadata.row_group(number).num_rows for number in range(found.num_row_groups)]
    assert max(sizes) <= 4000
    assert max(found.read_row_group(number).nbytes for number in range(found.num_row_groups)) <= bytes_per_group
    assert found.read().equals(pa.concat_tables(tables).combine_chunks())


def test_a_merge_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    place = TableFolder(str(tmp_path))
    made = [one for first in range(0, 600, 100) for one in written(place, rows(first, first + 100))]
    (tmp_path / made[3].path).write_bytes(b"PAR1 no more")
    files = WorkingSet(place, LAYOUT, [LiveFile(one.path, one.size) for one in made])
    keys = pa.table({"id": pa.array(range(0, 600, 10))})
    none = rows(0, 0)
    with pytest.raises(PgetlError, match="cannot be read as the table's"):
        files.merge(Changes(keys, none.select(["id"]), np.zeros(0, np.bool_), none, {}, none))
    files.discard()
    assert {path.name for path in tmp_path.iterdir()} == {one.path for one in made}


@contextlib.contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """No file can be larger, for this process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    heard = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, heard)


@pytest.mark.parametrize("limit", [0, 1000, 100_000], ids=["at its beginning", "in its first group", "later"])
def test_a_disk_that_is_full_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(data_files, "GROUP_ROWS", 4000)
    files = WorkingSet(TableFolder(str(tmp_path)), LAYOUT, [])
    with full_disk(limit), pytest.raises(PgetlError) as caught:
        files.append(rows(first, first + 4000) for first in range(0, 200_000, 4000))
    assert caught.value.kind is ErrorKind.RESOURCES
    assert list(tmp_path.iterdir()) == []


def test_what_is_wrong_with_a_value_is_said_though_the_disk_is_full(tmp_path: Path) -> None:
    layout = Layout(COLUMNS, ("id",), required=("kind",))
    writer = FilesWriter(TableFolder(str(tmp_path)), layout, new_name("part"))
    nulls = rows(0, 70_000).set_column(1, COLUMNS.field("kind"), pa.nulls(70_000, pa.string()))
    with full_disk(10):
        with pytest.raises(PgetlError, match="not null"):
            writer.write(nulls)
        writer.abandon()
    assert list(tmp_path.iterdir()) == []


def test_a_batch_waits_for_room(tmp_path: Path) -> None:
    replica = Replica(DeltaDestination(str(tmp_path), "shop"), pipeline="shop").create((b"1", b"Ann", None))
    batch = replica.batch(replica.wire().insert((b"2", b"Bob", None)).take())
    place = tmp_path / replica.schema.table.schema / replica.schema.table.name
    before = sorted(place.rglob("*"))
    with full_disk(100), pytest.raises(PgetlError) as caught:
        replica.destination.write_events(batch)
    assert caught.value.transient
    assert sorted(place.rglob("*")) == before
    replica.destination.write_events(batch)
    assert sorted(row[0] for row in rows_of(place)) == [1, 2]
