"""Changes as entries of a log, in `history` mode: nothing is folded, nothing is ever rewritten.

    _pgetl_kind           snapshot | insert | update | delete | truncate
    _pgetl_commit_lsn     with
    _pgetl_ordinal        the order of entries; a snapshot's come before all changes at their LSN
    _pgetl_committed_at   the source's commit time
    _pgetl_unchanged      of an update the columns whose large values the source did not send again

An update that moves a row to another key is two entries of one position: a delete of the old key, then the update under
the new one. A delete has the columns of the key alone, unless the source sends whole old rows. A truncate, which a
re-copy begins with as well, says that all before it is void.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from airflow_provider_pgetl.engine.changes.batch import Truncate
from airflow_provider_pgetl.engine.changes.rows import DELETE, INSERT, UPDATE, WireRows
from airflow_provider_pgetl.engine.changes.tuples import Tuples, codes
from airflow_provider_pgetl.engine.destinations.delta.shape import (
    COMMIT_LSN,
    COMMITTED_AT,
    KIND,
    ORDINAL,
    UNCHANGED,
    Shape,
)
from airflow_provider_pgetl.engine.positions import Boundary

_UNIX_2000 = 946_684_800_000_000
_KINDS = {INSERT: "insert", UPDATE: "update", DELETE: "delete"}
_MOMENT = pa.timestamp("us", "UTC")


def change_entries(shape: Shape, rows: WireRows) -> pa.Table:
    """Each change as one entry, or two where it moves a row."""
    moved = np.flatnonzero(_moves(rows))
    order = np.argsort(np.concatenate([moved, np.arange(len(rows))]), kind="stable")
    values = rows.old.take(moved).concatenated(_last_known(rows)).take(order)
    number = np.concatenate([moved, np.arange(len(rows))])[order]
    ops = np.concatenate([np.full(len(moved), DELETE), rows.ops])[order]
    said = {
        KIND: pa.array([_KINDS[op] for op in ops.tolist()], pa.string()),
        COMMIT_LSN: pa.array(rows.commit_lsns[number], pa.int64()),
        ORDINAL: pa.array(rows.ordinals[number], pa.int64()),
        COMMITTED_AT: pa.array(rows.commit_times[number] + _UNIX_2000, pa.int64()).cast(_MOMENT),
        UNCHANGED: _unchanged(shape, values.absent),
    }
    return _entries(shape, said, shape.decoded_tuples(values))


def snapshot_entries(shape: Shape, rows: pa.Table, position: Boundary) -> pa.Table:
    """Copied rows as entries."""
    count = rows.num_rows
    said = {
        KIND: pa.repeat("snapshot", count),
        COMMIT_LSN: pa.repeat(pa.scalar(position.lsn, pa.int64()), count),
        ORDINAL: pa.repeat(pa.scalar(0, pa.int64()), count),
        COMMITTED_AT: pa.nulls(count, _MOMENT),
        UNCHANGED: pa.nulls(count, pa.list_(pa.string())),
    }
    return _entries(shape, said, rows)


def void_entry(shape: Shape, position: Boundary) -> pa.Table:
    """The entry that a re-copy begins with."""
    return _truncate(shape, position.lsn, -1)


def truncate_entry(shape: Shape, step: Truncate) -> pa.Table:
    return _truncate(shape, step.commit_lsn, step.ordinal)


def _truncate(shape: Shape, commit_lsn: int, ordinal: int) -> pa.Table:
    said = {KIND: "truncate", COMMIT_LSN: commit_lsn, ORDINAL: ordinal}
    arrays = [pa.array([said.get(field.name)], field.type) for field in shape.stored]
    return pa.Table.from_arrays(arrays, schema=shape.stored)


def _entries(shape: Shape, said: dict[str, pa.Array], rows: pa.Table) -> pa.Table:
    arrays: Iterable[pa.Array] = [*said.values(), *rows.columns]
    return pa.Table.from_arrays(list(arrays), names=[*said, *rows.column_names]).cast(shape.stored)


def _moves(rows: WireRows) -> NDArray[np.bool_]:
    """The updates whose old row is known by another key than the new one; all of them where there are no keys."""
    known = (rows.ops == UPDATE) & rows.has_old
    indexes = rows.schema.key_indexes
    if not indexes or not known.any():
        return np.asarray(known)
    both = codes(rows.old.columns(indexes).concatenated(rows.new.columns(indexes)))
    return np.asarray(known & (both[: len(rows)] != both[len(rows) :]))


def _last_known(rows: WireRows) -> Tuples:
    """Per change the new row, and of deletes the old one."""
    new, old, has_new = rows.new, rows.old, rows.has_new
    return Tuples(
        rows.buffer,
        np.where(has_new, new.kinds, old.kinds),
        np.where(has_new, new.offsets, old.offsets),
        np.where(has_new, new.lengths, old.lengths),
    )


def _unchanged(shape: Shape, absent: NDArray[np.bool_]) -> pa.Array:
    if not absent.any():
        return pa.nulls(absent.shape[1], pa.list_(pa.string()))
    names = np.asarray(shape.rows.names, dtype=object)
    lists = [names[column].tolist() or None for column in absent.T]
    return pa.array(lists, pa.list_(pa.string()))
