"""A small DAG, task by task, on real servers, copies on Spark, the streaming worker a real child process."""

from __future__ import annotations

import pytest

from airflow_provider_pgetl import Copying, Postgres, ReplicationDag
from tests.postgres_servers import Databases
from tests.provider.running import MiniAirflow

TABLES = ["public.customers", "public.orders", "public.notes"]
pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


def shop_dag(**options: object) -> ReplicationDag:
    given = {
        "source_conn_id": "shop_db",
        "destination": Postgres("replica_db"),
        "spark_conn_id": "spark_local",
        "tables": TABLES,
        "until": "caught_up",
        **options,
    }
    return ReplicationDag("shop", **given)


def assert_equal(databases: Databases) -> None:
    for table in ("customers", "orders", "notes"):
        query = f"select * from {table} order by id"
        assert databases.source.execute(query) == databases.destination.execute(query)


@pytest.mark.parametrize("source_server", [16], indirect=True)
def test_a_run_until_caught_up_and_another_that_finds_everything_ready(small_shop: Databases) -> None:
    dag = shop_dag()
    with MiniAirflow(dag) as airflow:
        done = airflow.run_all()
        assert {one.task: one.error for one in done.values() if one.error} == {}
        assert set(done) == set(dag.task_dict)
        assert_equal(small_shop)
        assert done["apply"].assets == {
            "pgetl://shop/", "pgetl://shop/public/customers", "pgetl://shop/public/notes", "pgetl://shop/public/orders"
        }  # fmt: skip

    small_shop.source.execute("insert into notes select n, 'note' from generate_series(1, 10) n")
    with MiniAirflow(dag, "run_2") as airflow:
        done = airflow.run_all()
        assert set(done) == {"prepare", "apply"}
        assert len(done["prepare"].skipped) == 15
        assert_equal(small_shop)
        assert "pgetl://shop/public/notes" in done["apply"].assets


@pytest.mark.parametrize("source_server", [18], indirect=True)
def test_a_run_that_streams_on_and_what_clear_does_in_it(small_shop: Databases) -> None:
    source = small_shop.source
    dag = shop_dag(until=None, copying=Copying(table_workers=1))
    with MiniAirflow(dag) as airflow:
        tables = [one for one in dag.task_dict if one != "apply"]
        airflow.run("prepare").must_succeed()
        stream = airflow.start("apply")
        done = airflow.run_all([one for one in tables if one != "prepare"])
        assert {one.task: one.error for one in done.values() if one.error} == {}
        assert done["public__orders.ready"].assets == {"pgetl://shop/public/orders"}
        source.execute("update orders set total = total + 1 where id % 3 = 0")

        # Clear of data_sync, and with it, as Airflow does, of what follows.
        cleared = [f"public__orders.{one}" for one in ("data_sync", "finished_copy", "sync_done", "ready")]
        before = generation(small_shop, "orders")
        done = airflow.run_all(cleared)
        assert {one.task: one.error for one in done.values() if one.error} == {}
        assert generation(small_shop, "orders") == before + 1
        assert generation(small_shop, "customers") == 1

        # A Clear of ready alone checks, and has no news.
        assert airflow.run("public__orders.ready").must_succeed().assets == set()
        assert generation(small_shop, "orders") == before + 1
        assert not stream.done()
        airflow.cancel_trigger("apply")

    dag = shop_dag()
    with MiniAirflow(dag, "run_2") as airflow:
        airflow.run_all()
        assert_equal(small_shop)


def generation(databases: Databases, table: str) -> int:
    query = """
    select h.generation from pgetl.tables t join pgetl.history h on (h.table_name, h.entry) = (t.table_name, t.current)
    where t.table_name = %s
    """
    return int(databases.source.execute(query, [table])[0][0])
