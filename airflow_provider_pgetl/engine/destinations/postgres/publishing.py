"""Publishes a copy as the table, in one transaction: readers see the old table until it commits, then the new one.

If nothing depends on the old table that cannot be carried over, the staging table replaces it; owner, grants, comments
and indexes are carried over. If there are views on it, foreign keys, triggers, defaults and the like, the table stays
and its rows are replaced. Indexes are built before the table is locked, so that readers wait for a rename at most.
"""

from __future__ import annotations

import logging

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.destinations.postgres import copy, existing_tables, metadata
from airflow_provider_pgetl.engine.destinations.postgres.session import Session
from airflow_provider_pgetl.engine.destinations.postgres.types import describe, exists, kept_out
from airflow_provider_pgetl.engine.model.errors import Fenced
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema, quote_identifier

log = logging.getLogger(__name__)

_LOCK_PATIENCE = "30s"
_SORT_MEMORY_KB = 256 << 10


def finish(session: Session, target: Target, attempt: int, position: Boundary, ranges: int | None = None) -> None:
    metadata.ensure(session)
    table = target.schema.table
    with session.transaction():
        metadata.take_over(session, metadata.of_table(target.pipeline, table))
        metadata.lock_records(session, table)
        known = metadata.record(session, target)
        record = fencing.finish(known, target.generation, attempt, position, table)
        if record is None:
            return
        staged = copy.name(target, attempt)
        if not exists(session, staged):
            raise Fenced(f"Copy attempt {attempt} of {table} was aborted.", table=str(table))
        fencing.expect_ranges(metadata.count_ranges(session, target, attempt), ranges, attempt, table)
        _publish(session, target, staged)
        metadata.set_held(session, target)
        copy.drop(session, target, attempt)
        metadata.set_record(session, target, record)


def _publish(session: Session, target: Target, staged: TableName) -> None:
    table = target.schema.table
    ours = metadata.created(session, target.pipeline, table)
    if not exists(session, table):
        _prepare_new(session, target.schema, staged)
        _rename(session, staged, table, {})
        metadata.set_created(session, target)
    elif _replaceable(session, table, staged):
        _swap(session, target, staged, ours=ours)
    else:
        _refill(session, target, staged, ours=ours)


# -- a table that does not exist, or is replaced


def _prepare_new(session: Session, schema: TableSchema, staged: TableName) -> None:
    if schema.key:
        _more_memory(session)
        _add_key(session, schema, staged, staged)
    _comment(session, schema, staged)
    session.execute(f"analyze {staged.sql}")


def _swap(session: Session, target: Target, staged: TableName, *, ours: bool) -> None:
    """Replaces the table by the staging table. With `ours`, the key is the source's, which may have changed since; a
    table that the pipeline did not create keeps its own key."""
    schema, table = target.schema, target.schema.table
    _more_memory(session)
    indexes = _build_indexes(session, table, staged, but_key=ours)
    if ours and schema.key:
        _add_key(session, schema, staged, staged)
    session.execute(f"analyze {staged.sql}")
    _lock(session, target)
    if not _replaceable(session, table, staged):
        _refill(session, target, staged, ours=ours)
        return
    _comment(session, schema, staged) if ours else session.execute(f"comment on table {staged.sql} is null")
    for (statement,) in session.rows(_CARRIED, (table.sql, staged.sql)):
        session.execute(statement)
    session.execute(f"drop table {table.sql}", table=table)
    _rename(session, staged, table, indexes)


def _rename(session: Session, staged: TableName, table: TableName, indexes: dict[str, str]) -> None:
    schema = quote_identifier(table.schema)
    session.execute(f"alter table {staged.sql} set schema {schema}", table=table)
    session.execute(f"alter table {schema}.{quote_identifier(staged.name)} rename to {quote_identifier(table.name)}")
    _rename_indexes(session, table, indexes)


def _rename_indexes(session: Session, table: TableName, indexes: dict[str, str]) -> None:
    """Renames the indexes as far as the wanted names are free; the key's index gets the name that PostgreSQL would give
    it."""
    schema, key = quote_identifier(table.schema), session.rows(_KEY_INDEX, (table.sql,))
    names = {**({key[0][0]: f"{table.name}_pkey"} if key else {}), **indexes}
    for built, wanted in names.items():
        if not exists(session, TableName(table.schema, wanted)):
            name = quote_identifier(wanted.encode()[:63].decode(errors="ignore"))
            session.execute(f"alter index {schema}.{quote_identifier(built)} rename to {name}")


def _add_key(session: Session, schema: TableSchema, place: TableName, staged: TableName) -> None:
    """Adds the primary key to the table `place`, under a unique name, which is derived from that of the staging
    table."""
    columns = ", ".join(map(quote_identifier, schema.key))
    name = quote_identifier(f"{staged.name}_key")
    session.execute(f"alter table {place.sql} add constraint {name} primary key ({columns})", table=schema.table)


