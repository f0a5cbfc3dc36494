"""When the store hears that a table's new generation is taken up, and what becomes of a desk that fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.phases import CopyStarted, Reset
from airflow_provider_pgetl.engine.reports import nobody
from airflow_provider_pgetl.engine.state.memory import MemoryStore
from airflow_provider_pgetl.engine.sync.commands import Acknowledge, Verify
from airflow_provider_pgetl.engine.sync.desk import Desk
from airflow_provider_pgetl.engine.sync.mail import Mailbox, News
from airflow_provider_pgetl.engine.sync.routes import Routes
from airflow_provider_pgetl.engine.tables import TableName
from tests.engine.sync.driven import ITEMS, ORDERS


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore("shop")
    store.register(ORDERS, 1, None)
    return store


@contextmanager
def open_desk(store: MemoryStore, ended: list[PgetlError]) -> Iterator[Desk]:
    lease = store.acquire_lease("test", 60.0)
    assert lease is not None
    desk = Desk(store, Routes("shop"), lease.epoch, nobody, ended.append)
    desk.start()
    try:
        yield desk
    finally:
        desk.stop()


@pytest.fixture
def desk(store: MemoryStore) -> Iterator[Desk]:
    ended: list[PgetlError] = []
    with open_desk(store, ended) as desk:
        yield desk
    assert not ended


def acknowledged(store: MemoryStore) -> int:
    store.load()
    return store.tables()[ORDERS].acknowledged


def is_told(stream: Mailbox, generation: int) -> bool:
    """Whether the stream has been told of this generation since it was last looked."""
    news = [letter.states.get(ORDERS) for letter in stream.take() if isinstance(letter, News)]
    return any(state is not None and state.generation == generation for state in news)


def is_at(desk: Desk, generation: int) -> bool:
    return desk.states[ORDERS].generation == generation


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_generation_is_taken_up_when_the_last_stream_has_let_go(store: MemoryStore, desk: Desk) -> None:
    apply, catchup = Mailbox(), Mailbox()
    for stream in (apply, catchup):
        desk.join(stream)
    store.apply({ORDERS: Reset(1)})
    desk.refresh()
    for stream in (apply, catchup):
        eventually(partial(is_told, stream, 2))
    desk.send(Acknowledge({ORDERS: 2}), apply)
    desk.send(Acknowledge({ORDERS: 1}), catchup)
    desk.send(Verify(), catchup)
    eventually(lambda: any(True for _ in catchup.take()))
    assert acknowledged(store) < 2
    desk.send(Acknowledge({ORDERS: 2}), catchup)
    eventually(lambda: acknowledged(store) == 2)


def test_a_stream_that_has_left_holds_nothing(store: MemoryStore, desk: Desk) -> None:
    apply, catchup = Mailbox(), Mailbox()
    for stream in (apply, catchup):
        desk.join(stream)
    store.apply({ORDERS: Reset(1)})
    desk.refresh()
    eventually(partial(is_told, apply, 2))
    desk.send(Acknowledge({ORDERS: 2}), apply)
    desk.leave(catchup)
    eventually(lambda: acknowledged(store) == 2)


def test_a_defect_ends_the_worker(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing would be recorded any more, and nobody would know."""
    ended: list[PgetlError] = []
    with open_desk(store, ended) as desk:
        monkeypatch.setattr(store, "load", None)
        desk.refresh()
        eventually(lambda: bool(ended))
    assert [error.kind for error in ended] == [ErrorKind.INTERNAL]


def test_a_stream_of_a_group_is_told_of_its_own_tables_only(store: MemoryStore, desk: Desk) -> None:
    store.register(ITEMS, 2, None)
    store.apply({ORDERS: CopyStarted(1, 1), ITEMS: CopyStarted(1, 2)})
    desk.refresh()
    eventually(lambda: desk.states.get(ITEMS) is not None and desk.states[ITEMS].attempt == 2)
    apply, catchup = Mailbox(), Mailbox()
    assert desk.join(apply).keys() == {ORDERS, ITEMS}
    assert desk.join(catchup, 1).keys() == {ORDERS}
    store.apply({ITEMS: Reset(1)})
    store.apply({ORDERS: Reset(1)})
    desk.refresh()
    eventually(lambda: desk.states[ORDERS].generation == 2)
    assert tables_told(catchup) == {ORDERS}
    assert tables_told(apply) == {ORDERS, ITEMS}


def test_news_that_wait_are_one_letter_and_are_forgotten_by_who_begins_again(store: MemoryStore, desk: Desk) -> None:
    stream = Mailbox()
    desk.join(stream)
    for number in range(1, 6):
        store.apply({ORDERS: Reset(number)})
        desk.refresh()
        eventually(partial(is_at, desk, number + 1))
    (letter,) = stream.take()
    assert isinstance(letter, News)
    assert {state.generation for state in letter.states.values() if state is not None} == {6}
    store.apply({ORDERS: Reset(6)})
    desk.refresh()
    eventually(lambda: desk.states[ORDERS].generation == 7)
    assert desk.join(stream)[ORDERS].generation == 7
    assert tables_told(stream) == set()


def tables_told(stream: Mailbox) -> set[TableName]:
    return {table for letter in stream.take() if isinstance(letter, News) for table in letter.states}
