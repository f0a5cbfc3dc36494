"""A stream of the streaming worker: the shell around a core, as one actor, and its writer as another.

What the threads of the real shell do, in the same order; see the duties in `commands`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from airflow_provider_pgetl.engine.changes.batch import EventBatch, Move, Step, Truncate
from airflow_provider_pgetl.engine.errors import Fenced, PgetlError
from airflow_provider_pgetl.engine.phases import Refused, RetryPolicy, TableState
from airflow_provider_pgetl.engine.positions import START, Boundary
from airflow_provider_pgetl.engine.sync import upkeep
from airflow_provider_pgetl.engine.sync.apply import ApplyCore
from airflow_provider_pgetl.engine.sync.catchup import CatchupCore
from airflow_provider_pgetl.engine.sync.commands import (
    Acknowledge,
    AskPosition,
    Command,
    Finish,
    Record,
    RecordCeiling,
    Verify,
    Write,
)
from airflow_provider_pgetl.engine.sync.core import Failure, StreamCore
from airflow_provider_pgetl.engine.sync.ownership import catching_up
from airflow_provider_pgetl.engine.tables import TableName
from tests.simulation.destination import of_change
from tests.simulation.source import Away, Begin, Changed, Commit, Keepalive, Message, SlotLost, Violation, Walsender
from tests.simulation.world import APPLY_SLOT, CEILING, PACE, PIPELINE, Actor, Call, slot_of

if TYPE_CHECKING:
    from tests.simulation.worker import Worker

States = Mapping[TableName, TableState]


@dataclass(frozen=True, slots=True)
class Answer:
    """How a write ended; `error` is None when it is durable."""

    error: PgetlError | None = None
    positions: Mapping[TableName, Boundary] | None = None


@dataclass(frozen=True, slots=True)
class CeilingAnswer:
    boundary: Boundary | None


@dataclass(eq=False)
class Stream:
    """One slot's stream, from connection to connection. `ended` says why it is over."""

    worker: Worker
    name: str
    slot: str
    inbox: deque[object] = field(default_factory=deque)
    core: StreamCore | None = None
    sender: Walsender | None = None
    ended: str | None = None
    let_go: dict[TableName, int] = field(default_factory=dict)
    _gathered: list[Changed] = field(default_factory=list)
    _held: list[Changed] = field(default_factory=list)
    _writing: bool = False

    @property
    def actor(self) -> str:
        return f"{self.worker.name}/{self.name}"

    @property
    def holds(self) -> bool:
        """Whether anything gathered or being written may be left."""
        return self.core is not None or self._writing

    def run(self) -> Actor:
        """Connection after connection. It has not ended before its write has: what comes next starts from there."""
        ended: str | None = None
        while ended is None and self.worker.lost is None:
            try:
                ended = yield from self._connect_and_carry()
            except SlotLost as error:
                ended = error.message
            except PgetlError as error:
                self.worker.world.note(f"stream {self.name} breaks: {error.message}")
            self._disconnect()
            while self._writing:
                yield
            self.inbox = deque(letter for letter in self.inbox if isinstance(letter, str))
            yield
        self.ended = ended

    def _disconnect(self) -> None:
        if self.sender is not None:
            self.sender.close()
        self.core = self.sender = None

    # -- from connection to core --------------------------------------------------------------------------------------

    def _connect_and_carry(self) -> Call[str]:
        """Why it finished."""
        worker, world = self.worker, self.worker.world
        self._gathered, self._held = [], []
        states = yield from self._states()
        positions = yield from self._positions(states)
        yield from world.call("source", f"read: end who streams {self.slot}", lambda: world.source.terminate(self.slot))
        self.sender = yield from world.call("source", f"stream {self.slot}", self._connect)
        yield from worker.expect_lease()
        self.core = self._core(self.sender.start, states, positions)
        self.let_go = {table: state.generation for table, state in states.items()}
        world.note(f"starts at {self.core.progress.position.lsn} with {_shown(positions)}")
        return (yield from self._carry(self.core, self.sender))

    def _connect(self) -> Walsender:
        sender = self.worker.world.source.connect(self.slot, self.worker.name)
        if self.sender is not None:
            self.sender.close()
        self.sender = sender
        return sender

    def _states(self) -> Call[States]:
        raise NotImplementedError

    def _core(self, start: Boundary, states: States, positions: Mapping[TableName, Boundary]) -> StreamCore:
        raise NotImplementedError

    def _positions(self, states: States) -> Call[dict[TableName, Boundary]]:
        """What the destination says of the tables in the generations that we know; by the store, if it says nothing."""
        worker, world = self.worker, self.worker.world
        if not world.scenario.exactly_once:
            return upkeep.known_positions(states, worker.marks)
        found = yield from world.call("destination", "read: positions", lambda: worker.destination.positions(PIPELINE))
        return {
            table: at.position
            for table, at in found.items()
            if table in states and at.generation == states[table].generation
        }

    # -- carrying -----------------------------------------------------------------------------------------------------

    def _carry(self, core: StreamCore, sender: Walsender) -> Call[str]:
        world = self.worker.world
        core.tick(world.now)
        while core.finished is None:
            yield
            core.tick(world.now)
            self._take_mail(core)
            self._obey(core, sender)
            if core.finished is None:
                self._read(core, sender)
                if world.random.random() < 0.1:
                    self._confirm(core, sender)
        self._confirm(core, sender)
        if core.refused:
            self.worker.lost = core.finished
        return core.finished

    def _take_mail(self, core: StreamCore) -> None:
        while self.inbox:
            match self.inbox.popleft():
                case str() as why:
                    core.stop(why)
                case Answer(None):
                    core.written()
                case Answer(PgetlError() as error, positions):
                    self._write_failed(core, error, positions)
                case CeilingAnswer(boundary):
                    core.ceiling_failed() if boundary is None else core.ceiling_recorded(boundary)
                case dict() as states:
                    core.recorded(states)
                case other:
                    raise AssertionError(other)

    def _write_failed(
        self, core: StreamCore, error: PgetlError, positions: Mapping[TableName, Boundary] | None
    ) -> None:
        blame = {}
        if error.table is not None and not isinstance(error, Fenced):
            world = self.worker.world
            policy = RetryPolicy("timed", world.now + 3.0) if world.random.random() < 0.5 else RetryPolicy()
            table = next(table for table in world.tables if str(table) == error.table)
            blame = {table: Failure(error.message, None, policy)}
        core.write_failed(positions=positions, blame=blame, fenced=isinstance(error, Fenced))

    def _obey(self, core: StreamCore, sender: Walsender) -> None:
        for command in core.commands():
            self._do(command, sender)

    def _do(self, command: Command, sender: Walsender) -> None:
        match command:
            case Write():
                self._write(command)
            case Record() | RecordCeiling() | Acknowledge() | Verify():
                self.worker.send(command, self)
            case AskPosition():
                sender.asked = True
            case Finish(why):
                self.worker.world.note(f"finishes: {why}")

    def _read(self, core: StreamCore, sender: Walsender) -> None:
        """A few messages; after each commit and keepalive the core may want no more."""
        for _ in range(self.worker.world.random.randint(0, 8)):
            message = sender.receive(self.worker.world.random) if core.reading else None
            if message is None:
                return
            self._take_in(core, message, sender)

    def _take_in(self, core: StreamCore, message: Message, sender: Walsender) -> None:
        match message:
            case Begin(commit_lsn):
                core.begin(commit_lsn)
            case Changed(table, commit_lsn):
                if core.owns(table, commit_lsn):
                    core.gathered(table)
                    self._gathered.append(message)
            case Commit(end):
                core.commit(end)
                if self.worker.world.random.random() < 0.05:
                    core.hurry()
                if core.write_due:
                    self._obey(core, sender)
            case Keepalive(position):
                core.keepalive(position)

    def _confirm(self, core: StreamCore, sender: Walsender) -> None:
        if core.ack.lsn > sender.told:
            sender.confirm(core.ack)
            self.worker.world.note(f"acknowledges {self.slot} up to {sender.told}")
        elif core.ack.lsn < sender.told:
            raise Violation(f"the acknowledgement of {self.slot} falls from {sender.told} to {core.ack.lsn}")

    # -- writing ------------------------------------------------------------------------------------------------------

    def _write(self, write: Write) -> None:
        if not write.again:
            self._held, self._gathered = self._gathered, []
        if not write.moves:
            self.inbox.append(Answer())
            return
        world = self.worker.world
        moves = {t: Move(world.target(t, m.generation), m.expected, m.to) for t, m in write.moves.items()}
        held = [change for change in self._held if change.table in moves]
        batch = EventBatch(PIPELINE, self.worker.epoch, moves, tuple(self._steps(held)))
        if self._writing:
            raise Violation(f"stream {self.name} has two writes under way")
        self._writing = True
        world.spawn(f"{self.actor}.writer", self._writer(batch))

    def _steps(self, held: Iterable[Changed]) -> Iterable[Step | Truncate]:
        schemas = self.worker.world.schemas
        return (of_change(schemas[c.table], c.commit_lsn, c.ordinal, c.change) for c in held)

    def _writer(self, batch: EventBatch) -> Actor:
        world, destination = self.worker.world, self.worker.destination
        what = f"write {', '.join(f'{t} {m.expected.lsn}->{m.to.lsn}' for t, m in batch.moves.items())}"
        try:
            yield from world.call("destination", what, lambda: destination.write_events(batch))
            answer = Answer()
        except PgetlError as error:
            asked = world.scenario.exactly_once
            answer = Answer(error, (yield from self._positions_after(batch)) if asked else None)
        self._writing = False
        self.inbox.append(answer)

    def _positions_after(self, batch: EventBatch) -> Call[Mapping[TableName, Boundary] | None]:
        world, destination = self.worker.world, self.worker.destination
        try:
            found = yield from world.call(
                "destination", "read: positions after a failure", lambda: destination.positions(PIPELINE)
            )
        except Away:
            return None
        return {
            table: found[table].position
            for table, move in batch.moves.items()
            if table in found and found[table].generation == move.target.generation
        }


