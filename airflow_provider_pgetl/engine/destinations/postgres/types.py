"""A table's form in the destination, how a value from the source fits into each column, and the source's types there.

A user's table may have other types than the source's, more columns, generated and identity columns. A `PostgresShape`
pairs each published column with the destination's column that stores it; published columns that the destination
generates itself are left out, and a column that is missing there is an error of the table.

A value arrives as text or in the source's binary form. It is read as a type that accepts this form (`read_as`), and
then cast to the column's type without a modifier, so that storing it is an assignment, which refuses what does not fit,
and not a cast, which would truncate it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from airflow_provider_pgetl.engine.changes.tuples import BINARY, TEXT, Tuples
from airflow_provider_pgetl.engine.destinations.postgres.session import Session
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.tables import Column, PgType, TableName, TableSchema, quote_identifier

Form = Literal["text", "binary", "null"]


@dataclass(frozen=True, slots=True)
class DestinationColumn:
    """A column as the destination's catalog has it.

    `oid` and `type` are its type and that type's name without modifier, `sized_type` is the name with it; `root` and
    `root_oid` are the type behind a domain. `collation` is None where it is the type's own. `equals` is the schema of
    the type's `=`.
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
    """A published column, its index in the source's tuples, and the destination's column for it."""

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
        """The type as which a value of this form is read."""
        if form == "text":
            return "text"
        return self.destination.type if form == "null" or self.same_type else self.column.type.root.name

    def value(self, staged: str, form: Form) -> str:
        """`staged`, an SQL expression of the type `read_as`, as a value for the column."""
        return staged if self.read_as(form) == self.destination.type else f"{staged}::{self.destination.type}"

    def parameter(self, number: int, form: Form) -> str:
        """The parameter of this number and form, as a value for the column."""
        if form == "binary" and not self.same_type:
            return self.value(f"${number}::{self.read_as(form)}", form)
        return f"${number}::{self.destination.type}"

    def equal(self, stored: str, value: str) -> str:
        """The SQL condition that a stored value equals `value`. The stored column's collation decides: `value` has the
        default collation, which yields to it."""
        return f"{stored} operator({self.destination.equals}.=) ({value})"


@dataclass(frozen=True)
class PostgresShape:
    """A table of the destination, described for the source's schema.

    `referenced`: a foreign key references it. `key_is_unique`: a unique index covers exactly the key's columns.
    """

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
        """Columns that no published column is paired with, and that can be written."""
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
        """The columns that identify one stored row for the duration of a statement."""
        return "tableoid, ctid" if self.partitioned else "ctid"

    @property
    def frozen_values(self) -> bool:
        """Whether a value outside the key is an identity-always column's, which no UPDATE may set."""
        return any(field.destination.identity == "a" for field in self.values)


def form_of(kinds: np.ndarray[tuple[int], np.dtype[np.uint8]], field: Field, table: TableName) -> Form:
    """The one form of a column's values; raises if there are both."""
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


# -- reading the catalog


def describe(session: Session, schema: TableSchema) -> PostgresShape:
    """The table's shape now; raises an error of the table if it does not exist or lacks a column."""
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


def _shape(session: Session, schema: TableSchema, found: dict[str, DestinationColumn]) -> PostgresShape:
    paired = (Field(at, column, found[column.name]) for at, column in enumerate(schema.columns))
    fields = tuple(field for field in paired if not field.destination.generated)
    by_name = {field.column.name: field for field in fields}
    if not by_name.keys() >= set(schema.key):
        raise _misfit(schema, f"A key column of {schema.table} is generated by the destination.")
    key = tuple(by_name[name] for name in schema.key)
    names = [field.destination.name for field in key]
    referenced, partitioned, unique = session.rows(_TABLE, (schema.table.sql, names), schema.table)[0]
    return PostgresShape(schema.table, tuple(found.values()), fields, key, referenced, partitioned, unique)


def kept_out(table: TableName) -> PgetlError:
    """The error for a row that was inserted and is not in the table."""
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


