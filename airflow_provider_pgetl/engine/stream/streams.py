"""The streams of a worker. Each is a thread that carries one slot's changes, over any number of connections.

Every connection gets a new core, which starts from the *present* state of slot, destination and store, read in this
order
1. the writer has settled, so that positions are final;
2. the positions are read;
3. the connection is opened, and the source is asked on it for its identity and its timelines;
4. the slot is taken;
5. the lease is checked: if it is still held, no other worker has streamed meanwhile, and none will, as a worker that
   takes over ends this session first;
6. only then is the slot's confirmed position read, as no other process can replace the slot any more.

What the source sends again is compared with what was seen of it (see `recognition`): while no stream was connected, the
source may have gone back to an earlier state.

After a transient error of a server the stream connects again, for ever, with growing pauses; progress makes the pause
short again. Any other error ends the stream, and the worker decides what follows.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace

from airflow_provider_pgetl.engine.changes.batch import TablePosition
from airflow_provider_pgetl.engine.context import PipelineContext
from airflow_provider_pgetl.engine.destinations.protocol import Positions
from airflow_provider_pgetl.engine.model.errors import REFUSED_BY_SOURCE, Backoff, ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.phases import (
    CATCHING_UP,
    FOLLOWED,
    Event,
    GroupLost,
    Refused,
    TableState,
    phase_name,
)
from airflow_provider_pgetl.engine.model.positions import START, Boundary, Counted, Lineage, Seen
from airflow_provider_pgetl.engine.model.reports import Noted
from airflow_provider_pgetl.engine.model.tables import TableName, written
from airflow_provider_pgetl.engine.prepare import destination_checks
from airflow_provider_pgetl.engine.source.server import Present
from airflow_provider_pgetl.engine.state import decisions
from airflow_provider_pgetl.engine.state.decisions import CEILING, furthest_seen
from airflow_provider_pgetl.engine.stream import messages
from airflow_provider_pgetl.engine.stream.batches import Writer
from airflow_provider_pgetl.engine.stream.core import Beginning, Pace, StreamCore
from airflow_provider_pgetl.engine.stream.lease import expect_lease
from airflow_provider_pgetl.engine.stream.roles import ApplyCore, CatchupCore, catching_up
from airflow_provider_pgetl.engine.stream.schema_versions import SchemaVersions
from airflow_provider_pgetl.engine.stream.store_thread import APPLY
from airflow_provider_pgetl.engine.stream.stream_loop import StreamLoop, Surroundings, Tally
from airflow_provider_pgetl.engine.wal.replication_stream import PublicationMissing

log = logging.getLogger(__name__)

_BACKOFF = Backoff(0.2, 15.0)
_SETTLE_SECONDS = 3.0
_MET = " met"


class Stream(ABC):
    """The stream of one slot. `group`: the copy attempt whose tables it carries, None for all followed tables. `ended`
    is set when the stream has ended; `error` is what ended it, None when it was stopped or had nothing left to do."""

    def __init__(
        self, name: str, slot: str, context: PipelineContext, shared: Surroundings, group: int | None = None
    ) -> None:
        self.name = name
        self.group = group
        self.slot = slot
        self.context = context
        self.shared = shared
        self.inbox = messages.Inbox(context.runtime)
        self.error: PgetlError | None = None
        self.position = START
        self.durable = START
        self.connections = 0
        self.ended = context.runtime.flag()
        self._stopping = context.runtime.flag()
        self._tally = Tally()
        self._awaited: dict[int, float] = {}
        self._last: StreamCore | None = None
        self._furthest: Seen | None = None
        self._thread = context.runtime.thread(self._run, f"pgetl {name}")

    def start(self) -> None:
        self._thread.start()

    def stop(self, why: str, *, drain: bool, patient: bool = False) -> None:
        """Asks the stream to end; see `messages.Stop`. A stream that ends patiently stays connected to its slot
        meanwhile."""
        self._stopping.set()
        self.inbox.put(messages.Stop(why, drain, patient))

    def join(self, timeout: float) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        writer = Writer(
            f"pgetl {self.name} writer",
            lambda: self.context.open_destination(self.name),
            self.inbox,
            self._let_go,
            self.context.runtime,
        )
        try:
            self._carry(writer)
        except PgetlError as error:
            self.error = error
        except Exception as defect:  # reported to the worker: a thread that ends unnoticed would stop the pipeline
            log.exception("Stream %s met a defect", self.name)
            self.error = PgetlError(ErrorKind.INTERNAL, f"Stream {self.name} failed: {defect!r}.")
        finally:
            writer.close(_SETTLE_SECONDS)

    def _let_go(self) -> None:
        """Called when nothing is gathered and no write is under way any more. Only then may another stream carry the
        tables of this one, as a destination without fences would accept a late write as well."""
        self.shared.store_thread.leave(self.inbox)
        self.ended.set()

    def _carry(self, writer: Writer) -> None:
        failures = 1
        states = self.shared.store_thread.join(self.inbox, self.group)
        while not self._stopping.is_set():
            before = self.durable
            try:
                self._connect_and_run(writer, states)
                return
            except PgetlError as error:
                self._expect_passing(error)
            failures = 1 if self.durable > before else failures + 1
            self._stopping.wait(_BACKOFF.after(failures) * self.context.runtime.uniform(0.5, 1.0))
            states = self._settle(writer)

    def _expect_passing(self, error: PgetlError) -> None:
        """Raises the error unless it is transient. Errors of single tables do not come here: the core has handled
        them."""
        if not error.transient:
            raise self._without_values(error)
        self.context.observer(Noted("warning", f"Stream {self.name} will be resumed: {error.message}"))

    def _without_values(self, error: PgetlError) -> PgetlError:
        """Returns the error, without the words of a server that quote a value which is transformed on its way."""
        if self.context.transforms is None or error.remedy != REFUSED_BY_SOURCE:
            return error
        message = f"Stream {self.name} ended: a value cannot be converted, or a row filter fails on one."
        return PgetlError(error.kind, message, remedy=error.remedy)

    def _settle(self, writer: Writer) -> Mapping[TableName, TableState]:
        """Waits for the old core's write, and drops the messages for that core, except Stop. Returns the states of the
        stream's tables."""
        while not writer.settle(1.0) and not self._stopping.is_set():
            continue
        for message in list(self.inbox.take()):
            if isinstance(message, messages.Stop):
                self.inbox.put(message)
        return self.shared.store_thread.join(self.inbox, self.group)

    def _connect_and_run(self, writer: Writer, states: Mapping[TableName, TableState]) -> None:
        positions = self._positions(states)
        seen, others = self._seen(states, positions)
        # Read before the source is asked, as other streams advance the stored progress and the positions meanwhile.
        known = [each.upto for each in (*seen, *others)]
        furthest = max([furthest_seen(self.context.store), *known, *positions.values()])
        presents: list[Present] = []

        def accept(present: Present) -> None:
            self._expect_the_same_source(present, furthest)
            presents.append(present)

        binary, publications = self.context.binary_columns(), self.context.publications
        with self.context.source.stream(
            self.name, self.slot, publications, binary=binary is not None, accept=accept
        ) as stream:
            expect_lease(self.context.store, self.shared.epoch)
            self._record_lineage(presents[-1].lineage)
            ends = decisions.written_and_not_noted(self._carried(states), positions, self._marks)
            slot, server = self._slot_position(), presents[-1].server
            core = self._last = self._core(Beginning(slot, states, positions, seen, ends, others, server))
            versions = SchemaVersions(self.name, self.context, self.shared.routes, core.positions, self._awaited)
            loop = StreamLoop(
                self.name, self.shared, stream, core, writer, self.inbox, self._tally, self._moved, versions, binary
            )
            self.connections += 1
            try:
                loop.run()
            except PublicationMissing:
                self._note_ended(f"{' or '.join(publications)} did not exist for a while")
                raise
            finally:
                self.inbox.wake = None
                self._note_another_history(core)

    def _seen(
        self, states: Mapping[TableName, TableState], positions: Mapping[TableName, Boundary]
    ) -> tuple[list[Seen], list[Seen]]:
        """Returns what was seen of the source before this connection, as two lists.

        The first must be recognized before anything is written: what this stream has seen, by this process or as
        recorded in the store, the furthest first; then what other streams have seen and `_waits_for` names. What was
        being written when the last connection broke counts if any of it has arrived. The second is not waited for:
        what other streams have seen, which check it themselves and may be far ahead.
        """
        stored = dict(self.context.store.seen())
        own = [stored.pop(self._ceiling_key)] if self._ceiling_key in stored else []
        own += [] if self._furthest is None else [self._furthest]
        if self._last is not None:
            progress = self._last.progress
            own.append(progress.seen)
            flight = progress.seen_in_flight
            if flight is not None and any(position >= flight.upto for position in positions.values()):
                own.append(flight)
        own.sort(key=lambda seen: seen.upto, reverse=True)
        self._furthest = own[0] if own else None
        needed = [seen for name, seen in stored.items() if self._waits_for(name, states)]
        return [*own, *needed], [seen for name, seen in stored.items() if not self._waits_for(name, states)]

    def _expect_the_same_source(self, present: Present, furthest: Boundary) -> None:
        recorded = self.context.store.pipeline().lineage
        if recorded is None:
            return
        branched = present.lineage.timeline != recorded.timeline
        why = present.difference(recorded, furthest, self._confirmed() if branched else START)
        if why is not None:
            expect_lease(self.context.store, self.shared.epoch)
            self._note_what_was_met()
            if present.is_set_back(recorded, furthest):
                self.context.store.record_lineage(replace(recorded, ended=why))
            raise PgetlError(ErrorKind.LINEAGE, f"Changes may be missing: {why}.")

    def _note_what_was_met(self) -> None:
        """Records the furthest that this process has seen, for the next worker: by then the source's WAL may have grown
        past it, so that only the transactions sent show that the history is another. The ceilings do not include it
        yet, as they follow what is written."""
        if self._furthest is not None:
            self.context.store.record_progress(self._ceiling_key + _MET, self._furthest.upto, self._furthest)

    def _record_lineage(self, lineage: Lineage) -> None:
        """Records a lineage that has changed, so that a source that goes on in a new timeline is compared with it the
        next time."""
        if self.context.store.pipeline().lineage not in (None, lineage):
            self.context.store.record_lineage(lineage)

    def _confirmed(self) -> Boundary:
        with self.context.source.session(self.name) as session:
            slot = session.find_slot(self.slot)
        return START if slot is None or slot.confirmed is None else slot.confirmed

    def _note_another_history(self, core: StreamCore) -> None:
        if core.another_history is not None:
            self._note_ended(core.another_history)

    def _note_ended(self, why: str) -> None:
        """Records in the lineage why the history ended, for the preparation of the next run: no query to the source
        would show it."""
        recorded = self.context.store.pipeline().lineage
        if recorded is not None:
            self.context.store.record_lineage(replace(recorded, ended=why))

    def _moved(self, position: Boundary, durable: Boundary) -> None:
        self.position, self.durable = position, durable

    def _slot_position(self) -> Boundary:
        with self.context.source.session(self.name) as session:
            slot = session.find_slot(self.slot)
        if slot is None or slot.lost or slot.confirmed is None:
            reason = "does not exist" if slot is None else f"is lost: {slot.lost}"
            raise PgetlError(ErrorKind.SLOT_LOST, f"The replication slot {self.slot} {reason}.")
        return slot.confirmed

    def _positions(self, states: Mapping[TableName, TableState]) -> dict[TableName, Boundary]:
        """Returns each table's position in the destination; the one known to the store, if the destination keeps
        none."""
        with self.context.destination(self.name) as destination:
            if not isinstance(destination, Positions):
                return decisions.known_positions(states, self._marks)
            found = self._adopted(destination, states)
        here = ((self.shared.routes.source_at(name), there) for name, there in found.items())
        return {
            table: there.position
            for table, there in here
            if table is not None and table in states and there.generation == states[table].generation
        }

    def _adopted(
        self, destination: Positions, states: Mapping[TableName, TableState]
    ) -> Mapping[TableName, TablePosition]:
        """Returns the positions in the destination, after it has adopted the present generation of the tables to adopt.
        A table that the destination does not have has no generation to adopt either: the destination was restored to
        before the copy, which is detected by the position."""
        routes, pipeline = self.shared.routes, self.context.pipeline
        found = destination.positions(pipeline)
        described = [table for table in self._to_adopt(states) if routes.known_destination(table) is not None]
        targets = [routes.target(table, states[table].generation) for table in described]
        known = [(one, found[one.schema.table]) for one in targets if one.schema.table in found]
        older = [target for target, there in known if there.generation != target.generation]
        for target in older:
            destination.adopt(target)
        return destination.positions(pipeline) if older else found

    @property
    def _marks(self) -> dict[TableName, Boundary]:
        store = self.context.store
        return decisions.marks(store.tables(), {table: store.destination_metadata(table) for table in store.tables()})

    @abstractmethod
    def _to_adopt(self, states: Mapping[TableName, TableState]) -> list[TableName]:
        """Returns the tables whose generation a rollback may have raised without a new copy."""

    @abstractmethod
    def _waits_for(self, stream: str, states: Mapping[TableName, TableState]) -> bool:
        """Returns whether what the store holds as seen by the stream of this name must be recognized before anything is
        written."""

    @abstractmethod
    def _carried(self, states: Mapping[TableName, TableState]) -> Mapping[TableName, TableState]:
        """Returns the tables whose positions this stream must be able to explain by the source's transactions."""

    @property
    @abstractmethod
    def _ceiling_key(self) -> str:
        """The name under which the store holds the ceiling of the slot."""

    @abstractmethod
    def _core(self, beginning: Beginning) -> StreamCore:
        """Returns the core for a new connection."""

    @property
    def _pace(self) -> Pace:
        return Pace(write_interval=self.context.write_interval())


