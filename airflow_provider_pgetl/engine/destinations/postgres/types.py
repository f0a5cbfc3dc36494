"""Types of the source, in the destination.

Built-in types are there. Enums, domains, composites and ranges are created under their own names; labels that an enum
has gained are added. A type of an extension is used if the extension is installed here. What cannot be had is kept as
text, and a word is said about it.
"""

from __future__ import annotations

import logging

from airflow_provider_pgetl.engine.destinations.postgres.session import Session
from airflow_provider_pgetl.engine.tables import Column, PgType, TableSchema, quote_identifier

log = logging.getLogger(__name__)

_MADE = frozenset({"enum", "domain", "composite", "range"})


def available(session: Session, pg_type: PgType) -> bool:
    """Whether the destination has the type, or `ensure` would make it."""
    if pg_type.kind == "array" and pg_type.inner is not None and not pg_type.built_in:
        return available(session, pg_type.inner)
    if exists(session, pg_type.name):
        return True
    makeable = pg_type.kind in _MADE and pg_type.extension is None and not pg_type.built_in
    return makeable and all(available(session, part) for part in _parts(pg_type))


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
