"""Becoming the one streaming worker, while another is."""

from __future__ import annotations

import pytest

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.reports import Noted, Report
from airflow_provider_pgetl.engine.state.memory import MemoryDatabase, MemoryStore
from airflow_provider_pgetl.engine.state.protocol import Lease
from airflow_provider_pgetl.engine.sync.lease import take_lease
from tests.engine.sync.driven_time import DrivenTime

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
    with pytest.raises(PgetlError, match="process 4711 on elsewhere") as error:
        taken(store, time, said, 30.0)
    assert error.value.kind is ErrorKind.FENCED
    assert len(said) == 1
    assert time.now < 40


def test_who_is_stopped_while_waiting_has_no_lease(store: MemoryStore, time: DrivenTime) -> None:
    store.acquire_lease(HOLDER, HOUR)
    stop = time.flag()

    def stop_at_the_second_line(report: Report) -> None:
        if time.now > 50:
            stop.set()

    assert take_lease(store, stop, stop_at_the_second_line, None, time) is None
