"""When feedback is due, and when a server's questions are a flood: it shuts down and waits for us."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.model.positions import START, Boundary
from airflow_provider_pgetl.engine.wal.feedback import (
    FLOOD_ANSWER_INTERVAL,
    FLOOD_REQUESTS,
    IDLE_INTERVAL,
    PROGRESS_INTERVAL,
    Feedback,
)
from airflow_provider_pgetl.engine.wal.protocol import Keepalive

HERE, BEYOND = Boundary(100), Boundary(200)


def asking(position: Boundary = HERE) -> Keepalive:
    return Keepalive(position, 0, reply_requested=True)


def test_a_request_is_answered_at_once() -> None:
    feedback = Feedback(0.0, 60.0)
    assert not feedback.due(0.01, START)
    feedback.heard(0.01, asking())
    assert feedback.due(0.01, START)
    feedback.sent(0.01, START)
    assert not feedback.due(0.01, START)


def test_a_keepalive_that_does_not_ask_is_not_answered() -> None:
    feedback = Feedback(0.0, 60.0)
    feedback.heard(0.01, Keepalive(HERE, 0, reply_requested=False))
    assert not feedback.due(0.01, START)


def test_progress_is_told_but_not_too_often() -> None:
    feedback = Feedback(0.0, 60.0)
    feedback.sent(10.0, HERE)
    assert not feedback.due(10.0 + PROGRESS_INTERVAL / 2, BEYOND)
    assert feedback.due_in(10.0, BEYOND) == pytest.approx(PROGRESS_INTERVAL)
    assert feedback.due(10.001 + PROGRESS_INTERVAL, BEYOND)
    assert not feedback.due(10.001 + PROGRESS_INTERVAL, HERE)


@given(st.floats(0.001, 600))
def test_silence_is_broken_several_times_within_the_servers_patience(sender_timeout: float) -> None:
    feedback = Feedback(0.0, sender_timeout)
    assert feedback.due_in(0.0, START) <= sender_timeout / 3
    assert feedback.due(sender_timeout / 3, START)


def test_silence_is_broken_even_where_the_server_has_no_timeout() -> None:
    assert Feedback(0.0, None).due(IDLE_INTERVAL, START)


class Server:
    """Asks, and hears the answers `round_trip` later; `feedback` answers whenever it is due."""

    def __init__(self, feedback: Feedback) -> None:
        self.feedback = feedback
        self.now = 0.0
        self.answers = 0

    def ask(self, after: float, position: Boundary = HERE) -> None:
        self.now += after
        self.feedback.heard(self.now, asking(position))
        self.now += self.feedback.due_in(self.now, START)
        self.feedback.sent(self.now, START)
        self.answers += 1

    @property
    def flood(self) -> float | None:
        return self.feedback.flooded_for(self.now)


def test_a_server_that_shuts_down_floods() -> None:
    server = Server(Feedback(0.0, 60.0))
    for _ in range(FLOOD_REQUESTS - 1):
        server.ask(after=0.0002)
        assert server.flood is None
    server.ask(after=0.0002)
    assert server.flood is not None
    began = server.now
    server.ask(after=0.0002)
    assert server.flood == pytest.approx(server.now - began, abs=0.2)


def test_answers_to_a_flood_are_spaced_out() -> None:
    server = Server(Feedback(0.0, 60.0))
    while server.now < 3.0:
        server.ask(after=0.0001)
    assert server.answers < 3.0 / FLOOD_ANSWER_INTERVAL + FLOOD_REQUESTS + 2
    assert server.flood is not None
    assert server.flood > 2.5


@given(sender_timeout=st.floats(0.05, 120), round_trip=st.floats(0, 0.2))
def test_an_idle_servers_repetition_is_no_flood(sender_timeout: float, round_trip: float) -> None:
    """It asks half a timeout after it last heard from us."""
    server = Server(Feedback(0.0, sender_timeout))
    for _ in range(50):
        server.ask(after=sender_timeout / 2 + round_trip)
        assert server.flood is None


def test_requests_that_move_on_are_no_flood() -> None:
    server = Server(Feedback(0.0, 60.0))
    for step in range(50):
        server.ask(after=0.0002, position=Boundary(step))
        assert server.flood is None


def test_requests_that_piled_up_before_we_could_answer_are_no_flood() -> None:
    """They were asked while we did not read, not in response to our answers."""
    feedback = Feedback(0.0, 60.0)
    feedback.heard(0.1, asking())
    feedback.sent(0.1, START)
    for _ in range(50):
        feedback.heard(0.2, asking())
    assert feedback.flooded_for(0.2) is None


def test_a_flood_ends_when_the_server_moves_on() -> None:
    server = Server(Feedback(0.0, 60.0))
    for _ in range(20):
        server.ask(after=0.0002)
    assert server.flood is not None
    server.ask(after=0.0002, position=BEYOND)
    assert server.flood is None
