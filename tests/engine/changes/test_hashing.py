"""Equal rows have equal numbers, however Arrow holds them; rows that differ in one bit have others."""

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.changes.hashing import hash_column, hash_rows

TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bool": (pa.bool_(), st.booleans()),
    "int16": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float64": (pa.float64(), st.floats(allow_nan=False)),
    "decimal": (pa.decimal128(38, 3), st.decimals(-(10**30), 10**30, places=3)),
    "binary": (pa.binary(), st.binary(max_size=40) | st.binary(min_size=250, max_size=300)),
    "string": (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=20)),
    "list": (pa.list_(pa.int32()), st.lists(st.none() | st.integers(-5, 5), max_size=4)),
    "texts": (pa.list_(pa.string()), st.lists(st.none() | st.text("ab", max_size=2), max_size=4)),
}


def as_key(value: Any) -> Any:
    """What tells values apart that Python takes for the same."""
    if isinstance(value, float):
        return repr(value)
    return tuple(value) if isinstance(value, list) else value


@pytest.mark.parametrize("name", TYPES)
@given(data=st.data())
def test_numbers_are_equal_exactly_where_values_are(name: str, data: st.DataObject) -> None:
    kind, values = TYPES[name]
    given_values = data.draw(st.lists(st.none() | values, max_size=12))
    hashes = hash_column(pa.array(given_values, kind)).tolist()
    for at, one in enumerate(given_values):
        for other in range(at):
            same = as_key(one) == as_key(given_values[other])
            assert (hashes[at] == hashes[other]) is same, (one, given_values[other])


@pytest.mark.parametrize("name", TYPES)
@given(data=st.data())
def test_how_arrow_holds_them_means_nothing(name: str, data: st.DataObject) -> None:
    kind, values = TYPES[name]
    given_values = data.draw(st.lists(st.none() | values, min_size=1, max_size=12))
    whole = pa.array(given_values, kind)
    expected = hash_column(whole).tolist()
    cut = data.draw(st.integers(0, len(given_values)))
    assert hash_column(whole.slice(cut)).tolist() == expected[cut:]
    assert hash_column(whole.slice(0, cut)).tolist() == expected[:cut]
    assert hash_column(pa.chunked_array([whole.slice(0, cut), whole.slice(cut)])).tolist() == expected


def test_texts_of_any_width_are_the_same() -> None:
    texts = ["", "a", "a ", None, "ä" * 300]
    hashes = {tuple(hash_column(pa.array(texts, kind)).tolist()) for kind in (pa.string(), pa.large_string())}
    raw = [None if text is None else text.encode() for text in texts]
    hashes |= {tuple(hash_column(pa.array(raw, kind)).tolist()) for kind in (pa.binary(), pa.large_binary())}
    assert len(hashes) == 1


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        (0.0, -0.0, pa.float64()),
        (0.0, -0.0, pa.float32()),
        (None, "", pa.string()),
        (None, 0, pa.int64()),
        (None, False, pa.bool_()),
        (None, [], pa.list_(pa.int64())),
        ([None], [], pa.list_(pa.int64())),
        ([1, 2], [2, 1], pa.list_(pa.int64())),
        ("a", "a ", pa.string()),
        ("a", "a\0", pa.string()),
        ("12345678", "12345679", pa.string()),
        ("x" * 300, "x" * 299 + "y", pa.string()),
        (Decimal("1.0"), Decimal("1.1"), pa.decimal128(5, 1)),
        (b"\x00" * 8, b"\x00" * 7 + b"\x01", pa.binary()),
    ],
)
def test_what_is_easily_taken_for_the_same(one: object, other: object, kind: pa.DataType) -> None:
    first, second = hash_column(pa.array([one, other], kind)).tolist()
    assert first != second


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_a_nan_is_a_nan(kind: pa.DataType) -> None:
    quiet = np.array([math.nan, -math.nan], kind.to_pandas_dtype())
    assert len(set(hash_column(pa.array(quiet)).tolist())) == 1


def test_columns_are_told_apart_by_their_place() -> None:
    one, other = pa.array(["a", "b"]), pa.array(["b", "a"])
    assert hash_rows([one, other], 2).tolist()[0] != hash_rows([other, one], 2).tolist()[0]
    assert hash_rows([pa.array(["ab"]), pa.array(["c"])], 1) != hash_rows([pa.array(["a"]), pa.array(["bc"])], 1)


def test_numbers_are_spread() -> None:
    """Over buckets, by their first bits: of a sequence, and of texts of it."""
    for column in (pa.array(range(100_000)), pa.array([f"{n:08}" for n in range(100_000)])):
        hashes = hash_rows([column], 100_000)
        assert len(np.unique(hashes)) == 100_000
        counts = np.bincount((hashes >> np.uint64(52)).astype(np.int64), minlength=4096)
        assert counts.min() >= 1
        assert counts.max() < 70
