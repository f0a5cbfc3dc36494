"""The context of a running pipeline: its specification, its secrets, its store, and the functions that open sessions.

A `PipelineContext` is made once per process by the methods of `Pipeline`. Code that needs a session opens one of its
own and closes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

from psycopg import pq

from airflow_provider_pgetl.engine.config.spec import PipelineSpec
from airflow_provider_pgetl.engine.destinations.protocol import Destination, Preferences, open_destination
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.phases import Event, Refused, TableState
from airflow_provider_pgetl.engine.model.positions import START, Boundary
from airflow_provider_pgetl.engine.model.reports import Noted, Observer
from airflow_provider_pgetl.engine.model.tables import Column, TableName, written
from airflow_provider_pgetl.engine.runtime.threads import THREADS, Runtime
from airflow_provider_pgetl.engine.source import slots
from airflow_provider_pgetl.engine.source.alterations import PresentTable, read_present_table
from airflow_provider_pgetl.engine.source.catalog import PublishedTable
from airflow_provider_pgetl.engine.source.connecting import Connection, connect, connect_replication, worker_name
from airflow_provider_pgetl.engine.source.drift import WatchedSource, read_watched
from airflow_provider_pgetl.engine.source.publication import publication_names
from airflow_provider_pgetl.engine.source.published import Publication, read_publications
from airflow_provider_pgetl.engine.source.range_reading import (
    ExportedSnapshot,
    drop_group_slot,
    exported_snapshot,
    read_published,
)
from airflow_provider_pgetl.engine.source.server import Present, flushed_position, inserted_position, read_lineage
from airflow_provider_pgetl.engine.source.slots import CreatedSlot, Slot, SlotName, apply_slot, copy_slot, create_slot
from airflow_provider_pgetl.engine.state.decisions import states_of
from airflow_provider_pgetl.engine.state.store import Store
from airflow_provider_pgetl.engine.transform.tables import Transforms
from airflow_provider_pgetl.engine.wal.replication_stream import ReplicationStream

# -- The requests that the engine makes of a source. Each succeeds or raises a `PgetlError`. ---------------------------
#
# `PostgresSource` asks a real server. The simulation implements the same protocols with a model of a server, so that
# `prepare`'s judgement of gaps, the worker, its streams and the copies run against the model unchanged. Work that needs
# SQL of its own (preflight, the publication, reading ranges) is not part of these protocols.


class SlotStream(Protocol):
    """A connection that streams one slot until the context manager is left; see `ReplicationStream`."""

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
    """A session that runs statements at the source."""

    def list_slots(self) -> Mapping[SlotName, Slot]:
        """Returns the slots of the pipeline."""

    def find_slot(self, name: str) -> Slot | None: ...

    def release_slot(self, name: str) -> None:
        """Terminates the session that streams from the slot, if there is one, and waits until the slot is inactive."""

    def drop_slot(self, name: str, *, terminate: bool = False) -> bool:
        """Drops the slot and returns whether it existed. Waits while the slot is in use; with `terminate`, first
        terminates the session that uses it."""

    def create_slot(self, name: str, *, failover: bool = False) -> CreatedSlot: ...

    def deciding(self, name: str) -> AbstractContextManager[None]:
        """Excludes other sessions that enter the same block from deciding what becomes of the slot."""

    def flushed_position(self) -> Boundary:
        """Returns the end of the WAL that is durable at the source. It is possible that no keepalive ever reports WAL
        that is inserted beyond it."""

    def inserted_position(self) -> Boundary:
        """Returns the position at which WAL is inserted now. A stream that has reached it has delivered every
        transaction that has changed a table's file by now. It gets there without further writes."""

    def lineage(self, publication: str) -> Present: ...

    def publications(self, names: Sequence[str]) -> Sequence[Publication]: ...

    def watched(
        self, publications: Sequence[str], relations: Sequence[int], tables: Collection[TableName]
    ) -> WatchedSource: ...

    def present_table(self, relation: int) -> PresentTable | None:
        """Returns the table with this OID as it is now, with what existing rows have in its columns."""


class SourceServer(Protocol):
    """A source. The `worker` argument is part of the application name of the session, for the administrators of the
    server."""

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
        """Streams from the position that the slot has confirmed, or from `start` if that is later. `accept` is called
        with the lineage of the server that this very connection leads to, before streaming begins, and raises if that
        is not the expected one."""

    def exported_snapshot(self, attempt: int, slot: str, patience: float) -> AbstractContextManager[ExportedSnapshot]:
        """Creates the slot and keeps its session idle for as long as the snapshot is in use. The slot remains
        afterwards."""

    def read_published(
        self,
        attempt: int,
        snapshot: str | None,
        publications: Sequence[str],
        tables: Sequence[TableName],
        refuse: Callable[[TableName, PgetlError], None],
    ) -> tuple[PublishedTable, ...]:
        """Returns the tables as they are published in the snapshot. A table that cannot be copied is passed to
        `refuse`; the others are still returned."""

    def drop_group_slot(self, attempt: int, slot: str) -> None: ...


