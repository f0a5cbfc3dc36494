"""Rows are taken by their places from tables of any chunks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_pgetl.engine.destinations.delta.files import keys
from airflow_provider_pgetl.engine.destinations.delta.files.keys import taken

WHOLE = pa.table(
    {
        "id": pa.array(range(1000)),
        "name": pa.array([None if n % 9 == 0 else f"name {n}" for n in range(1000)]),
        "tags": pa.array([[str(n)] * (n % 3) for n in range(1000)]),
        "is": pa.array([n % 2 == 0 for n in range(1000)]),
    }
)


def chunked(*edges: int) -> pa.Table:
    return pa.concat_tables([WHOLE.slice(first, last - first) for first, last in pairwise([0, *edges, 1000])])


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("rows", [WHOLE, chunked(1, 1, 500), chunked(*range(10, 1000, 10))], ids=["1", "4", "100"])
@pytest.mark.parametrize("kind", ["none", "few", "rising", "any order", "repeated"])
def test_as_arrow_takes_them(monkeypatch: pytest.MonkeyPatch, rows: pa.Table, kind: str, is_large: bool) -> None:
    if is_large:
        monkeypatch.setattr(keys, "_LARGE", 1)
    places = {
        "none": np.empty(0, np.int64),
        "few": np.array([999, 0, 500]),
        "rising": np.arange(0, 1000, 3),
        "any order": np.random.default_rng(1).permutation(1000),
        "repeated": np.random.default_rng(2).integers(0, 1000, 3000),
    }[kind]
    assert taken(rows, places).equals(WHOLE.take(pa.array(places)))


def test_of_a_few_rows_no_more_is_made_than_they_are() -> None:
    large = pa.chunked_array([pa.array(["x" * 100_000] * 100) for _ in range(10)])
    before = pa.total_allocated_bytes()
    found = taken(pa.table({"x": large}), np.array([5, 995, 17]))
    assert found.nbytes < 400_000
    assert pa.total_allocated_bytes() - before < 1_000_000
