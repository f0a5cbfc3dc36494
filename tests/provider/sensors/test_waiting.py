"""How the sensors for other people's DAGs are told to wait."""

from __future__ import annotations

from typing import Any

import pytest

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
