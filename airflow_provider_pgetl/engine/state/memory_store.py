"""The store in the memory of one process: for throw-away runs, and for the deterministic simulation.

A `MemoryDatabase` is the durable side: it outlives the store objects that are opened on it, as a server outlives its
clients, so that a simulated crash is a dropped store and a restart is a new store on the same database. A `MemoryStore`
caches like the Postgres store and is as stale, so that code which works only with a fresh cache fails here too.

Time comes from the database's clock. With a clock that is given, time passes only when its driver advances it; then
`wait` never blocks, and one thread can drive any number of stores.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from airflow_provider_pgetl.engine.model.phases import Event, Refused, TableState
from airflow_provider_pgetl.engine.model.positions import Boundary, HighWater, Lineage, Seen
from airflow_provider_pgetl.engine.model.results import RESOLUTIONS, Lease, Measurement, Resolution
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema
from airflow_provider_pgetl.engine.model.verification import TableVerified
from airflow_provider_pgetl.engine.state.store import (
    DIFFERING_KEPT,
    DestinationMetadata,
    FoundTable,
    HistoryEntry,
    Lag,
    PipelineRecord,
    Registration,
    TableRecord,
    destroyed,
    new_instance,
    restored,
)
from airflow_provider_pgetl.engine.state.view import (
    HISTORY_KEPT,
    CachedReads,
    View,
    durable,
    superseded,
    take,
    take_each,
)

Clock = Callable[[], float]


@dataclass
class _Durable:
    """What is stored of one pipeline. `view` holds everything that store objects cache; the rest is read directly."""

    view: View
    history: dict[TableName, list[HistoryEntry]] = field(default_factory=dict)
    progress: dict[str, Seen] = field(default_factory=dict)
    lease: Lease | None = None
    lag: Lag | None = None
    measured: dict[Resolution, dict[int, Measurement]] = field(default_factory=dict)
    verified: dict[TableName, list[TableVerified]] = field(default_factory=dict)
    attempts: dict[int, float] = field(default_factory=dict)
    holders: dict[int, str] = field(default_factory=dict)
    completions: dict[str, dict[str, float]] = field(default_factory=dict)
    announced: dict[TableName, tuple[str, str]] = field(default_factory=dict)
    recorded: dict[tuple[TableName, Boundary], float] = field(default_factory=dict)
    last_attempt: int = 0
    last_generation: int = 0
    destroyed: bool = False

    def destroy(self) -> None:
        """Empties the state in place, so that every store object that refers to it finds nothing."""
        self.view = View(self.view.pipeline, self.view.revision + 1)
        self.history, self.progress, self.attempts, self.completions, self.announced = {}, {}, {}, {}, {}
        self.lease = self.lag = None
        self.measured, self.verified = {}, {}
        self.destroyed = True


class MemoryDatabase:
    """The durable side that the stores of any number of pipelines share."""

    def __init__(self, clock: Clock | None = None, instances: Callable[[], str] = new_instance) -> None:
        self.clock = clock or time.time
        self.driven = clock is not None
        self.changed = threading.Condition(threading.RLock())
        self._instances = instances
        self._pipelines: dict[str, _Durable] = {}

    def pipeline(self, pipeline_id: str) -> _Durable:
        """Returns the pipeline's state, which is created at its first use and again after it was destroyed."""
        with self.changed:
            durable = self._pipelines.get(pipeline_id)
            if durable is None or durable.destroyed:
                durable = _Durable(View(PipelineRecord(pipeline_id, self._instances())))
                self._pipelines[pipeline_id] = durable
            return durable

    def instances(self) -> dict[str, str]:
        with self.changed:
            stored = {name: one for name, one in self._pipelines.items() if not one.destroyed}
            return {name: one.view.pipeline.instance for name, one in stored.items()}