# -- a real server -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PostgresSource:
    """A PostgreSQL server as the source. `uri` contains secrets."""

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
    """Implements `SourceSession` over a connection that its caller closes."""

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

    def present_table(self, relation: int) -> PresentTable | None:
        return read_present_table(self.connection, relation)

    @contextmanager
    def _replication(self) -> Iterator[pq.abc.PGconn]:
        replication = connect_replication(self.source.uri, worker_name(self.source.pipeline, "prepare"))
        try:
            yield replication
        finally:
            replication.finish()


# -- Context. ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PipelineContext:
    """`source_uri`, `destination_uri` and `destination_options` contain secrets and are excluded from the
    representation. `transforms` is None for a pipeline whose values are not transformed."""

    spec: PipelineSpec
    store: Store
    observer: Observer
    source_uri: str = field(repr=False)
    destination_uri: str | None = field(repr=False)
    destination_options: Mapping[str, Any] = field(repr=False)
    runtime: Runtime = THREADS
    transforms: Transforms | None = field(default=None, repr=False)

    @property
    def pipeline(self) -> str:
        return self.spec.id

    @property
    def instance(self) -> str:
        return self.store.pipeline().instance

    @property
    def publications(self) -> tuple[str, ...]:
        return publication_names(self.spec)

    @property
    def apply_slot(self) -> str:
        return apply_slot(self.pipeline, self.instance)

    def group_slot(self, attempt: int) -> str:
        return copy_slot(self.pipeline, self.instance, attempt)

    @property
    def source(self) -> SourceServer:
        return self._postgres

    @property
    def _postgres(self) -> PostgresSource:
        return PostgresSource(self.source_uri, self.pipeline, self.instance)

    def connect(self, worker: str) -> Connection:
        """Returns a new session for statements, which the caller closes."""
        return self._postgres.connect(worker)

    def connect_replication(self, worker: str) -> pq.abc.PGconn:
        return connect_replication(self.source_uri, worker_name(self.pipeline, worker))

    def over(self, connection: Connection) -> SourceSession:
        """Returns the given connection as a `SourceSession`."""
        return PostgresSession(self._postgres, connection)

    def open_destination(self, worker: str) -> Destination:
        uri, options = self.destination_uri, self.destination_options
        return open_destination(self.spec.destination, uri, self.pipeline, worker, options)

    @contextmanager
    def destination(self, worker: str) -> Iterator[Destination]:
        """Opens the destination for the block."""
        destination = self.open_destination(worker)
        try:
            yield destination
        finally:
            destination.shutdown()

    def write_interval(self) -> float:
        """Returns the seconds between commits: the declared interval, otherwise the destination's preference."""
        declared = self.spec.stream.min_interval
        if declared is not None:
            return declared
        with self.destination("probe") as destination:
            return destination.write_interval if isinstance(destination, Preferences) else 0.0

    def binary_columns(self) -> frozenset[tuple[Column, ...]] | None:
        """Returns the columns of all known tables if their values, and those of `universal` types, may be sent in
        binary format; None if all values are sent as text, as they are where any are transformed. The destination
        decides, and it must accept every table."""
        if self.transforms is not None:
            return None
        schemas = [schema for versions in self.store.schemas().values() for schema in versions.values()]
        with self.destination("probe") as destination:
            if not isinstance(destination, Preferences) or not destination.accepts_binary(schemas):
                return None
        return frozenset(schema.columns for schema in schemas)


# -- Events for many tables in one call of the store. A table that was changed meanwhile is refused alone. -------------


def apply_judged(
    context: PipelineContext, judge: Callable[[Mapping[TableName, TableState]], Mapping[TableName, Event]]
) -> list[TableName]:
    """Applies the events that `judge` returns for the current states of the tables. Returns the tables concerned."""
    context.store.load()
    events = judge(states_of(context.store))
    apply_each(context, events)
    return sorted(events)


def apply_each(context: PipelineContext, events: Mapping[TableName, Event]) -> None:
    if not events:
        return
    for table, answer in context.store.apply_each(events).items():
        if isinstance(answer, Refused):
            what = type(events[table]).__name__
            context.observer(Noted("info", f"{what} of {written(table)} was refused: {answer.why}.", table))
