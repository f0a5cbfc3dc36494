"""The net effect of a table's changes: each row that the destination knows is touched at most once.

A chain of changes to one row folds to (base key, overlay, target key): how the destination knows the row now, the
values that were sent since, and how it will be known. From that follows one of

* **delete** — the row at `deletes` goes;
* **move** — the row at `moves_from` becomes known by another key, as `moves_to`, whose absent values it keeps;
* **update** — the row at `updates`' own key takes the values present;
* **insert** — a row that the destination does not have; it is whole.

Applied in this order, with *all* moved rows taken out before any is put back, key swaps and chains need no care: at a
transaction's end keys are unique, so what is put back cannot collide.

Keys are compared by their bytes. That is exact: the source names an old row by the very bytes it sent before.

Most tables never move a key. Their changes, and those of untouched keys beside moved ones, are folded by sorting
(`_fold_plain`);
only chains that a key move takes part in are walked one by one (`_fold_moving`).

A keyless table is a bag of rows: `fold_bag` counts equal rows in and out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from airflow_provider_pgetl.engine.changes.rows import DELETE, INSERT, WireRows
from airflow_provider_pgetl.engine.changes.tuples import ABSENT, Ints, Tuples, codes, missing


@dataclass(frozen=True, slots=True)
class Net:
    """`deletes` and `moves_from` hold key columns only, the others all columns."""

    deletes: Tuples
    moves_from: Tuples
    moves_to: Tuples
    updates: Tuples
    inserts: Tuples


@dataclass(frozen=True, slots=True)
class NetBag:
    """What goes out of a keyless table (one equal row each) and what comes in; whole rows, repeated as often as
    needed."""

    deletes: Tuples
    inserts: Tuples


def fold(rows: WireRows) -> Net:
    """The net effect on a table with a key."""
    keys = _Keys(rows)
    moving = keys.touched_by_moves()
    plain = _fold_plain(rows, keys, np.flatnonzero(~moving))
    if not moving.any():
        return plain
    return _joined(plain, _fold_moving(rows, keys, np.flatnonzero(moving)))


def fold_bag(rows: WireRows) -> NetBag:
    """The net effect on a keyless table, whose every update and delete names the whole old row."""
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
    """Per change the code of the key before it and of the key after it; pointers to both."""

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
        """The changes whose key some other change moves away from or to."""
        moved = self.old_codes != self.new_codes
        if not moved.any():
            return np.asarray(moved)
        involved = np.concatenate([self.old_codes[moved], self.new_codes[moved]])
        return np.isin(self.old_codes, involved) | np.isin(self.new_codes, involved)


def _matrices(tuples: Tuples) -> tuple[Ints, Ints, Ints]:
    return tuples.kinds, tuples.offsets, tuples.lengths  # type: ignore[return-value]  # kinds are bytes, widened


def _fold_plain(rows: WireRows, keys: _Keys, chosen: Ints) -> Net:
    """Changes none of which moves a key: sort by key, keep what the last change of each leaves."""
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
    """Per key the values that its last change leaves."""
    tail = order[last]
    if not (rows.new.kinds[:, tail] == ABSENT).any():
        return rows.new.take(tail)
    return rows.new.gather(_sources(rows, order, first, last))


def _sources(rows: WireRows, order: Ints, first: Ints, last: Ints) -> Ints:
    """Per column and key the last change that sent the column's value, -1 where none did.

    Looking past an insert or a delete cannot happen: an insert sends every column, and behind a delete comes an insert.
    """
    present = (rows.new.kinds[:, order] != ABSENT) & rows.has_new[order]
    latest = np.maximum.accumulate(np.where(present, np.arange(len(order)), -1), axis=1)[:, last]
    return np.where(latest >= first, order[np.maximum(latest, 0)], -1)


@dataclass(slots=True)
class _Chain:
    """A row on its way: the change whose old key is its base (None: it is new), and its values' sources."""

    base: int | None
    sources: Ints


@dataclass(slots=True)
class _Walk:
    """The rows alive by key code, and the bases of those that died."""

    alive: dict[int, _Chain] = field(default_factory=dict)
    dead: list[int] = field(default_factory=list)


def _fold_moving(rows: WireRows, keys: _Keys, chosen: Ints) -> Net:
    """Chains that key moves take part in, change by change."""
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
