"""Copies in progress: one staging table per attempt, filled range by range, and not seen by readers until it is
published.

The staging table is an ordinary, logged table in the schema `pgetl_staging`, without indexes: it becomes the table
itself, and making an unlogged table logged would write all of it a second time. Its columns are those that the table
has or is to have.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.destinations.postgres import existing_tables, metadata, types
from airflow_provider_pgetl.engine.destinations.postgres.metadata import STAGING
from airflow_provider_pgetl.engine.destinations.postgres.session import Session
from airflow_provider_pgetl.engine.destinations.postgres.types import PostgresShape, describe, exists
from airflow_provider_pgetl.engine.destinations.protocol import CopyFormat
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Fenced, PgetlError
from airflow_provider_pgetl.engine.model.tables import GeneratedColumn, TableName, TableSchema, quote_identifier
from airflow_provider_pgetl.engine.postgres.sessions import LOCALE

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlannedColumn:
    """A column of the staging table."""

    name: str
    type: str
    collation: str | None
    not_null: bool

    @property
    def sql(self) -> str:
        collate = f" collate {self.collation}" if self.collation else ""
        return f"{quote_identifier(self.name)} {self.type}{collate}{' not null' if self.not_null else ''}"


def name(target: Target, attempt: int) -> TableName:
    """The staging table of this attempt."""
    return TableName(STAGING, f"{_prefix(target.pipeline, target.schema.table)}{attempt}")


def _prefix(pipeline: str, table: TableName) -> str:
    """The prefix of the names of all staging tables of a table, by which the catalog's index finds them."""
    words = "\0".join((pipeline, table.schema, table.name))
    return f"t{hashlib.blake2b(words.encode(), digest_size=12).hexdigest()}_"


def begin(session: Session, target: Target, attempt: int) -> None:
    metadata.ensure(session)
    table = target.schema.table
    with session.transaction():
        metadata.take_over(session, metadata.of_table(target.pipeline, table))
        known = metadata.record(session, target)
        record = fencing.begin(known, target.generation, attempt, table)
        if record == known:
            return
        existing_tables.expect_free(session, target)
        metadata.take(session, metadata.DDL)
        drop(session, target, attempt)
        session.execute(f"create schema if not exists {quote_identifier(table.schema)}")
        _create(session, target, attempt)
        metadata.set_record(session, target, record)


def abort(session: Session, target: Target, attempt: int) -> None:
    metadata.ensure(session)
    with session.transaction():
        metadata.take_over(session, metadata.of_table(target.pipeline, target.schema.table))
        session.execute(f"drop table if exists {name(target, attempt).sql}")
        metadata.forget_ranges(session, target, attempt, attempt)


def drop(session: Session, target: Target, up_to: int) -> None:
    """Drops the staging tables of attempts up to this one, and deletes the records of their ranges."""
    for found in _staged(session, target.pipeline, target.schema.table):
        if int(found.name.rpartition("_")[2]) <= up_to:
            session.execute(f"drop table {found.sql}")
    metadata.forget_ranges(session, target, 0, up_to)


def drop_all(session: Session, pipeline: str, table: TableName) -> None:
    """Drops the staging tables of all attempts."""
    for found in _staged(session, pipeline, table):
        session.execute(f"drop table {found.sql}")


def _staged(session: Session, pipeline: str, table: TableName) -> list[TableName]:
    statement = """select relname::text from pg_class
        where relnamespace = to_regnamespace($1) and relkind = 'r'
          and relname >= $2::name and relname < $3::name"""
    prefix = _prefix(pipeline, table)
    behind = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    return [TableName(STAGING, found) for (found,) in session.rows(statement, (STAGING, prefix, behind))]


def write_range(session: Session, target: Target, attempt: int, number: int, blocks: Iterable[bytes]) -> int:
    table = target.schema.table
    place = name(target, attempt)
    with session.transaction():
        metadata.take_shared(session, metadata.of_table(target.pipeline, table))
        fencing.check_range(metadata.known_record(session, target), target.generation, attempt, table)
        if not exists(session, place):
            raise Fenced(f"Copy attempt {attempt} of {table} was aborted.", table=str(table))
        stored = metadata.open_range(session, target, attempt, number)
        if stored is not None:
            return stored
        rows = session.copy_in(_copy(session, target.schema, place), blocks, table)
        metadata.close_range(session, target, attempt, number, rows)
    return rows


