"""When a table that has become Errored interrupts the stream."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgetl.engine.phases import Errored, Init, RetryPolicy, TableState
from airflow_provider_pgetl.engine.state.watching import Picture
from airflow_provider_pgetl.engine.tables import TableName
from airflow_provider_pgetl.triggers.alarm import Alarm

T = TableName("public", "t")
MARK = ("public", "t", 3)
PREPARED = 100.0


def picture(now: float, *, since: float = 110.0, kind: Any = "manual", from_phase: Any = "Ready") -> Picture:
    phase = Errored("It does not fit.", "Widen it.", RetryPolicy(kind, now + 30), from_phase)
    return Picture({T: TableState(phase, 3)}, now=now, since={T: since})


def alarm(*, told: Any = (), tells: bool = True, fail_after: float | None = None) -> Alarm:
    return Alarm(PREPARED, told, tells, fail_after)


def rung(alarm: Alarm, seen: Picture) -> tuple[bool, bool]:
    """Whether somebody is to be told, and whether the run is to fail."""
    found = alarm.rings(seen)
    return (False, False) if found is None else (bool(found.untold), bool(found.fatal))


def test_a_table_that_becomes_errored_is_told_once() -> None:
    assert rung(alarm(), picture(111.0)) == (True, False)
    assert rung(alarm(told=[MARK]), picture(111.0)) == (False, False)
    assert rung(alarm(told=[("public", "t", 2)]), picture(111.0)) == (True, False), "another time"
    assert rung(alarm(tells=False), picture(111.0)) == (False, False)
    assert rung(alarm(), Picture({T: TableState(Init())}, now=111.0, since={T: 110.0})) == (False, False)


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
