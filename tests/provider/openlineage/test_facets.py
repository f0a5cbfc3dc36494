"""What OpenLineage is told of tasks, in its own classes; and that it can be sent."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from openlineage.client.serde import Serde

from airflow_provider_pgetl import CustomDestination, DeltaLake, Postgres, Table
from airflow_provider_pgetl.declarations import Replication, declare
from airflow_provider_pgetl.engine.model.phases import Errored, FinishedCopy, Ready, RetryPolicy, TableState
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import Column, GeneratedColumn, PgType, TableName, TableSchema
from airflow_provider_pgetl.engine.monitoring.snapshots import TableDescription
from airflow_provider_pgetl.openlineage.facets import lineage, names_in
from airflow_provider_pgetl.openlineage.tasks import Moves, Stage
from airflow_provider_pgetl.transformers import Float, Keep, Null

ORDERS = TableName("public", "orders")
INTEGER, NUMERIC, TEXTS = (
    PgType(23, "int4"),
    PgType(1700, "numeric"),
    PgType(1009, "_text", "array", PgType(25, "text")),
)
ID = Column("id", INTEGER, "integer", not_null=True, number=1)
NET = Column("Net", NUMERIC, "numeric(10,2)", modifier=(10 << 16) + 2 + 4, comment="without tax", number=2)
GROSS = Column("gross", NUMERIC, "numeric", number=3)
TAGS = Column("tags", TEXTS, "text[]", number=4)
SCHEMA = TableSchema(ORDERS, 16400, (ID, NET, TAGS), ("id",), generated=(GeneratedColumn(GROSS, "Net * 1.2"),))
COPIED = TableDescription(TableState(FinishedCopy(Boundary(0x20)), 3, 7), SCHEMA, Boundary(0x20), rows=9, bytes=8192)
SOURCE, REPLICA = "postgres://source.example:5432", "postgres://replica.example:5433"


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", "postgresql://me:hush@source.example/shop")
    monkeypatch.setenv("AIRFLOW_CONN_REPLICA_DB", "postgresql://me:hush@replica.example:5433/copy")


def shop(destination: Any = None, **options: Any) -> Replication:
    tables = [Table("public.orders", **options)]
    return declare("shop", source_conn_id="shop_db", tables=tables, destination=destination or Postgres("replica_db"))


def told(
    replication: Replication,
    known: TableDescription | None = COPIED,
    *,
    stage: Stage = "succeeded",
    copies: bool = True,
    has_copied: bool = True,
) -> dict[str, Any]:
    """As it is sent."""
    moves = Moves((ORDERS,), copies, has_copied)
    found = lineage(replication, moves, stage, {} if known is None else {ORDERS: known})
    text = Serde.to_json(found)
    assert "hush" not in text
    sent: dict[str, Any] = json.loads(text)
    return sent


def fields(facet: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(one["name"], one.get("type")) for one in facet["fields"]]


def test_a_copy_has_tables_columns_and_figures() -> None:
    sent = told(shop())
    ([here], [there]) = sent["inputs"], sent["outputs"]
    assert (here["namespace"], here["name"]) == (SOURCE, "shop.public.orders")
    assert (there["namespace"], there["name"]) == (REPLICA, "copy.public.orders")
    columns = [("id", "integer"), ("Net", "numeric(10,2)"), ("tags", "text[]")]
    assert fields(here["facets"]["schema"]) == [*columns[:2], ("gross", "numeric"), columns[2]]
    assert fields(there["facets"]["schema"]) == columns
    assert there["facets"]["schema"]["fields"][1]["description"] == "without tax"
    assert here["facets"]["version"]["datasetVersion"] == "0/20"
    assert here["inputFacets"]["inputStatistics"]["rowCount"] == 9
    assert here["inputFacets"]["inputStatistics"]["size"] == 8192
    assert there["outputFacets"]["outputStatistics"]["rowCount"] == 9
    assert sent["job_facets"]["sql"]["query"] == 'SELECT "id", "Net", "tags" FROM "public"."orders"'
    assert sent["job_facets"]["sql"]["dialect"] == "postgres"
    [table] = sent["run_facets"]["pgetl"]["tables"]
    assert table == {"table": "public.orders", "phase": "FinishedCopy", "generation": 3, "position": "0/20"}
    assert sent["run_facets"]["pgetl"]["pipeline"] == "shop"


def test_every_column_comes_from_its_own_as_it_is() -> None:
    facet = told(shop())["outputs"][0]["facets"]["columnLineage"]
    assert set(facet["fields"]) == {"id", "Net", "tags"}
    [source] = facet["fields"]["Net"]["inputFields"]
    assert (source["namespace"], source["name"], source["field"]) == (SOURCE, "shop.public.orders", "Net")
    [how] = source["transformations"]
    assert how == {"type": "DIRECT", "subtype": "IDENTITY", "masking": False}
    assert facet.get("dataset", []) == []


def test_a_column_that_is_transformed_is_masked_and_one_of_a_constant_depends_on_nothing() -> None:
    rules = {"Net": Float(bucket=10), "tags": Null(), "id": Keep()}
    (there,) = told(shop(transform=rules))["outputs"]
    lines = there["facets"]["columnLineage"]["fields"]
    assert lines.keys() == {"id", "Net"}
    assert [lines[name]["inputFields"][0]["transformations"][0]["masking"] for name in ("id", "Net")] == [False, True]


def test_a_row_filter_is_what_the_whole_replica_depends_on() -> None:
    sent = told(shop(where="""ID > 7 and "Net" <> 'tags'"""))
    dataset = sent["outputs"][0]["facets"]["columnLineage"]["dataset"]
    assert [one["field"] for one in dataset] == ["id", "Net"]
    assert dataset[0]["transformations"] == [{"type": "INDIRECT", "subtype": "FILTER", "masking": False}]
    assert sent["job_facets"]["sql"]["query"].endswith("""WHERE ID > 7 and "Net" <> 'tags'""")


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("a > 1", ["a"]),
        ("A > 1", ["a"]),
        ('"A" > 1', ["A"]),
        ("x = 'a' and y = 'it''s \"A\"'", []),
        ('"we""ird" is null', ['we"ird']),
        ("ab > 1 or b > a", ["a", "b"]),
        ("größe > 1", ["größe"]),
    ],
)
def test_the_columns_of_a_condition(condition: str, found: list[str]) -> None:
    assert names_in(condition, ["a", "A", "b", 'we"ird', "größe"]) == found


def test_before_a_copy_has_begun_columns_are_those_that_are_declared() -> None:
    sent = told(shop(columns=["id", "Net"]), None, stage="started", has_copied=False)
    facets = sent["outputs"][0]["facets"]
    assert set(facets["columnLineage"]["fields"]) == {"id", "Net"}
    assert fields(facets["schema"]) == [("id", None), ("Net", None)]
    assert "inputFacets" not in sent["inputs"][0] or not sent["inputs"][0]["inputFacets"]
    assert sent["run_facets"]["pgetl"].get("tables", []) == []
    sent = told(shop(), None, stage="started")
    assert set(sent["outputs"][0]["facets"]) == {"symlinks"}, "which there are is not known"
    assert sent["job_facets"]["sql"]["query"] == 'SELECT * FROM "public"."orders"'


def test_the_columns_of_another_copy_are_not_told_for_those_declared_now() -> None:
    assert list(told(shop(columns=["id"]))["outputs"][0]["facets"]["columnLineage"]["fields"]) == ["id"]


def test_where_columns_are_left_out_they_are_not_the_sources_schema() -> None:
    sent = told(shop(columns=["id", "Net", "tags"]))
    assert "schema" not in sent["inputs"][0]["facets"]
    assert fields(sent["outputs"][0]["facets"]["schema"])[0] == ("id", "integer")


@pytest.mark.parametrize(("stage", "has_copied"), [("started", True), ("failed", True), ("succeeded", False)])
def test_a_copy_that_was_not_made_has_no_figures(stage: Stage, has_copied: bool) -> None:
    sent = told(shop(), stage=stage, has_copied=has_copied)
    assert not sent["inputs"][0].get("inputFacets")
    assert not sent["outputs"][0].get("outputFacets")


def test_a_stream_has_tables_and_columns_and_how_far_it_is() -> None:
    ready = replace(COPIED, state=TableState(Ready(), 3, 7), position=Boundary(0x30))
    sent = told(shop(), ready, copies=False, has_copied=False)
    assert sent["inputs"][0]["facets"]["version"]["datasetVersion"] == "0/30"
    assert set(sent["outputs"][0]["facets"]["columnLineage"]["fields"]) == {"id", "Net", "tags"}
    assert not sent["job_facets"]
    assert sent["run_facets"]["pgetl"]["tables"][0]["phase"] == "Ready"


def test_an_errored_table_is_told_with_reason_and_remedy() -> None:
    phase = Errored("It broke.", "Free some space, then reset the table.", RetryPolicy("timed", at=0.0), "DataSync")
    sent = told(shop(), replace(COPIED, state=TableState(phase, 4)), stage="failed")
    [table] = sent["run_facets"]["pgetl"]["tables"]
    assert (table["phase"], table["reason"]) == ("Errored", "It broke.")
    assert table["remedy"] == "Free some space, then clear its `data_sync`. It is tried again by itself."
    assert table["retryAt"] == "1970-01-01T00:00:00+00:00"


def test_a_lakes_table_has_the_lakes_types() -> None:
    facets = told(shop(DeltaLake("s3://lake/shop")))["outputs"][0]["facets"]
    assert fields(facets["schema"]) == [("id", "integer"), ("Net", "decimal(10,2)"), ("tags", "array<string>")]
    assert (facets["storage"]["storageLayer"], facets["storage"]["fileFormat"]) == ("delta", "parquet")
    history = told(shop(DeltaLake("s3://lake/shop", options={"mode": "history"})))["outputs"][0]["facets"]
    assert len(history["schema"]["fields"]) > 3
    assert set(history["columnLineage"]["fields"]) == {"id", "Net", "tags"}


def test_a_replica_is_known_by_its_pipeline_as_well() -> None:
    [other] = told(shop())["outputs"][0]["facets"]["symlinks"]["identifiers"]
    assert other == {"namespace": "pgetl://shop", "name": "public.orders", "type": "TABLE"}
    own = told(shop(CustomDestination("my.module:Place")))["outputs"][0]
    assert (own["namespace"], own["name"]) == ("pgetl://shop", "public.orders")
    assert "symlinks" not in own["facets"]
    assert fields(own["facets"]["schema"]) == [("id", None), ("Net", None), ("tags", None)]


def test_a_stream_over_more_columns_than_an_event_holds_has_tables_alone() -> None:
    tables = [Table(f"public.t{number}", columns=["id", *(f"c{one}" for one in range(99))]) for number in range(20)]
    for more in (0, 1):
        replication = declare(
            "shop",
            source_conn_id="shop_db",
            tables=[*tables, Table("public.last", columns=["id"])][: len(tables) + more],
            destination=Postgres("replica_db"),
        )
        found = lineage(replication, Moves(replication.tables), "started", {})
        assert len(found.outputs) == len(tables) + more
        assert all(("columnLineage" in (one.facets or {})) is (not more) for one in found.outputs)
    wide = lineage(shop(columns=[f"c{one}" for one in range(3000)]), Moves((ORDERS,)), "started", {})
    assert "columnLineage" in (wide.outputs[0].facets or {}), "there is nobody else to tell of one table"
