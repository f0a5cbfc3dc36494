"""Reading a real server's stream to a known point, and taking rows apart with a parser of its own."""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from psycopg import pq

from airflow_provider_pgetl.engine.model.positions import START, Boundary, CommitLsn
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.wal.assembler import Assembler, Batch, Event
from airflow_provider_pgetl.engine.wal.pgoutput import Commit, Keepalive, Relation
from airflow_provider_pgetl.engine.wal.replication_stream import ReplicationStream
from airflow_provider_pgetl.engine.wal.spool import Budget, Spool, TruncateStep
from airflow_provider_pgetl.testing.servers.postgres_servers import Database

SLOT, PUBLICATION = "wal_test", "wal_test"
PATIENCE = 30.0
Values = tuple[object, ...]


def create_slot(database: Database, name: str = SLOT) -> None:
    database.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [name])


def publish(database: Database, tables: str, name: str = PUBLICATION) -> None:
    database.execute(f"create publication {name} for {tables}")


def connect(database: Database, **parameters: str) -> pq.PGconn:
    settings = {"replication": "database", "client_encoding": "UTF8", **parameters}
    query = "&".join(f"{name}={value}" for name, value in settings.items())
    connection = pq.PGconn.connect(f"{database.uri}?{query}".encode())
    assert connection.status == pq.ConnStatus.OK, connection.get_error_message()
    return connection


@contextmanager
def streaming(
    database: Database,
    slot: str = SLOT,
    publications: tuple[str, ...] = (PUBLICATION,),
    *,
    start: Boundary = START,
    binary: bool = False,
) -> Iterator[ReplicationStream]:
    with ReplicationStream.start(connect(database), slot, publications, start=start, binary=binary) as stream:
        yield stream


def flushed(database: Database) -> Boundary:
    """A point behind everything committed so far, that a keepalive will reach."""
    # A record behind the last commit, so that a position can lie beyond it.
    database.execute("select pg_logical_emit_message(true, 'pgetl', '')")
    return Boundary.parse(str(database.execute("select pg_current_wal_flush_lsn()")[0][0]))


# -- rows, parsed after the documentation -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A change that came: kind ('I', 'U', 'D' or 'T'), what is before it ('K', 'O' or ''), and where it stood."""

    table: TableName
    kind: str
    marker: str
    old: Values | None
    new: Values | None
    commit_lsn: int
    ordinal: int


@dataclass
class Parser:
    payload: bytes
    at: int = 25

    def byte(self) -> str:
        self.at += 1
        return chr(self.payload[self.at - 1])

    def integer(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self.payload, self.at)
        self.at += struct.calcsize(form)
        return int(value)

    def values(self) -> Values:
        return tuple(self.value() for _ in range(self.integer("!h")))

    def value(self) -> object:
        """None for NULL, "unchanged" for what was not sent; bytes else, in a pair with 'b' when binary."""
        kind = self.byte()
        if kind in "nu":
            return None if kind == "n" else "unchanged"
        size = self.integer("!i")
        self.at += size
        data = self.payload[self.at - size : self.at]
        return data if kind == "t" else ("b", data)


def parse(payload: bytes) -> tuple[str, str, Values | None, Values | None]:
    parser = Parser(payload)
    kind = parser.byte()
    parser.integer("!I")
    marker, old, new = parser.byte(), None, None
    if marker in "KO":
        old = parser.values()
        marker_of_new = parser.byte() if kind == "U" else ""
    else:
        marker, marker_of_new = "", marker
    if marker_of_new:
        assert marker_of_new == "N"
        new = parser.values()
    assert parser.at == len(payload)
    return kind, marker, old, new


# -- a reader ---------------------------------------------------------------------------------------------------------


@dataclass
class Reader:
    """Gathers from one stream. `unowned` are tables whose rows are skipped."""

    stream: ReplicationStream
    unowned: frozenset[str] = frozenset()
    chunk_bytes: int = 1 << 20
    events: list[Event] = field(default_factory=list)
    relations: dict[int, Relation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        budget = Budget(1 << 20)
        self.assembler: Assembler[TableName] = Assembler(
            self._owns, lambda: Spool(budget), chunk_bytes=self.chunk_bytes
        )

    def _owns(self, oid: int, _commit_lsn: CommitLsn) -> TableName | None:
        table = self.relations[oid].table
        return None if table.name in self.unowned else table

    def read_to(self, point: Boundary) -> Batch[TableName]:
        """Everything before `point`, which a keepalive outside a transaction proves to have come."""
        give_up_at = time.monotonic() + PATIENCE
        self.stream.send_feedback(self.stream.confirmed, reply_requested=True)
        while not self._has_reached(point):
            assert time.monotonic() < give_up_at, f"{point} was not reached"
            self.stream.send_feedback(self.stream.confirmed, reply_requested=True)
            for event in self.assembler.feed_many(self.stream.receive(0.2)):
                self._note(event)
        return self.assembler.take()

    def read_to_commit(self) -> Batch[TableName]:
        """Everything up to the next commit, without asking the server for anything."""
        give_up_at, known = time.monotonic() + PATIENCE, len(self.events)
        while not any(isinstance(event, Commit) for event in self.events[known:]):
            assert time.monotonic() < give_up_at, "no commit came"
            for event in self.assembler.feed_many(self.stream.receive(PATIENCE)):
                self._note(event)
        return self.assembler.take()

    def _note(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Relation):
            self.relations[event.oid] = event

    def _has_reached(self, point: Boundary) -> bool:
        last = self.events[-1] if self.events else None
        idle = isinstance(last, Keepalive) and not self.assembler.in_transaction
        return idle and last.position >= point


def rows_of(batch: Batch[TableName]) -> list[Row]:
    """The batch's changes by position: as the source made them."""
    rows: list[Row] = []
    for step in batch.steps:
        if isinstance(step, TruncateStep):
            rows.append(Row(step.key, "T", "", None, None, step.commit_lsn, step.ordinal))
            continue
        ends = step.lengths.cumsum().tolist()
        runs = step.commits[:, 0].searchsorted(range(len(step)), side="right") - 1
        for index, (end, length) in enumerate(zip(ends, step.lengths.tolist(), strict=True)):
            position = int(step.commits[runs[index], 1]), int(step.ordinals[index])
            rows.append(Row(step.key, *parse(step.data[end - length : end]), *position))
    return sorted(rows, key=lambda row: (row.commit_lsn, row.ordinal))


def read(database: Database, *, binary: bool = False, unowned: frozenset[str] = frozenset()) -> list[Row]:
    """All changes that the slot still has."""
    point = flushed(database)
    with streaming(database, binary=binary) as stream:
        return rows_of(Reader(stream, unowned).read_to(point))


def counted(rows: list[Row]) -> Counter[tuple[str, str]]:
    return Counter((row.table.name, row.kind) for row in rows)
