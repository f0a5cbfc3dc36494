"""The demo's DAG files and the demo's own declarations say the same."""

import importlib
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_pgetl.declarations import declare
from airflow_provider_pgetl.demo.destinations import DESTINATIONS
from airflow_provider_pgetl.demo.shop import TABLES
from airflow_provider_pgetl.testing.servers.postgres_servers import Server


@pytest.mark.parametrize("name", DESTINATIONS)
def test_the_dag_declares_what_the_demo_watches(
    name: str, server16: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    destination = DESTINATIONS[name](server16, tmp_path)
    request.addfinalizer(lambda: server16.drop_database("replica"))
    for variable, value in destination.settings.items():
        monkeypatch.setenv(variable, value)
    module = importlib.import_module(f"airflow_provider_pgetl.demo.dags.{destination.dag_id}")
    watched = declare(
        destination.dag_id,
        source_conn_id="shop_db",
        tables=[str(table) for table in TABLES],
        destination=destination.declaration,
    )
    declared = getattr(module, destination.dag_id).replication
    assert declared.spec.owner == destination.dag_id
    assert replace(declared, spec=replace(declared.spec, owner=None)) == watched
