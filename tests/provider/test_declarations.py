"""What a DAG's author declares comes out as the engine's own, and survives being handed on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_pgetl import (
    Copying,
    CustomDestination,
    DeltaLake,
    Postgres,
    Streaming,
    Table,
    Transform,
    Transformation,
    replica_asset,
)
from airflow_provider_pgetl.declarations import DestinationDeclaration, Replication, declare
from airflow_provider_pgetl.engine.config.spec import TransformSpec
from airflow_provider_pgetl.engine.config.validation import Misdeclared
from airflow_provider_pgetl.transformers import Custom, Email, Keep, Mask


def declared(destination: DestinationDeclaration) -> Replication:
    return declare(
        "shop",
        source_conn_id="shop_db",
        state_conn_id="state_db",
        tables=["public.customers", Table("public.orders", columns=["id", "total"], where="total > 0")],
        destination=destination,
        copying=Copying(table_workers=3, range_bytes="8MiB"),
        streaming=Streaming(memory="64MiB", min_interval="10s"),
    )


DESTINATIONS = [
    Postgres("replica_db"),
    DeltaLake("s3://lake/shop", storage={"aws_secret_access_key": "env:LAKE_KEY"}, options={"mode": "history"}),
    DeltaLake("s3://lake/shop", "lake"),
    CustomDestination("package.module:Class", conn_id="there", options={"depth": 3}),
]


@pytest.mark.parametrize("destination", DESTINATIONS, ids=lambda one: type(one).__name__)
def test_it_survives_as_json(destination: DestinationDeclaration) -> None:
    replication = declared(destination)
    assert Replication.from_json(json.loads(json.dumps(replication.as_json()))) == replication


def test_options_become_what_the_pipeline_file_would_say() -> None:
    spec = declared(Postgres("replica_db")).spec
    assert (spec.copy.table_workers, spec.copy.range_bytes) == (3, 8 << 20)
    assert (spec.stream.memory, spec.stream.min_interval) == (64 << 20, 10.0)
    assert spec.tables[1].columns == ("id", "total")


@pytest.mark.parametrize(
    "destination",
    [
        Postgres("replica_db", existing="replace"),
        DeltaLake("/lake", existing="replace"),
        CustomDestination("package.module:Class", existing="replace"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_is_there_may_be_replaced_in_all_tables_or_in_one(destination: DestinationDeclaration) -> None:
    spec = declared(destination).spec
    assert spec.replaces(Table("public.orders"))
    assert not spec.replaces(Table("public.orders", existing="error"))
    careful = declared(Postgres("replica_db")).spec
    assert not careful.replaces(Table("public.orders"))
    assert careful.replaces(Table("public.orders", existing="replace"))


def test_connections_are_named_and_never_looked_up() -> None:
    connections = declared(Postgres("replica_db")).connections
    assert (connections.source, connections.state, connections.destination) == ("shop_db", "state_db", "replica_db")
    assert declared(DeltaLake("/lake")).connections.destination is None
    assert declared(DeltaLake("/lake")).connections.storage is None
    lake = declared(DeltaLake("s3://lake/shop", "lake"))
    assert lake.connections.storage == "lake"
    assert lake.spec.destination.options == {"storage_from": "env:PGETL_STORAGE"}


def test_a_secret_written_out_is_refused() -> None:
    with pytest.raises(Misdeclared, match="secret"):
        declared(DeltaLake("s3://lake", storage={"aws_secret_access_key": "AKIA123"}))


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"tables": "public.a"}, r'tables: it must be a list, not text\. .*tables=\["public\.orders"\]'),
    ({"tables": []}, r'no table is named\. Name some, for instance tables=\["public\.orders"\]'),
    ({"tables": ["{{ var.value.x }}.a"]}, r"is a template.*Write the tables out"),
    ({"tables": [Table("public.a", destination="{{ ds }}.a")]}, r"is a template"),
    ({"tables": [Table("public.a", where="day = '{{ ds }}'")]}, r"where: it is a template.*Write the condition out"),
    ({"tables": [Table("public.a", columns=["{{ ds }}"])]}, r"columns: it is a template"),
    ({"publication": "p_{{ ds }}"}, r"publication: it is a template.*ids of connections may be templates"),
    ({"spark_submit": "--name {{ ds }}"}, r"spark_submit: it is a template"),
    ({"destination": "replica_db"}, r'destination: it is text, .*write Postgres\("replica_db"\)'),
    ({"streaming": Streaming(min_interval="30")}, r'streaming\.min_interval: "30" cannot be read: write a number'),
    ({"streaming": Streaming(memory=256)}, r"streaming\.memory: it must be text"),  # type: ignore[arg-type]
    ({"copying": Copying(range_bytes="8MB")}, r'copying\.range_bytes: "8MB" cannot be read'),
    ({"copying": Copying(table_workers=0)}, r"copying\.table_workers: it must be at least 1"),
]


@pytest.mark.parametrize(("given", "complaint"), MISTAKES, ids=[complaint[:20] for _, complaint in MISTAKES])
def test_a_mistake_is_told_where_it_is_made(given: dict[str, Any], complaint: str) -> None:
    sound: dict[str, Any] = {"source_conn_id": "a", "tables": ["public.a"], "destination": Postgres("b")}
    with pytest.raises(Misdeclared, match=complaint):
        declare("shop", **{**sound, **given})


def test_columns_are_a_list() -> None:
    with pytest.raises(Misdeclared, match=r'columns: it must be a list, not text\. .*columns=\["id"\]'):
        Table("public.a", columns="id")


def test_a_lake_lies_where_every_process_finds_it() -> None:
    with pytest.raises(Misdeclared, match=r'"lake/shop" is a relative path.*absolute'):
        DeltaLake("lake/shop")
    assert [DeltaLake(uri).uri for uri in ("/lake", "s3://lake/shop", "env:LAKE")]


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"uri": "s3://{{ var.value.bucket }}/shop"}, "uri"),
        ({"uri": "/lake", "storage": {"aws_region": "{{ var.value.region }}"}}, r"storage\.aws_region"),
        ({"uri": "/lake", "options": {"mode": "{% if prod %}upsert{% endif %}"}}, r"options\.mode"),
    ],
)
def test_a_lake_s_address_and_options_are_no_templates(given: dict[str, Any], key: str) -> None:
    with pytest.raises(Misdeclared, match=rf"{key}: it is a template, and would be taken as it stands"):
        DeltaLake(**given)
    with pytest.raises(Misdeclared, match=r"options\.depth\.0: it is a template|options\.depth: it is a template"):
        CustomDestination("package.module:Class", options={"depth": ["{{ ds }}"]})


@pytest.mark.parametrize("where", ["path = '{{1,2},{3,4}}'::int[]", "tags = '{{a,b},{c,d}}'", "doc @> '{\"a\": {}}'"])
def test_braces_in_a_condition_are_no_template(where: str) -> None:
    assert declare(
        "shop", source_conn_id="a", tables=[Table("public.a", where=where)], destination=Postgres("b")
    ).tables


def test_a_dags_id_is_not_its_pipelines() -> None:
    with pytest.raises(Misdeclared, match=r"pipeline\.id: .*my_shop_prod"):
        replica_asset("my.shop-prod", "public.orders")
    assert replica_asset("my_shop_prod", "public.orders").uri == "pgetl://my_shop_prod/public/orders"


# -- rules ------------------------------------------------------------------------------------------------------------


def with_rules(**arguments: Any) -> Replication:
    rules = {"email": Email(), "card": Mask("credit_card"), "x": Custom("package.module:Class", {"depth": 3})}
    tables = [Table("public.customers", transform=rules), "public.orders"]
    return declare("shop", source_conn_id="s", tables=tables, destination=Postgres("d"), **arguments)


def test_rules_are_the_same_as_those_of_a_file() -> None:
    replication = with_rules(
        transform=[Transform("*", Keep(), table="public.*")],
        transformation=Transformation(mode="strict", key_conn_id="pseudonyms"),
    )
    assert replication.spec.rules == (
        TransformSpec("email", "email", "public.customers", {"domain": "example.com", "keep_domain": False}),
        TransformSpec("card", "mask", "public.customers", {"kind": "credit_card"}),
        TransformSpec("x", "package.module:Class", "public.customers", {"depth": 3}),
        TransformSpec("*", "keep", "public.*"),
    )
    assert replication.spec.transform_keys == {"env:PGETL_TRANSFORM_KEY"}
    assert replication.connections.named["PGETL_TRANSFORM_KEY"] == "pseudonyms"
    assert Replication.from_json(json.loads(json.dumps(replication.as_json()))) == replication


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, '"email" needs a key, without which its output could be guessed.'),
        ({"transformation": Transformation(key="hunter2")}, "it must be a reference, not the key itself."),
        ({"transformation": Transformation(key="env:A", key_conn_id="b")}, "cannot be set together with key_conn_id."),
        ({"transform": [Email()]}, "it holds a Email, not a rule."),
    ],
)
def test_rules_that_are_not_valid(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(Misdeclared) as raised:
        with_rules(**arguments)
    assert words in raised.value.message
    assert "hunter2" not in raised.value.message


def test_a_transformer_is_not_named_but_made() -> None:
    with pytest.raises(Misdeclared, match="the transformer of email is text"):
        Table("public.customers", transform={"email": "email"})  # type: ignore[dict-item]
