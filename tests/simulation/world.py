"""The clock, the servers, the network between them and the actors."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.phases import Refused, TableState
from airflow_provider_pgetl.engine.state.memory import MemoryDatabase
from airflow_provider_pgetl.engine.sync.core import Pace
from airflow_provider_pgetl.engine.tables import TableName
from tests.simulation.destination import Watched
from tests.simulation.source import Away, Source, schema_of
from tests.simulation.store import WatchedStore

PIPELINE = "shop"
APPLY_SLOT = "apply"
CEILING = "ceiling"
LEASE_SECONDS = 6.0
ATTEMPT_SECONDS = 8.0
PACE = Pace(
    record_retry=0.5,
    ceiling_interval=0.3,
    idle_ceiling_interval=1.0,
    write_retry_most=2.0,
    handover_patience=3.0,
    near_bytes=30,
    near_doubles_every=2.0,
)

T = TypeVar("T")
Actor = Generator[None, None, None]
Call = Generator[None, None, T]


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is simulated. Answers go astray by request, the operator acts by step; `mishaps` are what may happen."""

    exactly_once: bool = True
    tables: int = 3
    copies: int = 2
    steps: int = 400
    lost: float = 0.03
    refused: float = 0.02
    late: float = 0.02
    doubled: float = 0.02
    operator: float = 0.01
    troubled: tuple[str, ...] = ("store", "destination", "source")
    mishaps: tuple[str, ...] = ()


@dataclass
class World:
    """Everything there is. `random` belongs to the step that is being taken."""

    scenario: Scenario
    random: Random = field(default_factory=Random)
    now: float = 0.0
    calm: bool = False
    trace: list[str] | None = None
    acting: str = ""
    actors: dict[str, Actor] = field(default_factory=dict)
    paused: dict[str, float] = field(default_factory=dict)
    outages: dict[str, float] = field(default_factory=dict)
    restored: set[TableName] = field(default_factory=set)
    restores: int = 0
    on_the_way: list[tuple[str, Callable[[], object]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tables = [TableName("public", f"t{number}") for number in range(1, self.scenario.tables + 1)]
        self.schemas = {table: schema_of(table) for table in self.tables}
        exactly_once = self.scenario.exactly_once
        self.source = Source(self.tables, sends_whole_rows=not exactly_once)
        self.destination = Watched(exactly_once)
        self.database = MemoryDatabase(clock=lambda: self.now, instances=lambda: "sim")
        self.durable = self.database.pipeline(PIPELINE)
        store = self.open_store()
        for table in self.tables:
            store.register(table, self.schemas[table].relation, None)

    def open_store(self) -> WatchedStore:
        return WatchedStore(PIPELINE, self.database)

    @property
    def states(self) -> Mapping[TableName, TableState]:
        """What is true now, whoever knows it."""
        return {table: record.state for table, record in self.durable.view.tables.items()}

    def target(self, table: TableName, generation: int) -> Target:
        return Target(PIPELINE, self.schemas[table], generation)

    def note(self, what: str) -> None:
        if self.trace is not None:
            words = what.replace("public.", "")
            self.trace.append(f"{self.now:7.2f} {self.acting:<16} {words}")

    def chance(self, probability: float) -> bool:
        """Whether something goes wrong. In a calm step nothing does."""
        return self.random.random() < probability and not self.calm

    # -- the network --------------------------------------------------------------------------------------------------

    def call(self, server: str, what: str, do: Callable[[], T]) -> Call[T]:
        """A request to a server. If it fails with `Away` it is unknown whether it took effect, or yet will.

        Who dies while the request is on its way does not take it back.
        """
        try:
            yield
        except GeneratorExit:
            if self.chance(0.3) and self._may_be_late(server):
                self.on_the_way.append((what, do))
            raise
        if self.outages.get(server, 0.0) > self.now:
            raise Away(server, what)
        fate = self._fate() if server in self.scenario.troubled else ""
        if fate == "refused":
            self.note(f"{what}: not sent")
            raise Away(server, what)
        if fate == "late" and self._may_be_late(server):
            self.note(f"{what}: stuck on the way, given up")
            self.on_the_way.append((what, do))
            raise Away(server, what)
        answer = self._done(what, do)
        if fate == "doubled":
            self._done_again(what, do)
        if fate == "slow":
            yield
        if fate == "lost":
            self.note(f"{what}: the answer is lost")
            raise Away(server, what)
        return answer

    def _fate(self) -> str:
        drawn, scenario = self.random.random(), self.scenario
        if self.calm:
            return ""
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

    def _done(self, what: str, do: Callable[[], T]) -> T:
        try:
            answer = do()
        except PgetlError as error:
            self.note(f"{what}: {error.message}")
            raise
        if self.trace is not None and not what.startswith("read"):
            self.note(what if answer is None or answer is True else f"{what} -> {_short(answer)}")
        return answer

    def _done_again(self, what: str, do: Callable[[], object]) -> None:
        try:
            do()
            self.note(f"{what}: done a second time")
        except PgetlError as error:
            self.note(f"{what}: done a second time, refused: {error.message}")

    def arrive(self) -> None:
        """What was stuck on the way is done now."""
        if self.on_the_way:
            what, do = self.on_the_way.pop(self.random.randrange(len(self.on_the_way)))
            try:
                do()
                self.note(f"arrives late: {what}")
            except PgetlError as error:
                self.note(f"arrives late: {what}, refused: {error.message}")

    # -- actors -------------------------------------------------------------------------------------------------------

    def spawn(self, name: str, actor: Actor) -> None:
        assert name not in self.actors, f"{name} acts already"
        self.actors[name] = actor

    def kill(self, prefix: str) -> None:
        """The process of this name ends, with all its threads, between two steps of each."""
        for name in [name for name in self.actors if name == prefix or name.startswith(f"{prefix}/")]:
            self.actors.pop(name).close()

    def step(self, name: str, seed: int) -> None:
        """The actor's next step, if it is there to act."""
        actor = self.actors.get(name)
        self.random.seed(seed)
        self.now += self.random.random() * 0.02
        if actor is None or self._pausing(name):
            return
        self.acting = name
        try:
            next(actor)
        except StopIteration:
            self.actors.pop(name, None)

    def _pausing(self, name: str) -> bool:
        return bool(self.paused) and any(
            until > self.now and (name == prefix or name.startswith(f"{prefix}/"))
            for prefix, until in self.paused.items()
        )


def _short(answer: object) -> str:
    if isinstance(answer, Refused):
        return f"refused: {answer.why}"
    if isinstance(answer, Mapping):
        return ", ".join(f"{key}: {getattr(value, 'phase', value)}" for key, value in answer.items())
    return str(answer)


def slot_of(attempt: int) -> str:
    return f"c{attempt}"


def group_slots(source: Source) -> dict[int, bool]:
    """The groups' slots by attempt, and whether each is still good."""
    return {int(name[1:]): not slot.lost for name, slot in source.slots.items() if name.startswith("c")}
