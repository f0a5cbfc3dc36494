"""The threads of a worker that each carry one stream, from connection to connection.

A stream is made anew for every connection: its core starts from what slot, destination and store say *now*. The writer
has settled, so positions are final; positions are read; the slot is taken. If the lease is ours even then, nobody else
has streamed meanwhile, and nobody will: who takes the pipeline over ends our session first. Only now the slot is asked
where it stands, as nobody can exchange it any more.

Passing trouble with a server is waited out with growing pauses, for ever; each success makes the pause short again.
Anything else ends the stream and is the worker's to judge.
"""

from __future__ import annotations

import logging
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping

from airflow_provider_pgetl.engine.destinations.protocol import Positions
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.phases import Refused, TableState
from airflow_provider_pgetl.engine.positions import START, Boundary
from airflow_provider_pgetl.engine.reports import Noted
from airflow_provider_pgetl.engine.source.slots import find_slot
from airflow_provider_pgetl.engine.sync import mail, upkeep
from airflow_provider_pgetl.engine.sync.apply import ApplyCore
from airflow_provider_pgetl.engine.sync.catchup import CatchupCore
from airflow_provider_pgetl.engine.sync.core import Pace, StreamCore
from airflow_provider_pgetl.engine.sync.desk import APPLY, CEILING
from airflow_provider_pgetl.engine.sync.lease_keeping import expect_lease
from airflow_provider_pgetl.engine.sync.ownership import catching_up
from airflow_provider_pgetl.engine.sync.site import Site
from airflow_provider_pgetl.engine.sync.stream_loop import StreamLoop, Surroundings, Tally
from airflow_provider_pgetl.engine.sync.writer import Writer
from airflow_provider_pgetl.engine.tables import TableName
from airflow_provider_pgetl.engine.wal.stream import ReplicationStream

log = logging.getLogger(__name__)

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 15.0
_SETTLE_SECONDS = 3.0


