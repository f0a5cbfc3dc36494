"""Rows of a table by their places, at a cost in proportion to what is taken.

Arrow's own `take` first joins the chunks of a column of strings: all that is there is copied for a few rows of it, and
beyond 2 GB it fails.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_FEW = 4
_LARGE = 1 << 30


def taken(rows: pa.Table, places: Ints) -> pa.Table:
    """The rows at these places, in this order."""
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
    """Of places that come in runs, each within one chunk."""
    found = []
    for run in np.split(places, edges):
        number = int(np.searchsorted(ends, run[0], side="right"))
        chunk = column.chunk(number)
        found.append(chunk.take(pa.array(run - (ends[number] - len(chunk)))))
    return found
