"""Merging net changes into a table's files: the one unit of work, wherever it runs.

    changes + one file ──▶ nothing to do, or: the file's rows as they are now, in new files

* Only files whose bounds admit a changed key are opened; of those only the key columns of the row groups that admit one
  are read, until one matches.
* A file is rewritten piece by piece, each bounded in bytes. Rows that no change names pass through.
* Changes are held whole; whoever calls bounds them. A table may be merged into again and again before anything is
  committed: each merge starts from the files that the one before has left (`WorkingSet`).

What it does not do: commit, or decide whether it may.
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
from airflow_provider_pgetl.engine.destinations.delta.files.key_order import in_key_order, sorted_places
from airflow_provider_pgetl.engine.destinations.delta.files.lookup import Lookup, taken
from airflow_provider_pgetl.engine.runtime.processes import WORKING

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

DELETE, UPDATE, MOVE = 0, 1, 2


@dataclass(frozen=True)
class Changes:
    """The net effect on a table with a key.

    The rows known by the keys `deletes` go. The one known by `bases[i]` becomes `rows[i]`, under another key where
    `moves[i]`; `absent` says per column of which `rows` it keeps the old value. `inserts` are new to the table.
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
        """For files that have columns of others as well: rows that are there keep what they have in them."""
        lacking = layout.lacking(self.rows)
        if not lacking:
            return self
        keeps = {field.name: np.ones(self.rows.num_rows, np.bool_) for field in lacking}
        rows, inserts = layout.widened(self.rows), layout.widened(self.inserts)
        return replace(self, rows=rows, absent={**self.absent, **keeps}, inserts=inserts)

    def in_key_order(self, order: Sequence[str]) -> Changes:
        """The same, deletes as well as changed rows by the keys under which they are known."""
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
        """Those of all rows that are to be found."""
        return pa.concat_tables([self.deletes, self.bases])

    @cached_property
    def actions(self) -> NDArray[np.int8]:
        """What is to be done with the row of each of `keys`."""
        kept = np.where(self.moves, np.int8(MOVE), np.int8(UPDATE))
        return np.concatenate([np.full(self.deletes.num_rows, DELETE, np.int8), kept])

    @cached_property
    def sources(self) -> Ints:
        """Of each of `keys` which of `rows` it becomes, negative where it goes."""
        return np.arange(-self.deletes.num_rows, self.rows.num_rows)


@dataclass
class Effect:
    """What comes of merging into one file or several, by several threads. `hit` says which changes found their row.
    Rows that are known by another key now are handed to `move` as they come: with their old values they may be far
    larger than the changes."""

    hit: Mask
    move: Callable[[pa.Table], None]
    _lock: Lock = field(default_factory=Lock)

    def moved(self, rows: pa.Table) -> None:
        with self._lock:
            self.move(rows)


class FileMerge:
    """Changes, and one file that they may touch.

    Found first, by the key columns alone: `_places` are the rows of the file that changes name, by their numbers in it
    and rising, `_hits` which change each is named by. There are no more of them than changes, however many rows.
    """

    def __init__(self, changes: Changes, reader: FileReader, marks: Marks, lookup: Lookup, numbers: Ints) -> None:
        """`marks` are the deleted rows of the file; `numbers` says which change each key of the lookup is."""
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
        """The file's rows as they are now; what moved, and what was hit, goes into `effect`."""
        for numbers, rows in self._reader.live_batches(self._marks):
            here = slice(*np.searchsorted(self._places, [numbers[0], numbers[-1] + 1]))
            places = np.searchsorted(numbers, self._places[here])
            yield from self._bounded(rows, places, self._hits[here], effect)

    def _bounded(self, rows: pa.Table, places: Ints, hits: Ints, effect: Effect) -> Iterator[pa.Table]:
        """In as many parts as it takes for new values, which may be far larger than old ones, to be few at a time."""
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
    """The rows that these changes make of the old ones at `places`."""
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
    """Rows without a key: of each row to delete, as many equal ones go as are asked for."""

    def __init__(self, deletes: pa.Table) -> None:
        self.lookup = Lookup(deletes)
        self._remaining = np.bincount(self.lookup.codes.to_numpy()).astype(np.int64)

    @property
    def missed(self) -> int:
        return int(self._remaining.sum())

    def doomed(self, rows: pa.Table) -> Ints:
        """Which of these rows go, by their numbers and rising. Each row is asked about once, in any order."""
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
    """Which keys of `lookup` those of `within` are."""
    if within is lookup:
        return np.arange(len(lookup))
    return np.asarray(lookup.find(within.keys).to_numpy())


# -- Two nets of one table made one, so that the table's files are rewritten once for both. ----------------------------
#
# What the second does to rows that the first has touched, or brought, is done to those rows here, as it would be done
# to rows of a file; the rest of the second stands beside the first. Folding is costly in memory, nets are compact: so a
# large batch is folded in pieces, and the pieces are composed.


def composed(first: Changes, then: Changes) -> Changes | None:
    """What both amount to, one after the other; None if that cannot be said without looking into the table."""
    if not first or not then:
        return _beside(first, then)
    names = then.keys.column_names
    if any(name in one.absent for name in names for one in (first, then)):
        return None
    lookup = Lookup(then.keys)
    on_inserts, on_rows = lookup.find(first.inserts.select(names)), lookup.find(first.rows.select(names))
    rest = np.ones(len(then.actions), np.bool_)
    rest[_hits(on_inserts)] = rest[_hits(on_rows)] = False
    if _speaks_of_gone(first, then, rest):
        return None
    inserts = _changed_inserts(first.inserts, then, on_inserts)
    return _beside(_changed_rows(first, then, on_rows, inserts), _only(then, rest))


def _speaks_of_gone(first: Changes, then: Changes, rest: Mask) -> bool:
    """Whether the second changes rows that are not there any more."""
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
    """What is new stays new, under whatever key; or it never was."""
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
    """The chosen ones of the changes, and all inserts."""
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
    """Of changes that do not concern the same rows."""
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
    """The rows with others in those places."""
    if not len(places):
        return rows
    order = np.arange(rows.num_rows)
    order[places] = rows.num_rows + np.arange(len(places))
    return taken(pa.concat_tables([rows, fresh]), order)


# -- Nets that come one after the other, made few before they are merged: files are rewritten once for many. -----------
#
# Of two neighbours of about one size one is made (`merging`), so that each net is copied a few times only, however many
# come. Where two cannot be made one, all that came before is merged first.

_COMPOSED_TIMES = 2


class Nets:
    """`merge` is given what is to be merged, in order. What is held is never more than `limit`, and one net."""

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
        """Merge all that is held."""
        while len(self._held) > 1:
            self._unite()
        for net in self._held:
            self._merge(net)
        self._held = []

    def drop(self) -> None:
        """It counts for nothing any more."""
        self._held = []

    def _unite(self) -> None:
        """The last two become one, or else the last remains alone."""
        *before, first, then = self._held
        with WORKING.taken(_COMPOSED_TIMES * (first.nbytes + then.nbytes)):
            both = composed(first, then)
        if both is not None:
            self._held = [*before, both]
            return
        self._held = [*before, first]
        self.settle()
        self._held = [then]
