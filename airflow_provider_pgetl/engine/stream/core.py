"""The core of a stream: what to read, write, record and acknowledge. Pure: no socket, no thread, no clock.

A `StreamCore` is fed with events (the boundaries of the stream, answers of the writer and of the store, the time) and
returns `commands()`. The apply stream and the catch-up streams share this class and differ in two small roles
(`ApplyCore`, `CatchupCore` in `roles.py`). The same classes run under real threads and in the simulation.

Invariants
1. `ack` never passes a boundary below which an owned change is not durable (see `progress`), never passes the ceiling
   recorded in the store, and never falls.
2. At most one write is under way. A write consists of whole transactions and is retried, unchanged or for fewer tables,
   until it is done; nothing is skipped because a retry failed. A table whose generation changed while it was gathered
   is left out of that batch for good (`_abandoned`): a batch never holds two generations of a table.
3. A table leaves a write only when the store shows that this stream no longer owns it in that generation. So the error
   of a table is durable in the store before a batch without the table is durable in the destination.
4. A change of state counts only when it is read back from the store: an unanswered record is neither done nor refused.
   It is sent again.
5. The positions that moves start from come from the destination (at the start), from our own writes, and from SyncDone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_provider_pgetl.engine.model.errors import Backoff
from airflow_provider_pgetl.engine.model.phases import Event, Failed, TableState
from airflow_provider_pgetl.engine.model.positions import (
    START,
    Boundary,
    CommitLsn,
    Counted,
    HighWater,
    Recognition,
    RowCounts,
    Seen,
    Transaction,
)
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.state.decisions import TableFailure
from airflow_provider_pgetl.engine.state.store import APPLY_CEILING
from airflow_provider_pgetl.engine.stream.messages import (
    Acknowledge,
    AskPosition,
    Command,
    Finish,
    Planned,
    RecordCeiling,
    RecordEvents,
    Verify,
    Write,
)
from airflow_provider_pgetl.engine.stream.progress import Outbox, Progress

States = Mapping[TableName, TableState]


@dataclass(frozen=True, slots=True)
class Pace:
    """Intervals and time limits in seconds, and other limits. Correctness does not depend on any of them."""

    write_interval: float = 0.0
    record_retry: float = 1.0
    ceiling_interval: float = 1.0
    idle_ceiling_interval: float = 2.0
    write_retry_first: float = 0.2
    write_retry_most: float = 30.0
    handover_patience: float = 60.0
    ask_interval: float = 0.2
    near_bytes: int = 1 << 20
    near_doubles_every: float = 5.0
    fenced_most: int = 5

    @property
    def write_backoff(self) -> Backoff:
        return Backoff(self.write_retry_first, self.write_retry_most)


@dataclass(frozen=True, slots=True)
class Beginning:
    """The state in which a connection begins.

    `start`: the slot's confirmed position. `positions`: those of the tables in the destination. `seen`: what was seen
    before this connection; the furthest of the stream's own comes first. `ends`: where writes ended that the store has
    no record of. `others`, `server`: see `Recognition`.
    """

    start: Boundary
    states: States
    positions: Mapping[TableName, Boundary]
    seen: Sequence[Seen] = ()
    ends: Collection[Boundary] = ()
    others: Collection[Seen] = ()
    server: int = 0


@dataclass(slots=True)
class _Flight:
    """The write under way. `due`: when it is to be sent again, None while the writer has it. `rows`: how many changes
    of each table it holds; `commit_time`: that of its last transaction; `suspect`: the destination fenced it, and the
    store has not been read back since."""

    write: Write
    commit_time: int | None = None
    rows: Mapping[TableName, RowCounts] = field(default_factory=dict)
    failures: int = 0
    due: float | None = None
    suspect: bool = False


class StreamCore(ABC):
    """The part that both roles share: gathering, writing, failing, acknowledging."""

    def __init__(
        self,
        beginning: Beginning,
        ceiling: Boundary = START,
        pace: Pace = Pace(),
        counted: Mapping[TableName, Counted] | None = None,
    ) -> None:
        """`counted`: the counts made before this connection, by this process or as recorded in the store; a count is
        continued if it ends at the table's position."""
        start, seen, states, positions = beginning.start, beginning.seen, beginning.states, beginning.positions
        server = beginning.server
        self.progress = Progress(start, seen[0] if seen else None, server)
        self._uncounted: Transaction | None = None
        self.recognition = Recognition(start, seen, beginning.ends, beginning.others, server)
        self.another_history: str | None = None
        self.set_back: tuple[TableName, ...] = ()
        self._start = start
        self.states: dict[TableName, TableState] = dict(states)
        self.positions: dict[TableName, Boundary] = dict(positions)
        self.pace = pace
        self.now = 0.0
        self.finished: str | None = None
        self.refused = False
        self._ceiling = max(ceiling, START)
        self._ceiling_asked: Boundary | None = None
        self._ceiling_at = float("-inf")
        self.counted: dict[TableName, Counted] = dict(counted or {})
        self._seen_high: dict[TableName, Boundary] = dict(positions)
        self._told_high: dict[TableName, Boundary] = {}
        self._noted_high: dict[TableName, Boundary] = {}
        self._gathered: set[TableName] = set()
        self._abandoned: set[TableName] = set()
        self._flight: _Flight | None = None
        self._next_write = float("-inf")
        self._rests_until: dict[TableName, float] = {}
        self._hurried = False
        self._renewed = {table: state.generation for table, state in states.items()}
        self._outbox = Outbox()
        self._ask_due = 0.0
        self._commands: list[Command] = []
        self._draining = False

    # -- what the shell asks ------------------------------------------------------------------------------------------

    @property
    def reading(self) -> bool:
        """Whether the shell may take more from the stream."""
        return self.finished is None and not self._draining

    @property
    def ack(self) -> Boundary:
        """The boundary that may be confirmed to the server: it does not move before the source is recognized."""
        return min(self.progress.durable, self._ceiling) if self.recognition.complete else self._start

    @property
    def write_due(self) -> bool:
        """Whether `commands` would write what is gathered. Everything else that it decides can wait for the next round
        of the shell: so a shell that draws many short transactions calls it at a commit only if this is true."""
        progress = self.progress
        if self._flight is not None or not progress.pending or progress.transaction is not None or self._draining:
            return False
        if not self.recognition.complete:
            return False
        return self._urgent or self._hurried or self.now >= self._next_write

    @abstractmethod
    def owns(self, table: TableName, commit_lsn: CommitLsn) -> bool:
        """Returns whether this stream must apply the table's changes of the transaction."""

    def commands(self) -> list[Command]:
        """Returns what the shell must do now. Each command is returned once."""
        if self.finished is None:
            self._decide()
        commands, self._commands = self._commands, []
        return commands

    # -- what the shell tells: the stream -----------------------------------------------------------------------------

    def begin(self, commit_lsn: CommitLsn, xid: int = 0, commit_time: int = 0, *, may_be_empty: bool = False) -> None:
        """`may_be_empty`: the transaction may have no changes, but only messages, which are not sent to every
        connection. So it counts only from `changes_come` on."""
        transaction = Transaction(commit_lsn, xid, commit_time)
        self._uncounted = transaction
        if not may_be_empty:
            self.changes_come()
        self.progress.begin(transaction)

    def changes_come(self) -> None:
        """The open transaction has changes of tables, whether owned or not."""
        transaction, self._uncounted = self._uncounted, None
        if transaction is not None:
            self._recognize(self.recognition.transaction(transaction))

    def gathered(self, table: TableName) -> None:
        """The open transaction has changed a table that this stream owns."""
        self.progress.touch()
        if table not in self._gathered and table not in self._abandoned:
            self._gathered.add(table)
            self._next_write = max(self._next_write, self._rests_until.get(table, self._next_write))

    def commit(self, end: Boundary) -> None:
        is_empty, self._uncounted = self._uncounted is not None, None
        self.progress.commit(end, has_changes=not is_empty)
        self._recognize(self.recognition.reached(end) if is_empty else self.recognition.committed(end))

    def keepalive(self, position: Boundary) -> None:
        self.progress.keepalive(position)
        if self.progress.transaction is None:
            self._recognize(self.recognition.reached(position))

    def _recognize(self, different: str | None) -> None:
        """Finishes the stream if the source sends another history: nothing received since is written or confirmed."""
        if different is not None and self.another_history is None:
            self.another_history = f"the source went back to an earlier state: {different}"
            self._finish(self.another_history)

    def tick(self, now: float) -> None:
        self.now = max(self.now, now)

    # -- what the shell tells: the writer -----------------------------------------------------------------------------

    def carries(self, rows: Mapping[TableName, RowCounts]) -> None:
        """Notes how many changes of each table the write just commanded holds."""
        if self._flight is not None:
            self._flight.rows = rows

    def written(self) -> None:
        """The write under way is durable."""
        if self._flight is None:
            return
        counted = self.counted_in_flight
        for table, move in self._flight.write.moves.items():
            self._arrived_at(table, move, counted[table])
        self._flight = None
        self.progress.written()

    def write_failed(
        self,
        *,
        positions: Mapping[TableName, Boundary] | None = None,
        blame: Mapping[TableName, TableFailure] | None = None,
        fenced: bool = False,
    ) -> None:
        """The write under way failed. `positions` are the destination's after it, None if it could not be asked;
        `blame` the tables that cannot be written at all; `fenced`: the destination refused the write with `Fenced`."""
        if self._flight is None:
            return
        self._flight.failures += 1
        if fenced and self._flight.failures >= self.pace.fenced_most:
            self.refused = True
            self._finish("the destination goes on refusing this worker's writes")
            return
        self._flight.due = self.now + self.pace.write_backoff.after(self._flight.failures)
        if self._stands_elsewhere(positions or {}):
            return
        if positions is not None:
            self._drop_arrived(positions)
        self._settle_flight()
        if self._flight is not None:
            self._flight.suspect = fenced
            ours = {table: why for table, why in (blame or {}).items() if table in self._flight.write.moves}
            self._record({table: self._failed(table, why) for table, why in ours.items()})
        if fenced:
            self._commands.append(Verify())

    def _stands_elsewhere(self, positions: Mapping[TableName, Boundary]) -> bool:
        """Finishes the stream and returns True if the destination has a table of the write at a position before the
        known one. Whether that is a gap is decided by the next connection, which examines all tables and what their
        slots still hold."""
        moves = self._flight.write.moves if self._flight is not None else {}
        back = sorted(table for table, at in positions.items() if table in moves and at < moves[table].expected)
        if back:
            self.set_back = tuple(back)
            self._finish(f"the destination has {', '.join(map(str, back))} before where it had come already")
        return bool(back)

    # -- what the shell tells: the store ------------------------------------------------------------------------------

    def recorded(self, states: Mapping[TableName, TableState | None]) -> None:
        """Notes the present states of these tables in the store; None for a table that the store no longer has. Other
        tables are not affected."""
        changed = frozenset(table for table, state in states.items() if state != self.states.get(table))
        let_go = self._changed_generations(states)
        for table in changed:
            state = states[table]
            if state is None:
                del self.states[table]
            else:
                self.states[table] = state
        self._outbox.settle(changed)
        self._abandon(changed, let_go)
        self._settle_flight()
        if changed:
            self._states_changed(changed, let_go)

    def ceiling_recorded(self, boundary: Boundary) -> None:
        self._ceiling = max(self._ceiling, boundary)
        self._ceiling_asked = None
        self._noted_high |= self._told_high

    def ceiling_failed(self) -> None:
        """The ceiling was not recorded. The high-water marks sent with it are sent with the next one."""
        self._ceiling_asked = None
        self._seen_high = {**self._told_high, **self._seen_high}

    def hurry(self) -> None:
        """Makes what is gathered be written without regard to the write interval, because it is waited for or large."""
        self._hurried = True

    def drain(self) -> None:
        """Stops reading. Whole transactions that are gathered are left unwritten and unacknowledged."""
        self._draining = True

    def stop(self, why: str) -> None:
        self._finish(why)

    # -- deciding -----------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        self._retry_write()
        if not self.recognition.complete:
            self._ask_position()
            self._decide_unrecognized()
            return
        self._decide_role()
        self._start_write()
        self._acknowledge()
        self._raise_ceiling()

    @abstractmethod
    def _decide_unrecognized(self) -> None:
        """Decides what the role needs even before the source is known to send the same history."""

    @abstractmethod
    def _decide_role(self) -> None:
        """Decides what the role needs to record, to ask, or to finish."""

    @abstractmethod
    def _states_changed(self, changed: Collection[TableName], renewed: Collection[TableName]) -> None:
        """Updates the role after the states of the tables in `changed` have changed in the store; `renewed` are those
        of them that have a new generation."""

    def _start_write(self) -> None:
        if self.write_due:
            self._write(self._gathered)

    @property
    def _urgent(self) -> bool:
        """Whether what is gathered is waited for, so that it is written without regard to the write interval."""
        return False

    def _write(self, tables: Iterable[TableName]) -> None:
        """Commands the write of what was gathered, as moves of these tables to the boundary of `Progress.take`. If no
        table is left, the shell only drops what it gathered. The write interval applies to each table: a batch waits
        while one of its tables was written less than an interval ago; a batch of other tables does not."""
        boundary = self.progress.take()
        moves = {table: self._planned(table, boundary) for table in sorted(tables)}
        self._gathered, self._abandoned = set(), set()
        self._rests_until |= dict.fromkeys(moves, self.now + self.pace.write_interval)
        self._next_write = float("-inf")
        self._hurried = False
        seen = self.progress.seen_in_flight
        self._flight = _Flight(Write(boundary, moves), seen.owned.commit_time if seen and seen.owned else None)
        self._commands.append(self._flight.write)

    def _planned(self, table: TableName, to: Boundary) -> Planned:
        return Planned(self.states[table].generation, self.positions.get(table, START), to)

    def _retry_write(self) -> None:
        flight = self._flight
        if flight is None or flight.due is None or flight.due > self.now or flight.suspect:
            return
        failures = self._failures_of(flight.write)
        if failures:
            self._record(failures)
            return
        flight.due = None
        flight.write = Write(flight.write.boundary, flight.write.moves, again=True)
        self._commands.append(flight.write)

    def _failures_of(self, write: Write) -> dict[TableName, Event]:
        """Returns the `Failed` events of the write's tables that are not read back yet: the write waits for them."""
        events = self._outbox.events
        return {table: events[table] for table in write.moves if isinstance(events.get(table), Failed)}

    def _settle_flight(self) -> None:
        """Takes tables out of the write that this stream no longer owns; an empty write is done."""
        flight = self._flight
        if flight is None or flight.due is None:
            return
        kept = {table: move for table, move in flight.write.moves.items() if self._still_ours(table, move)}
        flight.suspect = False
        self._shrink(flight, kept)

    def _drop_arrived(self, positions: Mapping[TableName, Boundary]) -> None:
        """Takes out of the write the tables that the destination already has at the end of their move: the answer of an
        earlier try was lost."""
        flight = self._flight
        if flight is None:
            return
        kept = {t: move for t, move in flight.write.moves.items() if positions.get(t) != move.to}
        counted = self.counted_in_flight
        for table in flight.write.moves.keys() - kept.keys():
            self._arrived_at(table, flight.write.moves[table], counted[table])
        self._shrink(flight, kept)

    def _arrived_at(self, table: TableName, move: Planned, counted: Counted) -> None:
        """Notes the new position of a table, unless the write was of an earlier generation: that says nothing about the
        present one."""
        state = self.states.get(table)
        if state is not None and state.generation == move.generation:
            self.counted[table] = counted
            self.positions[table] = max(self.positions.get(table, START), move.to)
            self._seen_high[table] = self.positions[table]

    @property
    def counted_in_flight(self) -> Mapping[TableName, Counted]:
        """The counts that hold once the write under way is durable."""
        flight = self._flight
        if flight is None:
            return {}
        return {
            table: self._counted_to(table, move.expected).extended(
                move.to, flight.rows.get(table, RowCounts()), flight.commit_time
            )
            for table, move in flight.write.moves.items()
        }

    def _counted_to(self, table: TableName, position: Boundary) -> Counted:
        """Returns the count that ends at `position`. If there is none, as after a write that was not recorded, counting
        begins there."""
        known = self.counted.get(table)
        return known if known is not None and known.upto == position else Counted.beginning(position)

    def _shrink(self, flight: _Flight, kept: Mapping[TableName, Planned]) -> None:
        flight.write = Write(flight.write.boundary, kept, again=True)
        if not kept:
            self._flight = None
            self.progress.written()

    def _still_ours(self, table: TableName, move: Planned) -> bool:
        state = self.states.get(table)
        return state is not None and state.generation == move.generation and self._holds(state)

    @abstractmethod
    def _holds(self, state: TableState) -> bool:
        """Returns whether this stream owns a table in this state, regardless of positions."""

    def _abandon(self, changed: frozenset[TableName], let_go: Mapping[TableName, int]) -> None:
        """Leaves tables out of the batch whose gathered changes must not be written any more: those of a new
        generation, whose gathered changes must not be mixed with later ones either, and those that this stream no
        longer owns."""
        self._renewed |= let_go
        concerned = changed & self._gathered
        lost = {t for t in concerned if t in let_go or t not in self.states or not self._holds(self.states[t])}
        self._abandoned |= lost
        self._gathered -= lost
        for table in let_go:
            self.positions.pop(table, None)
            self._seen_high.pop(table, None)
            self._told_high.pop(table, None)
            self._noted_high.pop(table, None)

    def _acknowledge(self) -> None:
        """Commands the acknowledgement of new generations of tables, once no write holds changes of an earlier one."""
        held = self._flight.write.moves if self._flight is not None else {}
        free = {t: now for t, now in self._renewed.items() if t not in held or held[t].generation == now}
        if free:
            self._renewed = {t: now for t, now in self._renewed.items() if t not in free}
            self._commands.append(Acknowledge(free))

    def _changed_generations(self, states: Mapping[TableName, TableState | None]) -> dict[TableName, int]:
        return {
            table: state.generation
            for table, state in states.items()
            if state is not None and table in self.states and self.states[table].generation != state.generation
        }

    def _raise_ceiling(self) -> None:
        durable = self.progress.durable
        if self._ceiling_asked is not None or not (durable > self._ceiling or self._marks_wanted):
            return
        interval = self.pace.ceiling_interval if self._seen_high else self.pace.idle_ceiling_interval
        if self.now < self._ceiling_at + interval and not self._draining and not self._marks_wanted:
            return
        self._ceiling_at = self.now
        self._ceiling_asked = durable
        self._told_high, self._seen_high = self._seen_high, {}
        for table, at in self._told_high.items():
            self.counted[table] = self._counted_to(table, at)
        marks = {t: HighWater(self._attempt_of(t), at, self.counted[t]) for t, at in self._told_high.items()}
        self._commands.append(RecordCeiling(durable, marks, self.progress.seen, self._ceiling_key))

    def _attempt_of(self, table: TableName) -> int:
        state = self.states.get(table)
        return state.attempt or 0 if state is not None else 0

    @property
    def _ceiling_key(self) -> str:
        """The name under which the store holds the ceiling of this stream's slot."""
        return APPLY_CEILING

    @property
    def _marks_wanted(self) -> bool:
        """Whether high-water marks are waited for, so that they are recorded at once."""
        return False

    def _ask_position(self) -> None:
        if self.now >= self._ask_due and self.progress.transaction is None:
            self._ask_due = self.now + self.pace.ask_interval
            self._commands.append(AskPosition())

    def _record(self, events: Mapping[TableName, Event]) -> None:
        """Commands the recording of events, except of those that were sent and are not due again."""
        due = {t: event for t, event in events.items() if self._outbox.wants(t, event, self.now)}
        if due:
            self._outbox.sent(due, self.now + self.pace.record_retry)
            self._commands.append(RecordEvents(due))

    def _failed(self, table: TableName, why: TableFailure) -> Failed:
        return Failed(self.states[table].generation, why.reason, why.solution, why.retry_policy)

    def _finish(self, why: str) -> None:
        if self.finished is None:
            self.finished = why
            self._commands.append(Finish(why))
