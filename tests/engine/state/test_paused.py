"""Since when a pipeline is paused, as the store has it."""

from __future__ import annotations

from airflow_provider_pgetl.engine.state.store import Store
from tests.engine.state.conftest import World


def test_a_new_pipeline_is_not_paused(store: Store) -> None:
    assert store.pipeline().paused is None


def test_a_pause_is_seen_by_others_and_keeps_its_time(store: Store, world: World) -> None:
    before = store.now()
    store.set_paused(True)
    since = store.pipeline().paused
    assert since is not None
    assert before - 1 <= since <= store.now() + 1
    other = world.open()
    assert other.pipeline().paused == since
    world.pass_time(1.0)
    other.set_paused(True)
    store.load()
    assert store.pipeline().paused == other.pipeline().paused == since


def test_a_pause_ends(store: Store, world: World) -> None:
    other = world.open()
    store.set_paused(True)
    store.set_paused(False)
    assert store.pipeline().paused is None
    other.load()
    assert other.pipeline().paused is None


def test_whoever_waits_hears_of_it(store: Store, world: World) -> None:
    other = world.open()
    other.load()
    store.set_paused(True)
    assert other.wait(5.0)
    assert other.pipeline().paused is not None
