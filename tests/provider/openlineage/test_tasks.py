"""What the tasks of a DAG answer when OpenLineage's own extraction asks them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.openlineage.extractors.manager import ExtractorManager
from airflow.utils.state import TaskInstanceState

from airflow_provider_pgetl import DeltaLake, Postgres, ReplicationDag, Table
from airflow_provider_pgetl.engine.model.phases import CopyFinished, CopyStarted, Failed
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import Column, PgType, TableName, TableSchema
from airflow_provider_pgetl.engine.state.store import DestinationMetadata, FoundTable, Store, open_store
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases

ORDERS, NOTES = TableName("public", "orders"), TableName("public", "notes")
INTEGER = PgType(23, "int4")
SCHEMA = TableSchema(ORDERS, 16400, (Column("id", INTEGER, "integer"), Column("total", INTEGER, "integer")), ("id",))
NOWHERE = "postgresql://me:hush@127.0.0.1:1/nothing"
on_a_server = pytest.mark.parametrize("source_server", [18], indirect=True)
RUNNING, SUCCESS, FAILED = TaskInstanceState.RUNNING, TaskInstanceState.SUCCESS, TaskInstanceState.FAILED


def shop(destination: Any = None) -> ReplicationDag:
    return ReplicationDag(
        "shop",
        source_conn_id="shop_db",
        tables=["public.notes", Table("public.orders", destination="sales.orders")],
        destination=destination or Postgres("replica_db"),
    )


def asked(task: Any, state: TaskInstanceState) -> Any:
    """As the listener asks; it is sent empty where the task could not answer."""
    return ExtractorManager().extract_metadata(SimpleNamespace(run_id="run_1"), task, state, SimpleNamespace())


def columns(dataset: Any) -> set[str]:
    return set(dataset.facets["columnLineage"].fields)


@pytest.fixture
def servers_away(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHOP_DB", "REPLICA_DB"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", NOWHERE)


@pytest.fixture
def store(airflow_connections: Databases) -> Any:
    """Of a pipeline whose `orders` are copied, and whose `notes` wait."""
    with_state = open_store(airflow_connections.source.uri, "shop")
    with_state.register(ORDERS, 16400, None)
    with_state.register(NOTES, 16401, None)
    _copy(with_state)
    yield with_state
    with_state.close()


def _copy(store: Store) -> None:
    attempt, at = store.start_attempt(60.0), Boundary(0x20)
    place = DestinationMetadata(TableName("sales", "orders"), at, False)
    store.apply({ORDERS: CopyStarted(1, attempt)})
    store.begin_copies({ORDERS: FoundTable(16400, None, at, SCHEMA, place)})
    store.store_places({ORDERS: DestinationMetadata(place.destination, at, True, {"rows": 9, "bytes": 8192})})
    store.apply({ORDERS: CopyFinished(1, attempt, at)})


@on_a_server
def test_a_copy_that_was_waited_for_is_told_with_its_figures(store: Store, airflow_connections: Databases) -> None:
    task: Any = shop().task_dict["public__orders.data_sync"]
    found = asked(task, SUCCESS)
    assert found.outputs[0].outputFacets == {}, "it was made before this run"
    task._has_copied = True
    found = asked(task, SUCCESS)
    [there] = found.outputs
    address = airflow_connections.destination
    assert there.name == f"{address.name}.sales.orders"
    assert columns(there) == {"id", "total"}
    assert there.outputFacets["outputStatistics"].rowCount == 9
    assert found.inputs[0].inputFacets["inputStatistics"].size == 8192
    assert "sql" in found.job_facets
    assert found.inputs[0].inputFacets["inputStatistics"].rowCount == 9
    assert [(one.table, one.phase, one.position) for one in found.run_facets["pgetl"].tables] == [
        ("public.orders", "FinishedCopy", "0/20")
    ]


@on_a_server
def test_the_stream_is_told_of_all_tables_when_it_starts(store: Store) -> None:
    found = asked(shop().task_dict["apply"], RUNNING)
    assert [one.name.partition(".")[2] for one in found.inputs] == ["public.notes", "public.orders"]
    notes, orders = found.outputs
    assert columns(orders) == {"id", "total"}
    assert "columnLineage" not in notes.facets
    assert [one.phase for one in found.run_facets["pgetl"].tables] == ["Init", "FinishedCopy"]
    assert found.job_facets == {}


@on_a_server
@pytest.mark.parametrize("step", ["finished_copy", "sync_done", "ready", "data_sync"])
def test_a_task_that_fails_of_an_errored_table_tells_why(store: Store, step: str) -> None:
    store.apply({ORDERS: Failed(1, "It broke.", "Mend it.")})
    found = asked(shop().task_dict[f"public__orders.{step}"], FAILED)
    [table] = found.run_facets["pgetl"].tables
    told = "Mend it. Then clear the table's task that has failed."
    assert (table.phase, table.reason, table.remedy) == ("Errored", "It broke.", told)
    if step == "data_sync":
        assert columns(found.outputs[0]) == {"id", "total"}


@on_a_server
def test_a_merge_is_told_of_all_tables(store: Store) -> None:
    from airflow_provider_pgetl import MergeOperator

    dag = shop(DeltaLake("/lake", options={"merge": "spark"}))
    found = asked(MergeOperator(task_id="merge", replication=dag.replication), SUCCESS)
    assert [(one.namespace, one.name) for one in found.outputs] == [
        ("file", "/lake/public/notes"), ("file", "/lake/sales/orders")
    ]  # fmt: skip


def test_where_the_state_cannot_be_read_what_is_declared_is_told(servers_away: None) -> None:
    found = asked(shop().task_dict["public__orders.data_sync"], FAILED)
    assert found.outputs[0].name == "nothing.sales.orders"
    assert found.run_facets["pgetl"].tables == []


def test_readiness_has_no_tables_and_asks_nobody(servers_away: None, monkeypatch: pytest.MonkeyPatch) -> None:
    import psycopg

    monkeypatch.setattr(psycopg, "connect", pytest.fail)
    dag = shop()
    for step in ("prepare", *(f"public__orders.{name}" for name in ("init", "finished_copy", "sync_done", "ready"))):
        for state in (RUNNING, SUCCESS):
            found = asked(dag.task_dict[step], state)
            assert (found.inputs, found.outputs, found.job_facets) == ([], [], {})
            assert found.run_facets["pgetl"].pipeline == "shop"


def test_what_goes_wrong_is_kept_from_the_task() -> None:
    found = asked(shop().task_dict["apply"], RUNNING)
    assert (found.inputs, found.outputs, found.run_facets) == ([], [], {}), "there is no such connection"
