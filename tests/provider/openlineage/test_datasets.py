"""Tables by the names of OpenLineage's specification, held to its own classes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import Connection
from openlineage.client.naming import dataset as naming

from airflow_provider_pgetl import CustomDestination, DeltaLake, Postgres, Table
from airflow_provider_pgetl.declarations import declare
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.openlineage.datasets import Datasets, folder, postgres_table

ORDERS = TableName("public", "orders")


def datasets(destination: Any) -> Datasets:
    tables = [Table("public.orders", destination="sales.Orders")]
    return Datasets(declare("shop", source_conn_id="shop_db", tables=tables, destination=destination))


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", "postgresql://me:hush@source.example/shop")
    monkeypatch.setenv("AIRFLOW_CONN_REPLICA_DB", "postgresql://me:hush@replica.example:5433/copy")


def test_postgres_tables_are_named_as_the_specification_says() -> None:
    here = naming.Postgres(host="source.example", port="5432", database="shop", schema="public", table="orders")
    there = naming.Postgres(host="replica.example", port="5433", database="copy", schema="sales", table="Orders")
    named = datasets(Postgres("replica_db"))
    assert named.source(ORDERS) == (here.get_namespace(), here.get_name())
    assert named.replica(ORDERS) == (there.get_namespace(), there.get_name())


@pytest.mark.parametrize(
    ("uri", "namespace", "name"),
    [
        ("postgresql://me@/shop", "postgres://localhost:5432", "shop.public.orders"),
        ("postgresql://me@%2Frun%2Fpostgresql:5433/shop", "postgres://localhost:5433", "shop.public.orders"),
        ("postgresql://me@one,two/shop", "postgres://one:5432", "shop.public.orders"),
        ("postgresql://me@db.example", "postgres://db.example:5432", "me.public.orders"),
    ],
)
def test_of_what_a_connection_leaves_open_libpqs_default_is_taken(uri: str, namespace: str, name: str) -> None:
    connection = Connection.from_uri(uri, conn_id="one")
    assert postgres_table(connection, ORDERS) == (namespace, name)


def test_an_address_of_version_6_stays_in_brackets() -> None:
    connection = Connection(conn_id="one", conn_type="postgres", host="::1", schema="shop")
    assert postgres_table(connection, ORDERS).namespace == "postgres://[::1]:5432"


ABFSS = naming.ABFSS(container="lake", service="acme", path="shop/a")


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("/lake/shop/a", naming.LocalFileSystem(path="/lake/shop/a")),
        ("/lake/what?/a#b", naming.LocalFileSystem(path="/lake/what?/a#b")),
        ("s3://lake/shop/a", naming.S3(bucket_name="lake", object_key="shop/a")),
        ("s3a://key:hush@lake/shop/a", naming.S3(bucket_name="lake", object_key="shop/a")),
        ("gs://lake/shop/a", naming.GCS(bucket_name="lake", object_key="shop/a")),
        ("hdfs://node:9000/shop/a", naming.HDFS(namenode_host="node", namenode_port="9000", path="shop/a")),
        ("abfss://lake@acme.dfs.core.windows.net/shop/a", ABFSS),
        ("abfss://lake:hush@acme.dfs.core.windows.net/shop/a", ABFSS),
        ("https://acme.blob.core.windows.net/lake/shop/a", ABFSS),
        ("https://acme.dfs.core.windows.net/lake/shop/a", ABFSS),
        ("az://lake/shop/a", ABFSS),
    ],
)
def test_folders_are_named_as_the_specification_says(uri: str, expected: naming.DatasetNaming) -> None:
    assert folder(uri, "acme") == (expected.get_namespace(), expected.get_name())


def test_a_container_of_an_unknown_account_is_named_as_it_is_addressed() -> None:
    assert folder("az://lake/shop/a") == ("az://lake", "shop/a")


def test_a_lakes_tables_lie_in_their_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE", "s3://lake/shop/")
    assert datasets(DeltaLake("env:LAKE")).replica(ORDERS) == ("s3://lake", "shop/sales/Orders")
    assert datasets(DeltaLake("file:///lake/shop")).replica(ORDERS) == ("file", "/lake/shop/sales/Orders")


def test_azures_account_is_that_of_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = {"conn_type": "adls", "host": "acme", "password": "hush"}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
    expected = ("abfss://lake@acme.dfs.core.windows.net", "shop/sales/Orders")
    assert datasets(DeltaLake("az://lake/shop", storage_conn_id="lake")).replica(ORDERS) == expected


def test_a_destination_of_ones_own_is_known_by_the_pipeline() -> None:
    assert datasets(CustomDestination("my.module:Place")).replica(ORDERS) == ("pgetl://shop", "public.orders")
