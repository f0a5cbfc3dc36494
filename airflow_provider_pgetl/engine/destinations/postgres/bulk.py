"""Applies the net effect of many changes, as a few statements over staged rows.

Order: rows are deleted; all moved rows are taken out before any of them is inserted again under its new key; rows are
updated; rows are inserted. Rows that are only inserted, in binary form, with equal types, are copied directly into the
table.

`careful` is for tables whose rows are not what they should be, or whose other unique indexes conflict when rows are
updated one after the other: every updated row is then taken out before any is inserted again, and an insert whose key
exists becomes an update. It does not become one if the two keys differ and only the table treats them as equal, for
example because of its collation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from airflow_provider_pgetl.engine.changes.fold import Net, NetBag
from airflow_provider_pgetl.engine.changes.tuples import ABSENT, COPY_BINARY_HEADER, COPY_BINARY_TRAILER, Tuples
from airflow_provider_pgetl.engine.destinations.postgres.session import DestinationServerError, Session
from airflow_provider_pgetl.engine.destinations.postgres.types import (
    Field,
    Form,
    PostgresShape,
    forms,
    kept_out,
    pick,
    types_now,
)
from airflow_provider_pgetl.engine.destinations.protocol import Misses
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.tables import TableName, quote_identifier

# -- Temporary tables in which rows are staged on their way into a table. ----------------------------------------------
#
# They are created once per connection and list of column types, disappear with the connection, and are emptied by the
# server at each commit, so that a batch normally needs no DDL. A transaction that needs more tables of one list of
# types than exist creates more, up to a limit; beyond it, the oldest is truncated and used again: the statements that
# use it are finished by then.
#
# Columns are named c0, c1, …

_OF_ONE_KIND = 4
_KINDS = 48
Types = tuple[str, ...]


@dataclass
class _Kind:
    """The tables of one list of column types; the first `used` of them are in use in this transaction."""

    names: list[str] = field(default_factory=list)
    used: int = 0


class TemporaryTables:
    """The temporary tables of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._kinds: OrderedDict[Types, _Kind] = OrderedDict()
        self._connection: object = None
        self._number = 0
        self._fresh: list[Types] = []

    def begin(self) -> None:
        """Prepares for a transaction on the session's present connection; on a new connection no table exists yet."""
        if self._connection is not self._session.connection:
            self._connection = self._session.connection
            self._kinds.clear()
        self._fresh.clear()
        for kind in self._kinds.values():
            kind.used = 0

    def rolled_back(self) -> None:
        """Forgets the tables that this transaction created: they do not exist any more."""
        for types in self._fresh:
            self._kinds.pop(types, None)
        self._fresh.clear()

    def take(self, types: Types) -> str:
        """Returns the name of an empty table with columns of these types, for the caller's next statements."""
        kind = self._kinds.setdefault(types, _Kind())
        self._kinds.move_to_end(types)
        if kind.used >= _OF_ONE_KIND:
            name = kind.names[kind.used % _OF_ONE_KIND]
            self._session.execute(f"truncate {name}")
        elif kind.used < len(kind.names):
            name = kind.names[kind.used]
        else:
            name = self._make(types, kind)
        kind.used += 1
        return name

    def until_commit(self, definition: str) -> str:
        """Creates a table for this transaction alone and returns its name; `definition` is what follows the name in
        CREATE TABLE."""
        self._number += 1
        self._session.execute(f"create temporary table pgetl_{self._number} {definition}")
        return f"pg_temp.pgetl_{self._number}"

    def load(self, types: Types, tuples: Tuples, table: TableName, *, keep: bool = False) -> str:
        """Returns the name of a table of these types that holds the tuples. With `keep`, the table is certain to hold
        them until the transaction ends."""
        name = self.until_commit(f"({_columns(types)}) on commit drop") if keep else self.take(types)
        self._session.copy_in(f"copy {name} from stdin (format binary)", binary_file(tuples), table)
        return name

    def _make(self, types: Types, kind: _Kind) -> str:
        self._number += 1
        name = f"pg_temp.pgetl_{self._number}"
        statement = f"create temporary table pgetl_{self._number} ({_columns(types)}) on commit delete rows"
        self._session.execute(statement)
        kind.names.append(name)
        self._fresh.append(types)
        self._drop_surplus()
        return name

    def _drop_surplus(self) -> None:
        for types in list(self._kinds)[: max(len(self._kinds) - _KINDS, 0)]:
            if not self._kinds[types].used:
                self._session.execute(f"drop table if exists {', '.join(self._kinds.pop(types).names)}")


