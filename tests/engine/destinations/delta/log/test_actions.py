"""What the log says of files: true for every reader, whatever the values; and a key is found by it."""

from __future__ import annotations

import json
import math
import sys
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, Schema
from deltalake.transaction import AddAction, create_table_with_add_actions
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.destinations.delta.files.data_files import FilesWriter, Layout, new_name
from airflow_provider_pgetl.engine.destinations.delta.files.keys import Lookup
from airflow_provider_pgetl.engine.destinations.delta.log.actions import merged_bounds
from airflow_provider_pgetl.engine.destinations.delta.log.storage import TableFolder

LAST = chr(sys.maxunicode)
MARKED = "\ue0f7"
STRANGE_TEXTS = [
    "𠮷野家",
    LAST * 40,
    "k" * 32 + LAST + "zzz",
    f"{MARKED}abc",
    f"abc{MARKED}",
    '"\\u0000',
    "\ud7ff" * 33,
]
TEXTS = st.text(st.sampled_from(["a", "é", "𠮷", "\ud7ff", "\ue000", LAST, MARKED, '"', "\\", "\n"]), max_size=40)


def table_of(place: Path, values: pa.Array) -> DeltaTable:
    """One file, its rows numbered, with what we say of it in the log."""
    rows = pa.table({"id": pa.array(range(len(values)), pa.int64()), "v": values})
    writer = FilesWriter(TableFolder(str(place)), Layout(rows.schema, ("id",)), new_name("part"))
    writer.write(rows)
    adds = [AddAction(one.path, one.size, {}, int(time.time()), True, one.stats) for one in writer.close()]
    create_table_with_add_actions(str(place), Schema.from_arrow(rows.schema), adds, "overwrite", [])
    return DeltaTable(str(place))


@given(st.lists(TEXTS, min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_a_text_that_is_there_lies_between_the_bounds(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    table = table_of(tmp_path_factory.mktemp("t"), pa.array(texts, pa.string()))
    actions = pa.table(table.get_add_actions()).to_pylist()[0]
    bounds = merged_bounds({"min": actions["min"], "max": actions["max"]}, ["v"])
    found = Lookup(pa.table({"v": pa.array(sorted(set(texts)), pa.string())})).within(bounds)
    assert found is not None
    assert len(found) == len(set(texts))


@pytest.mark.parametrize("text", STRANGE_TEXTS, ids=range(len(STRANGE_TEXTS)))
def test_strange_texts_are_found_by_every_reader(tmp_path: Path, text: str) -> None:
    table = table_of(tmp_path, pa.array(["a", text, None], pa.string()))
    quoted = text.replace("'", "''")
    assert_found(table, ("v", "=", text), f"v = '{quoted}'", [1])


FAR = pa.array([0, 10_000_000, -5_000_000], pa.int32()).cast(pa.date32())
OTHERS = {
    "boolean": (pa.array([True, False, None]), ("v", "=", True), "v", [0]),
    "NaN": (pa.array([1.0, math.nan, 5.0]), ("v", "<", 2.0), "v < 2", [0]),
    "nothing but NaN": (pa.array([math.nan, math.nan]), ("id", "=", 1), "id = 1", [1]),
    "infinite": (pa.array([1.0, math.inf, -math.inf]), ("v", "<", -5.0), "v < -5", [2]),
    "day with no word for it": (FAR, ("v", "=", date(1970, 1, 1)), "v = date '1970-01-01'", [0]),
    "long text": (pa.array(["x" * 9000, "y" * 9000]), ("v", "=", "y" * 9000), f"v = '{'y' * 9000}'", [1]),
    "bytes": (pa.array([b"a", b"b"]), ("v", "=", b"b"), "v = 'b'", [1]),
    "decimal": (pa.array([Decimal("1.10"), Decimal("-3.00")]), ("v", "<", Decimal("0.00")), "v < 0", [1]),
    "moment": (
        pa.array([datetime(2024, 1, 1, 0, 0, 0, 999_999, tzinfo=UTC)], pa.timestamp("us", "UTC")),
        ("v", "=", datetime(2024, 1, 1, 0, 0, 0, 999_999, tzinfo=UTC)),
        "v = timestamptz '2024-01-01 00:00:00.999999Z'",
        [0],
    ),
    "nothing": (pa.nulls(2, pa.int32()), ("id", "=", 1), "v is null and id = 1", [1]),
}


@pytest.mark.parametrize(("values", "asked", "sql", "found"), OTHERS.values(), ids=OTHERS.keys())
def test_rows_are_found_by_every_reader(
    tmp_path: Path, values: pa.Array, asked: Any, sql: str, found: list[int]
) -> None:
    assert_found(table_of(tmp_path, values), asked, sql, found)


def assert_found(table: DeltaTable, asked: tuple[str, str, Any], sql: str, ids: list[int]) -> None:
    assert table.to_pyarrow_table(filters=[asked]).column("id").to_pylist() == ids
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        connection.register("t", table.to_pyarrow_dataset())
        assert connection.execute(f"select id from t where {sql}").fetchall() == [(n,) for n in ids]
    answer = (
        QueryBuilder().register("t", table).execute(f"select id from t where {sql.replace('timestamptz', 'timestamp')}")
    )
    assert pa.table(answer.read_all()).column("id").to_pylist() == ids


def test_decimals_keep_all_their_digits(tmp_path: Path) -> None:
    digits = Decimal("12345678901234567890123456789012345.678")
    table = table_of(tmp_path, pa.array([digits], pa.decimal128(38, 3)))
    (log,) = (tmp_path / "_delta_log").glob("*.json")
    (stats,) = [json.loads(line)["add"]["stats"] for line in log.read_text().splitlines() if '"add"' in line]
    assert str(digits) in stats
    assert table.to_pyarrow_table(filters=[("v", "=", digits)]).num_rows == 1


def test_a_key_that_is_nan_may_be_in_any_file() -> None:
    keys = pa.table({"k": pa.array([math.nan, 7.0])})
    found = Lookup(keys).within([(1.0, math.inf)])
    assert found is not None
    assert len(found) == 2
    found = Lookup(keys).within([(1.0, 2.0)])
    assert found is not None
    assert math.isnan(found.keys.column("k")[0].as_py())
