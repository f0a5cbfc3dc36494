"""Forgetting: what a copy left, a table, the whole pipeline."""

import pytest

from airflow_provider_pgetl.engine.model.errors import Fenced
from airflow_provider_pgetl.engine.model.phases import CopyStarted, DataSync, Refused, Reset, TableState
from airflow_provider_pgetl.engine.model.positions import NO_MARK, START, Boundary, HighWater
from airflow_provider_pgetl.engine.state.store import DestinationMetadata, Store
from tests.engine.state.conftest import World
from tests.engine.state.samples import CUSTOMERS, LINEAGE, ORDERS, schema_of


@pytest.fixture
def filled(store: Store) -> Store:
    for table in (ORDERS, CUSTOMERS):
        store.register(table, 1, 2)
        store.apply({table: CopyStarted(1, 1)})
        store.raise_high_water({table: HighWater(1, Boundary(9))})
        store.store_schema(table, START, schema_of(table, "id"))
        store.store_places({table: DestinationMetadata(table, START)})
    return store


def test_clearing_the_copy_keeps_the_phase(filled: Store, world: World) -> None:
    filled.clear_copy_state(ORDERS)
    for store in (filled, world.open()):
        record = store.tables()[ORDERS]
        assert (record.state.phase, record.high_water) == (DataSync(), NO_MARK)
        assert (store.schema(ORDERS, Boundary(5)), store.destination_metadata(ORDERS)) == (None, None)
        assert len(store.history(ORDERS)) == 2


def test_other_tables_are_untouched(filled: Store, world: World) -> None:
    before = filled.tables()[CUSTOMERS]
    filled.clear_copy_state(ORDERS)
    filled.delete_table(ORDERS)
    for store in (filled, world.open()):
        assert store.tables() == {CUSTOMERS: before}
        assert store.schema(CUSTOMERS, START) == schema_of(CUSTOMERS, "id")
        assert store.destination_metadata(CUSTOMERS) is not None
        assert len(store.history(CUSTOMERS)) == 2


def test_nothing_is_left_of_a_deleted_table(filled: Store, world: World) -> None:
    filled.delete_table(ORDERS)
    for store in (filled, world.open()):
        assert ORDERS not in store.tables()
        assert ORDERS not in store.schemas()
        assert store.destination_metadata(ORDERS) is None
        assert list(store.history(ORDERS)) == []
        assert isinstance(store.apply({ORDERS: CopyStarted(1, 1)}), Refused)


def test_a_table_that_comes_back_has_a_later_generation(filled: Store) -> None:
    filled.apply({ORDERS: Reset(1)})
    filled.delete_table(ORDERS)
    assert filled.register(ORDERS, 1, 2).state == TableState(generation=3)


def test_forgetting_what_is_unknown_is_no_error(store: Store) -> None:
    store.clear_copy_state(ORDERS)
    store.delete_table(ORDERS)
    assert store.register(ORDERS, 1, 2).state == TableState()


def test_nothing_is_left_of_a_destroyed_pipeline(filled: Store, world: World) -> None:
    former = filled.pipeline().instance
    filled.record_lineage(LINEAGE)
    filled.acquire_lease("a", 60)
    filled.record_progress("apply", Boundary(9))
    filled.start_attempt(60)
    neighbour = world.open(f"{world.pipeline_id}_eu")
    neighbour.register(ORDERS, 1, 2)

    filled.destroy()

    anew = world.open()
    assert anew.pipeline().instance != former
    assert (anew.pipeline().epoch, anew.pipeline().lineage, anew.lease()) == (0, None, None)
    assert (anew.tables(), anew.schemas(), anew.progress("apply")) == ({}, {}, None)
    assert anew.start_attempt(60) == 1
    assert neighbour.load() == 1


def test_a_store_of_a_destroyed_pipeline_is_fenced(filled: Store, world: World) -> None:
    other = world.open()
    lease = other.acquire_lease("a", 60)
    assert lease is not None
    filled.destroy()
    filled.destroy()
    world.open().register(CUSTOMERS, 1, 2)
    for act in (
        other.load,
        other.raise_epoch,
        lambda: other.wait(0.0),
        lambda: other.register(ORDERS, 1, 2),
        lambda: other.record_progress("apply", Boundary(9)),
        lambda: other.acquire_lease("a", 60),
        lambda: other.start_attempt(60),
        lambda: other.store_schema(ORDERS, START, schema_of(ORDERS, "id")),
        lambda: other.store_places({ORDERS: DestinationMetadata(ORDERS, START)}),
    ):
        with pytest.raises(Fenced, match="destroyed"):
            act()
    assert not other.renew_lease(lease.epoch, 60)
    assert isinstance(other.apply({ORDERS: CopyStarted(1, 1)}), Refused)
    assert set(world.open().tables()) == {CUSTOMERS}
