"""A DAG into a lake in an object store, whose keys an Airflow connection holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from airflow_provider_pgetl import DeltaLake, ReplicationDag, replica_asset
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from tests.object_store import BUCKET, KEY_ID, REGION, object_store
from tests.provider.running import MiniAirflow

SECRET = "nobody's business/+"
pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with object_store(SECRET) as address:
        yield address


@pytest.fixture
def lake(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    extra = {"endpoint_url": endpoint, "region_name": REGION}
    connection = {"conn_type": "aws", "login": KEY_ID, "password": SECRET, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
    return endpoint


def read(endpoint: str, table: str, folder: str = "shop") -> list[tuple[Any, ...]]:
    storage = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }
    delta = DeltaTable(f"s3://{BUCKET}/{folder}/public/{table}", storage_options=storage)
    return sorted(tuple(row.values()) for row in pa.table(delta.scan()).to_pylist())


@pytest.mark.parametrize("source_server", [18], indirect=True)
def test_a_lake_by_connection(small_shop: Databases, lake: str, caplog: pytest.LogCaptureFixture) -> None:
    dag = ReplicationDag(
        "shop",
        source_conn_id="shop_db",
        tables=["public.orders"],
        destination=DeltaLake(f"s3://{BUCKET}/shop", storage_conn_id="lake"),
        spark_conn_id="spark_local",
        until="caught_up",
    )
    with MiniAirflow(dag) as airflow:
        done = airflow.run_all()
        assert {one.task: one.error for one in done.values() if one.error} == {}
    with MiniAirflow(dag, "run_2") as airflow:
        small_shop.source.execute("update orders set total = total + 1 where id % 3 = 0")
        again = airflow.run_all()
        assert {one.task: one.error for one in again.values() if one.error} == {}
    assert read(lake, "orders") == small_shop.source.execute("select * from orders order by id")
    triggers = [trigger.serialize() for one in done.values() for trigger in one.deferrals]
    assert any("storage" in json.dumps(kwargs) for _, kwargs in triggers), "the connection is named"
    assert SECRET not in json.dumps(triggers)
    assert SECRET not in caplog.text


def merge_lag(dag: ReplicationDag) -> int:
    """Of the only table, as `pgetl status` tells it."""
    task: Any = dag.task_dict["merge"]
    with task.opened() as pipeline:
        (table,) = pipeline.status().tables
        return int(table.merge_lag_bytes)


@pytest.mark.parametrize("source_server", [18], indirect=True)
def test_changes_land_and_are_merged_by_a_task(
    small_shop: Databases, lake: str, caplog: pytest.LogCaptureFixture
) -> None:
    dag = ReplicationDag(
        "shop",
        source_conn_id="shop_db",
        tables=["public.orders"],
        destination=DeltaLake(f"s3://{BUCKET}/landed", storage_conn_id="lake", options={"merge": "spark"}),
        spark_conn_id="spark_local",
        until="caught_up",
    )
    with MiniAirflow(dag) as airflow:
        assert {one.task: one.error for one in airflow.run_all().values() if one.error} == {}
    small_shop.source.execute("update orders set total = total + 1 where id % 3 = 0")
    with MiniAirflow(dag, "run_2") as airflow:
        again = airflow.run_all(["prepare", "apply"])
        assert {one.task: one.error for one in again.values() if one.error} == {}
        assert again["apply"].assets == set()
        assert read(lake, "orders", "landed") != small_shop.source.execute("select * from orders order by id")
        assert merge_lag(dag) > 0
        merged = airflow.run("merge").must_succeed()
    assert merge_lag(dag) == 0
    assert read(lake, "orders", "landed") == small_shop.source.execute("select * from orders order by id")
    assert merged.assets == {replica_asset("shop").uri, replica_asset("shop", "public.orders").uri}
    assert SECRET not in caplog.text
