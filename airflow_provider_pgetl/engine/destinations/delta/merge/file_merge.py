"""Merges net changes into a file of a table. This is the unit of work in the worker and in tasks of a merge.

    changes + one file ──▶ nothing to do, or: the file's rows after the changes, in new files

* Only files whose bounds admit a changed key are opened. In these, only the key columns of the row groups that admit
  such a key are read at first. The whole file is read only if a key matches.
* A file is rewritten in pieces that are bounded in bytes. Rows that no change refers to are passed through.
* Changes are held in memory as a whole; the caller must bound them. A table may be merged into repeatedly before
  anything is committed: each merge starts from the files that the one before has left (`WorkingSet`).

This module does not commit, and does not decide whether a commit is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from airflow_provider_pgetl.engine.destinations.delta.files.data_files import BATCH_BYTES, FileReader, Layout
from airflow_provider_pgetl.engine.destinations.delta.files.deletion_vectors import Marks
from airflow_provider_pgetl.engine.destinations.delta.files.keys import Lookup, in_key_order, sorted_places, taken
from airflow_provider_pgetl.engine.runtime.processes import WORKING

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

DELETE, UPDATE, MOVE = 0, 1, 2


@dataclass(frozen=True)
class Changes:
    """The net effect on a table with a key.

    The rows with the keys `deletes` are deleted. The row with the key `bases[i]` becomes `rows[i]`, which has another
    key if `moves[i]`. `absent` has for each column a mask of the `rows` that keep the old value. `inserts` are new
    rows.
    """

    deletes: pa.Table
    bases: pa.Table
    moves: Mask
    rows: pa.Table
    absent: Mapping[str, Mask]
    inserts: pa.Table

    def __bool__(self) -> bool:
        return bool(self.keys.num_rows or self.inserts.num_rows)

    def widened(self, layout: Layout) -> Changes:
        """Adapts the changes to files with columns that others added: existing rows keep their values in these."""
        lacking = layout.lacking(self.rows)
        if not lacking:
            return self
        keeps = {field.name: np.ones(self.rows.num_rows, np.bool_) for field in lacking}
        rows, inserts = layout.widened(self.rows), layout.widened(self.inserts)
        return replace(self, rows=rows, absent={**self.absent, **keeps}, inserts=inserts)

    def in_key_order(self, order: Sequence[str]) -> Changes:
        """Returns the changes sorted: deletes and changed rows by the keys that they have in the table."""
        if not order:
            return self
        places = sorted_places(self.bases, order)
        return replace(
            self,
            deletes=in_key_order(self.deletes, order),
            bases=taken(self.bases, places),
            moves=self.moves[places],
            rows=taken(self.rows, places),
            absent={name: mask[places] for name, mask in self.absent.items()},
        )

    @property
    def nbytes(self) -> int:
        return sum(int(table.nbytes) for table in (self.deletes, self.bases, self.rows, self.inserts))

    @cached_property
    def keys(self) -> pa.Table:
        """The keys of all rows to find: those of `deletes`, then `bases`."""
        return pa.concat_tables([self.deletes, self.bases])

    @cached_property
    def actions(self) -> NDArray[np.int8]:
        """The action for the row of each of `keys`: DELETE, UPDATE or MOVE."""
        kept = np.where(self.moves, np.int8(MOVE), np.int8(UPDATE))
        return np.concatenate([np.full(self.deletes.num_rows, DELETE, np.int8), kept])

    @cached_property
    def sources(self) -> Ints:
        """For each of `keys` the index in `rows` of its new row; negative if it is deleted."""
        return np.arange(-self.deletes.num_rows, self.rows.num_rows)


@dataclass
class Effect:
    """Collects the results of merging into one or several files, by several threads. `hit` marks the changes that
    found their row. Rows whose key has changed are passed to `move` immediately: with their old values they may be far
    larger than the changes."""

    hit: Mask
    move: Callable[[pa.Table], None]
    _lock: Lock = field(default_factory=Lock)

    def moved(self, rows: pa.Table) -> None:
        with self._lock:
            self.move(rows)


class FileMerge:
    """The merge of changes into one file that they may touch.

    The constructor finds the matching rows by the key columns alone: `_places` are the numbers, in the file and rising,
    of the rows that changes refer to; `_hits` are the numbers of these changes. There are at most as many as changes,
    however many rows the file has.
    """

    def __init__(self, changes: Changes, reader: FileReader, marks: Marks, lookup: Lookup, numbers: Ints) -> None:
        """`marks` are the deleted rows of the file; `numbers` has the number of its change for each key of `lookup`."""
        self._changes = changes
        self._reader = reader
        self._marks = marks
        places, hits = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        groups = reader.groups.admitting(lookup.keys)
        for rows, keys in reader.live_batches(marks, changes.keys.column_names, groups):
            found = lookup.find(keys)
            if found.null_count < len(found):
                places.append(rows[pc.is_valid(found).to_numpy(zero_copy_only=False)])
                hits.append(numbers[found.drop_null().to_numpy()])
        self._places, self._hits = np.concatenate(places), np.concatenate(hits)

    @property
    def touches(self) -> bool:
        return len(self._places) > 0

    def run(self, effect: Effect) -> Iterator[pa.Table]:
        """Yields the file's rows after the changes; records moved rows and matched changes in `effect`."""
        for numbers, rows in self._reader.live_batches(self._marks):
            here = slice(*np.searchsorted(self._places, [numbers[0], numbers[-1] + 1]))
            places = np.searchsorted(numbers, self._places[here])
            yield from self._bounded(rows, places, self._hits[here], effect)

    def _bounded(self, rows: pa.Table, places: Ints, hits: Ints, effect: Effect) -> Iterator[pa.Table]:
        """Yields the merged rows in several parts, so that new values, which may be far larger than old ones, are of
        bounded size in each part."""
        fresh = len(places) * self._changes.rows.nbytes // max(self._changes.rows.num_rows, 1)
        edges = np.linspace(0, rows.num_rows, 2 + min(fresh // BATCH_BYTES, rows.num_rows), dtype=np.int64)
        for first, end in pairwise(edges.tolist()):
            here = slice(*np.searchsorted(places, [first, end]))
            yield self._merged(rows.slice(first, end - first), places[here] - first, hits[here], effect)

    def _merged(self, rows: pa.Table, places: Ints, hits: Ints, effect: Effect) -> pa.Table:
        if not len(places):
            return rows
        changes = self._changes
        effect.hit[hits] = True
        actions = changes.actions[hits]
        updated, moved = actions == UPDATE, actions == MOVE
        if moved.any():
            effect.moved(overlaid(changes, hits[moved], rows, places[moved]))
        order = np.arange(rows.num_rows)
        order[places[updated]] = rows.num_rows + np.arange(int(updated.sum()))
        stays = np.ones(rows.num_rows, np.bool_)
        stays[places[~updated]] = False
        if updated.any():
            fresh = overlaid(changes, hits[updated], rows, places[updated])
            rows = pa.concat_tables([rows, fresh])
        return taken(rows, order[stays])


def overlaid(changes: Changes, hits: Ints, old: pa.Table, places: Ints) -> pa.Table:
    """Returns the new rows that these changes make of the old rows at `places`."""
    sources = changes.sources[hits]
    fresh = taken(changes.rows, sources)
    for name, absent in changes.absent.items():
        keeps = absent[sources]
        if keeps.any():
            at = fresh.schema.get_field_index(name)
            both = pa.concat_tables([old.select([name]), fresh.select([name])])
            chosen = taken(both, np.where(keeps, places, old.num_rows + np.arange(len(keeps))))
            fresh = fresh.set_column(at, fresh.schema.field(at), chosen.column(0))
    return fresh


class BagMerge:
    """Deletes from a table without a key: as many equal rows as there are deletes of such a row."""

    def __init__(self, deletes: pa.Table) -> None:
        self.lookup = Lookup(deletes)
        self._remaining = np.bincount(self.lookup.codes.to_numpy()).astype(np.int64)

    @property
    def missed(self) -> int:
        return int(self._remaining.sum())

    def doomed(self, rows: pa.Table) -> Ints:
        """Returns the numbers, rising, of those of these rows that are deleted. Each row of the table must be passed
        only once; the order does not matter."""
        found = self.lookup.find(rows)
        places = np.flatnonzero(pc.is_valid(found).to_numpy(zero_copy_only=False))
        values = found.drop_null().to_numpy()
        order = np.argsort(values, kind="stable")
        ranks = np.empty(len(values), np.int64)
        starts = np.flatnonzero(np.diff(values[order], prepend=-1))
        lengths = np.diff(np.append(starts, len(values)))
        ranks[order] = np.arange(len(values)) - np.repeat(starts, lengths)
        goes = ranks < self._remaining[values]
        self._remaining -= np.bincount(values[goes], minlength=len(self._remaining))
        return np.asarray(places[goes])


def narrowed(lookup: Lookup, within: Lookup) -> Ints:
    """Returns the numbers that the keys of `within` have in `lookup`."""
    if within is lookup:
        return np.arange(len(lookup))
    return np.asarray(lookup.find(within.keys).to_numpy())


# -- Composition of two nets of one table, so that the table's files are rewritten once for both. ----------------------
#
# The changes of the second net to rows that the first has changed or inserted are applied to those rows here, as they
# would be to rows of a file; the other changes of the second are added to the first. Folding takes much memory, while
# nets are compact: so a large batch is folded in pieces, and the pieces are composed.


def composed(first: Changes, then: Changes) -> Changes | None:
    """Returns the net effect of both, one after the other; None if that requires reading the table."""
    if not first or not then:
        return _beside(first, then)
    names = then.keys.column_names
    if any(name in one.absent for name in names for one in (first, then)):
        return None
    lookup = Lookup(then.keys)
    on_inserts, on_rows = lookup.find(first.inserts.select(names)), lookup.find(first.rows.select(names))
    rest = np.ones(len(then.actions), np.bool_)
    rest[_hits(on_inserts)] = rest[_hits(on_rows)] = False
    if _changes_removed_rows(first, then, rest):
        return None
    inserts = _changed_inserts(first.inserts, then, on_inserts)
    return _beside(_changed_rows(first, then, on_rows, inserts), _only(then, rest))


def _changes_removed_rows(first: Changes, then: Changes, rest: Mask) -> bool:
    """Whether the second net changes rows that the first has deleted or moved to another key."""
    keys = then.keys.filter(pa.array(rest))
    if not keys.num_rows or not first.keys.num_rows:
        return False
    found = Lookup(first.keys).find(keys)
    return bool(found.null_count < len(found))


def _hits(found: pa.Array) -> Ints:
    return np.asarray(found.drop_null().to_numpy()).astype(np.int64)


def _places(found: pa.Array) -> Ints:
    return np.flatnonzero(pc.is_valid(found).to_numpy(zero_copy_only=False))


def _changed_inserts(inserts: pa.Table, then: Changes, found: pa.Array) -> pa.Table:
    """Applies the second net to the inserts of the first: they stay inserts, possibly with another key, or are dropped
    if they are deleted."""
    places, hits = _places(found), _hits(found)
    if not len(places):
        return inserts
    lives = then.sources[hits] >= 0
    kept = np.ones(inserts.num_rows, np.bool_)
    kept[places[~lives]] = False
    return _replaced(inserts, places[lives], overlaid(then, hits[lives], inserts, places[lives])).filter(pa.array(kept))


def _changed_rows(first: Changes, then: Changes, found: pa.Array, inserts: pa.Table) -> Changes:
    places, hits = _places(found), _hits(found)
    if not len(places):
        return Changes(first.deletes, first.bases, first.moves, first.rows, first.absent, inserts)
    sources = then.sources[hits]
    lives = sources >= 0
    moves = first.moves.copy()
    moves[places[lives]] |= then.moves[sources[lives]]
    rows = _replaced(first.rows, places[lives], overlaid(then, hits[lives], first.rows, places[lives]))
    absent = {name: mask.copy() for name, mask in first.absent.items()}
    for name, mask in absent.items():
        told = then.absent.get(name, np.zeros(then.rows.num_rows, np.bool_))
        mask[places[lives]] &= told[sources[lives]]
    kept = np.ones(first.rows.num_rows, np.bool_)
    kept[places[~lives]] = False
    return Changes(
        pa.concat_tables([first.deletes, first.bases.filter(pa.array(~kept))]),
        first.bases.filter(pa.array(kept)),
        moves[kept],
        rows.filter(pa.array(kept)),
        {name: mask[kept] for name, mask in absent.items()},
        inserts,
    )


def _only(changes: Changes, chosen: Mask) -> Changes:
    """Returns the chosen changes, and all inserts."""
    deletes, rows = np.split(chosen, [changes.deletes.num_rows])
    return Changes(
        changes.deletes.filter(pa.array(deletes)),
        changes.bases.filter(pa.array(rows)),
        changes.moves[rows],
        changes.rows.filter(pa.array(rows)),
        {name: mask[rows] for name, mask in changes.absent.items()},
        changes.inserts,
    )


def _beside(one: Changes, other: Changes) -> Changes:
    """Joins changes that do not concern the same rows."""
    absent = {
        name: np.concatenate([_mask(one, name), _mask(other, name)]) for name in one.absent.keys() | other.absent.keys()
    }
    return Changes(
        pa.concat_tables([one.deletes, other.deletes]),
        pa.concat_tables([one.bases, other.bases]),
        np.concatenate([one.moves, other.moves]),
        pa.concat_tables([one.rows, other.rows]),
        absent,
        pa.concat_tables([one.inserts, other.inserts]),
    )


def _mask(changes: Changes, name: str) -> Mask:
    return changes.absent.get(name, np.zeros(changes.rows.num_rows, np.bool_))


def _replaced(rows: pa.Table, places: Ints, fresh: pa.Table) -> pa.Table:
    """Returns the rows with those at `places` replaced by `fresh`."""
    if not len(places):
        return rows
    order = np.arange(rows.num_rows)
    order[places] = rows.num_rows + np.arange(len(places))
    return taken(pa.concat_tables([rows, fresh]), order)


# -- Composition of successive nets before they are merged, so that files are rewritten once for many nets. ------------
#
# Two neighbouring nets of about the same size are composed, so that each net is copied only a few times, however many
# there are. If two nets cannot be composed, all nets before the second are merged first.

_COMPOSED_TIMES = 2


class Nets:
    """Holds nets until they are merged. `merge` is called with the nets to merge, in order. At most `limit` bytes and
    one net are held."""

    def __init__(self, merge: Callable[[Changes], None], limit: int) -> None:
        self._merge = merge
        self._limit = limit
        self._held: list[Changes] = []

    @property
    def nbytes(self) -> int:
        return sum(net.nbytes for net in self._held)

    def add(self, net: Changes) -> None:
        self._held.append(net)
        while len(self._held) > 1 and self._held[-2].nbytes <= 2 * self._held[-1].nbytes:
            self._unite()
        if self.nbytes >= self._limit:
            self.settle()

    def settle(self) -> None:
        """Merges all nets held."""
        while len(self._held) > 1:
            self._unite()
        for net in self._held:
            self._merge(net)
        self._held = []

    def drop(self) -> None:
        """Drops all nets held without merging them."""
        self._held = []

    def _unite(self) -> None:
        """Composes the last two nets. If that is not possible, merges all but the last."""
        *before, first, then = self._held
        with WORKING.taken(_COMPOSED_TIMES * (first.nbytes + then.nbytes)):
            both = composed(first, then)
        if both is not None:
            self._held = [*before, both]
            return
        self._held = [*before, first]
        self.settle()
        self._held = [then]
