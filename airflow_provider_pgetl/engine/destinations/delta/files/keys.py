"""Keys of rows, with operations on whole columns: finding rows by their keys, and sorting rows by them."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from airflow_provider_pgetl.engine.destinations.delta.log.actions import Bounds

# -- Finding rows by keys of one or more columns. ----------------------------------------------------------------------
#
# A `Lookup` is built from the keys to look for, each of them once. Given the key columns of other rows, it returns for
# each row the number of its key, or null if the key is none of those looked for. Values are compared exactly: -0.0 is
# not equal to 0.0, NaN equals NaN, null equals null.


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


# -- Sorting rows by their keys, so that files and row groups have tight bounds of the keys. ---------------------------
#
# The order is Arrow's (nulls and NaN last), by the columns of the key up to the first that cannot be sorted. It only
# makes bounds tight. Nothing else relies on it: rows that are out of order, whichever writer made them, are found and
# kept like all others.

Item = TypeVar("Item")


def sortable(schema: pa.Schema, key: Sequence[str]) -> tuple[str, ...]:
    """Returns the columns to sort by; none if the key begins with a list."""
    return tuple(takewhile(lambda name: not pa.types.is_nested(schema.field(name).type), key))


def in_key_order(rows: pa.Table, order: Sequence[str]) -> pa.Table:
    """Returns the rows sorted by the columns `order`, without copying them if they are sorted already."""
    if not order or _is_sorted(rows.select(order)):
        return rows
    return rows.combine_chunks().take(pa.array(sorted_places(rows, order)))


def _is_sorted(keys: pa.Table) -> bool:
    """Whether keys are sorted. Also False if there are nulls or NaN among them."""
    if keys.num_rows < 2:
        return True
    undecided: Any = True
    for column in keys.columns:
        before, after = column.slice(0, keys.num_rows - 1), column.slice(1)
        in_order = pc.fill_null(pc.less_equal(before, after), False)
        if pc.any(pc.and_not(undecided, in_order)).as_py():
            return False
        undecided = pc.and_(undecided, pc.equal(before, after))
        if not pc.any(undecided).as_py():
            return True
    return True


def sorted_places(rows: pa.Table, order: Sequence[str]) -> Ints:
    """Returns the numbers of the rows, from the first in order to the last."""
    keys = rows.select(order).combine_chunks()
    return np.asarray(pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in order]), np.int64)


def clusters(items: Sequence[Item], bounds_of: Callable[[Item], Bounds | None]) -> Iterator[list[Item]]:
    """Groups items whose bounds overlap, in rising order; all items are one group if the bounds of one are unknown."""
    try:
        bounded = sorted(((*_known(bounds_of(one)), one) for one in items), key=lambda found: found[0])
        found: list[list[Item]] = []
        end = None
        for least, most, one in bounded:
            if end is None or least > end:
                found.append([])
            found[-1].append(one)
            end = most if end is None else max(end, most)
    except (_Unbounded, TypeError):
        found = [list(items)]
    yield from found


class _Unbounded(Exception):
    """An item has no bounds, so that items cannot be ordered."""


def _known(bounds: Bounds | None) -> Bounds:
    if bounds is None or bounds[0] is None or bounds[1] is None:
        raise _Unbounded
    return bounds


def merged_runs(runs: Sequence[Iterator[pa.Table]], order: Sequence[str], size: int) -> Iterator[pa.Table]:
    """Merges the rows of all runs, sorted as far as each run is. A run is read in tables of about `size` bytes. Up to
    one and a half tables of each run are held, and the same amount again while they are sorted."""
    if len(runs) == 1:
        for rows in runs[0]:
            yield in_key_order(rows, order)
        return
    heads = [_Head(run, size) for run in runs]
    while heads:
        for one in heads:
            one.fill()
        heads = [one for one in heads if one.rows.num_rows]
        if heads:
            yield _least(heads, order)


class _Head:
    """The rows held of one run: the first of those that remain."""

    def __init__(self, run: Iterator[pa.Table], size: int) -> None:
        self._run = run
        self._size = size
        self.is_last = False
        self.rows: pa.Table = pa.table({})

    def fill(self) -> None:
        """Reads on when half of the rows are consumed, so that each round returns many rows, however many runs there
        are."""
        if self.is_last or (self.rows.num_rows and 2 * self.rows.nbytes >= self._size):
            return
        more = next(self._run, None)
        if more is None:
            self.is_last = True
        else:
            self.rows = pa.concat_tables([self.rows, more]) if self.rows.num_rows else more


def _least(heads: Sequence[_Head], order: Sequence[str]) -> pa.Table:
    """Removes the least rows from the heads and returns them in order: up to the first row that is the last held row of
    a run that may have more."""
    whole = pa.concat_tables([one.rows for one in heads])
    places = sorted_places(whole, order)
    counts = [one.rows.num_rows for one in heads]
    owners = np.repeat(np.arange(len(heads)), counts)[places]
    lasts = np.zeros(len(heads), np.int64)
    lasts[owners] = np.arange(len(places))
    going = [last for last, one in zip(lasts.tolist(), heads, strict=True) if not one.is_last]
    cut = min(going) + 1 if going else len(places)
    starts = np.concatenate([[0], np.cumsum(counts)])
    for number, one in enumerate(heads):
        kept = places[cut:][owners[cut:] == number] - starts[number]
        one.rows = taken(one.rows, kept)
    return taken(whole, places[:cut])


# -- Statistics in a file's footer: which row groups may have certain keys, and which follow each other in order. ------
#
# Files may come from other writers, so a bound is used only where it cannot mislead: a row group is left out only if it
# has statistics, for a column of the same kind as the table's, and these exclude every key. A bound may be a string
# that was cut: values that begin with an upper bound are taken to lie below it. NaN has no place in the order, and
# counts as within any bounds.

_UNTOLD = (pa.ArrowException, ValueError, OverflowError, TypeError)
"""Errors for a bound that Python cannot represent, or that is no value of the column's type."""


