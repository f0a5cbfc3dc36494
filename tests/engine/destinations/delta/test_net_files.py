"""Net changes come out of a file as they went in, whatever their types."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_pgetl.engine.destinations.delta.merging import Changes
from airflow_provider_pgetl.engine.destinations.delta.net_files import Bag, Truncated, read_part, write_part
from airflow_provider_pgetl.engine.destinations.delta.storage import Place
from airflow_provider_pgetl.engine.tables import Column, PgType, TableName, TableSchema

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
    place = Place(str(folder))
    write_part(place, "1/part.parquet", SCHEMA, part)
    found = read_part(place, "1/part.parquet")
    assert found.schema == SCHEMA
    return found.part