def _build_indexes(session: Session, table: TableName, staged: TableName, *, but_key: bool) -> dict[str, str]:
    """Builds the table's indexes on the staging table; returns the names that they have there and those that they are
    to have."""
    names = {}
    for number, (name, definition, is_constraint) in enumerate(session.rows(_INDEXES, (table.sql, but_key))):
        built = f"{staged.name}_{number}"
        if is_constraint:
            statement = f"alter table {staged.sql} add constraint {quote_identifier(built)} {definition}"
        else:
            statement = definition.replace("{}", f"{quote_identifier(built)} on {staged.sql}", 1)
        session.execute(statement, table=table)
        names[built] = name
    return names


def _comment(session: Session, schema: TableSchema, staged: TableName) -> None:
    _set_comment(session, f"table {staged.sql}", schema.comment)
    for column in schema.columns:
        if column.comment is not None:
            _set_comment(session, f"column {staged.sql}.{column.sql}", column.comment)


def _set_comment(session: Session, thing: str, comment: str | None) -> None:
    word = "null" if comment is None else "'" + comment.replace("'", "''") + "'"
    session.execute(f"comment on {thing} is {word}")


def _replaceable(session: Session, table: TableName, staged: TableName) -> bool:
    """Whether dropping the table would lose nothing but what `_swap` carries over."""
    return bool(session.rows(_REPLACEABLE, (table.sql, staged.sql))[0][0])


def _more_memory(session: Session) -> None:
    statement = """select set_config('maintenance_work_mem', greatest(setting::int, $1)::text, true)
        from pg_settings where name = 'maintenance_work_mem'"""
    session.execute(statement, (_SORT_MEMORY_KB,))


def _lock(session: Session, target: Target) -> None:
    """Locks the table in exclusive mode and raises if it holds foreign rows: those written since the copy began are
    visible now, and no more can follow."""
    session.execute(f"set local lock_timeout = '{_LOCK_PATIENCE}'")
    session.execute(f"lock table {target.schema.table.sql} in access exclusive mode")
    session.execute("set local lock_timeout = 0")
    existing_tables.expect_free(session, target)


# -- a table that stays


def _refill(session: Session, target: Target, staged: TableName, *, ours: bool) -> None:
    """Replaces the rows in place. A table that foreign keys reference cannot be truncated; its rows are deleted."""
    schema = target.schema
    log.info("%s is refilled in place: other objects depend on it", schema.table)
    new_key = ours and _drop_former_key(session, schema)
    if ours:
        for lacking in copy.lacking(session, schema):
            session.execute(f"alter table {schema.table.sql} add column {lacking.sql}", table=schema.table)
        for (name,) in session.rows(_TOO_STRICT, (schema.table.sql, list(schema.names), staged.sql)):
            column = quote_identifier(name)
            session.execute(f"alter table {schema.table.sql} alter column {column} drop not null", table=schema.table)
        copy.add_generated(session, schema, schema.table)
    shape = describe(session, schema)
    _lock(session, target)
    verb = "delete from" if shape.referenced else "truncate"
    session.execute(f"{verb} {shape.sql}", table=schema.table)
    if ours:
        for name, sql_type in session.rows(_RETYPED, (schema.table.sql, staged.sql)):
            column = quote_identifier(name)
            retype = f"alter table {shape.sql} alter column {column} type {sql_type} using null"
            session.execute(retype, table=schema.table)
    columns = shape.columns_sql
    statement = f"insert into {shape.sql} ({columns}) overriding system value select {columns} from {staged.sql}"
    if session.execute(statement, table=schema.table) < session.rows(f"select count(*) from {staged.sql}")[0][0]:
        raise kept_out(schema.table)
    if new_key:
        _more_memory(session)
        _add_key(session, schema, schema.table, staged)
        _rename_indexes(session, schema.table, {})


def _drop_former_key(session: Session, schema: TableSchema) -> bool:
    """Drops the table's primary key if the source's key is another; returns whether the new one is still to be added.
    The former key would refuse rows that the source allows."""
    former = session.rows(_KEY, (schema.table.sql,))
    for name, columns in former:
        if list(columns) == list(schema.key):
            return False
        constraint = quote_identifier(name)
        session.execute(f"alter table {schema.table.sql} drop constraint {constraint}", table=schema.table)
    return bool(schema.key)


_KEY_INDEX = """
select c.relname::text from pg_index i join pg_class c on c.oid = i.indexrelid
where i.indrelid = to_regclass($1) and i.indisprimary
"""

# The primary key's name, and its columns in their order.
_KEY = """
select conname::text, array(
    select a.attname::text from unnest(conkey) with ordinality k (attnum, at)
    join pg_attribute a on a.attrelid = conrelid and a.attnum = k.attnum order by at)
from pg_constraint where conrelid = to_regclass($1) and contype = 'p'
"""

