"""The net effect of a table's changes: each row of the destination is touched at most once.

A chain of changes to one row folds to (base key, overlay, target key): the row's present key in the destination, the
values that were sent since, and the row's new key. From these follows one of

* **delete** — the row with the key in `deletes` is deleted;
* **move** — the row with the key in `moves_from` gets the key and the values of `moves_to`; where a value is absent
  there, the row keeps its own;
* **update** — the row with the key in `updates` gets the values that are present there;
* **insert** — a whole row that the destination does not have.

Applied in this order, with *all* moved rows removed before any is inserted again, key swaps and chains of moves need no
special treatment: at the end of a transaction keys are unique, so the inserted rows cannot collide.

Keys are compared by their bytes. That is exact: the source identifies an old row by the same bytes that it sent before.

Most tables never move a key. Their changes, and in other tables those of keys that no move involves, are folded by
sorting (`_fold_plain`); only the chains that involve a key move are followed change by change (`_fold_moving`).

A table without a key is a bag of rows: `fold_bag` counts how often each row is deleted and inserted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from airflow_provider_pgetl.engine.changes.batch import DELETE, INSERT, WireRows
from airflow_provider_pgetl.engine.changes.tuples import ABSENT, Ints, Tuples, codes, missing


@dataclass(frozen=True, slots=True)
class Net:
    """The net effect on a table with a key. `deletes` and `moves_from` hold key columns only, the others all
    columns."""

    deletes: Tuples
    moves_from: Tuples
    moves_to: Tuples
    updates: Tuples
    inserts: Tuples


@dataclass(frozen=True, slots=True)
class NetBag:
    """The net effect on a table without a key: whole rows, each repeated as often as it is to be deleted or inserted.
    Each row in `deletes` deletes one equal row."""

    deletes: Tuples
    inserts: Tuples


def fold(rows: WireRows) -> Net:
    """Returns the net effect on a table with a key."""
    keys = _Keys(rows)
    moving = keys.touched_by_moves()
    plain = _fold_plain(rows, keys, np.flatnonzero(~moving))
    if not moving.any():
        return plain
    return _joined(plain, _fold_moving(rows, keys, np.flatnonzero(moving)))


def fold_bag(rows: WireRows) -> NetBag:
    """Returns the net effect on a table without a key, where every update and delete carries the whole old row."""
    gone, come = np.flatnonzero(rows.has_old), np.flatnonzero(rows.has_new)
    whole = rows.old.take(gone).concatenated(rows.new.take(come))
    values, first, inverse = np.unique(codes(whole), return_index=True, return_inverse=True)
    signs = np.concatenate([np.full(len(gone), -1), np.full(len(come), 1)])
    net = np.bincount(inverse, weights=signs, minlength=len(values)).astype(np.int64)
    return NetBag(
        whole.take(np.repeat(first, np.maximum(-net, 0))),
        whole.take(np.repeat(first, np.maximum(net, 0))),
    )


class _Keys:
    """Per change the codes of the key before it and after it, equal for equal keys; `before` holds the keys before."""

    def __init__(self, rows: WireRows) -> None:
        indexes = rows.schema.key_indexes
        new = rows.new.columns(indexes)
        before = Tuples(
            rows.buffer,
            *(
                np.where(rows.has_old, old, fresh)
                for old, fresh in zip(_matrices(rows.old.columns(indexes)), _matrices(new), strict=True)
            ),
        )
        self.before = before
        if not rows.has_old.any():
            self.old_codes = self.new_codes = codes(before)
            return
        both = codes(before.concatenated(new))
        self.old_codes = both[: len(rows)]
        self.new_codes = np.where(rows.has_new, both[len(rows) :], self.old_codes)

    def touched_by_moves(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Returns per change whether its old or new key is the old or new key of any key move."""
        moved = self.old_codes != self.new_codes
        if not moved.any():
            return np.asarray(moved)
        involved = np.concatenate([self.old_codes[moved], self.new_codes[moved]])
        return np.isin(self.old_codes, involved) | np.isin(self.new_codes, involved)


def _matrices(tuples: Tuples) -> tuple[Ints, Ints, Ints]:
    return tuples.kinds, tuples.offsets, tuples.lengths  # type: ignore[return-value]  # kinds are bytes, widened


