"""Rows written straight into the table, without staging, attempt or position: the smallest contract.

For those who have rows as Arrow. A copy that is published at once goes by `staging` and `publishing`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from airflow_provider_pgetl.engine.destinations.postgres import locks, metadata, types
from airflow_provider_pgetl.engine.destinations.postgres.session import Session
from airflow_provider_pgetl.engine.destinations.postgres.shape import exists
from airflow_provider_pgetl.engine.tables import TableSchema, quote_identifier


def drop(session: Session, schema: TableSchema) -> None:
    metadata.ensure(session)
    with session.transaction():
        session.execute(f"drop table if exists {schema.table.sql}", table=schema.table)
        metadata.forget_positions(session, schema.table)


def write(session: Session, schema: TableSchema, rows: pa.RecordBatch) -> None:
    """Values may be Python's own kinds, or the bytes or text of Postgres' text form."""
    if not exists(session, schema.table):
        create(session, schema)
    if rows.num_rows:
        with session.transaction():
            session.insert_rows(f"copy {schema.table.sql} ({_columns(rows)}) from stdin", _tuples(schema, rows))


def create(session: Session, schema: TableSchema) -> None:
    with session.transaction():
        locks.take(session, locks.DDL)
        session.execute(f"create schema if not exists {quote_identifier(schema.table.schema)}")
        types.ensure(session, schema)
        lines = [f"{c.sql} {types.column_type(session, schema, c)}{' not null' * c.not_null}" for c in schema.columns]
        if schema.key:
            lines.append(f"primary key ({', '.join(map(quote_identifier, schema.key))})")
        session.execute(f"create table if not exists {schema.table.sql} ({', '.join(lines)})", table=schema.table)


def _columns(rows: pa.RecordBatch) -> str:
    return ", ".join(map(quote_identifier, rows.schema.names))


def _tuples(schema: TableSchema, rows: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    binary = {column.name for column in schema.columns if column.type.root.name == "bytea"}
    spelled = [name not in binary for name in rows.schema.names]
    for row in zip(*(rows.column(at).to_pylist() for at in range(rows.num_columns)), strict=True):
        yield tuple(
            value.decode() if as_text and isinstance(value, bytes) else value
            for value, as_text in zip(row, spelled, strict=True)
        )
