"""A small DAG, task by task, on real servers, copies on Spark, the streaming worker a real child process."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from airflow_provider_pgetl import Copying, Postgres, ReplicationDag
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases
from tests.provider.running import MiniAirflow
from tests.waiting import until

TABLES = ["public.customers", "public.orders", "public.notes"]
pytestmark = pytest.mark.spark


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


def assert_equal(databases: Databases, tables: Sequence[str] = TABLES) -> None:
    for table in tables:
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
        assert done["apply"].assets == {"pgetl://shop/", "pgetl://shop/public/notes"}, "nothing else has changed"
        assert airflow.run("apply").must_succeed().assets == done["apply"].assets, (
            "a run that is repeated says it again"
        )

        # A Clear of what this run has passed over does what it always does.
        done = airflow.run_all([*clearing("notes", "data_sync"), "apply"])
        assert {one.task: one.error for one in done.values() if one.error} == {}
        assert (generation(small_shop, "notes"), generation(small_shop, "orders")) == (2, 1)

        with dag.task_dict["prepare"].opened() as pipeline:
            pipeline.reset(TableName("public", "notes"))
        done = airflow.run_all()
        assert {one.task: one.error for one in done.values() if one.error} == {}
        assert set(done) == {"prepare", "apply", "public__notes.init", *clearing("notes", "data_sync")}
        assert len(done["prepare"].skipped) == 10, "only those of the tables that are Ready"
        assert done["apply"].assets == {"pgetl://shop/", "pgetl://shop/public/notes"}, "it was copied again"
        assert_equal(small_shop)


@pytest.mark.parametrize("source_server", [18], indirect=True)
def test_a_run_that_streams_on_and_what_clear_does_in_it(small_shop: Databases) -> None:
    source = small_shop.source
    two = TABLES[:2]
    dag = shop_dag(tables=two, until=None, copying=Copying(table_workers=1))
    with MiniAirflow(dag) as airflow:
        tables = [one for one in dag.task_dict if one != "apply"]
        airflow.run("prepare").must_succeed()
        stream = airflow.start("apply")
        done = airflow.run_all([one for one in tables if one != "prepare"])
        assert {one.task: one.error for one in done.values() if one.error} == {}
        assert done["public__orders.ready"].assets == {"pgetl://shop/public/orders"}
        source.execute("update orders set total = total + 1 where id % 3 = 0")

        # Clear of data_sync, and with it, as Airflow does, of what follows.
        cleared = clearing("orders", "data_sync")
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

    dag = shop_dag(tables=two)
    with MiniAirflow(dag, "run_2") as airflow:
        airflow.run_all()
        assert_equal(small_shop, two)


@pytest.mark.slow
@pytest.mark.parametrize("source_server", [18], indirect=True)
def test_compact_tasks_do_the_same(small_shop: Databases) -> None:
    """Two tables, then a third one, which its `data_sync` registers; and a Clear of each of the two tasks."""
    with MiniAirflow(shop_dag(tables=TABLES[:2], tasks="compact")) as airflow:
        done = airflow.run_all()
        assert {one.task: one.error for one in done.values() if one.error} == {}
        assert set(done) == set(airflow.dag.task_dict)
        with MiniAirflow(shop_dag(tasks="compact"), airflow.run_id) as edited:
            done = edited.run_all(["public__notes.data_sync", "public__notes.ready", "apply"])
            assert {one.task: one.error for one in done.values() if one.error} == {}
            assert_equal(small_shop)

            done = edited.run_all(["public__orders.data_sync", "public__orders.ready", "apply"])
            assert {one.task: one.error for one in done.values() if one.error} == {}
            edited.run("public__orders.ready").must_succeed()
            assert (generation(small_shop, "notes"), generation(small_shop, "orders")) == (1, 2)
    small_shop.source.execute("update orders set total = total + 1 where id % 3 = 0")
    with MiniAirflow(shop_dag(tasks="compact"), "run_2") as airflow:
        done = airflow.run_all()
        assert set(done) == {"prepare", "apply"}
        assert len(done["prepare"].skipped) == 6
        assert_equal(small_shop)


@pytest.mark.slow
@pytest.mark.parametrize("source_server", [18], indirect=True)
def test_tables_come_and_go_while_the_stream_runs(small_shop: Databases) -> None:
    """The DAG's file is edited: Airflow gives the run that is under way the tasks of the tables that are new."""
    source = small_shop.source
    with MiniAirflow(shop_dag(tables=["public.customers", "public.orders"], until=None)) as airflow:
        airflow.run("prepare").must_succeed()
        stream = airflow.start("apply")
        done = airflow.run_all([one for one in airflow.dag.task_dict if "." in one])
        assert {one.task: one.error for one in done.values() if one.error} == {}

        before = (generation(small_shop, "orders"), generation(small_shop, "customers"))
        before = (generation(small_shop, "orders"), generation(small_shop, "customers"))
        with MiniAirflow(shop_dag(until=None), airflow.run_id) as edited:
            done = edited.run_all(clearing("notes", "init"))
            assert {one.task: one.error for one in done.values() if one.error} == {}
        source.execute("insert into notes values (1, 'a change')")
        await_rows(small_shop.destination, "notes", 1)
        assert (generation(small_shop, "orders"), generation(small_shop, "customers")) == before

        source.execute("create table more (id int primary key)")
        tables = ["public.orders", "public.notes", "public.more"]
        with MiniAirflow(shop_dag(tables=tables, until=None), airflow.run_id) as edited:
            edited.run("public__more.init").must_succeed()
        assert registered(small_shop) == {"orders", "notes", "more"}, "what was removed goes with it"
        source.execute("insert into notes values (2, 'a change')")
        await_rows(small_shop.destination, "notes", 2)
        assert not stream.done()
        airflow.cancel_trigger("apply")


def await_rows(replica: Database, table: str, count: int) -> None:
    until(lambda: replica.execute(f"select count(*) from {table}") == [(count,)], f"{table} has its {count} rows")


def registered(databases: Databases) -> set[str]:
    return {str(name) for (name,) in databases.source.execute("select table_name from pgetl.tables")}


def clearing(table: str, step: str) -> list[str]:
    """The tasks that a Clear of a table's task takes along, by Airflow's default."""
    steps = ("init", "data_sync", "finished_copy", "sync_done", "ready")
    return [f"public__{table}.{one}" for one in steps[steps.index(step) :]]


def generation(databases: Databases, table: str) -> int:
    query = """
    select h.generation from pgetl.tables t join pgetl.history h on (h.table_name, h.entry) = (t.table_name, t.current)
    where t.table_name = %s
    """
    return int(databases.source.execute(query, [table])[0][0])
