"""Progress and high-water marks never go down."""

from airflow_provider_pgetl.engine.positions import START, Boundary
from airflow_provider_pgetl.engine.state.protocol import Store
from tests.engine.state.conftest import World
from tests.engine.state.samples import AWKWARD, CUSTOMERS, ORDERS


def test_a_worker_without_progress_has_none(store: Store) -> None:
    assert store.progress("apply") is None


def test_progress_answers_the_larger_of_stored_and_given(store: Store) -> None:
    assert store.record_progress("apply", Boundary(0x10_0000_0000)) == Boundary(0x10_0000_0000)
    assert store.record_progress("apply", Boundary(0xFFFF_FFFF)) == Boundary(0x10_0000_0000)
    assert store.record_progress("apply", Boundary(0x20_0000_0000)) == Boundary(0x20_0000_0000)


def test_progress_is_seen_by_others_at_once_and_per_worker(store: Store, world: World) -> None:
    other = world.open()
    store.record_progress("apply", Boundary(5))
    store.record_progress("c1", Boundary(7))
    assert (other.progress("apply"), other.progress("c1")) == (Boundary(5), Boundary(7))


def test_deleted_progress_begins_anew(store: Store) -> None:
    store.record_progress("apply", Boundary(9))
    store.delete_progress("apply")
    store.delete_progress("apply")
    assert store.progress("apply") is None
    assert store.record_progress("apply", Boundary(3)) == Boundary(3)


def test_high_water_marks_only_rise(store: Store, world: World) -> None:
    for table in (ORDERS, CUSTOMERS):
        assert store.register(table, 1, 2).high_water == START
    store.raise_high_water({ORDERS: Boundary(50), CUSTOMERS: Boundary(5), AWKWARD: Boundary(1)})
    store.raise_high_water({ORDERS: Boundary(40), CUSTOMERS: Boundary(2**63)})
    store.raise_high_water({})
    for seen in (store, world.open()):
        marks = {table: record.high_water for table, record in seen.tables().items()}
        assert marks == {ORDERS: Boundary(50), CUSTOMERS: Boundary(2**63)}


def test_a_stale_cache_does_not_lower_a_mark(store: Store, world: World) -> None:
    store.register(ORDERS, 1, 2)
    other = world.open()
    store.raise_high_water({ORDERS: Boundary(50)})
    other.raise_high_water({ORDERS: Boundary(40)})
    assert world.open().tables()[ORDERS].high_water == Boundary(50)
