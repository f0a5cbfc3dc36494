"""Whatever is done to them, in whatever order, the two stores answer alike and remember alike.

Two store objects on each side, so that what is compared includes what a stale cache shows.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import methodcaller
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from airflow_provider_pgetl.engine.model import phases
from airflow_provider_pgetl.engine.model.positions import Boundary, HighWater
from airflow_provider_pgetl.engine.model.results import Lease
from airflow_provider_pgetl.engine.model.tables import CopiedSelection, TableName
from airflow_provider_pgetl.engine.state.memory_store import MemoryDatabase, MemoryStore
from airflow_provider_pgetl.engine.state.store import DestinationMetadata, FoundTable, Registration, Store
from airflow_provider_pgetl.testing.servers.postgres_servers import Database
from tests.engine.state.conftest import PostgresWorld
from tests.engine.state.samples import AWKWARD, CUSTOMERS, LINEAGE, ORDERS, TERMS, schema_of

LONG = 3600.0

tables = st.sampled_from([ORDERS, CUSTOMERS, AWKWARD])
which = st.integers(0, 1)
boundaries = st.integers(0, 3).map(Boundary)
small = st.integers(1, 3)
workers = st.sampled_from(["apply", "c1"])
policies = st.builds(phases.RetryPolicy, st.sampled_from(["timed", "manual"]), st.none() | st.floats(0, 2e9))

Maker = Callable[[int], phases.Event]


def _made(event: Any, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Maker]:
    """An event without its generation, which the machine knows better."""
    return st.tuples(*arguments).map(lambda drawn: lambda generation: event(generation, *drawn))


makers = st.one_of(
    _made(phases.CopyStarted, small),
    _made(phases.CopyFinished, small, boundaries),
    _made(phases.CameNear, boundaries),
    _made(phases.TargetChosen, boundaries),
    _made(phases.CaughtUp, boundaries, boundaries),
    _made(phases.TakenOver, boundaries),
    _made(phases.Demoted),
    _made(phases.Failed, st.text(max_size=5), st.none() | st.text(max_size=5), policies),
    _made(phases.RolledBack, st.booleans()),
    _made(phases.Reset),
)


class Stores(RuleBasedStateMachine):
    database: Database

    def __init__(self) -> None:
        super().__init__()
        self.postgres = PostgresWorld(self.database)
        memory = MemoryDatabase(clock=lambda: 1000.0, instances=lambda: "abcdef")
        self.pairs = [
            (MemoryStore(self.postgres.pipeline_id, memory), self.postgres.open(self.postgres.pipeline_id))
            for _ in range(2)
        ]

    def teardown(self) -> None:
        self.postgres.close()

    @initialize(registered=st.sets(tables, min_size=1))
    def begin(self, registered: set[TableName]) -> None:
        for table in sorted(registered):
            self.register(0, table, 1, None)

    def both(self, which: int, act: Callable[[Store], Any]) -> Any:
        memory, postgres = (act(store) for store in self.pairs[which])
        assert memory == postgres
        return memory

    @rule(
        which=which,
        table=tables,
        relation=small,
        membership=st.none() | small,
        selection=st.sampled_from([None, TERMS]),
    )
    def register(
        self,
        which: int,
        table: TableName,
        relation: int,
        membership: int | None,
        selection: CopiedSelection | None = None,
    ) -> None:
        self.both(which, lambda store: store.register(table, relation, membership, selection))

    @rule(which=which, made=st.dictionaries(tables, makers, min_size=1), behind=st.sampled_from([0, 0, 0, 0, 1]))
    def apply(self, which: int, made: Mapping[TableName, Maker], behind: int) -> None:
        reader = self.pairs[which][0]
        known = reader.tables()
        events = {
            table: maker((known[table].state.generation if table in known else 1) - behind)
            for table, maker in made.items()
        }
        self.both(which, lambda store: store.apply(events))

    @rule(which=which, made=st.dictionaries(tables, makers, min_size=1))
    def apply_each(self, which: int, made: Mapping[TableName, Maker]) -> None:
        known = self.pairs[which][0].tables()
        events = {t: maker(known[t].state.generation if t in known else 1) for t, maker in made.items()}
        self.both(which, lambda store: store.apply_each(events))

    @rule(which=which, relations=st.dictionaries(tables, small), selection=st.sampled_from([None, TERMS]))
    def register_all(self, which: int, relations: Mapping[TableName, int], selection: CopiedSelection | None) -> None:
        given = {table: Registration(relation, None, selection) for table, relation in relations.items()}
        self.both(which, lambda store: store.register_all(given))

    @rule(which=which, relations=st.dictionaries(tables, small), at=boundaries)
    def begin_copies(self, which: int, relations: Mapping[TableName, int], at: Boundary) -> None:
        found = {
            table: FoundTable(relation, relation, at, schema_of(table, "id"), DestinationMetadata(table, at, False))
            for table, relation in relations.items()
        }
        self.both(which, lambda store: store.begin_copies(found))

    @rule(which=which, table=tables, maker=makers)
    def apply_one(self, which: int, table: TableName, maker: Maker) -> None:
        self.apply(which, {table: maker}, 0)

    @rule(which=which, generations=st.dictionaries(tables, small))
    def acknowledge(self, which: int, generations: Mapping[TableName, int]) -> None:
        self.both(which, lambda store: store.acknowledge(generations))

    @rule(which=which, positions=st.dictionaries(tables, st.builds(HighWater, st.integers(0, 2), boundaries)))
    def raise_high_water(self, which: int, positions: Mapping[TableName, HighWater]) -> None:
        self.both(which, lambda store: store.raise_high_water(positions))

    @rule(which=which, worker=workers, boundary=st.none() | boundaries)
    def record_or_delete_progress(self, which: int, worker: str, boundary: Boundary | None) -> None:
        if boundary is None:
            self.both(which, lambda store: store.delete_progress(worker))
        else:
            self.both(which, lambda store: store.record_progress(worker, boundary))

    @rule(which=which, holder=st.sampled_from("ab"))
    def acquire_lease(self, which: int, holder: str) -> None:
        self.both(which, lambda store: _timeless(store.acquire_lease(holder, LONG)))

    @rule(which=which, epoch=small, act=st.sampled_from(["renew", "release", "raise"]))
    def use_lease(self, which: int, epoch: int, act: str) -> None:
        acts: dict[str, Callable[[Store], Any]] = {
            "renew": lambda store: store.renew_lease(epoch, LONG),
            "release": lambda store: store.release_lease(epoch),
            "raise": lambda store: store.raise_epoch(),
        }
        self.both(which, acts[act])

    @rule(which=which, attempt=small, act=st.sampled_from(["start", "beat", "end"]))
    def use_attempt(self, which: int, attempt: int, act: str) -> None:
        acts: dict[str, Callable[[Store], Any]] = {
            "start": lambda store: store.start_attempt(LONG, f"process {attempt}"),
            "beat": lambda store: store.beat_attempt(attempt, LONG),
            "end": lambda store: store.end_attempt(attempt),
        }
        self.both(which, acts[act])

    @rule(
        which=which,
        table=tables,
        columns=st.dictionaries(boundaries, st.sampled_from("abc")),
    )
    def store_schemas(self, which: int, table: TableName, columns: Mapping[Boundary, str]) -> None:
        for at, column in columns.items():
            self.both(which, methodcaller("store_schema", table, at, schema_of(table, "id", column)))

    @rule(which=which, table=tables, at=boundaries, applied=st.booleans(), detail=st.text(max_size=3))
    def store_metadata(self, which: int, table: TableName, at: Boundary, applied: bool, detail: str) -> None:
        metadata = DestinationMetadata(table, at, applied, {"detail": detail})
        self.both(which, lambda store: store.store_places({table: metadata}))
        self.both(which, lambda store: store.record_lineage(replace(LINEAGE, timeline=at.lsn)))

    @rule(which=which, table=tables, wholly=st.booleans())
    def forget(self, which: int, table: TableName, wholly: bool) -> None:
        self.both(which, lambda store: store.delete_table(table) if wholly else store.clear_copy_state(table))

    @rule(which=which)
    def load(self, which: int) -> None:
        """What has changed since is all that differs from what a new store object reads."""
        self.both(which, lambda store: store.load())
        fresh = self.postgres.open(self.postgres.pipeline_id)
        assert _cached(self.pairs[which][1]) == _cached(fresh)
        fresh.close()

    @invariant()
    def remember_alike(self) -> None:
        for which in (0, 1):
            self.both(which, _cached)
        self.both(0, _stored)


def _cached(store: Store) -> Any:
    pipeline = store.pipeline()
    found = [(store.destination_metadata(table), store.schema(table, Boundary(2))) for table in (ORDERS, AWKWARD)]
    return pipeline.epoch, pipeline.lineage, store.tables(), _no_empty(store.schemas()), found


def _stored(store: Store) -> Any:
    history = {table: [entry.state for entry in store.history(table)] for table in (ORDERS, CUSTOMERS, AWKWARD)}
    return history, store.progress("apply"), _timeless(store.lease()), store.attempt_holders()


def _no_empty(mapping: Mapping[Any, Any]) -> Any:
    return {key: value for key, value in mapping.items() if value}


def _timeless(lease: Lease | None) -> Any:
    return lease and (lease.holder, lease.epoch)


@pytest.mark.servers
@pytest.mark.timeout(600)
@pytest.mark.parametrize("examples", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_both_stores_answer_and_remember_alike(state_databases: dict[int, Database], examples: int) -> None:
    Stores.database = state_databases[16]
    run_state_machine_as_test(
        Stores,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        ),
    )
