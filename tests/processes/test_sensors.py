"""Sensors of another DAG, as they are written and with what any sensor takes."""

import pytest

from tests.processes.replica import Replica

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.matrix, pytest.mark.timeout(600)]

DAG = "sensing"


def test_they_see_the_pipeline_and_take_what_any_sensor_takes(settled: Replica) -> None:
    run, _ = settled.run_of(DAG)
    states = {name: task.state for name, task in settled.rest.tasks(DAG, run).items()}
    seen = dict.fromkeys(("orders_deferred", "orders_poked", "orders_rescheduled", "fresh"), "success")
    assert states == {**seen, "optional": "skipped", "needed": "failed"}
    assert "has no table public.nothing" in settled.rest.log(DAG, run, "needed", 1)