class Stream(ABC):
    """One slot's stream. `ended` is set when it is over; `error` says what ended it, None when it had nothing left
    to do."""

    def __init__(self, name: str, slot: str, site: Site, shared: Surroundings) -> None:
        self.name = name
        self.slot = slot
        self.site = site
        self.shared = shared
        self.mailbox = mail.Mailbox()
        self.error: PgetlError | None = None
        self.position = START
        self.durable = START
        self.ended = threading.Event()
        self._stopping = threading.Event()
        self._tally = Tally()
        self._thread = threading.Thread(target=self._run, name=f"pgetl {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, why: str, *, drain: bool) -> None:
        self._stopping.set()
        self.mailbox.put(mail.Stop(why, drain))

    def join(self, timeout: float) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        writer = Writer(f"pgetl {self.name} writer", lambda: self.site.open_destination(self.name), self.mailbox)
        try:
            self._carry(writer)
        except PgetlError as error:
            self.error = error
        except Exception as defect:  # the worker must hear of it: a thread that dies silently loses a pipeline
            log.exception("Stream %s met a defect", self.name)
            self.error = PgetlError(ErrorKind.INTERNAL, f"Stream {self.name} failed: {defect!r}.")
        finally:
            if writer.close(_SETTLE_SECONDS):  # else it still holds what it writes
                self.shared.desk.leave(self.mailbox)
            self.ended.set()

    def _carry(self, writer: Writer) -> None:
        pause = _FIRST_PAUSE
        states = self.shared.desk.join(self.mailbox)
        while not self._stopping.is_set():
            before = self.durable
            try:
                self._connect_and_run(writer, states)
                return
            except PgetlError as error:
                self._expect_passing(error)
            pause = _FIRST_PAUSE if self.durable > before else min(pause * 2, _LONGEST_PAUSE)
            self._stopping.wait(pause * random.uniform(0.5, 1.0))
            states = self._settle(writer)

    def _expect_passing(self, error: PgetlError) -> None:
        """Errors of tables were the core's; what comes here concerns the whole stream."""
        if not error.transient:
            raise error
        self.site.observer(Noted("warning", f"Stream {self.name} will be resumed: {error.message}"))

    def _settle(self, writer: Writer) -> Mapping[TableName, TableState]:
        """Wait for the old core's write, and forget the letters that were meant for that core."""
        while not writer.settle(1.0) and not self._stopping.is_set():
            continue
        for letter in list(self.mailbox.take()):
            if isinstance(letter, mail.Stop):
                self.mailbox.put(letter)
        return self.shared.desk.states

    def _connect_and_run(self, writer: Writer, states: Mapping[TableName, TableState]) -> None:
        self.shared.routes.refresh(self.site.store)
        positions = self._positions(states)
        connection = self.site.connect_replication(self.name)
        binary = self.site.wants_binary()
        with ReplicationStream.start(connection, self.slot, self.site.publications, binary=binary) as stream:
            expect_lease(self.site.store, self.shared.epoch)
            core = self._core(self._slot_position(), states, positions)
            loop = StreamLoop(self.name, self.shared, stream, core, writer, self.mailbox, self._tally, self._moved)
            try:
                loop.run()
            finally:
                self.mailbox.wake = None

    def _moved(self, position: Boundary, durable: Boundary) -> None:
        self.position, self.durable = position, durable

    def _slot_position(self) -> Boundary:
        with self.site.connect(self.name) as connection:
            slot = find_slot(connection, self.slot)
        if slot is None or slot.lost or slot.confirmed is None:
            reason = "does not exist" if slot is None else f"is lost: {slot.lost}"
            raise PgetlError(ErrorKind.SLOT_LOST, f"The replication slot {self.slot} {reason}.")
        return slot.confirmed

    def _positions(self, states: Mapping[TableName, TableState]) -> dict[TableName, Boundary]:
        """Where each table stands in the destination; by the store, for destinations that cannot say."""
        destination = self.site.open_destination(self.name)
        try:
            if not isinstance(destination, Positions):
                return upkeep.known_positions(states, self._marks)
            for table in self._to_adopt(states):
                destination.adopt(self.shared.routes.target(table, states[table].generation))
            found = destination.positions(self.site.pipeline)
        finally:
            destination.shutdown()
        named = {self.shared.routes.known_destination(table): table for table in states}
        return {
            named[name]: there.position
            for name, there in found.items()
            if name in named and there.generation == states[named[name]].generation
        }

    @property
    def _marks(self) -> dict[TableName, Boundary]:
        """How far the destination was seen to have each table."""
        return {table: record.high_water for table, record in self.site.store.tables().items()}

    @abstractmethod
    def _to_adopt(self, states: Mapping[TableName, TableState]) -> list[TableName]:
        """The tables whose generation a rollback may have raised without a new copy."""

    @abstractmethod
    def _core(
        self, start: Boundary, states: Mapping[TableName, TableState], positions: Mapping[TableName, Boundary]
    ) -> StreamCore:
        """The core of this connection."""

    @property
    def _pace(self) -> Pace:
        return Pace(write_interval=self.site.write_interval())


class ApplyStream(Stream):
    """The stream of the apply slot."""

    def __init__(self, site: Site, shared: Surroundings) -> None:
        super().__init__(APPLY, site.apply_slot, site, shared)

    def _to_adopt(self, states: Mapping[TableName, TableState]) -> list[TableName]:
        """None: from SyncDone on every rollback leads to a new copy."""
        del states
        return []

    def _core(
        self, start: Boundary, states: Mapping[TableName, TableState], positions: Mapping[TableName, Boundary]
    ) -> ApplyCore:
        ceiling = self.site.store.progress(CEILING) or START
        if start > ceiling:
            raise PgetlError(
                ErrorKind.SLOT_LOST,
                f"The slot {self.slot} was confirmed up to {start}, which this pipeline never did (at most {ceiling}).",
            )
        self._expect_not_restored(states, positions)
        return ApplyCore(start, states, positions, ceiling, self._pace)

    def _expect_not_restored(
        self, states: Mapping[TableName, TableState], positions: Mapping[TableName, Boundary]
    ) -> None:
        lost = upkeep.set_back(states, positions, self._marks)
        if lost:
            names = ", ".join(map(str, lost))
            message = f"The destination has {names} before where it had come already: it was restored."
            raise PgetlError(ErrorKind.SLOT_LOST, message)


class CatchupStream(Stream):
    """The stream of one group's slot."""

    def __init__(self, attempt: int, site: Site, shared: Surroundings) -> None:
        super().__init__(f"c{attempt}", site.group_slot(attempt), site, shared)
        self.attempt = attempt

    def _core(
        self, start: Boundary, states: Mapping[TableName, TableState], positions: Mapping[TableName, Boundary]
    ) -> CatchupCore:
        return CatchupCore(self.attempt, start, self._demoted(states), positions, self._pace)

    def _demoted(self, states: Mapping[TableName, TableState]) -> Mapping[TableName, TableState]:
        """What an earlier connection of this group had asked for, or been given, is void."""
        mine = {table: state for table, state in states.items() if catching_up(state, self.attempt)}
        events = upkeep.demotions(mine)
        if not events:
            return states
        answer = self.site.store.apply(events, epoch=self.shared.epoch)
        if isinstance(answer, Refused):
            raise PgetlError(ErrorKind.STORE, f"The group c{self.attempt} could not start anew: {answer.why}.")
        self.shared.desk.refresh()
        return {**states, **answer}

    def _to_adopt(self, states: Mapping[TableName, TableState]) -> list[TableName]:
        return [table for table, state in states.items() if catching_up(state, self.attempt)]
