"""Net changes come out of a file as they went in, whatever their types."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.destinations.delta.log.storage import TableFolder
from airflow_provider_pgetl.engine.destinations.delta.merge import net_changes
from airflow_provider_pgetl.engine.destinations.delta.merge.file_merge import Changes
from airflow_provider_pgetl.engine.destinations.delta.merge.net_changes import Bag, Truncated, read_part, write_part
from airflow_provider_pgetl.engine.model.tables import Column, PgType, TableName, TableSchema

TEXT = PgType(25, "text")
VALUES: dict[str, tuple[pa.DataType, Any]] = {
    "k": (pa.int64(), 7),
    "K two": (pa.string(), ""),
    "old.0": (pa.decimal128(38, 10), Decimal("-1.5")),
    "moves": (pa.bool_(), True),
    "day": (pa.date32(), date(1, 1, 1)),
    "moment": (pa.timestamp("us", "UTC"), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)),
    "local": (pa.timestamp("us"), datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)),
    "bytes": (pa.binary(), b"\0\xff"),
    "float": (pa.float32(), float("-inf")),
    "list": (pa.list_(pa.field("element", pa.decimal128(5, 2))), [None, Decimal("0.01")]),
}
SCHEMA = TableSchema(
    TableName("public", "t"), 7, tuple(Column(name, TEXT, "text") for name in VALUES), ("K two", "k"), comment="ü"
)
ROWS = pa.schema([(name, kind) for name, (kind, _) in VALUES.items()])


def rows(count: int, *nulls: str) -> pa.Table:
    values = {name: None if name in nulls else value for name, (_, value) in VALUES.items()}
    return pa.Table.from_pylist([values] * count, schema=ROWS)


@pytest.mark.parametrize("counts", [(0, 0, 0), (2, 3, 4), (0, 3, 0), (1, 0, 0), (0, 0, 2)])
def test_net_changes(tmp_path: Path, counts: tuple[int, int, int]) -> None:
    deletes, updates, inserts = counts
    keys = rows(deletes + updates).select(list(SCHEMA.key))
    moves = np.arange(updates) % 2 == 1
    absent = {"list": np.arange(updates) == 0, "moves": np.ones(updates, np.bool_)}
    net = Changes(keys[:deletes], keys[deletes:], moves, rows(updates, "list"), absent, rows(inserts, "day"))
    found = written_and_read(tmp_path, net)
    for name in ("deletes", "bases", "rows", "inserts"):
        assert getattr(found, name).equals(getattr(net, name)), name
        assert getattr(found, name).schema.equals(getattr(net, name).schema), name
    assert found.moves.tolist() == moves.tolist()
    assert {name: mask.tolist() for name, mask in found.absent.items()} == {
        name: mask.tolist() for name, mask in absent.items()
    }


def test_rows_without_a_key(tmp_path: Path) -> None:
    bag = Bag(rows(2), rows(3, "list"))
    found = written_and_read(tmp_path, bag)
    assert (found.deletes.equals(bag.deletes), found.inserts.equals(bag.inserts)) == (True, True)


def test_a_truncate(tmp_path: Path) -> None:
    assert written_and_read(tmp_path, Truncated()) == Truncated()


def written_and_read(folder: Path, part: Any) -> Any:
    place = TableFolder(str(folder))
    write_part(place, "1/part.parquet", SCHEMA, part)
    found = read_part(place, "1/part.parquet")
    assert found.schema == SCHEMA
    return found.part


KEYS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bigint": (pa.int64(), st.integers(-50, 50)),
    "text": (pa.string(), st.text("ab", max_size=4)),
    "double": (pa.float64(), st.sampled_from([-1.0, -0.0, 0.0, math.nan, math.inf, 2.5])),
    "numeric": (pa.decimal128(10, 2), st.decimals(-9, 9, places=2)),
}


@given(st.sampled_from(sorted(KEYS)), st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_of_shared_changes_those_within_bounds_are_read(
    monkeypatch: pytest.MonkeyPatch, kind: str, data: st.DataObject
) -> None:
    """As many of each sort as are there, with all that belongs to them."""
    monkeypatch.setattr(net_changes, "_SHARED_GROUP_ROWS", data.draw(st.integers(1, 9)))
    values = data.draw(st.lists(KEYS[kind][1], max_size=30, unique_by=repr))
    gone = data.draw(st.integers(0, len(values)))
    schema = TableSchema(TableName("public", "t"), 7, (Column("k", TEXT, "text"), Column("v", TEXT, "text")), ("k",))
    keys = pa.table({"k": pa.array(values, KEYS[kind][0])})
    fresh = pa.table({"k": keys["k"].slice(gone), "v": [repr(one) for one in values[gone:]]})
    moves = np.array([len(repr(one)) % 2 == 0 for one in values[gone:]], np.bool_)
    net = Changes(keys[:gone], keys[gone:], moves, fresh, {"v": ~moves}, fresh.slice(0, 0))
    least, most = sorted(data.draw(st.tuples(KEYS[kind][1], KEYS[kind][1])))
    with TemporaryDirectory() as folder:
        net_changes.write_sorted(TableFolder(folder), "a.parquet", schema, net)
        found = net_changes.read_within(TableFolder(folder), "a.parquet", [(least, most)])
        every = net_changes.read_within(TableFolder(folder), "a.parquet", [None])
    for one in (found, every):
        changed = one.rows["v"].to_pylist()
        assert [repr(key) for key in one.bases["k"].to_pylist()] == changed
        assert one.moves.tolist() == [len(text) % 2 == 0 for text in changed]
        assert one.absent["v"].tolist() == [len(text) % 2 != 0 for text in changed]
    assert (every.deletes.num_rows, every.rows.num_rows) == (gone, len(values) - gone)
    for all_, some in ((values[:gone], found.deletes), (values[gone:], found.bases)):
        read = {repr(one) for one in some["k"].to_pylist()}
        assert read >= {repr(one) for one in all_ if least <= one <= most or one != one}


def test_of_shared_changes_only_some_row_groups_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_changes, "_SHARED_GROUP_ROWS", 10)
    schema = TableSchema(TableName("public", "t"), 7, (Column("k", TEXT, "text"),), ("k",))
    keys = pa.table({"k": pa.array(np.random.default_rng(1).permutation(1000))})
    net = Changes(keys[:500], keys[500:], np.zeros(500, np.bool_), keys[500:], {}, keys[:0])
    net_changes.write_sorted(TableFolder(str(tmp_path)), "a.parquet", schema, net)
    found = net_changes.read_within(TableFolder(str(tmp_path)), "a.parquet", [(100, 199)])
    assert 80 < found.keys.num_rows <= 100 + 40
    assert found.rows["k"].to_pylist() == found.bases["k"].to_pylist()
    nothing = net_changes.read_within(TableFolder(str(tmp_path)), "a.parquet", [(5000, 5001)])
    assert nothing.keys.num_rows == 0
    assert nothing.keys.schema.equals(keys.schema)
