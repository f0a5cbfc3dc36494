"""The clock, the servers, the network between them and the processes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields
from random import Random
from typing import Literal, TypeVar

from airflow_provider_pgetl.engine.destinations.fencing import TableMetadata
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.phases import (
    Catchup,
    Errored,
    Ready,
    Refused,
    SyncWait,
    TableState,
    needs_group_slot,
)
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema
from airflow_provider_pgetl.engine.source.published import Member, Publication
from airflow_provider_pgetl.engine.source.slots import SlotName, apply_slot, copy_slot
from airflow_provider_pgetl.engine.state.memory_store import MemoryDatabase
from airflow_provider_pgetl.engine.state.store import TableRecord
from tests.simulation.destination import Client, PlainClient, Watched
from tests.simulation.history import Away, Violation
from tests.simulation.source import Source
from tests.simulation.store import WatchedStore
from tests.simulation.threads import Killed, Process, Scheduler, always
from tests.simulation.threads import Ready as Waited

PIPELINE = "shop"
INSTANCE = "sim"
APPLY_SLOT = apply_slot(PIPELINE, INSTANCE)
CEILING = "ceiling"
_SHUTDOWN_SECONDS = 15.0

T = TypeVar("T")
Actor = Generator[None, None, None]
_ACTIONS = frozenset({"insert", "update", "delete", "truncate"})


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is simulated. Answers go astray by request, the operator acts by step; `mishaps` are what may happen, each
    such step with the share `trouble`; what is late arrives with the share `arrivals`."""

    exactly_once: bool = True
    tables: int = 3
    copies: int = 2
    workers: int = 2
    one_machine: bool = True
    bounded: bool = False
    on_slot_lost: Literal["resync", "error"] = "resync"
    truncates: float = 0.04
    memory: int = 1 << 20
    steps: int = 400
    lost: float = 0.03
    refused: float = 0.02
    late: float = 0.02
    doubled: float = 0.02
    operator: float = 0.01
    trouble: float = 0.025
    arrivals: float = 0.03
    troubled: tuple[str, ...] = ("store", "destination", "source")
    mishaps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What an exported snapshot shows: the tables at `boundary`, in these files, and the catalog."""

    boundary: Boundary
    files: Mapping[TableName, int]
    schemas: Mapping[TableName, TableSchema]
    memberships: Mapping[TableName, int]

    def __str__(self) -> str:
        return str(self.boundary)


@dataclass
class World:
    """Everything there is. `random` belongs to the step that is being taken. `unjudged`: the store was set back, so
    many times in all, and no preparation has gone through since; `refusals`: how many preparations since the last that
    went through were refused, for that or for a source that was set back."""

    scenario: Scenario
    random: Random = field(default_factory=Random)
    calm: bool = False
    trace: list[str] | None = None
    acting: str = ""
    people: dict[str, Actor] = field(default_factory=dict)
    paused: dict[str, float] = field(default_factory=dict)
    outages: dict[str, float] = field(default_factory=dict)
    astray: dict[TableName, int] = field(default_factory=dict)
    restored: dict[TableName, int] = field(default_factory=dict)
    restores: int = 0
    stopping_since: float = 0.0
    unjudged: int = 0
    refusals: int = 0
    _kept: object = None
    gone: set[str] = field(default_factory=set)
    processes: dict[str, Process] = field(default_factory=dict)
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    whole_from: dict[tuple[TableName, int], Boundary] = field(default_factory=dict)
    on_the_way: list[tuple[str, Callable[[], object]]] = field(default_factory=list)
    violation: str | None = None
    half_open: list[tuple[float, Process]] = field(default_factory=list)
    _dying: list[Process] = field(default_factory=list)
    _started: int = 0

    def __post_init__(self) -> None:
        self.scheduler = Scheduler()
        self.tables = [TableName("public", f"t{number}") for number in range(1, self.scenario.tables + 1)]
        exactly_once = self.scenario.exactly_once
        self.source = Source(self.tables, sends_whole_rows=not exactly_once, truncates=self.scenario.truncates)
        self.source.violate = self.violate  # type: ignore[method-assign]
        self.destination = Watched(exactly_once)
        self.database = MemoryDatabase(clock=lambda: self.now, instances=lambda: INSTANCE)
        self.durable = self.database.pipeline(PIPELINE)
        store = self.open_store()
        for table in self.tables:
            store.register(table, self.source.schemas[table].relation, self.source.memberships[table])

    @property
    def now(self) -> float:
        return self.scheduler.now

    def back_up_store(self) -> None:
        self._kept = deepcopy(self.durable)

    def restore_store(self) -> bool:
        """Back to what was backed up, if anything was, under every store object that is open on it."""
        kept, self._kept = self._kept, None
        if kept is None:
            return False
        for each in fields(self.durable):
            setattr(self.durable, each.name, getattr(kept, each.name))
        self.unjudged += 1
        return True

    def open_store(self) -> WatchedStore:
        store = WatchedStore(PIPELINE, self.database)
        store.world = self
        return store

    def open_destination(self, process: Process) -> PlainClient:
        return (Client if self.scenario.exactly_once else PlainClient)(self, process)

    @property
    def states(self) -> Mapping[TableName, TableState]:
        """What is true now, whoever knows it."""
        return {table: record.state for table, record in self.durable.view.tables.items()}

    def publications(self) -> tuple[Publication, ...]:
        relations = {table: schema.relation for table, schema in self.source.schemas.items()}
        memberships = self.source.memberships.items()
        members = {relations[table]: Member(number, relations[table], table) for table, number in memberships}
        return (Publication(1, "pgetl_shop", "o", True, None, False, True, False, _ACTIONS, members=members),)

    def is_astray(self, table: TableName) -> bool:
        """Whether it follows a history that its source has given up: until it is copied again nothing holds for it."""
        attempt = self.states[table].attempt
        return table in self.astray and (attempt is None or attempt <= self.astray[table])

    def is_restored(self, table: TableName) -> bool:
        """Whether the destination may lack what it had: until the table is copied again, or for ever, where nothing of
        it was lost."""
        attempt = self.states[table].attempt
        return table in self.restored and (attempt is None or attempt <= self.restored[table])

    def is_whole(self, table: TableName, record: TableMetadata | None) -> bool:
        """Whether the destination's table is to equal the source's at its position. A copy of a table that was
        truncated meanwhile lacks rows, until its catch-up has come to the truncate."""
        if record is None or record.position is None or record.published <= self.astray.get(table, 0):
            return False
        since = self.whole_from.get((table, record.published))
        return since is not None and record.position >= since

    def expect_not_needed(self, name: str) -> None:
        """Nobody drops a slot that a table needs."""
        slot, parsed = self.source.slots.get(name), SlotName.parse(name)
        if self.unjudged:
            return
        if slot is None or slot.lost or parsed is None or parsed.attempt is None:
            return
        for table, state in self.states.items():
            if state.attempt == parsed.attempt and needs_group_slot(state):
                self.violate(f"{name} is dropped, which {table} needs")

    def expect_caught_up(self, process: Process, began: Boundary, known: Mapping[TableName, TableRecord]) -> None:
        """A bounded run has brought all there was when it began, of the tables that it did not leave Errored."""
        for table, record in known.items():
            if isinstance(record.state.phase, Errored) or record.state != self.states[table]:
                continue
            there = self.destination.storage.records.get((PIPELINE, table))
            if not isinstance(record.state.phase, Ready):
                self.violate(f"{process} has ended, and {table} is {record.state.phase}")
            if not self.scenario.exactly_once or self.is_astray(table) or self.is_restored(table):
                continue
            assert there is not None, "it is Ready"
            assert there.position is not None, "and published"
            if self.source.tables[table].changed(there.position, began):
                self.violate(f"{process} has ended at {began}, and {table} stands at {there.position}")

    def violate(self, what: str) -> None:
        """The shell may catch what is raised here; what was found stays."""
        self.violation = self.violation or what
        raise Violation(what)

    def note(self, what: str) -> None:
        if self.trace is not None:
            words = what.replace("public.", "").replace(f"pgetl_{PIPELINE}_{INSTANCE}_", "")
            self.trace.append(f"{self.now:8.2f} {self.acting:<20} {words}")

    def chance(self, probability: float) -> bool:
        """Whether something goes wrong. In a calm step nothing does."""
        return self.random.random() < probability and not self.calm

    # -- the network --------------------------------------------------------------------------------------------------

    def is_away(self, server: str) -> bool:
        return self.outages.get(server, 0.0) > self.now

    def call(
        self,
        process: Process,
        server: str,
        what: str,
        do: Callable[[], T],
        unanswered: Callable[[], object],
        *,
        reads: bool = False,
    ) -> T:
        """A request to a server. If it fails with `Away` it is unknown whether it took effect, or yet will: by
        `unanswered`, which leaves nothing behind in the client.

        Who dies while the request is on its way does not take it back.
        """
        process.expect_alive()
        try:
            self.block(process, always, None)
        except Killed:
            if self.chance(0.3) and not reads and self._may_be_late(server):
                self.on_the_way.append((what, unanswered))
            raise
        if self.is_away(server) or (server == "source" and self.source.stopping):
            raise Away(server, what)
        fate = self._fate() if server in self.scenario.troubled and not self.calm else ""
        if fate == "refused" or (reads and fate in ("lost", "late")):
            self.note(f"{what}: not sent")
            raise Away(server, what)
        if fate == "late" and self._may_be_late(server):
            self.note(f"{what}: stuck on the way, given up")
            self.on_the_way.append((what, unanswered))
            raise Away(server, what)
        if fate == "lost":
            self._done_silently(what, unanswered, "the answer is lost")
            raise Away(server, what)
        answer = self._done(what, do, reads)
        if fate == "doubled" and not reads:
            self._done_silently(what, unanswered, "done a second time")
        if fate == "slow":
            self.block(process, always, None)
        return answer

    def _fate(self) -> str:
        drawn, scenario = self.random.random(), self.scenario
        for fate, share in (
            ("lost", scenario.lost),
            ("refused", scenario.refused),
            ("late", scenario.late),
            ("doubled", scenario.doubled),
            ("slow", 0.2),
        ):
            if drawn < share:
                return fate
            drawn -= share
        return ""

    def _may_be_late(self, server: str) -> bool:
        """A destination without fences cannot tell what comes late: its promise is weaker there."""
        return server != "destination" or self.scenario.exactly_once

    def _done(self, what: str, do: Callable[[], T], reads: bool) -> T:
        try:
            answer = do()
        except PgetlError as error:
            self.note(f"{what}: {error.message}")
            raise
        if self.trace is not None and not reads:
            self.note(what if answer is None or answer is True else f"{what} -> {_short(answer)}")
        return answer

    def _done_silently(self, what: str, do: Callable[[], object], how: str) -> None:
        try:
            do()
            self.note(f"{what}: {how}")
        except PgetlError as error:
            self.note(f"{what}: {how}, refused: {error.message}")

    def arrive(self) -> None:
        """What was stuck on the way is done now."""
        if self.on_the_way:
            what, do = self.on_the_way.pop(self.random.randrange(len(self.on_the_way)))
            self._done_silently(what, do, "arrives late")

    # -- processes and people -----------------------------------------------------------------------------------------

    def block(self, process: Process, ready: Waited, timeout: float | None) -> None:
        self.scheduler.block(process, ready, timeout)

    def start(self, place: str, main: Callable[[Process], None]) -> Process:
        self._started += 1
        process = Process(place, self._started)
        self.processes[place] = process
        self.scheduler.spawn(process, "main", lambda: self._run(process, main))
        return process

    def _run(self, process: Process, main: Callable[[Process], None]) -> None:
        try:
            main(process)
        except PgetlError as error:
            self.note(f"{process} ends: {error}")
        if not process.dead:
            self.end(process)

    def end(self, process: Process, *, noticed: bool = True) -> None:
        """It is over, with all its threads. `noticed`: the servers know at once that its connections are gone."""
        self.gone.add(str(process))
        if self.processes.get(process.place) is process:
            del self.processes[process.place]
        if noticed:
            self.source.hang_up(process)
        else:
            self.half_open.append((self.now + self.random.choice([1.0, 10.0, 60.0]), process))
        for child in process.children:
            child.set()
        process.dead = True
        self._dying.append(process)
        if self.scheduler.running is None:
            self._bury()

    def _bury(self) -> None:
        while self._dying:
            self.scheduler.kill(self._dying.pop())

    def spawn(self, name: str, actor: Actor) -> None:
        self.people[name] = actor

    def able(self) -> list[str]:
        """The threads that can go on."""
        return [
            name
            for name, task in self.scheduler.tasks.items()
            if self.scheduler.can_go_on(task) and not self._stands(name)
        ]

    def pass_time(self) -> None:
        """To the next moment at which a thread can go on."""
        deadlines = [
            t.deadline for n, t in self.scheduler.tasks.items() if not self._stands(n) and t.deadline > self.now
        ]
        until = [*deadlines, *(until for until in self.paused.values() if until > self.now)]
        self.scheduler.now = max(self.now, min(until, default=self.now + 1.0))

    def step(self, name: str, seed: int) -> None:
        """One person, or one thread, acts, if it can."""
        while self.half_open and self.half_open[0][0] <= self.now:
            self.source.hang_up(self.half_open.pop(0)[1])
        self.random.seed(seed)
        self.scheduler.now += self.random.random() * 0.02
        self._stop_source()
        self.acting = name
        person = self.people.get(name)
        if person is not None:
            next(person)
            return
        task = self.scheduler.tasks.get(name)
        if task is not None and self.scheduler.can_go_on(task) and not self._stands(name):
            self.scheduler.resume(task)
            self._bury()

    def _stop_source(self) -> None:
        """A source that is to shut down does so when nobody streams any more, which must not take long."""
        if not self.source.stopping:
            return
        waited_for = self.source.waits_for
        if not waited_for:
            self.source.shut_down()
            self.snapshots.clear()
            self.outages["source"] = self.now + self.random.choice([0.3, 2.0])
            self.note(f"the source is down until {self.outages['source']:.2f}")
        elif self._hands_over or any(self._is_held_up(one.owner) for one in waited_for):
            self.stopping_since = self.now
        elif self.now - max([self.stopping_since, *self.paused.values()]) > _SHUTDOWN_SECONDS:
            self.violate(f"the source cannot shut down for {', '.join(one.slot.name for one in waited_for)}")

    @property
    def _hands_over(self) -> bool:
        """Who waits for the other stream of a hand-over reads nothing, for as long as the core has patience."""
        return any(isinstance(state.phase, SyncWait | Catchup) for state in self.states.values())

    def _is_held_up(self, owner: object) -> bool:
        """Whether it cannot hear that the source wants to shut down."""
        assert isinstance(owner, Process)
        return owner.dead or any(self._stands(name) for name in self.scheduler.tasks if name.startswith(owner.place))

    def _stands(self, name: str) -> bool:
        return bool(self.paused) and any(
            until > self.now and (name == prefix or name.startswith(f"{prefix}/"))
            for prefix, until in self.paused.items()
        )

    def close(self) -> None:
        """Unwind what is left, so that nothing of this world runs when it is collected."""
        for process in {task.process for task in self.scheduler.tasks.values()}:
            self.scheduler.kill(process)


def slot_of(attempt: int) -> str:
    return copy_slot(PIPELINE, INSTANCE, attempt)


def _short(answer: object) -> str:
    if isinstance(answer, Refused):
        return f"refused: {answer.why}"
    if isinstance(answer, Mapping):
        return ", ".join(f"{key}: {getattr(value, 'phase', value)}" for key, value in answer.items())
    return str(answer)
