"""Requests about many tables at once: their answers in order, their failures told."""

from __future__ import annotations

import threading

import pytest

from airflow_provider_pgetl.engine.destinations.delta.apply import each


def test_answers_come_in_the_order_of_what_was_asked() -> None:
    assert each(lambda number: number * 2, range(100)) == [number * 2 for number in range(100)]
    assert each(str, []) == []


def test_several_wait_at_once() -> None:
    meeting = threading.Barrier(8, timeout=60)
    each(lambda _: meeting.wait(), range(8))


def test_of_few_each_is_asked_in_the_thread_that_asks() -> None:
    assert each(lambda _: threading.current_thread(), range(3)) == [threading.current_thread()] * 3


def test_a_failure_is_raised() -> None:
    def fail(number: int) -> None:
        if number == 7:
            raise KeyError(number)

    with pytest.raises(KeyError):
        each(fail, range(20))
