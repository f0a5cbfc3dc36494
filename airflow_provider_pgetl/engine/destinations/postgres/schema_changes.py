"""Alters the destination's tables as the source's were altered.

One transaction alters the table and records its columns (`metadata.set_held`). What is to be done follows from the
columns that the table has: one that has them all is not touched. PostgreSQL stores the value that existing rows have in
an added column in the catalog, so adding one takes no time, however large the table is; the default that it needs for
that is dropped again.

A table that the pipeline did not create belongs to somebody else. It is not altered: whoever alters the source adds the
column there first.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.destinations.postgres import existing_tables, metadata, types
from airflow_provider_pgetl.engine.destinations.postgres.session import Session
from airflow_provider_pgetl.engine.destinations.protocol import SchemaChange
from airflow_provider_pgetl.engine.model.errors import Fenced
from airflow_provider_pgetl.engine.model.tables import Column, TableName, TableSchema

_LOCK_PATIENCE = "3s"  # whoever reads the table meanwhile waits behind the ALTER


def why_not(session: Session, change: SchemaChange) -> str | None:
    """Returns why the table cannot be altered; None if it can."""
    metadata.ensure(session)
    schema, pipeline = change.target.schema, change.target.pipeline
    lacking = _lacking(session, schema)
    if lacking and not metadata.created(session, pipeline, schema.table):
        names = ", ".join(column.name for column in lacking)
        return f"pgetl did not create {schema.table} in the destination, which has no column {names}"
    return None


def change_schema(session: Session, change: SchemaChange, epoch: int) -> None:
    metadata.ensure(session)
    target = change.target
    with session.transaction():
        metadata.take_shared(session, metadata.of_pipeline(target.pipeline))
        _expect_ours(session, target, epoch)
        lacking = _lacking(session, target.schema)
        if lacking:
            types.ensure(session, target.schema)
            session.execute(f"set local lock_timeout = '{_LOCK_PATIENCE}'")
            _add(session, target.schema, lacking)
            session.execute("set local lock_timeout = 0")
        metadata.set_columns(session, target)


def _expect_ours(session: Session, target: Target, epoch: int) -> None:
    """Raises if another worker has taken over, if the table is of another generation, or if it is not, or not any more
    in the same form, what the pipeline has published."""
    table = target.schema.table
    claimed = metadata.epoch(session, target.pipeline)
    if claimed != epoch:
        raise Fenced(f"Epoch {epoch} may not alter {table}: the destination belongs to epoch {claimed}.")
    record = metadata.record(session, target)
    if record is None or record.generation != target.generation:
        raise Fenced(f"{table} is of another generation in the destination, not {target.generation}.", table=str(table))
    if record.position is None:
        raise fencing.dropped(table)
    held = metadata.hold(session, target)
    if held is not None:
        existing_tables.expect_held({table: held})


def _lacking(session: Session, schema: TableSchema) -> list[Column]:
    present = types.types_now(session, schema.table)
    return [column for column in schema.columns if column.name not in present]


def _add(session: Session, schema: TableSchema, columns: Sequence[Column]) -> None:
    table = schema.table
    parts = []
    for column in columns:
        sql_type = types.column_type(session, schema, column)
        default = "" if column.missing is None else f" default {types.literal(column.missing)}"
        parts.append(f"add column {column.sql} {sql_type}{default}")
    session.execute(f"alter table {table.sql} {', '.join(parts)}", table=table)
    if filled := [column for column in columns if column.missing is not None]:
        drops = ", ".join(f"alter column {column.sql} drop default" for column in filled)
        session.execute(f"alter table {table.sql} {drops}", table=table)
    for column in columns:
        if column.comment is not None:
            _comment(session, table, column)


def _comment(session: Session, table: TableName, column: Column) -> None:
    comment = types.literal(column.comment or "")
    session.execute(f"comment on column {table.sql}.{column.sql} is {comment}", table=table)
