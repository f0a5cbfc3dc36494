"""Net changes: the conversion of folded changes to typed columns, and their storage in Parquet files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_pgetl.engine.changes.batch import RowChanges, WireRows
from airflow_provider_pgetl.engine.changes.fold import Net, fold, fold_bag
from airflow_provider_pgetl.engine.destinations.delta.files.data_files import GROUP_ROWS
from airflow_provider_pgetl.engine.destinations.delta.files.keys import RowGroups, sortable
from airflow_provider_pgetl.engine.destinations.delta.log.actions import Add, Bounds
from airflow_provider_pgetl.engine.destinations.delta.log.storage import TableFolder
from airflow_provider_pgetl.engine.destinations.delta.merge.file_merge import Changes, Mask
from airflow_provider_pgetl.engine.destinations.delta.shape import DeltaShape
from airflow_provider_pgetl.engine.model.tables import TableSchema


def joined(steps: Sequence[WireRows]) -> WireRows:
    """Joins the changes of several steps of one table, in their order."""
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


def net_changes(shape: DeltaShape, rows: WireRows) -> Changes:
    """Returns the net effect of changes on a table with a key."""
    return typed(shape, fold(rows))


def typed(shape: DeltaShape, net: Net) -> Changes:
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


def net_bag(shape: DeltaShape, rows: WireRows) -> tuple[pa.Table, pa.Table]:
    """Returns, for a keyless table, the rows to delete and the rows to insert."""
    net = fold_bag(rows)
    return shape.decoded_tuples(net.deletes), shape.decoded_tuples(net.inserts)


def as_wire(changes: RowChanges) -> WireRows:
    """Checks that changes are `WireRows`, the only form from which whole columns can be taken."""
    if not isinstance(changes, WireRows):
        raise TypeError(f"changes came as {type(changes).__name__}")
    return changes


# ----------------------------------------------------------------------------------------------------------------------
# Net changes as Parquet files: the form in which they land beside a table, and in which executors read them.
#
# A file holds one complete part of a batch, with all that is needed to merge it: the footer has the schema with which
# the part was decoded, so that a landed part can be merged at any later time without further information.
#
#     net        old.<k>     key column k of deleted and changed rows        absent.<c>   the old value is kept
#                new.<c>     column c of changed and inserted rows           moves        the key has changed
#                deletes first, then changed rows, then inserts
#     bag        new.<c>     for a keyless table: the deleted rows, then the inserted ones
#     truncate   nothing     all parts before it are void
#
# Columns are numbered, not named, so that they cannot collide with a name that a table uses.
#
# Net changes that several tasks read are stored in key order (`write_sorted`), in small row groups: each task reads the
# row groups that the bounds of its file admit.

_ABOUT = b"pgetl"
_MOVES = "moves"
_SHARED_GROUP_ROWS, _SHARED_GROUP_BYTES = 16 << 10, 2 << 20


@dataclass(frozen=True, slots=True)
class Bag:
    """The rows to delete from a keyless table, each once, and the rows to insert."""

    deletes: pa.Table
    inserts: pa.Table


@dataclass(frozen=True, slots=True)
class Truncated:
    """A truncate of the table."""


Part = Changes | Bag | Truncated


@dataclass(frozen=True, slots=True)
class NetFile:
    """A part that was read, and the schema with which it was decoded."""

    schema: TableSchema
    part: Part


def write_part(place: TableFolder, path: str, schema: TableSchema, part: Part, group_rows: int = GROUP_ROWS) -> Add:
    """Writes a part to a file; returns the `add` action for a log."""
    kind, counts, columns = _laid_out(schema, part)
    about = json.dumps({"kind": kind, "counts": counts, "schema": schema.as_json()})
    rows = pa.table(columns).replace_schema_metadata({_ABOUT: about})
    with place.writing(path) as stream:
        pq.write_table(rows, stream, row_group_size=group_rows, compression="zstd")
    stats = json.dumps({"numRecords": rows.num_rows})
    return Add(path, place.size(path), stats)


def read_part(place: TableFolder, path: str) -> NetFile:
    rows = pq.read_table(pa.BufferReader(place.read(path)))
    about = json.loads(rows.schema.metadata[_ABOUT])
    schema = TableSchema.from_json(about["schema"])
    return NetFile(schema, _READERS[about["kind"]](schema, rows, about["counts"]))


def write_sorted(place: TableFolder, path: str, schema: TableSchema, net: Changes) -> None:
    """Writes net changes in key order, for `read_within`."""
    each = net.nbytes // max(net.keys.num_rows, 1)
    rows = min(max(_SHARED_GROUP_BYTES // max(each, 1), 1), _SHARED_GROUP_ROWS)
    write_part(place, path, schema, net.in_key_order(sortable(net.keys.schema, schema.key)), rows)


def read_within(place: TableFolder, path: str, bounds: Sequence[Bounds | None]) -> Changes:
    """Reads net changes: at least those to rows whose keys lie within these bounds, one for each key column."""
    with place.errors(path), place.files.open_input_file(path) as source, pq.ParquetFile(source) as file:
        about = json.loads(file.schema_arrow.metadata[_ABOUT])
        groups = RowGroups(file.metadata, file.schema_arrow)
        chosen = groups.overlapping([f"old.{number}" for number in range(len(bounds))], bounds)
        rows = file.read_row_groups(chosen, use_threads=False)
    places = np.concatenate([np.empty(0, np.int64), *(np.arange(*groups.starts[one : one + 2]) for one in chosen)])
    edges = np.searchsorted(places, np.cumsum([0, *about["counts"]]))
    return _read_net(TableSchema.from_json(about["schema"]), rows, np.diff(edges).tolist())


# -- laying out -------------------------------------------------------------------------------------------------------


def _laid_out(schema: TableSchema, part: Part) -> tuple[str, list[int], Mapping[str, Any]]:
    match part:
        case Changes():
            return "net", [part.deletes.num_rows, part.rows.num_rows, part.inserts.num_rows], _net_columns(schema, part)
        case Bag(deletes, inserts):
            return "bag", [deletes.num_rows, inserts.num_rows], _numbered("new", pa.concat_tables([deletes, inserts]))
        case Truncated():
            return "truncate", [], {}


def _net_columns(schema: TableSchema, net: Changes) -> Mapping[str, Any]:
    gone, come = net.deletes.num_rows, net.inserts.num_rows
    old = pa.concat_tables([net.keys, _empty(net.keys.schema, come)])
    new = pa.concat_tables([_empty(net.rows.schema, gone), net.rows, net.inserts])
    at = {name: number for number, name in enumerate(schema.names)}
    absent = {f"absent.{at[name]}": _padded(mask, gone, come) for name, mask in net.absent.items()}
    return {**_numbered("old", old), **_numbered("new", new), **absent, _MOVES: _padded(net.moves, gone, come)}


def _numbered(prefix: str, rows: pa.Table) -> dict[str, pa.ChunkedArray]:
    return {f"{prefix}.{number}": column for number, column in enumerate(rows.columns)}


def _padded(mask: Mask, before: int, after: int) -> pa.Array:
    return pa.array(np.concatenate([np.zeros(before, np.bool_), mask, np.zeros(after, np.bool_)]))


def _empty(schema: pa.Schema, count: int) -> pa.Table:
    """Returns `count` rows of nulls."""
    return pa.Table.from_arrays([pa.nulls(count, field.type) for field in schema], schema=schema)


# -- reading ----------------------------------------------------------------------------------------------------------


def _read_net(schema: TableSchema, rows: pa.Table, counts: Sequence[int]) -> Changes:
    gone, changed, _ = counts
    old, new = _named("old", schema.key, rows), _named("new", schema.names, rows)
    masks = {name: f"absent.{number}" for number, name in enumerate(schema.names)}
    absent = {name: _mask(rows, column, gone, changed) for name, column in masks.items() if column in rows.column_names}
    return Changes(
        old.slice(0, gone),
        old.slice(gone, changed),
        _mask(rows, _MOVES, gone, changed),
        new.slice(gone, changed),
        absent,
        new.slice(gone + changed),
    )


def _read_bag(schema: TableSchema, rows: pa.Table, counts: Sequence[int]) -> Bag:
    whole = _named("new", schema.names, rows)
    return Bag(whole.slice(0, counts[0]), whole.slice(counts[0]))


def _read_truncated(*_: object) -> Truncated:
    return Truncated()


_Reader = Callable[[TableSchema, pa.Table, Sequence[int]], Part]
_READERS: Mapping[str, _Reader] = {"net": _read_net, "bag": _read_bag, "truncate": _read_truncated}


def _named(prefix: str, names: Iterable[str], rows: pa.Table) -> pa.Table:
    columns = {name: rows.column(f"{prefix}.{number}") for number, name in enumerate(names)}
    return pa.table(columns)


def _mask(rows: pa.Table, column: str, first: int, count: int) -> Mask:
    return np.asarray(rows.column(column).slice(first, count).to_numpy())
