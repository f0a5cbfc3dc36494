"""Checks, before anything is copied, whether a table that the pipeline did not create can store what the source sends.

Types are checked by the casts that the server has. If there is only a cast for assignment, or the value is read from
text, it depends on each value whether it fits: that is a warning. If there is no cast, no value can be stored: that is
an error, and so is a NOT NULL column that gets no value. Of numbers, dates and times the server refuses only those that
are out of range; it rounds the others silently, even where the cast is implicit: that is a warning, too. Other
constraints are not checked: what they refuse depends on each row.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.destinations.postgres import metadata
from airflow_provider_pgetl.engine.destinations.postgres.metadata import Hold
from airflow_provider_pgetl.engine.destinations.postgres.session import Session
from airflow_provider_pgetl.engine.destinations.postgres.types import Field, PostgresShape, describe, exists
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Finding, PgetlError
from airflow_provider_pgetl.engine.model.tables import PgType, TableName, TableSchema

_STRING, _ENUM = "S", "E"
_UNFILLED = """
select attname::text from pg_attribute
where attrelid = to_regclass($1) and attnum > 0 and not attisdropped and attnotnull and not atthasdef
  and attidentity = '' and attname <> all ($2)
"""


def findings(session: Session, pipeline: str, schema: TableSchema) -> Iterator[Finding]:
    """Yields nothing for a table that does not exist yet, or that the pipeline created and may give any form."""
    table = schema.table
    if not exists(session, table) or (metadata.present(session) and metadata.created(session, pipeline, table)):
        return
    try:
        shape = describe(session, schema)
    except PgetlError as error:
        if error.kind is not ErrorKind.SCHEMA:
            raise
        yield Finding.of(error)
        return
    for field in shape.fields:
        yield from _judge(session, schema, field)
    for (name,) in session.rows(_UNFILLED, (table.sql, list(schema.names))):
        problem = f"Column {name} of {table} in the destination is NOT NULL, and the source has nothing for it."
        yield Finding(problem, "Give it a default, or drop the NOT NULL.", kind=ErrorKind.SCHEMA)


def _judge(session: Session, schema: TableSchema, field: Field) -> Iterator[Finding]:
    column, there = field.column, field.destination
    words = f"Column {column.name} of {schema.table} is {there.sized_type} in the destination"
    if _rounds(field):
        yield _narrower(words, column.sql_type, "is refused, or rounded or cut off")
        return
    if field.same_type:
        if there.sized_type not in (there.type, column.sql_type):
            yield _narrower(words, column.sql_type)
        return
    cast = _cast(session, column.type.root, there.root_oid)
    if cast == "none":
        problem = f"{words}, which cannot take {column.sql_type} from the source."
        yield Finding(problem, _REMEDY, kind=ErrorKind.SCHEMA)
    elif cast == "assignment" or there.sized_type != there.type:
        yield _narrower(words, column.sql_type)


def roundings(shape: PostgresShape) -> Iterator[str]:
    """Describes the columns whose values may be stored as other values without an error of the server."""
    for field in shape.fields:
        if _rounds(field):
            yield (
                f"Values of {shape.table}.{field.column.name} may be rounded or cut off: it is "
                f"{field.destination.sized_type} in the destination and {field.column.sql_type} at the source"
            )


def _rounds(field: Field) -> bool:
    """Whether the server stores a value that does not fit as another one that does."""
    column, there = field.column, field.destination
    if there.root in _LESS.get(column.type.root.name, ()):
        return True
    return there.root in _ROUNDED_TO_SIZE and there.sized_type not in (there.type, column.sql_type)


def _narrower(words: str, of_source: str, what: str = "makes the table Errored") -> Finding:
    problem = f"{words} and {of_source} at the source: a value that does not fit {what}."
    return Finding(problem, _REMEDY, "warning")


def _cast(session: Session, source: PgType, destination: int) -> str:
    """`implicit`, `assignment`, or `none`. Values of a type that the destination does not have arrive as text."""
    context, from_category, to_category = session.rows(_CASTS, (source.name, destination))[0]
    if context == "i" or to_category == _STRING:
        return "implicit"
    by_words = from_category in (None, _STRING) or from_category == to_category == _ENUM
    return "assignment" if context == "a" or by_words else "none"


_DATE, _TIME, _TIMETZ = "date", "time without time zone", "time with time zone"
_INTEGERS = ("smallint", "integer", "bigint")
_ROUNDED_TO_SIZE = frozenset(
    ("numeric", _TIME, _TIMETZ, "timestamp without time zone", "timestamp with time zone", "interval")
)
# By source type, the destination types to which the server casts without an error and without preserving every value.
_LESS: Mapping[str, Sequence[str]] = {
    "integer": ("real",),
    "bigint": ("real", "double precision"),
    "numeric": (*_INTEGERS, "real", "double precision"),
    "real": (*_INTEGERS, "numeric"),
    "double precision": (*_INTEGERS, "numeric", "real"),
    "timestamp without time zone": (_DATE, _TIME),
    "timestamp with time zone": (_DATE, _TIME, _TIMETZ),
    _TIMETZ: (_TIME,),
    "interval": (_TIME,),
    "inet": ("cidr",),
}

_REMEDY = "Alter the column there, or name another table with `destination`, which is then made to fit."

# Arrays are cast element by element; between an array and a type that is not an array there is no cast.
_CASTS = """
select (select castcontext::text from pg_cast
        where castsource = case when f.typcategory = 'A' then f.typelem else f.oid end
          and casttarget = case when t.typcategory = 'A' then t.typelem else t.oid end
          and (f.typcategory = 'A') = (t.typcategory = 'A')),
       f.typcategory::text, t.typcategory::text
