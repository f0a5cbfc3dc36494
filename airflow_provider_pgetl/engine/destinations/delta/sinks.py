"""The sinks of a writer's batches: the tables themselves, or their landings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgetl.engine.destinations.delta import apply
from airflow_provider_pgetl.engine.destinations.delta.files.key_index import KeyIndexes
from airflow_provider_pgetl.engine.destinations.delta.log.storage import Lake
from airflow_provider_pgetl.engine.destinations.delta.log.table_log import TableLog
from airflow_provider_pgetl.engine.destinations.delta.log.transactions import LogState
from airflow_provider_pgetl.engine.destinations.delta.merge.landing import Landing, LandingSet
from airflow_provider_pgetl.engine.destinations.delta.merge.merge_on_read import MarkingSet
from airflow_provider_pgetl.engine.destinations.delta.merge.working_set import WorkingSet
from airflow_provider_pgetl.engine.destinations.delta.shape import DeltaShape
from airflow_provider_pgetl.engine.destinations.delta.types import HeldColumn
from airflow_provider_pgetl.engine.model.positions import START
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema


@dataclass(frozen=True, slots=True)
class TableSink:
    """Writes batches into the tables. With `indexes`, rows are marked as deleted; without, files are rewritten."""

    log: Callable[[TableName], TableLog]
    indexes: KeyIndexes | None = None

    def table(self, name: TableName) -> TableLog:
        return self.log(name)

    def begin(self, shape: DeltaShape, _: LogState) -> WorkingSet:
        table = self.log(shape.table)
        layout = shape.layout_in(table)
        if shape.history:
            return WorkingSet(table.place, layout, [])
        files = table.files()
        if self.indexes is None:
            return WorkingSet(table.place, layout, files)
        self.indexes.retain(table.place.uri, [one.location for one in files])
        return MarkingSet(table.place, layout, files, self.indexes)


@dataclass(frozen=True, slots=True)
class LandingSink:
    """Writes batches into the landings beside the tables."""

    log: Callable[[TableName], Landing]

    def table(self, name: TableName) -> TableLog:
        return self.log(name).table

    def begin(self, shape: DeltaShape, log_state: LogState) -> LandingSet:
        return LandingSet(self.log(shape.table), shape, log_state)


# ----------------------------------------------------------------------------------------------------------------------
# The basic `Destination` protocol: rows are written straight into the table, without staging and without a position.
# The engine itself copies by attempts (`copy`); these functions are for code that drives a destination directly.


def drop(lake: Lake, schema: TableSchema) -> None:
    """Deletes the table's log first: without a log, no table refers to its files."""
    place = lake.table(schema.table)
    place.delete_all("_delta_log")
    place.delete_all("")


def write(log: TableLog, shape: DeltaShape, rows: pa.RecordBatch) -> None:
    """Appends rows and creates the table if it is missing. Text values are decoded, values of other types are cast."""
    exists = log.refresh()
    files = WorkingSet(log.place, shape.layout, [])
    arrays = [_held(one, array) for one, array in zip(shape.columns, rows.columns, strict=True)]
    typed = pa.Table.from_arrays(arrays, schema=shape.rows)
    files.append([apply.snapshot_entries(shape, typed, START) if shape.history else typed])
    log_state = log.log_state() if exists else LogState(None)
    if not exists:
        log.create(shape.fields, log_state, shape.words(""))
    log.commit(files.adds(), log_state, publishes=True)


def _held(one: HeldColumn, values: pa.Array) -> pa.Array:
    if pa.types.is_string(values.type) and values.type != one.type:
        return one.decode(pc.cast(values, pa.large_binary()))
    return pc.cast(values, one.type)
