"""What pgoutput says beside rows, as plain data.

Row messages (insert, update, delete) have no class here on purpose: they are never taken apart one by one, see
`assembler`. Times are microseconds since 2000-01-01 UTC, as Postgres sends them; `timestamp` makes one readable.

Positions come in the types of `engine.positions`: a transaction is named by its `CommitLsn`; its end, and the position
of a keepalive, are each a `Boundary`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from airflow_provider_pgetl.engine.positions import Boundary, CommitLsn
from airflow_provider_pgetl.engine.tables import Identity, TableName

POSTGRES_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def timestamp(microseconds: int) -> datetime:
    """A time of the protocol as a datetime."""
    return POSTGRES_EPOCH + timedelta(microseconds=microseconds)


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction's changes follow. `commit_lsn` is known already: pgoutput speaks of committed transactions only."""

    commit_lsn: CommitLsn
    commit_time: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The transaction is complete; everything up to and including it lies before `end`."""

    commit_lsn: CommitLsn
    end: Boundary
    commit_time: int


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A published column. `key` tells that it belongs to the replica identity."""

    name: str
    type: int
    modifier: int
    key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as it is for the rows that follow. Sent once per connection, and again when something of it changed."""

    oid: int
    table: TableName
    identity: Identity
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class Type:
    """The name of a type that is not built in; sent before the relation that uses it."""

    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Origin:
    """The transaction was itself replicated from somewhere else."""

    commit_lsn: CommitLsn
    name: str


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """What `pg_logical_emit_message` wrote. The stream asks for none."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    """Published tables that were emptied by one statement."""

    relations: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class Keepalive:
    """All before `position` that concerns us has been sent; a transaction still open commits at or behind it."""

    position: Boundary
    server_time: int
    reply_requested: bool


Message = Begin | Commit | Relation | Type | Origin | LogicalMessage | Truncate | Keepalive
