"""Where a table's links lead."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_pgetl import CustomDestination, DeltaLake, Postgres, ReplicationDag, Table
from airflow_provider_pgetl.links import ReplicaLink, SourceLink, StateLink

KEY: Any = None


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", "postgresql://me:hush@source.example/shop")
    monkeypatch.setenv("AIRFLOW_CONN_REPLICA_DB", "postgresql://me:hush@replica.example:5433/copy")


def task(destination: Any) -> Any:
    tables = [Table("public.orders", destination="sales.orders")]
    dag = ReplicationDag("shop", source_conn_id="shop_db", tables=tables, destination=destination)
    return dag.task_dict["public__orders.ready"]


def test_they_lead_to_the_table_and_its_replica_and_hold_no_secret() -> None:
    one = task(Postgres("replica_db"))
    assert SourceLink().get_link(one, ti_key=KEY) == "postgresql://source.example:5432/shop#public.orders"
    assert ReplicaLink().get_link(one, ti_key=KEY) == "postgresql://replica.example:5433/copy#sales.orders"
    assert [link.name for link in one.operator_extra_links] == ["Source table", "Replica", "Replication"]


def test_a_lake_has_its_own_address() -> None:
    assert ReplicaLink().get_link(task(DeltaLake("s3://lake/shop")), ti_key=KEY) == "s3://lake/shop#sales.orders"


def test_a_destination_of_ones_own_has_no_address() -> None:
    assert ReplicaLink().get_link(task(CustomDestination("my.module:Place")), ti_key=KEY) == ""


def test_every_task_leads_to_the_replication_page_of_this_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://flow.example/here/")
    one = task(Postgres("replica_db"))
    page = "https://flow.example/here/pgetl/pipelines/shop"
    assert StateLink().get_link(one, ti_key=KEY) == f"{page}#public.orders"
    assert StateLink().get_link(one.dag.task_dict["apply"], ti_key=KEY) == page
    assert [link.name for link in one.dag.task_dict["prepare"].operator_extra_links] == ["Replication"]
