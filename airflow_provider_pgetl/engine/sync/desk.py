"""The one thread of a worker that talks to the store, so that no stream ever waits for it.

Streams hand over what they want recorded; the desk does it in order, reads the tables back, and sends the news to every
stream: that is how a hand-over between two streams goes forth and back in milliseconds. A second thread waits for
what others write.

A record that fails for want of the store is dropped here, unanswered; the core sends it again.

A new generation of a table is acknowledged in the store when the last of the streams has let go of the one before.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from airflow_provider_pgetl.engine.errors import ErrorKind, Fenced, PgetlError
from airflow_provider_pgetl.engine.failpoints import reach
from airflow_provider_pgetl.engine.phases import Refused, TableState
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.reports import Observer, PhaseReached
from airflow_provider_pgetl.engine.state.protocol import Store
from airflow_provider_pgetl.engine.sync.commands import Acknowledge, Record, RecordCeiling, Verify
from airflow_provider_pgetl.engine.sync.lease_keeping import expect_lease
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
        observer: Observer,
        lost: Callable[[PgetlError], None],
    ) -> None:
        self._store = store
        self._routes = routes
        self._epoch = epoch
        self._observer = observer
        self._lost = lost
        self._errands: queue.SimpleQueue[tuple[Errand | _Refresh, Mailbox | None]] = queue.SimpleQueue()
        self._let_go: dict[Mailbox, dict[TableName, int]] = {}
        self._lock = threading.Lock()
        self._states: Mapping[TableName, TableState] = states_of(store)
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(self._run,), name="pgetl desk", daemon=True),
            threading.Thread(target=self._guarded, args=(self._listen,), name="pgetl desk listener", daemon=True),
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
            self._let_go[stream] = _generations(self._states)
            return self._states

    def leave(self, stream: Mailbox) -> None:
        with self._lock:
            del self._let_go[stream]
        self.refresh()

    def send(self, errand: Errand, sender: Mailbox) -> None:
        self._errands.put((errand, sender))

    def refresh(self) -> None:
        self._errands.put((_Refresh(), None))

    @property
    def states(self) -> Mapping[TableName, TableState]:
        return self._states

    # -- the desk's own threads ---------------------------------------------------------------------------------------

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as defect:  # nothing would be recorded any more, and WAL would pile up without a word
            log.exception("The desk met a defect")
            self._end(PgetlError(ErrorKind.INTERNAL, f"The store's desk failed: {defect!r}."))

    def _run(self) -> None:
        while not self._over.is_set():
            self._attend(*self._errands.get())

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
                return self._let_it_go(generations, sender)
            case Verify():
                expect_lease(self._store, self._epoch)
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

    def _let_it_go(self, generations: Mapping[TableName, int], sender: Mailbox | None) -> None:
        with self._lock:
            if sender in self._let_go:
                self._let_go[sender].update(generations)
        self._acknowledge()

    def _acknowledge(self) -> None:
        with self._lock:
            streams = list(self._let_go.values())
            taken_up = {
                table: min((let_go.get(table, 0) for let_go in streams), default=state.generation)
                for table, state in self._states.items()
            }
        records = self._store.tables()
        news = {t: now for t, now in taken_up.items() if t in records and now > records[t].acknowledged}
        if news:
            self._store.acknowledge(news)

    def _spread(self) -> None:
        """Read everything back and tell every stream."""
        self._store.load()
        self._routes.refresh(self._store)
        states = states_of(self._store)
        before, self._states = self._states, states
        with self._lock:
            for stream in self._let_go:
                stream.put(News(states))
        for table, state in states.items():
            if before.get(table) != state:
                self._observer(PhaseReached(table, state))
        self._acknowledge()

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


def states_of(store: Store) -> dict[TableName, TableState]:
    return {table: record.state for table, record in store.tables().items()}


def _generations(states: Mapping[TableName, TableState]) -> dict[TableName, int]:
    return {table: state.generation for table, state in states.items()}


def _pass(name: str, events: Mapping[TableName, object]) -> None:
    """The failpoints `recording.CameNear`, `recorded.CaughtUp` and so on, once for each kind of event."""
    for kind in sorted({type(event).__name__ for event in events.values()}):
        reach(f"{name}.{kind}")


def _words(events: Mapping[TableName, object]) -> str:
    return ", ".join(f"{type(event).__name__} of {table}" for table, event in events.items())
