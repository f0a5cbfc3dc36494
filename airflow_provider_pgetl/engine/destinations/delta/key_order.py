"""Rows in the order of their keys, so that files and row groups have tight bounds of them.

The order is Arrow's (nulls and NaN last), of the key's columns up to the first that has none. It only serves to make
bounds tight: nothing relies on it, so rows that are out of order, whoever wrote them, are found and kept like any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from airflow_provider_pgetl.engine.destinations.delta.statistics import Bounds
from airflow_provider_pgetl.engine.destinations.delta.taking import taken

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
