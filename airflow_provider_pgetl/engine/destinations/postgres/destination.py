"""PostgreSQL as a destination: the class `PostgresDestination`.

One object is one session under one application name, for one thread. What it keeps of the database between calls is a
cache: a broken connection or a failed call loses the cache and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa

from airflow_provider_pgetl.engine.changes.batch import EventBatch, TablePosition, Target
from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.destinations.postgres import (
    copy,
    existing_tables,
    metadata,
    publishing,
    reading,
    schema_changes,
    types,
)
from airflow_provider_pgetl.engine.destinations.postgres.apply import PostgresApplier
from airflow_provider_pgetl.engine.destinations.postgres.session import Session, application_name
from airflow_provider_pgetl.engine.destinations.postgres.types import exists
from airflow_provider_pgetl.engine.destinations.protocol import (
    AtomicCopy,
    CopyFormat,
    Destination,
    Inspecting,
    Misses,
    Positions,
    Preferences,
    RangeCopy,
    Readable,
    SchemaChange,
    SchemaChanges,
    Stamp,
    TableSnapshot,
)
from airflow_provider_pgetl.engine.model.errors import Finding, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema, quote_identifier
from airflow_provider_pgetl.engine.postgres.sessions import REMEDY, STANDBYS_MISSING, Mark, commits_wait

# -- Rows written directly into the table, without staging, attempt or position: the basic protocol. -------------------
#
# For callers that have the rows as Arrow record batches. A copy that becomes visible in one step is made by `copy` and
# `publishing` instead.


def drop(session: Session, schema: TableSchema) -> None:
    metadata.ensure(session)
    with session.transaction():
        session.execute(f"drop table if exists {schema.table.sql}", table=schema.table)
        metadata.forget_positions(session, schema.table)


def write(session: Session, schema: TableSchema, rows: pa.RecordBatch) -> None:
    """Inserts the rows, and creates the table if it does not exist. Values are Python objects, or the bytes or text of
    PostgreSQL's text form."""
    if not exists(session, schema.table):
        create(session, schema)
    if rows.num_rows:
        with session.transaction():
            session.insert_rows(f"copy {schema.table.sql} ({_columns(rows)}) from stdin", _tuples(schema, rows))


def create(session: Session, schema: TableSchema) -> None:
    with session.transaction():
        metadata.take(session, metadata.DDL)
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


# -- Forgetting a pipeline: the metadata of its writers is deleted, its tables stay. -----------------------------------


def forget(session: Session, pipeline: str) -> bool:
    """Deletes the pipeline's metadata and staging tables; returns whether there was any metadata.

    Runs in one transaction that no batch and no range of the pipeline overlaps. A writer that comes later finds no
    epoch. The schemas and tables of the metadata are dropped if they are then empty, because no other pipeline uses
    them.
    """
    if not metadata.present(session):
        return False
    with session.transaction():
        metadata.take_over(session, metadata.of_pipeline(pipeline))
        tables = metadata.records(session, pipeline)
        for table in sorted(tables):
            metadata.take_over(session, metadata.of_table(pipeline, table))
            copy.drop_all(session, pipeline, table)
        known = metadata.forget(session, pipeline)
        metadata.withdraw(session)
    return known


# -- Whether this server, with this role, can be a destination. --------------------------------------------------------

_OLDEST = 140000
_GRANTABLE = 150000
_NAME_BYTES = 63
_FACTS = """
select current_setting('server_version_num')::int, current_setting('server_version'), pg_is_in_recovery(),
       current_setting('server_encoding'), current_user, current_database(),
       has_database_privilege(current_database(), 'CREATE'),
       coalesce(has_schema_privilege(to_regnamespace('pgetl'), 'USAGE'), false)
"""

