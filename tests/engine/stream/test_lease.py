"""Becoming the one streaming worker, while another is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.reports import Noted, Report
from airflow_provider_pgetl.engine.model.results import Lease
from airflow_provider_pgetl.engine.state.memory_store import MemoryDatabase, MemoryStore
from airflow_provider_pgetl.engine.stream.lease import expect_lease, kept_lease, take_lease
from tests.engine.stream.driven_time import DrivenTime
from tests.raising import raises
from tests.waiting import until

HOUR = 3600.0
HOLDER = "elsewhere/00000000/4026531836/4711/123"


@pytest.fixture
def time() -> DrivenTime:
    return DrivenTime()


@pytest.fixture
def store(time: DrivenTime) -> MemoryStore:
    return MemoryStore("shop", MemoryDatabase(clock=time.time))


def taken(store: MemoryStore, time: DrivenTime, said: list[str], patience: float | None) -> Lease | None:
    def observe(report: Report) -> None:
        assert isinstance(report, Noted)
        said.append(report.message)

    return take_lease(store, time.flag(), observe, patience, time)


def test_without_a_bound_a_lease_is_waited_for_and_its_holder_told_once_a_minute(
    store: MemoryStore, time: DrivenTime
) -> None:
    held = store.acquire_lease(HOLDER, HOUR)
    assert held is not None
    said: list[str] = []
    lease = taken(store, time, said, None)
    assert lease is not None
    assert lease.epoch == held.epoch + 1
    assert time.now == pytest.approx(HOUR, abs=10.0)
    assert len(said) == pytest.approx(60, abs=2)
    assert all("process 4711 on elsewhere" in line for line in said)
    assert "waits (since 59 min" in said[-1]


def test_with_patience_a_lease_that_is_kept_is_an_error_that_names_its_holder(
    store: MemoryStore, time: DrivenTime
) -> None:
    store.acquire_lease(HOLDER, HOUR)
    said: list[str] = []
    with raises(ErrorKind.FENCED, match="process 4711 on elsewhere"):
        taken(store, time, said, 30.0)
    assert len(said) == 1
    assert time.now < 40


def test_who_is_stopped_while_waiting_has_no_lease(store: MemoryStore, time: DrivenTime) -> None:
    store.acquire_lease(HOLDER, HOUR)
    stop = time.flag()

    def stop_at_the_second_line(report: Report) -> None:
        if time.now > 50:
            stop.set()

    assert take_lease(store, stop, stop_at_the_second_line, None, time) is None


# -- The lease, kept from a thread of its own; whoever has lost it ends. -----------------------------------------------

TTL = 30.0


class _Lost:
    """Who is told."""

    def __init__(self) -> None:
        self.errors: list[PgetlError] = []
        self.told = threading.Event()

    def __call__(self, error: PgetlError) -> None:
        self.errors.append(error)
        self.told.set()


@contextmanager
def kept(store: MemoryStore, lost: _Lost, time: DrivenTime) -> Iterator[int]:
    lease = store.acquire_lease("test", TTL)
    assert lease is not None
    keeper = kept_lease(store, lease.epoch, TTL, lost, time)
    keeper.start()
    try:
        yield lease.epoch
    finally:
        keeper.stop()


def test_it_outlasts_its_time(store: MemoryStore, time: DrivenTime) -> None:
    lost = _Lost()
    with kept(store, lost, time) as epoch:
        until(lambda: time.now > 3 * TTL, pause=0.001)
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
    (error,) = lost.errors
    assert (error.kind, error.message) == (ErrorKind.FENCED, "The lease of this streaming worker has gone to another.")


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
