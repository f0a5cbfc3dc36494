"""The store in Postgres: SQLAlchemy Core over psycopg, in the schema `pgetl` of the database that the URI names.

A thin shell. The statements are in `sql`, the decisions in `transitions`; here are transactions, the cache, and errors
made into `PgetlError`.

* Each method is one transaction, or one statement in autocommit. Nothing is retried: after an error it is unknown what
  took effect, and all may be sent again. The pool replaces connections that broke, so a store recovers by itself.
* Writes of one store object to what is cached are serialised by a lock that is held from before the statement to after
  the cache's update; so a slow `load` cannot bury a newer write. Reads, heartbeats and progress do not wait for it.
* Other processes hear of a write by NOTIFY at its commit; not of heartbeats, progress and high-water marks, which are
  frequent and nobody's cue.

It does not remember a failing server, back off, or answer from its cache in place of one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Self

from sqlalchemy import Connection

from airflow_provider_pgetl.engine.lineage import Lineage
from airflow_provider_pgetl.engine.phases import Event, Refused, TableState
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.state.connecting import STATE_DATABASE, Place
from airflow_provider_pgetl.engine.state.failures import translated
from airflow_provider_pgetl.engine.state.instance import destroyed
from airflow_provider_pgetl.engine.state.listening import Listener
from airflow_provider_pgetl.engine.state.migrate import migrate
from airflow_provider_pgetl.engine.state.protocol import (
    DestinationMetadata,
    HistoryEntry,
    Lag,
    Lease,
    TableRecord,
)
from airflow_provider_pgetl.engine.state.sql import (
    attempts,
    completions,
    lags,
    leases,
    lifecycle,
    phases,
    pipelines,
    progress,
    reading,
    schemas,
)
from airflow_provider_pgetl.engine.state.view import CachedReads, View, durable
from airflow_provider_pgetl.engine.tables import TableName, TableSchema
from airflow_provider_pgetl.engine.terms import Terms


def is_stored(uri: str, pipeline_id: str, role: str = STATE_DATABASE) -> bool:
    """Whether the database has a row of the pipeline; nothing is made or migrated."""
    place = Place.parse(uri, role)
    with translated(place), closing(place.connect(f"pgetl {pipeline_id} look")) as connection:
        return pipelines.is_stored(connection, pipeline_id)


class PostgresStore(CachedReads):
    """`Store` over a database whose tables are there; `open` sees to that."""

    def __init__(self, uri: str, pipeline_id: str, role: str = STATE_DATABASE) -> None:
        self._id = pipeline_id
        self._place = Place.parse(uri, role)
        name = f"pgetl {pipeline_id} store"
        self._pool = self._place.pool(name)
        self._single = self._pool.execution_options(isolation_level="AUTOCOMMIT")
        self._snapshots = self._pool.execution_options(isolation_level="REPEATABLE READ")
        self._writing = threading.RLock()
        self._waiting = threading.Lock()
        try:
            with self._statement() as connection:
                self._key = pipelines.find_or_create(connection, pipeline_id)
            self._listener = Listener(lambda: self._place.connect(name), self._key)
            self.load()
        except BaseException:
            self._pool.dispose()
            raise

    @classmethod
    def open(cls, uri: str, pipeline_id: str, role: str = STATE_DATABASE) -> Self:
        """Migrated if need be, the pipeline's row made at first use, the cache filled."""
        migrate(uri, role)
        return cls(uri, pipeline_id, role)

    def load(self) -> int:
        with self._writing, translated(self._place, self._id):
            with self._snapshots.begin() as connection:
                view = reading.view(connection, self._key)
            if view is None:
                raise destroyed(self._id)
            self._view = view
            return len(view.tables)

    # -- phases -------------------------------------------------------------------------------------------------------

    def record_lineage(self, lineage: Lineage) -> None:
        with self._change() as change:
            pipelines.record_lineage(change.connection, self._key, lineage)
            change.remember(lambda view: view.with_pipeline(lineage=lineage))

    def register(
        self, table: TableName, relation: int, membership: int | None, terms: Terms | None = None
    ) -> TableRecord:
        with self._change() as change:
            change.news = phases.register(change.connection, self._key, table, relation, membership, terms)
            (record,) = reading.records(change.connection, self._key, [table])
            change.remember(lambda view: view.with_tables([record]))
        return record

    def apply(
        self, events: Mapping[TableName, Event], *, epoch: int | None = None
    ) -> Mapping[TableName, TableState] | Refused:
        with self._change() as change:
            before, taken = phases.apply(change.connection, self._key, events, epoch)
            if isinstance(taken, Refused):
                change.news = False
                return taken
            after = [replace(before[table], state=state) for table, state in taken.items()]
            change.news = any(record != before[record.table] for record in after)
            change.remember(lambda view: view.with_tables(after))
        return taken

    def history(self, table: TableName) -> Sequence[HistoryEntry]:
        with self._statement() as connection:
            return reading.history_of(connection, self._key, table)

    def acknowledge(self, generations: Mapping[TableName, int]) -> None:
        with self._change() as change:
            change.news = phases.acknowledge(change.connection, self._key, generations)
            change.remember(lambda view: view.with_acknowledged(generations))

    # -- progress -----------------------------------------------------------------------------------------------------

    def raise_high_water(self, positions: Mapping[TableName, Boundary]) -> None:
        with self._writing, self._statement() as connection:
            phases.raise_high_water(connection, self._key, positions)
            self._view = self._view.with_high_water(positions)

    def progress(self, worker: str) -> Boundary | None:
        with self._statement() as connection:
            return progress.read(connection, self._key, worker)

    def record_progress(self, worker: str, boundary: Boundary) -> Boundary:
        with self._statement() as connection:
            return progress.record(connection, self._key, worker, boundary)

    def delete_progress(self, worker: str) -> None:
        with self._statement() as connection:
            progress.forget(connection, self._key, worker)

    # -- leases -------------------------------------------------------------------------------------------------------

    def acquire_lease(self, holder: str, ttl: float) -> Lease | None:
        with self._change() as change:
            lease = leases.acquire(change.connection, self._key, holder, ttl)
            if lease is None:
                change.news = False
                pipelines.require(change.connection, self._key, self._id)
                return None
            change.remember(lambda view: view.with_pipeline(epoch=lease.epoch))
        return lease

    def renew_lease(self, epoch: int, ttl: float) -> bool:
        with self._statement() as connection:
            return leases.renew(connection, self._key, epoch, ttl)

    def release_lease(self, epoch: int) -> None:
        with self._change() as change:
            change.news = leases.release(change.connection, self._key, epoch)

    def lease(self) -> Lease | None:
        with self._statement() as connection:
            return leases.read(connection, self._key)

    def raise_epoch(self) -> int:
        with self._change() as change:
            pipelines.require(change.connection, self._key, self._id)
            epoch = leases.raise_epoch(change.connection, self._key)
            change.remember(lambda view: view.with_pipeline(epoch=epoch))
        return epoch

    def record_lag(self, lag_bytes: int, seconds: float) -> None:
        with self._statement() as connection:
            lags.record(connection, self._key, lag_bytes, seconds)

    def lag(self) -> Lag | None:
        with self._statement() as connection:
            return lags.read(connection, self._key)

    def start_attempt(self, ttl: float, holder: str = "") -> int:
        with self._change() as change:
            pipelines.require(change.connection, self._key, self._id)
            return attempts.start(change.connection, self._key, ttl, holder)

    def beat_attempt(self, attempt: int, ttl: float) -> bool:
        with self._statement() as connection:
            return attempts.beat(connection, self._key, attempt, ttl)

    def end_attempt(self, attempt: int) -> None:
        with self._change() as change:
            change.news = attempts.end(change.connection, self._key, attempt)

    def live_attempts(self) -> frozenset[int]:
        with self._statement() as connection:
            return frozenset(attempts.living(connection, self._key))

    def attempt_holders(self) -> Mapping[int, str]:
        with self._statement() as connection:
            return attempts.living(connection, self._key)

    # -- completions --------------------------------------------------------------------------------------------------

    def record_completion(self, run: str, task: str) -> None:
        with self._change() as change:
            change.news = False
            completions.record(change.connection, self._key, run, task)

    def completions(self, run: str) -> Mapping[str, float]:
        with self._statement() as connection:
            return completions.read(connection, self._key, run)

    # -- schemas and destination --------------------------------------------------------------------------------------

    def store_schema(self, table: TableName, valid_from: Boundary, schema: TableSchema) -> None:
        with self._change() as change:
            schemas.store(change.connection, self._key, table, valid_from, schema)
            change.remember(lambda view: view.with_schema(table, valid_from, schema))

    def prune_schemas(self, keep_from: Mapping[TableName, Boundary]) -> int:
        with self._change() as change:
            gone = schemas.prune(change.connection, self._key, keep_from)
            change.news = gone > 0
            change.remember(lambda view: view.pruned(keep_from))
        return gone

    def store_destination_metadata(self, table: TableName, metadata: DestinationMetadata) -> None:
        stored = durable(metadata)
        with self._change() as change:
            schemas.store_destination(change.connection, self._key, table, stored)
            change.remember(lambda view: view.with_destination(table, stored))

    # -- forgetting ---------------------------------------------------------------------------------------------------

    def clear_copy_state(self, table: TableName) -> None:
        with self._change() as change:
            lifecycle.clear_copy_state(change.connection, self._key, table)
            change.remember(lambda view: view.without_copy_state(table))

    def delete_table(self, table: TableName) -> None:
        with self._change() as change:
            lifecycle.delete_table(change.connection, self._key, table)
            change.remember(lambda view: view.without_table(table))

    def destroy(self) -> None:
        """The schema and its tables stay: other pipelines may live there."""
        with self._change() as change:
            change.news = False
            pipelines.destroy(change.connection, self._key)
            change.remember(lambda view: View(view.pipeline, view.revision + 1))

    # -- waiting ------------------------------------------------------------------------------------------------------

    def wait(self, timeout: float) -> bool:
        """Until others change something, or another thread does through this store. Threads wait behind one of them."""
        deadline = time.monotonic() + timeout
        known = self._view.revision
        if not self._waiting.acquire(timeout=max(timeout, 0)):
            return self._view.revision != known
        try:
            if self._view.revision != known:
                return True
            with translated(self._place, self._id):
                heard = self._listener.hear(known, deadline - time.monotonic())
            if heard is not None:
                self._catch_up(known, heard)
            return heard is not None
        finally:
            self._waiting.release()

    def close(self) -> None:
        """Let go of all connections; a wait in another thread ends within a moment."""
        self._listener.stop()
        with self._waiting:
            self._listener.disconnect()
        self._pool.dispose()

    # -- how ----------------------------------------------------------------------------------------------------------

    def _catch_up(self, known: int, heard: int) -> None:
        """Load, unless what was heard is a write of our own that the cache shows already."""
        with self._writing:
            if self._view.revision == known or self._view.revision < heard:
                self.load()

    @contextmanager
    def _statement(self) -> Iterator[Connection]:
        """For one statement that needs no transaction around it."""
        with translated(self._place, self._id), self._single.connect() as connection:
            yield connection

    @contextmanager
    def _change(self) -> Iterator[_Change]:
        """A transaction that others hear of, and its effect on the cache once it is committed."""
        with self._writing:
            with translated(self._place, self._id), self._pool.begin() as connection:
                change = _Change(connection)
                yield change
                revision = pipelines.announce(connection, self._key, self._id) if change.news else None
            view = change.effect(self._view)
            self._view = view if revision is None else view.after(revision)


def _unchanged(view: View) -> View:
    return view


@dataclass
class _Change:
    """A write under way. `news`: whether others are to hear of it."""

    connection: Connection
    news: bool = True
    effect: Callable[[View], View] = _unchanged

    def remember(self, effect: Callable[[View], View]) -> None:
        """What the cache is to show after the commit."""
        self.effect = effect