def _columns(types: Types) -> str:
    return ", ".join(f"c{at} {sql_type}" for at, sql_type in enumerate(types))


def binary_file(tuples: Tuples) -> Iterable[bytes]:
    """The tuples as a complete stream in COPY's binary format."""
    yield COPY_BINARY_HEADER
    yield from tuples.copy_binary()
    yield COPY_BINARY_TRAILER


# -- Bulk. -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Staged:
    """Rows in a temporary table: its columns c0, c1, … are the values of `fields`, in these `forms`."""

    name: str
    fields: tuple[Field, ...]
    forms: tuple[Form, ...]

    def value(self, at: int) -> str:
        return self.fields[at].value(f"s.c{at}", self.forms[at])

    def matches(self, first: int, count: int, stored: str) -> str:
        """The SQL condition that `count` fields of the staged row, from `first` on, equal those of the stored row."""
        places = range(first, first + count)
        return " and ".join(self.fields[at].equal(f"{stored}.{self.fields[at].sql}", self.value(at)) for at in places)


class Bulk:
    """Applies net effects (`Net`, `NetBag`) over one session, inside the caller's transaction."""

    def __init__(self, session: Session, temporary: TemporaryTables) -> None:
        self._session = session
        self._temporary = temporary

    def apply(self, shape: PostgresShape, net: Net, *, careful: bool) -> Misses:
        if not shape.key_is_unique:
            self._allow_any_join()
        out, back, updates = net.moves_from, net.moves_to, net.updates
        if careful or shape.frozen_values:
            out = out.concatenated(pick(updates, shape.key))
            back = back.concatenated(updates)
            updates = updates.take(np.empty(0, np.int64))
        missed = self._delete(shape, net.deletes) + self._rewrite(shape, out, back)
        missed += self._update(shape, updates)
        self._insert(shape, net.inserts, careful=careful)
        return missed

    def apply_bag(self, shape: PostgresShape, net: NetBag) -> Misses:
        missed = self._delete_equal(shape, pick(net.deletes, shape.fields))
        self._insert(shape, net.inserts, careful=False)
        return missed

    # -- deletes

    def _delete(self, shape: PostgresShape, keys: Tuples) -> Misses:
        if not keys.count:
            return Misses()
        staged = self._stage(shape, shape.key, keys)
        matches = staged.matches(0, len(shape.key), "t")
        gone = self._execute(shape, f"delete from {shape.sql} t using {staged.name} s where {matches}")
        return Misses(deletes=max(keys.count - gone, 0))

    def _delete_equal(self, shape: PostgresShape, rows: Tuples) -> Misses:
        """Deletes one stored row for each row of a keyless table. Rows are equal if their texts are: not every type has
        an `=`."""
        if not rows.count:
            return Misses()
        self._allow_any_join()
        staged = self._stage(shape, shape.fields, rows)
        wanted = ", ".join(f"({staged.value(at)})::{f.destination.sized_type}" for at, f in enumerate(shape.fields))
        statement = f"""
            with wanted as (
                select line, row_number() over (partition by line) as nth
                from (select row({wanted})::text as line from {staged.name} s) w),
            stored as (
                select tableoid, ctid, line, row_number() over (partition by line) as nth
                from (select tableoid, ctid, row({shape.columns_sql})::text as line from {shape.sql}) t
                where line in (select line from wanted))
            delete from {shape.sql} where ({shape.locator}) in (
                select {shape.locator} from stored join wanted using (line, nth))"""
        return Misses(deletes=rows.count - self._execute(shape, statement))

    # -- moves

    def _rewrite(self, shape: PostgresShape, keys: Tuples, rows: Tuples) -> Misses:
        """Takes out all rows with these keys, then inserts each of them again with the new values that arrived; other
        values are kept."""
        taken = [
            self._take_out(shape, keys.take(which), rows.take(which), fields)
            for which, fields in _by_presence(rows, shape.fields)
        ]
        for staged, gone, count in taken:
            if self._put_back(shape, staged, gone) < count:
                raise kept_out(shape.table)
        return Misses(updates=max(keys.count - sum(count for _, _, count in taken), 0))

    def _take_out(
        self, shape: PostgresShape, keys: Tuples, rows: Tuples, present: Sequence[Field]
    ) -> tuple[_Staged, str, int]:
        fields = (*shape.key, *present)
        staged = self._stage(shape, fields, keys.beside(pick(rows, present)), keep=True)
        gone = self._temporary.until_commit(f"on commit drop as select * from {shape.sql} with no data")
        matches = staged.matches(0, len(shape.key), "t")
        statement = f"""with gone as (delete from {shape.sql} t using {staged.name} s where {matches} returning t.*)
            insert into {gone} select * from gone"""
        return staged, gone, self._execute(shape, statement)

    def _put_back(self, shape: PostgresShape, staged: _Staged, gone: str) -> int:
        known = len(shape.key)
        came = {field.sql: staged.value(known + at) for at, field in enumerate(staged.fields[known:])}
        names = [*(field.sql for field in shape.fields), *map(quote_identifier, shape.others)]
        values = ", ".join(came.get(name, f"g.{name}") for name in names)
        statement = f"""insert into {shape.sql} ({", ".join(names)}) overriding system value
            select {values} from {gone} g join {staged.name} s on {staged.matches(0, known, "g")}"""
        return self._execute(shape, statement)

    # -- updates

    def _update(self, shape: PostgresShape, rows: Tuples) -> Misses:
        missed = Misses()
        for which, fields in _by_presence(rows, shape.values):
            if fields:
                missed += self._update_present(shape, rows.take(which), fields)
        return missed

    def _update_present(self, shape: PostgresShape, rows: Tuples, present: Sequence[Field]) -> Misses:
        fields = (*shape.key, *present)
        staged = self._stage(shape, fields, pick(rows, fields))
        known = len(shape.key)
        sets = ", ".join(f"{field.sql} = {staged.value(known + at)}" for at, field in enumerate(present))
        matches = staged.matches(0, known, "t")
        touched = self._execute(shape, f"update {shape.sql} t set {sets} from {staged.name} s where {matches}")
        return Misses(updates=max(rows.count - touched, 0))

    # -- inserts

    def _insert(self, shape: PostgresShape, rows: Tuples, *, careful: bool) -> None:
        if not rows.count:
            return
        whole = pick(rows, shape.fields)
        found = forms(whole, shape.fields, shape.table)
        fits = all(form != "text" and f.same_type for form, f in zip(found, shape.fields, strict=True))
        if fits and not careful:
            self._hold(shape)
            statement = f"copy {shape.sql} ({shape.columns_sql}) from stdin (format binary)"
            if self._session.copy_in(statement, binary_file(whole), shape.table) < rows.count:
                raise kept_out(shape.table)
            return
        staged = self._stage(shape, shape.fields, whole)
        if careful:
            self._expect_no_other_row(shape, self._stage(shape, shape.key, pick(rows, shape.key)))
        values = ", ".join(staged.value(at) for at in range(len(shape.fields)))
        conflict = _on_conflict(shape) if careful else ""
        statement = f"""insert into {shape.sql} as t ({shape.columns_sql}) overriding system value
            select {values} from {staged.name} s {conflict}"""
        if self._execute(shape, statement) < rows.count and not conflict.endswith("do nothing"):
            collision = DestinationServerError("23505", "it takes keys for equal that are not", shape.table)
            raise collision if conflict else kept_out(shape.table)

    def _expect_no_other_row(self, shape: PostgresShape, keys: _Staged) -> None:
        """Raises if a stored row has a key that differs from a staged key and is equal to it only in the destination's
        type: it is another row."""
        differ = [
            f"{self._text(f't.{field.sql}', field, form)} <> s.c{at}::text"
            for at, (field, form) in enumerate(zip(keys.fields, keys.forms, strict=True))
            if not field.same_type
        ]
        if not differ or not shape.key_is_unique:
            return
        matches = keys.matches(0, len(shape.key), "t")
        statement = f"select from {shape.sql} t join {keys.name} s on {matches} where {' or '.join(differ)} limit 1"
        if self._execute(shape, statement):
            message = f"The key of {shape.table} in the destination takes two rows of the source for one."
            remedy = "Give its columns there the types that they have at the source, then copy the table again."
            raise PgetlError(ErrorKind.SCHEMA, message, remedy=remedy, table=str(shape.table))

    @staticmethod
    def _text(stored: str, field: Field, form: Form) -> str:
        return f"{stored}::{field.read_as(form)}::text"

    def _hold(self, shape: PostgresShape) -> None:
        """Locks the table, and raises if its columns are not those of the shape. They cannot change until the
        transaction ends.

        Binary COPY reads bytes as the type that the column has: the eight bytes of a bigint would make a wrong numeric.
        """
        self._session.execute(f"lock table {shape.sql} in row exclusive mode", table=shape.table)
        if types_now(self._session, shape.table) != {column.name: column.oid for column in shape.columns}:
            raise DestinationServerError("42804", "its columns were altered meanwhile", shape.table)

    # --

    def _stage(self, shape: PostgresShape, fields: Sequence[Field], rows: Tuples, *, keep: bool = False) -> _Staged:
        """Copies rows, whose columns are these fields, into a temporary table."""
        found = forms(rows, fields, shape.table)
        types: Types = tuple(field.read_as(form) for field, form in zip(fields, found, strict=True))
        return _Staged(self._temporary.load(types, rows, shape.table, keep=keep), tuple(fields), found)

    def _allow_any_join(self) -> None:
        """Allows all joins for the rest of the transaction: without an index, a nested loop would read the whole table
        for each row."""
        self._session.execute("set local enable_hashjoin = on")
        self._session.execute("set local enable_mergejoin = on")

    def _execute(self, shape: PostgresShape, statement: str) -> int:
        return self._session.execute(statement, table=shape.table)


def _by_presence(
    rows: Tuples, fields: Sequence[Field]
) -> Iterator[tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Sequence[Field]]]:
    """Groups rows by the fields that have a value in them; yields the indexes of each group's rows, and those
    fields."""
    if not rows.count:
        return
    absent = pick(rows, fields).kinds == ABSENT
    if not absent.any():
        yield np.arange(rows.count), fields
        return
    masks, inverse = np.unique(absent, axis=1, return_inverse=True)
    for group in range(masks.shape[1]):
        present = [field for field, gone in zip(fields, masks[:, group], strict=True) if not gone]
        yield np.flatnonzero(inverse.reshape(-1) == group), present


def _on_conflict(shape: PostgresShape) -> str:
    if not shape.key_is_unique:
        return ""
    key = ", ".join(field.sql for field in shape.key)
    fields = [f for f in shape.values or shape.key if f.destination.identity != "a"]
    if not fields:
        return f"on conflict ({key}) do nothing"
    sets = ", ".join(f"{f.sql} = excluded.{f.sql}" for f in fields)
    there, wanted = (", ".join(f"{place}.{f.sql}" for f in shape.key) for place in ("t", "excluded"))
    return f"on conflict ({key}) do update set {sets} where row({there})::text = row({wanted})::text"
