"""The loop of one stream on one connection: the shell around a `StreamCore`.

It moves payloads from the socket through the assembler, reports each boundary to the core, executes the core's
commands, and answers the server in time. It decides nothing about tables: the core does.

* One connection, one assembler and one core belong together. When the connection breaks, what was gathered is dropped;
  the write in flight is waited for, positions are read again, and the next core starts from the slot.
* While a hand-over pauses reading, the payloads of the last `receive` stay unconsumed in the assembler's iterator.
* Gathering is bounded: once far more is gathered than `memory`, nothing is read until the writer has caught up.
* A server that floods us with requests is shutting down (see `feedback`): the write in flight gets three seconds, then
  the stream disconnects without acknowledging it, and connects again later.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from airflow_provider_pgetl.engine.context import SlotStream
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary, CommitLsn
from airflow_provider_pgetl.engine.model.reports import Noted, Observer, StreamProgressed
from airflow_provider_pgetl.engine.model.tables import Column, TableName, written
from airflow_provider_pgetl.engine.runtime.processes import reach
from airflow_provider_pgetl.engine.runtime.threads import THREADS, Runtime
from airflow_provider_pgetl.engine.state.decisions import TableFailure, failure_of
from airflow_provider_pgetl.engine.stream import messages
from airflow_provider_pgetl.engine.stream.batches import (
    GatheredSteps,
    Route,
    Routes,
    Writer,
    event_batch,
    schema_changes,
)
from airflow_provider_pgetl.engine.stream.core import StreamCore
from airflow_provider_pgetl.engine.stream.messages import (
    Acknowledge,
    AskPosition,
    Command,
    Finish,
    RecordCeiling,
    RecordEvents,
    Verify,
    Write,
)
from airflow_provider_pgetl.engine.stream.progress import CommitLag
from airflow_provider_pgetl.engine.stream.roles import CatchupCore
from airflow_provider_pgetl.engine.stream.schema_versions import SchemaVersions
from airflow_provider_pgetl.engine.stream.store_thread import StoreThread
from airflow_provider_pgetl.engine.wal.assembler import Assembler, Batch, Event
from airflow_provider_pgetl.engine.wal.pgoutput import Begin, Commit, Feedback, Keepalive, Relation
from airflow_provider_pgetl.engine.wal.spool import Budget, Spool

log = logging.getLogger(__name__)

SHUTDOWN_PATIENCE = 3.0
_IDLE_WAIT = 0.25
_REPORT_INTERVAL = 1.0
_GATHER_FACTOR = 4


@dataclass(slots=True)
class Tally:
    """What a stream has done since it began, over all its connections; for its reports."""

    changes: int = 0
    seen: int = 0
    batches: int = 0
    missed: int = 0
    commit_lag: CommitLag = field(default_factory=CommitLag)
    pause_began: float | None = None
    paused: float = 0.0
    server: Boundary = field(default_factory=lambda: Boundary(0))
    differing: set[TableName] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The objects and settings that all streams of a worker share."""

    pipeline: str
    epoch: int
    store_thread: StoreThread
    routes: Routes
    budget: Budget
    memory: int
    observer: Observer
    runtime: Runtime = THREADS
    described: Callable[[], None] = lambda: None
    """Called when the source describes a table, which it does again after the table was altered."""
    transforms: bool = False
    """Whether values are transformed before they are written anywhere."""


