"""What the destination records of pipelines, in its schema `pgetl`: epochs, tables, ranges of copies.

Schemas and tables are created on first use, by the first session that needs them. A session that finds them creates
nothing, so that a role without CREATE can use what an administrator has prepared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.destinations.fencing import TableMetadata
from airflow_provider_pgetl.engine.destinations.postgres.session import (
    DestinationServerError,
    QueryResult,
    Row,
    Session,
    Statement,
)
from airflow_provider_pgetl.engine.destinations.protocol import Stamp
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName

# -- Advisory locks, which are granted in order, and the termination of sessions that do not release them. -------------
#
# Every batch holds its pipeline's lock in shared mode while it writes; a take-over needs it in exclusive mode. Every
# range of a copy holds its table's lock in shared mode; beginning, publishing and aborting a copy need it in exclusive
# mode. The holder may be a worker whose machine is gone while its connection still exists: after `PATIENCE` seconds
# pgetl's sessions that hold the lock are terminated.
#
# All locks are transaction-level locks: no pooler, crash or forgotten release can leave one behind.

PATIENCE = 5.0
_TIMED_OUT = "55P03"


def key(*words: str) -> int:
    """The number of the advisory lock of this name."""
    digest = hashlib.blake2b("\0".join(("pgetl", *words)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


DDL = key("ddl")


def of_pipeline(pipeline: str) -> int:
    return key("pipeline", pipeline)


def of_table(pipeline: str, table: TableName) -> int:
    return key("table", pipeline, table.schema, table.name)


def take(session: Session, lock: int) -> None:
    """Takes the lock in exclusive mode, and waits for it without limit."""
    session.execute("select pg_advisory_xact_lock($1)", (lock,))


def take_shared(session: Session, lock: int) -> None:
    session.execute("select pg_advisory_xact_lock_shared($1)", (lock,))


def ask_shared(lock: int) -> Statement:
    return Statement("select pg_advisory_xact_lock_shared($1)", (str(lock).encode(),))


def take_over(session: Session, lock: int) -> None:
    """Takes the lock in exclusive mode; sessions that keep it for longer than `PATIENCE` are terminated."""
    for _ in range(5):
        if _taken_within(session, lock, PATIENCE):
            return
        end_holders(session, lock)
    raise PgetlError(
        ErrorKind.CONNECTION,
        "Sessions of an earlier worker hold on to the destination, and cannot be ended.",
        remedy="Let the role end its own sessions (pg_signal_backend), or end those named `pgetl …` by hand.",
    )


def _taken_within(session: Session, lock: int, patience: float) -> bool:
    session.execute("savepoint waiting")
    session.execute(f"set local lock_timeout = {max(int(patience * 1000), 1)}")
    try:
        take(session, lock)
    except DestinationServerError as error:
        if error.sqlstate != _TIMED_OUT:
            raise
        session.execute("rollback to savepoint waiting")
        return False
    session.execute("set local lock_timeout = 0")
    session.execute("release savepoint waiting")
    return True


def end_holders(session: Session, lock: int) -> None:
    """Terminates pgetl's sessions that hold the lock. Nothing is done if the role may not: the next attempt to take the
    lock then fails."""
    statement = """select pg_terminate_backend(l.pid) from pg_locks l join pg_stat_activity a on a.pid = l.pid
        where l.locktype = 'advisory' and l.granted and l.pid <> pg_backend_pid() and l.objsubid = 1
          and l.database = (select oid from pg_database where datname = current_database())
          and (l.classid::bigint << 32 | l.objid::bigint) = $1 and a.application_name like 'pgetl %'"""
    session.execute("savepoint ending")
    try:
        session.execute(statement, (lock,))
    except DestinationServerError as error:
        if error.kind is not ErrorKind.PRIVILEGE:
            raise
        session.execute("rollback to savepoint ending")


# -- Metadata. ---------------------------------------------------------------------------------------------------------

STAGING = "pgetl_staging"

_TABLES = ("pgetl.destination_fence", "pgetl.destination_table", "pgetl.destination_range")
_CREATE = (
    "create schema if not exists pgetl",
    f"create schema if not exists {STAGING}",
    """create table if not exists pgetl.destination_fence (
        pipeline text primary key, epoch bigint not null, instance text, changes bigint)""",
    """create table if not exists pgetl.destination_table (
        pipeline text, schema_name text, table_name text,
        generation bigint not null, attempt bigint not null, published bigint not null, position pg_lsn,
        created boolean not null default false, held boolean not null default false,
        relation oid, column_names text[], columns text,
        primary key (pipeline, schema_name, table_name)) with (fillfactor = 50)""",
    """create unique index if not exists destination_table_holder
        on pgetl.destination_table (schema_name, table_name) where held""",
    """create table if not exists pgetl.destination_range (
        pipeline text, schema_name text, table_name text, attempt bigint, number bigint, row_count bigint,
        primary key (pipeline, schema_name, table_name, attempt, number))""",
)
_PRESENT = (
    "select bool_and(to_regclass(name) is not null) and to_regnamespace($2) is not null from unnest($1::text[]) name"
)
_WITHDRAWABLE = """
    select has_database_privilege(current_database(), 'CREATE')
       and (select bool_and(pg_has_role(relowner, 'USAGE')) from pg_class
            where oid = any(array(select to_regclass(name) from unnest($1::text[]) name)))
       and (select bool_and(pg_has_role(nspowner, 'USAGE')) from pg_namespace where nspname in ('pgetl', $2))
