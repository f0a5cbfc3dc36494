"""Everything a running pipeline works with, resolved: its declaration, its secrets, its store, and how sessions are
opened.

Made once per process by the pipeline's verbs. Whoever needs a session opens one of its own and closes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from psycopg import pq

from airflow_provider_pgetl.engine.config import PipelineSpec
from airflow_provider_pgetl.engine.destinations.opening import open_destination
from airflow_provider_pgetl.engine.destinations.protocol import Destination, Paced, WireFormat
from airflow_provider_pgetl.engine.reports import Observer
from airflow_provider_pgetl.engine.source.connecting import Connection, connect_replication, worker_name
from airflow_provider_pgetl.engine.source.publication import publication_names
from airflow_provider_pgetl.engine.source.slot_names import apply_slot, copy_slot
from airflow_provider_pgetl.engine.state.protocol import Store
from airflow_provider_pgetl.engine.sync.runtime import THREADS, Runtime
from airflow_provider_pgetl.engine.sync.source_server import (
    PostgresSession,
    PostgresSource,
    SourceServer,
    SourceSession,
)
from airflow_provider_pgetl.engine.tables import Column


@dataclass(frozen=True, slots=True)
class Site:
    """`source_uri`, `destination_uri` and `destination_options` hold secrets: none of them is ever shown."""

    spec: PipelineSpec
    store: Store
    observer: Observer
    source_uri: str = field(repr=False)
    destination_uri: str | None = field(repr=False)
    destination_options: Mapping[str, Any] = field(repr=False)
    runtime: Runtime = THREADS

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
        """A session for statements of one's own."""
        return self._postgres.connect(worker)

    def connect_replication(self, worker: str) -> pq.abc.PGconn:
        return connect_replication(self.source_uri, worker_name(self.pipeline, worker))

    def over(self, connection: Connection) -> SourceSession:
        """The same session, for what is asked of any source."""
        return PostgresSession(self._postgres, connection)

    def open_destination(self, worker: str) -> Destination:
        uri, options = self.destination_uri, self.destination_options
        return open_destination(self.spec.destination, uri, self.pipeline, worker, options)

    def write_interval(self) -> float:
        """Seconds between commits: as declared, else as the destination likes it."""
        declared = self.spec.stream.min_interval
        if declared is not None:
            return declared
        destination = self.open_destination("probe")
        try:
            return destination.write_interval if isinstance(destination, Paced) else 0.0
        finally:
            destination.shutdown()

    def binary_columns(self) -> frozenset[tuple[Column, ...]] | None:
        """The columns of all tables that are known, if their values, and those of `universal` types, may travel in
        binary; None if everything travels as text. The destination decides, and every table must allow it."""
        schemas = [schema for versions in self.store.schemas().values() for schema in versions.values()]
        destination = self.open_destination("probe")
        try:
            if not isinstance(destination, WireFormat) or not all(map(destination.accepts_binary, schemas)):
                return None
        finally:
            destination.shutdown()
        return frozenset(schema.columns for schema in schemas)