class Apply(Stream):
    def __init__(self, worker: Worker) -> None:
        super().__init__(worker, "apply", APPLY_SLOT)

    def _states(self) -> Call[States]:
        return (yield from self.worker.known_states())

    def _core(self, start: Boundary, states: States, positions: Mapping[TableName, Boundary]) -> StreamCore:
        ceiling = self.worker.store.progress(CEILING) or START
        if start > ceiling or upkeep.set_back(states, positions, self.worker.marks):
            raise SlotLost(self.slot)
        return ApplyCore(start, states, positions, ceiling, PACE)


class Catchup(Stream):
    def __init__(self, worker: Worker, attempt: int) -> None:
        super().__init__(worker, slot_of(attempt), slot_of(attempt))
        self.attempt = attempt

    def _states(self) -> Call[States]:
        """What an earlier connection of this group had asked for is void, and the tables' generations are adopted."""
        worker, world = self.worker, self.worker.world
        states = yield from worker.known_states()
        mine = {table: state for table, state in states.items() if catching_up(state, self.attempt)}
        events = upkeep.demotions(mine)
        if events:
            answer = yield from worker.record(events)
            if isinstance(answer, Refused):
                raise Away("store", answer.why)
            states = {**states, **answer}
        for table, state in states.items():
            if catching_up(state, self.attempt) and world.scenario.exactly_once:
                target = world.target(table, state.generation)
                yield from world.call("destination", f"adopt {table}", partial(worker.destination.adopt, target))
        return states

    def _core(self, start: Boundary, states: States, positions: Mapping[TableName, Boundary]) -> StreamCore:
        return CatchupCore(self.attempt, start, states, positions, PACE)


def _shown(positions: Mapping[TableName, Boundary]) -> str:
    return ", ".join(f"{table} at {position.lsn}" for table, position in positions.items()) or "no table"