"""
_IS_EMPTY = """
    select not exists (select from pg_depend
                       where refclassid = 'pg_namespace'::regclass and refobjid = to_regnamespace($1))
"""
_RECORD = "generation, attempt, published, position::text"
# The table that has the name now, and the present form of those of its columns that were published. Looked up in the
# catalog, as to_regclass fails where the role may not use the schema.
_RELATION = """(
    select c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = schema_name::name and c.relname = table_name::name)"""
_COLUMNS = """(
    select string_agg(concat_ws(' ', attnum, attname, format_type(atttypid, atttypmod)), ', ' order by attnum)
    from pg_attribute where attrelid = relation and attname = any (column_names) and not attisdropped)"""
_HOLDER = """(
    select h.pipeline from pgetl.destination_table h
    where h.schema_name = d.schema_name and h.table_name = d.table_name and h.held)"""
# Whether the table, or a partition of it, is unlogged, and so is empty after a crash of the server.
_UNLOGGED = """(
    select bool_or(relpersistence = 'u')::int from pg_class
    where oid = any (array(select relid::oid from pg_partition_tree(relation::regclass)) || relation))"""
_HOLD = f"held::int, {_HOLDER}, relation::int8, {_RELATION}::int8, columns, {_COLUMNS}, {_UNLOGGED}"
_ONE = "pipeline = $1 and schema_name = $2 and table_name = $3"


@dataclass(frozen=True, slots=True)
class Hold:
    """What a pipeline has published in a table, and what exists now: the table itself, by its OID, and the published
    columns.

    `held` is true while no other pipeline has published a copy in the table since; `holder` is the pipeline that
    published the present copy. `unlogged` is true if a crash of the server empties the table or a part of it.
    """

    held: bool
    holder: str | None
    relation: int | None
    found: int | None
    columns: str | None
    columns_found: str | None
    unlogged: bool


def present(session: Session) -> bool:
    return bool(session.rows(_PRESENT, (list(_TABLES), STAGING))[0][0])


def ensure(session: Session) -> None:
    """Creates the schemas and tables if they are missing; safe against concurrent calls."""
    if present(session):
        return
    with session.transaction():
        take(session, DDL)
        for statement in _CREATE:
            session.execute(statement)


# -- epochs


def epoch(session: Session, pipeline: str) -> int | None:
    rows = session.rows("select epoch from pgetl.destination_fence where pipeline = $1", (pipeline,))
    return rows[0][0] if rows else None


def set_epoch(session: Session, pipeline: str, to: int) -> None:
    statement = """insert into pgetl.destination_fence values ($1, $2)
        on conflict (pipeline) do update set epoch = excluded.epoch"""
    session.execute(statement, (pipeline, to))


def stamp(session: Session, pipeline: str) -> Stamp | None:
    """The pipeline's stamp, locked until the transaction ends."""
    statement = "select instance, changes from pgetl.destination_fence where pipeline = $1 for no key update"
    rows = session.rows(statement, (pipeline,))
    return Stamp(*rows[0]) if rows and rows[0][0] is not None else None


