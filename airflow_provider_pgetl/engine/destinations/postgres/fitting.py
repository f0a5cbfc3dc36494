"""Whether a table that somebody else made can take what the source sends, told before anything is copied.

Judged are types, by the casts that the server knows. A cast that Postgres makes for an assignment, and what is read
from text, depends on each value, and is warned of; where there is no cast, no value can be stored. So it is where a
column must have a value and gets none. Of numbers and moments the server refuses only those that are out of range, and
rounds the others without a word, also where it casts unasked: that is warned of, too. Other constraints are not looked
at: what they refuse depends on each row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from airflow_provider_pgetl.engine.destinations.postgres import metadata
from airflow_provider_pgetl.engine.destinations.postgres.session import Session
from airflow_provider_pgetl.engine.destinations.postgres.shape import Field, Shape, describe, exists
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.findings import Finding
from airflow_provider_pgetl.engine.tables import PgType, TableSchema

_STRING, _ENUM = "S", "E"
_UNFILLED = """
select attname::text from pg_attribute
where attrelid = to_regclass($1) and attnum > 0 and not attisdropped and attnotnull and not atthasdef
  and attidentity = '' and attname <> all ($2)
"""


def findings(session: Session, pipeline: str, schema: TableSchema) -> Iterator[Finding]:
    """Nothing of a table that is not there yet, or that the pipeline made and may give any form."""
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


def roundings(shape: Shape) -> Iterator[str]:
    """In words, the columns whose values may come out as others without the server saying so."""
    for field in shape.fields:
        if _rounds(field):
            yield (
                f"Values of {shape.table}.{field.column.name} may be rounded or cut off: it is "
                f"{field.destination.sized_type} in the destination and {field.column.sql_type} at the source"
            )


def _rounds(field: Field) -> bool:
    """Whether a value that does not fit is stored as another one that does."""
    column, there = field.column, field.destination
    if there.root in _LESS.get(column.type.root.name, ()):
        return True
    return there.root in _ROUNDED_TO_SIZE and there.sized_type not in (there.type, column.sql_type)


def _narrower(words: str, of_source: str, what: str = "makes the table Errored") -> Finding:
    problem = f"{words} and {of_source} at the source: a value that does not fit {what}."
    return Finding(problem, _REMEDY, "warning")


def _cast(session: Session, source: PgType, destination: int) -> str:
    """`implicit`, `assignment`, or `none`. Values of a type that the destination does not have come as text."""
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
# Where the server casts without an error, and not every value comes out as it was.
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

# Of arrays the elements are cast; an array and what is none have no cast.
_CASTS = """
select (select castcontext::text from pg_cast
        where castsource = case when f.typcategory = 'A' then f.typelem else f.oid end
          and casttarget = case when t.typcategory = 'A' then t.typelem else t.oid end
          and (f.typcategory = 'A') = (t.typcategory = 'A')),
       f.typcategory::text, t.typcategory::text
from pg_type t left join pg_type f on f.oid = to_regtype($1)
where t.oid = $2::int8::oid
"""