_HOLDS = """
select exists (
    select from pg_locks l join pg_database d on d.oid = l.database
    where d.datname = current_database() and l.locktype = 'advisory' and l.objsubid = 1 and l.granted
      and l.classid = ($1::int8 >> 32)::oid and l.objid = ($1::int8 & 4294967295)::oid)
"""
_IS_PRIMARY = """
select s.system_identifier::text = $1 and c.timeline_id = $2::int8
   and d.oid::int8 = $3::int8 and not pg_is_in_recovery()
from pg_control_system() s, pg_control_checkpoint() c, pg_database d where d.datname = current_database()
"""


def findings(session: Session) -> Iterator[Finding]:
    number, version, standby, encoding, role, database, may_create, has_metadata = session.rows(_FACTS)[0]
    if number < _OLDEST:
        yield Finding(f"The destination runs PostgreSQL {version}.", "Use version 14 or later.")
    if standby:
        yield Finding("The destination is a standby and cannot be written to.", "Point the URI at its primary.")
    if encoding != "UTF8":
        problem = f"The destination's encoding is {encoding}: a text that it cannot hold makes its table Errored."
        yield Finding(problem, "Use a database in UTF8.", "warning")
    if not may_create and not has_metadata:
        problem = (
            f"{role} may not create schemas in the destination's database {database}, where pgetl keeps its positions."
        )
        yield Finding(problem, f"GRANT CREATE ON DATABASE {quote_identifier(database)} TO {quote_identifier(role)}.")
    waits = session.rows(STANDBYS_MISSING)
    if waits and waits[0][0] > 0:
        yield Finding(commits_wait("the destination", waits[0][0]), REMEDY)
    if not session.replica_role:
        yield _firing(role, number)


def cut_names(tables: Collection[TableName]) -> Mapping[TableName, str]:
    """Returns the tables whose names the server would truncate, each with the reason. The server would take a truncated
    name for that of another table, which may belong to any pipeline."""
    return {
        table: f"{table} in the destination has a name of more than {_NAME_BYTES} bytes, which PostgreSQL cuts"
        for table in tables
        if max(len(table.schema.encode()), len(table.name.encode())) > _NAME_BYTES
    }


def bears(session: Session, mark: Mark) -> bool:
    """Returns whether the source is this database: its advisory lock is visible here, or, if the source is a standby,
    it is a standby of this server."""
    if session.rows(_HOLDS, (str(mark.key),))[0][0]:
        return True
    if mark.primary is None:
        return False
    there = mark.primary
    return bool(session.rows(_IS_PRIMARY, (there.system, str(there.timeline), str(there.database)))[0][0])


def _firing(role: str, number: int) -> Finding:
    """A warning, not an error: without triggers and foreign keys, nothing is different."""
    problem = (
        f"{role} may not set session_replication_role: triggers and foreign keys of the destination's tables will fire."
    )
    grant = f"GRANT SET ON PARAMETER session_replication_role TO {quote_identifier(role)}."
    return Finding(problem, grant if number >= _GRANTABLE else "Connect as a superuser.", "warning")


# -- Destination. ------------------------------------------------------------------------------------------------------


