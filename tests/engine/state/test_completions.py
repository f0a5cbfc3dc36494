"""Which task of which run completed when."""

from __future__ import annotations

from airflow_provider_pgetl.engine.state.store import Store
from tests.engine.state.conftest import World


def test_a_run_without_completions_has_none(store: Store) -> None:
    assert store.completions("shop/1") == {}


def test_completions_are_kept_per_run_and_seen_by_others(store: Store, world: World) -> None:
    store.record_completion("shop/1", "prepare")
    store.record_completion("shop/2", "apply")
    assert set(world.open().completions("shop/1")) == {"prepare"}


def test_several_complete_at_once(store: Store) -> None:
    store.record_completions("shop/1", ["a#passed_over", "b#passed_over"])
    store.record_completions("shop/1", [])
    assert set(store.completions("shop/1")) == {"a#passed_over", "b#passed_over"}


def test_completing_again_moves_the_time_on(store: Store) -> None:
    store.record_completion("shop/1", "orders.init")
    first = store.completions("shop/1")["orders.init"]
    store.record_completion("shop/1", "orders.data_sync")
    store.record_completion("shop/1", "orders.init")
    after = store.completions("shop/1")
    assert first <= after["orders.data_sync"] <= after["orders.init"]


def test_a_destroyed_pipeline_has_no_completions(store: Store, world: World) -> None:
    store.record_completion("shop/1", "prepare")
    store.destroy()
    assert world.open().completions("shop/1") == {}