@dataclass(frozen=True, slots=True)
class Run:
    """Row groups that follow each other in the file and, judged by their bounds, in the order of the key."""

    groups: tuple[int, ...]
    bounds: Bounds | None


class RowGroups:
    """The row groups of one file. `found` is the file's schema."""

    def __init__(self, footer: pq.FileMetaData, found: pa.Schema) -> None:
        self._footer = footer
        self._types = dict(zip(found.names, found.types, strict=True))
        self._places = {footer.schema.column(at).path: at for at in range(footer.num_columns)}
        counts = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
        self.starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])

    def __len__(self) -> int:
        return int(self._footer.num_row_groups)

    def bounds(self, group: int, wanted: pa.Field) -> Bounds | None:
        """Returns the bounds of a column's non-null values; None if they are not known for certain."""
        name = wanted.name
        if name not in self._places or not _alike(self._types[name], wanted.type):
            return None
        told = self._footer.row_group(group).column(self._places[name]).statistics
        if told is None or not told.has_min_max:
            return None
        try:
            least, most = told.min, told.max
        except _UNTOLD:
            return None
        is_nan = any(isinstance(value, float) and math.isnan(value) for value in (least, most))
        return None if is_nan else (least, most)

    def admitting(self, keys: pa.Table) -> list[int]:
        """Returns the row groups that may have one of the keys; all groups, if comparing the keys with each would take
        longer than reading them."""
        if len(self) * keys.num_rows > self._footer.num_rows:
            return list(range(len(self)))
        fields = list(keys.schema)
        return [group for group in range(len(self)) if _admits(keys, [self.bounds(group, one) for one in fields])]

    def overlapping(self, names: Sequence[str], bounds: Sequence[Bounds | None]) -> list[int]:
        """Returns the row groups that may have a row within these bounds. The file must be one that pgetl has written,
        where no bound is cut. Nulls, and floats, which may be NaN, count as within any bounds."""
        return [group for group in range(len(self)) if all(map(partial(self._overlaps, group), names, bounds))]

    def _overlaps(self, group: int, name: str, bounds: Bounds | None) -> bool:
        field = pa.field(name, self._types[name])
        found = self.bounds(group, field)
        nulls = self._footer.row_group(group).column(self._places[name]).statistics if found else None
        if bounds is None or found is None or nulls is None or nulls.null_count or pa.types.is_floating(field.type):
            return True
        least, most = bounds
        return (least is None or found[1] >= least) and (most is None or found[0] <= most)

    def runs(self, column: pa.Field) -> Iterator[Run]:
        """Yields all row groups, divided into runs by this column."""
        groups: list[int] = []
        least: Any = None
        most: Any = None
        for group in range(len(self)):
            found = self.bounds(group, column)
            if groups and (found is None or most is None or found[0] < most):
                yield Run(tuple(groups), None if most is None else (least, most))
                groups = []
            if not groups:
                least = None if found is None else found[0]
            groups.append(group)
            most = None if found is None else found[1]
        if groups:
            yield Run(tuple(groups), None if most is None else (least, most))


def _alike(found: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_signed_integer(wanted):
        return bool(pa.types.is_signed_integer(found))
    if pa.types.is_string(wanted):
        return bool(pa.types.is_string(found) or pa.types.is_large_string(found))
    return bool(found == wanted and not pa.types.is_nested(wanted))


def _admits(keys: pa.Table, bounds: Sequence[Bounds | None]) -> bool:
    kept = pa.chunked_array([np.ones(keys.num_rows, np.bool_)])
    for column, bound in zip(keys.columns, bounds, strict=True):
        if bound is not None:
            kept = pc.and_(kept, _within(column, bound))
    return bool(pc.any(kept).as_py())


def _within(column: pa.ChunkedArray, bounds: Bounds) -> Any:
    try:
        least, most = (pa.scalar(value, column.type) for value in bounds)
    except _UNTOLD:
        return True
    below = pc.less_equal(column, most)
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        below = pc.or_(below, pc.starts_with(column, bounds[1]))
    within = pc.and_(pc.greater_equal(column, least), below)
    if pa.types.is_floating(column.type):
        within = pc.or_(within, pc.is_nan(column))
    return pc.fill_null(within, True)
