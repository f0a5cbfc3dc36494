"""What a table looks like in the destination, and how a value from the source fits into each of its columns.

A user's table may have other types than the source's, more columns, generated and identity columns. A `Shape` pairs
each published column with the destination's column that takes it; published columns that the destination generates
itself are left out, and a column that is missing there is an error of the table.

A value comes as text or in the source's binary form. Either is read by the type that understands it (`read_as`), and
then becomes the column's type by a cast without a modifier, so that storing it is an assignment, which refuses what
does not fit, and not a cast, which would cut it off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from airflow_provider_pgetl.engine.changes.tuples import BINARY, TEXT, Ints, Tuples
from airflow_provider_pgetl.engine.destinations.postgres.session import Session
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.tables import Column, TableName, TableSchema, quote_identifier

Form = Literal["text", "binary", "null"]


@dataclass(frozen=True, slots=True)
class DestinationColumn:
    """A column as the destination's catalog has it.

    `oid` and `type` are its type and that type's name without modifier, `sized_type` is the name with it; `root` and
    `root_oid` are the type behind a domain. `collation` is named where it is not the type's own. `equals` is the schema
    of the type's `=`.
    """

    name: str
    oid: int
    type: str
    sized_type: str
    root: str
    root_oid: int
    generated: bool
    identity: str
    collation: str | None
    equals: str
    not_null: bool


@dataclass(frozen=True, slots=True)
class Field:
    """A published column, its place in the source's tuples, and the destination's column for it."""

    index: int
    column: Column
    destination: DestinationColumn

    @property
    def sql(self) -> str:
        return quote_identifier(self.destination.name)

    @property
    def same_type(self) -> bool:
        """Whether the source's binary form is that of the destination's column."""
        root = self.column.type.root
        if root.built_in:
            return self.destination.root_oid == root.oid
        return self.destination.root == root.name

    def read_as(self, form: Form) -> str:
        """The type that understands a value of this form."""
        if form == "text":
            return "text"
        return self.destination.type if form == "null" or self.same_type else self.column.type.root.name

    def value(self, staged: str, form: Form) -> str:
        """`staged`, which is of the type `read_as`, as a value for the column."""
        return staged if self.read_as(form) == self.destination.type else f"{staged}::{self.destination.type}"

    def parameter(self, number: int, form: Form) -> str:
        """A parameter that comes in this form, as a value for the column."""
        if form == "binary" and not self.same_type:
            return self.value(f"${number}::{self.read_as(form)}", form)
        return f"${number}::{self.destination.type}"

    def equal(self, stored: str, value: str) -> str:
        """Whether a stored value is this one. Its collation decides: a value's own is the default one, which yields."""
        return f"{stored} operator({self.destination.equals}.=) ({value})"


@dataclass(frozen=True)
class Shape:
    """A table of the destination, seen from the source's schema."""

    table: TableName
    columns: tuple[DestinationColumn, ...]
    fields: tuple[Field, ...]
    key: tuple[Field, ...]
    referenced: bool
    partitioned: bool
    key_is_unique: bool

    @property
    def sql(self) -> str:
        return self.table.sql

    @cached_property
    def others(self) -> tuple[str, ...]:
        """Columns that are no concern of the source's, and can be written."""
        taken = {field.destination.name for field in self.fields}
        return tuple(c.name for c in self.columns if c.name not in taken and not c.generated)

    @cached_property
    def values(self) -> tuple[Field, ...]:
        """The fields that are not part of the key."""
        keys = {field.index for field in self.key}
        return tuple(field for field in self.fields if field.index not in keys)

    @cached_property
    def always(self) -> bool:
        """Whether there is an identity-always column, which no UPDATE may set."""
        return any(field.destination.identity == "a" for field in self.fields)

    @cached_property
    def columns_sql(self) -> str:
        return ", ".join(field.sql for field in self.fields)

    @property
    def locator(self) -> str:
        """The columns that name one stored row for the duration of a statement."""
        return "tableoid, ctid" if self.partitioned else "ctid"

    @property
    def frozen_values(self) -> bool:
        """Whether a value outside the key is an identity-always column's, which no UPDATE may set."""
        return any(field.destination.identity == "a" for field in self.values)


def form_of(kinds: np.ndarray[tuple[int], np.dtype[np.uint8]], field: Field, table: TableName) -> Form:
    """The one form of a column's values."""
    text, binary = bool((kinds == TEXT).any()), bool((kinds == BINARY).any())
    if text and binary:
        message = f"Column {field.column.name} of {table} comes as text and in binary within one step."
        raise PgetlError(ErrorKind.INTERNAL, message, table=str(table))
    return "text" if text else "binary" if binary else "null"


def forms(tuples: Tuples, fields: Sequence[Field], table: TableName) -> tuple[Form, ...]:
    """The forms of these fields' columns, which are the tuples' columns in the same order."""
    return tuple(form_of(tuples.kinds[at], field, table) for at, field in enumerate(fields))


