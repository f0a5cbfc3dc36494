"""The rules of the protocol that `mutations` breaks.

Some rules stand twice, and breaking one of them alone does no harm: what a dead worker left half way to a hand-over is
demoted, a rolled-back table's catch-up starts anew, the lease is looked at again after a slot was taken. They spare
trouble, while fences and the ceiling keep the promise. That a copy attempt loses to a later one is kept by the
generation as well, which rises when a copy dies; that a catch-up reads to where its tables stand, by the recognition of
what it has seen before; and a row whose replica identity is not the key that was copied, by RELATION and by the row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from airflow_provider_pgetl.engine.changes.batch import Move
from airflow_provider_pgetl.engine.copy.claims import Claims
from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.model import phases
from airflow_provider_pgetl.engine.model.phases import CaughtUp, Failed, SyncDone, TableState, TakenOver
from airflow_provider_pgetl.engine.model.positions import START, Boundary, CommitLsn, Recognition, Transaction
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.prepare import source_watch
from airflow_provider_pgetl.engine.prepare.gaps import Gaps
from airflow_provider_pgetl.engine.state import decisions, memory_store, view
from airflow_provider_pgetl.engine.state.decisions import furthest_seen
from airflow_provider_pgetl.engine.state.memory_store import MemoryStore
from airflow_provider_pgetl.engine.stream.batches import Writer
from airflow_provider_pgetl.engine.stream.core import StreamCore
from airflow_provider_pgetl.engine.stream.messages import Acknowledge
from airflow_provider_pgetl.engine.stream.progress import Progress
from airflow_provider_pgetl.engine.stream.roles import ApplyCore, CatchupCore
from airflow_provider_pgetl.engine.stream.store_thread import StoreThread
from airflow_provider_pgetl.engine.stream.streams import Stream
from airflow_provider_pgetl.engine.stream.worker import StreamingWorker
from airflow_provider_pgetl.engine.wal.pgoutput import Feedback
from tests.simulation.mutations import MUTATIONS, all_of, breaks

# -- positions and acknowledgement ------------------------------------------------------------------------------------

breaks("a boundary covers only what commits before it", known=0)(
    lambda: patch.object(Boundary, "covers", lambda self, commit_lsn: commit_lsn <= self.lsn)
)


@breaks("what is in flight is not durable", known=83)
def _in_flight_counts() -> AbstractContextManager[Any]:
    def settle(self: Progress) -> None:
        if not self.pending:
            self.durable = max(self.durable, self.position)

    return patch.object(Progress, "_settle", settle)


@breaks("what is gathered is not durable", known=6)
def _gathered_counts() -> AbstractContextManager[Any]:
    def settle(self: Progress) -> None:
        if self.in_flight is None:
            self.durable = max(self.durable, self.position)

    return patch.object(Progress, "_settle", settle)


@breaks("a BEGIN's LSN is nothing to acknowledge", known=33)
def _begin_counts() -> AbstractContextManager[Any]:
    begin = Progress.begin

    def mutated(self: Progress, transaction: Transaction) -> None:
        begin(self, transaction)
        self.durable = max(self.durable, Boundary(transaction.commit_lsn))

    return patch.object(Progress, "begin", mutated)


breaks("within a transaction a keepalive says nothing", known=187)(
    lambda: patch.object(Progress, "keepalive", Progress._advance)
)


@breaks("positions do not go back with the server's", known=197)
def _position_falls() -> AbstractContextManager[Any]:
    def advance(self: Progress, boundary: Boundary) -> None:
        self.position = boundary
        if not self.pending and self.in_flight is None:
            self.durable = boundary

    return patch.object(Progress, "_advance", advance)


breaks("the store holds a ceiling before the slot is acknowledged", known=1)(
    lambda: patch.object(StreamCore, "ack", property(lambda self: self.progress.durable))
)


# -- fencing ----------------------------------------------------------------------------------------------------------

_write = fencing.write


@breaks("a write starts from the expected position", known=50, world="late writes")
def _any_position() -> AbstractContextManager[Any]:
    def moved(record: fencing.TableMetadata, move: Move) -> fencing.TableMetadata:
        return replace(record, position=move.to)

    return patch.object(fencing, "_moved", moved)


breaks("a write is of the table's generation", known=154, world="late writes")(
    lambda: patch.object(fencing, "_refuse_other_generation", lambda *_: None)
)


@breaks("a write is of the epoch that has claimed", known=37, world="leases that lapse")
def _any_epoch() -> AbstractContextManager[Any]:
    def write(epoch: int, claimed: int | None, records: Any, moves: Any) -> Any:
        del claimed
        return _write(epoch, epoch, records, moves)

    return patch.object(fencing, "write", write)


breaks("a superseded copy attempt publishes nothing", known=216, rare=True, world="late copies")(
    lambda: patch.object(fencing, "_refuse_superseded", lambda *_: None)
)


@breaks("an event of another generation is refused", known=39)
def _stale_events() -> AbstractContextManager[Any]:
    transition = phases.transition

    def mutated(state: TableState, event: phases.Event) -> TableState | phases.Refused:
        return transition(state, replace(event, generation=state.generation))

    return patch.object(view, "transition", mutated)


breaks("a worker whose epoch has passed says nothing any more", known=125, world="leases that lapse")(
    lambda: patch.object(memory_store, "superseded", lambda *_: None)
)


@breaks("what is said of a hand-over that was given up is void", known=14, rare=True, world="late answers of the store")
def _stale_handovers() -> AbstractContextManager[Any]:
    transition = phases.transition

    def mutated(state: TableState, event: Any) -> TableState | phases.Refused:
        if hasattr(event, "handover"):
            event = replace(event, handover=phases.handover_of(state))
        return transition(state, event)

    return patch.object(view, "transition", mutated)


# -- hand-over --------------------------------------------------------------------------------------------------------

breaks("the apply stream does not read during a hand-over", known=3)(
    lambda: patch.object(ApplyCore, "reading", StreamCore.reading)
)


@breaks("the target is at or behind the apply stream's position", known=197, world="slots that repeat")
def _target_behind_apply() -> AbstractContextManager[Any]:
    def targets(self: ApplyCore, tables: list[TableName]) -> dict[TableName, phases.Event]:
        states = ((table, self.states[table]) for table in tables)
        return {
            table: phases.TargetChosen(state.generation, state.phase.position, state.phase.handover)
            for table, state in states
            if isinstance(state.phase, phases.SyncWait)
        }

    return patch.object(ApplyCore, "_targets", targets)


@breaks("what is gathered is written before it is recorded that a group has arrived", known=3)
def _recorded_before_written() -> AbstractContextManager[Any]:
    def close(self: CatchupCore) -> None:
        self._record({table: self._caught_up(table, self.states[table]) for table in self.tables})

    return patch.object(CatchupCore, "_close", close)


@breaks("SyncDone is at or behind the target", known=197, world="slots that repeat")
def _stops_early() -> AbstractContextManager[Any]:
    hand_over = phases._hand_over

    def mutated(state: TableState, event: Any) -> TableState | phases.Refused:
        match state.phase, event:
            case phases.Catchup(), CaughtUp(_, reached, position):
                return replace(state, phase=SyncDone(reached, position))
            case _:
                return hand_over(state, event)

    def arrived(self: CatchupCore) -> bool:
        return self._target is not None and self.progress.transaction is None

    @contextmanager
    def both() -> Iterator[None]:
        with patch.object(phases, "_hand_over", mutated), patch.object(CatchupCore, "_arrived", property(arrived)):
            yield

    return both()


@breaks("the apply stream owns a table only from its SyncDone on", known=114)
def _owns_before() -> AbstractContextManager[Any]:
    def owns(state: TableState, position: Boundary, commit_lsn: CommitLsn) -> bool:
        following = isinstance(state.phase, SyncDone | phases.Ready | phases.FinishedCopy)
        return following and not position.covers(commit_lsn)

    return patch("airflow_provider_pgetl.engine.stream.roles.apply_owns", owns)


@breaks("Ready only when the apply stream is durable up to the hand-over", known=59)
def _ready_at_once() -> AbstractContextManager[Any]:
    def take_over(self: ApplyCore) -> dict[TableName, phases.Event]:
        states = ((table, self.states[table]) for table in self._arriving)
        return {t: TakenOver(s.generation, s.phase.boundary) for t, s in states if isinstance(s.phase, SyncDone)}

    return patch.object(ApplyCore, "_take_over", take_over)


# -- gathering and failing --------------------------------------------------------------------------------------------


@breaks("positions are read table by table, in the destination", known=147)
def _largest_position() -> AbstractContextManager[Any]:
    positions = Stream._positions

    def mutated(self: Stream, states: Mapping[TableName, TableState]) -> dict[TableName, Boundary]:
        found = positions(self, states)
        return dict.fromkeys(found, max(found.values(), default=START))

    return patch.object(Stream, "_positions", mutated)


@breaks("a batch never mixes two generations of a table", known=727, world="tables that go back")
def _mixed_batches() -> AbstractContextManager[Any]:
    def abandon(self: StreamCore, changed: frozenset[TableName], let_go: Mapping[TableName, int]) -> None:
        del changed
        self._renewed |= let_go
        for table in let_go:
            self.positions.pop(table, None)

    return patch.object(StreamCore, "_abandon", abandon)


@breaks("an error is durable before a batch without its table is", known=54)
def _skips_poison() -> AbstractContextManager[Any]:
    write_failed = StreamCore.write_failed

    def mutated(self: StreamCore, *, blame: Mapping[TableName, Any] | None = None, **rest: Any) -> None:
        write_failed(self, blame=blame, **rest)
        if self._flight is not None and blame:
            kept = {table: move for table, move in self._flight.write.moves.items() if table not in blame}
            self._outbox.events = {t: e for t, e in self._outbox.events.items() if not isinstance(e, Failed)}
            self._shrink(self._flight, kept)

    return patch.object(StreamCore, "write_failed", mutated)


breaks("an Errored table keeps its group's slot where it was", known=25)(
    lambda: patch.object(CatchupCore, "ack", property(lambda self: self.progress.durable))
)


@breaks("a bounded run ends when all that was there when it began is durable", known=34, world="bounded runs")
def _ends_early() -> AbstractContextManager[Any]:
    def done(self: StreamingWorker, apply: Any, store_thread: StoreThread, until: Boundary, copying: bool) -> bool:
        del apply, until
        return (
            not copying
            and not decisions.on_their_way(store_thread.states, self._context.store.now())
            and not self._catchups
        )

    return patch.object(StreamingWorker, "_done", done)


@breaks("a slot is kept while a table needs it", known=0)
def _slots_dropped() -> AbstractContextManager[Any]:
    def to_drop(states: decisions.States, slots: Collection[int], live: Collection[int]) -> list[int]:
        del states
        return sorted(set(slots) - set(live))

    return patch.object(decisions, "slots_to_drop", to_drop)


breaks("a slot that nobody needs is dropped", known=0)(lambda: patch.object(decisions, "slots_to_drop", lambda *_: []))

breaks("a dead copy's tables are found", known=19)(lambda: patch.object(decisions, "dead_copies", lambda *_: {}))


@breaks("groups that wait for a person hold up no others", known=243)
def _errored_groups_count() -> AbstractContextManager[Any]:
    def under_way(states: decisions.States, live: Collection[int]) -> int:
        holding = {state.attempt for state in states.values() if phases.needs_group_slot(state)}
        return len(set(live) | holding)

    return patch.object(decisions, "groups_under_way", under_way)


# -- destinations that go back in time, or have no fences -------------------------------------------------------------

breaks("a restored destination is known by the marks that were noted", known=93, world="restored destination")(
    lambda: patch.object(memory_store.MemoryStore, "raise_high_water", lambda *_: None)
)

breaks(
    "a table is Ready only when the store has noted where it stands",
    known=1521,
    rare=True,
    world="marks while the store is away",
)(lambda: patch.object(ApplyCore, "_is_noted", lambda *_: True))

breaks("without fences a copy waits until no stream holds the generation before", world="no fences", known=34)(
    lambda: patch.object(Claims, "awaits_a_stream", lambda _: False)
)


@breaks("a new generation is acknowledged when no write holds the one before", known=50, world="no fences")
def _acknowledged_at_once() -> AbstractContextManager[Any]:
    def acknowledge(self: StreamCore) -> None:
        renewed, self._renewed = self._renewed, {}
        if renewed:
            self._commands.append(Acknowledge(renewed))

    return patch.object(StreamCore, "_acknowledge", acknowledge)


breaks("a restored destination is noticed", known=80, world="restored destination")(
    lambda: all_of(
        patch.object(decisions, "set_back", lambda *_: []),
        patch.object(Gaps, "judge_destination", lambda _: None),
    )
)


@breaks(
    "no target is chosen while what was gathered of a waiting table is abandoned",
    known=552,
    world="tables that go back",
)
def _target_over_abandoned() -> AbstractContextManager[Any]:
    def decide(self: ApplyCore) -> None:
        waiting = self._waiting_for
        self._note_waiting(waiting)
        self._record(self._answers(waiting))
        self._record(self._take_over())
        if self._arriving:
            self._ask_position()

    return patch.object(ApplyCore, "_decide_role", decide)


@breaks(
    "marks that could not be noted are noted with the next ceiling", known=1081, world="marks while the store is away"
)
def _marks_lost() -> AbstractContextManager[Any]:
    def failed(self: StreamCore) -> None:
        self._ceiling_asked = None

    return patch.object(StreamCore, "ceiling_failed", failed)


@breaks("a stream is over only when its write is", known=173, world="no fences")
def _ends_amid_write() -> AbstractContextManager[Any]:
    close = Writer.close

    def mutated(self: Writer, patience: float) -> None:
        close(self, patience)
        ended, self._ended = self._ended, lambda: None
        if self._thread.is_alive():
            ended()

    return patch.object(Writer, "close", mutated)


breaks("a source that goes back is told by what it sends", known=1112, world="source set back")(
    lambda: all_of(
        patch.object(Recognition, "transaction", lambda *_: None),
        patch.object(Recognition, "reached", lambda *_: None),
        patch.object(Recognition, "complete", True),
    )
)

breaks("how far the destination has come counts when the source is judged", known=2354, world="source set back")(
    lambda: patch.object(Gaps, "_furthest", property(lambda self: furthest_seen(self._context.store)))
)

breaks(
    "a write that nobody has noted ends where a transaction ends",
    known=779,
    rare=True,
    world="source set back, to be told",
)(lambda: patch.object(decisions, "written_and_not_noted", lambda *_: set()))

breaks("a source that shuts down is let go of", known=173, world="source shuts down")(
    lambda: patch.object(Feedback, "flooded_for", lambda *_: None)
)

breaks("a table that was taken out of its publication is copied again", known=5, world="publications that change")(
    lambda: all_of(
        patch.object(source_watch, "interruptions", lambda *_, **__: {}),
        patch.object(Gaps, "judge_tables", lambda *_: None),
    )
)

breaks("a column that was dropped and added again is noticed", known=57, world="tables that are altered")(
    lambda: patch.object(source_watch, "drifted", lambda *_, **__: {})
)

breaks("a state that was set back is known by what the destination remembers", known=987, world="state restored")(
    lambda: patch("airflow_provider_pgetl.engine.prepare.destination_checks.expect_ours", lambda *_: None)
)


@breaks("no ceiling is noted in a state that was set back", known=1774, world="state restored")
def _ceiling_of_another_history() -> AbstractContextManager[Any]:
    note, raise_marks, check = MemoryStore.record_progress, MemoryStore.raise_high_water, "_refuse_if_set_back"

    def record_progress(self: MemoryStore, *given: Any) -> Boundary:
        with patch.object(MemoryStore, check, lambda _: None):
            return note(self, *given)

    def raise_high_water(self: MemoryStore, *given: Any) -> None:
        with patch.object(MemoryStore, check, lambda _: None):
            raise_marks(self, *given)

    return patch.multiple(MemoryStore, record_progress=record_progress, raise_high_water=raise_high_water)


@breaks("a truncated copy stands at its snapshot", known=40, world="truncates without fences")
def _truncated_copy_is_whole() -> AbstractContextManager[Any]:
    known = decisions.known_positions

    def mutated(states: decisions.States, marks: Mapping[TableName, Boundary]) -> dict[TableName, Boundary]:
        return {t: max(at, states[t].copied or START) for t, at in known(states, marks).items()}

    return patch.object(decisions, "known_positions", mutated)


@breaks("a hand-over and the recognition of the source do not wait for each other", known=55, world="slots that repeat")
def _hand_over_waits() -> AbstractContextManager[Any]:
    def put_off(self: ApplyCore, table: TableName) -> bool:
        asks = isinstance(self.states[table].phase, phases.SyncWait)
        return asks and self.now < self._not_before.get(table, self.now)

    return all_of(
        patch.object(ApplyCore, "_is_put_off", put_off),
        patch.object(ApplyCore, "_decide_unrecognized", lambda _: None),
    )


RULES = MUTATIONS
