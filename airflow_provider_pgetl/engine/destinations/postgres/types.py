"""Types of the source, in the destination.

Built-in types are there. Enums, domains, composites and ranges are created under their own names; labels that an enum
has gained are added. A type of an extension is used if the extension is installed here. A type is known by its name,
and by what it is made of: another type that has the name by chance is not used. What cannot be had, and what means
something on its own server only, is kept as text, and a word is said about it.

The same look decides for copies and for changes: where a column is kept as text, its values come as text.
"""

from __future__ import annotations

import json
import logging

from airflow_provider_pgetl.engine.destinations.postgres.session import Session
from airflow_provider_pgetl.engine.tables import Column, PgType, TableSchema, quote_identifier

log = logging.getLogger(__name__)

_MADE = frozenset({"enum", "domain", "composite", "range"})
_KINDS = {"base": "b", "array": "b", "enum": "e", "domain": "d", "composite": "c", "range": "r", "multirange": "m"}
_DEFINITION = """
select t.typtype::text, x.extname::text,
       format_type(coalesce(nullif(t.typbasetype, 0), r.rngsubtype),
                   case when t.typtype = 'd' then t.typtypmod else -1 end),
       (select json_agg(json_build_array(a.attname, format_type(a.atttypid, a.atttypmod)) order by a.attnum)::text
        from pg_attribute a
        where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped)
from pg_type t
left join pg_range r on t.oid in (r.rngtypid, r.rngmultitypid)
left join pg_depend d on d.classid = 'pg_type'::regclass and d.objid = t.oid and d.deptype = 'e'
                     and d.refclassid = 'pg_extension'::regclass
left join pg_extension x on x.oid = d.refobjid
where t.oid = to_regtype($1)
"""


def available(session: Session, pg_type: PgType) -> bool:
    """Whether the destination has the very type, or `ensure` would make it."""
    if pg_type.local:
        return False
    if pg_type.built_in:
        return exists(session, pg_type.name)
    if pg_type.kind == "array" and pg_type.inner is not None:
        return available(session, pg_type.inner)
    found = session.rows(_DEFINITION, (pg_type.name,))
    makeable = pg_type.kind in _MADE and pg_type.extension is None
    is_fit = _is_same(pg_type, *found[0]) if found else makeable
    return is_fit and all(available(session, part) for part in _parts(pg_type))


def _is_same(pg_type: PgType, kind: str, extension: str | None, inner: str | None, fields: str | None) -> bool:
    """Of an enum, labels may still be missing here."""
    made_of = [[name, _spelled(field)] for name, field in pg_type.fields]
    return (
        (kind, extension) == (_KINDS[pg_type.kind], pg_type.extension)
        and (pg_type.inner is None or inner == _spelled(pg_type.inner))
        and (json.loads(fields) if fields else []) == made_of
    )


def read_binary(session: Session, schema: TableSchema) -> bool:
    """Whether the binary form of every column of the source is understood here: by the type itself, or, where the
    column has another one, on the way to it."""
    return all(_reads_binary(session, column.type) for column in schema.columns)


def _reads_binary(session: Session, pg_type: PgType) -> bool:
    if pg_type.universal:
        return True
    read = pg_type.read_since <= session.connection.info.server_version // 10000
    return read and pg_type.portable and available(session, pg_type)


def exists(session: Session, name: str) -> bool:
    return bool(session.rows("select to_regtype($1) is not null", (name,))[0][0])


def column_type(session: Session, schema: TableSchema, column: Column) -> str:
    """The type of the column in a table made for this schema."""
    if available(session, column.type):
        return column.sql_type
    log.warning("%s.%s is kept as text: the destination has no type %s", schema.table, column.name, column.type.name)
    return "text"


def ensure(session: Session, schema: TableSchema) -> None:
    """Make the types that the schema needs and the destination can have."""
    for column in schema.columns:
        if available(session, column.type):
            _ensure(session, column.type)


def _ensure(session: Session, pg_type: PgType) -> None:
    for part in _parts(pg_type):
        _ensure(session, part)
    if pg_type.built_in or pg_type.extension is not None or pg_type.kind not in _MADE:
        return
    if not exists(session, pg_type.name):
        _make(session, pg_type)
    elif pg_type.kind == "enum":
        _add_labels(session, pg_type)


def _parts(pg_type: PgType) -> tuple[PgType, ...]:
    inner = (pg_type.inner,) if pg_type.inner is not None else ()
    return (*inner, *(field for _, field in pg_type.fields))


def _make(session: Session, pg_type: PgType) -> None:
    schema = _schema_of(session, pg_type.name)
    if schema is not None:
        session.execute(f"create schema if not exists {quote_identifier(schema)}")
    session.execute(f"create {_definition(pg_type)}")


def _definition(pg_type: PgType) -> str:
    inner = "" if pg_type.inner is None else _spelled(pg_type.inner)
    if pg_type.kind == "enum":
        return f"type {pg_type.name} as enum ({', '.join(map(_literal, pg_type.labels))})"
    if pg_type.kind == "domain":
        return f"domain {pg_type.name} as {inner}"
    if pg_type.kind == "range":
        return f"type {pg_type.name} as range (subtype = {inner})"
    fields = ", ".join(f"{quote_identifier(name)} {_spelled(field)}" for name, field in pg_type.fields)
    return f"type {pg_type.name} as ({fields})"


def _add_labels(session: Session, pg_type: PgType) -> None:
    """Labels that are missing here, each behind the one that it follows at the source."""
    statement = "select enumlabel::text from pg_enum where enumtypid = to_regtype($1)"
    present = {row[0] for row in session.rows(statement, (pg_type.name,))}
    before: str | None = None
    for label in pg_type.labels:
        if label not in present:
            place = f" after {_literal(before)}" if before is not None else _in_front(pg_type, present)
            session.execute(f"alter type {pg_type.name} add value if not exists {_literal(label)}{place}")
        before = label


def _in_front(pg_type: PgType, present: set[str]) -> str:
    following = next((label for label in pg_type.labels if label in present), None)
    return "" if following is None else f" before {_literal(following)}"


def _schema_of(session: Session, name: str) -> str | None:
    """The schema in a qualified name, by the server's own rules of quoting."""
    parts = session.rows("select parse_ident($1)", (name,))[0][0]
    return parts[0] if len(parts) > 1 else None


def _spelled(pg_type: PgType) -> str:
    return pg_type.sql_type or pg_type.name


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
