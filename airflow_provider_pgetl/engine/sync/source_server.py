"""The source as the shell sees it: few requests, each of which either succeeds or raises a `PgetlError`.

`PostgresSource` asks a real server. The simulation has a model of one, so that prepare's judgement of gaps, the worker,
its streams and the copies run against it as they are. What needs SQL of its own (preflight, the publication, reading
ranges) stays outside.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from psycopg import pq

from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.positions import START, Boundary
from airflow_provider_pgetl.engine.source import slots
from airflow_provider_pgetl.engine.source.catalog import PublishedTable
from airflow_provider_pgetl.engine.source.connecting import Connection, connect, connect_replication, worker_name
from airflow_provider_pgetl.engine.source.lineage import Present, flushed_position, inserted_position, read_lineage
from airflow_provider_pgetl.engine.source.published import Publication, read_publications
from airflow_provider_pgetl.engine.source.slot_creation import CreatedSlot, create_slot
from airflow_provider_pgetl.engine.source.slot_names import SlotName
from airflow_provider_pgetl.engine.source.slots import Slot
from airflow_provider_pgetl.engine.source.watched import WatchedSource, read_watched
from airflow_provider_pgetl.engine.sync.copying.snapshot import (
    ExportedSnapshot,
    drop_group_slot,
    exported_snapshot,
    read_published,
)
from airflow_provider_pgetl.engine.tables import TableName
from airflow_provider_pgetl.engine.wal.stream import ReplicationStream


class SlotStream(Protocol):
    """One connection that streams one slot, until it is left; see `ReplicationStream`."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    @property
    def sender_timeout(self) -> float | None: ...

    @property
    def confirmed(self) -> Boundary: ...

    def receive(self, timeout: float) -> list[bytes]: ...

    def wake(self) -> None: ...

    def send_feedback(self, boundary: Boundary, *, reply_requested: bool = False) -> None: ...


class SourceSession(Protocol):
    """One session for statements."""

    def list_slots(self) -> Mapping[SlotName, Slot]:
        """Those of the pipeline."""

    def find_slot(self, name: str) -> Slot | None: ...

    def release_slot(self, name: str) -> None:
        """End the session that streams from the slot, if there is one, and wait until the slot is free."""

    def drop_slot(self, name: str, *, terminate: bool = False) -> bool:
        """Whether there was one. One in use is waited for, with `terminate` after ending the session that uses it."""

    def create_slot(self, name: str, *, failover: bool = False) -> CreatedSlot: ...

    def deciding(self, name: str) -> AbstractContextManager[None]:
        """Within it nobody else decides what becomes of the slot."""

    def flushed_position(self) -> Boundary:
        """Where the source's WAL ends durably; what is inserted beyond may never be reported by a keepalive."""

    def inserted_position(self) -> Boundary:
        """A stream that is here has brought every transaction that has changed a table's file by now. It comes as far
        without further writes."""

    def lineage(self, publication: str) -> Present: ...

    def publications(self, names: Sequence[str]) -> Sequence[Publication]: ...

    def watched(
        self, publications: Sequence[str], relations: Sequence[int], tables: Collection[TableName]
    ) -> WatchedSource: ...


class SourceServer(Protocol):
    """`worker` names who asks, for the server's people."""

    def session(self, worker: str) -> AbstractContextManager[SourceSession]: ...

    def stream(
        self,
        worker: str,
        slot: str,
        publications: tuple[str, ...],
        *,
        binary: bool,
        start: Boundary = START,
        accept: Callable[[Present], None] | None = None,
    ) -> SlotStream:
        """From where the slot was last confirmed, or from `start` where that is further. `accept` is told what the very
        connection leads to, before it streams, and raises if that is not what is wanted."""

    def exported_snapshot(self, attempt: int, slot: str, patience: float) -> AbstractContextManager[ExportedSnapshot]:
        """Make the slot, and hold its session, idle, for as long as the snapshot is wanted. The slot stays."""

    def read_published(
        self,
        attempt: int,
        snapshot: str | None,
        publications: Sequence[str],
        tables: Sequence[TableName],
        refuse: Callable[[TableName, PgetlError], None],
    ) -> tuple[PublishedTable, ...]:
        """The tables as published in the snapshot. One that is not as it should be is refused alone."""

    def drop_group_slot(self, attempt: int, slot: str) -> None: ...


