"""Alters the destination's tables as the source's were altered.

One transaction alters the table and records its columns (`metadata.set_columns`). What is to be done follows from the
columns that the table has: one that has them all is not touched. PostgreSQL stores the value that existing rows have in
an added column in the catalog, so adding one takes no time, however large the table is; the default that it needs for
that is dropped again.

A table that the pipeline did not create belongs to somebody else. It is not altered: whoever alters the source adds the
column there first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.changes.versions import alterations, version_there
from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.destinations.postgres import existing_tables, metadata, types
from airflow_provider_pgetl.engine.destinations.postgres.session import Session
from airflow_provider_pgetl.engine.destinations.protocol import SchemaChange
from airflow_provider_pgetl.engine.model.errors import Fenced
from airflow_provider_pgetl.engine.model.tables import Column, TableSchema, quote_identifier

_LOCK_PATIENCE = "3s"  # whoever reads the table meanwhile waits behind the ALTER


def why_not(session: Session, change: SchemaChange) -> str | None:
    """Returns why the table cannot be altered; None if it can."""
    metadata.ensure(session)
    schema, pipeline = change.target.schema, change.target.pipeline
    lacking = sorted(set(schema.names) - _present(session, schema).keys())
    if lacking and not metadata.created(session, pipeline, schema.table):
        return f"pgetl did not create {schema.table} in the destination, which has no column {', '.join(lacking)}"
    return None


def change_schema(session: Session, change: SchemaChange, epoch: int) -> None:
    metadata.ensure(session)
    target = change.target
    with session.transaction():
        metadata.take_shared(session, metadata.of_pipeline(target.pipeline))
        _expect_ours(session, target, epoch)
        statements = list(_statements(session, change))
        session.execute(f"set local lock_timeout = '{_LOCK_PATIENCE}'")
        for statement in statements:
            session.execute(statement, table=target.schema.table)
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


def _present(session: Session, schema: TableSchema) -> dict[str, tuple[str, bool]]:
    """Returns the columns that the table has, with their types, and whether they are NOT NULL outside its primary
    key."""
    return {name: (sql_type, strict) for name, sql_type, strict in session.rows(_COLUMNS, (schema.table.sql,))}


def _statements(session: Session, change: SchemaChange) -> Iterator[str]:
    """Yields what brings the table from the version that it has to the last one. A column that was dropped at the
    source is kept, and is NULL in new rows."""
    schema = change.target.schema
    present = _present(session, schema)
    if metadata.created(session, change.target.pipeline, schema.table):
        found = alterations(version_there(change.versions, present), schema)
        for before, after in found.renamed:
            if after.name not in present:
                yield f"alter table {schema.table.sql} rename column {before.sql} to {after.sql}"
        if added := [column for column in found.added if column.name not in present]:
            types.ensure(session, schema)
            yield from _add(session, schema, added)
        yield from _retype(session, change, {name: sql_type for name, (sql_type, _) in present.items()})
    gone = {column.name for version in change.versions for column in version.columns} - set(schema.names)
    for name in sorted(name for name in gone if present.get(name, ("", False))[1]):
        yield f"alter table {schema.table.sql} alter column {quote_identifier(name)} drop not null"


def _retype(session: Session, change: SchemaChange, present: Mapping[str, str]) -> Iterator[str]:
    """Yields what gives columns their types at the source, if they have the types that they had there before."""
    schema = change.target.schema
    for column in schema.columns:
        others = [
            one
            for version in change.versions
            for one in version.columns
            if one.number == column.number and one.sql_type != column.sql_type
        ]
        there = next((present[one.name] for one in [column, *others] if one.name in present), None)
        if there in {types.column_type(session, schema, one) for one in others}:
            sql_type = types.column_type(session, schema, column)
            yield f"alter table {schema.table.sql} alter column {column.sql} type {sql_type}"


def _add(session: Session, schema: TableSchema, columns: Sequence[Column]) -> Iterator[str]:
    table = schema.table.sql
    parts = []
    for column in columns:
        default = "" if column.missing is None else f" default {types.literal(column.missing)}"
        parts.append(f"add column {column.sql} {types.column_type(session, schema, column)}{default}")
    yield f"alter table {table} {', '.join(parts)}"
    if filled := [column for column in columns if column.missing is not None]:
        yield f"alter table {table} {', '.join(f'alter column {column.sql} drop default' for column in filled)}"
    for column in columns:
        if column.comment is not None:
            yield f"comment on column {table}.{column.sql} is {types.literal(column.comment)}"


_COLUMNS = """
select a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull and not exists (
    select from pg_index i where i.indrelid = a.attrelid and i.indisprimary and a.attnum = any (i.indkey))
from pg_attribute a where a.attrelid = to_regclass($1) and a.attnum > 0 and not a.attisdropped
"""
