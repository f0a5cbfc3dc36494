"""The apply stream: it owns every Ready table, and takes over those that have caught up.

Hand-over, seen from here. A group in SyncWait is answered at the next moment outside a transaction: its target is
c = max(our position, the catch-up's), recorded as Catchup{c}. From the moment the target is chosen we read no further
until the store shows the group elsewhere: SyncDone{l}, after which changes at or behind l are ours; or FinishedCopy,
Errored, Init, after which it is not our business. Had we read on, we could have passed l before knowing it, and the
changes between would be nobody's.

A catch-up that does not arrive within `handover_patience` is demoted, by compare-and-set: if its SyncDone came first,
that stands. Each group has its own patience, and one that was demoted is not waited for again before as much time has
passed: a group that never arrives costs the others half their time at most.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from airflow_provider_pgetl.engine.phases import (
    Catchup,
    Event,
    FinishedCopy,
    Ready,
    SyncDone,
    SyncWait,
    TableState,
    TakenOver,
    TargetChosen,
    handover_of,
)
from airflow_provider_pgetl.engine.positions import START, Boundary, CommitLsn, Counted
from airflow_provider_pgetl.engine.recognition import Seen
from airflow_provider_pgetl.engine.sync.core import Pace, States, StreamCore
from airflow_provider_pgetl.engine.sync.ownership import apply_owns
from airflow_provider_pgetl.engine.sync.upkeep import demotions
from airflow_provider_pgetl.engine.tables import TableName


class ApplyCore(StreamCore):
    """The role of the apply stream."""

    def __init__(
        self,
        start: Boundary,
        states: States,
        positions: Mapping[TableName, Boundary],
        ceiling: Boundary = START,
        pace: Pace = Pace(),
        seen: Sequence[Seen] = (),
        ends: Collection[Boundary] = (),
        others: Collection[Seen] = (),
        server: int = 0,
        counted: Mapping[TableName, Counted] | None = None,
    ) -> None:
        super().__init__(start, states, positions, ceiling, pace, seen, ends, others, server, counted)
        self._waiting_since: dict[TableName, float] = {}
        self._not_before: dict[TableName, float] = {}
        self._answer_at = float("-inf")
        self._handing_over: dict[TableName, None] = {}
        self._arriving: dict[TableName, SyncDone] = {}
        self._replays_to = max((at for t, at in positions.items() if _is_ready(states, t)), default=START)
        self._states_changed(self.states, ())

    @property
    def reading(self) -> bool:
        return super().reading and not self._waiting_for

    @property
    def _waiting_for(self) -> list[TableName]:
        """The tables whose hand-over is under way. One that asks within a transaction waits for its end."""
        if self.progress.transaction is not None or not self._handing_over:
            return []
        return [table for table in self._handing_over if not self._is_put_off(table)]

    def _is_put_off(self, table: TableName) -> bool:
        """Only one that asks can be put off: for one with a target we have stopped already. It is, until the source is
        known to send the same history: for that we must read on."""
        if not isinstance(self.states[table].phase, SyncWait):
            return False
        return not self.recognition.complete or self.now < self._not_before.get(table, self.now)

    @property
    def _urgent(self) -> bool:
        return bool(self._waiting_for)

    def owns(self, table: TableName, commit_lsn: CommitLsn) -> bool:
        state = self.states.get(table)
        return state is not None and apply_owns(state, self.positions.get(table, START), commit_lsn)

    def _holds(self, state: TableState) -> bool:
        return isinstance(state.phase, Ready | SyncDone)

    def _decide_unrecognized(self) -> None:
        """One that has a target and does not arrive is not waited for without end: we could not read on meanwhile."""
        waiting = self._waiting_for
        self._note_waiting(waiting)
        self._record(self._answers(waiting))

    def _decide_role(self) -> None:
        waiting = self._waiting_for
        self._note_waiting(waiting)
        if waiting and self.now >= self._answer_at and self._abandoned.isdisjoint(waiting):
            self._record(self._answers(waiting))
            self._answer_at = self.now + self.pace.record_retry
        self._record(self._take_over())
        if self._arriving:
            self._ask_position()

    def _note_waiting(self, waiting: list[TableName]) -> None:
        self._waiting_since = {table: self._waiting_since.get(table, self.now) for table in waiting}

    def _answers(self, waiting: list[TableName]) -> dict[TableName, Event]:
        late = [table for table in waiting if self._is_late(table)]
        return self._chosen(set(waiting) - set(late)) | demotions({table: self.states[table] for table in late})

    def _is_late(self, table: TableName) -> bool:
        return self.now - self._waiting_since.get(table, self.now) > self.pace.handover_patience

    def _chosen(self, waiting: Collection[TableName]) -> dict[TableName, Event]:
        groups: dict[int | None, list[TableName]] = {}
        for table in sorted(waiting):
            if isinstance(self.states[table].phase, SyncWait):
                groups.setdefault(self.states[table].attempt, []).append(table)
        return {t: event for tables in groups.values() for t, event in self._targets(tables).items()}

    def _targets(self, tables: list[TableName]) -> dict[TableName, Event]:
        """One target for a whole group, which moves as one."""
        phases = [self.states[table].phase for table in tables]
        asked = [phase.position for phase in phases if isinstance(phase, SyncWait)]
        target = max([self.progress.position, *asked])
        states = ((table, self.states[table]) for table in tables)
        return {table: TargetChosen(state.generation, target, handover_of(state)) for table, state in states}

    def _take_over(self) -> dict[TableName, Event]:
        """Not while this stream still repeats what Ready tables have from before its start: a newcomer among them would
        show less of a transaction than they do. Nor before the store has noted where the table stands: a Ready table in
        a restored destination is known by that alone."""
        if self.progress.durable < self._replays_to:
            return {}
        return {
            table: TakenOver(self.states[table].generation, arrived.boundary)
            for table, arrived in self._arriving.items()
            if self.progress.durable >= arrived.boundary and self._is_noted(table, arrived)
        }

    def _is_noted(self, table: TableName, arrived: SyncDone) -> bool:
        return self._noted_high.get(table, START) >= arrived.position

    @property
    def _marks_wanted(self) -> bool:
        return any(not self._is_noted(table, arrived) for table, arrived in self._arriving.items())

    def _states_changed(self, changed: Collection[TableName], renewed: Collection[TableName]) -> None:
        """A table that has just arrived stands, in the destination, at the position of its SyncDone."""
        del renewed  # their positions are forgotten already; they come back by SyncDone
        self._answer_at = self.now
        for table in changed:
            phase = self.states[table].phase if table in self.states else None
            if isinstance(phase, FinishedCopy) and table in self._handing_over and self._is_late(table):
                self._not_before[table] = self.now + self.pace.handover_patience
            self._handing_over.pop(table, None)
            self._arriving.pop(table, None)
            match phase:
                case SyncWait() | Catchup():
                    self._handing_over[table] = None
                case SyncDone(_, position) as arrived:
                    self._arriving[table] = arrived
                    self.positions[table] = self._seen_high[table] = max(self.positions.get(table, START), position)
                case _:
                    pass


def _is_ready(states: States, table: TableName) -> bool:
    return table in states and isinstance(states[table].phase, Ready)
