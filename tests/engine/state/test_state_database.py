"""The store's time, between the questions and while the store is away."""

import time

import pytest

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.state.state_database import StoreClock
from tests.engine.state.conftest import World


class Server:
    def __init__(self) -> None:
        self.here, self.there = 10.0, 5000.0
        self.away = False
        self.asked = 0

    def ask(self) -> float:
        self.asked += 1
        if self.away:
            raise PgetlError(ErrorKind.STORE, "away")
        return self.there

    def pass_time(self, seconds: float) -> None:
        self.here += seconds
        self.there += seconds


def test_it_is_asked_now_and_then_and_goes_on_in_between() -> None:
    server = Server()
    clock = StoreClock(server.ask, lambda: server.here)
    assert clock.now() == 5000.0
    server.pass_time(30)
    assert (clock.now(), server.asked) == (5030.0, 1)
    server.there += 100
    server.pass_time(30)
    assert (clock.now(), server.asked) == (5160.0, 2)


def test_it_goes_on_while_the_store_is_away_if_it_was_ever_read() -> None:
    server = Server()
    clock = StoreClock(server.ask, lambda: server.here)
    server.away = True
    with pytest.raises(PgetlError, match="away"):
        clock.now()
    server.away = False
    clock.now()
    server.away = True
    server.pass_time(100)
    assert clock.now() == 5100.0


def test_it_is_the_one_by_which_history_is_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not this machine's, which may be wrong."""
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + 3600)
    now = world.open().now()
    assert abs(now - (right() if now > 1e6 else 1000.0)) < 60
