"""Tables are registered, moved by events, and remembered in each state that they were in."""

from dataclasses import replace

from airflow_provider_pgetl.engine.model.phases import (
    CameNear,
    CaughtUp,
    CopyFinished,
    CopyStarted,
    DataSync,
    Errored,
    Failed,
    FinishedCopy,
    Init,
    Ready,
    Refused,
    Reset,
    RetryPolicy,
    RolledBack,
    TableState,
    TakenOver,
    TargetChosen,
)
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.state.store import Store
from airflow_provider_pgetl.engine.state.view import HISTORY_KEPT
from tests.engine.state.conftest import World
from tests.engine.state.samples import AWKWARD, CUSTOMERS, LINEAGE, ORDERS, TERMS

SNAPSHOT = Boundary.parse("16/B374D848")


def test_a_new_pipeline_has_an_instance_that_fits_into_a_slot_name(store: Store, world: World) -> None:
    pipeline = store.pipeline()
    assert (pipeline.id, pipeline.epoch, pipeline.lineage) == (world.pipeline_id, 0, None)
    assert len(pipeline.instance) == 6
    assert set(pipeline.instance) <= set("abcdefghijklmnopqrstuvwxyz234567")


def test_the_instance_stays_and_differs_between_pipelines(world: World) -> None:
    instance = world.open().pipeline().instance
    assert world.open().pipeline().instance == instance
    assert world.open(f"{world.pipeline_id}_eu").pipeline().instance != instance


def test_the_lineage_is_kept(store: Store, world: World) -> None:
    store.record_lineage(LINEAGE)
    assert store.pipeline().lineage == LINEAGE
    assert world.open().pipeline().lineage == LINEAGE


def test_a_registered_table_begins_in_init(store: Store, world: World) -> None:
    record = store.register(ORDERS, 16384, 4_294_967_295)
    assert (record.state, record.relation, record.membership) == (TableState(Init(), 1), 16384, 4_294_967_295)
    assert store.tables() == world.open().tables() == {ORDERS: record}


def test_registering_again_notes_the_oids_and_leaves_the_state(store: Store, world: World) -> None:
    store.register(ORDERS, 16384, 1)
    store.apply({ORDERS: CopyStarted(1, 7)})
    record = store.register(ORDERS, 16999, None)
    assert (record.relation, record.membership) == (16999, None)
    assert record.state == TableState(DataSync(), 1, attempt=7)
    assert world.open().tables() == {ORDERS: record}
    assert len(store.history(ORDERS)) == 2


def test_terms_are_noted_and_kept_until_others_are(store: Store, world: World) -> None:
    assert store.register(ORDERS, 1, 2).selection is None
    assert store.register(ORDERS, 1, 2, TERMS).selection == TERMS
    assert store.register(ORDERS, 1, 3).selection == TERMS
    assert world.open().tables()[ORDERS].selection == TERMS
    whole = replace(TERMS, columns=None, where=None)
    assert store.register(ORDERS, 1, 3, whole).selection == whole
    assert world.open().tables()[ORDERS].selection == whole


def test_a_table_goes_all_the_way(store: Store, world: World) -> None:
    store.register(AWKWARD, 1, 2)
    far = Boundary(SNAPSHOT.lsn + 1000)
    for event in (
        CopyStarted(1, 1),
        CopyFinished(1, 1, SNAPSHOT),
        CameNear(1, SNAPSHOT),
        TargetChosen(1, SNAPSHOT),
        CaughtUp(1, far, far),
        TakenOver(1, far),
    ):
        taken = store.apply({AWKWARD: event})
        assert not isinstance(taken, Refused)
        assert taken[AWKWARD] == store.tables()[AWKWARD].state == world.open().tables()[AWKWARD].state
    assert store.tables()[AWKWARD].state == TableState(Ready(), 1, 1, SNAPSHOT)


def test_the_history_has_every_state_oldest_first(store: Store) -> None:
    store.register(ORDERS, 1, 2)
    store.apply({ORDERS: CopyStarted(1, 1)})
    store.apply({ORDERS: Failed(1, "died", "wait", RetryPolicy("timed", 12.5))})
    entries = store.history(ORDERS)
    error = Errored("died", "wait", RetryPolicy("timed", 12.5), "DataSync")
    assert [entry.state.phase for entry in entries] == [Init(), DataSync(), error]
    assert entries[0].at <= entries[1].at <= entries[2].at
    assert entries[-1].state == store.tables()[ORDERS].state


def test_the_history_of_an_unknown_table_is_empty(store: Store) -> None:
    assert list(store.history(ORDERS)) == []


def test_an_event_sent_again_changes_nothing(store: Store) -> None:
    store.register(ORDERS, 1, 2)
    first = store.apply({ORDERS: CopyStarted(1, 1)})
    assert store.apply({ORDERS: CopyStarted(1, 1)}) == first
    assert len(store.history(ORDERS)) == 2


def test_several_tables_move_together(store: Store, world: World) -> None:
    for table in (ORDERS, CUSTOMERS, AWKWARD):
        store.register(table, 1, 2)
    store.apply({table: CopyStarted(1, 3) for table in (ORDERS, CUSTOMERS, AWKWARD)})
    fresh = world.open()
    fresh.apply({table: CopyFinished(1, 3, SNAPSHOT) for table in (AWKWARD, ORDERS)})
    phases = {table: record.state.phase for table, record in world.open().tables().items()}
    assert phases == {ORDERS: FinishedCopy(SNAPSHOT), CUSTOMERS: DataSync(), AWKWARD: FinishedCopy(SNAPSHOT)}


