"""Alters the lake's tables as the source's tables were altered.

An added column that is NULL in existing rows costs one commit, whatever the size of the table: its files stay, and a
column that a file lacks is null. If existing rows have another value, Delta has no place for it but the files: they are
written anew with it, in the same commit, if they are not too large for that. In a history, entries stay as they were
made: the column is null in those from before it was added.

What is to be done follows from the columns that the table has, so it may be asked for again.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from deltalake.schema import Field

from airflow_provider_pgetl.engine.destinations.delta.log.actions import Action
from airflow_provider_pgetl.engine.destinations.delta.log.table_log import Conflict, TableLog
from airflow_provider_pgetl.engine.destinations.delta.log.transactions import LogState
from airflow_provider_pgetl.engine.destinations.delta.merge.working_set import WorkingSet
from airflow_provider_pgetl.engine.destinations.delta.metadata import Begun, LakeMetadata, lost
from airflow_provider_pgetl.engine.destinations.delta.shape import DeltaShape
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Fenced, PgetlError
from airflow_provider_pgetl.engine.model.quantities import format_size

FILLED_BYTES = 4 << 30
"""Of larger tables the files are not written anew while the stream waits."""
_PATIENCE = 10


def why_not(log: TableLog, shape: DeltaShape) -> str | None:
    """Returns why the table cannot be altered; None if it can."""
    try:
        shape.expect_names()
        log.refresh()
        added = [field.name for field in log.lacking(shape.fields)]
        if not _values(shape, added):
            return None
    except PgetlError as error:
        return error.message.removesuffix(".")
    size = sum(file.size for file in log.files())
    if shape.options.lands:
        return f"existing rows have a value in {', '.join(added)}, and changes land beside the table"
    if size > FILLED_BYTES:
        return f"existing rows have a value in {', '.join(added)}, and {format_size(size)} of files would be rewritten"
    return None


def change_schema(log: TableLog, metadata: LakeMetadata, shape: DeltaShape, generation: int, epoch: int) -> None:
    for _ in range(_PATIENCE):
        log.refresh()
        log_state = _expect_ours(log, metadata, shape, generation, epoch)
        lacking = log.lacking(shape.fields)
        if not lacking:
            return
        try:
            log.allow(shape.fields, log_state)
            _add(log, shape, lacking, log_state)
            return
        except Conflict:
            continue
    raise PgetlError(ErrorKind.CONNECTION, f"Others commit to {log.place.uri} without end.")


def _expect_ours(log: TableLog, metadata: LakeMetadata, shape: DeltaShape, generation: int, epoch: int) -> LogState:
    """Returns what the log records. Raises if another worker has taken over, or if the table is not what the pipeline
    has published."""
    table, entries = shape.table, metadata.read()
    if entries.epoch != epoch:
        raise Fenced(f"Epoch {epoch} may not alter {table}: the destination belongs to epoch {entries.epoch}.")
    begun = entries.tables.get(table, Begun(0, 0))
    if (error := lost(log, begun, table)) is not None:
        metadata.expect_there()
        raise error
    log_state = log.log_state()
    record = log_state.record
    if record is None or record.generation != generation or log_state.epoch > epoch:
        raise Fenced(f"{table} is not of generation {generation} any more.", table=str(table))
    return LogState(record, epoch, log_state.cleared)


def _add(log: TableLog, shape: DeltaShape, lacking: Sequence[Field], log_state: LogState) -> None:
    values = _values(shape, [field.name for field in lacking])
    if not values:
        log.add_columns(lacking, log_state)
        return
    files = WorkingSet(log.place, shape.layout_in(log, lacking), log.files())
    try:
        files.fill(values)
        actions: Sequence[Action] = files.actions()
    except BaseException:
        files.discard()
        raise
    try:
        log.add_columns(lacking, log_state, actions)
    except Conflict:
        files.discard()
        raise


def _values(shape: DeltaShape, added: Sequence[str]) -> dict[str, pa.Scalar]:
    """Returns the values, other than null, that existing rows are to have in the added columns."""
    if shape.history:
        return {}
    columns = {one.name: one for one in shape.columns if one.name in added and one.column.missing is not None}
    decoded = {
        name: one.decode(pa.array([(one.column.missing or "").encode()], pa.large_binary()))[0]
        for name, one in columns.items()
    }
    return {name: value for name, value in decoded.items() if value.is_valid}
