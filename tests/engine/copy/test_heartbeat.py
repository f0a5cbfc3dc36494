"""The heartbeat of a copy attempt: the attempt is over when the store says so, or has not answered for too long."""

import pytest

from airflow_provider_pgetl.engine.copy.attempt import Heartbeat
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.state.memory_store import MemoryDatabase, MemoryStore
from tests.engine.stream.driven_time import DrivenTime
from tests.waiting import until

TTL = 0.4


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
def time() -> DrivenTime:
    return DrivenTime()


@pytest.fixture
def store(time: DrivenTime) -> Away:
    return Away("shop", MemoryDatabase(clock=time.time))


def test_it_outlives_its_time_to_live_while_it_beats(store: Away, time: DrivenTime) -> None:
    attempt = store.start_attempt(TTL)
    with Heartbeat(store, attempt, TTL, time) as heartbeat:
        until(lambda: time.now > 5 * TTL, pause=0.001)
        assert store.live_attempts() == {attempt}
        assert not heartbeat.over.is_set()


def test_it_is_over_when_the_store_says_so(store: Away, time: DrivenTime) -> None:
    attempt = store.start_attempt(TTL)
    with Heartbeat(store, attempt, TTL, time) as heartbeat:
        store.end_attempt(attempt)
        until(heartbeat.over.is_set, pause=0.001)
    assert heartbeat.why == "it was given up for dead"


def test_a_few_heartbeats_that_fail_do_not_end_it(store: Away, time: DrivenTime) -> None:
    store.missed = 2
    attempt = store.start_attempt(TTL)
    with Heartbeat(store, attempt, TTL, time) as heartbeat:
        until(lambda: time.now > 2 * TTL, pause=0.001)
        assert not heartbeat.over.is_set()


def test_a_store_that_does_not_answer_ends_it_in_time(store: Away, time: DrivenTime) -> None:
    """By then, or a heartbeat later, other processes may take the attempt for dead and begin the next one."""
    store.missed = 1000
    with Heartbeat(store, store.start_attempt(TTL), TTL, time) as heartbeat:
        until(heartbeat.over.is_set, pause=0.001)
        ended = time.now
    assert TTL <= ended < 1.5 * TTL
    assert heartbeat.why == "the store could not be reached"


def test_the_first_reason_for_the_end_is_kept(store: Away) -> None:
    heartbeat = Heartbeat(store, 1)
    heartbeat.end("it was asked to stop")
    heartbeat.end("something else")

    assert heartbeat.why == "it was asked to stop"
