"""What is asked of Airflow, and what is concluded of its answers."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_provider_pgetl.book import ApplyTask
from airflow_provider_pgetl.task_states import how_apply_ended
from tests.provider.conftest import AskedAirflow

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


@pytest.mark.parametrize("question", ["get_task_states", "get_ti_count"])
def test_where_airflow_does_not_say_nothing_is_concluded(
    asked_airflow: AskedAirflow, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    asked_airflow.states = {"apply": "failed"}

    def refuse(**_: Any) -> Any:
        raise AirflowRuntimeError(ErrorResponse())

    monkeypatch.setattr(RuntimeTaskInstance, question, refuse)
    assert how_apply_ended(APPLY) is None
