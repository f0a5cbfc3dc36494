"""The streaming worker: one per pipeline, under one lease and one epoch.

Taking over has these steps, in this order, each of which makes the next one safe
1. the lease is taken, which raises the epoch in the store; it is kept from then on;
2. the destination is claimed, which raises the epoch there: no earlier worker can write any more;
3. the walsenders of our slots are ended: no earlier worker can confirm a position any more;
4. tables that an earlier worker left in the middle of a hand-over are demoted;
5. only then positions are read and streams are started.

While it runs, the worker starts the catch-up stream of every group that has finished copying, drops the slots that no
copy and no table needs, and rolls back Errored tables whose timed retry is due. It does not copy: copies find their
tables in Init.

While the pipeline is paused, the worker has no stream and keeps the lease (see `prepare.lifecycle`).

It ends when it is stopped, when it has lost the lease, when an error ends the apply stream, or, in a bounded run, when
everything committed before the call is durable and no table is on its way to Ready.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from airflow_provider_pgetl.engine.context import PipelineContext, SourceSession, apply_judged
from airflow_provider_pgetl.engine.destinations.protocol import Positions
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.phases import Event, FinishedCopy
from airflow_provider_pgetl.engine.model.positions import START, Boundary
from airflow_provider_pgetl.engine.model.reports import Noted, Report, StreamProgressed
from airflow_provider_pgetl.engine.model.results import RESOLUTIONS
from airflow_provider_pgetl.engine.model.tables import TableName, written
from airflow_provider_pgetl.engine.prepare import destination_checks, lifecycle, source_watch
from airflow_provider_pgetl.engine.prepare.destination_checks import expect_our_stamp
from airflow_provider_pgetl.engine.runtime.processes import allow, reach, resident_bytes
from airflow_provider_pgetl.engine.runtime.threads import Flag
from airflow_provider_pgetl.engine.source.slots import Slot, group_slots
from airflow_provider_pgetl.engine.state import decisions
from airflow_provider_pgetl.engine.state.decisions import CEILING, states_of
from airflow_provider_pgetl.engine.stream import messages
from airflow_provider_pgetl.engine.stream.batches import Routes
from airflow_provider_pgetl.engine.stream.lease import LEASE_SECONDS, kept_lease, take_lease
from airflow_provider_pgetl.engine.stream.progress import Measuring
from airflow_provider_pgetl.engine.stream.store_thread import APPLY, StoreThread
from airflow_provider_pgetl.engine.stream.stream_loop import Surroundings
from airflow_provider_pgetl.engine.stream.streams import ApplyStream, CatchupStream, Stream
from airflow_provider_pgetl.engine.wal.replication_stream import PublicationMissing
from airflow_provider_pgetl.engine.wal.spool import Budget

log = logging.getLogger(__name__)

_ROUND_SECONDS = 0.1
_MAINTENANCE_SECONDS = 2.0
_STOP_SECONDS = 5.0
_RETAINED_BYTES = 4 << 30
_HALF = 2  # the other half of the memory is for what readers make of the spooled steps


class StreamingWorker:
    """The worker of one run. `run` blocks; any thread may set `stop` to end it."""

    def __init__(self, context: PipelineContext, stop: Flag) -> None:
        self._context = context
        self._runtime = context.runtime
        self._stop = stop
        self._lost: PgetlError | None = None
        self._errored: dict[tuple[TableName, int], float] = {}
        self._until: Boundary | None = None
        self._forget_streams()

    def _forget_streams(self) -> None:
        """Resets what is known of streams: at the beginning and after a pause."""
        self._catchups: dict[int, CatchupStream] = {}
        self._slots: frozenset[int] = frozenset()
        self._next_maintenance = 0.0
        self._next_watch = 0.0
        self._next_holding_watch = self._runtime.monotonic() + source_watch.WATCH_SECONDS
        self._watched = float("-inf")
        self._seen = source_watch.EarlierLooks()
        self._described = self._runtime.flag()
        self._connections = 0
        self._looked_for: set[int] = set()
        self._judged: tuple[decisions.States, frozenset[int], frozenset[int]] = ({}, frozenset(), frozenset())
        self._progress: StreamProgressed | None = None
        self._measuring = Measuring(RESOLUTIONS[0].seconds)
        self._retaining: Slot | None = None
        self._source_end = START
        self._asked_to_end = False
        self._is_pausing = False

    def run(
        self,
        *,
        until_caught_up: bool,
        copies_expected: Callable[[], bool] = lambda: False,
        lease_patience: float | None = 2 * LEASE_SECONDS,
    ) -> None:
        """Takes the lease and streams. Returns when the run is stopped or, with `until_caught_up`, when everything
        committed before the call is durable; raises the error that ended it otherwise. `copies_expected`: whether
        tables are being copied, so that a bounded run must wait; it may raise to end the run. `lease_patience`: how
        many seconds another worker's lease is waited for, None without a bound."""
        if until_caught_up:
            self._until = self._source_position()
        lease = take_lease(self._context.store, self._stop, self._context.observer, lease_patience, self._runtime)
        if lease is None:
            return
        keeper = kept_lease(self._context.store, lease.epoch, LEASE_SECONDS, self._lose, self._runtime)
        keeper.start()
        try:
            self._stream_between_pauses(lease.epoch, copies_expected)
        finally:
            keeper.stop()
            self._release(lease.epoch)

    def _stream_between_pauses(self, epoch: int, copies_expected: Callable[[], bool]) -> None:
        """Streams, and takes over anew after each pause: during a pause anything may have changed, as if
        another worker had run."""
        while True:
            lifecycle.await_resumption(self._context, self._is_to_end)
            if self._lost is not None:
                raise self._lost
            if self._stop.is_set():
                return
            self._forget_streams()
            self._take_over(epoch)
            self._context.store.load()
            if lifecycle.is_paused(self._context.store):
                continue
            self._stream(epoch, copies_expected)
            if not self._is_pausing:
                return

    def _is_to_end(self) -> bool:
        return self._stop.is_set() or self._lost is not None

    def _release(self, epoch: int) -> None:
        """Releases the lease. An error is only logged: the lease expires by itself, and the error must not hide what
        ended the run."""
        try:
            self._context.store.release_lease(epoch)
        except PgetlError as error:
            log.warning("The lease could not be released: %s", error)

    # -- taking over --------------------------------------------------------------------------------------------------

    def _take_over(self, epoch: int) -> None:
        self._claim(epoch)
        reach("takeover.claimed")
        with self._context.source.session("takeover") as session:
            for name, slot in session.list_slots().items():
                # The slot of a live copy attempt is left alone: that copy is just creating it, and no worker reads it.
                if name.attempt not in self._live():
                    session.release_slot(slot.name)
        self._apply_events(decisions.demotions)
        reach("takeover.demoted")

    def _claim(self, epoch: int) -> None:
        with self._context.destination("takeover") as destination:
            if isinstance(destination, Positions):
                destination.claim(self._context.pipeline, epoch)

    def _apply_events(self, judge: Callable[[decisions.States], dict[TableName, Event]]) -> list[TableName]:
        return apply_judged(self._context, judge)

    # -- running ------------------------------------------------------------------------------------------------------

    def _stream(self, epoch: int, copies_expected: Callable[[], bool]) -> None:
        context, routes = self._context, Routes(self._context.pipeline, self._context.transforms)
        store_thread = StoreThread(context.store, routes, epoch, context.observer, self._lose, self._runtime)
        memory = context.spec.stream.memory
        allow(memory)
        shared = Surroundings(
            context.pipeline,
            epoch,
            store_thread,
            routes,
            Budget(memory // _HALF),
            memory,
            self._observe,
            self._runtime,
            self._described.set,
            context.transforms is not None,
        )
        store_thread.start()
        apply = ApplyStream(context, shared)
        apply.start()
        try:
            self._watch(apply, shared, copies_expected)
        finally:
            self._end([apply, *self._catchups.values()])
            store_thread.stop()
        self._judge(apply)

    def _watch(self, apply: ApplyStream, shared: Surroundings, copies_expected: Callable[[], bool]) -> None:
        while not self._is_to_end() and not apply.ended.is_set():
            if lifecycle.is_paused(self._context.store):
                self._is_pausing = True
                return
            self._tend_catchups(apply, shared)
            self._note_connections(apply)
            self._note_descriptions()
            self._keep_up(shared.store_thread)
            copying = copies_expected()
            if self._until is not None and self._done(apply, shared.store_thread, self._until, copying):
                return
            self._stop.wait(_ROUND_SECONDS)

    def _tend_catchups(self, apply: ApplyStream, shared: Surroundings) -> None:
        for attempt, stream in list(self._catchups.items()):
            stream.inbox.put(messages.ApplyStandsAt(apply.position))
            if stream.ended.is_set():
                del self._catchups[attempt]
                self._note_end(stream)
                self._next_maintenance = 0.0
        self._look_for_slots(shared.store_thread)
        self._start_catchups(shared)

    def _start_catchups(self, shared: Surroundings) -> None:
        """Starts the catch-up streams that are due. This is decided anew only when the inputs of the decision have
        changed."""
        judged = (shared.store_thread.states, self._slots, frozenset(self._catchups))
        if judged[0] is self._judged[0] and judged[1:] == self._judged[1:]:
            return
        for attempt in decisions.groups_to_catch_up(*judged):
            self._catchups[attempt] = CatchupStream(attempt, self._context, shared)
            self._catchups[attempt].start()
        self._judged = judged

    def _look_for_slots(self, store_thread: StoreThread) -> None:
        """Makes maintenance due when a group has finished copying, so that its slot is found at once."""
        states = store_thread.states
        if states is self._judged[0]:
            return
        copied = {state.attempt for state in states.values() if isinstance(state.phase, FinishedCopy)}
        new = {attempt for attempt in copied - self._slots - self._looked_for if attempt is not None}
        if new:
            self._looked_for |= new
            self._next_maintenance = 0.0

    def _note_end(self, stream: Stream) -> None:
        if stream.error is not None:
            self._context.observer(Noted("warning", f"The catch-up of group {stream.name} ended: {stream.error}"))
            if stream.error.kind is ErrorKind.LINEAGE or isinstance(stream.error, PublicationMissing):
                self._lose(stream.error)

    def _done(self, apply: ApplyStream, store_thread: StoreThread, until: Boundary, copying: bool) -> bool:
        if copying or decisions.on_their_way(store_thread.states, self._context.store.now()) or self._catchups:
            return False
        if apply.durable >= until:
            return True
        apply.inbox.put(messages.Ask())
        if apply.position >= until:
            apply.inbox.put(messages.Hurry())
        return False

    def _observe(self, report: Report) -> None:
        """Passes a report on. The apply stream's lag is raised to what is missing of the WAL that existed at the last
        maintenance, because the stream only learns how far the source's walsender has read, not what lies beyond."""
        if isinstance(report, StreamProgressed) and report.stream == APPLY:
            missing = self._source_end.lsn - report.durable.lsn
            report = replace(report, lag_bytes=max(report.lag_bytes, missing))
            self._progress = report
        self._context.observer(report)

    # -- maintenance --------------------------------------------------------------------------------------------------

    def _note_connections(self, apply: ApplyStream) -> None:
        """Makes the watch and maintenance due after the apply stream has connected: the tables that it follows may have
        been altered while it was not connected."""
        if apply.connections > self._connections:
            self._connections = apply.connections
            self._next_watch = self._next_maintenance = 0.0

    def _note_descriptions(self) -> None:
        """Makes the watch and maintenance due after the source has described a table, which may have been altered."""
        if self._described.is_set() and self._runtime.monotonic() >= self._watched + source_watch.WATCH_AGAIN_SECONDS:
            self._described.clear()
            self._next_watch = self._next_maintenance = 0.0

    def _keep_up(self, store_thread: StoreThread) -> None:
        now = self._runtime.monotonic()
        if now < self._next_maintenance:
            return
        self._next_maintenance = now + _MAINTENANCE_SECONDS
        try:
            self._tidy(store_thread)
        except PgetlError as error:
            if not error.transient:
                raise
            log.warning("Maintenance was put off: %s", error)

    def _tidy(self, store_thread: StoreThread) -> None:
        """Does one round of maintenance. The order of reads matters because copies run at the same time. To find tables
        without a slot, the slots are read after the tables, as a copied table has a slot. To find slots that are not
        needed, the slots are read before the attempts, and the attempts before the tables."""
        self._record_lag()
        slots: dict[int, Slot] = {}
        with self._context.source.session("cleanup") as session:

            def lost(states: decisions.States) -> dict[TableName, Event]:
                found = session.list_slots()
                slots.update(group_slots(found))
                self._retaining = next((slot for name, slot in found.items() if name.attempt is None), None)
                self._slots = frozenset(attempt for attempt, slot in slots.items() if slot.lost is None)
                return decisions.lost_groups(states, self._slots | self._live())

            self._source_end = end = session.flushed_position()
            self._watch_source(session)
            self._note_lost(self._apply_events(lost))
            self._apply_events(lambda s: decisions.due_retries(s, self._context.store.now(), self._slots))
            self._note_lost(self._apply_events(lambda s: self._overdue(s, slots, end)))
            store_thread.refresh()
            busy = self._live() | self._catchups.keys()
            self._context.store.load()
            for attempt in decisions.slots_to_drop(states_of(self._context.store), slots, busy):
                reach("slot.dropping")
                session.drop_slot(slots[attempt].name)
                reach("slot.dropped")
            self._forget_ceilings(slots)

    def _forget_ceilings(self, slots: Mapping[int, Slot]) -> None:
        """Deletes the ceilings of groups that have ended, once the apply stream's ceiling implies the same about the
        source's history."""
        seen = self._context.store.seen()
        apply, needed = seen.get(CEILING), {CEILING, *(f"c{attempt}" for attempt in slots)}
        for stream in seen.keys() - needed:
            if apply is not None and apply.implies(seen[stream]):
                self._context.store.delete_progress(stream)

    def _watch_source(self, session: SourceSession) -> None:
        """Checks the source and, less often, the destination: preparation has just checked the destination, what the
        source describes says nothing about it, and each write asserts to which pipeline its table belongs."""
        now = self._runtime.monotonic()
        if now >= self._next_watch:
            source_watch.watch(self._context, session, self._seen)
            self._watched, self._next_watch = now, now + source_watch.WATCH_SECONDS
        if now >= self._next_holding_watch:
            destination_checks.watch(self._context)
            destination_checks.expect_not_set_back(self._context)
            self._stamp()
            self._next_holding_watch = now + source_watch.WATCH_SECONDS

    def _stamp(self) -> None:
        with self._context.destination("watch") as destination:
            expect_our_stamp(self._context, destination)

    def _record_lag(self) -> None:
        """Records the lag of the last report, once, and less often what was measured. While the apply stream does not
        report, nothing is recorded."""
        report, self._progress = self._progress, None
        if report is None:
            return
        self._context.store.record_lag(report.lag_bytes, report.lag_seconds)
        retained = 0 if self._retaining is None else self._retaining.retained(self._source_end) or 0
        measured = self._measuring.take(report, retained, resident_bytes(), self._runtime.monotonic())
        if measured is not None:
            self._context.store.record_measurement(measured)

    def _overdue(self, states: decisions.States, slots: Mapping[int, Slot], now: Boundary) -> dict[TableName, Event]:
        """Returns the events that reset Errored tables for which alone a slot retains too much WAL, or for too long:
        the other tables of their group have gone on."""
        retained = {n: now.lsn - slot.restart.lsn for n, slot in slots.items() if slot.restart is not None}
        greedy = [attempt for attempt, size in retained.items() if size > _RETAINED_BYTES]
        return decisions.errored_holders(states, greedy, self._errored_since(states), self._context.store.now())

    def _errored_since(self, states: decisions.States) -> Mapping[TableName, float]:
        """Returns since when these tables have been Errored, by the store's clock. The store is asked once for each
        table."""
        waiting = {(table, states[table].generation) for table in decisions.kept_for_errored(states)}
        known = {key: since for key, since in self._errored.items() if key in waiting}
        for table, generation in waiting - known.keys():
            known[table, generation] = self._context.store.history(table)[-1].at
        self._errored = known
        return {table: since for (table, _), since in known.items()}

    def _note_lost(self, tables: list[TableName]) -> None:
        for table in tables:
            why = "the changes since its copy are not held any more"
            self._context.observer(Noted("warning", f"{written(table)} is copied again: {why}.", table))

    def _live(self) -> frozenset[int]:
        return self._context.store.live_attempts()

    # -- ending -------------------------------------------------------------------------------------------------------

    def _lose(self, error: PgetlError) -> None:
        self._lost = self._lost or error

    def _end(self, streams: list[Stream]) -> None:
        self._asked_to_end = not any(isinstance(stream, ApplyStream) and stream.ended.is_set() for stream in streams)
        if self._is_pausing:
            self._await_writes(streams)
        for stream in streams:
            why = "the worker is stopping" if self._lost is None else self._lost.message
            stream.stop(why, drain=self._lost is None)
        deadline = self._runtime.monotonic() + _STOP_SECONDS
        for stream in streams:
            stream.join(max(0.1, deadline - self._runtime.monotonic()))

    def _await_writes(self, streams: list[Stream]) -> None:
        """Waits for the writes under way before the pause begins. This process goes on under the same epoch, so that no
        fence would distinguish a late write from one after the pause."""
        for stream in streams:
            stream.stop("the pipeline is paused", drain=True, patient=True)
        while not self._is_to_end() and not all(stream.ended.is_set() for stream in streams):
            self._stop.wait(_ROUND_SECONDS)

    def _judge(self, apply: ApplyStream) -> None:
        if self._lost is not None:
            raise self._lost
        if apply.error is not None:
            raise apply.error
        if apply.ended.is_set() and not self._asked_to_end:
            raise PgetlError(ErrorKind.INTERNAL, "The apply stream ended without an error and without being asked to.")

    def _source_position(self) -> Boundary:
        with self._context.source.session("until") as session:
            return session.flushed_position()
