"""The optional event trigger of the source, which describes each altered table in the WAL, in order with its changes.

Without it, an alteration is known from pgoutput's RELATION message and from the catalog. The message has neither
attribute numbers nor defaults, and the catalog may be ahead of the position that is being read. The trigger writes a
transactional logical message (prefix `pgetl.ddl`) at the end of every DDL command that concerns tables: `DdlMessage`
is its content. So a message stands in the WAL behind the changes that were made before the command, and before those
that are made after it; the message of a command that is rolled back, also to a savepoint, is never sent.

* The message is followed by an empty one, which says nothing. Decoding sorts changes by the begin of their WAL record,
  but messages by the end, which is where the next record begins; and it leaves open which comes first if the two belong
  to different subtransactions. Without the empty message, the next change could come before the description of its
  table.
* One event trigger serves all pipelines of a database. It lies in the schema `pgetl_ddl`, which belongs to the role
  that installs it. Its functions are SECURITY DEFINER with a pinned search_path, so that they neither need a privilege
  of the role that alters a table, nor resolve a name by that role's search_path.
* It never makes a command fail: an error in it is caught and becomes a WARNING. What is not caught is what ends the
  command anyway, such as a cancellation.
* Temporary and unlogged tables, and those of system schemas, are not described, because they are never replicated.
* A command that alters a partitioned table alters its partitions, which are described as well; and a table's
  description names its ancestors, so that a reader finds the root under which its changes are published.
* It does not see TRUNCATE, which pgoutput sends, nor commands on global objects, for which PostgreSQL has no event.
* A command that was under way when the trigger was installed is not described. So the script waits until every
  transaction of that time has ended, and then notes the position from which on all commands are described (`Trigger`).
  A stream that is before it, or finds no position, reads the catalog instead.

Creating an event trigger requires a superuser, or the role that a managed service has for it. `script` is for those
who let somebody else run it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from psycopg import pq

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.source.connecting import Connection, command, server_errors

PREFIX = "pgetl.ddl"
VERSION = 1
"""Of the trigger and of its messages. Installing replaces an older one."""

_COMMANDS = (
    "ALTER TABLE",
    "ALTER SCHEMA",
    "ALTER TYPE",
    "ALTER DOMAIN",
    "ALTER PUBLICATION",
    "COMMENT",
    "CREATE TABLE",
    "CREATE TABLE AS",
    "SELECT INTO",
)

_REMOVE = """
DROP EVENT TRIGGER IF EXISTS pgetl_ddl_end;
DROP EVENT TRIGGER IF EXISTS pgetl_ddl_drop;
DROP EVENT TRIGGER IF EXISTS pgetl_ddl_rewrite;
DROP SCHEMA IF EXISTS pgetl_ddl CASCADE;
"""

_INSTALL = """
CREATE SCHEMA pgetl_ddl;

