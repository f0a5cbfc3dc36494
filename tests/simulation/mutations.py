"""Rules of the protocol, each broken on purpose in the real code, by name.

A mutation is a context: inside it the rule does not hold. `test_it_bites` runs schedules inside until one fails; where
the rule matters only in rare company, `scenario` says in which.

Some rules stand twice, and breaking one of them alone does no harm: what a dead worker left half way to a hand-over is
demoted, a rolled-back table's catch-up starts anew, the lease is looked at again after a slot was taken. They spare
trouble, while fences and the ceiling keep the promise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from airflow_provider_pgetl.engine import phases
from airflow_provider_pgetl.engine.changes.batch import Move
from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.phases import CaughtUp, Failed, SyncDone, TableState, TakenOver
from airflow_provider_pgetl.engine.positions import START, Boundary, CommitLsn
from airflow_provider_pgetl.engine.state import memory, transitions
from airflow_provider_pgetl.engine.sync import upkeep
from airflow_provider_pgetl.engine.sync.apply import ApplyCore
from airflow_provider_pgetl.engine.sync.catchup import CatchupCore
from airflow_provider_pgetl.engine.sync.commands import Acknowledge
from airflow_provider_pgetl.engine.sync.core import StreamCore
from airflow_provider_pgetl.engine.sync.progress import Progress
from airflow_provider_pgetl.engine.tables import TableName
from tests.simulation import copies
from tests.simulation.streams import Stream
from tests.simulation.world import Call

Context = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Mutation:
    """What breaks a rule, and the scenario in which that is felt."""

    broken: Context
    scenario: Mapping[str, Any]


MUTATIONS: dict[str, Mutation] = {}


def breaks(rule: str, **scenario: Any) -> Callable[[Context], Context]:
    def register(broken: Context) -> Context:
        MUTATIONS[rule] = Mutation(broken, scenario)
        return broken

    return register


# -- positions and acknowledgement ------------------------------------------------------------------------------------


@breaks("a boundary covers only what commits before it")
def _covers_its_own() -> AbstractContextManager[Any]:
    return patch.object(Boundary, "covers", lambda self, commit_lsn: commit_lsn <= self.lsn)


@breaks("what is in flight is not durable")
def _in_flight_counts() -> AbstractContextManager[Any]:
    def settle(self: Progress) -> None:
        if not self.pending:
            self.durable = max(self.durable, self.position)

    return patch.object(Progress, "_settle", settle)


@breaks("what is gathered is not durable")
def _gathered_counts() -> AbstractContextManager[Any]:
    def settle(self: Progress) -> None:
        if self.in_flight is None:
            self.durable = max(self.durable, self.position)

    return patch.object(Progress, "_settle", settle)


@breaks("a BEGIN's LSN is nothing to acknowledge")
def _begin_counts() -> AbstractContextManager[Any]:
    begin = Progress.begin

    def mutated(self: Progress, commit_lsn: CommitLsn) -> None:
        begin(self, commit_lsn)
        self.durable = max(self.durable, Boundary(commit_lsn))

    return patch.object(Progress, "begin", mutated)


@breaks("positions do not go back with the server's")
def _position_falls() -> AbstractContextManager[Any]:
    def advance(self: Progress, boundary: Boundary) -> None:
        self.position = boundary
        if not self.pending and self.in_flight is None:
            self.durable = boundary

    return patch.object(Progress, "_advance", advance)


@breaks("the store holds a ceiling before the slot is acknowledged")
def _no_ceiling() -> AbstractContextManager[Any]:
    return patch.object(StreamCore, "ack", property(lambda self: self.progress.durable))


# -- fencing ----------------------------------------------------------------------------------------------------------

_write = fencing.write


@breaks("a write starts from the expected position")
def _any_position() -> AbstractContextManager[Any]:
    def moved(record: fencing.Record, move: Move) -> fencing.Record:
        return replace(record, position=move.to)

    return patch.object(fencing, "_moved", moved)


@breaks(
    "a write is of the table's generation", exactly_once=True, tables=1, operator=0.04, mishaps=("pause of a writer",)
)
def _any_generation() -> AbstractContextManager[Any]:
    return patch.object(fencing, "_refuse_other_generation", lambda *_: None)


@breaks("a write is of the epoch that has claimed")
def _any_epoch() -> AbstractContextManager[Any]:
    def write(epoch: int, claimed: int | None, records: Any, moves: Any) -> Any:
        del claimed
        return _write(epoch, epoch, records, moves)

    return patch.object(fencing, "write", write)


@breaks("a superseded copy attempt publishes nothing")
def _superseded_publishes() -> AbstractContextManager[Any]:
    return patch.object(fencing, "_refuse_superseded", lambda *_: None)


@breaks("a copy attempt loses to a later one in the store")
def _any_attempt() -> AbstractContextManager[Any]:
    def finish(state: TableState, event: phases.CopyFinished) -> TableState:
        return replace(state, phase=phases.FinishedCopy(event.boundary), copied=event.boundary)

    return patch.object(phases, "_finish_copy", finish)


@breaks("an event of another generation is refused")
def _stale_events() -> AbstractContextManager[Any]:
    transition = phases.transition

    def mutated(state: TableState, event: phases.Event) -> TableState | phases.Refused:
        return transition(state, replace(event, generation=state.generation))

    return patch.object(transitions, "transition", mutated)


@breaks("a worker whose epoch has passed says nothing any more")
def _stale_workers() -> AbstractContextManager[Any]:
    return patch.object(memory, "superseded", lambda *_: None)


@breaks("what is said of a hand-over that was given up is void", troubled=("store",), late=0.1, mishaps=("cut",))
def _stale_handovers() -> AbstractContextManager[Any]:
    transition = phases.transition

    def mutated(state: TableState, event: Any) -> TableState | phases.Refused:
        if hasattr(event, "handover"):
            event = replace(event, handover=phases.handover_of(state))
        return transition(state, event)

    return patch.object(transitions, "transition", mutated)


# -- hand-over --------------------------------------------------------------------------------------------------------


@breaks("the apply stream does not read during a hand-over")
def _reads_on() -> AbstractContextManager[Any]:
    return patch.object(ApplyCore, "reading", StreamCore.reading)


@breaks("the target is at or behind the apply stream's position")
def _target_behind_apply() -> AbstractContextManager[Any]:
    def targets(self: ApplyCore, tables: list[TableName]) -> dict[TableName, phases.Event]:
        states = ((table, self.states[table]) for table in tables)
        return {
            table: phases.TargetChosen(state.generation, state.phase.position, state.phase.handover)
            for table, state in states
            if isinstance(state.phase, phases.SyncWait)
        }

    return patch.object(ApplyCore, "_targets", targets)


@breaks("a group's tables are moved to where it arrives before that is recorded")
def _positions_not_moved() -> AbstractContextManager[Any]:
    def close(self: CatchupCore) -> None:
        here = self.progress.position
        self._record(
            {t: CaughtUp(self.states[t].generation, here, phases.handover_of(self.states[t])) for t in self.tables}
        )

    return patch.object(CatchupCore, "_close", close)


@breaks("SyncDone is at or behind the target")
def _stops_early() -> AbstractContextManager[Any]:
    hand_over = phases._hand_over

    def mutated(state: TableState, event: Any) -> TableState | phases.Refused:
        match state.phase, event:
            case phases.Catchup(), CaughtUp(_, reached):
                return replace(state, phase=SyncDone(reached))
            case _:
                return hand_over(state, event)

    def arrived(self: CatchupCore) -> bool:
        return self._target is not None and self.progress.transaction is None

    @contextmanager
    def both() -> Iterator[None]:
        with patch.object(phases, "_hand_over", mutated), patch.object(CatchupCore, "_arrived", property(arrived)):
            yield

    return both()


@breaks("a restarted catch-up reads to where its tables stand", exactly_once=True, mishaps=("cut",))
def _arrives_behind() -> AbstractContextManager[Any]:
    def arrived(self: CatchupCore) -> bool:
        target = self._target
        return target is not None and self.progress.transaction is None and self.progress.position >= target

    return patch.object(CatchupCore, "_arrived", property(arrived))


@breaks("the apply stream owns a table only from its SyncDone on")
def _owns_before() -> AbstractContextManager[Any]:
    def owns(state: TableState, position: Boundary, commit_lsn: CommitLsn) -> bool:
        following = isinstance(state.phase, SyncDone | phases.Ready | phases.FinishedCopy)
        return following and not position.covers(commit_lsn)

    return patch("airflow_provider_pgetl.engine.sync.apply.apply_owns", owns)


@breaks("Ready only when the apply stream is durable up to the hand-over")
def _ready_at_once() -> AbstractContextManager[Any]:
    def take_over(self: ApplyCore) -> dict[TableName, phases.Event]:
        states = ((table, self.states[table]) for table in self._arriving)
        return {t: TakenOver(s.generation, s.phase.boundary) for t, s in states if isinstance(s.phase, SyncDone)}

    return patch.object(ApplyCore, "_take_over", take_over)


# -- gathering and failing --------------------------------------------------------------------------------------------


@breaks("positions are read table by table, in the destination")
def _largest_position() -> AbstractContextManager[Any]:
    positions = Stream._positions

    def mutated(self: Stream, states: Mapping[TableName, TableState]) -> Call[dict[TableName, Boundary]]:
        found = yield from positions(self, states)
        return dict.fromkeys(found, max(found.values(), default=START))

    return patch.object(Stream, "_positions", mutated)


@breaks(
    "a batch never mixes two generations of a table", exactly_once=True, tables=2, operator=0.06, mishaps=("poison",)
)
def _mixed_batches() -> AbstractContextManager[Any]:
    def abandon(self: StreamCore, let_go: Mapping[TableName, int]) -> None:
        self._renewed |= let_go
        for table in let_go:
            self.positions.pop(table, None)

    return patch.object(StreamCore, "_abandon", abandon)


@breaks("an error is durable before a batch without its table is")
def _skips_poison() -> AbstractContextManager[Any]:
    write_failed = StreamCore.write_failed

    def mutated(self: StreamCore, *, blame: Mapping[TableName, Any] | None = None, **rest: Any) -> None:
        write_failed(self, blame=blame, **rest)
        if self._flight is not None and blame:
            kept = {table: move for table, move in self._flight.write.moves.items() if table not in blame}
            self._outbox.events = {t: e for t, e in self._outbox.events.items() if not isinstance(e, Failed)}
            self._shrink(self._flight, kept)

    return patch.object(StreamCore, "write_failed", mutated)


@breaks("an Errored table keeps its group's slot where it was")
def _slot_moves_on() -> AbstractContextManager[Any]:
    return patch.object(CatchupCore, "ack", property(lambda self: self.progress.durable))


@breaks("a slot is kept while a table needs it")
def _slots_dropped() -> AbstractContextManager[Any]:
    def to_drop(states: upkeep.States, slots: Collection[int], live: Collection[int]) -> list[int]:
        del states
        return sorted(set(slots) - set(live))

    return patch.object(upkeep, "slots_to_drop", to_drop)


@breaks("a slot that nobody needs is dropped")
def _slots_leak() -> AbstractContextManager[Any]:
    return patch.object(upkeep, "slots_to_drop", lambda *_: [])


@breaks("a dead copy's tables are found")
def _dead_copies_stay() -> AbstractContextManager[Any]:
    return patch.object(upkeep, "dead_copies", lambda *_: {})


@breaks("groups that wait for a person hold up no others")
def _errored_groups_count() -> AbstractContextManager[Any]:
    def under_way(states: upkeep.States, live: Collection[int]) -> int:
        holding = {state.attempt for state in states.values() if phases.needs_group_slot(state)}
        return len(set(live) | holding)

    return patch.object(upkeep, "groups_under_way", under_way)


# -- destinations that go back in time, or have no fences -------------------------------------------------------------

_RESTORED: dict[str, Any] = {"exactly_once": True, "mishaps": ("backup", "restore", "crash")}
_PLAIN: dict[str, Any] = {"exactly_once": False, "tables": 1, "operator": 0.06, "mishaps": ("pause of a writer",)}


@breaks("a restored destination is known by the marks that were noted", **_RESTORED)
def _marks_not_noted() -> AbstractContextManager[Any]:
    return patch.object(memory.MemoryStore, "raise_high_water", lambda *_: None)


@breaks("a table is Ready only when the store has noted where it stands", **_RESTORED)
def _ready_unnoted() -> AbstractContextManager[Any]:
    return patch.object(ApplyCore, "_is_noted", lambda *_: True)


@breaks("without fences a copy waits until no stream holds the generation before", **_PLAIN)
def _copies_at_once() -> AbstractContextManager[Any]:
    return patch.object(copies, "_is_let_go", lambda *_: True)


@breaks("a new generation is acknowledged when no write holds the one before", **_PLAIN)
def _acknowledged_at_once() -> AbstractContextManager[Any]:
    def acknowledge(self: StreamCore) -> None:
        renewed, self._renewed = self._renewed, {}
        if renewed:
            self._commands.append(Acknowledge(renewed))

    return patch.object(StreamCore, "_acknowledge", acknowledge)