# -- The two kinds of stream: the apply stream, and the catch-up stream of a group. ------------------------------------


class ApplyStream(Stream):
    """The stream of the apply slot, with an `ApplyCore`."""

    def __init__(self, context: PipelineContext, shared: Surroundings) -> None:
        super().__init__(APPLY, context.apply_slot, context, shared)

    def _to_adopt(self, states: Mapping[TableName, TableState]) -> list[TableName]:
        """Returns no table: from SyncDone on every rollback leads to a new copy."""
        del states
        return []

    def _waits_for(self, stream: str, states: Mapping[TableName, TableState]) -> bool:
        """True unless the group still catches up, by a stream of its own. For a group that has ended, no other stream
        checks what was seen."""
        groups = {f"c{s.attempt}" for s in states.values() if phase_name(s.phase) in CATCHING_UP}
        return stream.removesuffix(_MET) not in groups

    def _carried(self, states: Mapping[TableName, TableState]) -> Mapping[TableName, TableState]:
        return {table: state for table, state in states.items() if phase_name(state.phase) in FOLLOWED}

    @property
    def _ceiling_key(self) -> str:
        return CEILING

    def _core(self, beginning: Beginning) -> ApplyCore:
        start, states, positions = beginning.start, beginning.states, beginning.positions
        ceiling = self.context.store.progress(CEILING) or START
        if start > ceiling:
            raise PgetlError(
                ErrorKind.SLOT_LOST,
                f"The slot {self.slot} was confirmed up to {start}, which this pipeline never did (at most {ceiling}).",
            )
        self._expect_not_restored(states, positions)
        counted = self._counted(states, positions)
        return ApplyCore(beginning, ceiling, self._pace, counted)

    def _counted(
        self, states: Mapping[TableName, TableState], positions: Mapping[TableName, Boundary]
    ) -> Mapping[TableName, Counted]:
        """Returns the counts that end at the tables' positions. They come from the store or from the last connection of
        this process, including the write that was under way when it ended."""
        marks = {table: record.high_water for table, record in self.context.store.tables().items()}
        stored = {
            table: mark.counted
            for table, mark in marks.items()
            if mark.counted is not None and table in states and states[table].attempt == mark.attempt
        }
        known = [stored, *([] if self._last is None else [self._last.counted, self._last.counted_in_flight])]
        return {t: each for found in known for t, each in found.items() if each.upto == positions.get(t)}

    def _expect_not_restored(
        self, states: Mapping[TableName, TableState], positions: Mapping[TableName, Boundary]
    ) -> None:
        lost = decisions.set_back(states, positions, self._marks)
        if lost:
            raise destination_checks.set_back(lost)


