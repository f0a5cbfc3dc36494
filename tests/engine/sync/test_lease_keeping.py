"""The lease, kept from a thread of its own; whoever has lost it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.state.memory import MemoryDatabase, MemoryStore
from airflow_provider_pgetl.engine.sync.lease_keeping import LeaseKeeper, expect_lease
from tests.engine.sync.driven_time import DrivenTime, until

TTL = 30.0


class _Lost:
    """Who is told."""

    def __init__(self) -> None:
        self.errors: list[PgetlError] = []
        self.told = threading.Event()

    def __call__(self, error: PgetlError) -> None:
        self.errors.append(error)
        self.told.set()


@pytest.fixture
def time() -> DrivenTime:
    return DrivenTime()


@pytest.fixture
def store(time: DrivenTime) -> MemoryStore:
    return MemoryStore("shop", MemoryDatabase(clock=time.time))


@contextmanager
def kept(store: MemoryStore, lost: _Lost, time: DrivenTime) -> Iterator[int]:
    lease = store.acquire_lease("test", TTL)
    assert lease is not None
    keeper = LeaseKeeper(store, lease.epoch, TTL, lost, time)
    keeper.start()
    try:
        yield lease.epoch
    finally:
        keeper.stop()


def test_it_outlasts_its_time(store: MemoryStore, time: DrivenTime) -> None:
    lost = _Lost()
    with kept(store, lost, time) as epoch:
        until(lambda: time.now > 3 * TTL)
        assert store.lease() is not None
        expect_lease(store, epoch)
    assert not lost.errors


def test_who_has_lost_it_to_another_ends(store: MemoryStore, time: DrivenTime) -> None:
    lost = _Lost()
    with kept(store, lost, time) as epoch:
        store.raise_epoch()
        assert lost.told.wait(60)
        with pytest.raises(PgetlError, match="gone to another"):
            expect_lease(store, epoch)
    assert [error.kind for error in lost.errors] == [ErrorKind.FENCED]


def test_one_that_has_run_out_while_nobody_took_it_is_still_ours(store: MemoryStore, time: DrivenTime) -> None:
    lease = store.acquire_lease("test", TTL)
    assert lease is not None
    time.now += 2 * TTL
    assert store.lease() is None
    expect_lease(store, lease.epoch)
    assert store.lease() is not None


def test_who_cannot_reach_the_store_for_as_long_as_it_lasts_ends(
    store: MemoryStore, time: DrivenTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> bool:
        raise PgetlError(ErrorKind.STORE, "The store is away.")

    lost = _Lost()
    monkeypatch.setattr(store, "renew_lease", away)
    with kept(store, lost, time):
        assert lost.told.wait(60)
        ended = time.now
    assert TTL <= ended < 2 * TTL
    assert "for as long as the lease lasts. The store is away." in lost.errors[0].message


def test_a_defect_ends_it_as_well(store: MemoryStore, time: DrivenTime, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = _Lost()
    monkeypatch.setattr(store, "renew_lease", None)
    with kept(store, lost, time):
        assert lost.told.wait(60)
    assert [error.kind for error in lost.errors] == [ErrorKind.INTERNAL]
