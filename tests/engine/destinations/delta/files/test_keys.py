"""Rows lie in the order of their keys, of whatever type these are, and nothing is found or lost by it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.destinations.delta.files import data_files
from airflow_provider_pgetl.engine.destinations.delta.files.data_files import FileReader, FilesWriter, Layout, new_name
from airflow_provider_pgetl.engine.destinations.delta.files.deletion_vectors import Marks
from airflow_provider_pgetl.engine.destinations.delta.files.key_index import KeyIndexes
from airflow_provider_pgetl.engine.destinations.delta.files.keys import clusters, in_key_order, merged_runs, sortable
from airflow_provider_pgetl.engine.destinations.delta.log.actions import Add, Bounds
from airflow_provider_pgetl.engine.destinations.delta.log.snapshot import LiveFile
from airflow_provider_pgetl.engine.destinations.delta.log.storage import TableFolder
from airflow_provider_pgetl.engine.destinations.delta.merge import working_set
from airflow_provider_pgetl.engine.destinations.delta.merge.file_merge import Changes
from airflow_provider_pgetl.engine.destinations.delta.merge.merge_on_read import MarkingSet
from airflow_provider_pgetl.engine.destinations.delta.merge.working_set import Input, WorkingSet, together
from airflow_provider_pgetl.engine.destinations.protocol import Misses
from airflow_provider_pgetl.testing.builders import Replica

KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bigint": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "text": (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=5)),
    "bytes": (pa.binary(), st.binary(max_size=5)),
    "numeric": (pa.decimal128(38, 10), st.decimals(-(10**20), 10**20, places=10)),
    "moment": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    "day": (pa.date32(), st.dates()),
    "truth": (pa.bool_(), st.booleans()),
}


@st.composite
def key_tables(draw: st.DrawFn) -> pa.Table:
    """Of one key column or two, in chunks of any size."""
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=2))
    count = draw(st.integers(0, 30))
    fields = [pa.field(f"k{number}", KINDS[kind][0]) for number, kind in enumerate(kinds)]
    columns = [draw(st.lists(KINDS[kind][1], min_size=count, max_size=count)) for kind in kinds]
    arrays = [pa.array(values, one.type) for values, one in zip(columns, fields, strict=True)]
    whole = pa.table([*arrays, pa.array(range(count))], schema=pa.schema([*fields, pa.field("place", pa.int64())]))
    cut = draw(st.integers(0, count))
    return pa.concat_tables([whole.slice(cut), whole.slice(0, cut)])


def keys_of(rows: pa.Table) -> list[tuple[Any, ...]]:
    names = rows.column_names[:-1]
    return [tuple(row[name] for name in names) for row in rows.to_pylist()]


@given(key_tables())
@settings(deadline=None)
def test_rows_are_sorted_and_all_there(rows: pa.Table) -> None:
    order = rows.column_names[:-1]
    found = in_key_order(rows, order)
    assert keys_of(found) == sorted(keys_of(rows))
    assert sorted(found.column("place").to_pylist()) == list(range(rows.num_rows))
    assert in_key_order(found, order) is found


def test_what_has_no_place_in_an_order_is_kept() -> None:
    values = [float("nan"), 0.0, -0.0, None, -1.0, float("nan"), float("-inf")]
    rows = pa.table({"k": pa.array(values, pa.float64()), "place": range(len(values))})
    found = in_key_order(rows, ["k"])
    assert found.column("k").to_pylist()[:4] == [float("-inf"), -1.0, 0.0, -0.0]
    assert sorted(found.column("place").to_pylist()) == list(range(len(values)))


def test_rows_are_sorted_by_the_columns_up_to_a_list() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.int64())), ("c", pa.int64())])
    assert sortable(schema, ["c", "a", "b"]) == ("c", "a")
    assert sortable(schema, ["a", "b", "c"]) == ("a",)
    assert sortable(schema, ["b", "a"]) == ()


@pytest.mark.parametrize(
    ("bounds", "wanted"),
    [
        ([(5, 6), (0, 2), (2, 3), (4, 4)], [[(0, 2), (2, 3)], [(4, 4)], [(5, 6)]]),
        ([(0, 100), (3, 4), (50, 60), (101, 102)], [[(0, 100), (3, 4), (50, 60)], [(101, 102)]]),
        ([(5, 6), None, (0, 2)], [[(5, 6), None, (0, 2)]]),
        ([("a", None), ("b", "c")], [[("a", None), ("b", "c")]]),
        ([("a", "b"), (1, 2)], [[("a", "b"), (1, 2)]]),
        ([], []),
    ],
)
def test_what_overlaps_is_together(bounds: list[Bounds | None], wanted: list[list[Bounds | None]]) -> None:
    assert list(clusters(bounds, lambda one: one)) == wanted


@given(st.lists(st.lists(st.integers(0, 40), max_size=40), min_size=1, max_size=6), st.booleans(), st.integers(1, 400))
@settings(deadline=None)
def test_runs_are_merged_whole_and_in_order(runs: list[list[int]], are_sorted: bool, size: int) -> None:
    def tables(keys: Sequence[int]) -> Iterator[pa.Table]:
        for first in range(0, len(keys), 7):
            yield pa.table({"k": pa.array(keys[first : first + 7], pa.int64())})

    runs = [sorted(one) for one in runs] if are_sorted else runs
    found = [key for rows in merged_runs(list(map(tables, runs)), ["k"], size) for key in rows["k"].to_pylist()]
    assert Counter(found) == Counter(key for one in runs for key in one)
    assert not are_sorted or found == sorted(found)


def rows(keys: Sequence[int]) -> pa.Table:
    return pa.table({"id": pa.array(keys, pa.int64()), "doc": [f"{key:x}" * 10 for key in keys]})


LAYOUT = Layout(rows([]).schema.set(1, pa.field("doc", pa.string())), ("id",), order=("id",))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many row groups, and little that is held of them."""
    monkeypatch.setattr(data_files, "GROUP_ROWS", 200)
    monkeypatch.setattr(data_files, "READ_BYTES", 1000)
    monkeypatch.setattr(working_set, "_HEADS_BYTES", 20_000)


