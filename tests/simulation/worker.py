"""The streaming worker as a process: taking over, the desk that talks to the store, the lease, upkeep."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from airflow_provider_pgetl.engine.changes.batch import TablePosition
from airflow_provider_pgetl.engine.errors import Fenced, PgetlError
from airflow_provider_pgetl.engine.phases import (
    Event,
    Ready,
    Refused,
    Reset,
    SyncDone,
    TableState,
    needs_group_slot,
    past_init,
)
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.state.protocol import TableRecord
from airflow_provider_pgetl.engine.sync import upkeep
from airflow_provider_pgetl.engine.sync.catchup import CatchupCore
from airflow_provider_pgetl.engine.sync.commands import Acknowledge, Record, RecordCeiling, Verify
from airflow_provider_pgetl.engine.tables import TableName
from tests.simulation.source import Away, Violation
from tests.simulation.streams import Apply, Catchup, CeilingAnswer, Stream
from tests.simulation.world import (
    APPLY_SLOT,
    CEILING,
    LEASE_SECONDS,
    PIPELINE,
    Actor,
    Call,
    World,
    group_slots,
    slot_of,
)

T = TypeVar("T")
Errand = Record | RecordCeiling | Acknowledge | Verify
Answer = Mapping[TableName, TableState] | Refused


def worker_process(world: World, name: str) -> Actor:
    """A worker, and after its end the next one under the same name."""
    while True:
        yield
        worker = Worker(world, name)
        try:
            yield from worker.run()
        except PgetlError as error:
            world.note(f"the worker ends: {error.message}")
        worker.end()


@dataclass
class Worker:
    world: World
    name: str
    epoch: int = 0
    lost: str | None = None
    errands: deque[tuple[Errand, Stream]] = field(default_factory=deque)
    streams: dict[str, Stream] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = self.world.open_store()
        self.destination = self.world.destination.open()

    def run(self) -> Actor:
        lease = yield from self._ask("read: the lease", lambda: self.store.acquire_lease(self.name, LEASE_SECONDS))
        if lease is None:
            return
        self.epoch = lease.epoch
        self.world.note(f"has epoch {self.epoch}")
        yield from self._take_over()
        self.world.spawn(f"{self.name}/desk", self._desk())
        self.world.spawn(f"{self.name}/lease", self._keep_lease())
        yield from self._tend()

    def end(self) -> None:
        """The process is over; its connections end with it."""
        for name in [name for name in self.world.actors if name.startswith(f"{self.name}/")]:
            self.world.kill(name)
        for stream in self.streams.values():
            if stream.sender is not None:
                stream.sender.close()

    # -- the store ----------------------------------------------------------------------------------------------------

    def _ask(self, what: str, do: Callable[[], T]) -> Call[T]:
        return self.world.call("store", what, do)

    def record(self, events: Mapping[TableName, Event]) -> Call[Answer]:
        words = ", ".join(f"{table} {event}" for table, event in events.items())
        return (yield from self._ask(words, lambda: self.store.apply(events, epoch=self.epoch)))

    def known_states(self) -> Call[Mapping[TableName, TableState]]:
        yield from self._ask("read: load", self.store.load)
        return {table: record.state for table, record in self.store.tables().items()}

    @property
    def marks(self) -> dict[TableName, Boundary]:
        return {table: record.high_water for table, record in self.store.tables().items()}

    def expect_lease(self) -> Call[None]:
        """Asked after a stream has its slot: whoever took over since would have ended it."""
        lease = yield from self._ask("read: look at the lease", self.store.lease)
        if lease is None or lease.epoch != self.epoch:
            self.lost = "the lease has passed to another"
            raise Fenced(self.lost)

    # -- taking over --------------------------------------------------------------------------------------------------

    def _take_over(self) -> Actor:
        """What prepare and the worker do, in their order: each step makes the next one safe."""
        world = self.world
        if world.scenario.exactly_once:
            claim = partial(self.destination.claim, PIPELINE, self.epoch)
            yield from world.call("destination", f"claim epoch {self.epoch}", claim)
        for name in list(world.source.slots):
            yield from world.call("source", f"read: end who streams {name}", partial(world.source.terminate, name))
        yield from self._judge_destination()
        yield from self._ensure_apply_slot()
        events = upkeep.demotions((yield from self.known_states()))
        if events and isinstance((yield from self.record(events)), Refused):
            raise Away("store", "somebody was faster")

    def _judge_destination(self) -> Actor:
        """A table that does not stand where it was seen is copied again: the destination was restored."""
        world = self.world
        if not world.scenario.exactly_once:
            return
        yield from self._ask("read: load", self.store.load)
        records = self.store.tables()
        judged = world.restores
        positions = partial(self.destination.positions, PIPELINE)
        found = yield from world.call("destination", "read: positions", positions)
        lost = {
            table: Reset(record.state.generation)
            for table, record in records.items()
            if not _stands_where_it_was(record, found.get(table))
        }
        if lost and isinstance((yield from self.record(lost)), Refused):
            raise Away("store", "somebody was faster")
        if world.restores == judged:
            world.restored.clear()

    def _ensure_apply_slot(self) -> Actor:
        """Slot loss: history has a gap, so the tables are reset before a new slot begins a new one.

        The ceiling need not be lowered: a new slot of the same cluster begins beyond it.
        """
        states = yield from self.known_states()
        if self._apply_slot_stands():
            return
        if upkeep.apply_slot_needed(states):
            events = {table: Reset(state.generation) for table, state in states.items() if past_init(state)}
            if isinstance((yield from self.record(events)), Refused):
                raise Away("store", "somebody was faster")
        yield from self._ask("make the apply slot", self._make_apply_slot)

    def _apply_slot_stands(self) -> bool:
        slot, ceiling = self.world.source.slots.get(APPLY_SLOT), self.store.progress(CEILING)
        return slot is not None and not slot.lost and ceiling is not None and slot.confirmed <= ceiling.lsn

    def _make_apply_slot(self) -> None:
        """Under a lock, so that nobody comes between looking, making and recording."""
        self.store.load()
        if self._apply_slot_stands():
            return
        if upkeep.apply_slot_needed({table: record.state for table, record in self.store.tables().items()}):
            raise Away("store", "somebody was faster")
        self.world.source.drop_slot(APPLY_SLOT)
        self.store.record_progress(CEILING, self.world.source.create_slot(APPLY_SLOT, self.world.random))

    # -- running ------------------------------------------------------------------------------------------------------

    def _tend(self) -> Actor:
        self._start(Apply(self))
        slots: dict[int, bool] = {}
        while self.lost is None and self.streams["apply"].ended is None:
            yield
            self._tell_catchups()
            if self.world.random.random() < 0.15:
                slots = yield from self._keep_up()
            alive = {attempt for attempt, good in slots.items() if good}
            running = {s.attempt for s in self.streams.values() if isinstance(s, Catchup)}
            states = {table: record.state for table, record in self.store.tables().items()}
            for attempt in upkeep.groups_to_catch_up(states, alive, running):
                self._start(Catchup(self, attempt))

    def _start(self, stream: Stream) -> None:
        if f"{self.name}/{stream.name}" in self.world.actors:
            return
        self.streams[stream.name] = stream
        self.world.spawn(stream.actor, stream.run())

    def _tell_catchups(self) -> None:
        apply = self.streams["apply"].core
        for name, stream in list(self.streams.items()):
            if isinstance(stream.core, CatchupCore) and apply is not None:
                stream.core.apply_stands_at(apply.progress.position)
            if name != "apply" and stream.ended is not None:
                del self.streams[name]

    def _keep_up(self) -> Call[dict[int, bool]]:
        """What upkeep judges, and in the order of reading that it asks for."""
        world = self.world
        try:
            states = yield from self.known_states()
            slots = yield from world.call("source", "read: list slots", lambda: group_slots(world.source))
            alive = {attempt for attempt, good in slots.items() if good}
            yield from self._each(upkeep.lost_groups(states, alive))
            yield from self._each(upkeep.due_retries(states, world.now, alive))
            live = yield from self._ask("read: live attempts", self.store.live_attempts)
            states = yield from self.known_states()
            running = {s.attempt for s in self.streams.values() if isinstance(s, Catchup)}
            for attempt in upkeep.slots_to_drop(states, slots, live | running):
                yield from world.call("source", f"drop slot c{attempt}", partial(self._drop, attempt))
        except Away:
            return {}
        return slots

    def _drop(self, attempt: int) -> None:
        slot = self.world.source.slots.get(slot_of(attempt))
        needed = [t for t, s in self.world.states.items() if s.attempt == attempt and needs_group_slot(s)]
        if slot is not None and not slot.lost and needed:
            raise Violation(f"{slot.name} is dropped, which {needed[0]} needs")
        self.world.source.drop_slot(slot_of(attempt))

    def _each(self, events: Mapping[TableName, Event]) -> Actor:
        for table, event in events.items():
            yield from self.record({table: event})

    def send(self, errand: Errand, sender: Stream) -> None:
        """What waits already is not asked for twice: a desk that was held up must not find work that only grows."""
        if (errand, sender) not in self.errands:
            self.errands.append((errand, sender))

    # -- threads ------------------------------------------------------------------------------------------------------

    def _desk(self) -> Actor:
        """One errand after the other, then the news to every stream; now and then what others wrote."""
        while True:
            yield
            try:
                if self.errands:
                    yield from self._attend(*self.errands.popleft())
                elif self.world.random.random() < 0.2:
                    yield from self._spread()
            except (Away, Fenced):
                continue

    def _attend(self, errand: Errand, sender: Stream) -> Actor:
        match errand:
            case Record(events):
                yield from self.record(events)
            case RecordCeiling():
                yield from self._record_ceiling(errand, sender)
                return
            case Acknowledge(generations):
                sender.let_go |= generations
                yield from self._acknowledge()
                return
            case Verify():
                yield from self.expect_lease()
        yield from self._spread()

    def _acknowledge(self) -> Actor:
        """A generation is taken up when the last of the streams has let go of the one before."""
        holding = [stream.let_go for stream in self.streams.values() if stream.holds]
        records = self.store.tables()
        done = {
            t: min((let_go.get(t, 0) for let_go in holding), default=r.state.generation) for t, r in records.items()
        }
        if any(done[table] > record.acknowledged for table, record in records.items()):
            yield from self._ask("acknowledge", lambda: self.store.acknowledge(done))

    def _record_ceiling(self, errand: RecordCeiling, sender: Stream) -> Actor:
        boundary = errand.boundary
        try:
            yield from self._ask("high water", lambda: self.store.raise_high_water(errand.positions))
            yield from self._ask(f"ceiling {boundary.lsn}", lambda: self.store.record_progress(CEILING, boundary))
            sender.inbox.append(CeilingAnswer(boundary))
        except Away:
            sender.inbox.append(CeilingAnswer(None))

    def _spread(self) -> Actor:
        states = yield from self.known_states()
        for stream in self.streams.values():
            stream.inbox.append(dict(states))
        yield from self._acknowledge()

    def _keep_lease(self) -> Actor:
        renewed = self.world.now
        while self.lost is None:
            yield
            if self.world.now - renewed < LEASE_SECONDS / 3:
                continue
            try:
                held = yield from self._ask("read: renewed", lambda: self.store.renew_lease(self.epoch, LEASE_SECONDS))
                renewed = self.world.now
                if not held:
                    self.lost = "another worker has taken over"
            except Away:
                if self.world.now - renewed > LEASE_SECONDS:
                    self.lost = "the store has been away for too long"


def _stands_where_it_was(record: TableRecord, there: TablePosition | None) -> bool:
    """Of a followed table: in its generation, and no less far than it was seen, or handed over."""
    match record.state.phase:
        case Ready():
            least = record.high_water
        case SyncDone(boundary):
            least = max(record.high_water, boundary)
        case _:
            return True
    return there is not None and there.generation == record.state.generation and there.position >= least
