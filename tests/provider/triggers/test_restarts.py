"""What follows the end of a streaming worker's process."""

from __future__ import annotations

import pytest

from airflow_provider_pgetl.engine.streaming_order import Ending
from airflow_provider_pgetl.triggers.restarts import Again, Restarts

HOUR = 3600.0


def after(restarts: Restarts, ending: Ending | None, words: str, ran: float) -> Again | Ending:
    """One that never came to stream."""
    return restarts.after(ending, words, began=0.0, now=ran, streamed=False)


FENCED = Ending("fenced", "The lease has gone to another.", "Nothing is to be done.", fenced=True)


def test_an_end_that_was_asked_for_and_an_error_are_final() -> None:
    for ending in (Ending(), Ending(stopped=True), Ending("slot_lost", "The slot is gone.", "Reset the tables.")):
        assert after(Restarts(HOUR), ending, "", 1.0) is ending


def test_one_that_died_is_started_again_with_growing_pauses_four_times() -> None:
    restarts = Restarts(HOUR)
    verdicts = [after(restarts, None, "exit status -9: it said nothing", 1.0) for _ in range(5)]
    assert [verdict.seconds for verdict in verdicts[:4] if isinstance(verdict, Again)] == [2.0, 4.0, 8.0, 16.0]
    assert verdicts[4] == Ending(
        "internal", "The streaming worker died 5 times in a row; exit status -9: it said nothing"
    )


def test_one_that_died_after_a_long_time_is_the_first_again() -> None:
    restarts = Restarts(HOUR)
    for _ in range(20):
        verdict = after(restarts, None, "", 301.0)
        assert isinstance(verdict, Again)
        assert verdict.seconds == 2.0


def test_one_that_another_worker_fenced_is_started_again_to_wait_for_its_lease() -> None:
    verdict = after(Restarts(HOUR), FENCED, "", 1000.0)
    assert isinstance(verdict, Again)
    assert "The lease has gone to another." in verdict.why


def test_one_that_is_fenced_again_and_again_though_its_lease_was_free_is_given_up() -> None:
    restarts = Restarts(HOUR)
    verdicts = [after(restarts, FENCED, "", 5.0) for _ in range(5)]
    assert all(isinstance(verdict, Again) for verdict in verdicts[:4])
    assert isinstance(verdicts[4], Ending)
    assert verdicts[4].remedy == "Nothing is to be done."


def test_state_that_was_destroyed_is_not_begun_anew() -> None:
    destroyed = Ending("fenced", "The stored state was destroyed.", "Start the pipeline again.")
    assert after(Restarts(HOUR), destroyed, "", 1.0) is destroyed


def test_one_that_did_not_hear_of_its_supervisor_is_started_again_at_once() -> None:
    restarts = Restarts(HOUR)
    for ending in (Ending(stopped=True, abandoned=True), Ending("store", "It was away.", "", abandoned=True)) * 10:
        verdict = after(restarts, ending, "", 1.0)
        assert isinstance(verdict, Again)
        assert verdict.seconds == 0.0


# -- outages ----------------------------------------------------------------------------------------------------------

AWAY = Ending("store", "No connection to the source.", "Check that it is up.")


def outage(restarts: Restarts, *moments: float) -> list[Again | Ending]:
    return [restarts.after(AWAY, "", began=now - 1.0, now=now, streamed=False) for now in moments]


def test_an_outage_is_waited_out_with_growing_pauses_and_told_once_a_minute() -> None:
    verdicts = outage(Restarts(HOUR), *range(0, 300, 10))
    assert all(isinstance(verdict, Again) for verdict in verdicts)
    again = [verdict for verdict in verdicts if isinstance(verdict, Again)]
    assert [verdict.seconds for verdict in again[:6]] == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    told = [verdict.why for verdict in again if verdict.why]
    assert len(told) == 5
    assert told[0] == (
        "No connection to the source. The stream goes on when that has passed, and the task fails if it lasts "
        "1 h 00 min."
    )
    assert "It has been so for 4 min 00 s" in told[-1]


def test_an_outage_that_lasts_too_long_is_the_end() -> None:
    assert outage(Restarts(HOUR), 0.0, 3599.0, 3601.0)[-1] == Ending(
        "store", "No connection to the source. It has been so for 1 h 00 min.", "Check that it is up."
    )
    assert isinstance(outage(Restarts(None), 0.0, 1e7)[-1], Again)


def test_an_outage_is_over_when_a_child_has_streamed() -> None:
    restarts = Restarts(HOUR)
    outage(restarts, 0.0, 3000.0)
    assert isinstance(restarts.after(AWAY, "", began=3001.0, now=3700.0, streamed=True), Again)
    assert isinstance(outage(restarts, 3800.0)[0], Again)


@pytest.mark.parametrize("kind", ["connection", "store", "resources", "slot_in_use"])
def test_what_may_pass_is_an_outage(kind: str) -> None:
    assert isinstance(after(Restarts(HOUR), Ending(kind, "It was so.", ""), "", 1.0), Again)


@pytest.mark.parametrize("kind", ["authentication", "slot_lost", "privilege", "config", "internal"])
def test_what_does_not_pass_is_none(kind: str) -> None:
    assert isinstance(after(Restarts(HOUR), Ending(kind, "It was so.", ""), "", 1.0), Ending)
