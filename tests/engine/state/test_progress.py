"""Progress and high-water marks never go down."""

from dataclasses import replace

from airflow_provider_pgetl.engine.model.positions import (
    NO_MARK,
    START,
    Boundary,
    CommitLsn,
    Counted,
    HighWater,
    RowCounts,
    Seen,
    Transaction,
)
from airflow_provider_pgetl.engine.state.store import Store
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


def test_what_was_seen_goes_with_the_progress_that_it_was_seen_at(store: Store, world: World) -> None:
    met = Seen(Boundary(0x20_0000_0000), Boundary(9), Transaction(CommitLsn(7), 4_000_000_000, 812_345_678_901_234))
    met = replace(met, owned=Transaction(CommitLsn(5), 3, -8), server=1_763_000_000_000_000)
    store.record_progress("apply", Boundary(5))
    store.record_progress("apply", met.upto, met)
    store.record_progress("apply", met.upto, Seen(met.upto, met.upto))
    store.record_progress("c1", Boundary(8), Seen(Boundary(8), Boundary(3)))
    for each in (store, world.open()):
        assert each.seen() == {"apply": met, "c1": Seen(Boundary(8), Boundary(3))}
        assert each.progress("apply") == met.upto


def test_high_water_marks_only_rise(store: Store, world: World) -> None:
    for table in (ORDERS, CUSTOMERS):
        assert store.register(table, 1, 2).high_water == NO_MARK
    store.raise_high_water({t: HighWater(1, Boundary(at)) for t, at in ((ORDERS, 50), (CUSTOMERS, 5), (AWKWARD, 1))})
    store.raise_high_water({ORDERS: HighWater(1, Boundary(40)), CUSTOMERS: HighWater(1, Boundary(2**63))})
    store.raise_high_water({})
    for seen in (store, world.open()):
        marks = {table: record.high_water for table, record in seen.tables().items()}
        assert marks == {ORDERS: HighWater(1, Boundary(50)), CUSTOMERS: HighWater(1, Boundary(2**63))}


def test_a_mark_of_a_later_attempt_replaces_that_of_an_earlier_for_good(store: Store, world: World) -> None:
    store.register(ORDERS, 1, 2)
    store.raise_high_water({ORDERS: HighWater(1, Boundary(50))})
    store.raise_high_water({ORDERS: HighWater(2, Boundary(20))})
    store.raise_high_water({ORDERS: HighWater(1, Boundary(60))})
    for seen in (store, world.open()):
        record = seen.tables()[ORDERS]
        assert record.high_water == HighWater(2, Boundary(20))
        assert record.mark == START, "the table has no data of that attempt"
        assert [record.high_water.of(attempt) for attempt in (1, 2)] == [START, Boundary(20)]


def test_what_was_counted_goes_with_the_mark_that_it_was_counted_up_to(store: Store, world: World) -> None:
    counted = Counted(Boundary(20), Boundary(50), RowCounts(1, 2, 3, 2**40), -812_345_678_901_234)
    later = Counted(Boundary(20), Boundary(60), RowCounts(2, 2, 3, 2**40))

    def stored() -> list[Counted | None]:
        return [each.tables()[ORDERS].high_water.counted for each in (store, world.open())]

    store.register(ORDERS, 1, 2)
    store.register(CUSTOMERS, 1, 2)
    store.raise_high_water({ORDERS: HighWater(1, Boundary(50), counted), CUSTOMERS: HighWater(1, Boundary(9))})
    assert stored() == [counted, counted]
    store.raise_high_water({ORDERS: HighWater(1, Boundary(40), later)})
    assert stored() == [counted, counted]
    store.raise_high_water({ORDERS: HighWater(1, Boundary(60), later)})
    assert stored() == [later, later]
    store.raise_high_water({ORDERS: HighWater(2, Boundary(10))})
    assert stored() == [None, None]
    store.raise_high_water({ORDERS: HighWater(2, Boundary(60), later)})
    store.clear_copy_state(ORDERS)
    assert stored() == [None, None]


def test_a_stale_cache_does_not_lower_a_mark(store: Store, world: World) -> None:
    store.register(ORDERS, 1, 2)
    other = world.open()
    store.raise_high_water({ORDERS: HighWater(1, Boundary(50))})
    other.raise_high_water({ORDERS: HighWater(1, Boundary(40))})
    assert world.open().tables()[ORDERS].high_water == HighWater(1, Boundary(50))
