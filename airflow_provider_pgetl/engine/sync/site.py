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
from airflow_provider_pgetl.engine.source.connecting import Connection, connect, connect_replication, worker_name
from airflow_provider_pgetl.engine.source.publication import publication_names
from airflow_provider_pgetl.engine.source.slot_names import apply_slot, copy_slot
from airflow_provider_pgetl.engine.state.protocol import Store


@dataclass(frozen=True, slots=True)
class Site:
    """`source_uri`, `destination_uri` and `destination_options` hold secrets: none of them is ever shown."""

    spec: PipelineSpec
    store: Store
    observer: Observer
    source_uri: str = field(repr=False)
    destination_uri: str | None = field(repr=False)
    destination_options: Mapping[str, Any] = field(repr=False)

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

    def connect(self, worker: str) -> Connection:
        return connect(self.source_uri, worker_name(self.pipeline, worker))

    def connect_replication(self, worker: str) -> pq.abc.PGconn:
        return connect_replication(self.source_uri, worker_name(self.pipeline, worker))

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

    def wants_binary(self) -> bool:
        """Whether values travel in binary: the destination must like it, and every table's types must allow it."""
        destination = self.open_destination("probe")
        try:
            likes = isinstance(destination, WireFormat) and destination.accepts_binary()
        finally:
            destination.shutdown()
        versions = self.store.schemas().values()
        return likes and all(schema.portable for of_table in versions for schema in of_table.values())
