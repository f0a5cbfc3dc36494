"""The metrics that a StatsD server is sent by the triggerer and the workers."""

import pytest

from airflow_provider_pgetl.demo.shop import TABLES
from tests.processes.replica import DAG, Replica

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1800)]


def test_every_table_s_copy_and_arrival_are_counted(settled: Replica) -> None:
    for table in TABLES:
        rows = settled.metrics.gauges[f"airflow.pgetl.copied_rows,pipeline={DAG},table={table}"]
        [(now,)] = settled.source.execute(f"select count(*) from {table.sql}")
        assert rows == pytest.approx(now, rel=0.5)
        assert settled.metrics.gauges[f"airflow.pgetl.{DAG}.public__{table.name}.copied_rows"] == rows
        assert settled.metrics.counters[f"airflow.pgetl.phase_reached,pipeline={DAG},table={table},phase=Ready"] >= 1


def test_the_stream_s_lag_and_work_are_told_with_and_without_tags(replica: Replica) -> None:
    counters, gauges = replica.metrics.counters, replica.metrics.gauges
    changes, plain = f"airflow.pgetl.changes,pipeline={DAG},stream=apply", f"airflow.pgetl.{DAG}.apply.changes"
    before = counters.get(changes, 0)
    replica.source.execute("update products set price = price + 1")
    replica.wait(lambda: counters.get(changes, 0) >= before + 1000, "the changes are counted")
    replica.wait(lambda: counters[plain] == pytest.approx(counters[changes], abs=200), "in both forms")
    assert counters[f"airflow.pgetl.batches,pipeline={DAG},stream=apply"] > 0
    assert counters[f"airflow.pgetl.workers_started,pipeline={DAG}"] >= 1
    for name in ("lag_bytes", "lag_seconds"):
        assert gauges[f"airflow.pgetl.{name},pipeline={DAG}"] >= 0
        assert f"airflow.pgetl.{DAG}.{name}" in gauges


@pytest.mark.slow
def test_the_lag_of_a_stream_that_is_held_up_grows_however_much_is_new(replica: Replica) -> None:
    lag = f"airflow.pgetl.lag_seconds,pipeline={DAG}"
    with replica.destination.connect(autocommit=False) as session:
        session.execute("lock table products in share mode")
        replica.source.execute("update products set price = price + 1")
        replica.wait(lambda: replica.metrics.gauges[lag] > 5, "the lag shows")
    replica.wait(lambda: replica.metrics.gauges[lag] < 5, "it has caught up")