def pick(tuples: Tuples, fields: Sequence[Field]) -> Tuples:
    """The columns of whole tuples that belong to these fields."""
    return tuples.columns([field.index for field in fields])


def every(tuples: Tuples) -> Ints:
    return np.arange(tuples.count)


# -- reading the catalog


def describe(session: Session, schema: TableSchema) -> Shape:
    """The table's shape now; an error of the table if it is not there or lacks a column."""
    found = {row[0]: DestinationColumn(*row) for row in session.rows(_COLUMNS, (schema.table.sql,), schema.table)}
    if not found:
        raise _misfit(schema, f"{schema.table} does not exist in the destination.")
    lacking = [column.name for column in schema.columns if column.name not in found]
    if lacking:
        raise _misfit(schema, f"{schema.table} has no column {', '.join(lacking)} in the destination.")
    return _shape(session, schema, found)


def types_now(session: Session, table: TableName) -> dict[str, int]:
    """The OIDs of the columns' types, by the columns' names."""
    statement = """select attname::text, atttypid::int8 from pg_attribute
        where attrelid = to_regclass($1) and attnum > 0 and not attisdropped"""
    return dict(session.rows(statement, (table.sql,)))


def exists(session: Session, table: TableName) -> bool:
    return bool(session.rows("select to_regclass($1) is not null", (table.sql,))[0][0])


def _shape(session: Session, schema: TableSchema, found: dict[str, DestinationColumn]) -> Shape:
    paired = (Field(at, column, found[column.name]) for at, column in enumerate(schema.columns))
    fields = tuple(field for field in paired if not field.destination.generated)
    by_name = {field.column.name: field for field in fields}
    if not by_name.keys() >= set(schema.key):
        raise _misfit(schema, f"A key column of {schema.table} is generated by the destination.")
    key = tuple(by_name[name] for name in schema.key)
    names = [field.destination.name for field in key]
    referenced, partitioned, unique = session.rows(_TABLE, (schema.table.sql, names), schema.table)[0]
    return Shape(schema.table, tuple(found.values()), fields, key, referenced, partitioned, unique)


def kept_out(table: TableName) -> PgetlError:
    """What is raised when a row that was inserted is not there."""
    message = f"The destination has not taken in all rows of {table}: a trigger or a rule there keeps some out."
    remedy = "Drop it, or disable it (ALTER TABLE … DISABLE TRIGGER …), then roll the table back."
    return PgetlError(ErrorKind.CONSTRAINT, message, remedy=remedy, table=str(table))


def _misfit(schema: TableSchema, message: str) -> PgetlError:
    return PgetlError(ErrorKind.SCHEMA, message, table=str(schema.table))


_COLUMNS = """
select a.attname::text, a.atttypid::int8, format_type(a.atttypid, -1), format_type(a.atttypid, a.atttypmod),
       format_type(r.oid, -1), r.oid::int8, a.attgenerated <> '', a.attidentity::text,
       (select format('%I.%I', n.nspname, c.collname) from pg_collation c join pg_namespace n on n.oid = c.collnamespace
        where c.oid = a.attcollation and a.attcollation <> t.typcollation),
       coalesce((select quote_ident(n.nspname)
                 from pg_opclass c
                 join pg_am m on m.oid = c.opcmethod and m.amname = 'btree'
                 join pg_amop o on o.amopfamily = c.opcfamily and o.amopstrategy = 3
                               and o.amoplefttype = r.oid and o.amoprighttype = r.oid
                 join pg_operator p on p.oid = o.amopopr
                 join pg_namespace n on n.oid = p.oprnamespace
                 where c.opcintype = r.oid and c.opcdefault limit 1), 'pg_catalog'),
       a.attnotnull
from pg_attribute a
join pg_type t on t.oid = a.atttypid
cross join lateral (
    with recursive behind (oid, typtype, typbasetype) as (
        select t.oid, t.typtype, t.typbasetype
        union all
        select b.oid, b.typtype, b.typbasetype from behind join pg_type b on b.oid = behind.typbasetype
        where behind.typtype = 'd')
    select oid from behind where typtype <> 'd') r
where a.attrelid = to_regclass($1) and a.attnum > 0 and not a.attisdropped
order by a.attnum
"""

_TABLE = """
select exists (select from pg_constraint f where f.confrelid = c.oid and f.contype = 'f'), c.relkind = 'p',
       exists (select from pg_index i
               where i.indrelid = c.oid and i.indisunique and i.indisvalid and i.indpred is null
                 and i.indimmediate and i.indexprs is null
                 and (select array_agg(a.attname::text order by a.attname::text) from pg_attribute a
                      where a.attrelid = c.oid and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1]))
                     = (select array_agg(name order by name) from unnest($2::text[]) name))
from pg_class c where c.oid = to_regclass($1)
"""
