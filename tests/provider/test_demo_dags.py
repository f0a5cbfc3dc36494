"""The demo's DAG file and the demo's own declaration say the same."""

import importlib

import pytest

from airflow_provider_pgetl.declarations import declare
from airflow_provider_pgetl.demo.destinations import DESTINATIONS
from airflow_provider_pgetl.demo.shop import TABLES


@pytest.mark.parametrize("destination", DESTINATIONS.values(), ids=list(DESTINATIONS))
def test_the_dag_declares_what_the_demo_watches(destination: type) -> None:
    dag_id = destination.dag_id
    module = importlib.import_module(f"airflow_provider_pgetl.demo.dags.{dag_id}")
    watched = declare(
        dag_id,
        source_conn_id="shop_db",
        tables=[str(table) for table in TABLES],
        destination=destination.declaration,
    )
    assert getattr(module, dag_id).replication == watched
