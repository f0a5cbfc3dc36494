"""What expires in a store is renewed, and its loss is reported once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.runtime.threads import Renewal
from tests.engine.stream.driven_time import DrivenTime
from tests.waiting import until

TTL, TIMES = 12.0, 6


class Held:
    """Answers in turn, the last one for ever."""

    def __init__(self, *answers: bool | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[float] = []
        self.lost: list[PgetlError | None] = []
        self.time = DrivenTime()

    def renew(self) -> bool:
        self.asked.append(self.time.now)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def run(self, done: Callable[[], bool]) -> None:
        renewal = Renewal("The right", self.renew, self.lost.append, TTL, TIMES, self.time)
        renewal.start()
        until(done, pause=0.001)
        renewal.stop()


def test_it_is_renewed_several_times_in_its_life() -> None:
    held = Held(True)
    held.run(lambda: len(held.asked) > TIMES)
    assert held.asked[TIMES] - held.asked[0] == pytest.approx(TTL)
    assert held.lost == []


def test_what_is_not_held_any_more_is_lost_without_an_error() -> None:
    held = Held(True, False)
    held.run(lambda: bool(held.lost))
    assert held.lost == [None]


def test_trouble_that_passes_is_forgiven_for_a_life() -> None:
    away = PgetlError(ErrorKind.STORE, "The store is away.")
    held = Held(*[away] * (TIMES - 1), True)
    held.run(lambda: len(held.asked) > 2 * TIMES)
    assert held.lost == []


def test_trouble_for_a_whole_life_is_a_loss() -> None:
    away = PgetlError(ErrorKind.STORE, "The store is away.")
    held = Held(True, away)
    held.run(lambda: bool(held.lost))
    assert held.lost == [away]
    assert TTL < held.time.now - held.asked[0] <= TTL + 2 * TTL / TIMES


def test_what_will_not_pass_is_a_loss_at_once() -> None:
    refused = PgetlError(ErrorKind.PRIVILEGE, "The role may not write.")
    held = Held(True, refused)
    held.run(lambda: bool(held.lost))
    assert held.lost == [refused]
    assert len(held.asked) == 2


def test_a_defect_is_a_loss() -> None:
    held = Held(ZeroDivisionError("a defect"))
    held.run(lambda: bool(held.lost))
    (error,) = held.lost
    assert error is not None
    assert error.kind is ErrorKind.INTERNAL
