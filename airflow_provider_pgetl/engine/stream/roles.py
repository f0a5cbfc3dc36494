"""The two roles of a stream core: `ApplyCore` and `CatchupCore`.

The apply stream owns every Ready table, and takes over the tables that have caught up. Its side of the hand-over: it
answers a group in SyncWait as soon as it is outside a transaction. The target is c = max(its own position, that of the
catch-up stream), recorded as Catchup{c}. Once the target is chosen, the apply stream reads no further until the store
shows the group in another phase: SyncDone{l}, after which the apply stream owns the changes at or after l; or
FinishedCopy, Errored or Init, after which it does not wait for the group any more. If it read on, it could pass l
before it has seen it, and no stream would apply the changes between.

A catch-up that does not arrive within `handover_patience` is demoted, by compare-and-set: if its SyncDone came first,
SyncDone stands. Each group has its own patience, and a group that was demoted is not waited for again before as much
time has passed: a group that never arrives costs the others half their time at most.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

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
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.state.decisions import demotions
from airflow_provider_pgetl.engine.stream.core import Beginning, Pace, States, StreamCore

# -- Ownership: which stream applies a change. Only these functions decide it. -----------------------------------------
#
# Exactly one stream owns each change of a table
#
# * the **apply stream**, iff the table is Ready or SyncDone{l}: the table had no change from its position there to l;
# * the **catch-up stream** of the table's group, iff the table is in FinishedCopy, SyncWait or Catchup. It stops at a
#   boundary l at or after its target before the table becomes SyncDone{l}, so it never receives a change at or after l.
#
# No stream applies a change that the destination has already: one before the table's position there.


def apply_owns(state: TableState, position: Boundary, commit_lsn: CommitLsn) -> bool:
    """Returns whether the apply stream must apply a change of this transaction to a table at `position`."""
    match state.phase:
        case Ready() | SyncDone():
            return not position.covers(commit_lsn)
        case _:
            return False


def catchup_owns(state: TableState, attempt: int, position: Boundary, commit_lsn: CommitLsn) -> bool:
    """Returns whether the catch-up stream of group `attempt` must apply a change of this transaction."""
    return catching_up(state, attempt) and not position.covers(commit_lsn)


def catching_up(state: TableState, attempt: int) -> bool:
    """Returns whether the catch-up stream of group `attempt` carries the table."""
    return state.attempt == attempt and isinstance(state.phase, FinishedCopy | SyncWait | Catchup)


# -- Roles. ------------------------------------------------------------------------------------------------------------


class ApplyCore(StreamCore):
    def __init__(
        self,
        beginning: Beginning,
        ceiling: Boundary = START,
        pace: Pace = Pace(),
        counted: Mapping[TableName, Counted] | None = None,
    ) -> None:
        super().__init__(beginning, ceiling, pace, counted)
        states, positions = beginning.states, beginning.positions
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
        """The tables whose hand-over is under way. None within a transaction: a request is answered after its end."""
        if self.progress.transaction is not None or not self._handing_over:
            return []
        return [table for table in self._handing_over if not self._is_put_off(table)]

    def _is_put_off(self, table: TableName) -> bool:
        """Returns whether the hand-over of the table waits. Only a table in SyncWait can wait: for one with a target
        this stream has stopped reading already. It waits until the source is known to send the same history, which
        requires reading on, and for a time after it was demoted."""
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
        """Demotes tables that have a target and do not arrive in time: this stream cannot read on while it waits for
        them."""
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
        """Returns one target for all tables of a group, which are handed over together."""
        phases = [self.states[table].phase for table in tables]
        asked = [phase.position for phase in phases if isinstance(phase, SyncWait)]
        target = max([self.progress.position, *asked])
        states = ((table, self.states[table]) for table in tables)
        return {table: TargetChosen(state.generation, target, handover_of(state)) for table, state in states}

    def _take_over(self) -> dict[TableName, Event]:
        """Returns the events that make arrived tables Ready. None while this stream still repeats changes that Ready
        tables had before its start: a new Ready table would show less of a transaction than the others. None for a
        table before the store has recorded its position: only by that record can a restored destination be detected for
        a Ready table."""
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
        """Updates the hand-overs. The position of a table in SyncDone is, in the destination, the one that SyncDone
        names."""
        del renewed  # their positions are removed already; SyncDone brings new ones
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


# -- A catch-up stream carries one sync group from its snapshot to the hand-over. --------------------------------------
#
# It reads the group's own slot from the consistent point and applies the group's tables. When it is near the apply
# stream it asks for a target (SyncWait). With a target c it reads to the first boundary l at or after c, makes
# everything before l durable, and records SyncDone{l}, with the position that each table has: a table that did not
# change is not written to, as the apply stream waits meanwhile. By itself the stream ends only when the store shows
# that no table of the group is left to catch up, or that one was rolled back.
#
# Near means few bytes behind the apply stream. The longer it takes to come near, the more bytes are near enough, so
# that a group that can only keep pace is handed over too, at the price of a longer pause.
#
# A table of the group that becomes Errored, or is rolled back, holds the slot's confirmation where it was at that
# moment, when all earlier changes of the table were durable: the next catch-up of the group can read again what the
# table lacks. (The table's position cannot serve for this: that of a table with few changes lies far below what is
# confirmed already, and the confirmation must never fall.)


class CatchupCore(StreamCore):
    """The role of the catch-up stream of one sync group, that of copy attempt `attempt`."""

    def __init__(self, attempt: int, beginning: Beginning, pace: Pace = Pace()) -> None:
        super().__init__(beginning, beginning.start, pace)
        self.attempt = attempt
        self._apply_position: Boundary | None = None
        self._asked: Boundary | None = None
        self._began: float | None = None
        self._carried: dict[TableName, TableState] = {}
        self._target: Boundary | None = None
        self._copied_at: Boundary | None = None
        self._note_carried(self.states)
        self._left = dict.fromkeys(beginning.states.keys() - self._carried.keys(), beginning.start)

    def apply_stands_at(self, position: Boundary) -> None:
        """Notes the position of the apply stream, which the worker sends in each of its rounds."""
        self._apply_position = position

    @property
    def reading(self) -> bool:
        return super().reading and not self._arrived

    @property
    def ack(self) -> Boundary:
        """The boundary that may be confirmed to the server: changes that an unfinished table lacks stay in the slot."""
        kept = [at for table, at in self._left.items() if self._needs_slot(table)]
        return min([super().ack, *kept])

    @property
    def _ceiling_key(self) -> str:
        return f"c{self.attempt}"

    def _needs_slot(self, table: TableName) -> bool:
        state = self.states.get(table)
        return state is not None and state.attempt == self.attempt and needs_group_slot(state)

    def recorded(self, states: Mapping[TableName, TableState | None]) -> None:
        """Notes `durable` for tables that leave this stream: their changes before it are durable, those under way may
        not be."""
        durable = self.progress.durable
        carried = {table: self._carried[table].generation for table in states if table in self._carried}
        super().recorded(states)
        for table, generation in carried.items():
            if table not in self._carried or self._carried[table].generation != generation:
                self._left.setdefault(table, durable)

    def _note_carried(self, changed: Collection[TableName]) -> None:
        """Updates what follows from the states of all tables, so that no step of the stream has to examine each of
        them. The target is known once every table of the group is in Catchup."""
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
        """Whether the stream is at or after its target, between transactions, so that nothing more may be read. Not
        before any table's own position: a restarted stream repeats changes that its tables have, and no SyncDone may be
        before those."""
        target, here = self._target, self.progress.position
        if target is None or self.progress.transaction is not None or here < target:
            return False
        return all(self.positions.get(table, START) <= here for table in self._carried)

    @property
    def _urgent(self) -> bool:
        return self._target is not None

    def _decide_unrecognized(self) -> None:
        """Decides nothing: a catch-up stream reads on."""

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
        """Asks for a target if this stream is near the apply stream. Returns whether it has asked."""
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
        """Whether every table is copied and whole: a table that was truncated while it was copied is whole only from
        the boundary of its FinishedCopy on."""
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
        """The boundary by which `_near` is judged. It is `durable` while a write is under way, as the apply stream
        would wait for that write. It is `position` while changes only wait for the write interval, as they would be
        written at once."""
        waits = self.progress.in_flight is None and self.now < self._next_write
        return self.progress.position if waits else self.progress.durable

    def _close(self) -> None:
        """Records CaughtUp once everything gathered is durable."""
        if self.progress.at_rest:
            self._record({table: self._caught_up(table, state) for table, state in self._carried.items()})

    def _caught_up(self, table: TableName, state: TableState) -> CaughtUp:
        position = self.positions.get(table, START)
        return CaughtUp(state.generation, self.progress.position, position, handover_of(state))

    def _states_changed(self, changed: Collection[TableName], renewed: Collection[TableName]) -> None:
        """Updates the group. After a rollback of one of its tables the stream finishes, to start again: the table may
        need changes that this connection has already received."""
        self._note_carried(changed)
        self._asked = None
        if any(self.states[table].attempt == self.attempt for table in renewed):
            self._finish("a table of the group was rolled back")