# -- a real one -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PostgresSource:
    """`uri` holds secrets."""

    uri: str = field(repr=False)
    pipeline: str
    instance: str

    def connect(self, worker: str) -> Connection:
        return connect(self.uri, worker_name(self.pipeline, worker))

    @contextmanager
    def session(self, worker: str) -> Iterator[PostgresSession]:
        with self.connect(worker) as connection:
            yield PostgresSession(self, connection)

    def stream(
        self,
        worker: str,
        slot: str,
        publications: tuple[str, ...],
        *,
        binary: bool,
        start: Boundary = START,
        accept: Callable[[Present], None] | None = None,
    ) -> ReplicationStream:
        connection = connect_replication(self.uri, worker_name(self.pipeline, worker))
        if accept is not None:
            try:
                accept(read_lineage(connection, publications[0]))
            except BaseException:
                connection.finish()
                raise
        return ReplicationStream.start(connection, slot, publications, start=start, binary=binary)

    def exported_snapshot(self, attempt: int, slot: str, patience: float) -> AbstractContextManager[ExportedSnapshot]:
        return exported_snapshot(self.uri, self.pipeline, attempt, slot, patience)

    def read_published(
        self,
        attempt: int,
        snapshot: str | None,
        publications: Sequence[str],
        tables: Sequence[TableName],
        refuse: Callable[[TableName, PgetlError], None],
    ) -> tuple[PublishedTable, ...]:
        name = worker_name(self.pipeline, f"c{attempt}")
        return read_published(self.uri, name, snapshot, publications, tables, refuse)

    def drop_group_slot(self, attempt: int, slot: str) -> None:
        drop_group_slot(self.uri, self.pipeline, attempt, slot)


@dataclass(frozen=True, slots=True)
class PostgresSession:
    """Its functions, over a connection that somebody else closes."""

    source: PostgresSource
    connection: Connection

    def list_slots(self) -> Mapping[SlotName, Slot]:
        return slots.list_slots(self.connection, self.source.pipeline, self.source.instance)

    def find_slot(self, name: str) -> Slot | None:
        return slots.find_slot(self.connection, name)

    def release_slot(self, name: str) -> None:
        slots.release_slot(self.connection, name)

    def drop_slot(self, name: str, *, terminate: bool = False) -> bool:
        return slots.drop_slot(self.connection, name, terminate=terminate)

    def create_slot(self, name: str, *, failover: bool = False) -> CreatedSlot:
        with self._replication() as replication:
            return create_slot(replication, self.connection, name, failover=failover)

    def deciding(self, name: str) -> AbstractContextManager[None]:
        return slots.deciding(self.connection, name)

    def flushed_position(self) -> Boundary:
        return flushed_position(self.connection)

    def inserted_position(self) -> Boundary:
        return inserted_position(self.connection)

    def lineage(self, publication: str) -> Present:
        with self._replication() as replication:
            return read_lineage(replication, publication)

    def publications(self, names: Sequence[str]) -> Sequence[Publication]:
        return read_publications(self.connection, names)

    def watched(
        self, publications: Sequence[str], relations: Sequence[int], tables: Collection[TableName]
    ) -> WatchedSource:
        return read_watched(self.connection, publications, relations, tables)

    @contextmanager
    def _replication(self) -> Iterator[pq.abc.PGconn]:
        replication = connect_replication(self.source.uri, worker_name(self.source.pipeline, "prepare"))
        try:
            yield replication
        finally:
            replication.finish()
