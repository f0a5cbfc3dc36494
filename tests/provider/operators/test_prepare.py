"""A continuous DAG begins a run as soon as one has failed: where `prepare` has refused, the next one takes its time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred
from airflow.providers.standard.triggers.temporal import DateTimeTrigger
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from airflow_provider_pgetl import Postgres, ReplicationDag
from tests.provider.conftest import AskedAirflow
from tests.provider.running import TaskInstance

REFUSED = AirflowFailException  # at the source's connection, which there is not


@pytest.fixture
def refused(asked_airflow: AskedAirflow) -> AskedAirflow:
    asked_airflow.states = {"prepare": "failed", "apply": "upstream_failed"}
    return asked_airflow


def outcome(seconds_ago: float = 3, state: str = "failed", **options: Any) -> BaseException:
    """What comes of `prepare` where the run before has ended in `state`, so long ago."""
    dag = ReplicationDag("shop", source_conn_id="a", tables=["public.t"], destination=Postgres("b"), **options)
    ended = datetime.now(UTC) - timedelta(seconds=seconds_ago)
    return began(dag, SimpleNamespace(run_id="r0", state=state, end_date=ended))


def began(dag: ReplicationDag, previous: Any, try_number: int = 1, method: str = "execute", **event: Any) -> Any:
    instance = TaskInstance("shop", "prepare", try_number=try_number, previous=previous)
    context = {"ti": instance, "run_id": "r1"}
    with pytest.raises((AirflowFailException, TaskDeferred)) as raised:
        getattr(dag.task_dict["prepare"], method)(context, **event)
    return raised.value


def test_it_waits_for_five_minutes_where_it_has_just_failed(refused: AskedAirflow) -> None:
    waits = outcome(seconds_ago=60)
    assert isinstance(waits, TaskDeferred)
    assert isinstance(waits.trigger, DateTimeTrigger)
    left = waits.trigger.moment - datetime.now(UTC)
    assert timedelta(seconds=230) < left < timedelta(seconds=241)
    assert (waits.method_name, waits.timeout) == ("resume_after_pause", None)


def test_then_it_begins(refused: AskedAirflow) -> None:
    dag = ReplicationDag("shop", source_conn_id="a", tables=["public.t"], destination=Postgres("b"))
    ended = datetime.now(UTC) - timedelta(seconds=301)
    previous = SimpleNamespace(run_id="r0", state="failed", end_date=ended)
    assert isinstance(began(dag, previous, method="resume_after_pause", event=None), REFUSED)


def test_it_does_not_wait_where_a_person_or_a_retry_has_it_run(refused: AskedAirflow) -> None:
    dag = ReplicationDag("shop", source_conn_id="a", tables=["public.t"], destination=Postgres("b"))
    previous = SimpleNamespace(run_id="r0", state="failed", end_date=datetime.now(UTC))
    assert isinstance(began(dag, previous), TaskDeferred)
    assert isinstance(began(dag, previous, try_number=2), REFUSED)


@pytest.mark.parametrize(
    ("ran", "why"),
    [
        ({"seconds_ago": 290}, "it has failed long ago"),
        ({"state": "success"}, "the run before was in order"),
        ({"schedule": "@daily"}, "runs do not follow each other at once"),
        ({"schedule": None}, "somebody has asked for the run"),
    ],
)
def test_it_does_not_wait_where(refused: AskedAirflow, ran: dict[str, Any], why: str) -> None:
    assert isinstance(outcome(**ran), REFUSED), why


def test_it_does_not_wait_where_another_task_has_failed(asked_airflow: AskedAirflow) -> None:
    """A table that becomes Errored fails the run, and the next one is to stream the others on."""
    asked_airflow.states = {"prepare": "success", "apply": "failed"}
    assert isinstance(outcome(), REFUSED)


def test_it_does_not_wait_where_airflow_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> None:
        raise AirflowRuntimeError(ErrorResponse(error=ErrorType.GENERIC_ERROR))

    monkeypatch.setattr(TaskInstance, "get_previous_dagrun", fails)
    assert isinstance(outcome(), REFUSED)
