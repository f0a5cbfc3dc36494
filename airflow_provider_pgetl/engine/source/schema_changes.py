"""What an ALTER TABLE at the source means for a table that is followed. `plan` is pure.

A RELATION message that differs from the stored schema is exact for the rows that follow it, but does not say which
column is which, nor what existing rows have in an added column. The catalog does, but as of the present: later ALTERs
show in it already. So the catalog counts only as far as it agrees with the message:

* a known column is the same column if the catalog has its attribute number under the same name, with the same type:
  attribute numbers are never used again;
* an added column has a number beyond all known ones, and the type that was sent;
* `attmissingval` is what rows from before ADD COLUMN have in it, exactly. It is empty for NULL, and after the rows were
  written to a new file: by a volatile default, which gives each row a value of its own, or by VACUUM FULL. So where it
  is empty, the table must still be in the file in which it was when it was copied, or last looked at.

Everything else is `Unclear`, and the table is copied again.

A transaction can be sent before its commit is visible to other sessions: then the catalog lacks the column, and is read
again later (`NotYetVisible`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from airflow_provider_pgetl.engine.model.tables import Column, TableSchema
from airflow_provider_pgetl.engine.source.catalog import read_columns
from airflow_provider_pgetl.engine.source.connecting import Connection, server_errors
from airflow_provider_pgetl.engine.source.drift import ColumnForm, PublishedDescription, differences


@dataclass(frozen=True, slots=True)
class Missing:
    """What existing rows have in a column: `value`, if it is `known`; otherwise NULL, if their file is the same."""

    known: bool = False
    value: str | None = None


@dataclass(frozen=True, slots=True)
class HeldRows:
    """A file with rows of the table, by the OID of the leaf, and what its rows have in each column."""

    file: int
    missing: Mapping[str, Missing] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PresentTable:
    """A table as the catalog has it now. `count` includes dropped columns; `leaves` are by OID."""

    columns: Mapping[str, Column]
    count: int
    leaves: Mapping[int, HeldRows]


@dataclass(frozen=True, slots=True)
class AddColumns:
    """Columns were added at the end; `schema` is the version with them."""

    schema: TableSchema
    added: tuple[Column, ...]

    def __str__(self) -> str:
        return ", ".join(f"{column.name} {column.sql_type} was added{_filled(column)}" for column in self.added)


def _filled(column: Column) -> str:
    return "" if column.missing is None else " with a value in all rows"


@dataclass(frozen=True, slots=True)
class Unclear:
    """The change cannot be carried over; `why` completes the description of what differs."""

    why: str | None = None


@dataclass(frozen=True, slots=True)
class NotYetVisible:
    """The transaction that made the change is not visible in the catalog yet."""


Plan = AddColumns | Unclear | NotYetVisible


def only_adds(schema: TableSchema, now: PublishedDescription) -> tuple[str, ...]:
    """Returns the added columns; empty if anything else differs as well."""
    added = tuple(name for name in now.columns if name not in schema.names)
    told = now.told - set(added) if now.identity == "full" else now.told
    kept = {name: form for name, form in now.columns.items() if name not in added}
    before = replace(now, columns=kept, told=told)
    at_the_end = tuple(now.columns)[len(kept) :] == added
    return added if at_the_end and not differences(schema, before) else ()


def plan(schema: TableSchema, now: PublishedDescription, present: PresentTable | None) -> Plan:
    """Returns what changes the table from the version `schema` to what is described `now`."""
    names = only_adds(schema, now)
    if not names:
        return Unclear()
    if present is None:
        return Unclear("the table does not exist any more")
    known = max((column.number for column in schema.columns), default=0)
    if max(known, len(schema.columns)) + len(names) > present.count and not present.columns.keys() >= set(names):
        return NotYetVisible()
    for column in schema.columns:
        if not _is_same(column, present.columns.get(column.name)):
            return Unclear(f"{column.name} has been altered since as well")
    found = [_added(schema, name, now.columns[name], present, known) for name in names]
    unclear = next((one for one in found if isinstance(one, Unclear)), None)
    added = tuple(one for one in found if isinstance(one, Column))
    return unclear or AddColumns(replace(schema, columns=(*schema.columns, *added)), added)


def _added(schema: TableSchema, name: str, sent: ColumnForm, present: PresentTable, known: int) -> Column | Unclear:
    """Returns the added column. `known`: the highest number of the columns before."""
    column = present.columns.get(name)
    if column is None or (column.type.oid, column.modifier) != (sent.type, sent.modifier):
        return Unclear(f"{name} has been altered since as well")
    if column.generated:
        return Unclear(f"{name} is computed")
    if column.number <= known:
        return Unclear(f"{name} was there before, and not sent")
    missing = _missing(schema, name, present)
    if missing is None:
        return Unclear(f"what existing rows have in {name} is not in the WAL")
    return replace(column, not_null=False, identity="", missing=missing.value)


def _is_same(before: Column, now: Column | None) -> bool:
    return now is not None and now.number == (before.number or now.number)


def _missing(schema: TableSchema, name: str, present: PresentTable) -> Missing | None:
    """Returns what all rows from before have in the column; None if that cannot be told. A leaf that was not there at
    the last look has no such rows in the destination."""
    files = dict(schema.files)
    if not files and present.leaves:
        return None
    found = set()
    for leaf, rows in present.leaves.items():
        if leaf not in files:
            continue
        missing = rows.missing.get(name, Missing())
        if not missing.known and files[leaf] != rows.file:
            return None
        found.add(missing.value)
    return Missing(known=True, value=found.pop() if found else None) if len(found) <= 1 else None


# -- Reading the catalog. ----------------------------------------------------------------------------------------------


def read_present_table(connection: Connection, oid: int) -> PresentTable | None:
    """Returns the table as it is now; None if it does not exist."""
    with server_errors("An altered table could not be read"), connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        found = connection.execute("select relnatts from pg_class where oid = %s", [oid]).fetchone()
        if found is None:
            return None
        columns = {column.name: column for column in read_columns(connection, oid)}
        rows = connection.execute(_LEAVES, [oid]).fetchall()
    files: dict[int, int] = {}
    missing: dict[int, dict[str, Missing]] = {}
    for leaf, file, name, known, value in rows:
        files[leaf] = file
        missing.setdefault(leaf, {})[name] = Missing(known, value)
    return PresentTable(columns, found[0], {leaf: HeldRows(file, missing[leaf]) for leaf, file in files.items()})


# The array's only element is written by the type's output function.
_LEAVES = """
with recursive tree(oid) as (
    select %s::oid
    union all
    select i.inhrelid from tree
    join pg_class p on p.oid = tree.oid and p.relkind = 'p'
    join pg_inherits i on i.inhparent = tree.oid and not i.inhdetachpending
)
select c.oid, c.relfilenode::int8, a.attname::text, a.atthasmissing, array_to_string(a.attmissingval, '')
from tree
join pg_class c on c.oid = tree.oid and c.relkind <> 'p'
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
"""