def test_one_refusal_refuses_all(store: Store, world: World) -> None:
    store.register(ORDERS, 1, 2)
    store.register(CUSTOMERS, 1, 2)
    store.apply({ORDERS: Reset(1)})
    refused = store.apply({CUSTOMERS: CopyStarted(1, 1), ORDERS: CopyStarted(1, 1)})
    assert refused == Refused("public.orders: generation 1 was superseded by 2")
    assert store.tables()[CUSTOMERS].state == world.open().tables()[CUSTOMERS].state == TableState()
    assert len(store.history(CUSTOMERS)) == 1


def test_a_table_that_is_not_registered_refuses(store: Store) -> None:
    store.register(CUSTOMERS, 1, 2)
    refused = store.apply({ORDERS: CopyStarted(1, 1), CUSTOMERS: CopyStarted(1, 1)})
    assert refused == Refused("public.orders is not registered")
    assert store.tables()[CUSTOMERS].state == TableState()


def test_no_events_are_no_change(store: Store) -> None:
    assert store.apply({}) == {}


def test_a_stale_cache_does_not_decide(store: Store, world: World) -> None:
    store.register(ORDERS, 1, 2)
    stale = world.open()
    store.apply({ORDERS: Reset(1)})
    assert stale.tables()[ORDERS].state.generation == 1
    assert isinstance(stale.apply({ORDERS: CopyStarted(1, 1)}), Refused)
    assert stale.load() == 1
    assert stale.tables()[ORDERS].state.generation == 2


def test_a_store_shows_its_own_writes_and_those_of_others_after_load(store: Store, world: World) -> None:
    other = world.open()
    store.register(ORDERS, 1, 2)
    other.register(CUSTOMERS, 1, 2)
    assert (set(store.tables()), set(other.tables())) == ({ORDERS}, {CUSTOMERS})
    assert other.load() == 2
    assert set(other.tables()) == {ORDERS, CUSTOMERS}


def test_what_a_reader_was_given_does_not_change_under_it(store: Store) -> None:
    before = store.tables()
    store.register(ORDERS, 1, 2)
    assert before == {}


def test_rolling_back_raises_the_generation(store: Store) -> None:
    store.register(ORDERS, 1, 2)
    store.apply({ORDERS: CopyStarted(1, 1)})
    store.apply({ORDERS: CopyFinished(1, 1, SNAPSHOT)})
    store.apply({ORDERS: CameNear(1, SNAPSHOT)})
    taken = store.apply({ORDERS: RolledBack(1)})
    assert taken == {ORDERS: TableState(FinishedCopy(SNAPSHOT), 2, 1, SNAPSHOT)}


def test_old_history_is_forgotten(store: Store) -> None:
    store.register(ORDERS, 1, 2)
    for generation in range(1, HISTORY_KEPT + 11):
        store.apply({ORDERS: Reset(generation)})
    generations = [entry.state.generation for entry in store.history(ORDERS)]
    assert generations == list(range(12, HISTORY_KEPT + 12))


def test_a_reason_may_hold_any_character(store: Store, world: World) -> None:
    store.register(ORDERS, 1, 2)
    reason = "nul \x00, quote ', backslash \\, “ü”, \U0001f418, lone \ud800"
    store.apply({ORDERS: Failed(1, reason)})
    phase = world.open().tables()[ORDERS].state.phase
    assert phase == Errored(reason)


def test_acknowledged_generations_only_rise(store: Store, world: World) -> None:
    store.register(ORDERS, 1, 2)
    store.register(CUSTOMERS, 1, 2)
    store.acknowledge({ORDERS: 3, CUSTOMERS: 1, AWKWARD: 9})
    store.acknowledge({ORDERS: 2, CUSTOMERS: 4})
    for seen in (store, world.open()):
        assert {table: record.acknowledged for table, record in seen.tables().items()} == {ORDERS: 3, CUSTOMERS: 4}


def test_many_tables_move_in_one_step(store: Store, world: World) -> None:
    tables = [TableName("public", f"t{number}") for number in range(300)]
    for table in tables:
        store.register(table, 1, 2)
    store.apply({table: CopyStarted(1, 1) for table in tables})
    store.apply({table: CopyFinished(1, 1, SNAPSHOT) for table in tables})
    assert {record.state.phase for record in world.open().tables().values()} == {FinishedCopy(SNAPSHOT)}


def test_a_worker_whose_epoch_has_passed_says_nothing_any_more(store: Store, world: World) -> None:
    store.register(ORDERS, 1, 2)
    lease = store.acquire_lease("a worker", 60.0)
    assert lease is not None
    started, again = {ORDERS: CopyStarted(1, 1)}, {ORDERS: CopyStarted(1, 2)}
    assert not isinstance(store.apply(started, epoch=lease.epoch), Refused)
    world.open().raise_epoch()
    refused = store.apply(again, epoch=lease.epoch)
    assert refused == Refused(f"epoch {lease.epoch} was superseded by {lease.epoch + 1}")
    assert world.open().tables()[ORDERS].state.attempt == 1
    assert not isinstance(store.apply(again), Refused)


def test_since_when_each_table_is_where_it_is_is_when_its_last_entry_was_made(world: World) -> None:
    store = world.open()
    store.register(ORDERS, 1, None)
    store.register(CUSTOMERS, 2, None)
    world.pass_time(0.01)
    store.apply({ORDERS: CopyStarted(1, 1)})
    found = world.open().since()
    assert found == {table: store.history(table)[-1].at for table in (ORDERS, CUSTOMERS)}
    assert found[ORDERS] > found[CUSTOMERS]
