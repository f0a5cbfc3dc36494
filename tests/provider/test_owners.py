"""Two DAGs on one source: each has its pipeline, and neither can take the other's away unasked."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG

from airflow_provider_pgetl import Postgres, ReplicationDag, ReplicationTaskGroup
from airflow_provider_pgetl.engine.config.validation import Misdeclared
from airflow_provider_pgetl.naming import pipeline_id
from airflow_provider_pgetl.running_airflow import place_of
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from tests.provider.running import MiniAirflow, Ran

GIVEN = {"source_conn_id": "shop_db", "destination": Postgres("replica_db"), "spark_conn_id": "spark_local"}


def dag_with_group(dag_id: str, table: str, **options: object) -> DAG:
    with DAG(dag_id, start_date=datetime(2026, 1, 1, tzinfo=UTC), schedule=None) as dag:
        ReplicationTaskGroup("replication", tables=[table], **{**GIVEN, **options})
    return dag


def prepare(dag: DAG, run: str = "run_1") -> Ran:
    with MiniAirflow(dag, run) as airflow:
        return airflow.run("prepare" if "prepare" in dag.task_dict else "replication.prepare")


def registered(databases: Databases) -> set[tuple[str, str]]:
    query = "select p.id, t.table_name from pgetl.tables t join pgetl.pipelines p on p.key = t.pipeline"
    return {(str(pipeline), str(table)) for pipeline, table in databases.source.execute(query)}


def test_groups_of_one_name_in_two_dags_are_two_pipelines(small_shop: Databases) -> None:
    sales, stock = dag_with_group("sales", "public.orders"), dag_with_group("stock", "public.customers")
    for run in ("run_1", "run_2"):
        prepare(sales, run).must_succeed()
        prepare(stock, run).must_succeed()
        expected = {("sales_replication", "orders"), ("stock_replication", "customers")}
        assert registered(small_shop) == expected


def test_a_pipeline_of_another_dag_is_refused_until_it_is_adopted(small_shop: Databases) -> None:
    sales = dag_with_group("sales", "public.orders", pipeline_id="shop")
    prepare(sales).must_succeed()

    stock = ReplicationDag("stock", tables=["public.customers"], pipeline_id="shop", **GIVEN)
    refused = prepare(stock).error
    assert isinstance(refused, AirflowFailException)
    assert "Pipeline shop belongs to sales/replication" in str(refused)
    assert 'declare `adopt="sales/replication"` here' in str(refused)
    assert registered(small_shop) == {("shop", "orders")}, "nothing was touched"

    options = {"pipeline_id": "shop", "adopt": "sales/replication", **GIVEN}
    adopting = ReplicationDag("stock", tables=["public.customers"], **options)
    epoch = epoch_of(small_shop)
    prepare(adopting, "run_2").must_succeed()
    assert registered(small_shop) == {("shop", "customers")}
    assert epoch_of(small_shop) == epoch + 1, "a stream of the former owner's is fenced"
    prepare(adopting, "run_3").must_succeed()
    assert epoch_of(small_shop) == epoch + 1, "once"
    assert "belongs to stock" in str(prepare(sales, "run_4").error)


def test_what_else_the_former_owner_has_is_refused_too(small_shop: Databases) -> None:
    sales = dag_with_group("sales", "public.orders", pipeline_id="shop")
    prepare(sales).must_succeed()
    options = {"pipeline_id": "shop", "adopt": "sales/replication", **GIVEN}
    prepare(ReplicationDag("stock", tables=["public.orders"], **options)).must_succeed()
    with MiniAirflow(sales) as airflow:
        for task in ("replication.public__orders.data_sync", "replication.apply"):
            assert "belongs to stock" in str(airflow.run(task).error)


def epoch_of(databases: Databases) -> int:
    return int(databases.source.execute("select epoch from pgetl.pipelines")[0][0])


def test_two_airflows_are_told_apart(small_shop: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    dag = ReplicationDag("shop", tables=["public.orders"], **GIVEN)
    monkeypatch.setenv("AIRFLOW__PGETL__DEPLOYMENT", "production")
    prepare(dag).must_succeed()
    monkeypatch.setenv("AIRFLOW__PGETL__DEPLOYMENT", "staging")
    assert 'adopt="shop@production"' in str(prepare(dag, "run_2").error)
    monkeypatch.delenv("AIRFLOW__PGETL__DEPLOYMENT")
    prepare(dag, "run_3").must_succeed()


@pytest.mark.parametrize(
    ("base_url", "place"),
    [
        ("https://airflow.example.com", "airflow.example.com"),
        ("https://example.com:8443/data/", "example.com:8443/data"),
        ("https://user:word@example.com", "example.com"),
        ("http://localhost:8080", ""),
        ("http://127.0.0.1:8080/", ""),
        ("http://0.0.0.0:8080", ""),
        ("http://[::1]:8080", ""),
        ("", ""),
    ],
)
def test_an_airflow_is_known_by_its_address(base_url: str, place: str) -> None:
    assert place_of(base_url) == place


def test_two_pipelines_of_one_id_in_one_dag_are_refused_when_it_is_parsed() -> None:
    with DAG("shop", start_date=datetime(2026, 1, 1, tzinfo=UTC)):
        ReplicationTaskGroup("a", tables=["public.orders"], pipeline_id="shop", **GIVEN)
        with pytest.raises(Misdeclared, match=r'pipeline_id: "shop" is the pipeline of `a\.prepare` already'):
            ReplicationTaskGroup("b", tables=["public.orders"], pipeline_id="shop", **GIVEN)


def test_ids_of_pipelines_fit_into_names_of_slots_and_differ() -> None:
    assert pipeline_id("Shop.to-Lake") == "shop_to_lake"
    assert pipeline_id("sales", "replication") == "sales_replication"
    long = [
        pipeline_id("a_very_long_name_of_a_dag_1"),
        pipeline_id("a_very_long_name_of_a_dag_2"),
        pipeline_id("a_very_long_name_of", "a_dag_1"),
        pipeline_id("täglich-und-immer-wieder", "replication"),
        pipeline_id("ä"),
    ]
    assert len(set(long)) == len(long)
    for each in long:
        ReplicationDag("any", tables=["public.orders"], pipeline_id=each, **GIVEN)


def test_adopting_names_somebody() -> None:
    with pytest.raises(Misdeclared, match=r"adopt: it must name the owner"):
        ReplicationDag("stock", tables=["public.orders"], adopt=True, **GIVEN)
