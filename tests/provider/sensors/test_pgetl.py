"""How the sensors for other people's DAGs are told to wait."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_provider_pgetl import LagSensor, PhaseSensor


@pytest.mark.parametrize(
    ("given", "deferrable"),
    [({}, True), ({"mode": "reschedule"}, False), ({"poke_interval": 5}, False), ({"deferrable": False}, False)],
)
def test_whoever_says_how_to_poke_means_it(given: dict[str, Any], deferrable: bool) -> None:
    phase = PhaseSensor(task_id="wait", pipeline="shop", table="public.orders", state_conn_id="shop_db", **given)
    lag = LagSensor(task_id="fresh", pipeline="shop", state_conn_id="shop_db", max_lag="10s", **given)
    assert (phase.deferrable, lag.deferrable) == (deferrable, deferrable)
    assert phase.mode == given.get("mode", "poke")


def deferral(sensor: PhaseSensor, call: Callable[[], Any]) -> TaskDeferred:
    sensor.poke = lambda _: False  # type: ignore[method-assign,assignment]
    with pytest.raises(TaskDeferred) as deferred:
        call()
    return deferred.value


def test_a_timeout_is_of_the_whole_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often what is waited for comes, and has gone before the task can look."""
    monkeypatch.setattr("airflow_provider_pgetl.sensors.pgetl.time.time", lambda: now)
    sensor = PhaseSensor(task_id="copied", pipeline="shop", state_conn_id="state", table="public.orders", timeout=60)
    now = 1000.0
    first = deferral(sensor, lambda: sensor.execute({}))
    assert (first.timeout, first.method_name) == (timedelta(seconds=60), "resume")
    now = 1045.0
    again = deferral(sensor, lambda: sensor.resume({}, {}, **(first.kwargs or {})))
    assert (again.timeout, again.kwargs) == (timedelta(seconds=15), first.kwargs)
    now = 1100.0
    assert deferral(sensor, lambda: sensor.resume({}, {}, **(again.kwargs or {}))).timeout == timedelta(0)
    assert deferral(sensor, lambda: sensor.resume({}, {})).timeout == timedelta(seconds=60), "of an earlier version"


def test_a_lag_sensor_s_resume_takes_what_it_deferred_with(monkeypatch: pytest.MonkeyPatch) -> None:
    sensor = LagSensor(task_id="fresh", pipeline="shop", state_conn_id="state", max_lag="10s", timeout=60)
    monkeypatch.setattr(LagSensor, "poke", lambda *_: False)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute({})
    assert sensor.resume({}, {"within": True}, **(deferred.value.kwargs or {})) is None  # type: ignore[func-returns-value]
