"""A run that is to catch up, and whose copy fails for good."""

from __future__ import annotations

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_pgetl import Postgres, ReplicationDag
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from airflow_provider_pgetl.triggers import supervisor
from tests.provider.running import MiniAirflow

pytestmark = pytest.mark.parametrize("source_server", [16], indirect=True)


def dag(**options: str) -> ReplicationDag:
    return ReplicationDag(
        "shop", source_conn_id="shop_db", tables=["public.orders"], destination=Postgres("replica_db"),
        until="caught_up", **options,
    )  # fmt: skip


@pytest.mark.spark
def test_it_ends_and_says_why(small_shop: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_LOOK_SECONDS", 1.0)
    with MiniAirflow(dag(spark_submit="--frobnicate x")) as airflow:
        done = airflow.run_all()
    assert set(done) == {"prepare", "apply", "public__orders.init", "public__orders.data_sync"}
    copy, apply = done["public__orders.data_sync"].error, done["apply"].error
    assert isinstance(copy, AirflowFailException)
    assert "spark-submit refuses its arguments: Unrecognized option: --frobnicate." in str(copy)
    assert isinstance(apply, AirflowFailException)
    assert "public.orders must be copied, and no task of this run is left to do it." in str(apply)


def test_without_a_spark_connection_nothing_is_begun(small_shop: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    with MiniAirflow(dag()) as airflow:
        error = airflow.run("prepare").error
    assert isinstance(error, AirflowFailException)
    assert "no Airflow connection 'spark_default'" in str(error)
    assert "spark_conn_id" in str(error)
    assert small_shop.source.execute("select 1 from pg_replication_slots where slot_name like 'pgetl_shop%'") == []
    assert small_shop.source.execute("select to_regclass('pgetl.pipelines')") == [(None,)]
