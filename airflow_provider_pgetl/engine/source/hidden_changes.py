"""What an ALTER has changed though the RELATION message after it is the same as the one before.

A column that was dropped and added again under its name, and two columns that have exchanged their names, have other
attribute numbers; an ALTER that computes values anew (USING) has written the rows to other files; and a column may have
become nullable. Only the catalog shows that. It is read after each RELATION message, because the source sends one after
each ALTER, and then shows at least what had been altered by then.

It shows what was altered since as well. So a change may be found before the stream comes to it, and the table then is
copied again a little earlier than it had to be.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_pgetl.engine.model.positions import Boundary, CommitLsn
from airflow_provider_pgetl.engine.model.tables import TableSchema
from airflow_provider_pgetl.engine.source.connecting import Connection, server_errors
from airflow_provider_pgetl.engine.source.drift import Storage, rewritten, storage

_XIDS = 1 << 32
COMPUTED_ANEW = "an ALTER may have changed values in all rows, which sends none of them"


@dataclass(frozen=True, slots=True)
class Marks:
    """A table as the catalog has it: the attribute numbers of its columns by their names, where its rows are, and which
    columns may be null."""

    numbers: Mapping[str, int]
    storage: Storage
    nullable: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Look:
    """What the catalog showed at one moment, of the tables that existed. Everything that was committed before `upto`
    had taken effect, except for the transactions that were `running`, and those from `following` on, as other sessions
    saw them: where a commit waits for a standby, a stream has it before they see it."""

    upto: Boundary
    running: frozenset[int]
    following: int
    tables: Mapping[int, Marks]

    def shows(self, commit_lsn: CommitLsn, xid: int) -> bool:
        """Whether it shows what the transaction, and those before it, have altered."""
        has_ended = (self.following - xid) % _XIDS in range(1, _XIDS // 2)
        return commit_lsn < self.upto.lsn and has_ended and xid not in self.running


def hidden_change(schema: TableSchema, marks: Marks) -> str | None:
    """Returns what was changed in a table since the last known version of its schema; None if nothing. The version must
    have been read before the marks."""
    for column in schema.columns:
        if column.number and marks.numbers.get(column.name, column.number) != column.number:
            return f"{column.name} was dropped and added again"
    return COMPUTED_ANEW if rewritten(storage(schema), marks.storage) else None


def read_look(connection: Connection, relations: Sequence[int]) -> Look:
    """Looks at the tables with these OIDs."""
    with server_errors("The catalog could not be looked at"):
        # Not in the transaction of the other queries: its snapshot must not be older than the position.
        ((position,),) = connection.execute(_POSITION).fetchall()
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            running = connection.execute(_RUNNING).fetchall()
            columns = connection.execute(_COLUMNS, [list(relations)]).fetchall()
            files = connection.execute(_FILES, [list(relations)]).fetchall()
    numbers: defaultdict[int, dict[str, int]] = defaultdict(dict)
    altered: defaultdict[int, dict[str, int]] = defaultdict(dict)
    nullable: defaultdict[int, set[str]] = defaultdict(set)
    for oid, name, number, xmin, not_null in columns:
        numbers[oid][name] = number
        altered[oid][name] = xmin
        if not not_null:
            nullable[oid].add(name)
    there: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for root, leaf, file in files:
        there[root][leaf] = file
    tables = {oid: Marks(numbers[oid], Storage(there[oid], altered[oid]), frozenset(nullable[oid])) for oid in numbers}
    ((following, among),) = running
    return Look(Boundary.parse(position), frozenset(among), following, tables)


_POSITION = """
select (case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_insert_lsn() end)::text
"""

# In the form of pgoutput: without the epoch.
_RUNNING = """
select (pg_snapshot_xmax(s)::text::numeric % 4294967296)::int8,
       array(select (xip::text::numeric % 4294967296)::int8 from pg_snapshot_xip(s) xip)
from pg_current_snapshot() s
"""

_COLUMNS = """
select attrelid, attname::text, attnum::int8, xmin::text::int8, attnotnull from pg_attribute
where attrelid = any(%s::oid[]) and attnum > 0 and not attisdropped
"""

_FILES = """
with recursive tree(root, oid) as (
    select t.oid, t.oid from unnest(%s::oid[]) as t(oid)
    union all
    select tree.root, i.inhrelid from tree
    join pg_class p on p.oid = tree.oid and p.relkind = 'p'
    join pg_inherits i on i.inhparent = tree.oid and not i.inhdetachpending
)
select tree.root, c.oid, c.relfilenode::int8 from tree join pg_class c on c.oid = tree.oid and c.relkind <> 'p'
"""
