"""When the store hears that a table's new generation is taken up, and what becomes of a desk that fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.phases import Reset
from airflow_provider_pgetl.engine.reports import nobody
from airflow_provider_pgetl.engine.state.memory import MemoryStore
from airflow_provider_pgetl.engine.sync.commands import Acknowledge
from airflow_provider_pgetl.engine.sync.desk import Desk
from airflow_provider_pgetl.engine.sync.mail import Mailbox
from airflow_provider_pgetl.engine.sync.routes import Routes
from tests.engine.sync.driven import ORDERS


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


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_generation_is_taken_up_when_the_last_stream_has_let_go(store: MemoryStore, desk: Desk) -> None:
    apply, catchup = Mailbox(), Mailbox()
    for stream in (apply, catchup):
        desk.join(stream)
    store.apply({ORDERS: Reset(1)})
    desk.send(Acknowledge({ORDERS: 2}), apply)
    eventually(lambda: desk.states[ORDERS].generation == 2)
    desk.send(Acknowledge({ORDERS: 1}), catchup)
    eventually(lambda: acknowledged(store) == 1)
    desk.send(Acknowledge({ORDERS: 2}), catchup)
    eventually(lambda: acknowledged(store) == 2)


def test_a_stream_that_has_left_holds_nothing(store: MemoryStore, desk: Desk) -> None:
    apply, catchup = Mailbox(), Mailbox()
    for stream in (apply, catchup):
        desk.join(stream)
    store.apply({ORDERS: Reset(1)})
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