def written(place: TableFolder, keys: Sequence[int]) -> LiveFile:
    writer = FilesWriter(place, LAYOUT, new_name("part"), sorts=True)
    for first in range(0, len(keys), 50):
        writer.write(rows(keys[first : first + 50]))
    (file,) = writer.close()
    return LiveFile.of(file.add())


def groups_of(folder: Path, path: str) -> list[list[int]]:
    file = pq.ParquetFile(folder / path)
    return [file.read_row_group(number)["id"].to_pylist() for number in range(file.num_row_groups)]


@pytest.mark.usefixtures("small")
def test_each_row_group_of_new_rows_is_sorted(tmp_path: Path) -> None:
    keys = random.Random(1).sample(range(100_000), 1000)
    file = written(TableFolder(str(tmp_path)), keys)
    groups = groups_of(tmp_path, file.path)
    assert len(groups) > 4
    assert all(one == sorted(one) for one in groups)
    assert sorted(key for one in groups for key in one) == sorted(keys)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("most", [(32, 40), (2, 3)], ids=["at once", "by and by"])
def test_files_that_overlap_are_compacted_into_key_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: tuple[int, int]
) -> None:
    monkeypatch.setattr(working_set, "_MOST_FILES", most[0])
    monkeypatch.setattr(working_set, "_MOST_RUNS", most[1])
    place, keys = TableFolder(str(tmp_path)), random.Random(2).sample(range(100_000), 3000)
    files = [written(place, keys[first : first + 600]) for first in range(0, 3000, 600)]
    found = WorkingSet(place, LAYOUT, files)
    found.compact()
    (made,) = found.adds()
    groups = groups_of(tmp_path, made.path)
    merged = [key for one in groups for key in one]
    assert sorted(merged) == sorted(keys)
    if most[1] >= 40:
        assert merged == sorted(keys)
        assert found._files[0].bounds([pa.field("id", pa.int64())]) == ((min(keys), max(keys)),)


@pytest.mark.usefixtures("small")
def test_files_that_do_not_overlap_follow_each_other_and_deleted_rows_go(tmp_path: Path) -> None:
    place = TableFolder(str(tmp_path))
    files = [written(place, range(first, first + 500)) for first in (1500, 0, 1000, 500)]
    inputs = [Input(one.path, one.bounds([LAYOUT.schema.field("id")])[0], Marks) for one in files]
    marks = Marks()
    marks.add(np.arange(0, 500, 2))
    inputs[1] = Input(inputs[1].path, inputs[1].bounds, partial(lambda found: found, marks))
    found = [key for one in together(place, LAYOUT, inputs) for key in one["id"].to_pylist()]
    assert found == [*range(1, 500, 2), *range(500, 2000)]


