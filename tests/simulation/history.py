"""What is written at the modelled source: rows, transactions, and the WAL that holds them."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from airflow_provider_pgetl.engine.changes.batch import Change, Kind
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary, CommitLsn
from airflow_provider_pgetl.engine.model.tables import Column, PgType, TableName, TableSchema
from airflow_provider_pgetl.engine.wal.pgoutput import Begin, Commit, Relation, RelationColumn, TruncateMessage
from tests.engine.changes import pgoutput
from tests.engine.wal.control_messages import encode

Row = dict[str, bytes | None]
Rows = dict[tuple[bytes], Row]
UNIT = 35_000
"""Bytes of WAL that are hardly anything: thirty of them are what a stream takes for near."""

KEYS = 5
CHECKPOINT = 20
"""Every so many transactions."""

_INT = PgType(23, "int4")
_COLUMNS = tuple(Column(name, _INT, "integer", number=n) for n, name in enumerate(("id", "value", "big"), 1))


def schema_of(table: TableName) -> TableSchema:
    return TableSchema(table, 16_384 + int(table.name[1:]), _COLUMNS, ("id",))


def told_of(row: Row, columns: tuple[str, ...]) -> Row:
    return {name: row[name] for name in columns}


class Violation(AssertionError):
    """The simulation has found something that must not be."""


class Away(PgetlError):
    """A server cannot be reached, or its answer was lost."""

    def __init__(self, server: str, what: str) -> None:
        kind = ErrorKind.STORE if server == "store" else ErrorKind.CONNECTION
        super().__init__(kind, f"{server} is away: {what}")


# -- what is written --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Changed:
    """`change` is None where the table was truncated. What was not `published` is not sent."""

    schema: TableSchema
    change: Change | None
    published: bool = True

    @property
    def table(self) -> TableName:
        return self.schema.table

    @property
    def payload(self) -> bytes:
        relation, change = self.schema.relation, self.change
        if change is None:
            return encode(TruncateMessage((relation,), cascade=False, restart_identity=False))
        old = None if change.old is None else [change.old.get(name) for name in self.schema.names]
        if change.new is None:
            return pgoutput.delete(relation, key=old)
        new = [change.new.get(name, pgoutput.ABSENT) for name in self.schema.names]
        if change.kind is Kind.INSERT:
            return pgoutput.insert(relation, new)
        return pgoutput.update(relation, new, key=old)


@dataclass(frozen=True, slots=True)
class Transaction:
    commit: int
    end: int
    at: float
    xid: int
    changes: tuple[Changed, ...]

    @property
    def _time(self) -> int:
        return int((self.at - 946_684_800) * 1e6)

    @property
    def begin(self) -> bytes:
        return encode(Begin(CommitLsn(self.commit), self._time, self.xid))

    @property
    def committed(self) -> bytes:
        return encode(Commit(CommitLsn(self.commit), Boundary(self.end), self._time))


def relation(schema: TableSchema) -> bytes:
    columns = tuple(RelationColumn(c.name, c.type.oid, c.modifier, c.name in schema.key) for c in schema.columns)
    return encode(Relation(schema.relation, schema.table, schema.identity, columns))


@dataclass
class History:
    """What a table held, from commit to commit; `files` counts those that its rows were in."""

    commits: list[int] = field(default_factory=list)
    versions: list[Rows] = field(default_factory=lambda: [{}])
    files: int = 0

    @property
    def rows(self) -> Rows:
        return self.versions[-1]

    def at(self, boundary: Boundary) -> Rows:
        """The rows when everything before the boundary had been committed."""
        return self.versions[bisect_left(self.commits, boundary.lsn)]

    def changed(self, since: Boundary, until: Boundary) -> bool:
        """Whether a transaction at or behind `since` and before `until` changed the table."""
        return bisect_left(self.commits, since.lsn) < bisect_left(self.commits, until.lsn)

    def cuts(self, boundary: Boundary) -> tuple[int, float]:
        """The boundaries B at which the table is as at `boundary`: after the first, up to the second."""
        index = bisect_left(self.commits, boundary.lsn)
        before = self.commits[index - 1] if index else -1
        return before, self.commits[index] if index < len(self.commits) else float("inf")