def _copy(session: Session, schema: TableSchema, place: TableName) -> str:
    """The COPY statement, in the format that the staging table's columns require: it fails if `copy_format` returned
    another one to the reader."""
    columns = ", ".join(column.sql for column in schema.columns)
    return f"copy {place.sql} ({columns}) from stdin (format {_format_into(session, replace(schema, table=place))})"


def copy_format(session: Session, pipeline: str, schema: TableSchema) -> CopyFormat:
    """Binary if the bytes have the same meaning in the types of the staging table, else text."""
    if _is_foreign(session, pipeline, schema):
        return _format_into(session, schema)
    return "binary" if types.read_binary(session, schema) else "text"


def _format_into(session: Session, schema: TableSchema) -> CopyFormat:
    """The format for the columns of the table that the schema names."""
    same = types.read_binary(session, schema) and all(field.same_type for field in describe(session, schema).fields)
    return "binary" if same else "text"


def _create(session: Session, target: Target, attempt: int) -> None:
    schema = target.schema
    types.ensure(session, schema)
    columns = _planned(session, target.pipeline, schema)
    place = name(target, attempt)
    definition = ", ".join(column.sql for column in columns)
    session.execute(f"create table {place.sql} ({definition})", table=schema.table)
    if _is_foreign(session, target.pipeline, schema):
        for words in existing_tables.roundings(describe(session, schema)):
            log.warning("%s", words)
    else:
        add_generated(session, schema, place)
    word = f"pgetl: {target.pipeline}, {schema.table}, copy attempt {attempt}".replace("'", "''")
    session.execute(f"comment on table {place.sql} is '{word}'")


def add_generated(session: Session, schema: TableSchema, place: TableName) -> None:
    """Adds the columns that the source computes, computed here by the same expression; those for which this is not
    possible are left out."""
    present = columns_of(session, place)
    for generated in schema.generated:
        if generated.column.name in present:
            continue
        session.execute("savepoint generated")
        try:
            _generate(session, schema, place, generated)
        except PgetlError as error:
            if error.transient:
                raise
            session.execute("rollback to savepoint generated")
            log.warning("%s is held without %s: %s", schema.table, generated.column.name, error.message)
        session.execute("release savepoint generated")


def _generate(session: Session, schema: TableSchema, place: TableName, generated: GeneratedColumn) -> None:
    column = generated.column
    if lacking := [one.type.name for one in (*schema.columns, column) if not types.available(session, one.type)]:
        raise PgetlError(ErrorKind.TYPE, f"the destination has no type {lacking[0]}.")
    if generated.locale and generated.locale != session.rows(LOCALE)[0][0]:
        raise PgetlError(ErrorKind.TYPE, "the destination's database compares and folds texts by another locale.")
    types.ensure(session, replace(schema, columns=(column,)))
    definition = f"{column.sql} {column.sql_type} generated always as ({generated.expression}) stored"
    session.execute(f"alter table {place.sql} add column {definition}", table=schema.table)


def _is_foreign(session: Session, pipeline: str, schema: TableSchema) -> bool:
    """Whether there is a table that the pipeline did not create, whose columns must stay as they are."""
    return exists(session, schema.table) and not metadata.created(session, pipeline, schema.table)


def _planned(session: Session, pipeline: str, schema: TableSchema) -> Sequence[PlannedColumn]:
    """The columns of the staging table: those of the existing table if the pipeline did not create it, else the
    source's."""
    if _is_foreign(session, pipeline, schema):
        return _as_found(describe(session, schema), schema)
    return [
        PlannedColumn(column.name, types.column_type(session, schema, column), None, column.not_null)
        for column in schema.columns
    ]


def columns_of(session: Session, table: TableName) -> frozenset[str]:
    statement = "select attname::text from pg_attribute where attrelid = to_regclass($1) and not attisdropped"
    return frozenset(row[0] for row in session.rows(statement, (table.sql,)))


def lacking(session: Session, schema: TableSchema) -> Sequence[PlannedColumn]:
    """The source's columns that the existing table does not have."""
    present = columns_of(session, schema.table)
    return [
        PlannedColumn(column.name, types.column_type(session, schema, column), None, not_null=False)
        for column in schema.columns
        if column.name not in present
    ]


def _as_found(shape: PostgresShape, schema: TableSchema) -> Sequence[PlannedColumn]:
    return [
        PlannedColumn(column.name, column.sized_type, column.collation, column.not_null)
        for column in shape.columns
        if column.name in schema.names
    ]
