"""Waiting for what others do."""

import threading
import time
from collections.abc import Iterator

import pytest

from airflow_provider_pgetl.engine.model.phases import CopyStarted, DataSync
from airflow_provider_pgetl.engine.model.positions import START, Boundary, HighWater
from airflow_provider_pgetl.engine.state.memory_store import MemoryDatabase, MemoryStore
from airflow_provider_pgetl.engine.state.sql import loading
from airflow_provider_pgetl.engine.state.store import Store
from tests.engine.state.conftest import PostgresWorld, World
from tests.engine.state.samples import ORDERS, schema_of


def test_nothing_to_hear(store: Store) -> None:
    assert not store.wait(0.05)


def test_what_another_wrote_is_heard_and_then_seen(store: Store, world: World) -> None:
    store.wait(0)
    other = world.open()
    other.register(ORDERS, 1, 2)
    assert store.wait(60)
    assert ORDERS in store.tables()
    other.apply({ORDERS: CopyStarted(1, 1)})
    assert store.wait(60)
    assert store.tables()[ORDERS].state.phase == DataSync()
    assert not store.wait(0.05)


def test_a_change_before_the_first_wait_is_heard(store: Store, world: World) -> None:
    world.open().register(ORDERS, 1, 2)
    assert store.wait(60)
    assert ORDERS in store.tables()


def test_own_writes_of_before_are_not_heard(store: Store) -> None:
    store.register(ORDERS, 1, 2)
    assert not store.wait(0.05)
    store.apply({ORDERS: CopyStarted(1, 1)})
    assert not store.wait(0.05)


def test_an_own_write_does_not_hide_that_of_another(store: Store, world: World) -> None:
    other = world.open()
    other.store_schema(ORDERS, START, schema_of(ORDERS, "id"))
    store.register(ORDERS, 1, 2)
    assert store.wait(60)
    assert ORDERS in store.schemas()


def test_heartbeats_and_progress_wake_nobody(store: Store, world: World) -> None:
    other = world.open()
    other.register(ORDERS, 1, 2)
    other.acquire_lease("a", 60)
    attempt = other.start_attempt(60)
    assert store.wait(60)
    while store.wait(0.05):
        pass
    other.renew_lease(1, 60)
    other.beat_attempt(attempt, 60)
    other.record_progress("apply", Boundary(5))
    other.raise_high_water({ORDERS: HighWater(1, Boundary(5))})
    assert not store.wait(0.3)


@pytest.mark.parametrize(
    "change",
    [
        lambda other: other.raise_epoch(),
        lambda other: other.start_attempt(60),
        lambda other: other.end_attempt(1),
        lambda other: other.acknowledge({ORDERS: 5}),
        lambda other: other.delete_table(ORDERS),
        lambda other: other.release_lease(1),
    ],
    ids=["epoch", "attempt", "end", "acknowledge", "delete", "release"],
)
def test_what_people_wait_for_is_heard(store: Store, world: World, change: object) -> None:
    assert callable(change)
    store.register(ORDERS, 1, 2)
    store.acquire_lease("a", 60)
    store.start_attempt(60)
    other = world.open()
    change(other)
    assert store.wait(60)


def test_other_pipelines_wake_nobody(store: Store, world: World) -> None:
    store.wait(0)
    world.open(f"{world.pipeline_id}_eu").register(ORDERS, 1, 2)
    assert not store.wait(0.3)


class Waiting(threading.Thread):
    """A thread that waits once."""

    def __init__(self, store: Store, timeout: float) -> None:
        super().__init__(daemon=True)
        self._store = store
        self._timeout = timeout
        self.answer: bool | None = None

    def run(self) -> None:
        self.answer = self._store.wait(self._timeout)


@pytest.fixture(params=["memory", pytest.param(16, marks=pytest.mark.servers, id="pg16")])
def waiter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Store, Store]]:
    """Two stores in real time: with a clock of its own the memory store never blocks. Neither looks by itself."""
    monkeypatch.setattr(loading, "POLL_SECONDS", 3600.0)
    if request.param == "memory":
        database = MemoryDatabase()
        yield MemoryStore("shop", database), MemoryStore("shop", database)
        return
    world = PostgresWorld(request.getfixturevalue("state_databases")[16])
    yield world.open(), world.open()
    world.close()


def test_a_waiting_thread_is_woken(waiter: tuple[Store, Store]) -> None:
    store, other = waiter
    store.wait(0)
    waiting = Waiting(store, 3600)
    waiting.start()
    time.sleep(0.1)
    other.register(ORDERS, 1, 2)
    waiting.join(60)
    assert waiting.answer is True
    assert ORDERS in store.tables()


def test_a_thread_wakes_another_of_the_same_store(waiter: tuple[Store, Store]) -> None:
    store, _ = waiter
    store.wait(0)
    threads = [Waiting(store, 3600) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    store.register(ORDERS, 1, 2)
    for thread in threads:
        thread.join(60)
    assert [thread.answer for thread in threads] == [True] * 3


def test_closing_ends_a_wait(waiter: tuple[Store, Store]) -> None:
    store, _ = waiter
    waiting = Waiting(store, 3600)
    waiting.start()
    time.sleep(0.2)
    store.close()
    waiting.join(60)
    assert waiting.answer is False
