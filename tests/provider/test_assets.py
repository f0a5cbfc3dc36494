"""Assets' addresses, as Airflow finds what judges, makes and names them."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.common.compat.openlineage.utils.utils import translate_airflow_asset
from airflow.providers_manager import ProvidersManager
from airflow.sdk import Asset

from airflow_provider_pgetl import CustomDestination, DeltaLake, Postgres, ReplicationDag, Table, replica_asset
from airflow_provider_pgetl.assets import source_asset
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.links import ReplicaLink, SourceLink, StateLink

AWKWARD = TableName("Weird Schema", "a/b?ü%")


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("pgetl://shop/public/orders", "pgetl://shop/public/orders"),
        ("PGETL://shop/public/orders/", "pgetl://shop/public/orders"),
        ("pgetl://shop", "pgetl://shop/"),
        ("pgetl://shop/Weird Schema/or%64ers", "pgetl://shop/Weird%20Schema/orders"),
        ("pgetl-source://shop_db/public/orders", "pgetl-source://shop_db/public/orders"),
        ("pgetl-source://team.shop-DB/public/orders", "pgetl-source://team.shop-DB/public/orders"),
    ],
)
def test_an_address_is_kept_in_one_form(written: str, kept: str) -> None:
    asset = Asset(uri=written)
    assert asset.uri == kept
    assert asset.normalized_uri == kept


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("pgetl://shop/orders", r"one table by its schema and its name\. Write pgetl://pipeline/schema/table"),
        ("pgetl://shop/public/orders/id", "one table"),
        ("pgetl://shop//orders", "one table"),
        ("pgetl://My-Shop/public/orders", r'"My-Shop" cannot be .* like my_shop'),
        ("pgetl://me@shop/public/orders", "more than names"),
        ("pgetl://shop:5432/public/orders", "more than names"),
        ("pgetl://shop/public/orders?where=1", "more than names"),
        ("pgetl-source://shop_db", r"names no table of a connection\. Write pgetl-source://connection/schema/table"),
        ("pgetl-source:///public/orders", "names no table of a connection"),
    ],
)
def test_another_address_is_refused_with_the_remedy(uri: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Asset(uri=uri)


def test_any_name_of_a_table_makes_an_address_and_comes_back() -> None:
    asset = source_asset("a conn/id:1", AWKWARD)
    assert Asset(uri=asset.uri).uri == asset.uri == asset.normalized_uri


def test_factories_make_the_same_assets() -> None:
    factories: Any = ProvidersManager().asset_factories
    extra = {"why": "because"}
    made = factories["pgetl"](pipeline_id="shop", table="public.orders", extra=extra)
    assert (made.uri, made.extra) == (replica_asset("shop", "public.orders").uri, extra)
    assert factories["pgetl"](pipeline_id="shop").uri == replica_asset("shop").uri
    made = factories["pgetl-source"](conn_id="shop_db", table="public.orders", extra=extra)
    assert (made.uri, made.extra) == (source_asset("shop_db", TableName("public", "orders")).uri, extra)


def dataset(asset: Asset) -> tuple[str, str] | None:
    found = translate_airflow_asset(asset, None)
    return None if found is None else (found.namespace, found.name)


def test_openlineage_knows_a_replica_by_its_pipeline_and_a_source_table_by_its_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", "postgresql://me:hush@source.example/shop")
    assert dataset(replica_asset("shop", "public.orders")) == ("pgetl://shop", "public.orders")
    assert dataset(replica_asset("shop")) is None, "a whole pipeline is no dataset"
    assert dataset(source_asset("shop_db", AWKWARD)) == ("postgres://source.example:5432", f"shop.{AWKWARD}")
    assert dataset(source_asset("nobody", AWKWARD)) is None


# -- where a table's links lead ----------------------------------------------------------------------------------------


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
