"""Alters the lake's tables as the source's tables were altered.

* A column that is added, and NULL in existing rows, costs one commit without a file, whatever the size of the table: a
  column that a file lacks is null.
* An added column with another value in existing rows, a renamed one, and one of a wider type have all files written
  anew in the commit that alters the table, if they are not too large for that: Delta finds values in files by the names
  of columns, in the type that the table declares, and has no other place for a value. (It has features that give
  columns other names or types in files, which many readers lack.)
* A type that is not wider (`types.widens`) is refused: values would not be cast as the source casts them.
* A column that was dropped is kept, and is null in new rows; or, where that is declared, it is dropped, for which all
  files are written anew: otherwise a later column of its name would show its values.

In a history, entries stay as they were made: an added or renamed column is null in those from before it, and no type is
changed; a dropped column is kept in any case.

What is to be done follows from the columns that the table has, so it may be asked for again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from deltalake.schema import Field, Schema

from airflow_provider_pgetl.engine.changes.versions import alterations, made_nullable, passed_on, version_there
from airflow_provider_pgetl.engine.destinations.delta.log.actions import Action
from airflow_provider_pgetl.engine.destinations.delta.log.table_log import Conflict, TableLog
from airflow_provider_pgetl.engine.destinations.delta.log.transactions import LogState
from airflow_provider_pgetl.engine.destinations.delta.merge.working_set import WorkingSet
from airflow_provider_pgetl.engine.destinations.delta.metadata import Begun, LakeMetadata, lost
from airflow_provider_pgetl.engine.destinations.delta.shape import DeltaShape
from airflow_provider_pgetl.engine.destinations.delta.types import HeldColumn, delta_fields, loosened, widens
from airflow_provider_pgetl.engine.destinations.protocol import SchemaChange
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Fenced, PgetlError
from airflow_provider_pgetl.engine.model.quantities import format_size
from airflow_provider_pgetl.engine.model.widening import widens as source_widens

REWRITTEN_BYTES = 4 << 30
"""Larger tables are not written anew while the stream waits."""
_PATIENCE = 10


@dataclass(frozen=True, slots=True)
class _Work:
    """What a table lacks: columns to add, those to rename, those that get a wider type (by their new names), those that
    must be made nullable, those to drop, and the values of added columns in existing rows, other than null."""

    added: tuple[Field, ...]
    renamed: Mapping[str, str]
    widened: Mapping[str, Field]
    nullable: tuple[str, ...]
    dropped: tuple[str, ...]
    values: Mapping[str, pa.Scalar]

    @property
    def is_done(self) -> bool:
        return not (self.added or self.renamed or self.widened or self.nullable or self.dropped)

    @property
    def rewrites(self) -> bool:
        return bool(self.renamed or self.widened or self.dropped or self.values)


def why_not(log: TableLog, shape: DeltaShape, change: SchemaChange) -> str | None:
    """Returns why the table cannot be altered; None if it can."""
    try:
        shape.expect_names()
        log.refresh()
        work = _work(log, shape, change)
    except PgetlError as error:
        return error.message.removesuffix(".")
    if (why := passed_on(change.versions, log.column_names)) is not None:
        return why
    if retyped := [name for name in log.retyped(shape.fields) if name not in work.widened]:
        return f"{', '.join(retyped)} would have another type in the lake"
    if not work.rewrites:
        return None
    names = ", ".join([*work.renamed, *work.widened, *work.dropped, *work.values])
    if shape.options.lands:
        return f"{names} would have the files rewritten, and changes land beside the table"
    size = sum(file.size for file in log.files())
    return f"{names} would have {format_size(size)} of files rewritten" if size > REWRITTEN_BYTES else None


def change_schema(log: TableLog, metadata: LakeMetadata, shape: DeltaShape, change: SchemaChange, epoch: int) -> None:
    for _ in range(_PATIENCE):
        log.refresh()
        log_state = _expect_ours(log, metadata, shape, change.target.generation, epoch)
        work = _work(log, shape, change)
        if work.is_done:
            return
        try:
            log.allow(shape.fields, log_state)
            _alter(log, shape, work, log_state)
            return
        except Conflict:
            continue
    raise PgetlError(ErrorKind.CONNECTION, f"Others commit to {log.place.uri} without end.")


def _expect_ours(log: TableLog, metadata: LakeMetadata, shape: DeltaShape, generation: int, epoch: int) -> LogState:
    """Returns what the log records. Raises if another worker has taken over, or if the table is not what the pipeline
    has published."""
    table, entries = shape.table, metadata.read()
    if entries.epoch != epoch:
        message = f"Epoch {epoch} may not alter {table}: the destination belongs to epoch {entries.epoch}."
        raise Fenced(message, table=str(table))
    begun = entries.tables.get(table, Begun(0, 0))
    if (error := lost(log, begun, table)) is not None:
        metadata.expect_there()
        raise error
    log_state = log.log_state()
    record = log_state.record
    if record is None or record.generation != generation or log_state.epoch > epoch:
        raise Fenced(f"{table} is not of generation {generation} any more.", table=str(table))
    return LogState(record, epoch, log_state.cleared)


def _work(log: TableLog, shape: DeltaShape, change: SchemaChange) -> _Work:
    fields = {field.name: field for field in log.table.schema().fields}
    schema = change.target.schema
    found = alterations(version_there(change.versions, fields.keys()), schema)
    renamed = {was.name: column.name for was, column in found.renamed if column.name not in fields}
    if shape.history:
        renamed = {}
    added = tuple(field for field in shape.fields if field.name not in fields and field.name not in renamed.values())
    dropped = () if shape.history else tuple(name for name in change.dropped if name in fields)
    gone = {column.name for version in change.versions for column in version.columns} - {*schema.names, *dropped}
    held = {renamed.get(name, name): field for name, field in fields.items()}
    loose = made_nullable(change.versions) - {field.name for field in added}
    strict = {*(gone - renamed.keys()), *(before for before, after in renamed.items() if after in loose), *loose}
    nullable = tuple(sorted(name for name in strict if name in fields and not fields[name].nullable))
    if shape.history:
        return _Work(added, renamed, {}, nullable, (), {})
    values = _values(shape, [one.name for one in added])
    return _Work(added, renamed, _widened(shape, change, held), nullable, dropped, values)


def _widened(shape: DeltaShape, change: SchemaChange, held: Mapping[str, Field]) -> dict[str, Field]:
    """Returns the columns that the table has in the type of an earlier version, and that are to have a wider one. Types
    that others have given them are left to those who write to the table, and refuse."""
    former = {
        (one.column.number, str(field.type)): one
        for version in change.versions
        for one, field in zip(*_held(replace(shape, schema=version)), strict=True)
    }
    found = {}
    for one, wanted in zip(*_held(shape), strict=True):
        there = held.get(one.name)
        before = None if there is None else former.get((one.column.number, str(there.type)))
        if there is not None and there.type != wanted.type and before is not None and _is_wider(before, one):
            found[one.name] = wanted
    return found


def _is_wider(before: HeldColumn, after: HeldColumn) -> bool:
    """Whether the values may be cast. A cast of the source may keep the file and yet show other values, as one from
    integer to oid."""
    of_one_type = before.column.type.oid == after.column.type.oid
    return (of_one_type or source_widens(before.column, after.column)) and widens(before.type, after.type)


def _held(shape: DeltaShape) -> tuple[Sequence[HeldColumn], Sequence[Field]]:
    return shape.columns, delta_fields(shape.columns)


def _values(shape: DeltaShape, added: Sequence[str]) -> dict[str, pa.Scalar]:
    """Returns the values, other than null, that existing rows are to have in the added columns."""
    columns = {one.name: one for one in shape.columns if one.name in added and one.column.missing is not None}
    decoded = {
        name: one.decode(pa.array([(one.column.missing or "").encode()], pa.large_binary()))[0]
        for name, one in columns.items()
    }
    return {name: value for name, value in decoded.items() if value.is_valid}


def _alter(log: TableLog, shape: DeltaShape, work: _Work, log_state: LogState) -> None:
    if not work.rewrites:
        log.alter_columns(log_state, added=work.added, nullable=work.nullable)
        return
    fields = log.table.schema().fields
    before = loosened(pa.schema(Schema(fields)))
    after = [_altered(one, work) for one in fields if one.name not in work.dropped]
    layout = shape.layout_among([*after, *work.added])
    files = WorkingSet(log.place, layout, log.files())

    def changed(rows: pa.Table) -> pa.Table:
        rows = rows.rename_columns([work.renamed.get(name, name) for name in rows.column_names])
        arrays = [_column(rows, field, work.values.get(field.name)) for field in layout.schema]
        return pa.Table.from_arrays(arrays, schema=layout.schema)

    try:
        files.rewrite(before, changed)
        actions: Sequence[Action] = files.actions()
    except BaseException:
        files.discard()
        raise
    try:
        log.alter_columns(
            log_state,
            added=work.added,
            renamed=work.renamed,
            retyped=work.widened,
            nullable=work.nullable,
            dropped=work.dropped,
            actions=actions,
        )
    except Conflict:
        files.discard()
        raise


def _altered(field: Field, work: _Work) -> Field:
    name, nullable = work.renamed.get(field.name, field.name), field.nullable or field.name in work.nullable
    return Field(name, work.widened.get(name, field).type, nullable=nullable, metadata=field.metadata)


def _column(rows: pa.Table, field: pa.Field, value: pa.Scalar | None) -> pa.ChunkedArray | pa.Array:
    if field.name in rows.column_names:
        return rows.column(field.name).cast(field.type)
    return pa.nulls(rows.num_rows, field.type) if value is None else pa.repeat(value, rows.num_rows)
