"""Sensors for other people's DAGs: what they wait for, how, and what they say of what cannot come."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_provider_pgetl import LagSensor, PhaseSensor
from tests.provider.table import Table

pytestmark = pytest.mark.parametrize("source_server", [16], indirect=True)


def look_for(**options: Any) -> BaseException | None:
    given = {"task_id": "wait", "pipeline": "shop", "table": "public.orders", "state_conn_id": "shop_db", **options}
    try:
        PhaseSensor(**given).execute({})  # type: ignore[arg-type] # a context without content
    except (Exception, TaskDeferred) as outcome:
        return outcome
    return None


def test_a_phase_sensor_passes_once_the_phase_is_reached_or_passed(table: Table) -> None:
    assert isinstance(look_for(timeout=60), TaskDeferred)
    table.copy()
    assert look_for(phase="DataSync") is None
    assert isinstance(look_for(), TaskDeferred)
    table.hand_over()
    assert look_for() is None


def test_a_phase_sensor_says_what_cannot_come(table: Table) -> None:
    missing = str(look_for(table="public.nothing"))
    assert "no table public.nothing. There are: public.orders. Name one of those" in missing
    assert "'nowhere', which leads to the pipeline's state" in str(look_for(state_conn_id="nowhere"))
    assert "Name the pipeline's id" in str(look_for(pipeline="My.Shop"))
    assert "no phase 'Redy'" in str(look_for(phase="Redy"))
    assert isinstance(look_for(pipeline="never_run"), TaskDeferred)
    table.fail("manual")
    assert "A value does not fit." in str(look_for())


def test_a_phase_sensor_that_fails_softly_is_skipped(table: Table) -> None:
    table.fail("manual")
    assert isinstance(look_for(), AirflowFailException)
    for given in ({"soft_fail": True}, {"never_fail": True}, {"soft_fail": True, "deferrable": False}):
        assert isinstance(look_for(**given), AirflowSkipException)
    assert isinstance(look_for(state_conn_id="nowhere", never_fail=True), AirflowSkipException)


def test_a_phase_sensor_pokes_where_that_is_asked_for(table: Table) -> None:
    assert isinstance(look_for(deferrable=False, timeout=0.1, poke_interval=0.2), AirflowSensorTimeout)
    assert isinstance(look_for(mode="poke", timeout=0.1, poke_interval=0.2, soft_fail=True), AirflowSkipException)
    assert isinstance(look_for(mode="reschedule", deferrable=True), TaskDeferred)
    with pytest.raises(ValueError, match="mode must be one of"):
        PhaseSensor(task_id="wait", pipeline="shop", table="public.orders", state_conn_id="shop_db", mode="other")
    table.copy()
    table.hand_over()
    assert look_for(mode="poke") is None


def test_a_lag_sensor_pokes_too(table: Table) -> None:
    given = {"task_id": "fresh", "pipeline": "shop", "state_conn_id": "shop_db", "max_lag": "10s"}
    with pytest.raises(AirflowSensorTimeout):
        LagSensor(mode="poke", timeout=0.1, poke_interval=0.2, **given).execute({})  # type: ignore[arg-type]
    with pytest.raises(TaskDeferred):
        LagSensor(**given).execute({})  # type: ignore[arg-type]
