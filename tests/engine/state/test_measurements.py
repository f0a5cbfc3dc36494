"""What the stream has measured: kept in spans of several lengths, and for a limited time."""

from __future__ import annotations

from airflow_provider_pgetl.engine.model.results import RESOLUTIONS, Measurement
from airflow_provider_pgetl.engine.state.memory_store import MemoryDatabase, MemoryStore
from airflow_provider_pgetl.engine.state.store import Store
from tests.engine.state.conftest import World

FINE, MIDDLE, COARSE = RESOLUTIONS


def test_measurements_of_one_span_are_joined(store: Store, world: World) -> None:
    store.record_measurement(Measurement(100, 2.5, changes=10, batches=1, retained_bytes=7, memory_bytes=9))
    store.record_measurement(Measurement(50, 3.5, changes=5, batches=1, retained_bytes=8, memory_bytes=3))
    (joined,) = world.open().measurements(COARSE)
    assert (joined.lag_bytes, joined.lag_seconds) == (100, 3.5)
    assert (joined.changes, joined.batches) == (15, 2)
    assert (joined.retained_bytes, joined.memory_bytes) == (8, 9)
    assert 0 < joined.at - store.now() <= COARSE.seconds


def test_each_resolution_has_all_of_them(store: Store) -> None:
    store.record_measurement(Measurement(changes=10))
    assert [sum(one.changes for one in store.measurements(each)) for each in RESOLUTIONS] == [10, 10, 10]


def test_a_destroyed_pipeline_has_none(store: Store, world: World) -> None:
    store.record_measurement(Measurement(1))
    store.destroy()
    assert world.open().measurements(FINE) == []


def test_old_spans_are_deleted_and_coarse_ones_stay_longer() -> None:
    time = 0.0
    store = MemoryStore("shop", MemoryDatabase(lambda: time))
    while time < 3 * MIDDLE.kept:
        store.record_measurement(Measurement(changes=1))
        time += FINE.seconds
    for each in RESOLUTIONS:
        kept = store.measurements(each)
        assert len(kept) <= each.kept // each.seconds + 1
        assert kept[-1].at - kept[0].at <= each.kept + each.seconds
    assert len(store.measurements(COARSE)) == 3 * MIDDLE.kept // COARSE.seconds
