"""The store in Postgres: SQLAlchemy Core over psycopg, in the schema `pgetl` of the database that the URI names.

The statements are in `sql`, the decisions in `view`; this module adds transactions, the cache, and the translation of
errors into `PgetlError`.

* Each method is one transaction, or one statement in autocommit. Nothing is retried: after an error it is unknown what
  took effect, and everything may be sent again. The pool replaces broken connections, so a store recovers by itself.
* Writes of one store object to what is cached are serialised by a lock that is held from before the statement until
  after the update of the cache, so that a slow `load` cannot overwrite a newer write. Reads, heartbeats and progress do
  not wait for it.
* Other processes are notified of a write by NOTIFY at its commit; but not of heartbeats, progress and high-water marks,
  which are frequent and which no process waits for.

The store does not remember that a server failed, does not back off, and does not answer from its cache in place of the
server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Self

from sqlalchemy import Connection

from airflow_provider_pgetl.engine.model.phases import Event, Refused, TableState
from airflow_provider_pgetl.engine.model.positions import Boundary, HighWater, Lineage, Seen
from airflow_provider_pgetl.engine.model.results import Lease, Measurement, Resolution
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema
from airflow_provider_pgetl.engine.model.verification import TableVerified
from airflow_provider_pgetl.engine.state.sql import loading, pipelines, verifications
from airflow_provider_pgetl.engine.state.sql import table_states as sql_tables
from airflow_provider_pgetl.engine.state.sql.loading import Listener
from airflow_provider_pgetl.engine.state.state_database import (
    STATE_DATABASE,
    StateDatabase,
    StoreClock,
    migrate,
    translated,
)
from airflow_provider_pgetl.engine.state.store import (
    DestinationMetadata,
    FoundTable,
    HistoryEntry,
    Lag,
    PipelineRecord,
    Registration,
    TableRecord,
    destroyed,
    restored,
)
from airflow_provider_pgetl.engine.state.view import CachedReads, View, durable


def is_stored(uri: str, pipeline_id: str, role: str = STATE_DATABASE) -> bool:
    """Returns whether the database has a row of the pipeline; nothing is created or migrated."""
    place = StateDatabase.parse(uri, role)
    with translated(place), closing(place.connect(f"pgetl {pipeline_id} look")) as connection:
        return pipelines.is_stored(connection, pipeline_id)


class PostgresStore(CachedReads):
    """`Store` over a database in which the tables exist; `open` creates them."""

    def __init__(self, uri: str, pipeline_id: str, role: str = STATE_DATABASE) -> None:
        self._id = pipeline_id
        self._place = StateDatabase.parse(uri, role)
        name = f"pgetl {pipeline_id} store"
        self._pool = self._place.pool(name)
        self._single = self._pool.execution_options(isolation_level="AUTOCOMMIT")
        self._snapshots = self._pool.execution_options(isolation_level="REPEATABLE READ")
        self._writing = threading.RLock()
        self._waiting = threading.Lock()
        self._view = View(PipelineRecord(pipeline_id, ""))
        self._incarnation = ""
        try:
            with self._statement() as connection:
                self._key = pipelines.find_or_create(connection, pipeline_id)
            self._clock = StoreClock(self._read_clock)
            self._listener = Listener(lambda: self._place.connect(name), self._key)
            self.load()
        except BaseException:
            self._pool.dispose()
            raise

    @classmethod
    def open(cls, uri: str, pipeline_id: str, role: str = STATE_DATABASE) -> Self:
        """Returns a store after migrating the database if necessary. The pipeline's row is created at first use, and
        the cache is filled."""
        migrate(uri, role)
        return cls(uri, pipeline_id, role)

    def load(self) -> int:
        with self._writing, translated(self._place, self._id):
            if not self._is_up_to_date():
                with self._snapshots.begin() as connection:
                    self._read(connection)
            return len(self._view.tables)

    def _is_up_to_date(self) -> bool:
        with self._single.connect() as connection:
            row = loading.head(connection, self._key)
        if row is None:
            raise destroyed(self._id)
        known = (self._incarnation, self._view.revision, self._view.change)
        return (row.incarnation, row.revision, row.changes) == known

    def _read(self, connection: Connection) -> None:
        """Reads what has changed. Where the server was restarted, or its tables were created anew, they may now hold
        another history; then nothing that was read before is used."""
        row = loading.head(connection, self._key)
        if row is None:
            raise destroyed(self._id)
        if row.changes < self._view.change:
            raise restored(self._id)
        if row.incarnation == self._incarnation:
            self._show(*loading.brought_up(connection, self._key, row, self._view))
            return
        view = loading.view(connection, self._key, row)
        self._incarnation = row.incarnation
        self._show(view, self._view.names | view.names)

    def instances(self) -> Mapping[str, str]:
        with self._statement() as connection:
            return pipelines.instances(connection)

    # -- phases -------------------------------------------------------------------------------------------------------

    def record_lineage(self, lineage: Lineage) -> None:
        with self._change() as change:
            pipelines.record_lineage(change.connection, self._key, lineage)
            change.remember(lambda view: view.with_pipeline(lineage=lineage))

    def set_owner(self, owner: str | None, *, instead_of: str | None) -> bool:
        with self._change() as change:
            if not pipelines.set_owner(change.connection, self._key, owner, instead_of):
                change.notifies = False
                pipelines.require(change.connection, self._key, self._id)
                return False
            change.remember(lambda view: view.with_pipeline(owner=owner))
        return True

    def set_paused(self, paused: bool) -> None:
        with self._change() as change:
            since = pipelines.set_paused(change.connection, self._key, paused)
            change.remember(lambda view: view.with_pipeline(paused=since))

    def register_all(self, tables: Mapping[TableName, Registration]) -> Mapping[TableName, TableRecord]:
        with self._change() as change:
            change.of(sql_tables.register(change.connection, self._key, tables))
            records = list(loading.records(change.connection, self._key, tables))
            change.remember(lambda view: view.with_tables(records))
        return {record.table: record for record in records}

    def apply(
        self, events: Mapping[TableName, Event], *, epoch: int | None = None
    ) -> Mapping[TableName, TableState] | Refused:
        with self._change() as change:
            before, taken = sql_tables.apply(change.connection, self._key, events, epoch)
            if isinstance(taken, Refused):
                change.notifies = False
                return taken
            change.moved(before, taken)
        return taken

    def apply_each(
        self, events: Mapping[TableName, Event], *, epoch: int | None = None
    ) -> Mapping[TableName, TableState | Refused]:
        with self._change() as change:
            before, taken = sql_tables.apply_each(change.connection, self._key, events, epoch)
            change.moved(before, {t: state for t, state in taken.items() if not isinstance(state, Refused)})
        return taken

    def history(self, table: TableName) -> Sequence[HistoryEntry]:
        with self._statement() as connection:
            return loading.history_of(connection, self._key, table)

    def since(self) -> Mapping[TableName, float]:
        with self._statement() as connection:
            return loading.since(connection, self._key)

    def acknowledge(self, generations: Mapping[TableName, int]) -> None:
        with self._change() as change:
            change.of(sql_tables.acknowledge(change.connection, self._key, generations))
            change.remember(lambda view: view.with_acknowledged(generations))

    # -- progress -----------------------------------------------------------------------------------------------------

    def raise_high_water(self, positions: Mapping[TableName, HighWater]) -> None:
        with self._change() as change:
            change.of(sql_tables.raise_high_water(change.connection, self._key, positions))
            change.notifies = False
            change.remember(lambda view: view.with_high_water(positions))

    def progress(self, worker: str) -> Boundary | None:
        with self._statement() as connection:
            return pipelines.read_progress(connection, self._key, worker)

    def seen(self) -> Mapping[str, Seen]:
        with self._statement() as connection:
            return pipelines.read_all_progress(connection, self._key)

    def record_progress(self, worker: str, boundary: Boundary, seen: Seen | None = None) -> Boundary:
        """Raises an error if the state was set back since it was read: tables there may be before this progress."""
        with self._writing, translated(self._place, self._id), self._pool.begin() as connection:
            if pipelines.changes(connection, self._key, self._id) < self._view.change:
                raise restored(self._id)
            return pipelines.record_progress(connection, self._key, worker, seen or Seen(boundary, boundary))

    def delete_progress(self, worker: str) -> None:
        with self._statement() as connection:
            pipelines.forget_progress(connection, self._key, worker)

    def now(self) -> float:
        return self._clock.now()

    def _read_clock(self) -> float:
        with self._statement() as connection:
            return pipelines.read_clock(connection)

    # -- leases -------------------------------------------------------------------------------------------------------

    def acquire_lease(self, holder: str, ttl: float, *, over: int | None = None) -> Lease | None:
        with self._change() as change:
            lease = pipelines.acquire_lease(change.connection, self._key, holder, ttl, over)
            if lease is None:
                change.notifies = False
                pipelines.require(change.connection, self._key, self._id)
                return None
            change.remember(lambda view: view.with_pipeline(epoch=lease.epoch))
        return lease

    def renew_lease(self, epoch: int, ttl: float) -> bool:
        with self._statement() as connection:
            return pipelines.renew_lease(connection, self._key, epoch, ttl)

    def release_lease(self, epoch: int) -> None:
        with self._change() as change:
            change.notifies = pipelines.release_lease(change.connection, self._key, epoch)

    def lease(self) -> Lease | None:
        with self._statement() as connection:
            return pipelines.read_lease(connection, self._key)

    def raise_epoch(self) -> int:
        with self._change() as change:
            pipelines.require(change.connection, self._key, self._id)
            epoch = pipelines.raise_epoch(change.connection, self._key)
            change.remember(lambda view: view.with_pipeline(epoch=epoch))
        return epoch

    def record_lag(self, lag_bytes: int, seconds: float) -> None:
        with self._statement() as connection:
            pipelines.record_lag(connection, self._key, lag_bytes, seconds)

    def lag(self) -> Lag | None:
        with self._statement() as connection:
            return pipelines.read_lags(connection, self._key)

    def record_measurement(self, measurement: Measurement) -> None:
        with self._statement() as connection:
            pipelines.record_measurement(connection, self._key, measurement)

    def measurements(self, resolution: Resolution) -> Sequence[Measurement]:
        with self._statement() as connection:
            return pipelines.read_measurements(connection, self._key, resolution)

    def start_attempt(self, ttl: float, holder: str = "") -> int:
        with self._change() as change:
            pipelines.require(change.connection, self._key, self._id)
            return sql_tables.start_attempt(change.connection, self._key, ttl, holder)

    def beat_attempt(self, attempt: int, ttl: float) -> bool:
        with self._statement() as connection:
            return sql_tables.beat_attempt(connection, self._key, attempt, ttl)

    def end_attempt(self, attempt: int) -> None:
        with self._change() as change:
            change.notifies = sql_tables.end_attempt(change.connection, self._key, attempt)

    def last_attempt(self) -> int:
        with self._statement() as connection:
            return sql_tables.last_attempt(connection, self._key)

    def live_attempts(self) -> frozenset[int]:
        with self._statement() as connection:
            return frozenset(sql_tables.living_attempts(connection, self._key))

    def attempt_holders(self) -> Mapping[int, str]:
        with self._statement() as connection:
            return sql_tables.living_attempts(connection, self._key)

    # -- completions --------------------------------------------------------------------------------------------------

    def record_completions(self, run: str, tasks: Collection[str]) -> None:
        with self._change() as change:
            change.notifies = False
            pipelines.record_completions(change.connection, self._key, run, tasks)

    def completions(self, run: str) -> Mapping[str, float]:
        with self._statement() as connection:
            return pipelines.read_completions(connection, self._key, run)

    def record_announced(self, run: str, positions: Mapping[TableName, str]) -> None:
        with self._statement() as connection:
            pipelines.record_announced(connection, self._key, run, positions)

    def announced(self, run: str) -> Mapping[TableName, str]:
        with self._statement() as connection:
            return pipelines.read_announced(connection, self._key, run)

    # -- verifications ------------------------------------------------------------------------------------------------

    def record_verified(self, results: Sequence[TableVerified]) -> None:
        with translated(self._place, self._id), self._pool.begin() as connection:
            verifications.record(connection, self._key, results)

    def verifications(self, table: TableName) -> Sequence[TableVerified]:
        with self._statement() as connection:
            return verifications.kept(connection, self._key, table)

    def last_verified(self) -> Mapping[TableName, TableVerified]:
        with self._statement() as connection:
            return verifications.newest(connection, self._key)

    # -- schemas and destination --------------------------------------------------------------------------------------

    def store_schema(self, table: TableName, valid_from: Boundary, schema: TableSchema) -> None:
        with self._change() as change:
            sql_tables.store_schema(change.connection, self._key, table, valid_from, schema)
            change.of([table], described=True)
            change.remember(lambda view: view.with_schema(table, valid_from, schema))

    def schemas_recorded(self, table: TableName) -> Mapping[Boundary, float | None]:
        with self._statement() as connection:
            return loading.schemas_recorded(connection, self._key, table)

    def forget_schemas(self, table: TableName, valid_from: Collection[Boundary]) -> None:
        with self._change() as change:
            sql_tables.forget_schemas(change.connection, self._key, table, valid_from)
            change.of([table], described=True)
            change.remember(lambda view: view.without_schemas(table, valid_from))

    def store_places(self, places: Mapping[TableName, DestinationMetadata]) -> None:
        stored = {table: durable(metadata) for table, metadata in places.items()}
        with self._change() as change:
            sql_tables.store_destinations(change.connection, self._key, stored)
            change.of(stored, described=True)
            change.remember(lambda view: view.with_destinations(stored))

    # -- forgetting ---------------------------------------------------------------------------------------------------

    def clear_copy_state(self, table: TableName) -> None:
        with self._change() as change:
            sql_tables.clear_copy_state(change.connection, self._key, table)
            change.of([table], described=True)
            change.remember(lambda view: view.without_copy_state(table))

    def begin_copies(self, found: Mapping[TableName, FoundTable]) -> None:
        stored = {table: replace(one, place=durable(one.place)) for table, one in found.items()}
        with self._change() as change:
            known = sql_tables.begin_copies(change.connection, self._key, stored)
            change.of(known, described=True)
            records = list(loading.records(change.connection, self._key, known))
            begun = {table: stored[table] for table in known}
            change.remember(lambda view: view.with_tables(records).with_found(begun))

    def delete_table(self, table: TableName) -> None:
        with self._change() as change:
            sql_tables.delete_table(change.connection, self._key, table)
            change.of([table], described=True)
            change.remember(lambda view: view.without_table(table))

    def destroy(self) -> None:
        """The schema and its tables stay: they may hold other pipelines."""
        with self._change() as change:
            change.notifies = False
            pipelines.destroy(change.connection, self._key)
            change.remember(lambda view: View(view.pipeline, view.revision + 1))

    # -- waiting ------------------------------------------------------------------------------------------------------

    def wait(self, timeout: float) -> bool:
        """Waits until another process changes something, or another thread does through this store. One thread listens;
        the others wait for it."""
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
        """Closes all connections; a `wait` in another thread ends within a moment."""
        self._listener.stop()
        with self._waiting:
            self._listener.disconnect()
        self._pool.dispose()

    # -- how ----------------------------------------------------------------------------------------------------------

    def _catch_up(self, known: int, heard: int) -> None:
        """Loads, unless what was heard is a write of this store that the cache already shows."""
        with self._writing:
            if self._view.revision == known or self._view.revision < heard:
                self.load()

    @contextmanager
    def _statement(self) -> Iterator[Connection]:
        """Yields a connection for one statement that needs no transaction around it."""
        with translated(self._place, self._id), self._single.connect() as connection:
            yield connection

    @contextmanager
    def _change(self) -> Iterator[_Change]:
        """Yields a transaction of which others are notified, and updates the cache once it is committed."""
        with self._writing:
            with translated(self._place, self._id), self._pool.begin() as connection:
                change = _Change(connection)
                yield change
                made = self._conclude(change)
            view = change.effect(self._view)
            if made is not None and made.incarnation == self._incarnation:
                view = view.after(made.revision, made.change)
            self._show(view, change.tables)

    def _conclude(self, change: _Change) -> pipelines.Made | None:
        """Numbers the change; returns None if it concerns nothing that is cached. Raises an error if the state was set
        back since it was read, so that it takes no write of this store."""
        if not change.notifies and not change.tables:
            return None
        made = pipelines.conclude(
            change.connection, self._key, self._id, change.tables, described=change.described, notifies=change.notifies
        )
        if made.change <= self._view.change:
            raise restored(self._id)
        return made


def _unchanged(view: View) -> View:
    return view


@dataclass
class _Change:
    """A write under way. `notifies`: whether others are notified of it. `tables` are those whose record it changes,
    and, if `described`, also their schemas or their place in the destination."""

    connection: Connection
    notifies: bool = True
    tables: Collection[TableName] = ()
    described: bool = False
    effect: Callable[[View], View] = _unchanged

    def of(self, tables: Collection[TableName], *, described: bool = False) -> None:
        """Sets the tables that it changes. Others are notified if there are any."""
        self.tables, self.described, self.notifies = tables, described, bool(tables)

    def moved(self, before: Mapping[TableName, TableRecord], states: Mapping[TableName, TableState]) -> None:
        """Sets the tables that have moved from these records to these states."""
        after = [replace(before[table], state=state) for table, state in states.items()]
        self.of([record.table for record in after if record != before[record.table]])
        self.remember(lambda view: view.with_tables(after))

    def remember(self, effect: Callable[[View], View]) -> None:
        """Sets what the cache is to show after the commit."""
        self.effect = effect
