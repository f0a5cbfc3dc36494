"""What an ALTER TABLE at the source means for a table that is followed. `plan` is pure.

A RELATION message that differs from the stored schema is exact for the rows that follow it, but does not say which
column is which, nor what existing rows have in an added column. The catalog does, but as of the present: later ALTERs
show in it already. So the catalog counts only as far as it agrees with the message. A column that was sent is known by
its name and its type there, or by its place among the others, as columns are sent in the order of their attribute
numbers. The number then tells which column it is, because no number is ever used again:

* a number that the stored schema has is the same column, perhaps renamed;
* a number beyond all that the table had is an added column, and `attmissingval` is what rows from before ADD COLUMN
  have in it, exactly. It is empty for NULL, and after the rows were written to a new file: by a volatile default, which
  gives each row a value of its own, or by VACUUM FULL. So where it is empty, the table must still be in the file in
  which it was when it was copied, or last looked at;
* a number that was not sent, and that the catalog does not have either, is a dropped column;
* a known column of another type has the same values if the table is still in the same file, as after varchar(10) was
  made varchar(20) or text, and the types write them alike. An ALTER that writes the rows anew may have computed others
  (USING), and not only in columns whose types differ: in each that was altered since. Only the event trigger tells that
  it has not (`PresentTable.casts`).

A name proves which column was sent only as long as the column has not been altered since: another column may have had
the name before. So an added column is known by its name if the transaction that altered it last precedes the one that
is read; else by its place.

A name never passes from one column to another within one change: destinations know columns by their names. Everything
else is `Unclear`, and the table is copied again.

A transaction can be sent before its commit is visible to other sessions: then the catalog lacks the column, and is read
again later (`NotYetVisible`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from airflow_provider_pgetl.engine.model.tables import Column, PgType, TableSchema
from airflow_provider_pgetl.engine.model.widening import widened_text, widens
from airflow_provider_pgetl.engine.source.catalog import read_columns
from airflow_provider_pgetl.engine.source.connecting import Connection, server_errors
from airflow_provider_pgetl.engine.source.drift import ColumnForm, PublishedDescription, differences

SAME_FILE = 0
"""Stands for the file in which the rows were before, whichever that is."""
_XIDS = 1 << 32
_TEXT, _VARCHAR, _BIT, _VARBIT = 25, 1043, 1560, 1562
_WRITTEN_ALIKE = (frozenset({_TEXT, _VARCHAR}), frozenset({_BIT, _VARBIT}))


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
    """A table as the catalog has it now. `count` includes dropped columns; `leaves` are by OID. `casts`: rows that were
    written to new files were written by nothing but casts of values to other types."""

    columns: Mapping[str, Column]
    count: int
    leaves: Mapping[int, HeldRows]
    casts: bool = False


@dataclass(frozen=True, slots=True)
class Altered:
    """Columns were added, renamed or dropped; `schema` is the version that this leads to."""

    schema: TableSchema


@dataclass(frozen=True, slots=True)
class Unclear:
    """The change cannot be carried over; `why` completes the description of what differs."""

    why: str | None = None


@dataclass(frozen=True, slots=True)
class NotYetVisible:
    """The transaction that made the change is not visible in the catalog yet."""


Plan = Altered | Unclear | NotYetVisible


def other_columns(schema: TableSchema, now: PublishedDescription) -> bool:
    """Whether columns have come, gone, or changed their names or types, and not the replica identity."""
    before = {column.name: (column.type.oid, column.modifier) for column in schema.columns}
    after = {name: (form.type, form.modifier) for name, form in now.columns.items()}
    return now.identity == schema.identity and before != after


def plan(
    schema: TableSchema, now: PublishedDescription, present: PresentTable | None, highest: int = 0, xid: int = 0
) -> Plan:
    """Returns what changes the table from the version `schema` to what is described `now`. `highest`: the highest
    number that an earlier version has. `xid`: the transaction with rows under that description; 0 if the catalog is of
    the very time of the description."""
    if not other_columns(schema, now):
        return Unclear()
    if present is None:
        return Unclear("the table does not exist any more")
    if not all(column.number for column in schema.columns):
        return Unclear("it is not known which columns they were")
    highest = max([highest, schema.attributes, *(column.number for column in schema.columns)])
    if _is_behind(schema, now, present, highest):
        return NotYetVisible()
    numbers = _numbers(schema, now, present, highest, xid)
    if isinstance(numbers, Unclear):
        return numbers
    if (why := _gone(schema, numbers.values(), present) or _computed_anew(schema, present)) is not None:
        return Unclear(why)
    columns = []
    for name, form in now.columns.items():
        found = _column(schema, name, form, numbers[name], present)
        if isinstance(found, Unclear):
            return found
        columns.append(found)
    names = {column.number: column.name for column in columns}
    key = tuple(names[column.number] for name in schema.key for column in schema.columns if column.name == name)
    attributes = max(highest, *numbers.values()) if schema.attributes else 0
    after = replace(schema, columns=tuple(columns), key=key, attributes=attributes)
    after = loosened(after, {one.name for one in present.columns.values() if not one.not_null})
    return Unclear() if differences(after, now) else Altered(after)


def loosened(schema: TableSchema, nullable: Collection[str]) -> TableSchema:
    """Returns the schema with these columns nullable, except for those of the key. A column may be found to be nullable
    before the stream comes to that; it does no harm elsewhere."""
    columns = [
        replace(one, not_null=False) if one.not_null and one.name in nullable and one.name not in schema.key else one
        for one in schema.columns
    ]
    return replace(schema, columns=tuple(columns))


def _is_behind(schema: TableSchema, now: PublishedDescription, present: PresentTable, highest: int) -> bool:
    """Whether the catalog has all columns as they were under `schema`, and too few others for those that were sent, or
    one that was not sent, or one that was sent with another type and still has its former one."""
    known = {column.name: column.number for column in schema.columns}
    there = {name: column.number for name, column in present.columns.items()}
    come, gone = now.columns.keys() - known.keys(), known.keys() - now.columns.keys()
    more = present.count - highest
    return there.items() >= known.items() and (
        len(come - there.keys()) > more
        or len(gone) > len(come)
        or any(_has_former_type(column, now, present) for column in schema.columns)
    )


def _has_former_type(column: Column, now: PublishedDescription, present: PresentTable) -> bool:
    sent, there = now.columns.get(column.name), present.columns.get(column.name)
    former = column.type.oid, column.modifier
    if sent is None or there is None or (sent.type, sent.modifier) == former:
        return False
    return (there.type.oid, there.modifier) == former


def _numbers(
    schema: TableSchema, now: PublishedDescription, present: PresentTable, highest: int, xid: int
) -> dict[str, int] | Unclear:
    """Returns the number of each column that was sent. Columns are sent in the order of their numbers. One that the
    catalog does not have under that name any more, as it was renamed or dropped since, or perhaps not yet, is known by
    its place among the others."""
    known = {column.number for column in schema.columns}
    computed = {column.number for column in present.columns.values() if column.generated}
    usable = sorted((known | set(range(highest + 1, present.count + 1))) - computed)
    found: dict[str, int] = {}
    waiting: list[str] = []
    last = 0
    for name, form in now.columns.items():
        there = present.columns.get(name)
        if there is None or not _fits(schema, form, there, xid):
            waiting.append(name)
            continue
        if there.number not in usable:
            return Unclear(f"{name} is computed" if there.generated else f"{name} was there before, and not sent")
        places = _places(schema, waiting, [one for one in usable if last < one < there.number], present, None)
        if places is None:
            return Unclear(f"{', '.join(waiting)} has been altered since as well")
        found |= {**places, name: there.number}
        waiting, last = [], there.number
    places = _places(schema, waiting, [one for one in usable if last < one], present, known)
    return Unclear(f"{', '.join(waiting)} has been altered since as well") if places is None else found | places


def _places(
    schema: TableSchema, names: Sequence[str], free: Sequence[int], present: PresentTable, known: Set[int] | None
) -> dict[str, int] | None:
    """Returns which of the free numbers these columns have; None if that is open. `known`: what was there in any case,
    where no later column was sent; None if all were there, because one was.

    A column that exists now, and was there when they were sent, was sent with them. If all exist now, those that came
    later are the last. If none came later, those that do not exist any more have kept their names until then."""
    there = {column.number for column in present.columns.values()}
    sent = {one for one in free if one in there and (known is None or one in known)}
    fresh = [one for one in free if known is not None and one not in known]
    likely = sent
    if there.issuperset(free):
        likely = sent | set(fresh[: max(len(names) - len(sent), 0)])
    elif not fresh:
        likely = sent | {column.number for column in schema.columns if column.name in names and column.number in free}
    for numbers in (sent, set(free), likely):
        if len(numbers) == len(names):
            return dict(zip(names, sorted(numbers), strict=True))
    return None


def _fits(schema: TableSchema, sent: ColumnForm, there: Column, xid: int) -> bool:
    """Whether the catalog's column of that name is the one that was sent. A known column may have been retyped since,
    but not dropped and added again. Another one must not have been altered after it was sent: else its name may have
    been that of another column."""
    before = next((column for column in schema.columns if column.name == there.name), None)
    if before is not None:
        return before.number == there.number
    was_altered_since = xid > 0 and there.altered > 0 and (xid - there.altered) % _XIDS > _XIDS // 2
    return (there.type.oid, there.modifier) == (sent.type, sent.modifier) and not was_altered_since


def _computed_anew(schema: TableSchema, present: PresentTable) -> str | None:
    """Returns which columns may have other values in all rows; None if no column has. An ALTER that computes values
    writes the rows to another file, and alters the column."""
    if present.casts or not _has_moved(schema, present):
        return None
    altered = {column.number: column.altered for column in present.columns.values()}
    names = [one.name for one in schema.columns if altered.get(one.number, 0) not in (0, one.altered)]
    return (
        f"what existing rows have in {', '.join(names)} may be other values, which are not in the WAL"
        if names
        else None
    )


def _has_moved(schema: TableSchema, present: PresentTable) -> bool:
    """Whether rows were written to other files since the last look."""
    files = dict(schema.files)
    return any(files.get(leaf, rows.file) != rows.file for leaf, rows in present.leaves.items())


def _gone(schema: TableSchema, numbers: Collection[int], present: PresentTable) -> str | None:
    """Returns why it is unclear what has become of columns that were not sent; None if they were dropped."""
    gone = [column for column in schema.columns if column.number not in numbers]
    there = {column.number for column in present.columns.values()}
    for column in gone:
        if column.number in there:
            return f"{column.name} is not sent any more"
        if column.name in schema.key:
            return f"{column.name} identified the rows"
    renamed = {column.number for column in schema.columns} & set(numbers)
    if schema.generated and (gone or len(renamed) < len(schema.columns)):
        return "the destination computes columns from others"
    return None


def _column(schema: TableSchema, name: str, sent: ColumnForm, number: int, present: PresentTable) -> Column | Unclear:
    """Returns the column that was sent, as it is in the later version."""
    before = next((column for column in schema.columns if column.number == number), None)
    there = next((column for column in present.columns.values() if column.number == number), None)
    if before is not None and (before.type.oid, before.modifier) != (sent.type, sent.modifier):
        return _retyped(schema, before, name, sent, there, present)
    if before is not None:
        altered = before.altered if there is None else there.altered
        return before if before.name == name else replace(before, name=name, altered=altered)
    if there is None or (there.type.oid, there.modifier) != (sent.type, sent.modifier):
        return Unclear(f"{name} has been altered since as well")
    missing = _missing(schema, there.name, present)
    if missing is None:
        return Unclear(f"what existing rows have in {name} is not in the WAL")
    return replace(there, name=name, not_null=False, identity="", missing=missing.value)


def _retyped(
    schema: TableSchema, before: Column, name: str, sent: ColumnForm, there: Column | None, present: PresentTable
) -> Column | Unclear:
    """Returns the column with its new type. An ALTER that keeps the file has changed no value; one that writes the rows
    anew may have computed others."""
    if there is None or (there.type.oid, there.modifier) != (sent.type, sent.modifier):
        return Unclear(f"the type of {name} has been altered since as well")
    kept = bool(schema.files) and not _has_moved(schema, present) and _written_alike(before.type, there.type)
    if not kept and not (present.casts and widens(before, there)):
        return Unclear(f"what existing rows have in {name} may be other values, which are not in the WAL")
    retyped = replace(before, name=name, type=there.type, sql_type=there.sql_type, modifier=there.modifier)
    missing = None if before.missing is None else widened_text(before.missing, before, there)
    return replace(retyped, altered=there.altered, missing=missing)


def _written_alike(one: PgType, other: PgType) -> bool:
    """Whether both types write a value in the same way, if it is stored in the same way."""
    oids = {one.root.oid, other.root.oid}
    return len(oids) == 1 or any(oids <= family for family in _WRITTEN_ALIKE)


def _missing(schema: TableSchema, name: str, present: PresentTable) -> Missing | None:
    """Returns what all rows from before have in the column; None if that cannot be told. A leaf that was not there at
    the last look may have rows from before, too: those that were streamed. They have the same as those of the others,
    as each leaf gets a column with the same default."""
    files = dict(schema.files)
    if not files and present.leaves:
        return None
    found, unsure = set(), False
    for leaf, rows in present.leaves.items():
        missing = rows.missing.get(name, Missing())
        if missing.known or rows.file in (SAME_FILE, files.get(leaf)):
            found.add(missing.value)
        elif leaf in files:
            return None
        else:
            unsure = True
    if len(found) > 1 or (unsure and not found):
        return None
    return Missing(known=True, value=found.pop() if found else None)


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