def _fold_plain(rows: WireRows, keys: _Keys, chosen: Ints) -> Net:
    """Folds changes that move no key: sorts them by key and keeps the result of the last change of each key."""
    order = chosen[np.argsort(keys.old_codes[chosen], kind="stable")]
    ops = rows.ops[order]
    edges = np.diff(keys.old_codes[order], prepend=-1) != 0
    first = np.flatnonzero(edges)
    last = np.append(first[1:], len(order))[: len(first)] - 1
    fresh, gone = ops[first] == INSERT, ops[last] == DELETE
    survivors = _survivors(rows, order, first, last)
    return Net(
        deletes=keys.before.take(order[first[gone & ~fresh]]),
        moves_from=keys.before.take(np.empty(0, np.int64)),
        moves_to=rows.new.take(np.empty(0, np.int64)),
        updates=survivors.take(np.flatnonzero(~gone & ~fresh)),
        inserts=survivors.take(np.flatnonzero(~gone & fresh)),
    )


def _survivors(rows: WireRows, order: Ints, first: Ints, last: Ints) -> Tuples:
    """Returns per key the values after its last change."""
    tail = order[last]
    if not (rows.new.kinds[:, tail] == ABSENT).any():
        return rows.new.take(tail)
    return rows.new.gather(_sources(rows, order, first, last))


def _sources(rows: WireRows, order: Ints, first: Ints, last: Ints) -> Ints:
    """Returns per column and key the last change that sent the column's value, -1 where none did.

    The search never goes back past an insert or a delete: an insert sends every column, and only an insert can follow a
    delete.
    """
    present = (rows.new.kinds[:, order] != ABSENT) & rows.has_new[order]
    latest = np.maximum.accumulate(np.where(present, np.arange(len(order)), -1), axis=1)[:, last]
    return np.where(latest >= first, order[np.maximum(latest, 0)], -1)


@dataclass(slots=True)
class _Chain:
    """One row's chain of changes. `base`: the change whose old key is the base key, None for a new row. `sources`: per
    column the change that sent the value, -1 where none did."""

    base: int | None
    sources: Ints


@dataclass(slots=True)
class _Walk:
    """The chains of rows that exist, by key code, and the bases of rows that were deleted."""

    alive: dict[int, _Chain] = field(default_factory=dict)
    dead: list[int] = field(default_factory=list)


def _fold_moving(rows: WireRows, keys: _Keys, chosen: Ints) -> Net:
    """Folds the chains that involve key moves, change by change."""
    walk = _Walk()
    present = rows.new.kinds != ABSENT
    for row in chosen.tolist():
        _step(walk, row, int(rows.ops[row]), int(keys.old_codes[row]), int(keys.new_codes[row]), present[:, row])
    return _net_of_walk(rows, keys, walk)


def _step(
    walk: _Walk, row: int, op: int, old: int, new: int, present: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> None:
    if op == INSERT:
        walk.alive[new] = _Chain(None, np.full(len(present), row, dtype=np.int64))
        return
    chain = walk.alive.pop(old, None) or _Chain(row, np.full(len(present), -1, dtype=np.int64))
    if op == DELETE:
        if chain.base is not None:
            walk.dead.append(chain.base)
        return
    chain.sources[present] = row
    walk.alive[new] = chain


def _net_of_walk(rows: WireRows, keys: _Keys, walk: _Walk) -> Net:
    inserts = [chain for chain in walk.alive.values() if chain.base is None]
    based = [(key, chain) for key, chain in walk.alive.items() if chain.base is not None]
    stayed = [chain for key, chain in based if keys.old_codes[chain.base] == key]
    moved = [chain for key, chain in based if keys.old_codes[chain.base] != key]
    return Net(
        deletes=keys.before.take(np.asarray(walk.dead, dtype=np.int64)),
        moves_from=keys.before.take(np.asarray([chain.base for chain in moved], dtype=np.int64)),
        moves_to=_overlay(rows, moved),
        updates=_overlay(rows, stayed),
        inserts=_overlay(rows, inserts),
    )


def _overlay(rows: WireRows, chains: list[_Chain]) -> Tuples:
    if not chains:
        return missing(rows.buffer, rows.new.width, 0)
    return rows.new.gather(np.stack([chain.sources for chain in chains], axis=1))


def _joined(one: Net, other: Net) -> Net:
    return Net(
        one.deletes.concatenated(other.deletes),
        one.moves_from.concatenated(other.moves_from),
        one.moves_to.concatenated(other.moves_to),
        one.updates.concatenated(other.updates),
        one.inserts.concatenated(other.inserts),
    )