@pytest.mark.usefixtures("small")
def test_rows_of_others_files_that_are_in_no_order_are_all_kept(tmp_path: Path) -> None:
    place, keys = TableFolder(str(tmp_path)), random.Random(3).choices(range(500), k=4000)
    pq.write_table(rows(keys[:2000]), tmp_path / "0.parquet", row_group_size=2000)
    pq.write_table(rows(keys[2000:]), tmp_path / "1.parquet", write_statistics=False, row_group_size=300)
    found = [key for one in together(place, LAYOUT, [Input(f"{n}.parquet", None, Marks) for n in (0, 1)])
             for key in one["id"].to_pylist()]  # fmt: skip
    assert Counter(found) == Counter(keys)


def test_a_log_stays_in_its_own_order(tmp_path: Path) -> None:
    place, layout = TableFolder(str(tmp_path)), Layout(LAYOUT.schema, ("id",))
    pq.write_table(rows([3, 1, 2]), tmp_path / "0.parquet")
    pq.write_table(rows([9, 0]), tmp_path / "1.parquet")
    inputs = [Input(f"{n}.parquet", None, Marks) for n in (0, 1)]
    assert [key for one in together(place, layout, inputs) for key in one["id"].to_pylist()] == [3, 1, 2, 9, 0]


def test_days_and_moments_and_decimals_have_an_order() -> None:
    table = pa.table(
        {
            "a": pa.array([date(2020, 1, 2), date(2020, 1, 1), date(2020, 1, 1)]),
            "b": pa.array([datetime(2020, 1, day, tzinfo=UTC) for day in (1, 2, 1)], pa.timestamp("us", "UTC")),
            "c": pa.array([Decimal("-1.5"), Decimal("2.0"), Decimal("-3.0")]),
        }
    )
    assert in_key_order(table, ["a", "b"])["c"].to_pylist() == [Decimal("-3.0"), Decimal("2.0"), Decimal("-1.5")]
    assert in_key_order(table, ["c"])["c"].to_pylist() == [Decimal("-3.0"), Decimal("-1.5"), Decimal("2.0")]


def ids_in(place: Path) -> list[list[int]]:
    paths = sorted(place.rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    return [
        pq.read_table(path, partitioning=None)["id"].to_pylist() for path in paths if "_delta_log" not in path.parts
    ]


@pytest.mark.parametrize(("mode", "are_sorted"), [("upsert", True), ("history", False)])
def test_copies_and_batches_are_sorted_but_not_a_history(tmp_path: Path, mode: str, are_sorted: bool) -> None:
    replica = Replica(DeltaDestination(str(tmp_path), "shop", {"mode": mode}), pipeline="shop")
    replica.create(*((b"%d" % key, b"Ann", None) for key in (30, 10, 20)))
    wire = replica.wire()
    for key in (7, 9, 8):
        wire = wire.insert((b"%d" % key, b"Bob", None))
    replica.apply(wire.take())
    found = ids_in(tmp_path / replica.schema.table.schema / replica.schema.table.name)
    assert found == ([[10, 20, 30], [7, 8, 9]] if are_sorted else [[30, 10, 20], [7, 9, 8]])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("marks", [False, True], ids=["rewrite", "merge on read"])
def test_changes_find_their_rows_without_an_index(tmp_path: Path, marks: bool) -> None:
    """Only one row group has any of them, and others have neighbours of what is nowhere."""
    place = TableFolder(str(tmp_path))
    file = written(place, range(0, 6000, 2))
    files = MarkingSet(place, LAYOUT, [file], KeyIndexes(0)) if marks else WorkingSet(place, LAYOUT, [file])
    none, unmoved = rows([]), np.zeros(0, np.bool_)
    deletes = rows([2000, 2001, 2002, 9000]).select(["id"])
    missed = files.merge(Changes(deletes, none.select(["id"]), unmoved, none, {}, none))
    assert missed == Misses(deletes=2)
    if isinstance(files, MarkingSet):
        assert [one.vector and one.vector.cardinality for one in files.actions() if isinstance(one, Add)] == [2]
    else:
        left = [key for one in files.adds() for key in _keys_in(place, one.path)]
        assert left == [key for key in range(0, 6000, 2) if key not in (2000, 2002)]


def _keys_in(place: TableFolder, path: str) -> Iterator[int]:
    with FileReader(place, path, LAYOUT.schema) as reader:
        for _, batch in reader.batches(["id"]):
            yield from batch["id"].to_pylist()