from pg_type t left join pg_type f on f.oid = to_regtype($1)
where t.oid = $2::int8::oid
"""


# -- Whose rows a table holds: this pipeline's, another pipeline's, or those of a writer other than pgetl. -------------
#
# A table belongs to a pipeline once the pipeline has published a copy in it, and still does when the pipeline is
# forgotten. It is identified by its OID: a table that was created in its place is another table. Each write of changes
# checks, in its own transaction, whether the table still belongs to the pipeline, has the columns that were published,
# and survives a crash.


def of_others(session: Session, pipeline: str, tables: Collection[TableName]) -> Mapping[TableName, str]:
    """The tables that hold foreign rows, and what they hold. Changes nothing."""
    holders = metadata.holders(session, tables) if metadata.present(session) else {}
    there = [table for table in _present(session, tables) if holders.get(table) != pipeline]
    return {table: fencing.rows_of(holders.get(table)) for table in there if _filled(session, table)}


def expect_free(session: Session, target: Target) -> None:
    """Raises if the table holds foreign rows that the pipeline may not replace."""
    table = target.schema.table
    if target.replaces:
        return
    for holds in of_others(session, target.pipeline, [table]).values():
        raise fencing.refusal(table, holds)


def lost(session: Session, pipeline: str) -> Mapping[TableName, PgetlError]:
    """The tables that the pipeline follows and could not write to now, each with the reason. Changes nothing."""
    if not metadata.present(session):
        return {}
    found = {table: _wrong(hold, table) for table, hold in metadata.holds(session, pipeline).items()}
    return {table: error for table, error in found.items() if error is not None}


def expect_held(holds: Mapping[TableName, Hold]) -> None:
    """Raises if a table is not, or not any more in the same form, what the pipeline has published."""
    for table, hold in holds.items():
        error = _wrong(hold, table)
        if error is not None:
            raise error


def _wrong(hold: Hold, table: TableName) -> PgetlError | None:
    if not hold.held:
        return fencing.replaced(table, hold.holder)
    if hold.found is None:
        return fencing.dropped(table)
    if hold.found != hold.relation:
        return fencing.exchanged(table)
    if hold.columns_found != hold.columns:
        message = f"The columns of {table} were altered in the destination: {_altered(hold)}."
        return PgetlError(ErrorKind.SCHEMA, message, remedy=fencing.COPY_AGAIN, table=str(table))
    if hold.unlogged:
        return fencing.unlogged(table)
    return None


def _altered(hold: Hold) -> str:
    """Describes the columns that differ; `Hold` has each column as its number, its name and its type."""
    before, now = (set((text or "").split(", ")) - {""} for text in (hold.columns, hold.columns_found))
    gone, come = (", ".join(sorted(one.partition(" ")[2] for one in some)) for some in (before - now, now - before))
    return f"{gone or 'nothing'} became {come or 'nothing'}"


def _present(session: Session, tables: Collection[TableName]) -> list[TableName]:
    asked = json.dumps([{"s": table.schema, "t": table.name} for table in tables])
    return [TableName(schema, name) for schema, name in session.rows(_PRESENT, (asked,))]


def _filled(session: Session, table: TableName) -> bool:
    return bool(session.rows(f"select exists (select from {table.sql})")[0][0])


_PRESENT = """
select s, t from json_to_recordset($1::json) as asked (s text, t text)
where to_regclass(format('%I.%I', s, t)) is not null
"""
