"""Rows in the order of their keys, so that files and row groups have tight bounds of them.

The order is Arrow's (nulls and NaN last), of the key's columns up to the first that has none. It only serves to make
bounds tight: nothing relies on it, so rows that are out of order, whoever wrote them, are found and kept like any.
"""

from __future__ import annotations

import math
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

from airflow_provider_pgetl.engine.destinations.delta.files.lookup import taken
from airflow_provider_pgetl.engine.destinations.delta.log.actions import Bounds

Ints = NDArray[np.int64]
Item = TypeVar("Item")


def sortable(schema: pa.Schema, key: Sequence[str]) -> tuple[str, ...]:
    """The columns to sort by; none where the key begins with a list."""
    return tuple(takewhile(lambda name: not pa.types.is_nested(schema.field(name).type), key))


def in_key_order(rows: pa.Table, order: Sequence[str]) -> pa.Table:
    """The same rows, sorted by the columns `order`; without a copy where they are already."""
    if not order or _is_sorted(rows.select(order)):
        return rows
    return rows.combine_chunks().take(pa.array(sorted_places(rows, order)))


def _is_sorted(keys: pa.Table) -> bool:
    """False also where nulls or NaN are among them."""
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
    """Where the rows are, from the first in order to the last."""
    keys = rows.select(order).combine_chunks()
    return np.asarray(pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in order]), np.int64)


def clusters(items: Sequence[Item], bounds_of: Callable[[Item], Bounds | None]) -> Iterator[list[Item]]:
    """In rising order, those together whose bounds overlap; all together where the bounds of one are not known."""
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
    """There is no order."""


def _known(bounds: Bounds | None) -> Bounds:
    if bounds is None or bounds[0] is None or bounds[1] is None:
        raise _Unbounded
    return bounds


def merged_runs(runs: Sequence[Iterator[pa.Table]], order: Sequence[str], size: int) -> Iterator[pa.Table]:
    """The rows of all runs as one, sorted as far as each of them is. A run comes in tables of about `size` bytes, of
    which so much is held: up to one and a half of each run, and the same again while they are put in order."""
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
    """What is held of one run: its first rows."""

    def __init__(self, run: Iterator[pa.Table], size: int) -> None:
        self._run = run
        self._size = size
        self.is_last = False
        self.rows: pa.Table = pa.table({})

    def fill(self) -> None:
        """When half is gone, so that each round has much to give however many runs there are."""
        if self.is_last or (self.rows.num_rows and 2 * self.rows.nbytes >= self._size):
            return
        more = next(self._run, None)
        if more is None:
            self.is_last = True
        else:
            self.rows = pa.concat_tables([self.rows, more]) if self.rows.num_rows else more


def _least(heads: Sequence[_Head], order: Sequence[str]) -> pa.Table:
    """Take from the heads the rows up to the one after which some run may have others."""
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


# -- What a file's footer tells of the keys in each of its row groups: which of them to read, and which lie in order.
#
# Files are written by others as well, and a bound is trusted only where it cannot mislead: a group is left out if its
# statistics are there, of a column of the same kind as the table's, and rule out every key. A bound may be a string
# that was cut: whatever begins like an upper bound is taken to lie below it. NaN has no place in an order, and lies
# between any bounds.

_UNTOLD = (pa.ArrowException, ValueError, OverflowError, TypeError)
"""A bound that Python has no word for, or that is no value of the column's type."""


@dataclass(frozen=True, slots=True)
class Run:
    """Row groups that follow each other in the file and, as far as their bounds tell, in the order of the key."""

    groups: tuple[int, ...]
    bounds: Bounds | None


class RowGroups:
    """`found` is the file's schema."""

    def __init__(self, footer: pq.FileMetaData, found: pa.Schema) -> None:
        self._footer = footer
        self._types = dict(zip(found.names, found.types, strict=True))
        self._places = {footer.schema.column(at).path: at for at in range(footer.num_columns)}
        counts = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
        self.starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])

    def __len__(self) -> int:
        return int(self._footer.num_row_groups)

    def bounds(self, group: int, wanted: pa.Field) -> Bounds | None:
        """Of the values that are there of a column; None where they are not known for certain."""
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
        """Those that may have one of the keys; all, if to compare the keys with each would take longer than to read."""
        if len(self) * keys.num_rows > self._footer.num_rows:
            return list(range(len(self)))
        fields = list(keys.schema)
        return [group for group in range(len(self)) if _admits(keys, [self.bounds(group, one) for one in fields])]

    def overlapping(self, names: Sequence[str], bounds: Sequence[Bounds | None]) -> list[int]:
        """Those that may have a row within these bounds, of a file that we have written: no bound is cut. Rows that
        have null, and numbers that may be NaN, lie within any."""
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
        """All row groups, in runs by this column."""
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
