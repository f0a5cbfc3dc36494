"""Who copies: a supervisor that finds tables in Init, and copy attempts, each a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from airflow_provider_pgetl.engine.errors import Fenced, PgetlError
from airflow_provider_pgetl.engine.phases import (
    CopyFinished,
    CopyStarted,
    DataSync,
    Event,
    Failed,
    Refused,
    RetryPolicy,
    TableState,
)
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.state.protocol import TableRecord
from airflow_provider_pgetl.engine.sync import upkeep
from airflow_provider_pgetl.engine.tables import TableName
from tests.simulation.source import Away, Rows
from tests.simulation.world import ATTEMPT_SECONDS, Actor, Call, World, slot_of

T = TypeVar("T")
_RANGES = 2
_PATIENCE = 4


def supervisor(world: World) -> Actor:
    """Looks after dead copies and starts new ones, as many groups at once as the scenario allows."""
    store = world.open_store()
    while True:
        yield
        try:
            yield from world.call("store", "read: load", store.load)
            states = {table: record.state for table, record in store.tables().items()}
            live = yield from world.call("store", "read: live attempts", store.live_attempts)
            for table, event in upkeep.dead_copies(states, live).items():
                yield from world.call("store", f"{table} {event}", partial(store.apply, {table: event}))
            waiting = [table for table in upkeep.tables_to_copy(states) if _is_let_go(world, store.tables()[table])]
            _launch(world, waiting, world.scenario.copies - upkeep.groups_under_way(states, live))
        except Away:
            continue


def _is_let_go(world: World, record: TableRecord) -> bool:
    """Without fences a copy must not begin while a stream may still hold changes of the generation before."""
    if world.scenario.exactly_once or record.state.generation == 1:
        return True
    return record.acknowledged >= record.state.generation or world.durable.lease is None


def _launch(world: World, waiting: list[TableName], room: int) -> None:
    free = [f"copy-{n}" for n in range(1, world.scenario.copies + 2) if f"copy-{n}" not in world.actors]
    if waiting and free and room > 0:
        group = sorted(world.random.sample(waiting, world.random.randint(1, len(waiting))))
        world.note(f"launches {free[0]} of {', '.join(map(str, group))}")
        world.spawn(free[0], Attempt(world, free[0], group).run())


@dataclass
class Attempt:
    """One run of a copy's driver."""

    world: World
    name: str
    tables: list[TableName]

    def run(self) -> Actor:
        self.store = self.world.open_store()
        self.destination = self.world.destination.open()
        self.generations: dict[TableName, int] = {}
        self.held: list[TableName] = []
        self.published: list[TableName] = []
        self.slot = ""
        self.over = False
        try:
            self.attempt = yield from self._persistently(
                "store", "a new attempt", lambda: self.store.start_attempt(ATTEMPT_SECONDS)
            )
        except Away:
            return
        self.alive_until = self.world.now + ATTEMPT_SECONDS
        self.world.note(f"is attempt {self.attempt}")
        try:
            yield from self._claim()
            if self.held:
                yield from self._copy()
        except PgetlError as error:
            yield from self._fail_all(error)
        yield from self._finish()

    def _finish(self) -> Actor:
        store, source = self.store, self.world.source
        try:
            if self.slot and not self.published:
                yield from self._persistently("source", f"drop {self.slot}", lambda: source.drop_slot(self.slot))
            yield from self._persistently("store", "end of attempt", lambda: store.end_attempt(self.attempt))
        except Away:
            return

    # -- the store ----------------------------------------------------------------------------------------------------

    def _claim(self) -> Actor:
        states = yield from self._load()
        for table in self.tables:
            self.generations[table] = states[table].generation
            answer = yield from self._tell(table, CopyStarted(self.generations[table], self.attempt))
            if not isinstance(answer, Refused):
                self.held.append(table)

    def _fail_all(self, error: PgetlError) -> Actor:
        if isinstance(error, Fenced):
            return
        for table in self.held:
            policy = RetryPolicy("timed", self.world.now + 2.0)
            try:
                yield from self._tell(table, Failed(self.generations[table], error.message, None, policy, self.attempt))
            except Away:
                continue

    def _load(self) -> Call[dict[TableName, TableState]]:
        yield from self._persistently("store", "read: load", self.store.load)
        return {table: record.state for table, record in self.store.tables().items()}

    def _tell(self, table: TableName, event: Event) -> Call[object]:
        return (yield from self._persistently("store", f"{table} {event}", lambda: self.store.apply({table: event})))

    def _persistently(self, server: str, what: str, do: Callable[[], T]) -> Call[T]:
        """A request that is sent again a few times."""
        for left in reversed(range(_PATIENCE)):
            try:
                return (yield from self.world.call(server, what, do))
            except Away:
                if not left:
                    raise
        raise AssertionError

    def _beat(self) -> Actor:
        """The heartbeat, which in truth has a thread of its own."""
        if self.alive_until - self.world.now > ATTEMPT_SECONDS * 0.75 or self.over:
            return
        try:
            alive = yield from self.world.call(
                "store", "read: beat", lambda: self.store.beat_attempt(self.attempt, ATTEMPT_SECONDS)
            )
        except Away:
            self.over = self.world.now > self.alive_until
            return
        self.over = not alive
        self.alive_until = self.world.now + ATTEMPT_SECONDS

    # -- copying ------------------------------------------------------------------------------------------------------

    def _copy(self) -> Actor:
        source = self.world.source
        self.slot = slot_of(self.attempt)
        # Not tried again: a slot of this name may be there after a lost answer, and its snapshot is gone.
        boundary = yield from self.world.call(
            "source", f"make {self.slot}", lambda: source.create_slot(self.slot, self.world.random)
        )
        snapshot = {table: source.tables[table].at(boundary) for table in self.held}
        for table in self.held:
            yield from self._begin(table)
        for table in list(self.held):
            yield from self._copy_table(table, snapshot[table], boundary)

    def _begin(self, table: TableName) -> Actor:
        target = self.world.target(table, self.generations[table])
        yield from self._persistently(
            "destination", f"begin {table}", lambda: self.destination.begin_copy(target, self.attempt)
        )
        yield from self._persistently("store", f"clear {table}", lambda: self.store.clear_copy_state(table))

    def _copy_table(self, table: TableName, rows: Rows, boundary: Boundary) -> Actor:
        for number in range(_RANGES):
            yield from self._range(table, number, [row for key, row in rows.items() if key[0] % _RANGES == number])
            if self.world.chance(0.2):
                yield from self._range(table, number, [{"id": 99, "value": 0, "big": 0}])
        yield from self._beat()
        if not self.over and (yield from self._still_ours(table)):
            yield from self._publish(table, boundary)

    def _range(self, table: TableName, number: int, rows: list[dict[str, int]]) -> Actor:
        """A task may run twice; the second time the ledger has the range, whatever the task brings."""
        yield from self._beat()
        target = self.world.target(table, self.generations[table])
        yield from self._persistently(
            "destination",
            f"stage {table} range {number}",
            lambda: self.destination.stage(target, self.attempt, number, rows),
        )

    def _still_ours(self, table: TableName) -> Call[bool]:
        state = (yield from self._load())[table]
        ours = (state.generation, state.attempt) == (self.generations[table], self.attempt)
        return ours and isinstance(state.phase, DataSync)

    def _publish(self, table: TableName, boundary: Boundary) -> Actor:
        target = self.world.target(table, self.generations[table])
        yield from self._persistently(
            "destination",
            f"publish {table} at {boundary.lsn}",
            lambda: self.destination.finish_copy(target, self.attempt, boundary),
        )
        event = CopyFinished(self.generations[table], self.attempt, boundary)
        if not isinstance((yield from self._tell(table, event)), Refused):
            self.published.append(table)
