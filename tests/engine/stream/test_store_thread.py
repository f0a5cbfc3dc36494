"""When the store hears that a table's new generation is taken up, and what becomes of a desk that fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.phases import CopyStarted, Reset
from airflow_provider_pgetl.engine.model.reports import nobody
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.state.memory_store import MemoryStore
from airflow_provider_pgetl.engine.stream.batches import Routes
from airflow_provider_pgetl.engine.stream.messages import Acknowledge, Inbox, TablesChanged, Verify
from airflow_provider_pgetl.engine.stream.store_thread import StoreThread
from tests.engine.stream.driven import ITEMS, ORDERS
from tests.waiting import until


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore("shop")
    store.register(ORDERS, 1, None)
    return store


@contextmanager
def open_store_thread(store: MemoryStore, ended: list[PgetlError]) -> Iterator[StoreThread]:
    lease = store.acquire_lease("test", 60.0)
    assert lease is not None
    store_thread = StoreThread(store, Routes("shop"), lease.epoch, nobody, ended.append)
    store_thread.start()
    try:
        yield store_thread
    finally:
        store_thread.stop()


@pytest.fixture
def store_thread(store: MemoryStore) -> Iterator[StoreThread]:
    ended: list[PgetlError] = []
    with open_store_thread(store, ended) as store_thread:
        yield store_thread
    assert not ended


def acknowledged(store: MemoryStore) -> int:
    store.load()
    return store.tables()[ORDERS].acknowledged


def is_told(stream: Inbox, generation: int) -> bool:
    """Whether the stream has been told of this generation since it was last looked."""
    changes = [message.states.get(ORDERS) for message in stream.take() if isinstance(message, TablesChanged)]
    return any(state is not None and state.generation == generation for state in changes)


def is_at(store_thread: StoreThread, generation: int) -> bool:
    return store_thread.states[ORDERS].generation == generation


def test_a_generation_is_taken_up_when_the_last_stream_has_let_go(
    store: MemoryStore, store_thread: StoreThread
) -> None:
    apply, catchup = Inbox(), Inbox()
    for stream in (apply, catchup):
        store_thread.join(stream)
    store.apply({ORDERS: Reset(1)})
    store_thread.refresh()
    for stream in (apply, catchup):
        until(partial(is_told, stream, 2))
    store_thread.send(Acknowledge({ORDERS: 2}), apply)
    store_thread.send(Acknowledge({ORDERS: 1}), catchup)
    store_thread.send(Verify(), catchup)
    until(lambda: any(True for _ in catchup.take()))
    assert acknowledged(store) < 2
    store_thread.send(Acknowledge({ORDERS: 2}), catchup)
    until(lambda: acknowledged(store) == 2)


def test_a_stream_that_has_left_holds_nothing(store: MemoryStore, store_thread: StoreThread) -> None:
    apply, catchup = Inbox(), Inbox()
    for stream in (apply, catchup):
        store_thread.join(stream)
    store.apply({ORDERS: Reset(1)})
    store_thread.refresh()
    until(partial(is_told, apply, 2))
    store_thread.send(Acknowledge({ORDERS: 2}), apply)
    store_thread.leave(catchup)
    until(lambda: acknowledged(store) == 2)


def test_a_defect_ends_the_worker(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing would be recorded any more, and nobody would know."""
    ended: list[PgetlError] = []
    with open_store_thread(store, ended) as store_thread:
        monkeypatch.setattr(store, "load", None)
        store_thread.refresh()
        until(lambda: bool(ended))
    assert [error.kind for error in ended] == [ErrorKind.INTERNAL]


def test_a_stream_of_a_group_is_told_of_its_own_tables_only(store: MemoryStore, store_thread: StoreThread) -> None:
    store.register(ITEMS, 2, None)
    store.apply({ORDERS: CopyStarted(1, 1), ITEMS: CopyStarted(1, 2)})
    store_thread.refresh()
    until(lambda: store_thread.states.get(ITEMS) is not None and store_thread.states[ITEMS].attempt == 2)
    apply, catchup = Inbox(), Inbox()
    assert store_thread.join(apply).keys() == {ORDERS, ITEMS}
    assert store_thread.join(catchup, 1).keys() == {ORDERS}
    store.apply({ITEMS: Reset(1)})
    store.apply({ORDERS: Reset(1)})
    store_thread.refresh()
    until(lambda: store_thread.states[ORDERS].generation == 2)
    assert tables_told(catchup) == {ORDERS}
    assert tables_told(apply) == {ORDERS, ITEMS}


def test_news_that_wait_are_one_letter_and_are_forgotten_by_who_begins_again(
    store: MemoryStore, store_thread: StoreThread
) -> None:
    stream = Inbox()
    store_thread.join(stream)
    for number in range(1, 6):
        store.apply({ORDERS: Reset(number)})
        store_thread.refresh()
        until(partial(is_at, store_thread, number + 1))
    (message,) = stream.take()
    assert isinstance(message, TablesChanged)
    assert {state.generation for state in message.states.values() if state is not None} == {6}
    store.apply({ORDERS: Reset(6)})
    store_thread.refresh()
    until(lambda: store_thread.states[ORDERS].generation == 7)
    assert store_thread.join(stream)[ORDERS].generation == 7
    assert tables_told(stream) == set()


def tables_told(stream: Inbox) -> set[TableName]:
    return {table for message in stream.take() if isinstance(message, TablesChanged) for table in message.states}
