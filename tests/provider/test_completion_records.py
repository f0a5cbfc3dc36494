"""Retry or Clear, told from the book of the run alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_provider_pgetl.completion_records import (
    ApplyTask,
    begun,
    how_apply_ended,
    is_repeated,
    is_to_come,
    is_to_resume,
    obeyed,
    passed_over,
    was_cleared,
)
from tests.provider.conftest import AskedAirflow

BEFORE = ("prepare", "init")
THROUGH = {"prepare": 1.0, "init": 2.0, begun("data_sync"): 3.0, "data_sync": 4.0, begun("ready"): 5.0, "ready": 6.0}


def test_the_first_execution_is_neither() -> None:
    known = {"prepare": 1.0, "init": 2.0}
    assert not was_cleared("data_sync", BEFORE, known)
    assert not is_repeated("data_sync", BEFORE, known)
    assert is_to_come("data_sync", BEFORE, known)


def test_a_retry_has_begun_but_not_completed() -> None:
    known = {"prepare": 1.0, "init": 2.0, begun("data_sync"): 3.0}
    assert not was_cleared("data_sync", BEFORE, known)
    assert is_repeated("data_sync", BEFORE, known)


def test_a_task_that_finds_its_own_completion_was_cleared() -> None:
    assert was_cleared("data_sync", BEFORE, THROUGH)
    assert was_cleared("ready", (*BEFORE, "data_sync"), THROUGH)


def test_what_comes_along_with_a_clear_upstream_follows() -> None:
    again = {**THROUGH, begun("data_sync"): 7.0, "data_sync": 8.0}
    assert not was_cleared("ready", (*BEFORE, "data_sync"), again)
    assert not is_repeated("ready", (*BEFORE, "data_sync"), again)
    prepared_again = {**THROUGH, "prepare": 9.0}
    assert not was_cleared("init", ("prepare",), prepared_again)


def test_a_retry_after_the_clear_was_obeyed_does_not_do_it_again() -> None:
    assert not was_cleared("data_sync", BEFORE, {**THROUGH, begun("data_sync"): 7.0, obeyed("data_sync"): 8.0})


def test_a_second_clear_counts_again() -> None:
    assert was_cleared("data_sync", BEFORE, {**THROUGH, obeyed("data_sync"): 8.0, "data_sync": 9.0})


def test_a_task_is_to_come_until_it_has_completed_after_all_before_it() -> None:
    assert not is_to_come("data_sync", BEFORE, THROUGH)
    assert is_to_come("data_sync", BEFORE, {**THROUGH, begun("data_sync"): 7.0})
    assert is_to_come("data_sync", BEFORE, {**THROUGH, "init": 7.0})


def test_a_task_that_was_passed_over_has_completed_and_whoever_runs_it_clears_it() -> None:
    task, before = "public__orders.data_sync", ("prepare", "public__orders.init")
    known = {"prepare": 1.0, passed_over(task): 2.0}
    assert was_cleared(task, before, known)
    assert is_repeated(task, before, known)
    assert not is_to_come(task, before, known)
    assert not was_cleared("public__notes.data_sync", ("prepare", "public__notes.init"), known)
    done = {**known, begun(task): 3.0, obeyed(task): 4.0}
    assert not was_cleared(task, before, done), "its retry does not reset the table again"


def test_a_run_that_is_prepared_again_passes_nothing_over_by_what_it_did_before() -> None:
    task, before = "public__orders.data_sync", ("prepare", "public__orders.init")
    known = {passed_over(task): 2.0, "prepare": 3.0}
    assert not was_cleared(task, before, known)
    assert not is_repeated(task, before, known)
    assert is_to_come(task, before, known)


# -- What is asked of Airflow, and what is concluded of its answers. ---------------------------------------------------

APPLY = ApplyTask("shop/scheduled__2026-11-19T00:00:00+00:00", "apply")
TO_RUN = ["scheduled", "queued", "running", "deferred", "up_for_retry", "up_for_reschedule", "restarting"]


@pytest.mark.parametrize("state", [None, *TO_RUN])
def test_an_apply_that_runs_or_is_to_run_has_not_ended(asked_airflow: AskedAirflow, state: str | None) -> None:
    asked_airflow.states = {"apply": state}
    assert how_apply_ended(APPLY) is None


@pytest.mark.parametrize("state", ["success", "failed", "upstream_failed", "skipped", "removed"])
def test_one_that_has_ended_has_unless_another_run_of_the_dag_has_one(asked_airflow: AskedAirflow, state: str) -> None:
    asked_airflow.states = {"apply": state}
    assert how_apply_ended(APPLY) == state
    asked_airflow.alive_elsewhere = 1
    assert how_apply_ended(APPLY) is None


def test_of_other_runs_those_count_that_run_or_are_to_run(
    asked_airflow: AskedAirflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that waits for a place in its pool."""
    asked: list[str] = []

    def get_ti_count(*, states: list[str], **_: Any) -> int:
        asked.extend(states)
        return 0

    monkeypatch.setattr(RuntimeTaskInstance, "get_ti_count", get_ti_count)
    asked_airflow.states = {"apply": "failed"}
    assert how_apply_ended(APPLY) == "failed"
    assert set(asked) == set(TO_RUN)


def test_a_run_without_an_apply_has_none_to_wait_for(asked_airflow: AskedAirflow) -> None:
    asked_airflow.states = {}
    assert how_apply_ended(APPLY) == "missing"


@pytest.mark.parametrize(
    ("state", "waits"),
    [
        *((state, True) for state in ("scheduled", "queued", "running", "restarting")),
        *((state, False) for state in (None, "deferred", "success", "failed", "skipped", "removed")),
    ],
)
def test_a_task_that_waits_for_a_worker_or_has_one_is_to_resume(
    asked_airflow: AskedAirflow, state: str | None, waits: bool
) -> None:
    asked_airflow.states["apply"] = state
    assert asyncio.run(is_to_resume("shop/r", "apply")) is waits


@pytest.mark.parametrize("question", ["get_task_states", "get_ti_count"])
def test_where_airflow_does_not_say_nothing_is_concluded(
    asked_airflow: AskedAirflow, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    asked_airflow.states = {"apply": "failed"}

    def refuse(**_: Any) -> Any:
        raise AirflowRuntimeError(ErrorResponse())

    monkeypatch.setattr(RuntimeTaskInstance, question, refuse)
    assert how_apply_ended(APPLY) is None
