"""The store thread, which alone uses the store for a worker's running streams, so that none of them waits for the
store.

Streams send requests. The store thread executes them in order, reads back the tables that have changed, and sends every
stream the states of those that concern it. In this way a hand-over between two streams goes back and forth within
milliseconds. A second thread, the listener, waits for what other processes write. The cost of a request depends on the
number of tables that changed, not on the number of all tables.

A request that fails because the store cannot be used is dropped without an answer (except for a ceiling, see
`CeilingRecorded`); the core sends it again.

A new generation of a table is acknowledged in the store when the last of the streams that received it has released
everything of the earlier generation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from airflow_provider_pgetl.engine.model.errors import ErrorKind, Fenced, PgetlError
from airflow_provider_pgetl.engine.model.phases import Failed, Refused, TableState
from airflow_provider_pgetl.engine.model.reports import Observer, PhaseReached
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.runtime.processes import reach
from airflow_provider_pgetl.engine.runtime.threads import THREADS, Queue, Runtime
from airflow_provider_pgetl.engine.state.decisions import TableFailure, failure_of_table, states_of
from airflow_provider_pgetl.engine.state.store import Store, TableRecord
from airflow_provider_pgetl.engine.stream.batches import Routes
from airflow_provider_pgetl.engine.stream.lease import expect_lease
from airflow_provider_pgetl.engine.stream.messages import (
    Acknowledge,
    CeilingRecorded,
    Inbox,
    RecordCeiling,
    RecordEvents,
    Verify,
)

log = logging.getLogger(__name__)

APPLY = "apply"
_POLL_SECONDS = 5.0

Request = RecordEvents | RecordCeiling | Acknowledge | Verify


@dataclass(frozen=True, slots=True)
class _Refresh:
    """A request to read back the tables that have changed, for instance because another process wrote."""


@dataclass(frozen=True, slots=True)
class _Listener:
    """A stream that receives table states. `group`: the copy attempt whose tables concern it, None for all tables.
    `held`: the new generations that the stream has received and not acknowledged: it may still hold changes of earlier
    ones."""

    group: int | None
    held: dict[TableName, int] = field(default_factory=dict)

    def is_concerned(self, *states: TableState | None) -> bool:
        return self.group is None or any(state is not None and state.attempt == self.group for state in states)


class StoreThread:
    """One per worker. `lost` is called at most once, with the error that makes the worker end."""

    def __init__(
        self,
        store: Store,
        routes: Routes,
        epoch: int,
        observer: Observer,
        lost: Callable[[PgetlError], None],
        runtime: Runtime = THREADS,
    ) -> None:
        self._store = store
        self._routes = routes
        self._epoch = epoch
        self._observer = observer
        self._lost = lost
        self._requests: Queue[tuple[Request | _Refresh, Inbox | None]] = runtime.queue()
        self._refreshing = False
        self._listeners: dict[Inbox, _Listener] = {}
        self._lock = runtime.lock()
        self._changed = store.changed_tables()
        self._states: Mapping[TableName, TableState] = states_of(store)
        self._unacknowledged = {table for table, record in store.tables().items() if _is_new(record)}
        routes.refresh(store, store.tables())
        self._over = runtime.flag()
        self._threads = [
            runtime.thread(lambda: self._guarded(self._run), "pgetl store"),
            runtime.thread(lambda: self._guarded(self._listen), "pgetl store listener"),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        self._requests.put((_Refresh(), None))
        self._threads[0].join(5.0)

    def join(self, stream: Inbox, group: int | None = None) -> Mapping[TableName, TableState]:
        """Registers the stream for the changes of all tables, or of those of its group. Returns their present states. A
        stream that has released everything and begins again calls it again."""
        with self._lock:
            stream.forget_changes()
            listener = self._listeners[stream] = _Listener(group)
            return {table: state for table, state in self._states.items() if listener.is_concerned(state)}

    def leave(self, stream: Inbox) -> None:
        with self._lock:
            del self._listeners[stream]
        self.refresh()

    def send(self, request: Request, sender: Inbox) -> None:
        self._requests.put((request, sender))

    def refresh(self) -> None:
        """Requests a read of the changed tables, unless one is queued already."""
        if not self._refreshing:
            self._refreshing = True
            self._requests.put((_Refresh(), None))

    def failure_of(self, table: TableName, error: PgetlError) -> TableFailure:
        """Returns what becomes of a table that cannot be written because of this error."""
        return failure_of_table(self._store, table, error)

    def fail(self, table: TableName, error: PgetlError) -> None:
        """Makes the table Errored, durably, in the thread of the caller. A table that has moved on stays as it is."""
        record = self._store.tables().get(table)
        if record is not None:
            why = self.failure_of(table, error)
            failed = Failed(record.state.generation, why.reason, why.solution, why.retry_policy)
            self._store.apply({table: failed}, epoch=self._epoch)
            self.refresh()

    @property
    def states(self) -> Mapping[TableName, TableState]:
        return self._states

    # -- in the store thread and the listener

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as defect:  # otherwise nothing would be recorded any more, and WAL would accumulate unnoticed
            log.exception("The store thread met a defect")
            self._end(PgetlError(ErrorKind.INTERNAL, f"The store thread failed: {defect!r}."))

    def _run(self) -> None:
        while not self._over.is_set():
            self._attend(*self._requests.get())

    def _attend(self, request: Request | _Refresh, sender: Inbox | None) -> None:
        try:
            self._do(request, sender)
        except Fenced as error:
            self._end(error)
        except PgetlError as error:
            log.warning("The store could not be used: %s", error)
            if isinstance(request, RecordCeiling) and sender is not None:
                sender.put(CeilingRecorded(None))

    def _do(self, request: Request | _Refresh, sender: Inbox | None) -> None:
        match request:
            case RecordEvents(events):
                _pass("recording", events)
                answer = self._store.apply(events, epoch=self._epoch)
                _pass("recorded", events)
                if isinstance(answer, Refused):
                    log.info("The store refused %s: %s", _words(events), answer.why)
            case RecordCeiling():
                return self._record_ceiling(request, sender)
            case Acknowledge(generations):
                return self._let_it_go(generations, sender)
            case Verify():
                expect_lease(self._store, self._epoch)
                return self._spread(asked_by=sender)
            case _Refresh():
                self._refreshing = False
        return self._spread()

    def _record_ceiling(self, ceiling: RecordCeiling, sender: Inbox | None) -> None:
        reach("ceiling.recording")
        self._store.raise_high_water(ceiling.positions)
        reach("ceiling.high_water")
        self._store.record_progress(ceiling.stream, ceiling.boundary, ceiling.seen)
        reach("ceiling.recorded")
        if sender is not None:
            sender.put(CeilingRecorded(ceiling.boundary))

    def _let_it_go(self, generations: Mapping[TableName, int], sender: Inbox | None) -> None:
        with self._lock:
            listener = self._listeners.get(sender) if sender is not None else None
            held = listener.held if listener is not None else {}
            for table, generation in generations.items():
                if held.get(table, generation + 1) <= generation:
                    del held[table]
        self._acknowledge()

    def _acknowledge(self) -> None:
        """Acknowledges in the store the new generations of tables of which no stream holds an earlier generation."""
        if not self._unacknowledged:
            return
        with self._lock:
            held = {table for listener in self._listeners.values() for table in listener.held}
        free = {t: self._states[t].generation for t in self._unacknowledged - held if t in self._states}
        if free:
            self._store.acknowledge(free)
            self._unacknowledged -= free.keys()

    def _spread(self, asked_by: Inbox | None = None) -> None:
        """Reads back the tables that have changed and sends their states to the streams. `asked_by` gets a message in
        any case, even an empty one."""
        self._store.load()
        tables = self._changed.take()
        self._routes.refresh(self._store, tables)
        records = self._store.tables()
        before = self._states
        now = {table: records[table].state if table in records else None for table in tables}
        moved = {table: state for table, state in now.items() if state != before.get(table)}
        self._note_generations(tables)
        self._tell(before, moved, asked_by)
        for table, state in moved.items():
            if state is not None:
                self._observer(PhaseReached(table, state))
        self._acknowledge()

    def _note_generations(self, tables: Iterable[TableName]) -> None:
        records = self._store.tables()
        for table in tables:
            if table in records and _is_new(records[table]):
                self._unacknowledged.add(table)
            else:
                self._unacknowledged.discard(table)

    def _tell(
        self,
        before: Mapping[TableName, TableState],
        moved: Mapping[TableName, TableState | None],
        asked_by: Inbox | None,
    ) -> None:
        with self._lock:
            if moved:
                after = {**before, **moved}
                self._states = {table: state for table, state in after.items() if state is not None}
            for stream, listener in self._listeners.items():
                concern = {t: state for t, state in moved.items() if listener.is_concerned(before.get(t), state)}
                for table, state in concern.items():
                    if state is not None and table in before and before[table].generation != state.generation:
                        listener.held[table] = state.generation
                if concern or stream is asked_by:
                    stream.tell(concern)

    def _end(self, error: PgetlError) -> None:
        if not self._over.is_set():
            self._over.set()
            self._lost(error)

    def _listen(self) -> None:
        while not self._over.is_set():
            try:
                self._store.wait(_POLL_SECONDS)
            except PgetlError as error:
                log.warning("The store could not be listened to: %s", error)
                self._over.wait(1.0)
            self.refresh()


def _is_new(record: TableRecord) -> bool:
    return record.acknowledged < record.state.generation


def _pass(name: str, events: Mapping[TableName, object]) -> None:
    """Reaches the failpoints `recording.CameNear`, `recorded.CaughtUp` and so on, once for each kind of event."""
    for kind in sorted({type(event).__name__ for event in events.values()}):
        reach(f"{name}.{kind}")


def _words(events: Mapping[TableName, object]) -> str:
    return ", ".join(f"{type(event).__name__} of {table}" for table, event in events.items())