CREATE FUNCTION pgetl_ddl.describe(relation oid) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO, MDY' SET intervalstyle = 'postgres'
SET timezone = 'UTC' SET extra_float_digits = '3' SET bytea_output = 'hex' SET lc_monetary = 'C' AS $function$
SELECT jsonb_build_object(
    'oid', c.oid::bigint, 'schema', n.nspname, 'name', c.relname, 'kind', c.relkind, 'identity', c.relreplident,
    'filenode', pg_relation_filenode(c.oid)::bigint, 'comment', obj_description(c.oid, 'pg_class'),
    'ancestors', (SELECT coalesce(jsonb_agg(a.relid::oid::bigint), '[]')
        FROM pg_partition_ancestors(c.oid) a WHERE a.relid <> c.oid),
    'key', (SELECT coalesce(jsonb_agg(k.attnum ORDER BY k.place), '[]')
        FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY k (attnum, place)
        WHERE i.indrelid = c.oid AND i.indisprimary AND k.place <= i.indnkeyatts),
    'columns', (SELECT coalesce(jsonb_agg(jsonb_build_object(
            'attnum', a.attnum, 'name', a.attname, 'type', a.atttypid::bigint, 'modifier', a.atttypmod,
            'type_name', format_type(a.atttypid, a.atttypmod), 'not_null', a.attnotnull, 'generated', a.attgenerated,
            'identity', a.attidentity, 'default', pg_get_expr(d.adbin, d.adrelid),
            'missing', CASE WHEN a.atthasmissing THEN (a.attmissingval::text::text[])[1] END,
            'has_missing', a.atthasmissing, 'comment', col_description(c.oid, a.attnum)) ORDER BY a.attnum), '[]')
        FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = relation
$function$;

CREATE FUNCTION pgetl_ddl.concerned(classid oid, objid oid) RETURNS SETOF oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $function$
WITH named AS (
    SELECT objid AS oid WHERE classid = 'pg_class'::regclass
    UNION SELECT c.oid FROM pg_class c WHERE classid = 'pg_namespace'::regclass AND c.relnamespace = objid
    UNION SELECT a.attrelid FROM pg_attribute a
        WHERE classid = 'pg_type'::regclass AND a.atttypid = objid AND NOT a.attisdropped)
SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid IN (SELECT oid FROM named UNION SELECT p.relid FROM named, pg_partition_tree(named.oid) p)
    AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
    AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pgetl_ddl') AND n.nspname NOT LIKE 'pg\\_%'
$function$;

CREATE FUNCTION pgetl_ddl.emit(content jsonb) RETURNS pg_lsn
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
SELECT pg_logical_emit_message(true, '{prefix}', (content || '{{"version": {version}}}')::text);
SELECT pg_logical_emit_message(true, '{prefix}', '');
$function$;

CREATE FUNCTION pgetl_ddl.on_end() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    tables jsonb;
    publications jsonb;
BEGIN
    SELECT jsonb_agg(pgetl_ddl.describe(t.oid) ORDER BY t.oid) INTO tables
    FROM (SELECT DISTINCT concerned.oid FROM pg_event_trigger_ddl_commands() e,
        LATERAL pgetl_ddl.concerned(e.classid, e.objid) concerned (oid)) t;
    SELECT jsonb_agg(DISTINCT p.pubname) INTO publications FROM pg_event_trigger_ddl_commands() e
    JOIN pg_publication p ON (e.classid = 'pg_publication'::regclass AND p.oid = e.objid)
        OR (e.classid = 'pg_publication_rel'::regclass
            AND p.oid = (SELECT r.prpubid FROM pg_publication_rel r WHERE r.oid = e.objid))
        OR (e.classid = 'pg_publication_namespace'::regclass
            AND p.oid = (SELECT s.pnpubid FROM pg_publication_namespace s WHERE s.oid = e.objid));
    IF tables IS NOT NULL OR publications IS NOT NULL THEN
        PERFORM pgetl_ddl.emit(jsonb_build_object('command', tg_tag, 'tables', coalesce(tables, '[]'),
            'publications', coalesce(publications, '[]')));
    END IF;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'pgetl could not describe what % has altered: %', tg_tag, sqlerrm;
END
$function$;

CREATE FUNCTION pgetl_ddl.on_drop() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    dropped jsonb;
    publications jsonb;
BEGIN
    SELECT jsonb_agg(jsonb_build_object('oid', o.objid::bigint, 'schema', o.schema_name, 'name', o.object_name))
    INTO dropped FROM pg_event_trigger_dropped_objects() o
    WHERE o.classid = 'pg_class'::regclass AND o.object_type = 'table' AND NOT o.is_temporary;
    SELECT jsonb_agg(DISTINCT o.address_args[1]) INTO publications FROM pg_event_trigger_dropped_objects() o
    WHERE o.object_type IN ('publication relation', 'publication namespace');
    IF dropped IS NOT NULL OR publications IS NOT NULL THEN
        PERFORM pgetl_ddl.emit(jsonb_build_object('command', tg_tag, 'dropped', coalesce(dropped, '[]'),
            'publications', coalesce(publications, '[]')));
    END IF;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'pgetl could not describe what % has dropped: %', tg_tag, sqlerrm;
END
$function$;

CREATE FUNCTION pgetl_ddl.on_rewrite() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    rewritten oid := pg_event_trigger_table_rewrite_oid();
    reason int := pg_event_trigger_table_rewrite_reason();
BEGIN
    -- 4: a column's type, 8: the access method. What the client sent is one ALTER TABLE, and has no USING in it.
    IF EXISTS (SELECT FROM pgetl_ddl.concerned('pg_class'::regclass, rewritten)) THEN
        PERFORM pgetl_ddl.emit(jsonb_build_object('command', tg_tag, 'rewritten', jsonb_build_object(
            'oid', rewritten::bigint, 'casts', reason = 8 OR reason = 4
                AND current_query() ~* '^\\s*alter\\s+table\\s' AND current_query() !~* '\\yusing\\y'
                AND current_query() !~ ';\\s*\\S')));
    END IF;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'pgetl could not tell that % rewrites a table: %', tg_tag, sqlerrm;
END
$function$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA pgetl_ddl FROM PUBLIC;

CREATE EVENT TRIGGER pgetl_ddl_end ON ddl_command_end WHEN TAG IN ({commands}) EXECUTE FUNCTION pgetl_ddl.on_end();
CREATE EVENT TRIGGER pgetl_ddl_drop ON sql_drop EXECUTE FUNCTION pgetl_ddl.on_drop();
CREATE EVENT TRIGGER pgetl_ddl_rewrite ON table_rewrite EXECUTE FUNCTION pgetl_ddl.on_rewrite();
"""

_NOTE = """
DO $do$
DECLARE
    following xid8 := pg_snapshot_xmax(pg_current_snapshot());
BEGIN
    FOR tenth IN 1 .. {tenths} LOOP
        EXIT WHEN pg_snapshot_xmin(pg_current_snapshot()) >= following;
        PERFORM pg_sleep(0.1);
    END LOOP;
    IF pg_snapshot_xmin(pg_current_snapshot()) >= following THEN
        EXECUTE format('COMMENT ON SCHEMA pgetl_ddl IS %L',
            'pgetl: describes altered tables in the WAL, version {version}, from ' || pg_current_wal_insert_lsn());
    ELSE
        RAISE WARNING 'pgetl does not use the event trigger, as a transaction was open all the time: install it again';
    END IF;
END
$do$;
"""
_WAIT_TENTHS = 600


def script() -> str:
    """The SQL that installs the trigger, in place of any that is there."""
    commands = ", ".join(f"'{command}'" for command in _COMMANDS)
    made = _INSTALL.format(version=VERSION, prefix=PREFIX, commands=commands)
    return f"BEGIN;{_REMOVE}{made}\nCOMMIT;\n{_NOTE.format(version=VERSION, tenths=_WAIT_TENTHS)}"


def install(connection: Connection) -> None:
    """Installs the trigger, or replaces the one that is there. Waits up to a minute for transactions that are open."""
    with _as_administrator("The event trigger could not be installed"):
        connection.execute(script().encode())
    found = installed(connection)
    if found is None or found.since is None:
        message = "The event trigger is installed, but is not used: a transaction has been open all the time."
        raise PgetlError(ErrorKind.RESOURCES, message, remedy="Run `pgetl ddl install` again when it has ended.")


def remove(connection: Connection) -> bool:
    """Removes the trigger; returns whether there was one."""
    found = installed(connection) is not None
    with _as_administrator("The event trigger could not be removed"):
        connection.execute(f"BEGIN;{_REMOVE}COMMIT;".encode())
    return found


@dataclass(frozen=True, slots=True)
class Trigger:
    """An installed trigger. `since`: what is committed after this position is described; None if nothing is."""

    version: int
    since: Boundary | None


def installed(connection: Connection) -> Trigger | None:
    """Returns the trigger of the connection's database; None if there is none, or one that does not fire."""
    row = connection.execute(_INSTALLED).fetchone()
    return None if row is None else _trigger(row[0])


def described_since(replication: pq.abc.PGconn) -> Boundary | None:
    """Returns, over a replication session, from where on altered tables are described as this version of pgetl reads
    it; None if they are not."""
    rows = command(replication, _INSTALLED, "The event trigger could not be looked for")
    found = _trigger(rows[0][0]) if rows else None
    return found.since if found is not None and found.version == VERSION else None


_INSTALLED = """
select obj_description(n.oid, 'pg_namespace') from pg_namespace n where n.nspname = 'pgetl_ddl' and 3 = (
    select count(*) from pg_event_trigger e
    where e.evtname in ('pgetl_ddl_end', 'pgetl_ddl_drop', 'pgetl_ddl_rewrite') and e.evtenabled in ('O', 'A'))
"""
_COMMENT = re.compile(r"version (\d+), from ([0-9A-F]+/[0-9A-F]+)$")


def _trigger(comment: str | None) -> Trigger:
    found = _COMMENT.search(comment or "")
    return Trigger(0, None) if found is None else Trigger(int(found[1]), Boundary.parse(found[2]))


@contextmanager
def _as_administrator(complaint: str) -> Iterator[None]:
    try:
        with server_errors(complaint):
            yield
    except PgetlError as error:
        if error.kind is not ErrorKind.PRIVILEGE:
            raise
        remedy = (
            "Only a superuser, or the role that a managed service has for it, may create event triggers. "
            "Name such a role with --as, or give an administrator what `pgetl ddl script` prints."
        )
        raise PgetlError(ErrorKind.PRIVILEGE, error.message, remedy=remedy) from error


# -- What the messages say. --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DescribedColumn:
    """A column after the command. `missing` is its value, in text form, in rows that are older than the column; it
    counts if `has_missing`. `default` is the expression of its default or of its generation."""

    attnum: int
    name: str
    type: int
    modifier: int
    type_name: str
    not_null: bool
    generated: str
    identity: str
    default: str | None
    has_missing: bool
    missing: str | None
    comment: str | None


@dataclass(frozen=True, slots=True)
class DescribedTable:
    """A table after the command. `key` has the attribute numbers of its primary key, in order. `ancestors` are the
    partitioned tables above it, the direct parent first."""

    oid: int
    schema: str
    name: str
    kind: str
    identity: str
    filenode: int | None
    comment: str | None
    ancestors: tuple[int, ...]
    key: tuple[int, ...]
    columns: tuple[DescribedColumn, ...]


@dataclass(frozen=True, slots=True)
class DdlMessage:
    """What one command has done. `tables` are those that it concerns, as they are afterwards; `dropped` are OIDs of
    tables; `rewritten` is the OID of a table all of whose rows are written anew, which is told before the table's
    description, and `casts` whether that does nothing but cast values to other types; `publications` are the names of
    those that were altered."""

    command: str
    tables: tuple[DescribedTable, ...] = ()
    dropped: tuple[int, ...] = ()
    rewritten: int | None = None
    casts: bool = False
    publications: tuple[str, ...] = ()

    @classmethod
    def parse(cls, content: bytes) -> DdlMessage:
        """Raises `PgetlError` if this is no message of this version of the trigger."""
        try:
            said = json.loads(content)
            if said["version"] != VERSION:
                raise PgetlError(
                    ErrorKind.SCHEMA,
                    f"The event trigger of the source has version {said['version']}, not {VERSION}.",
                    remedy="Run `pgetl ddl install`.",
                )
            return cls(
                said["command"],
                tuple(map(_table, said.get("tables", ()))),
                tuple(one["oid"] for one in said.get("dropped", ())),
                said["rewritten"]["oid"] if "rewritten" in said else None,
                said["rewritten"]["casts"] if "rewritten" in said else False,
                tuple(said.get("publications", ())),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise PgetlError(ErrorKind.SCHEMA, f"A message of the event trigger cannot be read: {error!r}.") from None


def _table(said: Mapping[str, Any]) -> DescribedTable:
    lists = {name: tuple(said[name]) for name in ("ancestors", "key")}
    columns = tuple(DescribedColumn(**column) for column in said["columns"])
    return DescribedTable(**{**said, **lists, "columns": columns})
