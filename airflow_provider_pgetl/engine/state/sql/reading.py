"""All that a store object caches, read in one snapshot."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, Select, select

from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.state import rows
from airflow_provider_pgetl.engine.state.protocol import DestinationMetadata, HistoryEntry, TableRecord
from airflow_provider_pgetl.engine.state.sql.clock import seconds
from airflow_provider_pgetl.engine.state.tables import (
    destination_tables,
    history,
    pipelines,
    table_schemas,
    tables,
)
from airflow_provider_pgetl.engine.state.view import Versions, View
from airflow_provider_pgetl.engine.tables import TableName, TableSchema

_STATE = (history.c.generation, history.c.attempt, history.c.copied, history.c.phase)


def view(connection: Connection, pipeline: int) -> View | None:
    """None if the pipeline has been destroyed. Wants a transaction of repeatable reads."""
    row = connection.execute(select(pipelines).where(pipelines.c.key == pipeline)).first()
    if row is None:
        return None
    return View(
        rows.pipeline_of(row),
        row.revision,
        {record.table: record for record in records(connection, pipeline)},
        _schemas(connection, pipeline),
        _destinations(connection, pipeline),
    )


def records(connection: Connection, pipeline: int, names: Iterable[TableName] | None = None) -> Iterable[TableRecord]:
    """The named tables, or all. Never together with `for update`: a row that was locked after waiting is joined
    anew with the history *as this statement sees it*, where the entry it now points to does not exist yet."""
    query = _current_states().where(tables.c.pipeline == pipeline)
    if names is not None:
        query = query.where(rows.of_tables(tables, pipeline, names))
    return [rows.record_of(row) for row in connection.execute(query)]


def history_of(connection: Connection, pipeline: int, name: TableName) -> tuple[HistoryEntry, ...]:
    query = select(*_STATE, seconds(history.c.at).label("at")).where(rows.of_table(history, pipeline, name))
    found = connection.execute(query.order_by(history.c.entry))
    return tuple(HistoryEntry(rows.state_of(row), row.at) for row in found)


def _current_states() -> Select[tuple[object, ...]]:
    entry = (
        (history.c.pipeline == tables.c.pipeline)
        & (history.c.table_schema == tables.c.table_schema)
        & (history.c.table_name == tables.c.table_name)
        & (history.c.entry == tables.c.current)
    )
    return select(tables, *_STATE).join(history, entry)


def _schemas(connection: Connection, pipeline: int) -> dict[TableName, Versions]:
    found: dict[TableName, dict[Boundary, TableSchema]] = {}
    for row in connection.execute(select(table_schemas).where(table_schemas.c.pipeline == pipeline)):
        found.setdefault(rows.name_of(row), {})[row.valid_from] = TableSchema.from_json(row.definition)
    return dict(found)


def _destinations(connection: Connection, pipeline: int) -> dict[TableName, DestinationMetadata]:
    query = select(destination_tables).where(destination_tables.c.pipeline == pipeline)
    return {rows.name_of(row): rows.metadata_of(row) for row in connection.execute(query)}
