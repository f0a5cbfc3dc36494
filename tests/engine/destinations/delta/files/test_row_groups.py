"""Keys are looked for in those row groups alone that may have them, and what is found is the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.destinations.delta.files.data_files import FileReader, FilesWriter, Layout, new_name
from airflow_provider_pgetl.engine.destinations.delta.files.deletion_vectors import Marks
from airflow_provider_pgetl.engine.destinations.delta.files.keys import Lookup, Run
from airflow_provider_pgetl.engine.destinations.delta.log.storage import TableFolder

PREFIX = "the same sixty-four bytes and more, so that bounds which are cut do not tell, "
LETTERS = st.characters(exclude_categories=["Cs"])
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bigint": (pa.int64(), st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)),
    "smallint": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "text": (pa.string(), st.text(LETTERS, max_size=4)),
    "long text": (pa.string(), st.text(LETTERS, max_size=3).map(lambda one: PREFIX + one)),
    "bytes": (pa.binary(), st.binary(max_size=4)),
    "numeric": (pa.decimal128(38, 10), st.decimals(-(10**20), 10**20, places=10)),
    "small numeric": (pa.decimal128(5, 2), st.decimals(-999, 999, places=2)),
    "moment": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    "local moment": (pa.timestamp("us"), st.datetimes()),
    "day": (pa.date32(), st.dates()),
    "truth": (pa.bool_(), st.booleans()),
    "double": (pa.float64(), st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf]) | st.floats()),
    "real": (pa.float32(), st.sampled_from([0.0, -0.0, math.nan]) | st.floats(width=32)),
}


@st.composite
def files_and_keys(draw: st.DrawFn) -> tuple[pa.Table, pa.Table, dict[str, Any]]:
    """A file's rows, keys to look for in it, some of which are there, and how the file is written."""
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=2))
    row = st.tuples(*(KINDS[kind][1] for kind in kinds))
    rows = draw(st.lists(row, min_size=1, max_size=40))
    keys = draw(st.lists(st.sampled_from(rows) | row, min_size=1, max_size=3))
    if draw(st.booleans()):
        rows.sort(key=repr)
    schema = pa.schema([pa.field(f"k{number}", KINDS[kind][0]) for number, kind in enumerate(kinds)])
    written = {
        "row_group_size": draw(st.integers(1, 15)),
        "use_dictionary": draw(st.booleans()),
        "version": draw(st.sampled_from(["1.0", "2.6"])),
        "store_schema": draw(st.booleans()),
        "store_decimal_as_integer": draw(st.booleans()),
    }
    return _table(rows, schema), _table(keys, schema), written


def _table(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True)
    return pa.table([pa.array(one, field.type) for one, field in zip(columns, schema, strict=True)], schema=schema)


def found(place: TableFolder, path: str, keys: pa.Table, schema: pa.Schema, *, pruned: bool) -> list[tuple[int, int]]:
    lookup, hits = Lookup(keys), []
    with FileReader(place, path, schema) as reader:
        groups = reader.groups.admitting(keys) if pruned else None
        for numbers, rows in reader.live_batches(Marks(), keys.column_names, groups):
            codes = lookup.find(rows).to_pylist()
            hits += [(int(number), code) for number, code in zip(numbers, codes, strict=True) if code is not None]
    return hits


@given(files_and_keys())
@settings(deadline=None, max_examples=150)
def test_pruned_or_not_the_same_is_found(case: tuple[pa.Table, pa.Table, dict[str, Any]]) -> None:
    rows, keys, written = case
    with TemporaryDirectory() as folder:
        pq.write_table(rows, Path(folder) / "a.parquet", **written)
        place = TableFolder(folder)
        wanted = found(place, "a.parquet", keys, rows.schema, pruned=False)
        assert found(place, "a.parquet", keys, rows.schema, pruned=True) == wanted


@given(files_and_keys())
@settings(deadline=None, max_examples=30)
def test_in_files_that_delta_rs_writes_as_well(case: tuple[pa.Table, pa.Table, dict[str, Any]]) -> None:
    """It cuts strings in a footer at 64 bytes."""
    rows, keys, _ = case
    with TemporaryDirectory() as folder:
        write_deltalake(folder, rows)
        (path,) = Path(folder).glob("*.parquet")
        wanted = found(TableFolder(folder), path.name, keys, rows.schema, pruned=False)
        assert found(TableFolder(folder), path.name, keys, rows.schema, pruned=True) == wanted


def groups(folder: Path, rows: pa.Table, keys: pa.Table, **written: Any) -> list[int]:
    pq.write_table(rows, folder / "a.parquet", **{"row_group_size": 1, **written})
    with FileReader(TableFolder(str(folder)), "a.parquet", keys.schema) as reader:
        return reader.groups.admitting(keys)


def one_column(kind: pa.DataType, *values: Any) -> pa.Table:
    return pa.table({"k": pa.array(values, kind)})


SOME = {
    "bigint": (pa.int64(), [-5, 0, 7, 2**40]),
    "text": (pa.string(), ["a", "b", "ü", PREFIX]),
    "uuid": (pa.string(), [f"{n:08x}-0000-4000-8000-000000000000" for n in range(4)]),
    "bytes": (pa.binary(), [b"\0", b"a", b"\x80", b"\xff"]),
    "numeric": (pa.decimal128(20, 3), [Decimal("-1.000"), Decimal("0.001"), Decimal(4), Decimal(10**9)]),
    "moment": (pa.timestamp("us", "UTC"), [datetime(year, 1, 1, tzinfo=UTC) for year in (1, 1969, 2020, 9999)]),
    "day": (pa.date32(), [date(year, 1, 1) for year in (1, 1969, 2020, 9999)]),
    "double": (pa.float64(), [-1.5, 0.0, 1.0, math.inf]),
}


