"""How rows lie in files, and what is left of them when a merge fails half way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_pgetl.engine.destinations.delta import data_files
from airflow_provider_pgetl.engine.destinations.delta.data_files import FilesWriter, Layout, new_name, repetitive
from airflow_provider_pgetl.engine.destinations.delta.log import LiveFile
from airflow_provider_pgetl.engine.destinations.delta.merging import Changes
from airflow_provider_pgetl.engine.destinations.delta.storage import Place
from airflow_provider_pgetl.engine.destinations.delta.working_set import WorkingSet

COLUMNS = pa.schema([("id", pa.int64()), ("kind", pa.string()), ("tags", pa.list_(pa.field("element", pa.string())))])
LAYOUT = Layout(COLUMNS, ("id",))


def rows(first: int, last: int) -> pa.Table:
    ids = list(range(first, last))
    kinds, tags = [f"kind {n % 7}" for n in ids], [["a", "b"] for _ in ids]
    return pa.table([pa.array(ids), pa.array(kinds), pa.array(tags, COLUMNS.field("tags").type)], schema=COLUMNS)


def written(place: Place, *tables: pa.Table) -> list[data_files.Written]:
    writer = FilesWriter(place, LAYOUT, new_name("part"))
    for table in tables:
        writer.write(table)
    return writer.close()


def test_a_dictionary_is_made_of_what_repeats(tmp_path: Path) -> None:
    few = rows(0, 10_000)
    assert repetitive(few) == ["kind", "tags.list.element"]
    (file,) = written(Place(str(tmp_path)), few)
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
    (file,) = written(Place(str(tmp_path)), *tables)
    found = pq.ParquetFile(tmp_path / file.path)
    sizes = [found.metadata.row_group(number).num_rows for number in range(found.num_row_groups)]
    assert max(sizes) <= 4000
    assert max(found.read_row_group(number).nbytes for number in range(found.num_row_groups)) <= bytes_per_group
    assert found.read().equals(pa.concat_tables(tables).combine_chunks())


def test_a_merge_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    place = Place(str(tmp_path))
    made = [one for first in range(0, 600, 100) for one in written(place, rows(first, first + 100))]
    (tmp_path / made[3].path).write_bytes(b"PAR1 no more")
    files = WorkingSet(place, LAYOUT, [LiveFile(one.path, one.size, one.rows, {}) for one in made])
    keys = pa.table({"id": pa.array(range(0, 600, 10))})
    none = rows(0, 0)
    with pytest.raises((pa.ArrowInvalid, OSError)):
        files.merge(Changes(keys, none.select(["id"]), np.zeros(0, np.bool_), none, {}, none))
    files.discard()
    assert {path.name for path in tmp_path.iterdir()} == {one.path for one in made}
