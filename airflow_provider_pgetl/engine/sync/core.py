"""The core of a stream: what to read, write, record and acknowledge. Pure: no socket, no thread, no clock.

A `StreamCore` is fed with what happened (the outline of the stream, answers of the writer and of the store, the time)
and answers with `commands()`. The apply stream and the catch-up streams are this one class with two small roles
(`ApplyCore`, `CatchupCore` in `apply.py` and `catchup.py`). The very same objects run under real threads and in the
simulation.

Invariants
1. `ack` never passes a boundary below which an owned change is not durable (see `progress`), never passes what the
   store holds as ceiling, and never falls.
2. At most one write is under way. A write consists of whole transactions and is retried, as it is or for fewer
   tables, until it is done; nothing is skipped because a retry failed. A table that changed its generation while it was
   gathered is left out of that batch for good (`_abandoned`): a batch never holds two generations of a table.
3. A table leaves a write only when the store has said that this stream no longer owns it in that generation. So an
   error of one table is durable in the store before a batch without the table is.
4. What the store says is believed only when read back: an unanswered record is neither done nor refused. It is sent
   again.
5. Positions that a move starts from come from the destination (at the start), from our own writes, and from SyncDone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from airflow_provider_pgetl.engine.phases import Event, Failed, RetryPolicy, TableState
from airflow_provider_pgetl.engine.positions import START, Boundary, CommitLsn
from airflow_provider_pgetl.engine.sync.commands import (
    Acknowledge,
    AskPosition,
    Command,
    Finish,
    Planned,
    Record,
    RecordCeiling,
    Verify,
    Write,
)
from airflow_provider_pgetl.engine.sync.progress import Progress
from airflow_provider_pgetl.engine.tables import TableName

States = Mapping[TableName, TableState]


@dataclass(frozen=True, slots=True)
class Pace:
    """How often things happen; seconds. None of it matters to correctness."""

    write_interval: float = 0.0
    record_retry: float = 1.0
    ceiling_interval: float = 1.0
    idle_ceiling_interval: float = 10.0
    write_retry_first: float = 0.2
    write_retry_most: float = 30.0
    handover_patience: float = 60.0
    ask_interval: float = 0.2
    near_bytes: int = 1 << 20
    near_doubles_every: float = 5.0
    fenced_most: int = 5


@dataclass(slots=True)
class _Flight:
    """The write under way. `due`: when it is to be sent again, None while the writer has it."""

    write: Write
    failures: int = 0
    due: float | None = None
    suspect: bool = False


@dataclass(slots=True)
class _Outbox:
    """Events sent to the store and not read back yet, each with the time to send it again.

    `together`: what went in one record is taken or refused as one. So when one of its tables is seen to have changed,
    all are open again; news of other tables says nothing about what is still on its way.
    """

    events: dict[TableName, Event] = field(default_factory=dict)
    due: dict[TableName, float] = field(default_factory=dict)
    together: dict[TableName, frozenset[TableName]] = field(default_factory=dict)

    def wants(self, table: TableName, event: Event, now: float) -> bool:
        return self.events.get(table) != event or self.due[table] <= now

    def sent(self, events: Mapping[TableName, Event], again_at: float) -> None:
        self.events.update(events)
        self.due.update(dict.fromkeys(events, again_at))
        self.together.update(dict.fromkeys(events, frozenset(events)))

    def settle(self, changed: frozenset[TableName]) -> None:
        for table in [table for table in self.events if not changed.isdisjoint(self.together[table])]:
            del self.events[table], self.due[table], self.together[table]


class StreamCore(ABC):
    """What both roles share: gathering, writing, failing, acknowledging."""

    def __init__(
        self,
        start: Boundary,
        states: States,
        positions: Mapping[TableName, Boundary],
        ceiling: Boundary = START,
        pace: Pace = Pace(),
    ) -> None:
        self.progress = Progress(start)
        self.states: dict[TableName, TableState] = dict(states)
        self.positions: dict[TableName, Boundary] = dict(positions)
        self.pace = pace
        self.now = 0.0
        self.finished: str | None = None
        self.refused = False
        self._ceiling = max(ceiling, START)
        self._ceiling_asked: Boundary | None = None
        self._ceiling_at = float("-inf")
        self._seen_high: dict[TableName, Boundary] = dict(positions)
        self._told_high: dict[TableName, Boundary] = {}
        self._noted_high: dict[TableName, Boundary] = {}
        self._gathered: set[TableName] = set()
        self._abandoned: set[TableName] = set()
        self._flight: _Flight | None = None
        self._next_write = 0.0
        self._hurried = False
        self._renewed = {table: state.generation for table, state in states.items()}
        self._outbox = _Outbox()
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
        """What may be confirmed to the server."""
        return min(self.progress.durable, self._ceiling)

    @property
    def write_due(self) -> bool:
        """Whether `commands` would send what is gathered. All else that it decides can wait until the shell comes
        round: so a shell that draws many short transactions asks for commands at a commit only if this is true."""
        progress = self.progress
        if self._flight is not None or not progress.pending or progress.transaction is not None or self._draining:
            return False
        return self._urgent or self._hurried or self.now >= self._next_write

    @abstractmethod
    def owns(self, table: TableName, commit_lsn: CommitLsn) -> bool:
        """Whether this stream is to apply the table's changes of the transaction."""

    def commands(self) -> list[Command]:
        """What is to be done now; each command is answered once."""
        if self.finished is None:
            self._decide()
        commands, self._commands = self._commands, []
        return commands

    # -- what the shell tells: the stream -----------------------------------------------------------------------------

    def begin(self, commit_lsn: CommitLsn) -> None:
        self.progress.begin(commit_lsn)

    def gathered(self, table: TableName) -> None:
        """The open transaction has changed a table that this stream owns."""
        self.progress.touch()
        if table not in self._abandoned:
            self._gathered.add(table)

    def commit(self, end: Boundary) -> None:
        self.progress.commit(end)

    def keepalive(self, position: Boundary) -> None:
        self.progress.keepalive(position)

    def tick(self, now: float) -> None:
        self.now = max(self.now, now)

    # -- what the shell tells: the writer -----------------------------------------------------------------------------

    def written(self) -> None:
        """The write under way is durable."""
        if self._flight is None:
            return
        for table, move in self._flight.write.moves.items():
            self._arrived_at(table, move)
        self._flight = None
        self.progress.written()

    def write_failed(
        self,
        *,
        positions: Mapping[TableName, Boundary] | None = None,
        blame: Mapping[TableName, Failure] | None = None,
        fenced: bool = False,
    ) -> None:
        """The write under way failed. `positions` are the destination's now, if it could be asked; `blame` the tables
        that cannot be written at all; `fenced`: the destination says that somebody else writes."""
        if self._flight is None:
            return
        self._flight.failures += 1
        if fenced and self._flight.failures >= self.pace.fenced_most:
            self.refused = True
            self._finish("the destination goes on refusing this worker's writes")
            return
        self._flight.due = self.now + self._backoff(self._flight.failures)
        if positions is not None:
            self._drop_arrived(positions)
        self._settle_flight()
        if self._flight is not None:
            self._flight.suspect = fenced
            ours = {table: why for table, why in (blame or {}).items() if table in self._flight.write.moves}
            self._record({table: self._failed(table, why) for table, why in ours.items()})
        if fenced:
            self._commands.append(Verify())

    # -- what the shell tells: the store ------------------------------------------------------------------------------

    def recorded(self, states: States) -> None:
        """All tables as the store has them now."""
        let_go = self._changed_generations(states)
        changed = frozenset(t for t in states.keys() | self.states.keys() if states.get(t) != self.states.get(t))
        self.states = dict(states)
        self._outbox.settle(changed)
        self._abandon(let_go)
        self._settle_flight()
        self._states_changed(let_go)

    def ceiling_recorded(self, boundary: Boundary) -> None:
        self._ceiling = max(self._ceiling, boundary)
        self._ceiling_asked = None
        self._noted_high |= self._told_high

    def ceiling_failed(self) -> None:
        """The marks that were to be noted with it are noted with the next."""
        self._ceiling_asked = None
        self._seen_high = {**self._told_high, **self._seen_high}

    def hurry(self) -> None:
        """What is gathered is wanted, or has become large: the write interval does not count for it."""
        self._hurried = True

    def drain(self) -> None:
        """Read no more; what is gathered of whole transactions is left unwritten and unacknowledged."""
        self._draining = True

    def stop(self, why: str) -> None:
        self._finish(why)

    # -- deciding -----------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        self._retry_write()
        self._decide_role()
        self._start_write()
        self._acknowledge()
        self._raise_ceiling()

    @abstractmethod
    def _decide_role(self) -> None:
        """What the role wants recorded, asked or finished."""

    @abstractmethod
    def _states_changed(self, renewed: Collection[TableName]) -> None:
        """What the role makes of news from the store; `renewed` are the tables of a new generation."""

    def _start_write(self) -> None:
        if self.write_due:
            self._write(self._gathered)

    @property
    def _urgent(self) -> bool:
        """Whether somebody waits for what is gathered, so that the write interval does not count."""
        return False

    def _write(self, tables: Iterable[TableName]) -> None:
        """Send what was gathered, as the move of these tables to the present position. With no table left, the shell
        only lets go of what it gathered."""
        boundary = self.progress.take()
        moves = {table: self._planned(table, boundary) for table in sorted(tables)}
        self._gathered, self._abandoned = set(), set()
        self._next_write = self.now + self.pace.write_interval
        self._hurried = False
        self._flight = _Flight(Write(boundary, moves))
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
        """Tables that the write waits for to be quarantined."""
        events = self._outbox.events
        return {table: events[table] for table in write.moves if isinstance(events.get(table), Failed)}

    def _settle_flight(self) -> None:
        """Take tables out of the write that this stream does not own any more; an empty write is done."""
        flight = self._flight
        if flight is None or flight.due is None:
            return
        kept = {table: move for table, move in flight.write.moves.items() if self._still_ours(table, move)}
        flight.suspect = False
        self._shrink(flight, kept)

    def _drop_arrived(self, positions: Mapping[TableName, Boundary]) -> None:
        """A write whose answer was lost: what the destination has need not be written again."""
        flight = self._flight
        if flight is None:
            return
        kept = {t: move for t, move in flight.write.moves.items() if positions.get(t) != move.to}
        for table in flight.write.moves.keys() - kept.keys():
            self._arrived_at(table, flight.write.moves[table])
        self._shrink(flight, kept)

    def _arrived_at(self, table: TableName, move: Planned) -> None:
        """What was written of an earlier generation says nothing about the table as it is now."""
        state = self.states.get(table)
        if state is not None and state.generation == move.generation:
            self.positions[table] = max(self.positions.get(table, START), move.to)
            self._seen_high[table] = self.positions[table]

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
        """Whether a table in this state is in this stream's hands, whatever the transaction."""

    def _abandon(self, let_go: Mapping[TableName, int]) -> None:
        """Of tables of a new generation nothing gathered may be written any more, nor mixed with what will be."""
        self._renewed |= let_go
        lost = {t for t in self._gathered if t in let_go or t not in self.states or not self._holds(self.states[t])}
        self._abandoned |= lost
        self._gathered -= lost
        for table in let_go:
            self.positions.pop(table, None)
            self._seen_high.pop(table, None)
            self._told_high.pop(table, None)
            self._noted_high.pop(table, None)

    def _acknowledge(self) -> None:
        """Say that everything before a new generation is let go of, once no write holds any of it."""
        held = self._flight.write.moves if self._flight is not None else {}
        free = {t: now for t, now in self._renewed.items() if t not in held or held[t].generation == now}
        if free:
            self._renewed = {t: now for t, now in self._renewed.items() if t not in free}
            self._commands.append(Acknowledge(free))

    def _changed_generations(self, states: States) -> dict[TableName, int]:
        return {
            table: state.generation
            for table, state in states.items()
            if table in self.states and self.states[table].generation != state.generation
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
        self._commands.append(RecordCeiling(durable, dict(self._told_high)))

    @property
    def _marks_wanted(self) -> bool:
        """Whether somebody waits for high-water marks to be noted."""
        return False

    def _ask_position(self) -> None:
        if self.now >= self._ask_due and self.progress.transaction is None:
            self._ask_due = self.now + self.pace.ask_interval
            self._commands.append(AskPosition())

    def _record(self, events: Mapping[TableName, Event]) -> None:
        """Send events to the store, unless they are on their way already."""
        due = {t: event for t, event in events.items() if self._outbox.wants(t, event, self.now)}
        if due:
            self._outbox.sent(due, self.now + self.pace.record_retry)
            self._commands.append(Record(due))

    def _failed(self, table: TableName, why: Failure) -> Failed:
        return Failed(self.states[table].generation, why.reason, why.solution, why.retry_policy)

    def _backoff(self, failures: int) -> float:
        return min(self.pace.write_retry_first * 2.0 ** min(failures - 1, 16), self.pace.write_retry_most)

    def _finish(self, why: str) -> None:
        if self.finished is None:
            self.finished = why
            self._commands.append(Finish(why))


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a table cannot be written, as its Errored phase will say it."""

    reason: str
    solution: str | None = None
    retry_policy: RetryPolicy = RetryPolicy()
