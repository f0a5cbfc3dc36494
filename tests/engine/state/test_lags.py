"""How far the stream was behind when it last said so."""

from __future__ import annotations

from airflow_provider_pgetl.engine.state.store import Store
from tests.engine.state.conftest import World


def test_a_pipeline_that_never_streamed_has_no_lag(store: Store) -> None:
    assert store.lag() is None


def test_the_last_word_counts_and_others_hear_it(store: Store, world: World) -> None:
    store.record_lag(5_000_000_000, 2.5)
    first = store.lag()
    store.record_lag(0, 0.0)
    last = world.open().lag()

    assert first is not None
    assert last is not None
    assert (first.bytes, first.seconds) == (5_000_000_000, 2.5)
    assert (last.bytes, last.seconds) == (0, 0.0)
    assert last.at >= first.at


def test_nobody_is_woken_for_it(store: Store, world: World) -> None:
    other = world.open()
    store.record_lag(1, 0.1)
    assert not other.wait(0.1)


def test_a_destroyed_pipeline_has_none(store: Store, world: World) -> None:
    store.record_lag(1, 0.1)
    store.destroy()
    assert world.open().lag() is None