@pytest.mark.parametrize(("kind", "values"), SOME.values(), ids=SOME)
def test_only_groups_that_may_have_a_key_are_read(tmp_path: Path, kind: pa.DataType, values: list[Any]) -> None:
    rows = one_column(kind, *values)
    assert groups(tmp_path, rows, one_column(kind, values[2])) == [2]
    assert groups(tmp_path, rows, one_column(kind, values[2]), row_group_size=2) == [1]


def test_all_columns_of_a_key_count(tmp_path: Path) -> None:
    rows = pa.table({"a": [1, 1, 1, 1, 2, 2, 2, 2], "b": ["x", "x", "y", "y", "x", "x", "y", "y"]})
    assert groups(tmp_path, rows, pa.table({"a": [1], "b": ["y"]}), row_group_size=2) == [1]
    assert groups(tmp_path, rows, pa.table({"a": [2, 3], "b": ["y", "x"]}), row_group_size=2) == [3]
    assert groups(tmp_path, rows, pa.table({"a": [1, 9], "b": ["z", "x"]}), row_group_size=2) == []


@pytest.mark.parametrize(
    ("rows", "key"),
    [
        pytest.param(one_column(pa.timestamp("ns"), 1, 2), one_column(pa.timestamp("us"), 9), id="other units"),
        pytest.param(one_column(pa.uint64(), 1, 2**63 + 1), one_column(pa.int64(), 9), id="unsigned"),
        pytest.param(one_column(pa.float64(), 1.0, 2.0), one_column(pa.float64(), math.nan), id="NaN"),
        pytest.param(one_column(pa.string(), "a" * 64, "b" * 64), one_column(pa.string(), None), id="null"),
        pytest.param(pa.table({"other": [1, 2]}), one_column(pa.int64(), 1), id="a column that the file lacks"),
    ],
)
def test_in_doubt_all_are_read(tmp_path: Path, rows: pa.Table, key: pa.Table) -> None:
    assert groups(tmp_path, rows, key) == [0, 1]


def test_where_statistics_are_missing_all_are_read(tmp_path: Path) -> None:
    rows, key = one_column(pa.int64(), 1, 2, 3), one_column(pa.int64(), 2)
    assert groups(tmp_path, rows, key, write_statistics=False) == [0, 1, 2]
    moments = one_column(pa.timestamp("us"), 0, 10**15)
    key = one_column(pa.timestamp("us"), 0)
    assert groups(tmp_path, moments, key, use_deprecated_int96_timestamps=True) == [0, 1]
    long = one_column(pa.string(), "a" * 10_000, "b" * 10_000)
    assert groups(tmp_path, long, one_column(pa.string(), "b" * 10_000)) == [0, 1]


def test_what_begins_like_an_upper_bound_may_be_in_the_group(tmp_path: Path) -> None:
    """Not every writer makes an upper bound longer when it cuts it."""
    rows = one_column(pa.string(), "a" * 64, "c" * 64)
    assert groups(tmp_path, rows, one_column(pa.string(), "a" * 65)) == [0]
    assert groups(tmp_path, rows, one_column(pa.string(), "b" * 65)) == []


def test_a_file_that_others_wrote_with_smaller_numbers_is_pruned_too(tmp_path: Path) -> None:
    assert groups(tmp_path, one_column(pa.int32(), 1, 2, 3), one_column(pa.int64(), 2)) == [1]
    assert groups(tmp_path, one_column(pa.int32(), 1, 2, 3), one_column(pa.int64(), 2**40)) == []


def test_very_many_keys_are_not_compared_with_each_group(tmp_path: Path) -> None:
    rows = one_column(pa.int64(), *range(10))
    assert groups(tmp_path, rows, one_column(pa.int64(), 100), row_group_size=5) == []
    assert groups(tmp_path, rows, one_column(pa.int64(), *range(100, 110)), row_group_size=5) == [0, 1]


def test_row_groups_in_order_are_a_run(tmp_path: Path) -> None:
    def runs(*values: int | None, **written: Any) -> list[Run]:
        pq.write_table(one_column(pa.int64(), *values), tmp_path / "a.parquet", **{"row_group_size": 2, **written})
        with FileReader(TableFolder(str(tmp_path)), "a.parquet", pa.schema([("k", pa.int64())])) as reader:
            return list(reader.groups.runs(pa.field("k", pa.int64())))

    assert runs(1, 2, 2, 5, 6, 7) == [Run((0, 1, 2), (1, 7))]
    assert runs(1, 2, 0, 1, 1, 3, 0, 0) == [Run((0,), (1, 2)), Run((1, 2), (0, 3)), Run((3,), (0, 0))]
    assert runs(1, 2, None, None, 3, 4) == [Run((0,), (1, 2)), Run((1,), None), Run((2,), (3, 4))]
    assert runs(1, 2, 3, 4, write_statistics=False) == [Run((0,), None), Run((1,), None)]


def test_of_spread_keys_few_row_groups_are_read_where_rows_are_in_key_order(tmp_path: Path) -> None:
    place, layout = TableFolder(str(tmp_path)), Layout(pa.schema([("k", pa.string())]), ("k",), order=("k",))
    values = sorted(f"{n:032x}" for n in np.random.default_rng(1).integers(0, 2**63, 400_000).tolist())
    writer = FilesWriter(place, layout, new_name("part"), sorts=True)
    for first in range(0, len(values), 50_000):
        writer.write(one_column(pa.string(), *values[first : first + 50_000]))
    (file,) = writer.close()
    with FileReader(place, file.path, layout.schema) as reader:
        assert len(reader.groups) >= 4
        assert len(reader.groups.admitting(one_column(pa.string(), *values[1000:1010]))) == 1