# -- Types of the source, in the destination. --------------------------------------------------------------------------
#
# Built-in types exist. Enums, domains, composites and ranges are created under their own names; labels that an enum has
# gained are added. A type of an extension is used if the extension is installed here. A type is identified by its name
# and its definition: another type that has the name by chance is not used. A column whose type is not available, or
# whose values have a meaning on their own server only, is stored as text, and a warning is logged.
#
# The same check decides for copies and for changes: where a column is stored as text, its values arrive as text.

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
    """Whether the destination has the same type, or `ensure` would create it."""
    if pg_type.local:
        return False
    if pg_type.built_in:
        return type_exists(session, pg_type.name)
    if pg_type.kind == "array" and pg_type.inner is not None:
        return available(session, pg_type.inner)
    found = session.rows(_DEFINITION, (pg_type.name,))
    makeable = pg_type.kind in _MADE and pg_type.extension is None
    is_fit = _is_same(pg_type, *found[0]) if found else makeable
    return is_fit and all(available(session, part) for part in _parts(pg_type))


def _is_same(pg_type: PgType, kind: str, extension: str | None, inner: str | None, fields: str | None) -> bool:
    """Whether the type found is the same. Labels of an enum are not compared, because some may still be missing
    here."""
    made_of = [[name, _spelled(field)] for name, field in pg_type.fields]
    return (
        (kind, extension) == (_KINDS[pg_type.kind], pg_type.extension)
        and (pg_type.inner is None or inner == _spelled(pg_type.inner))
        and (json.loads(fields) if fields else []) == made_of
    )


def read_binary(session: Session, schema: TableSchema) -> bool:
    """Whether the destination can read the binary form of every column of the source: as the column's own type or,
    where the destination's column has another type, as the type that is then cast to it."""
    return not schema.as_text and all(_reads_binary(session, column.type) for column in schema.columns)


def _reads_binary(session: Session, pg_type: PgType) -> bool:
    if pg_type.universal:
        return True
    read = pg_type.read_since <= session.connection.info.server_version // 10000
    return read and pg_type.portable and available(session, pg_type)


def type_exists(session: Session, name: str) -> bool:
    return bool(session.rows("select to_regtype($1) is not null", (name,))[0][0])


def column_type(session: Session, schema: TableSchema, column: Column) -> str:
    """The type of the column in a table created for this schema."""
    if available(session, column.type):
        return column.sql_type
    log.warning("%s.%s is kept as text: the destination has no type %s", schema.table, column.name, column.type.name)
    return "text"


def ensure(session: Session, schema: TableSchema) -> None:
    """Creates the types that the schema needs and the destination can have, and adds labels that enums have gained."""
    for column in schema.columns:
        if available(session, column.type):
            _ensure(session, column.type)


def _ensure(session: Session, pg_type: PgType) -> None:
    for part in _parts(pg_type):
        _ensure(session, part)
    if pg_type.built_in or pg_type.extension is not None or pg_type.kind not in _MADE:
        return
    if not type_exists(session, pg_type.name):
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
        return f"type {pg_type.name} as enum ({', '.join(map(literal, pg_type.labels))})"
    if pg_type.kind == "domain":
        return f"domain {pg_type.name} as {inner}"
    if pg_type.kind == "range":
        return f"type {pg_type.name} as range (subtype = {inner})"
    fields = ", ".join(f"{quote_identifier(name)} {_spelled(field)}" for name, field in pg_type.fields)
    return f"type {pg_type.name} as ({fields})"


def _add_labels(session: Session, pg_type: PgType) -> None:
    """Adds the labels that are missing here, each after the one that it follows at the source."""
    statement = "select enumlabel::text from pg_enum where enumtypid = to_regtype($1)"
    present = {row[0] for row in session.rows(statement, (pg_type.name,))}
    before: str | None = None
    for label in pg_type.labels:
        if label not in present:
            place = f" after {literal(before)}" if before is not None else _in_front(pg_type, present)
            session.execute(f"alter type {pg_type.name} add value if not exists {literal(label)}{place}")
        before = label


def _in_front(pg_type: PgType, present: set[str]) -> str:
    following = next((label for label in pg_type.labels if label in present), None)
    return "" if following is None else f" before {literal(following)}"


def _schema_of(session: Session, name: str) -> str | None:
    """The schema in a qualified name, by the server's own rules of quoting."""
    parts = session.rows("select parse_ident($1)", (name,))[0][0]
    return parts[0] if len(parts) > 1 else None


def _spelled(pg_type: PgType) -> str:
    return pg_type.sql_type or pg_type.name


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
