"""From folded changes, still as the source sent them, to the typed columns that are merged into files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from airflow_provider_pgetl.engine.changes.batch import RowChanges
from airflow_provider_pgetl.engine.changes.fold import Net, fold, fold_bag
from airflow_provider_pgetl.engine.changes.rows import WireRows
from airflow_provider_pgetl.engine.destinations.delta.merging import Changes
from airflow_provider_pgetl.engine.destinations.delta.shape import Shape


def joined(steps: Sequence[WireRows]) -> WireRows:
    """The changes of several steps of one table, in their order, as one."""
    if len(steps) == 1:
        return steps[0]
    ends = np.cumsum([len(step.buffer) for step in steps])
    offsets = [0, *ends[:-1].tolist()]
    return WireRows(
        steps[0].schema,
        np.concatenate([step.buffer for step in steps]),
        np.concatenate([step.starts + offset for step, offset in zip(steps, offsets, strict=True)]),
        np.concatenate([step.commit_lsns for step in steps]),
        np.concatenate([step.ordinals for step in steps]),
        np.concatenate([step.commit_times for step in steps]),
    )


def net_changes(shape: Shape, rows: WireRows) -> Changes:
    """The net effect on a table with a key."""
    return typed(shape, fold(rows))


def typed(shape: Shape, net: Net) -> Changes:
    bases = net.moves_from.concatenated(net.updates.columns(shape.schema.key_indexes))
    fresh = net.moves_to.concatenated(net.updates)
    absent = {name: row for name, row in zip(shape.rows.names, fresh.absent, strict=True) if row.any()}
    return Changes(
        shape.decoded_keys(net.deletes),
        shape.decoded_keys(bases),
        np.repeat([True, False], [len(net.moves_from), len(net.updates)]),
        shape.decoded_tuples(fresh),
        absent,
        shape.decoded_tuples(net.inserts),
    )


def net_bag(shape: Shape, rows: WireRows) -> tuple[pa.Table, pa.Table]:
    """Of a keyless table the rows that go, and those that come."""
    net = fold_bag(rows)
    return shape.decoded_tuples(net.deletes), shape.decoded_tuples(net.inserts)


def as_wire(changes: RowChanges) -> WireRows:
    """The engine's own form, the only one from which whole columns can be taken."""
    if not isinstance(changes, WireRows):
        raise TypeError(f"changes came as {type(changes).__name__}")
    return changes