# NOT NULL columns that the source does not have any more and that have no default, or in which the source allows null
# by now.
_TOO_STRICT = """
select attname::text from pg_attribute a
where attrelid = to_regclass($1) and attnum > 0 and not attisdropped and attnotnull and attidentity = ''
  and (not atthasdef and attname <> all ($2)
       or exists (select from pg_attribute s where s.attrelid = to_regclass($3) and s.attname = a.attname
                  and s.attnum > 0 and not s.attisdropped and not s.attnotnull))
  and not exists (select from pg_index i where indrelid = attrelid and indisprimary and attnum = any (indkey))
"""

# Columns whose type at the source has changed. The table is empty by then, so no value is lost.
_RETYPED = """
select s.attname::text, format_type(s.atttypid, s.atttypmod)
from pg_attribute s
join pg_attribute t on t.attname = s.attname and t.attrelid = to_regclass($1) and not t.attisdropped
where s.attrelid = to_regclass($2) and s.attnum > 0 and not s.attisdropped and t.attgenerated = ''
and (s.atttypid, s.atttypmod) <> (t.atttypid, t.atttypmod)
"""

_INDEXES = """
select i.relname::text,
       case when n.oid is null
            then replace(pg_get_indexdef(i.oid), format('%I ON %s ', i.relname, to_regclass($1)::text), '{} ')
            else pg_get_constraintdef(n.oid) end,
       n.oid is not null
from pg_index x
join pg_class i on i.oid = x.indexrelid
left join pg_constraint n on n.conindid = x.indexrelid and n.contype in ('p', 'u')
where x.indrelid = to_regclass($1) and x.indisvalid and not (x.indisprimary and $2)
order by x.indisprimary desc, i.relname
"""

# Whether the old table has none of the properties and dependent objects that would be lost with it.
_REPLACEABLE = """
select c.relkind = 'r' and not c.relispartition and not c.relrowsecurity and not c.relhasrules
   and c.relreplident = 'd' and c.reloptions is null and c.reltablespace = 0 and c.reloftype = 0
   and not exists (select from pg_inherits where c.oid in (inhrelid, inhparent))
   and not exists (select from pg_constraint
                   where (conrelid = c.oid and contype not in ('p', 'u', 'n')) or confrelid = c.oid)
   and not exists (select from pg_trigger where tgrelid = c.oid)
   and not exists (select from pg_policy where polrelid = c.oid)
   and not exists (select from pg_publication_rel where prrelid = c.oid)
   and not exists (select from pg_statistic_ext where stxrelid = c.oid)
   and not exists (select from pg_attrdef join pg_attribute a on a.attrelid = adrelid and a.attnum = adnum
                   where adrelid = c.oid and not exists (
                       select from pg_attribute s where s.attrelid = to_regclass($2) and s.attname = a.attname
                         and s.attgenerated <> '' and a.attgenerated <> ''))
   and not exists (select from pg_attribute where attrelid = c.oid and attnum > 0 and not attisdropped
                   and (attidentity <> '' or attoptions is not null
                        or attname not in (select attname from pg_attribute where attrelid = to_regclass($2))))
   and not exists (select from pg_depend
                   where refclassid = 'pg_class'::regclass and refobjid = c.oid and deptype = 'n'
                     and not (classid = 'pg_attrdef'::regclass
                              and objid in (select oid from pg_attrdef where adrelid = c.oid)))
   and not exists (select from pg_depend
                   where refclassid = 'pg_type'::regclass and refobjid in (c.reltype, (
                       select typarray from pg_type where oid = c.reltype)) and deptype = 'n')
from pg_class c where c.oid = to_regclass($1)
"""

# Comments, grants and owner of the old table, as statements about the new one.
_CARRIED = """
with old as (select * from pg_class where oid = to_regclass($1)),
columns as (select a.* from pg_attribute a, old where attrelid = old.oid and attnum > 0 and not attisdropped),
granted as (
    select null::name as attname, acl.* from old, aclexplode(relacl) acl
    union all
    select attname, acl.* from columns, aclexplode(attacl) acl)
select format('comment on table %s is %L', $2::text, obj_description(oid, 'pg_class')) from old
where obj_description(oid, 'pg_class') is not null
union all
select format('comment on column %s.%I is %L', $2::text, attname, col_description(attrelid, attnum)) from columns
where col_description(attrelid, attnum) is not null
union all
select format('alter table %s owner to %I', $2::text, pg_get_userbyid(relowner)) from old
where relowner <> (select relowner from pg_class where oid = to_regclass($2::text))
union all
select format('grant %s%s on %s to %s%s', privilege_type, '(' || quote_ident(attname) || ')', $2::text,
              case when grantee = 0 then 'public' else quote_ident(pg_get_userbyid(grantee)) end,
              case when is_grantable then ' with grant option' else '' end)
from granted, old where grantee <> relowner
"""
