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

from airflow_provider_pgetl.engine.model.phases import (
    CameNear,
    Catchup,
    CaughtUp,
    Event,
    FinishedCopy,
    Ready,
    SyncDone,
    SyncWait,
    TableState,
    TakenOver,
    TargetChosen,
    handover_of,
    needs_group_slot,
)
from airflow_provider_pgetl.engine.model.positions import START, Boundary, CommitLsn, Counted
from airflow_provider_pgetl.engine.model.recognition import Seen
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.state.decisions import demotions
from airflow_provider_pgetl.engine.stream.core import Pace, States, StreamCore

# -- Who may apply a change: the one place that decides it. ------------------------------------------------------------
#
# Of a table's changes, exactly one stream owns each
#
# * the **apply stream**, iff the table is Ready or SyncDone{l}: the table had no change from its position there to l;
# * the **catch-up stream** of the table's group, iff the table is in FinishedCopy, SyncWait or Catchup. It stops at a
#   boundary l at or behind its target before the table becomes SyncDone{l}, so it never meets a change at or behind l.
#
# And nobody applies a change that the destination has already: one before the table's position there.


def apply_owns(state: TableState, position: Boundary, commit_lsn: CommitLsn) -> bool:
    """Whether the apply stream is to apply a change of this transaction to a table at `position`."""
    match state.phase:
        case Ready() | SyncDone():
            return not position.covers(commit_lsn)
        case _:
            return False


def catchup_owns(state: TableState, attempt: int, position: Boundary, commit_lsn: CommitLsn) -> bool:
    """Whether the catch-up stream of group `attempt` is to apply a change of this transaction."""
    return catching_up(state, attempt) and not position.covers(commit_lsn)


def catching_up(state: TableState, attempt: int) -> bool:
    """Whether the table is in the hands of the catch-up stream of this group."""
    return state.attempt == attempt and isinstance(state.phase, FinishedCopy | SyncWait | Catchup)


# -- Roles. ------------------------------------------------------------------------------------------------------------


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


# -- A catch-up stream: it carries one sync group from its snapshot to the hand-over. ----------------------------------
#
# It reads the group's own slot from the consistent point and applies the group's tables. When it is near the apply
# stream it asks for a target (SyncWait); with a target c it reads to the first boundary l at or behind c, makes
# everything before l durable, and records SyncDone{l}, with the position that each table has: one that did not change
# is not written to, as the apply stream waits meanwhile. Only the store's word ends the stream.
#
# Near means few bytes behind the apply stream; the longer it takes to come near, the more bytes are near enough, so
# that a group that can only keep pace is handed over too, at the price of a longer pause.
#
# A table of the group that becomes Errored, or is rolled back, keeps the slot's confirmation where it was at that
# moment, when all of the table's changes before were durable: what it has not got can be read again by the next
# catch-up of the group. (Its position would not do: a quiet table lies far below what is confirmed already, and that
# must never fall.)