def set_stamp(session: Session, pipeline: str, to: Stamp) -> None:
    statement = """insert into pgetl.destination_fence values ($1, 0, $2, $3)
        on conflict (pipeline) do update set instance = excluded.instance, changes = excluded.changes"""
    session.execute(statement, (pipeline, to.instance, to.changes))


# -- records of tables


def record(session: Session, target: Target) -> TableMetadata | None:
    """The table's record, locked until the transaction ends."""
    statement = f"select {_RECORD} from pgetl.destination_table where {_ONE} for no key update"
    rows = session.rows(statement, _key(target))
    return _record(rows[0]) if rows else None


def known_record(session: Session, target: Target) -> TableMetadata | None:
    """The table's record as it is now, not locked."""
    rows = session.rows(f"select {_RECORD} from pgetl.destination_table where {_ONE}", _key(target))
    return _record(rows[0]) if rows else None


def records(session: Session, pipeline: str) -> Mapping[TableName, TableMetadata]:
    statement = f"select schema_name, table_name, {_RECORD} from pgetl.destination_table where pipeline = $1"
    return {TableName(*row[:2]): _record(row[2:]) for row in session.rows(statement, (pipeline,))}


def set_record(session: Session, target: Target, to: TableMetadata) -> None:
    statement = """insert into pgetl.destination_table
        (pipeline, schema_name, table_name, generation, attempt, published, position)
        values ($1, $2, $3, $4, $5, $6, $7::text::pg_lsn)
        on conflict (pipeline, schema_name, table_name) do update set generation = excluded.generation,
        attempt = excluded.attempt, published = excluded.published, position = excluded.position"""
    position = None if to.position is None else str(to.position)
    session.execute(statement, (*_key(target), to.generation, to.attempt, to.published, position))


def created(session: Session, pipeline: str, table: TableName) -> bool:
    """Whether the table that exists was created by this pipeline, and so may take any form that the source gives it."""
    statement = f"select created and relation = {_RELATION} from pgetl.destination_table where {_ONE}"
    rows = session.rows(statement, (pipeline, table.schema, table.name))
    return bool(rows and rows[0][0])


def set_created(session: Session, target: Target) -> None:
    session.execute(f"update pgetl.destination_table set created = true where {_ONE}", _key(target))


def holders(session: Session, tables: Collection[TableName]) -> Mapping[TableName, str]:
    """For each of these tables, the pipeline that published the copy in it."""
    statement = f"""select schema_name, table_name, pipeline from pgetl.destination_table
        where held and relation = {_RELATION} and (schema_name, table_name) in
            (select s, t from json_to_recordset($1::json) as asked (s text, t text))"""
    asked = json.dumps([{"s": table.schema, "t": table.name} for table in tables])
    return {TableName(schema, name): pipeline for schema, name, pipeline in session.rows(statement, (asked,))}


def lock_records(session: Session, table: TableName) -> None:
    """Locks the table's records: other pipelines that have the table in their metadata write nothing to it until the
    transaction ends."""
    statement = """select from pgetl.destination_table where schema_name = $1 and table_name = $2
        order by pipeline for no key update"""
    session.execute(statement, (table.schema, table.name))


