"""What follows the end of a streaming worker's process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_pgetl.completion_records import begun
from airflow_provider_pgetl.engine.config.jobs import Ending
from airflow_provider_pgetl.engine.model.phases import (
    DataSync,
    Errored,
    FinishedCopy,
    Init,
    Ready,
    RetryPolicy,
    TableState,
)
from airflow_provider_pgetl.engine.model.positions import START
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.monitoring.snapshots import PipelineSnapshot
from airflow_provider_pgetl.triggers.supervisor_decisions import Again, Alarm, Copier, Orphans, Restarts

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


# -- Which tables no task of the run is left to copy. ------------------------------------------------------------------

T = TableName("public", "t")
U = TableName("public", "u")
COPIERS = (Copier(T, "t.data_sync", ("prepare", "t.init")),)
PASSED = {"prepare": 1.0, "t.init": 2.0, begun("t.data_sync"): 3.0, "t.data_sync": 4.0}
WAITING = PipelineSnapshot({T: TableState(Init())})


def test_a_table_whose_copy_has_passed_is_one_after_a_while() -> None:
    orphans = Orphans(COPIERS)
    assert orphans.found(WAITING, PASSED, 0.0) == []
    assert orphans.found(WAITING, PASSED, 29.0) == []
    assert orphans.found(WAITING, PASSED, 30.0) == [T]


def test_the_while_begins_anew_when_it_was_otherwise_in_between() -> None:
    orphans = Orphans(COPIERS)
    orphans.found(WAITING, PASSED, 0.0)
    orphans.found(PipelineSnapshot({T: TableState(Ready())}), PASSED, 20.0)
    assert orphans.found(WAITING, PASSED, 31.0) == []


def test_a_table_that_its_task_is_about_to_copy_is_none_while_others_are_copied() -> None:
    orphans = Orphans(COPIERS)
    cleared = {**PASSED, begun("t.data_sync"): 5.0}
    busy = PipelineSnapshot({T: TableState(Init()), U: TableState(DataSync(), attempt=7)}, frozenset({7}))
    assert not any(orphans.found(busy, cleared, now) for now in (0.0, 100.0, 10_000.0))


def test_a_task_that_never_comes_back_leaves_one_in_the_end() -> None:
    orphans = Orphans(COPIERS)
    failed = {"prepare": 1.0, "t.init": 2.0, begun("t.data_sync"): 3.0}
    assert orphans.found(WAITING, failed, 0.0) == []
    assert orphans.found(WAITING, failed, 1799.0) == []
    assert orphans.found(WAITING, failed, 1800.0) == [T]


def test_a_paused_pipeline_leaves_none() -> None:
    orphans = Orphans(COPIERS)
    waiting = {"prepare": 1.0, "t.init": 2.0, begun("t.data_sync"): 3.0}
    paused = replace(WAITING, paused=True)
    for known in (waiting, PASSED):
        assert not any(orphans.found(paused, known, now) for now in (0.0, 100.0, 10_000.0))
    assert orphans.found(WAITING, waiting, 10_001.0) == []


def test_a_failed_task_leaves_one_soon_also_where_its_application_never_began() -> None:
    for state in (TableState(Init()), TableState(DataSync(), attempt=7)):
        orphans = Orphans(COPIERS)
        assert orphans.failed(PipelineSnapshot({T: state}), {"t.data_sync"}, 0.0) == []
        assert orphans.failed(PipelineSnapshot({T: state}), {"t.data_sync"}, 5.0) == [T]


def test_a_failed_task_leaves_none_while_somebody_copies_the_table_or_another_needs_the_stream() -> None:
    copied = PipelineSnapshot({T: TableState(DataSync(), attempt=7)}, frozenset({7}))
    beside = PipelineSnapshot({T: TableState(Init()), U: TableState(FinishedCopy(START))})
    for picture in (copied, beside):
        orphans = Orphans(COPIERS)
        assert not any(orphans.failed(picture, {"t.data_sync"}, now) for now in (0.0, 100.0, 10_000.0))
    orphans = Orphans(COPIERS)
    assert not any(orphans.failed(WAITING, {"another.data_sync"}, now) for now in (0.0, 100.0, 10_000.0))


def test_copiers_survive_their_serialised_form() -> None:
    assert Copier.from_json(COPIERS[0].as_json()) == COPIERS[0]


# -- When a table that has become Errored interrupts the stream. -------------------------------------------------------

MARK = ("public", "t", 3)
PREPARED = 100.0


def picture(now: float, *, since: float = 110.0, kind: Any = "manual", from_phase: Any = "Ready") -> PipelineSnapshot:
    phase = Errored("It does not fit.", "Widen it.", RetryPolicy(kind, now + 30), from_phase)
    return PipelineSnapshot({T: TableState(phase, 3)}, now=now, since={T: since})


def alarm(*, told: Any = (), tells: bool = True, fail_after: float | None = None) -> Alarm:
    return Alarm(PREPARED, told, tells, fail_after)


def rung(alarm: Alarm, seen: PipelineSnapshot) -> tuple[bool, bool]:
    """Whether somebody is to be told, and whether the run is to fail."""
    found = alarm.rings(seen)
    return (False, False) if found is None else (bool(found.untold), bool(found.fatal))


def test_a_table_that_becomes_errored_is_told_once() -> None:
    assert rung(alarm(), picture(111.0)) == (True, False)
    assert rung(alarm(told=[MARK]), picture(111.0)) == (False, False)
    assert rung(alarm(told=[("public", "t", 2)]), picture(111.0)) == (True, False), "another time"
    assert rung(alarm(tells=False), picture(111.0)) == (False, False)
    assert rung(alarm(), PipelineSnapshot({T: TableState(Init())}, now=111.0, since={T: 110.0})) == (False, False)


def test_one_that_was_errored_before_the_run_s_own_tasks_is_theirs() -> None:
    for since in (99.0, 100.0):
        assert rung(alarm(fail_after=0.0), picture(111.0, since=since)) == (False, False)


def test_only_one_that_was_ready_fails_the_run_as_the_others_have_tasks_to_come() -> None:
    assert rung(alarm(fail_after=0.0), picture(111.0)) == (True, True)
    assert rung(alarm(fail_after=0.0), picture(111.0, from_phase="FinishedCopy")) == (True, False)


def test_it_fails_the_run_when_it_has_lasted_for_as_long_as_is_declared() -> None:
    patient = alarm(tells=False, fail_after=3600.0)
    assert rung(patient, picture(3709.0)) == (False, False)
    assert rung(patient, picture(3710.0)) == (False, True)


def test_one_that_is_tried_again_by_itself_is_given_time() -> None:
    for seen, expected in ((picture(229.0, kind="timed"), False), (picture(230.0, kind="timed"), True)):
        assert rung(alarm(fail_after=0.0), seen) == (expected, expected)