class MemoryStore(CachedReads):
    """`Store` over a `MemoryDatabase`; without one it creates its own, which no other store uses."""

    def __init__(self, pipeline_id: str, database: MemoryDatabase | None = None) -> None:
        self._database = database or MemoryDatabase()
        self._durable = self._database.pipeline(pipeline_id)
        self._view = self._durable.view
        self._closed = False

    def load(self) -> int:
        with self._database.changed:
            self._expect_the_same()
            self._show(self._durable.view, _differing(self._view, self._durable.view))
            return len(self._view.tables)

    def instances(self) -> Mapping[str, str]:
        return self._database.instances()

    # -- phases -------------------------------------------------------------------------------------------------------

    def record_lineage(self, lineage: Lineage) -> None:
        with self._writing():
            self._both(lambda view: view.with_pipeline(lineage=lineage))

    def set_owner(self, owner: str | None, *, instead_of: str | None) -> bool:
        with self._writing():
            if self._durable.view.pipeline.owner != instead_of:
                return False
            self._both(lambda view: view.with_pipeline(owner=owner))
            return True

    def set_paused(self, paused: bool) -> None:
        with self._writing():
            since = self._durable.view.pipeline.paused
            now = (since if since is not None else self.now()) if paused else None
            self._both(lambda view: view.with_pipeline(paused=now))

    def register_all(self, tables: Mapping[TableName, Registration]) -> Mapping[TableName, TableRecord]:
        with self._writing():
            records = {table: self._register(table, given) for table, given in tables.items()}
            self._keep(list(records.values()))
            return records

    def _register(self, table: TableName, given: Registration) -> TableRecord:
        stored = self._durable.view.tables.get(table)
        before = stored or TableRecord(table, TableState(generation=self._durable.last_generation + 1))
        if stored is None:
            self._remember(table, before.state)
        noted = given.selection or before.selection
        return replace(before, relation=given.relation, membership=given.membership, selection=noted)

    def apply(
        self, events: Mapping[TableName, Event], *, epoch: int | None = None
    ) -> Mapping[TableName, TableState] | Refused:
        with self._database.changed:
            self._refuse_if_set_back()
            refused = superseded(self._durable.view.pipeline.epoch, epoch)
            if refused is not None:
                return refused
            stored = self._durable.view.tables
            taken = take({table: stored[table].state for table in events if table in stored}, events)
            if not isinstance(taken, Refused):
                self._move(taken)
            return taken

    def apply_each(
        self, events: Mapping[TableName, Event], *, epoch: int | None = None
    ) -> Mapping[TableName, TableState | Refused]:
        with self._database.changed:
            self._refuse_if_set_back()
            refused = superseded(self._durable.view.pipeline.epoch, epoch)
            if refused is not None:
                return dict.fromkeys(events, refused)
            stored = self._durable.view.tables
            taken = take_each({table: stored[table].state for table in events if table in stored}, events)
            self._move({table: state for table, state in taken.items() if not isinstance(state, Refused)})
            return taken

    def _move(self, states: Mapping[TableName, TableState]) -> None:
        stored = self._durable.view.tables
        changed = [table for table, state in states.items() if state != stored[table].state]
        for table in changed:
            self._remember(table, states[table])
        self._keep([replace(stored[table], state=state) for table, state in states.items()])
        if changed:
            self._announce()

    def history(self, table: TableName) -> Sequence[HistoryEntry]:
        with self._database.changed:
            return tuple(self._durable.history.get(table, ()))

    def since(self) -> Mapping[TableName, float]:
        with self._database.changed:
            return {table: entries[-1].at for table, entries in self._durable.history.items()}

    def acknowledge(self, generations: Mapping[TableName, int]) -> None:
        with self._database.changed:
            self._refuse_if_set_back()
            before = self._durable.view.tables
            self._both(lambda view: view.with_acknowledged(generations))
            if self._durable.view.tables != before:
                self._announce()

    # -- progress -----------------------------------------------------------------------------------------------------

    def raise_high_water(self, positions: Mapping[TableName, HighWater]) -> None:
        with self._database.changed:
            self._refuse_if_set_back()
            self._both(lambda view: view.with_high_water(positions))

    def progress(self, worker: str) -> Boundary | None:
        with self._database.changed:
            stored = self._durable.progress.get(worker)
            return None if stored is None else stored.upto

    def seen(self) -> Mapping[str, Seen]:
        with self._database.changed:
            return dict(self._durable.progress)

    def record_progress(self, worker: str, boundary: Boundary, seen: Seen | None = None) -> Boundary:
        with self._database.changed:
            self._expect_the_same()
            stored = self._durable.progress.get(worker)
            if stored is None or boundary > stored.upto:
                stored = self._durable.progress[worker] = seen or Seen(boundary, boundary)
            return stored.upto

    def delete_progress(self, worker: str) -> None:
        with self._database.changed:
            self._durable.progress.pop(worker, None)

    def now(self) -> float:
        return self._database.clock()

    # -- leases -------------------------------------------------------------------------------------------------------

    def acquire_lease(self, holder: str, ttl: float, *, over: int | None = None) -> Lease | None:
        with self._database.changed:
            self._expect_the_same()
            held = self.lease()
            if held is not None and held.holder != holder and held.epoch != over:
                return None
            epoch = self._next_epoch()
            self._durable.lease = Lease(holder, epoch, self._database.clock() + ttl)
            self._announce()
            return self._durable.lease

    def renew_lease(self, epoch: int, ttl: float) -> bool:
        with self._database.changed:
            lease = self._durable.lease
            if lease is None or lease.epoch != epoch:
                return False
            self._durable.lease = replace(lease, expires=self._database.clock() + ttl)
            return True

    def release_lease(self, epoch: int) -> None:
        with self._database.changed:
            if self._durable.lease is not None and self._durable.lease.epoch == epoch:
                self._durable.lease = None
                self._announce()

    def lease(self) -> Lease | None:
        with self._database.changed:
            lease = self._durable.lease
            return lease if lease and lease.expires > self._database.clock() else None

    def raise_epoch(self) -> int:
        with self._writing():
            self._durable.lease = None
            return self._next_epoch()

    def record_lag(self, lag_bytes: int, seconds: float) -> None:
        with self._database.changed:
            self._refuse_if_destroyed()
            self._durable.lag = Lag(lag_bytes, seconds, self._database.clock())

    def lag(self) -> Lag | None:
        with self._database.changed:
            return self._durable.lag

    def record_measurement(self, measurement: Measurement) -> None:
        with self._database.changed:
            self._refuse_if_destroyed()
            now = self._database.clock()
            for resolution in RESOLUTIONS:
                spans = self._durable.measured.setdefault(resolution, {})
                span = int(now // resolution.seconds)
                known = spans.get(span, Measurement())
                spans[span] = known.joined(replace(measurement, at=(span + 1.0) * resolution.seconds))
                for old in [one for one in spans if one < span - resolution.kept // resolution.seconds]:
                    del spans[old]

    def measurements(self, resolution: Resolution) -> Sequence[Measurement]:
        with self._database.changed:
            spans = self._durable.measured.get(resolution, {})
            return [spans[span] for span in sorted(spans)]

    def record_verified(self, results: Sequence[TableVerified]) -> None:
        with self._database.changed:
            self._refuse_if_destroyed()
            for result in results:
                if result.table in self._durable.view.tables:
                    kept = self._durable.verified.get(result.table, [])
                    differing = [one for one in kept if one.verdict == "different"]
                    self._durable.verified[result.table] = [*differing[-DIFFERING_KEPT:], result]

    def verifications(self, table: TableName) -> Sequence[TableVerified]:
        with self._database.changed:
            return list(self._durable.verified.get(table, ()))

    def last_verified(self) -> Mapping[TableName, TableVerified]:
        with self._database.changed:
            return {table: replace(kept[-1], differences=()) for table, kept in self._durable.verified.items()}

    def start_attempt(self, ttl: float, holder: str = "") -> int:
        with self._writing():
            now = self._database.clock()
            alive = {attempt: expires for attempt, expires in self._durable.attempts.items() if expires > now}
            self._durable.last_attempt += 1
            self._durable.attempts = {**alive, self._durable.last_attempt: now + ttl}
            living = {attempt: self._durable.holders[attempt] for attempt in alive}
            self._durable.holders = {**living, self._durable.last_attempt: holder}
            return self._durable.last_attempt

    def beat_attempt(self, attempt: int, ttl: float) -> bool:
        with self._database.changed:
            alive = attempt in self.live_attempts()
            if alive:
                self._durable.attempts[attempt] = self._database.clock() + ttl
            return alive

    def end_attempt(self, attempt: int) -> None:
        with self._database.changed:
            if self._durable.attempts.pop(attempt, None) is not None:
                self._announce()

    def last_attempt(self) -> int:
        with self._database.changed:
            return self._durable.last_attempt

    def live_attempts(self) -> frozenset[int]:
        with self._database.changed:
            now = self._database.clock()
            return frozenset(attempt for attempt, expires in self._durable.attempts.items() if expires > now)

    def attempt_holders(self) -> Mapping[int, str]:
        with self._database.changed:
            return {attempt: self._durable.holders[attempt] for attempt in self.live_attempts()}

    # -- completions --------------------------------------------------------------------------------------------------

    def record_completions(self, run: str, tasks: Collection[str]) -> None:
        with self._database.changed:
            self._refuse_if_destroyed()
            self._durable.completions.setdefault(run, {}).update(dict.fromkeys(tasks, self._database.clock()))

    def completions(self, run: str) -> Mapping[str, float]:
        with self._database.changed:
            return dict(self._durable.completions.get(run, {}))

    def record_announced(self, run: str, positions: Mapping[TableName, str]) -> None:
        with self._database.changed:
            self._refuse_if_destroyed()
            self._durable.announced |= {table: (run, at) for table, at in positions.items()}

    def announced(self, run: str) -> Mapping[TableName, str]:
        with self._database.changed:
            return {table: at for table, (of, at) in self._durable.announced.items() if of != run}

    # -- schemas and destination --------------------------------------------------------------------------------------

    def store_schema(self, table: TableName, valid_from: Boundary, schema: TableSchema) -> None:
        with self._writing():
            self._durable.recorded.setdefault((table, valid_from), self._database.clock())
            self._both(lambda view: view.with_schema(table, valid_from, schema))

    def schemas_recorded(self, table: TableName) -> Mapping[Boundary, float | None]:
        with self._database.changed:
            versions = self._durable.view.schemas.get(table, {})
            return {start: self._durable.recorded.get((table, start)) for start in versions}

    def forget_schemas(self, table: TableName, valid_from: Collection[Boundary]) -> None:
        with self._writing():
            self._both(lambda view: view.without_schemas(table, valid_from))

    def store_places(self, places: Mapping[TableName, DestinationMetadata]) -> None:
        stored = {table: durable(metadata) for table, metadata in places.items()}
        with self._writing():
            self._both(lambda view: view.with_destinations(stored))

    # -- forgetting ---------------------------------------------------------------------------------------------------

    def clear_copy_state(self, table: TableName) -> None:
        with self._writing():
            self._both(lambda view: view.without_copy_state(table))

    def begin_copies(self, found: Mapping[TableName, FoundTable]) -> None:
        stored = {table: replace(one, place=durable(one.place)) for table, one in found.items()}
        with self._writing():
            known = self._durable.view.tables
            begun = {table: one for table, one in stored.items() if table in known}
            self._keep([known[table] for table in begun])
            now = self._database.clock()
            self._durable.recorded |= {(table, one.valid_from): now for table, one in begun.items()}
            self._both(lambda view: view.with_found(begun))

    def delete_table(self, table: TableName) -> None:
        """Also records the generation, so that nothing of the deleted table is mistaken for that of a table which is
        added again under its name."""
        with self._writing():
            record = self._durable.view.tables.get(table)
            if record is not None:
                self._durable.last_generation = max(self._durable.last_generation, record.state.generation)
            self._durable.history.pop(table, None)
            self._durable.verified.pop(table, None)
            self._both(lambda view: view.without_table(table))

    def destroy(self) -> None:
        with self._database.changed:
            self._durable.destroy()
            self._show(self._durable.view, self._view.names)
            self._database.changed.notify_all()

    # -- waiting ------------------------------------------------------------------------------------------------------

    def wait(self, timeout: float) -> bool:
        """Waits until another store changes something, or another thread does through this store."""
        with self._database.changed:
            known = self._view.revision
            self._database.changed.wait_for(
                lambda: self._closed or self._durable.view.revision != known,
                0 if self._database.driven else timeout,
            )
            if self._durable.view.revision == known:
                return False
            self.load()
            return True

    def close(self) -> None:
        """Ends the waits of all threads, which is all that a store holds; the database stays."""
        with self._database.changed:
            self._closed = True
            self._database.changed.notify_all()

    # -- how ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A change of which others are notified, if it succeeds."""
        with self._database.changed:
            self._expect_the_same()
            yield
            self._announce()

    def _announce(self) -> None:
        revision, change = self._durable.view.revision + 1, self._durable.view.change + 1
        self._both(lambda view: view.after(revision, change))
        self._database.changed.notify_all()

    def _both(self, change: Callable[[View], View]) -> None:
        """Changes the durable side, then the cache."""
        self._durable.view = change(self._durable.view)
        view = change(self._view)
        self._show(view, _differing(self._view, view))

    def _keep(self, records: Sequence[TableRecord]) -> None:
        self._both(lambda view: view.with_tables(records))

    def _remember(self, table: TableName, state: TableState) -> None:
        entries = self._durable.history.setdefault(table, [])
        entries.append(HistoryEntry(state, self._database.clock()))
        del entries[:-HISTORY_KEPT]

    def _next_epoch(self) -> int:
        epoch = self._durable.view.pipeline.epoch + 1
        self._both(lambda view: view.with_pipeline(epoch=epoch))
        return epoch

    def _expect_the_same(self) -> None:
        """Raises an error if the state was destroyed or set back since it was read."""
        self._refuse_if_destroyed()
        self._refuse_if_set_back()

    def _refuse_if_set_back(self) -> None:
        """A destroyed state has no changes either; it is reported as destroyed, not as set back."""
        if not self._durable.destroyed and self._durable.view.change < self._view.change:
            raise restored(self._view.pipeline.id)

    def _refuse_if_destroyed(self) -> None:
        if self._durable.destroyed:
            raise destroyed(self._view.pipeline.id)


def _differing(before: View, after: View) -> set[TableName]:
    """Returns the tables that the two views show differently."""
    found: set[TableName] = set()
    for was, now in (
        (before.tables, after.tables),
        (before.schemas, after.schemas),
        (before.destinations, after.destinations),
    ):
        if was is not now:
            found.update(table for table in was.keys() | now.keys() if was.get(table) != now.get(table))
    return found
