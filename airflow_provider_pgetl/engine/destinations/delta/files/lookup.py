"""Finds rows by keys of one or more columns, with operations on whole columns.

A `Lookup` is built from the keys to look for, each of them once. Given the key columns of other rows, it returns for
each row the number of its key, or null if the key is none of those looked for. Values are compared exactly: -0.0 is not
equal to 0.0, NaN equals NaN, null equals null.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from airflow_provider_pgetl.engine.destinations.delta.log.actions import Bounds


class Lookup:
    """Numbers the distinct values of each column; combines the numbers of a row's columns, one after the other, into
    one."""

    def __init__(self, keys: pa.Table) -> None:
        self.keys = keys
        self._steps: list[tuple[pa.Array, pa.Array | None]] = []
        if keys.num_columns == 1:
            self._steps.append((_hashable(keys.column(0)).unique(), None))
        else:
            self._combine()

    def _combine(self) -> None:
        code: pa.Array = pa.array(np.zeros(len(self), np.int64))
        for column in self.keys.columns:
            values = _hashable(column).unique()
            combined = _combine(code, pc.index_in(_hashable(column), value_set=values), len(values))
            distinct = combined.unique()
            self._steps.append((values, distinct))
            code = pc.index_in(combined, value_set=distinct)

    @property
    def codes(self) -> pa.Array:
        """The numbers of the keys themselves. If keys occur several times, these differ from their row numbers."""
        return self.find(self.keys)

    def __len__(self) -> int:
        return int(self.keys.num_rows)

    def find(self, columns: pa.Table) -> pa.Array:
        code: pa.Array = pa.array(np.zeros(columns.num_rows, np.int64))
        for column, (values, distinct) in zip(columns.columns, self._steps, strict=True):
            found = pc.index_in(_hashable(column), value_set=values)
            if found.null_count == len(found):
                return pa.nulls(columns.num_rows, pa.int32())
            if distinct is None:
                return found
            code = pc.index_in(_combine(code, found, len(values)), value_set=distinct)
        return code

    def within(self, bounds: Sequence[Bounds | None]) -> Lookup | None:
        """Returns a lookup of the keys that a file with these bounds may have; None if it can have none of them."""
        kept = pa.array(np.ones(len(self), np.bool_))
        for column, bound in zip(self.keys.columns, bounds, strict=True):
            if bound is not None:
                kept = pc.and_(kept, _between(column, bound))
        if not pc.any(kept).as_py():
            return None
        return self if pc.all(kept).as_py() else Lookup(self.keys.filter(kept))


class SortedKeys:
    """The first column of some keys, sorted, to find quickly which of very many files may have one of the keys."""

    def __init__(self, keys: pa.Table) -> None:
        column = keys.column(0)
        self._values: list[Any] | None = None
        if column.null_count or pa.types.is_floating(column.type) or pa.types.is_nested(column.type):
            return  # null and NaN have no place in an order
        try:
            self._values = pc.unique(column).sort().to_pylist()
        except (ValueError, OverflowError, pa.ArrowNotImplementedError):
            return  # a date that Python cannot represent

    def any_within(self, bounds: Sequence[Bounds | None]) -> bool:
        """Returns False only if no key lies within these bounds of the key columns."""
        if self._values is None or bounds[0] is None:
            return True
        least, most = bounds[0]
        if least is None or most is None:
            return True
        return bisect_left(self._values, least) < bisect_right(self._values, most)


def _combine(code: pa.Array, found: pa.Array, width: int) -> pa.Array:
    """Combines two numbers into one; null if either is null."""
    return pc.add(pc.multiply(pc.cast(code, pa.int64()), width), pc.cast(found, pa.int64()))


def _hashable(column: pa.ChunkedArray) -> pa.Array:
    """Returns one array of a type whose values Arrow can compare; lists are replaced by their printed form."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not pa.types.is_nested(whole.type):
        return whole
    return pa.array([None if value is None else repr(value) for value in whole.to_pylist()], pa.string())


def _between(column: pa.ChunkedArray, bounds: Bounds) -> pa.ChunkedArray:
    """NaN counts as within any bounds, because it has no place in the order."""
    least, most = (pa.scalar(value, column.type) for value in bounds)
    within = pc.and_(pc.greater_equal(column, least), pc.less_equal(column, most))
    if pa.types.is_floating(column.type):
        within = pc.or_(within, pc.is_nan(column))
    return pc.fill_null(within, True)


# -- Taking rows of a table by their numbers, at a cost in proportion to the rows taken. -------------------------------
#
# Arrow's own `take` first joins the chunks of a string column: it copies the whole column for a few of its rows, and
# fails beyond 2 GB.

Ints = NDArray[np.int64]

_FEW = 4
_LARGE = 1 << 30


def taken(rows: pa.Table, places: Ints) -> pa.Table:
    """Returns the rows with these numbers, in this order."""
    arrays = [_taken(column, np.asarray(places, np.int64)) for column in rows.columns]
    return pa.Table.from_arrays(arrays, schema=rows.schema)


def _taken(column: pa.ChunkedArray, places: Ints) -> pa.ChunkedArray:
    if column.num_chunks <= 1 or not len(places) or pa.types.is_primitive(column.type):
        return column.take(pa.array(places))
    ends = np.cumsum([len(chunk) for chunk in column.chunks])
    which = np.searchsorted(ends, places, side="right")
    edges = np.flatnonzero(np.diff(which)) + 1
    if len(edges) <= _FEW * column.num_chunks or column.nbytes >= _LARGE:
        return pa.chunked_array(_runs(column, ends, places, edges), type=column.type)
    order = np.argsort(which, kind="stable")
    edges = np.flatnonzero(np.diff(which[order])) + 1
    sorted_by_chunk = pa.concat_arrays(_runs(column, ends, places[order], edges))
    back = np.empty(len(places), np.int64)
    back[order] = np.arange(len(places))
    return pa.chunked_array([sorted_by_chunk.take(pa.array(back))], type=column.type)


def _runs(column: pa.ChunkedArray, ends: Ints, places: Ints, edges: Ints) -> list[pa.Array]:
    """Takes the rows at `places`, which `edges` divide into runs; each run lies within one chunk."""
    found = []
    for run in np.split(places, edges):
        number = int(np.searchsorted(ends, run[0], side="right"))
        chunk = column.chunk(number)
        found.append(chunk.take(pa.array(run - (ends[number] - len(chunk)))))
    return found
