"""Signals: the first asks, the second insists, and nobody waits for ever."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from airflow_provider_pgetl.cli.signals import stop_on_signals


def _silent(text: str) -> None:
    """Says nothing."""


def test_the_first_signal_sets_the_event_and_says_so() -> None:
    said: list[str] = []
    with stop_on_signals(said.append) as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(60)
    assert said == ["Stopping: the write in flight is given a moment."]


def test_control_c_asks_as_well() -> None:
    with stop_on_signals(_silent) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(60)


def test_a_signal_of_others_neither_asks_nor_ends_the_watch() -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with stop_on_signals(_silent) as stop:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert not stop.wait(0.2)
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.wait(60)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_without_a_signal_nothing_happens() -> None:
    said: list[str] = []
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    threads = threading.active_count()
    with stop_on_signals(said.append) as stop:
        pass
    assert not stop.is_set()
    assert said == []
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert threading.active_count() == threads


@pytest.mark.parametrize(("second", "code"), [(True, 1), (False, 0)])
def test_a_second_signal_or_the_end_of_patience_ends_the_process(second: bool, code: int) -> None:
    left: list[int] = []
    gone = threading.Event()

    def leave(with_code: int) -> None:
        left.append(with_code)
        gone.set()

    with stop_on_signals(_silent, leave, patience=60 if second else 0.05) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(60)
        assert second or gone.wait(60)
        if second:
            os.kill(os.getpid(), signal.SIGTERM)
        assert gone.wait(60)
    assert left == [code]


def test_a_verb_that_stops_in_time_is_not_left() -> None:
    left: list[int] = []
    with stop_on_signals(_silent, left.append, patience=60) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        stop.wait(5)
    time.sleep(0.05)
    assert left == []
