"""Two nets of one table made one, so that the table's files are rewritten once for both.

What the second does to rows that the first has touched, or brought, is done to those rows here, as it would be done to
rows of a file; the rest of the second stands beside the first. Folding is costly in memory, nets are compact: so a
large batch is folded in pieces, and the pieces are composed.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgetl.engine.destinations.delta.lookup import Lookup
from airflow_provider_pgetl.engine.destinations.delta.merging import Changes, Ints, Mask, overlaid
from airflow_provider_pgetl.engine.destinations.delta.taking import taken


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
