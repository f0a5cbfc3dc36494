"""The one thread of a worker that talks to the store, so that no stream ever waits for it.

Streams hand over what they want recorded; the desk does it in order, reads the tables back, and sends the news to every
stream: that is how a hand-over between two streams goes forth and back in milliseconds. A second thread waits for
what others write.

The desk also keeps the lease. It renews it long before it ends, and stops the worker at once when the lease has gone to
another epoch, or when the store has been away for as long as the lease lasts: from then on somebody else may own it.

A record that fails for want of the store is dropped here, unanswered; the core sends it again.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from airflow_provider_pgetl.engine.errors import Fenced, PgetlError
from airflow_provider_pgetl.engine.failpoints import reach
from airflow_provider_pgetl.engine.phases import Refused, TableState
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.reports import Observer, PhaseReached
from airflow_provider_pgetl.engine.state.protocol import Store
from airflow_provider_pgetl.engine.sync.commands import Acknowledge, Record, RecordCeiling, Verify
from airflow_provider_pgetl.engine.sync.mail import CeilingRecorded, Mailbox, News
from airflow_provider_pgetl.engine.sync.routes import Routes
from airflow_provider_pgetl.engine.tables import TableName

log = logging.getLogger(__name__)

APPLY = "apply"
CEILING = "ceiling"
_POLL_SECONDS = 5.0

Errand = Record | RecordCeiling | Acknowledge | Verify


@dataclass(frozen=True, slots=True)
class _Refresh:
    """Somebody else wrote."""


class Desk:
    """One per worker. `lost` is called, once, when the worker must end."""

    def __init__(
        self,
        store: Store,
        routes: Routes,
        epoch: int,
        ttl: float,
        observer: Observer,
        lost: Callable[[PgetlError], None],
    ) -> None:
        self._store = store
        self._routes = routes
        self._epoch = epoch
        self._ttl = ttl
        self._observer = observer
        self._lost = lost
        self._errands: queue.SimpleQueue[tuple[Errand | _Refresh, Mailbox | None]] = queue.SimpleQueue()
        self._streams: list[Mailbox] = []
        self._lock = threading.Lock()
        self._states: Mapping[TableName, TableState] = states_of(store)
        self._renewed = time.monotonic()
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name="pgetl desk", daemon=True),
            threading.Thread(target=self._listen, name="pgetl desk listener", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        self._errands.put((_Refresh(), None))
        self._threads[0].join(5.0)

    def join(self, stream: Mailbox) -> Mapping[TableName, TableState]:
        """From here on the stream hears the news; what is known now comes back."""
        with self._lock:
            self._streams.append(stream)
            return self._states

    def leave(self, stream: Mailbox) -> None:
        with self._lock:
            self._streams.remove(stream)

    def send(self, errand: Errand, sender: Mailbox) -> None:
        self._errands.put((errand, sender))

    def refresh(self) -> None:
        self._errands.put((_Refresh(), None))

    @property
    def states(self) -> Mapping[TableName, TableState]:
        return self._states

    # -- the desk's own thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._over.is_set():
            self._keep_lease()
            try:
                errand, sender = self._errands.get(timeout=self._ttl / 6)
            except queue.Empty:
                continue
            self._attend(errand, sender)

    def _attend(self, errand: Errand | _Refresh, sender: Mailbox | None) -> None:
        try:
            self._do(errand, sender)
        except Fenced as error:
            self._end(error)
        except PgetlError as error:
            log.warning("The store could not be used: %s", error)
            if isinstance(errand, RecordCeiling) and sender is not None:
                sender.put(CeilingRecorded(None))

    def _do(self, errand: Errand | _Refresh, sender: Mailbox | None) -> None:
        match errand:
            case Record(events):
                _pass("recording", events)
                answer = self._store.apply(events, epoch=self._epoch)
                _pass("recorded", events)
                if isinstance(answer, Refused):
                    log.info("The store refused %s: %s", _words(events), answer.why)
            case RecordCeiling(boundary, positions):
                return self._record_ceiling(boundary, positions, sender)
            case Acknowledge(generations):
                return self._store.acknowledge(generations)
            case Verify():
                self._expect_lease()
            case _Refresh():
                pass
        return self._spread()

    def _record_ceiling(
        self, boundary: Boundary, positions: Mapping[TableName, Boundary], sender: Mailbox | None
    ) -> None:
        reach("ceiling.recording")
        self._store.raise_high_water(positions)
        reach("ceiling.high_water")
        self._store.record_progress(CEILING, boundary)
        reach("ceiling.recorded")
        if sender is not None:
            sender.put(CeilingRecorded(boundary))

    def _spread(self) -> None:
        """Read everything back and tell every stream."""
        self._store.load()
        self._routes.refresh(self._store)
        states = states_of(self._store)
        before, self._states = self._states, states
        with self._lock:
            for stream in self._streams:
                stream.put(News(states))
        for table, state in states.items():
            if before.get(table) != state:
                self._observer(PhaseReached(table, state))

    # -- the lease ----------------------------------------------------------------------------------------------------

    def _keep_lease(self) -> None:
        now = time.monotonic()
        if now - self._renewed < self._ttl / 3:
            return
        try:
            held = self._store.renew_lease(self._epoch, self._ttl)
        except Fenced as error:
            self._end(error)
            return
        except PgetlError as error:
            log.warning("The lease could not be renewed: %s", error)
            if now - self._renewed > self._ttl:
                self._end(_out_of_reach(error))
            return
        self._renewed = now
        if not held:
            self._end(_taken_over())

    def _expect_lease(self) -> None:
        lease = self._store.lease()
        if lease is None or lease.epoch != self._epoch:
            self._end(_taken_over())

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


def _taken_over() -> PgetlError:
    return Fenced("The lease of this streaming worker has gone to another.")


def _out_of_reach(error: PgetlError) -> PgetlError:
    message = f"The store has been out of reach for as long as the lease lasts. {error.message}"
    return PgetlError(error.kind, message, remedy=error.remedy)


def states_of(store: Store) -> dict[TableName, TableState]:
    return {table: record.state for table, record in store.tables().items()}


def _pass(name: str, events: Mapping[TableName, object]) -> None:
    """The failpoints `recording.CameNear`, `recorded.CaughtUp` and so on, once for each kind of event."""
    for kind in sorted({type(event).__name__ for event in events.values()}):
        reach(f"{name}.{kind}")


def _words(events: Mapping[TableName, object]) -> str:
    return ", ".join(f"{type(event).__name__} of {table}" for table, event in events.items())
