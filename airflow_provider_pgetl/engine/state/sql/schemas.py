"""Versions of table schemas, and where the tables live in the destination."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sqlalchemy import Connection, delete, func, select, text
from sqlalchemy.dialects.postgresql import insert

from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.state import rows
from airflow_provider_pgetl.engine.state.protocol import DestinationMetadata, FoundTable
from airflow_provider_pgetl.engine.state.tables import table_schemas
from airflow_provider_pgetl.engine.tables import TableName, TableSchema


def store(connection: Connection, pipeline: int, name: TableName, valid_from: Boundary, schema: TableSchema) -> None:
    added = insert(table_schemas).values(
        **rows.keys(pipeline, name), valid_from=valid_from, definition=schema.as_json()
    )
    key = ["pipeline", "table_schema", "table_name", "valid_from"]
    connection.execute(added.on_conflict_do_update(index_elements=key, set_={"definition": added.excluded.definition}))


def prune(connection: Connection, pipeline: int, keep_from: Mapping[TableName, Boundary]) -> int:
    return sum(_prune(connection, pipeline, name, keep_from[name]) for name in sorted(keep_from))


def _prune(connection: Connection, pipeline: int, name: TableName, boundary: Boundary) -> int:
    of_table = rows.of_table(table_schemas, pipeline, name)
    valid_from = table_schemas.c.valid_from
    oldest = select(func.max(valid_from)).where(of_table, valid_from <= boundary).scalar_subquery()
    return connection.execute(delete(table_schemas).where(of_table, valid_from < oldest)).rowcount


def store_many(connection: Connection, pipeline: int, found: Mapping[TableName, FoundTable]) -> None:
    """First versions of tables that have none."""
    values = {
        "pipeline": pipeline,
        **rows.names_as_arrays(found),
        "valid_from": [str(one.valid_from) for one in found.values()],
        "definitions": [json.dumps(one.schema.as_json()) for one in found.values()],
    }
    connection.execute(_STORE, values)


def store_destinations(connection: Connection, pipeline: int, places: Mapping[TableName, DestinationMetadata]) -> None:
    values = {
        "pipeline": pipeline,
        **rows.names_as_arrays(places),
        "there_schemas": [one.destination.schema for one in places.values()],
        "there_names": [one.destination.name for one in places.values()],
        "snapshots": [str(one.snapshot) for one in places.values()],
        "applied": [one.applied for one in places.values()],
        "details": [json.dumps(one.details) for one in places.values()],
    }
    connection.execute(_PLACE, values)


_STORE = text("""
    insert into pgetl.table_schemas (pipeline, table_schema, table_name, valid_from, definition)
    select :pipeline, s, t, cast(valid_from as pg_lsn), cast(definition as json)
    from unnest(cast(:schemas as text[]), cast(:names as text[]), cast(:valid_from as text[]),
                cast(:definitions as text[])) as given (s, t, valid_from, definition)
""")

_PLACE = text("""
    insert into pgetl.destination_tables
        (pipeline, table_schema, table_name, destination_schema, destination_name, snapshot, applied, details)
    select :pipeline, s, t, there_schema, there_name, cast(snapshot as pg_lsn), applied, cast(details as json)
    from unnest(cast(:schemas as text[]), cast(:names as text[]), cast(:there_schemas as text[]),
                cast(:there_names as text[]), cast(:snapshots as text[]), cast(:applied as boolean[]),
                cast(:details as text[]))
        as given (s, t, there_schema, there_name, snapshot, applied, details)
    on conflict (pipeline, table_schema, table_name) do update
    set destination_schema = excluded.destination_schema, destination_name = excluded.destination_name,
        snapshot = excluded.snapshot, applied = excluded.applied, details = excluded.details
""")