class StreamLoop:
    """One connection of a stream. `run` returns when the core has finished, or raises the error that ended it."""

    def __init__(
        self,
        name: str,
        surroundings: Surroundings,
        stream: SlotStream,
        core: StreamCore,
        writer: Writer,
        inbox: messages.Inbox,
        tally: Tally,
        moved: Callable[[Boundary, Boundary], None],
        versions: SchemaVersions,
        binary: Collection[tuple[Column, ...]] | None = None,
    ) -> None:
        """`binary`: see `PipelineContext.binary_columns`."""
        self.name = name
        self._shared = surroundings
        self._runtime = surroundings.runtime
        self._stream = stream
        self._core = core
        self._role = "catchup" if isinstance(core, CatchupCore) else "apply"
        self._writer = writer
        self._inbox = inbox
        self._tally = tally
        self._moved = moved
        self._versions = versions
        self._binary = binary
        self._fit: dict[int, Route] = {}
        now = self._runtime.monotonic()
        self._feedback = Feedback(now, stream.sender_timeout)
        self._assembler: Assembler[Route] = Assembler(
            self._owns, lambda: Spool(surroundings.budget, secret=surroundings.transforms)
        )
        self._undrawn: Iterator[Event] | None = None
        self._held: Batch[Route] | None = None
        self._under_way: GatheredSteps | None = None
        self._refusal: PgetlError | None = None
        self._asked = False
        self._draining_until: float | None = None
        self._is_patient = False
        self._next_report = now

    def run(self) -> None:
        self._inbox.wake = self._stream.wake
        self._core.tick(self._runtime.monotonic())
        while self._core.finished is None:
            self._take_messages()
            self._obey()
            self._read()
            self._answer_server()
            self._watch_drain()
            self._report()
        self._confirm()
        if self._core.another_history is not None:
            raise PgetlError(ErrorKind.LINEAGE, f"Changes may be missing: {self._core.another_history}.")
        if self._core.set_back:
            names = ", ".join(map(str, self._core.set_back))
            raise PgetlError(ErrorKind.CONNECTION, f"The destination has {names} before where it had come already.")
        if self._refusal is not None and self._core.refused:
            raise self._refusal

    # -- reading ------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Receives and gathers some payloads if the core reads; otherwise waits a moment for a message."""
        now = self._runtime.monotonic()
        self._core.tick(now)
        self._note_pause(now)
        if self._core.finished is not None:
            return
        if self._undrawn is not None and self._core.reading:
            self._draw(self._undrawn)
        elif self._undrawn is None and self._core.reading and not self._full:
            self._draw(self._assembler.feed_many(self._stream.receive(self._patience(now))))
        else:
            self._inbox.wait(min(0.1, self._patience(now)))

    def _patience(self, now: float) -> float:
        return min(_IDLE_WAIT, self._feedback.due_in(now, self._core.ack))

    @property
    def _full(self) -> bool:
        """Whether some of what is gathered must be written before more is read. False until the source is recognized:
        until then nothing is written, and recognition requires reading on; what is gathered meanwhile spills to
        disk."""
        if self._assembler.in_transaction or not self._core.recognition.complete:
            return False
        return self._assembler.nbytes > _GATHER_FACTOR * self._shared.memory

    def _draw(self, events: Iterator[Event]) -> None:
        self._undrawn = events
        core = self._core
        for event in events:
            if isinstance(event, Begin):
                core.begin(event.commit_lsn, event.xid, event.commit_time)
                if core.finished is not None:
                    return
                continue
            self._take_in(event)
            if not core.reading:
                return
        self._undrawn = None

    def _take_in(self, event: Event) -> None:
        match event:
            case Commit():
                self._core.commit(event.end)
                self._tally.commit_lag.committed(event.end, event.commit_time / 1e6, self._runtime.monotonic())
                self._hurry_if_large()
                if self._core.write_due:
                    self._obey()
            case Keepalive():
                self._asked = False
                self._tally.server = max(self._tally.server, event.position)
                self._tally.commit_lag.heard(event.server_time / 1e6, self._runtime.monotonic())
                self._feedback.heard(self._runtime.monotonic(), event)
                self._core.keepalive(event.position)
            case Relation():
                self._shared.described()
            case _:
                pass

    def _hurry_if_large(self) -> None:
        if self._assembler.nbytes > self._shared.memory // 2:
            self._core.hurry()

    def _owns(self, relation: int, commit_lsn: CommitLsn) -> Route | None:
        route = self._shared.routes.of_relation(relation)
        if route is None or not self._core.owns(route.table, commit_lsn):
            return None
        route = self._versions.fitting(route, self._assembler.relation(relation), commit_lsn)
        if self._binary is not None and self._fit.get(relation) is not route:
            self._expect_form(route, self._binary)
            self._fit[relation] = route
        self._core.gathered(route.table)
        return route

    def _expect_form(self, route: Route, binary: Collection[tuple[Column, ...]]) -> None:
        """Raises, so that the stream connects again, if it has not been checked whether the table's values may be sent
        in binary."""
        if not route.schema.universal and route.schema.columns not in binary:
            message = f"The types of {route.table} are to be looked at before its changes are read."
            raise PgetlError(ErrorKind.CONNECTION, message)

    # -- executing commands -------------------------------------------------------------------------------------------

    def _obey(self) -> None:
        for command in self._core.commands():
            self._do(command)

    def _do(self, command: Command) -> None:
        match command:
            case Write():
                self._write(command)
            case RecordEvents() | RecordCeiling() | Acknowledge() | Verify():
                self._shared.store_thread.send(command, self._inbox)
            case AskPosition():
                self._ask_position()
            case Finish(why):
                log.info("Stream %s ends: %s", self.name, why)

    def _write(self, write: Write) -> None:
        if not write.again:
            self._held = self._assembler.take()
            self._core.carries({route.table: rows for route, rows in self._held.counts.values()})
        if not write.moves or self._held is None:
            self._inbox.put(messages.BatchWritten())
            return
        shared = self._shared
        gone = [table for table in write.moves if shared.routes.known_destination(table) is None]
        if gone:  # the message about it is on its way
            error = PgetlError(ErrorKind.STORE, f"{gone[0]} was declared a moment ago, and is not any more.")
            self._inbox.put(messages.WriteFailed(error, None))
            return
        batch = event_batch(shared.pipeline, shared.epoch, shared.routes, write.moves, self._held.steps)
        self._under_way = batch.steps if isinstance(batch.steps, GatheredSteps) else None
        self._writer.submit(batch, f"{self._role}.write", schema_changes(shared.routes, write.moves))

    def _ask_position(self) -> None:
        """Requests a keepalive, unless one is requested already or a transaction is open."""
        if not self._asked and not self._assembler.in_transaction:
            self._asked = True
            self._send(reply_requested=True)

    # -- messages -----------------------------------------------------------------------------------------------------

    def _take_messages(self) -> None:
        for message in self._inbox.take():
            self._open(message)

    def _open(self, message: messages.Message) -> None:
        core = self._core
        match message:
            case messages.TablesChanged(states):
                core.recorded(states)
            case messages.CeilingRecorded(boundary):
                core.ceiling_failed() if boundary is None else core.ceiling_recorded(boundary)
            case messages.BatchWritten(missed, differing):
                self._note_written(missed)
                self._warn(differing)
                core.written()
            case messages.WriteFailed(error, positions):
                self._write_failed(error, positions)
            case messages.ApplyStandsAt(position):
                if isinstance(core, CatchupCore):
                    core.apply_stands_at(position)
            case messages.Ask():
                self._ask_position()
            case messages.Hurry():
                core.hurry()
            case messages.Stop():
                self._stop(message)

    def _note_written(self, missed: int) -> None:
        if self._held is not None:
            self._tally.changes += self._held.steps.rows
            self._tally.batches += 1
            self._held.steps.close()
        self._held = self._under_way = None
        self._tally.missed += missed

    def _warn(self, differing: Collection[TableName]) -> None:
        """Warns once for each table. Not while a table catches up: it may lack rows that a later TRUNCATE deletes."""
        for destination in differing if self._role == "apply" else ():
            table = self._shared.routes.source_at(destination)
            if table is None or table in self._tally.differing:
                continue
            self._tally.differing.add(table)
            name = written(table)
            message = (
                f"Changes of {name} found no row in the destination: others have changed it there, or it lacks rows "
                f"of a partition that was attached. Copy it again: `pgetl reset FILE {shlex.quote(name)}`."
            )
            self._shared.observer(Noted("warning", message, table))

    def _write_failed(self, error: PgetlError, positions: Mapping[TableName, Boundary] | None) -> None:
        blame = self._blamed(error)
        if not blame and error.kind is not ErrorKind.FENCED and not error.transient:
            raise error
        if not blame:  # otherwise the phase of the table records the error permanently
            log.warning("A write of stream %s failed, and is tried again: %s", self.name, error)
        known = self._by_source(positions) if positions is not None else None
        self._refusal = error if error.kind is ErrorKind.FENCED else None
        self._core.write_failed(positions=known, blame=blame, fenced=self._refusal is not None)

    def _blamed(self, error: PgetlError) -> dict[TableName, TableFailure]:
        if error.table is None or error.transient or error.kind is ErrorKind.FENCED:
            return {}
        table = self._shared.routes.source_of(error.table)
        return {table: failure_of(error, self._shared.store_thread.now())} if table is not None else {}

    def _by_source(self, positions: Mapping[TableName, Boundary]) -> dict[TableName, Boundary]:
        named = {self._shared.routes.source_at(table): at for table, at in positions.items()}
        return {table: at for table, at in named.items() if table is not None}

    # -- the server ---------------------------------------------------------------------------------------------------

    def _answer_server(self) -> None:
        now = self._runtime.monotonic()
        flooded = self._feedback.flooded_for(now)
        if flooded is not None and (self._core.progress.in_flight is None or flooded > SHUTDOWN_PATIENCE):
            self._confirm()
            raise PgetlError(ErrorKind.CONNECTION, f"The source is shutting down; stream {self.name} disconnects.")
        if self._feedback.due(now, self._core.ack):
            self._send()
        self._moved(self._core.progress.position, self._core.progress.durable)

    def _send(self, *, reply_requested: bool = False) -> None:
        boundary = max(self._core.ack, self._stream.confirmed)
        further = boundary > self._stream.confirmed
        if further:
            reach(f"{self._role}.confirming")
        self._stream.send_feedback(boundary, reply_requested=reply_requested)
        if further:
            reach(f"{self._role}.confirmed")
        self._feedback.sent(self._runtime.monotonic(), boundary)

    def _confirm(self) -> None:
        if self._core.ack > self._stream.confirmed:
            self._send()

    # -- stopping -----------------------------------------------------------------------------------------------------

    def _stop(self, message: messages.Stop) -> None:
        self._core.drain()
        self._is_patient = message.patient
        if not message.drain:
            self._core.stop(message.why)
        elif self._draining_until is None:
            self._draining_until = self._runtime.monotonic() + SHUTDOWN_PATIENCE

    def _watch_drain(self) -> None:
        """Stops the core when no write is in flight and everything durable may be confirmed, or when the time is up."""
        if self._draining_until is None:
            return
        settled = self._core.progress.in_flight is None and self._core.ack == self._core.progress.durable
        late = self._runtime.monotonic() > self._draining_until
        if settled or (late and not (self._is_patient and self._writer.is_writing)):
            self._core.stop("the worker was asked to stop")

    # -- reporting ----------------------------------------------------------------------------------------------------

    def _note_pause(self, now: float) -> None:
        if self._core.reading:
            if self._tally.pause_began is not None:
                self._tally.paused = now - self._tally.pause_began
            self._tally.pause_began = None
        elif self._tally.pause_began is None:
            self._tally.pause_began = now

    def _report(self) -> None:
        now = self._runtime.monotonic()
        if now < self._next_report:
            return
        self._next_report = now + _REPORT_INTERVAL
        progress, tally = self._core.progress, self._tally
        age = tally.commit_lag.oldest(progress.durable, now)
        lag = max(0, max(tally.server, progress.position).lsn - progress.durable.lsn)
        report = StreamProgressed(
            self.name, progress.position, progress.durable, lag, age,
            self._changes(), tally.batches, tally.missed, tally.paused,
        )  # fmt: skip
        self._shared.observer(report)

    def _changes(self) -> int:
        """Returns the number of changes written, including those of the batch under way that the destination has read,
        so that a long write shows progress. A retry does not count them twice."""
        tally = self._tally
        tally.seen = max(tally.seen, tally.changes + (self._under_way.rows if self._under_way is not None else 0))
        return tally.seen