def set_held(session: Session, target: Target) -> None:
    """Records that the table that exists now, with its present columns, belongs to this pipeline and to no other."""
    key = _key(target)
    statement = """update pgetl.destination_table set held = false, created = false
        where pipeline <> $1 and schema_name = $2 and table_name = $3 and held"""
    session.execute(statement, key)
    statement = f"""update pgetl.destination_table set held = true, relation = {_RELATION}, column_names = $4
        where {_ONE}"""
    session.execute(statement, (*key, list(target.schema.names)))
    session.execute(f"update pgetl.destination_table set columns = {_COLUMNS} where {_ONE}", key)


def set_columns(session: Session, target: Target) -> None:
    """Records the present columns of a table that this pipeline holds, after it has altered them."""
    key = _key(target)
    statement = f"update pgetl.destination_table set column_names = $4 where {_ONE} and column_names <> $4"
    session.execute(statement, (*key, list(target.schema.names)))
    session.execute(f"update pgetl.destination_table set columns = {_COLUMNS} where {_ONE}", key)


def forget_positions(session: Session, table: TableName) -> None:
    """Deletes the positions in a dropped table, so that no pipeline continues from them. Generation and attempt, which
    decide who may copy the table, are kept."""
    statement = (
        "update pgetl.destination_table"
        " set position = null, published = 0, created = false, held = false, relation = null"
        " where schema_name = $1 and table_name = $2"
    )
    session.execute(statement, (table.schema, table.name))


def forget(session: Session, pipeline: str) -> bool:
    """Deletes all records of the pipeline, except which tables hold its rows and which of them it created: those remain
    its own, and the latter may still take any form. Returns whether there was anything to delete."""
    fences = session.execute("delete from pgetl.destination_fence where pipeline = $1", (pipeline,))
    ranges = session.execute("delete from pgetl.destination_range where pipeline = $1", (pipeline,))
    kept = f"held and {_RELATION} is not null"
    others = session.execute(f"delete from pgetl.destination_table where pipeline = $1 and not ({kept})", (pipeline,))
    statement = """update pgetl.destination_table set generation = 0, attempt = 0, published = 0, position = null
        where pipeline = $1 and (generation, attempt, published, position) is distinct from (0, 0, 0, null::pg_lsn)"""
    return fences + ranges + others + session.execute(statement, (pipeline,)) > 0


def withdraw(session: Session) -> None:
    """Drops the metadata's tables if all of them are empty, and then its schemas that are empty, provided that the role
    could create them again. A session that has just found them fails, and creates them at its next attempt."""
    take(session, DDL)
    if not session.rows(_WITHDRAWABLE, (list(_TABLES), STAGING))[0][0]:
        return
    session.execute(f"lock table {', '.join(_TABLES)} in access exclusive mode")
    if any(session.rows(f"select 1 from {table} limit 1") for table in _TABLES):
        return
    for table in _TABLES:
        session.execute(f"drop table {table}")
    for schema in (STAGING, "pgetl"):
        if session.rows(_IS_EMPTY, (schema,))[0][0]:
            session.execute(f"drop schema {schema}")


# -- the statements that are sent together with a batch


def ask_epoch(pipeline: str) -> Statement:
    return Statement("select epoch from pgetl.destination_fence where pipeline = $1", (pipeline.encode(),))


def ask_records(pipeline: str, tables: Iterable[TableName]) -> Statement:
    """The statement that reads the records of these tables, and what has their names now. It locks the records in one
    order, so that two batches never wait for each other."""
    statement = f"""select schema_name, table_name, {_RECORD}, {_HOLD} from pgetl.destination_table d
        where pipeline = $1 and (schema_name, table_name) in
            (select s, t from json_to_recordset($2::json) as asked (s text, t text))
        order by schema_name, table_name for no key update"""
    asked = [{"s": table.schema, "t": table.name} for table in tables]
    return Statement(statement, (pipeline.encode(), json.dumps(asked).encode()))


