"""A catch-up stream: it carries one sync group from its snapshot to the hand-over.

It reads the group's own slot from the consistent point and applies the group's tables. When it is near the apply
stream it asks for a target (SyncWait); with a target c it reads to the first boundary l at or behind c, makes
everything before l durable, and records SyncDone{l}, with the position that each table has: one that did not change
is not written to, as the apply stream waits meanwhile. Only the store's word ends the stream.

Near means few bytes behind the apply stream; the longer it takes to come near, the more bytes are near enough, so that
a group that can only keep pace is handed over too, at the price of a longer pause.

A table of the group that becomes Errored, or is rolled back, keeps the slot's confirmation where it was at that moment,
when all of the table's changes before were durable: what it has not got can be read again by the next catch-up of the
group. (Its position would not do: a quiet table lies far below what is confirmed already, and that must never fall.)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from airflow_provider_pgetl.engine.phases import (
    CameNear,
    Catchup,
    CaughtUp,
    FinishedCopy,
    TableState,
    handover_of,
    needs_group_slot,
)
from airflow_provider_pgetl.engine.positions import START, Boundary, CommitLsn
from airflow_provider_pgetl.engine.recognition import Seen
from airflow_provider_pgetl.engine.sync.core import Pace, States, StreamCore
from airflow_provider_pgetl.engine.sync.ownership import catching_up, catchup_owns
from airflow_provider_pgetl.engine.tables import TableName


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
