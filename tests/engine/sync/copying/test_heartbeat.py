"""A copy attempt lives as long as the store says."""

import time

import pytest

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.state.memory import MemoryStore
from airflow_provider_pgetl.engine.sync.copying.heartbeat import Heartbeat


class Away(MemoryStore):
    """A store whose database does not answer for the first `missed` beats."""

    missed = 0
    beats = 0

    def beat_attempt(self, attempt: int, ttl: float) -> bool:
        self.beats += 1
        if self.beats <= self.missed:
            raise PgetlError(ErrorKind.STORE, "The state database is away.")
        return super().beat_attempt(attempt, ttl)


@pytest.fixture
def store() -> Away:
    return Away("shop")


def test_it_outlives_its_time_to_live_while_it_beats(store: Away) -> None:
    attempt = store.start_attempt(0.2)
    with Heartbeat(store, attempt, 0.2) as heartbeat:
        time.sleep(0.5)
        assert store.live_attempts() == {attempt}
        assert not heartbeat.over.is_set()


def test_it_is_over_when_the_store_says_so(store: Away) -> None:
    attempt = store.start_attempt(0.2)
    with Heartbeat(store, attempt, 0.2) as heartbeat:
        store.end_attempt(attempt)
        assert heartbeat.over.wait(2)
    assert heartbeat.why == "it was given up for dead"


def test_a_store_that_is_away_for_a_beat_is_forgiven(store: Away) -> None:
    store.missed = 2
    attempt = store.start_attempt(0.4)
    with Heartbeat(store, attempt, 0.4) as heartbeat:
        time.sleep(0.6)
        assert not heartbeat.over.is_set()


def test_a_store_that_stays_away_ends_it_in_time(store: Away) -> None:
    """Before others may take the attempt for dead and begin the next one, give or take a beat."""
    store.missed = 1000
    begun = time.monotonic()
    with Heartbeat(store, store.start_attempt(0.4), 0.4) as heartbeat:
        assert heartbeat.over.wait(2)
    assert time.monotonic() - begun < 0.7
    assert heartbeat.why == "the store could not be reached"


def test_the_first_reason_stays(store: Away) -> None:
    heartbeat = Heartbeat(store, 1)
    heartbeat.end("it was asked to stop")
    heartbeat.end("something else")

    assert heartbeat.why == "it was asked to stop"