class PostgresDestination(
    Destination, AtomicCopy, RangeCopy, Positions, SchemaChanges, Inspecting, Preferences, Readable
):
    """A PostgreSQL database as a destination."""

    def __init__(self, uri: str, pipeline: str, worker: str = "worker") -> None:
        self._pipeline = pipeline
        self._session = Session(uri, application_name(pipeline, worker))
        self._applier = PostgresApplier(self._session)
        self._misses: dict[TableName, Misses] = {}

    @property
    def name(self) -> str:
        return "postgres"

    def shutdown(self) -> None:
        self._session.close()

    def cancel(self) -> None:
        """Asks the server to cancel the call in flight, which then fails with a transient error. May be called from
        another thread."""
        self._session.cancel()

    def inspect(self) -> list[Finding]:
        return list(findings(self._session))

    def inspect_table(self, schema: TableSchema) -> list[Finding]:
        return list(existing_tables.findings(self._session, self._pipeline, schema))

    def foreign_rows(self, pipeline: str, tables: Collection[TableName]) -> Mapping[TableName, str]:
        return existing_tables.of_others(self._session, pipeline, tables)

    def indistinct(self, tables: Collection[TableName]) -> Mapping[TableName, str]:
        return cut_names(tables)

    def lost(self, pipeline: str) -> Mapping[TableName, PgetlError]:
        return existing_tables.lost(self._session, pipeline)

    def bears(self, mark: Mark) -> bool:
        return bears(self._session, mark)

    def forget(self, pipeline: str) -> bool:
        return forget(self._session, pipeline)

    # -- changes

    def accepts_binary(self, schemas: Collection[TableSchema]) -> bool:
        return all(types.read_binary(self._session, schema) for schema in schemas)

    def write_events(self, batch: EventBatch) -> None:
        for table, missed in self._applier.write(batch).items():
            self._misses[table] = self._misses.get(table, Misses()) + missed

    def why_not(self, change: SchemaChange) -> str | None:
        return schema_changes.why_not(self._session, change)

    def change_schema(self, change: SchemaChange, epoch: int) -> None:
        schema_changes.change_schema(self._session, change, epoch)

    def misses(self) -> Mapping[TableName, Misses]:
        return dict(self._misses)

    def claim(self, pipeline: str, epoch: int) -> None:
        metadata.ensure(self._session)
        with self._session.transaction():
            metadata.take_over(self._session, metadata.of_pipeline(pipeline))
            claimed = fencing.claim(metadata.epoch(self._session, pipeline), epoch)
            metadata.set_epoch(self._session, pipeline, claimed)

    def stamp(self, pipeline: str, stamp: Stamp) -> Stamp:
        metadata.ensure(self._session)
        with self._session.transaction():
            known = metadata.stamp(self._session, pipeline)
            noted = stamp.after(known)
            if noted != known:
                metadata.set_stamp(self._session, pipeline, noted)
        return noted

    def positions(self, pipeline: str) -> Mapping[TableName, TablePosition]:
        metadata.ensure(self._session)
        return dict(_positions(metadata.records(self._session, pipeline)))

    def latest_attempt(self, pipeline: str) -> int:
        metadata.ensure(self._session)
        return max((record.attempt for record in metadata.records(self._session, pipeline).values()), default=0)

    def adopt(self, target: Target) -> None:
        metadata.ensure(self._session)
        with self._session.transaction():
            known = metadata.record(self._session, target)
            record = fencing.adopt(known, target.generation, target.schema.table)
            metadata.set_record(self._session, target, record)

    # -- copies

    def copy_format(self, schema: TableSchema) -> CopyFormat:
        metadata.ensure(self._session)
        return copy.copy_format(self._session, self._pipeline, schema)

    def begin_copy(self, target: Target, attempt: int) -> None:
        copy.begin(self._session, target, attempt)

    def write_range(self, target: Target, attempt: int, number: int, blocks: Iterable[bytes]) -> int:
        return copy.write_range(self._session, target, attempt, number, blocks)

    def finish_copy(self, target: Target, attempt: int, position: Boundary, ranges: int | None = None) -> None:
        publishing.finish(self._session, target, attempt, position, ranges)

    def abort_copy(self, target: Target, attempt: int) -> None:
        copy.abort(self._session, target, attempt)

    # -- reading

    def snapshots(
        self, pipeline: str, schemas: Collection[TableSchema]
    ) -> AbstractContextManager[Mapping[TableName, TableSnapshot | PgetlError]]:
        return reading.snapshots(self._session, pipeline, schemas)

    # -- the basic protocol

    def drop_table_for_copy(self, schema: TableSchema) -> None:
        drop(self._session, schema)

    def write_table_rows(self, schema: TableSchema, rows: pa.RecordBatch) -> None:
        write(self._session, schema, rows)


def _positions(records: Mapping[TableName, fencing.TableMetadata]) -> Iterator[tuple[TableName, TablePosition]]:
    for table, record in records.items():
        position = record.table_position
        if position is not None:
            yield table, position
