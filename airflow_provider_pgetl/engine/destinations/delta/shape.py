"""How a source table is represented in Delta: columns, layout of files, comment, properties, entries of a history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
from deltalake.schema import Field, Schema
from numpy.typing import NDArray

from airflow_provider_pgetl.engine.changes.batch import DELETE, INSERT, UPDATE, Truncate, WireRows
from airflow_provider_pgetl.engine.changes.tuples import Tuples, codes
from airflow_provider_pgetl.engine.destinations.delta.files.data_files import Layout
from airflow_provider_pgetl.engine.destinations.delta.files.keys import sortable
from airflow_provider_pgetl.engine.destinations.delta.log.table_log import PIPELINE, TableLog, Words
from airflow_provider_pgetl.engine.destinations.delta.options import DeltaOptions
from airflow_provider_pgetl.engine.destinations.delta.types import (
    HeldColumn,
    arrow_schema,
    delta_fields,
    held_columns,
    loosened,
)
from airflow_provider_pgetl.engine.destinations.fencing import COPY_AGAIN
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema

KIND, COMMIT_LSN, ORDINAL = "_pgetl_kind", "_pgetl_commit_lsn", "_pgetl_ordinal"
COMMITTED_AT, UNCHANGED = "_pgetl_committed_at", "_pgetl_unchanged"
HISTORY = (
    pa.field(KIND, pa.string()),
    pa.field(COMMIT_LSN, pa.int64()),
    pa.field(ORDINAL, pa.int64()),
    pa.field(COMMITTED_AT, pa.timestamp("us", "UTC")),
    pa.field(UNCHANGED, pa.list_(pa.field("element", pa.string()))),
)
HISTORY_NAMES = tuple(field.name for field in HISTORY)
_RENAME = "Leave one of them out by `columns = [...]` of its [[table]], or rename it at the source."
_ABOUT_HISTORY = {
    KIND: "snapshot, insert, update, delete, or truncate: all before it is void",
    COMMIT_LSN: "where the source's WAL says that it was committed",
    ORDINAL: "the place within its transaction",
    COMMITTED_AT: "when it was committed at the source; unknown for snapshots",
    UNCHANGED: "the columns whose values, too large to be sent again, are those of the entry before",
}


@dataclass(frozen=True)
class DeltaShape:
    schema: TableSchema
    options: DeltaOptions

    @property
    def table(self) -> TableName:
        return self.schema.table

    @property
    def history(self) -> bool:
        return self.options.keeps_history

    @property
    def key(self) -> tuple[str, ...]:
        return self.schema.key

    @cached_property
    def columns(self) -> tuple[HeldColumn, ...]:
        return held_columns(self.schema, self.options)

    @cached_property
    def rows(self) -> pa.Schema:
        """The columns of the source, in the types in which the lake holds them."""
        return arrow_schema(self.columns)

    @cached_property
    def stored(self) -> pa.Schema:
        """The columns that files hold: those of the source; in a history, preceded by the columns about each entry."""
        if not self.history:
            return self.rows
        return pa.schema([*HISTORY, *self.rows])

    @cached_property
    def fields(self) -> list[Field]:
        """The columns as the table declares them. In a history all columns of the source may be null, because a delete
        has only the key."""
        own = delta_fields(self.columns)
        if not self.history:
            return own
        loose = [Field(one.name, one.type, nullable=True, metadata=one.metadata) for one in own]
        return [*_history_fields(), *loose]

    @cached_property
    def layout(self) -> Layout:
        required = () if self.history else tuple(one.name for one in self.columns if not one.may_be_null)
        order = () if self.history else sortable(self.stored, self.key)
        return Layout(self.stored, self.key, required, self.options.target_file_bytes, order)

    def layout_in(self, table: TableLog) -> Layout:
        """Returns the layout with the table's present columns. Columns that others have added come last, and their
        values are carried along. Every column that the table declares not null is required, also one of others."""
        fields = {one.name: one for one in table.table.schema().fields}
        if unlike := [name for name in self.stored.names if name not in fields] or table.retyped(self.fields):
            message = f"{', '.join(unlike)} of {self.table} in the destination is not there, or of another type."
            raise PgetlError(ErrorKind.SCHEMA, message, remedy=COPY_AGAIN, table=str(self.table))
        return self.layout_among(list(fields.values()))

    def layout_among(self, fields: Sequence[Field]) -> Layout:
        """Returns the layout in a table that has these columns, which include those of the shape."""
        own = self.layout
        others = [one for one in fields if one.name not in self.stored.names]
        strict = (one.name for one in fields if not one.nullable and one.name not in own.required)
        added = loosened(pa.schema(Schema(others)))
        return replace(own, schema=pa.schema([*own.schema, *added]), required=(*own.required, *strict))

    def words(self, pipeline: str) -> Words:
        about = {
            PIPELINE: pipeline,
            "pgetl.source_table": str(self.table),
            "pgetl.mode": self.options.mode,
            "pgetl.key": ", ".join(self.key),
            **remembering(self.options.vacuum_retention),
        }
        return Words(self.schema.comment, about)

    @cached_property
    def keys(self) -> pa.Schema:
        return arrow_schema(self._key_columns)

    @property
    def _key_columns(self) -> tuple[HeldColumn, ...]:
        return tuple(self.columns[at] for at in self.schema.key_indexes)

    def decoded(self, texts: Sequence[pa.Array]) -> pa.Table:
        """Converts the texts of all source columns to typed columns."""
        arrays = [one.decode(text) for one, text in zip(self.columns, texts, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self.rows)

    def decoded_tuples(self, tuples: Tuples) -> pa.Table:
        """Converts tuples to typed columns. Decodes nothing if there are none, which is frequent: in small tables most
        changes are of one kind."""
        if not tuples.count:
            return self.rows.empty_table()
        return self.decoded([tuples.column_array(at) for at in range(tuples.width)])

    def decoded_keys(self, keys: Tuples) -> pa.Table:
        """Converts tuples that hold only key columns to typed columns."""
        if not keys.count:
            return self.keys.empty_table()
        texts = (keys.column_array(at) for at in range(keys.width))
        arrays = [one.decode(text) for one, text in zip(self._key_columns, texts, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self.keys)

    def expect_names(self) -> None:
        """Raises if two columns have names that Delta takes for the same, because they differ only in case."""
        known = {name.lower(): f"{name}, which its history needs for itself" for name in HISTORY_NAMES if self.history}
        for name in self.rows.names:
            if (other := known.setdefault(name.lower(), name)) is not name:
                message = f"{self.table} has a column {name} beside {other}: Delta tells no names apart by their case."
                raise PgetlError(ErrorKind.SCHEMA, message, remedy=_RENAME, table=str(self.table))


def _history_fields() -> list[Field]:
    plain = Schema.from_arrow(pa.schema(HISTORY)).fields
    return [Field(one.name, one.type, metadata={"comment": _ABOUT_HISTORY[one.name]}) for one in plain]


# -- Changes as entries of a history (`mode = "history"`): nothing is folded, nothing is ever rewritten. ---------------
#
#     _pgetl_kind           snapshot | insert | update | delete | truncate
#     _pgetl_commit_lsn     with _pgetl_ordinal the order of entries
#     _pgetl_ordinal        entries of a snapshot come before all changes at their LSN
#     _pgetl_committed_at   the source's commit time
#     _pgetl_unchanged      for an update, the columns whose large values the source did not send again
#
# An update that changes a row's key becomes two entries at one position: a delete of the old key, then the update under
# the new key. A delete has only the key columns, unless the source sends whole old rows. A truncate entry makes all
# entries before it void; a copy of a table that has entries already begins with one as well.

_UNIX_2000 = 946_684_800_000_000
_KINDS = {INSERT: "insert", UPDATE: "update", DELETE: "delete"}
_MOMENT = pa.timestamp("us", "UTC")


def change_entries(shape: DeltaShape, rows: WireRows) -> pa.Table:
    """Returns one entry for each change, two if the change moves a row to another key."""
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


def snapshot_entries(shape: DeltaShape, rows: pa.Table, position: Boundary) -> pa.Table:
    """Returns copied rows as entries of the history."""
    count = rows.num_rows
    said = {
        KIND: pa.repeat("snapshot", count),
        COMMIT_LSN: pa.repeat(pa.scalar(position.lsn, pa.int64()), count),
        ORDINAL: pa.repeat(pa.scalar(0, pa.int64()), count),
        COMMITTED_AT: pa.nulls(count, _MOMENT),
        UNCHANGED: pa.nulls(count, pa.list_(pa.string())),
    }
    return _entries(shape, said, rows)


def void_entry(shape: DeltaShape, position: Boundary) -> pa.Table:
    """Returns the entry with which a copy begins if the table has entries already."""
    return _truncate(shape, position.lsn, -1)


def truncate_entry(shape: DeltaShape, step: Truncate) -> pa.Table:
    return _truncate(shape, step.commit_lsn, step.ordinal)


def _truncate(shape: DeltaShape, commit_lsn: int, ordinal: int) -> pa.Table:
    said = {KIND: "truncate", COMMIT_LSN: commit_lsn, ORDINAL: ordinal}
    arrays = [pa.array([said.get(field.name)], field.type) for field in shape.stored]
    return pa.Table.from_arrays(arrays, schema=shape.stored)


def _entries(shape: DeltaShape, said: dict[str, pa.Array], rows: pa.Table) -> pa.Table:
    arrays: Iterable[pa.Array] = [*said.values(), *rows.columns]
    return pa.Table.from_arrays(list(arrays), names=[*said, *rows.column_names]).cast(shape.stored)


def _moves(rows: WireRows) -> NDArray[np.bool_]:
    """Returns which changes are updates whose old row has another key than the new row. Without a key, these are all
    updates with an old row."""
    known = (rows.ops == UPDATE) & rows.has_old
    indexes = rows.schema.key_indexes
    if not indexes or not known.any():
        return np.asarray(known)
    both = codes(rows.old.columns(indexes).concatenated(rows.new.columns(indexes)))
    return np.asarray(known & (both[: len(rows)] != both[len(rows) :]))


def _last_known(rows: WireRows) -> Tuples:
    """Returns for each change the new row, for a delete the old row."""
    new, old, has_new = rows.new, rows.old, rows.has_new
    return Tuples(
        rows.buffer,
        np.where(has_new, new.kinds, old.kinds),
        np.where(has_new, new.offsets, old.offsets),
        np.where(has_new, new.lengths, old.lengths),
    )


def _unchanged(shape: DeltaShape, absent: NDArray[np.bool_]) -> pa.Array:
    if not absent.any():
        return pa.nulls(absent.shape[1], pa.list_(pa.string()))
    names = np.asarray(shape.rows.names, dtype=object)
    lists = [names[column].tolist() or None for column in absent.T]
    return pa.array(lists, pa.list_(pa.string()))


# -- For how long a table's log keeps the tombstones of removed files. -------------------------------------------------

WEEK_HOURS = 7 * 24


RETENTION_PROPERTY = "delta.deletedFileRetentionDuration"


def remembering(retention: float | None) -> dict[str, str]:
    """Returns the property by which a log keeps tombstones for as long as files are kept; none if the default of a week
    is enough."""
    hours = 0 if retention is None else whole_hours(retention)
    return {RETENTION_PROPERTY: f"interval {hours} hours"} if hours > WEEK_HOURS else {}


def whole_hours(retention: float) -> int:
    return -(-int(retention) // 3600)