class CatchupCore(StreamCore):
    """The role of the catch-up stream of one group."""

    def __init__(
        self,
        attempt: int,
        start: Boundary,
        states: States,
        positions: Mapping[TableName, Boundary],
        pace: Pace = Pace(),
        seen: Sequence[Seen] = (),
        ends: Collection[Boundary] = (),
        others: Collection[Seen] = (),
        server: int = 0,
    ) -> None:
        super().__init__(start, states, positions, start, pace, seen, ends, others, server)
        self.attempt = attempt
        self._apply_position: Boundary | None = None
        self._asked: Boundary | None = None
        self._began: float | None = None
        self._carried: dict[TableName, TableState] = {}
        self._target: Boundary | None = None
        self._copied_at: Boundary | None = None
        self._note_carried(self.states)
        self._left = dict.fromkeys(states.keys() - self._carried.keys(), start)

    def apply_stands_at(self, position: Boundary) -> None:
        """Where the apply stream is; it says so after each boundary."""
        self._apply_position = position

    @property
    def reading(self) -> bool:
        return super().reading and not self._arrived

    @property
    def ack(self) -> Boundary:
        """What an unfinished table lacks stays in the slot."""
        kept = [at for table, at in self._left.items() if self._needs_slot(table)]
        return min([super().ack, *kept])

    @property
    def _ceiling_key(self) -> str:
        return f"c{self.attempt}"

    def _needs_slot(self, table: TableName) -> bool:
        state = self.states.get(table)
        return state is not None and state.attempt == self.attempt and needs_group_slot(state)

    def recorded(self, states: Mapping[TableName, TableState | None]) -> None:
        """What leaves this stream had, until now, all its changes before `durable`; not so what was under way."""
        durable = self.progress.durable
        carried = {table: self._carried[table].generation for table in states if table in self._carried}
        super().recorded(states)
        for table, generation in carried.items():
            if table not in self._carried or self._carried[table].generation != generation:
                self._left.setdefault(table, durable)

    def _note_carried(self, changed: Collection[TableName]) -> None:
        """What follows from the tables' states, so that no step of the stream has to look at each of them. The target
        is known once every table of the group has been given it."""
        for table in changed:
            state = self.states.get(table)
            if state is not None and catching_up(state, self.attempt):
                self._carried[table] = state
            else:
                self._carried.pop(table, None)
        phases = [state.phase for state in self._carried.values()]
        targets = [phase.boundary for phase in phases if isinstance(phase, Catchup)]
        self._target = max(targets) if targets and len(targets) == len(phases) else None
        copied = [phase.boundary for phase in phases if isinstance(phase, FinishedCopy)]
        self._copied_at = max(copied) if copied and len(copied) == len(phases) else None

    def owns(self, table: TableName, commit_lsn: CommitLsn) -> bool:
        state = self.states.get(table)
        position = self.positions.get(table, START)
        return state is not None and catchup_owns(state, self.attempt, position, commit_lsn)

    def _holds(self, state: TableState) -> bool:
        return catching_up(state, self.attempt)

    @property
    def tables(self) -> list[TableName]:
        """The tables that this stream still carries."""
        return list(self._carried)

    @property
    def _arrived(self) -> bool:
        """At or behind the target, between transactions: nothing more may be read. And not before a table's own
        position: a restarted stream repeats what its tables have, and no SyncDone may be before that."""
        target, here = self._target, self.progress.position
        if target is None or self.progress.transaction is not None or here < target:
            return False
        return all(self.positions.get(table, START) <= here for table in self._carried)

    @property
    def _urgent(self) -> bool:
        return self._target is not None

    def _decide_unrecognized(self) -> None:
        """Nothing: it reads on."""

    def _decide_role(self) -> None:
        if self._began is None:
            self._began = self.now
        if not self._carried:
            self._finish("no table of the group is left to catch up")
        elif self._arrived:
            self._close()
        elif self._target is not None or not self._ask_for_target():
            self._ask_position()

    def _ask_for_target(self) -> bool:
        """Ask if we are near; whether we have asked."""
        idle = self.progress.transaction is None
        if self._asked is None and idle and self._near and self._all_copied:
            self._asked = self.progress.position
        if self._asked is None:
            return False
        asked = self._asked
        self._record({t: CameNear(s.generation, asked, handover_of(s)) for t, s in self._carried.items()})
        return True

    @property
    def _all_copied(self) -> bool:
        """And whole: what a table lacks that was truncated while it was copied is gone from its FinishedCopy on."""
        return self._copied_at is not None and self._copied_at <= self.progress.position

    @property
    def _near(self) -> bool:
        if self._apply_position is None:
            return False
        waited = self.now - (self._began if self._began is not None else self.now)
        reach = self.pace.near_bytes << min(int(waited / self.pace.near_doubles_every), 6)
        return self._apply_position.lsn - self._reached.lsn <= reach

    @property
    def _reached(self) -> Boundary:
        """What is durable: the apply stream would wait for a write under way. Not so for what only waits for its time
        to be written: that would be written at once."""
        waits = self.progress.in_flight is None and self.now < self._next_write
        return self.progress.position if waits else self.progress.durable

    def _close(self) -> None:
        """Everything gathered first, then the record."""
        if self.progress.at_rest:
            self._record({table: self._caught_up(table, state) for table, state in self._carried.items()})

    def _caught_up(self, table: TableName, state: TableState) -> CaughtUp:
        position = self.positions.get(table, START)
        return CaughtUp(state.generation, self.progress.position, position, handover_of(state))

    def _states_changed(self, changed: Collection[TableName], renewed: Collection[TableName]) -> None:
        """A rollback within the group: its table may need changes that have passed, so the stream starts anew."""
        self._note_carried(changed)
        self._asked = None
        if any(self.states[table].attempt == self.attempt for table in renewed):
            self._finish("a table of the group was rolled back")
