"""Versions of table schemas, and where the tables live in the destination."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Table, delete, func, select
from sqlalchemy.dialects.postgresql import insert

from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.state import rows
from airflow_provider_pgetl.engine.state.protocol import DestinationMetadata
from airflow_provider_pgetl.engine.state.tables import destination_tables, table_schemas
from airflow_provider_pgetl.engine.tables import TableName, TableSchema


def store(connection: Connection, pipeline: int, name: TableName, valid_from: Boundary, schema: TableSchema) -> None:
    key = {**rows.keys(pipeline, name), "valid_from": valid_from}
    _upsert(connection, table_schemas, key, {"definition": schema.as_json()})


def prune(connection: Connection, pipeline: int, keep_from: Mapping[TableName, Boundary]) -> int:
    return sum(_prune(connection, pipeline, name, keep_from[name]) for name in sorted(keep_from))


def _prune(connection: Connection, pipeline: int, name: TableName, boundary: Boundary) -> int:
    of_table = rows.of_table(table_schemas, pipeline, name)
    valid_from = table_schemas.c.valid_from
    oldest = select(func.max(valid_from)).where(of_table, valid_from <= boundary).scalar_subquery()
    return connection.execute(delete(table_schemas).where(of_table, valid_from < oldest)).rowcount


def store_destination(connection: Connection, pipeline: int, name: TableName, metadata: DestinationMetadata) -> None:
    content = {
        "destination_schema": metadata.destination.schema,
        "destination_name": metadata.destination.name,
        "snapshot": metadata.snapshot,
        "applied": metadata.applied,
        "details": metadata.details,
    }
    _upsert(connection, destination_tables, rows.keys(pipeline, name), content)


def _upsert(connection: Connection, stored: Table, key: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    added = insert(stored).values(**key, **content)
    connection.execute(added.on_conflict_do_update(index_elements=list(key), set_=content))