class CatchupStream(Stream):
    """The stream of one group's slot, with a `CatchupCore`."""

    def __init__(self, attempt: int, context: PipelineContext, shared: Surroundings) -> None:
        super().__init__(f"c{attempt}", context.group_slot(attempt), context, shared, attempt)
        self.attempt = attempt

    def _waits_for(self, stream: str, states: Mapping[TableName, TableState]) -> bool:
        del states
        return stream.removesuffix(_MET) == self._ceiling_key

    def _carried(self, states: Mapping[TableName, TableState]) -> Mapping[TableName, TableState]:
        return states

    @property
    def _ceiling_key(self) -> str:
        return f"c{self.attempt}"

    def _core(self, beginning: Beginning) -> CatchupCore:
        states, positions = beginning.states, beginning.positions
        states = self._recorded(states, {**self._set_back(states, positions), **self._undescribed(states)})
        mine = {table: state for table, state in states.items() if catching_up(state, self.attempt)}
        # A target that an earlier connection of this group has asked for, or was given, is void.
        states = self._recorded(states, decisions.demotions(mine))
        return CatchupCore(self.attempt, replace(beginning, states=states), self._pace)

    def _set_back(
        self, states: Mapping[TableName, TableState], positions: Mapping[TableName, Boundary]
    ) -> Mapping[TableName, Event]:
        """Returns the events for tables whose destination was set back: the changes that it has lost are no longer held
        by the slot either, so the tables are copied again."""
        events = decisions.set_back_while_catching_up(states, self.attempt, positions, self._marks)
        for table in events:
            why = "the destination has it before where it had come already: it was restored"
            self.context.observer(Noted("warning", f"{written(table)} is copied again: {why}.", table))
        return events

    def _undescribed(self, states: Mapping[TableName, TableState]) -> Mapping[TableName, Event]:
        """Returns the events for tables of which the store has no schema or no destination name: it was restored to an
        earlier state while they were copied, and then recorded the end of their copy. They are copied again."""
        routes = self.shared.routes
        mine = {table: state for table, state in states.items() if catching_up(state, self.attempt)}
        lost = [table for table in mine if routes.known_destination(table) is None]
        for table in lost:
            why = "the state says nothing of what was copied: it was restored"
            self.context.observer(Noted("warning", f"{written(table)} is copied again: {why}.", table))
        return {table: GroupLost(mine[table].generation, self.attempt) for table in lost}

    def _recorded(
        self, states: Mapping[TableName, TableState], events: Mapping[TableName, Event]
    ) -> Mapping[TableName, TableState]:
        if not events:
            return states
        answer = self.context.store.apply(events, epoch=self.shared.epoch)
        if isinstance(answer, Refused):
            raise PgetlError(ErrorKind.STORE, f"The group c{self.attempt} could not start anew: {answer.why}.")
        self.shared.store_thread.refresh()
        return {**states, **answer}

    def _to_adopt(self, states: Mapping[TableName, TableState]) -> list[TableName]:
        return [table for table, state in states.items() if catching_up(state, self.attempt)]
