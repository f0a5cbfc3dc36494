"""The example DAGs are what a reader copies first: they parse, and say what they are meant to."""

from __future__ import annotations

import importlib
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from airflow.sdk import DAG

from airflow_provider_pgetl import replica_asset
from airflow_provider_pgetl.declarations import declare
from airflow_provider_pgetl.demo.destinations import DESTINATIONS
from airflow_provider_pgetl.demo.shop import TABLES
from airflow_provider_pgetl.testing.servers.postgres_servers import Server

FOLDER = Path(__file__).parents[2] / "dags"


def example(name: str) -> ModuleType:
    spec = spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_an_example_parses(name: str) -> None:
    found = vars(example(name)).values()
    assert any(isinstance(value, DAG) or isinstance(getattr(value, "dag", None), DAG) for value in found)


def test_the_shop_streams() -> None:
    dag = example("shop_to_postgres").shop_to_postgres
    assert dag.schedule == "@continuous"
    assert "public__order_lines.ready" in dag.task_dict


def test_the_lake_s_keys_are_named_not_told() -> None:
    replication = example("shop_to_lake").shop_to_lake.replication
    assert replication.connections.storage == "lake"
    assert replication.spec.destination.uri == "s3://lake/shop"


def test_a_report_is_scheduled_on_the_replica() -> None:
    module = example("orders_report")
    assert module.analyze.upstream_task_ids == {"replication.caught_up"}
    assert module.replication.replication.spec.id == "orders_report"
    assert replica_asset("orders_report", "public.orders") in list(module.sales_report.schedule)


def test_every_name_has_an_asset_of_its_own() -> None:
    names = ["public.orders", 'public."Orders"', 'public."a/b"', 'public."ä"', '"a/b".c', "a.b"]
    uris = [replica_asset("shop", name).uri for name in names]
    assert len(set(uris)) == len(uris)
    assert all(uri.isascii() for uri in uris)


# -- the demo's DAG files and the demo's own declarations say the same -------------------------------------------------


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
