"""Files are read in pieces that are bounded in bytes, whoever has written them and however."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_pgetl.engine.destinations.delta.files import data_files
from airflow_provider_pgetl.engine.destinations.delta.files.data_files import FileReader
from airflow_provider_pgetl.engine.destinations.delta.log.storage import TableFolder

COLUMNS = pa.schema([("id", pa.int64()), ("doc", pa.string()), ("tags", pa.list_(pa.field("element", pa.string())))])


def table(docs: Sequence[str | None]) -> pa.Table:
    ids, tags = range(len(docs)), [[f"t{n % 3}"] if n % 5 else None for n in range(len(docs))]
    arrays = [pa.array(ids), pa.array(docs, pa.string()), pa.array(tags, COLUMNS.field("tags").type)]
    return pa.table(arrays, schema=COLUMNS)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "BATCH_BYTES", 64 << 10)
    monkeypatch.setattr(data_files, "READ_BYTES", 4 << 10)
    monkeypatch.setattr(data_files, "PROBED_ROWS", 8)


UNIQUE = [f"{n:06d}" * (n % 20) if n % 7 else None for n in range(20_000)]
SKEWED = [f"{n}" * (1500 if n > 15_000 else 1) for n in range(16_000)]
REPEATED = ["a" * 5000 if n % 3 else "b" * 7000 for n in range(4_000)]


@pytest.mark.parametrize("rows_per_group", [100_000, 999])
@pytest.mark.parametrize("is_dictionary", [True, False])
@pytest.mark.parametrize("docs", [UNIQUE, SKEWED, REPEATED, [], ["x" * 500_000] * 3], ids=len)
def test_all_rows_come_in_bounded_pieces_with_their_numbers(
    tmp_path: Path, docs: list[str | None], is_dictionary: bool, rows_per_group: int
) -> None:
    written = table(docs)
    pq.write_table(written, tmp_path / "a.parquet", row_group_size=rows_per_group, use_dictionary=is_dictionary)
    with FileReader(TableFolder(str(tmp_path)), "a.parquet", COLUMNS) as reader:
        assert reader.rows == len(docs)
        for columns in (None, ["id"], ["doc", "id"]):
            found = list(reader.batches(columns))
            wanted = written if columns is None else written.select(columns)
            assert [first for first, _ in found] == [0, *_ends(found)][: len(found)]
            assert pa.concat_tables([wanted.slice(0, 0), *(rows for _, rows in found)]).equals(wanted)
    largest = max(map(len, filter(None, docs)), default=0)
    bound = data_files.BATCH_BYTES + max(20 * data_files.READ_BYTES, 2 * largest)
    assert all(rows.nbytes <= bound for _, rows in found), [rows.nbytes for _, rows in found]


def _ends(found: Sequence[tuple[int, pa.Table]]) -> list[int]:
    return [first + rows.num_rows for first, rows in found]


def test_of_some_row_groups_only_their_rows_come(tmp_path: Path) -> None:
    written = table(UNIQUE[:5000])
    pq.write_table(written, tmp_path / "a.parquet", row_group_size=500)
    with FileReader(TableFolder(str(tmp_path)), "a.parquet", COLUMNS) as reader:
        found = list(reader.batches(["id"], groups=[1, 2, 7]))
    assert [(first, rows.column("id").to_pylist()) for first, rows in found] == [
        (500, list(range(500, 1500))),
        (3500, list(range(3500, 4000))),
    ]


def test_columns_that_a_file_lacks_are_null_and_others_types_are_taken_for_ours(tmp_path: Path) -> None:
    theirs = pa.table({"id": pa.array(range(9000), pa.int32()), "other": pa.array([1] * 9000)})
    pq.write_table(theirs, tmp_path / "a.parquet")
    with FileReader(TableFolder(str(tmp_path)), "a.parquet", COLUMNS) as reader:
        whole = pa.concat_tables(rows for _, rows in reader.batches())
        lacking = [(first, rows.num_rows) for first, rows in reader.batches(["doc"])]
    assert whole.column("id").to_pylist() == list(range(9000))
    assert whole.schema.equals(COLUMNS)
    assert whole.column("doc").null_count == whole.column("tags").null_count == 9000
    assert sum(rows for _, rows in lacking) == 9000
