"""What verifications found: kept with the rows that differed, and no more of it than is bounded."""

import pytest

from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.verification import (
    EVIDENCE_BYTES,
    EVIDENCE_ROWS,
    Difference,
    TableVerified,
    bounded,
)
from airflow_provider_pgetl.engine.state.store import DIFFERING_KEPT, Store
from tests.engine.state.conftest import World
from tests.engine.state.samples import AWKWARD, CUSTOMERS, ORDERS

ROW = Difference(
    "changed",
    {"id": "1"},
    {"note": ("a\x00", "NULL")},
    {"id": "1", "note": "a\x00"},
    {"id": "1", "note": "NULL"},
    Boundary(5),
    Boundary(9),
)
GONE = Difference("missing", {"id": "2"}, {}, {"id": "2", "note": "ü"}, None, Boundary(6), Boundary(10))


def different(at: int, table: object = ORDERS, *rows: Difference) -> TableVerified:
    assert table in (ORDERS, CUSTOMERS, AWKWARD)
    return TableVerified(
        table,  # type: ignore[arg-type]
        "different",
        Boundary(at),
        at + 0.5,
        rows=10,
        missing=1,
        changed=1,
        differences=rows,
        skipped=3,
        why="they were changed meanwhile.",
        rounds=2,
        generation=4,
        share=0.5,
    )


def equal(at: int) -> TableVerified:
    return TableVerified(ORDERS, "equal", Boundary(at), float(at), rows=10, rounds=1, generation=4)


@pytest.fixture
def registered(store: Store) -> Store:
    for table in (ORDERS, CUSTOMERS, AWKWARD):
        store.register(table, 1, 2)
    return store


def test_a_result_is_read_as_it_was_recorded(registered: Store, world: World) -> None:
    found = [different(5, ORDERS, ROW, GONE), different(6, AWKWARD, ROW)]
    registered.record_verified(found)
    for store in (registered, world.open()):
        assert [list(store.verifications(one.table)) for one in found] == [[one] for one in found]
        assert store.verifications(CUSTOMERS) == []
        assert store.last_verified()[AWKWARD] == different(6, AWKWARD)


def test_the_newest_is_kept_and_before_it_those_that_differed(registered: Store) -> None:
    results = [equal(1), different(2, ORDERS, ROW), equal(3), different(4, ORDERS, GONE), equal(5), equal(6)]
    for one in results:
        registered.record_verified([one])
    assert list(registered.verifications(ORDERS)) == [results[1], results[3], results[5]]
    assert registered.last_verified() == {ORDERS: equal(6)}


def test_results_do_not_accumulate(registered: Store) -> None:
    for at in range(1, 3 * DIFFERING_KEPT):
        registered.record_verified([different(at)])
    kept = [one.position for one in registered.verifications(ORDERS)]
    assert kept == [Boundary(at) for at in range(2 * DIFFERING_KEPT - 1, 3 * DIFFERING_KEPT)]


def test_what_differs_is_stored_in_part() -> None:
    many = bounded(different(1, ORDERS, *[ROW] * 1000))
    assert len(many.differences) == EVIDENCE_ROWS
    wide = Difference("missing", {"id": "1"}, {}, {"note": "x" * (EVIDENCE_BYTES // 3)})
    assert len(bounded(different(1, ORDERS, *[wide] * 5)).differences) == 2


def test_a_deleted_table_has_none(registered: Store, world: World) -> None:
    registered.record_verified([different(1), different(1, CUSTOMERS)])
    registered.delete_table(ORDERS)
    registered.record_verified([different(2)])
    registered.register(ORDERS, 1, 2)
    for store in (registered, world.open()):
        assert list(store.verifications(ORDERS)) == []
        assert set(store.last_verified()) == {CUSTOMERS}


def test_a_copy_made_anew_leaves_them(registered: Store) -> None:
    registered.record_verified([different(1)])
    registered.clear_copy_state(ORDERS)
    assert list(registered.verifications(ORDERS)) == [different(1)]


def test_a_destroyed_pipeline_has_none(registered: Store, world: World) -> None:
    registered.record_verified([different(1)])
    registered.destroy()
    assert world.open().last_verified() == {}