def set_positions(pipeline: str, records: Mapping[TableName, TableMetadata]) -> Statement:
    statement = """update pgetl.destination_table d set position = moved.p
        from json_to_recordset($2::json) as moved (s text, t text, p pg_lsn)
        where pipeline = $1 and schema_name = s and table_name = t"""
    moved = [{"s": table.schema, "t": table.name, "p": str(to.position)} for table, to in records.items()]
    return Statement(statement, (pipeline.encode(), json.dumps(moved).encode()))


def read_epoch(answer: QueryResult) -> int | None:
    return int(answer.rows[0][0] or 0) if answer.rows else None


def read_records(answer: QueryResult) -> Mapping[TableName, TableMetadata]:
    return {TableName(row[0] or "", row[1] or ""): _record(row[2:6]) for row in answer.rows}


def read_holds(answer: QueryResult) -> Mapping[TableName, Hold]:
    return {TableName(row[0] or "", row[1] or ""): _hold(row[6:]) for row in answer.rows}


def holds(session: Session, pipeline: str) -> Mapping[TableName, Hold]:
    """The `Hold` of each table of the pipeline that has a position."""
    statement = f"""select schema_name, table_name, {_HOLD} from pgetl.destination_table d
        where pipeline = $1 and position is not null"""
    return {TableName(*row[:2]): _hold(row[2:]) for row in session.rows(statement, (pipeline,))}


def hold(session: Session, target: Target) -> Hold | None:
    rows = session.rows(f"select {_HOLD} from pgetl.destination_table d where {_ONE}", _key(target))
    return _hold(rows[0]) if rows else None


# -- ranges


def open_range(session: Session, target: Target, attempt: int, number: int) -> int | None:
    """Records the range and returns None; if it is recorded already, returns the number of rows that were stored for
    it.

    A concurrent call for the same range waits here until the first transaction has ended.
    """
    statement = "insert into pgetl.destination_range values ($1, $2, $3, $4, $5) on conflict do nothing"
    if session.execute(statement, (*_key(target), attempt, number)):
        return None
    statement = f"select row_count from pgetl.destination_range where {_ONE} and attempt = $4 and number = $5"
    stored: int = session.rows(statement, (*_key(target), attempt, number))[0][0]
    return stored


def close_range(session: Session, target: Target, attempt: int, number: int, rows: int) -> None:
    statement = f"update pgetl.destination_range set row_count = $6 where {_ONE} and attempt = $4 and number = $5"
    session.execute(statement, (*_key(target), attempt, number, rows))


def count_ranges(session: Session, target: Target, attempt: int) -> int:
    statement = f"select count(*) from pgetl.destination_range where {_ONE} and attempt = $4"
    found: int = session.rows(statement, (*_key(target), attempt))[0][0]
    return found


def forget_ranges(session: Session, target: Target, first: int, last: int) -> None:
    """Deletes the records of the ranges of attempts `first` to `last`."""
    statement = f"delete from pgetl.destination_range where {_ONE} and attempt between $4 and $5"
    session.execute(statement, (*_key(target), first, last))


def _key(target: Target) -> tuple[str, str, str]:
    return target.pipeline, target.schema.table.schema, target.schema.table.name


def _hold(row: Row) -> Hold:
    held, holder, relation, found, columns, columns_found, unlogged = row
    known, there = (None if oid is None else int(oid) for oid in (relation, found))
    return Hold(int(held) == 1, holder, known, there, columns, columns_found, int(unlogged or 0) == 1)


def _record(row: Row) -> TableMetadata:
    generation, attempt, published, position = row
    known = None if position is None else Boundary.parse(position)
    return TableMetadata(int(generation), int(attempt), int(published), known)
