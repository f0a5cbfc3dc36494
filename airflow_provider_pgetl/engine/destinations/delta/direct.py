"""The plain contract: rows straight into the table, without staging and without a position. The engine itself copies
by attempts; this is for those who drive a destination by hand."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgetl.engine.destinations.delta import history
from airflow_provider_pgetl.engine.destinations.delta.log import Standing, TableLog
from airflow_provider_pgetl.engine.destinations.delta.shape import Shape
from airflow_provider_pgetl.engine.destinations.delta.storage import Lake
from airflow_provider_pgetl.engine.destinations.delta.types import HeldColumn
from airflow_provider_pgetl.engine.destinations.delta.working_set import WorkingSet
from airflow_provider_pgetl.engine.positions import START
from airflow_provider_pgetl.engine.tables import TableSchema


def drop(lake: Lake, schema: TableSchema) -> None:
    """The table's log goes first: without it, its files are nobody's."""
    place = lake.table(schema.table)
    place.delete_all("_delta_log")
    place.delete_all("")


def write(log: TableLog, shape: Shape, rows: pa.RecordBatch) -> None:
    """Values come as text, or in types of their own, which are then cast."""
    exists = log.refresh()
    files = WorkingSet(log.place, shape.layout, [])
    arrays = [_held(one, array) for one, array in zip(shape.columns, rows.columns, strict=True)]
    typed = pa.Table.from_arrays(arrays, schema=shape.rows)
    files.append([history.snapshot_entries(shape, typed, START) if shape.history else typed])
    standing = log.standing() if exists else Standing(None)
    if not exists:
        log.create(shape.fields, standing, shape.words(""))
    log.commit(files.adds(), standing, publishes=True)


def _held(one: HeldColumn, values: pa.Array) -> pa.Array:
    if pa.types.is_string(values.type) and values.type != one.type:
        return one.decode(pc.cast(values, pa.large_binary()))
    return pc.cast(values, one.type)
