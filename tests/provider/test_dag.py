"""The shape of a replication's DAG, and what it costs to parse one."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, TaskGroup
from airflow.serialization import serialized_objects
from airflow.timetables.base import DagRunInfo, TimeRestriction
from airflow.timetables.simple import ContinuousTimetable
from airflow.utils.types import DagRunType

from airflow_provider_pgetl import (
    Copying,
    DeltaLake,
    MergeOperator,
    Postgres,
    ReplicationDag,
    ReplicationTaskGroup,
    Streaming,
    Table,
    replica_asset,
    replica_changes,
)
from airflow_provider_pgetl.assets import source_asset
from airflow_provider_pgetl.engine.config.validation import Misdeclared
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.naming import group_id
from airflow_provider_pgetl.running_airflow import RELEASE

# It has another name in Airflow 3.1.
DagSerialization = getattr(serialized_objects, "DagSerialization", None) or serialized_objects.SerializedDAG
STATIONS = ("init", "data_sync", "finished_copy", "sync_done", "ready")


def shop(**options: object) -> ReplicationDag:
    given = {"source_conn_id": "shop_db", "destination": Postgres("replica_db"), "tables": ["public.orders"], **options}
    return ReplicationDag(str(given.pop("dag_id", "shop")), **given)


def test_the_grid_is_the_state_machine() -> None:
    dag = shop(tables=["public.orders", "sales.items"])

    groups = ("public__orders", "sales__items")
    assert set(dag.task_dict) == {"prepare", "apply", *(f"{group}.{one}" for group in groups for one in STATIONS)}
    assert dag.task_dict["apply"].upstream_task_ids == {"prepare"}
    assert dag.task_dict["apply"].downstream_task_ids == set()
    before = "prepare"
    for one in STATIONS:
        task = dag.task_dict[f"sales__items.{one}"]
        assert task.upstream_task_ids == {before}
        before = task.task_id


def test_compact_a_table_has_two_tasks() -> None:
    dag = shop(tasks="compact", tables=["public.orders", "sales.items"])
    orders, items = dag["public.orders"], dag["sales.items"]
    assert set(dag.task_dict) == {
        "prepare", "apply", *(task.task_id for table in (orders, items) for task in (table.data_sync, table.ready))
    }  # fmt: skip
    assert items.data_sync.upstream_task_ids == {"prepare"}
    assert items.ready.upstream_task_ids == {"sales__items.data_sync"}
    assert items.ready.before == ("prepare", "sales__items.data_sync")
    assert dag.task_dict["prepare"].table_tasks[items.table] == [items.data_sync.task_id, items.ready.task_id]
    assert [copier.task_id for copier in dag.task_dict["apply"].copiers] == [
        orders.data_sync.task_id,
        items.data_sync.task_id,
    ]
    with pytest.raises(KeyError, match=r'sales.items has no task `sync_done`: with tasks="compact" there are'):
        _ = items.sync_done
    with pytest.raises(Misdeclared, match=r'tasks: it must be "full" or "compact"; did you mean "compact"\?'):
        shop(tasks="compakt")


@pytest.mark.parametrize("more", [(), ["sales"], {"sales", "pgetl"}, None])
def test_it_is_tagged_as_what_it_is_beside_tags_of_ones_own(more: Collection[str] | None) -> None:
    dag = DagSerialization.from_dict(DagSerialization.to_dict(shop(tags=more)))
    assert dag.tags == {"pgetl", "replication", *(more or ())}
    assert shop().tags == {"pgetl", "replication"}


def test_every_task_says_what_a_clear_of_it_does() -> None:
    """Also the serialised one, which the UI shows."""
    dag = shop(until="caught_up", destination=DeltaLake("/lake", options={"merge": "spark"}))
    serialised = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert {"prepare", "apply", "merge"} < set(serialised.task_dict)
    with DAG("shops", schedule=None) as others:
        ReplicationTaskGroup(
            "sales", source_conn_id="shop_db", tables=["public.orders"], destination=Postgres("replica_db")
        )
    tasks = [*serialised.task_dict.values(), *others.task_dict.values()]
    assert [task.task_id for task in tasks if "**Clear:**" not in (task.doc_md or "")] == []


def test_a_streaming_dag_runs_continuously_and_never_beside_itself() -> None:
    dag = shop()
    assert (dag.schedule, dag.max_active_runs, dag.catchup) == ("@continuous", 1, False)
    assert dag.fileloc == __file__
    assert dag.task_dict["apply"].retries == 3


def test_a_continuous_run_is_followed_by_another() -> None:
    """Airflow tells runs apart by the beginning of their interval; without a start date all of them begin now."""
    dag = shop()
    infos: list[DagRunInfo] = []
    for _ in range(3):
        info = ContinuousTimetable().next_dagrun_info(
            last_automated_data_interval=infos[-1].data_interval if infos else None,
            restriction=TimeRestriction(dag.start_date, None, catchup=False),
        )
        assert info is not None
        infos.append(info)
    assert len({info.logical_date for info in infos}) == 3


@pytest.mark.skipif(RELEASE < (3, 2), reason="Airflow 3.1 lets a DAG have runs of every type: `prepare` refuses them")
def test_airflow_is_told_to_take_no_backfill() -> None:
    """Its runs are active beside each other, whatever `max_active_runs` says."""
    allowed = shop(until="caught_up", schedule=timedelta(minutes=15)).allowed_run_types
    assert {kind.value for kind in allowed} == {kind.value for kind in DagRunType} - {"backfill"}


def test_prepare_refuses_a_backfill() -> None:
    with DAG("mine", start_date=datetime(2026, 1, 1, tzinfo=UTC)) as mine:
        ReplicationTaskGroup("group", source_conn_id="a", destination=Postgres("b"), tables=["public.orders"])
    with pytest.raises(AirflowFailException, match="A backfill replicates nothing"):
        mine.task_dict["group.prepare"].execute({"dag_run": SimpleNamespace(run_type="backfill")})


def test_a_group_s_retries_give_way_to_those_of_its_dag() -> None:
    given = {"source_conn_id": "a", "destination": Postgres("b"), "tables": ["public.orders"]}
    start = datetime(2026, 1, 1, tzinfo=UTC)
    with DAG("mine", start_date=start, default_args={"retries": 0, "owner": "sales"}) as mine:
        ReplicationTaskGroup("plain", **given)
        ReplicationTaskGroup("own", default_args={"retries": 5}, **given)
    plain, own = mine.task_dict["plain.apply"], mine.task_dict["own.apply"]
    assert (plain.retries, plain.owner, plain.retry_delay) == (0, "sales", timedelta(seconds=15))
    assert (own.retries, own.owner) == (5, "sales")
    with DAG("other", start_date=start) as other:
        ReplicationTaskGroup("plain", **given)
        with TaskGroup("outer", default_args={"retries": 1}):
            ReplicationTaskGroup("inner", **given)
    assert other.task_dict["plain.apply"].retries == 3
    assert other.task_dict["outer.inner.apply"].retries == 1


def test_a_bounded_dag_has_the_schedule_that_it_is_given() -> None:
    assert shop(until="caught_up").schedule is None
    assert shop(until="caught_up", schedule=timedelta(minutes=15)).schedule == timedelta(minutes=15)
    assert shop(default_args={"retries": 7}).task_dict["prepare"].retries == 7


@pytest.mark.parametrize("until", [None, "caught_up"])
def test_prepare_knows_the_tasks_of_each_table_to_pass_them_over(until: str | None) -> None:
    tasks = shop(until=until).task_dict["prepare"].table_tasks
    assert tasks == {TableName("public", "orders"): [f"public__orders.{one}" for one in STATIONS]}


def test_the_stream_goes_before_everything_else() -> None:
    """The scheduler takes tasks by their weight; by default one weighs as much as all that is downstream of it."""
    dag = shop(tables=["public.orders", "sales.items"], default_args={"pool": "replication"})
    serialized = DagSerialization.from_dict(DagSerialization.to_dict(dag))

    def weight(task_id: str) -> int:
        task = serialized.task_dict[task_id]
        return int(task.weight_rule.get_weight(SimpleNamespace(task=task)))

    others = {task_id for task_id in dag.task_dict if task_id not in ("prepare", "apply")}
    assert weight("apply") == weight("prepare") > 1000 * max(map(weight, others))
    assert dag.task_dict["apply"].pool == "replication"


def test_a_group_in_a_dag_of_ones_own() -> None:
    with DAG("mine", start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        group = ReplicationTaskGroup(
            "replication", source_conn_id="a", destination=Postgres("b"), tables=["public.orders"], pipeline_id="mine"
        )
    task = dag.task_dict["replication.public__orders.data_sync"]
    assert task.before == ("replication.prepare", "replication.public__orders.init")
    assert task.upstream_task_ids == {"replication.public__orders.init"}
    assert [leaf.task_id for leaf in group.get_leaves()] == ["replication.caught_up"]
    assert group.replication.spec.id == "mine"


def test_the_tasks_of_a_table_are_found_by_its_name() -> None:
    dag = shop(tables=["public.orders", 'public."Weird ""Name"'])
    assert dag["public.orders"].ready.task_id == "public__orders.ready"
    assert [getattr(dag["public.orders"], one).task_id for one in STATIONS] == [f"public__orders.{o}" for o in STATIONS]
    assert dag["public.orders"].asset == replica_asset("shop", "public.orders")
    assert dag['public."Weird ""Name"'].table == TableName("public", 'Weird "Name')
    assert (dag["apply"].task_id, dag["public__orders.ready"].task_id) == ("apply", "public__orders.ready")
    with pytest.raises(KeyError, match=r"no table, task or group public\.order in shop"):
        dag["public.order"]
    with DAG("mine", start_date=datetime(2026, 1, 1, tzinfo=UTC)) as mine:
        group = ReplicationTaskGroup(
            "replication", source_conn_id="a", destination=Postgres("b"), tables=["public.orders"]
        )
        group["public.orders"].ready >> EmptyOperator(task_id="report")
    assert mine.task_dict["report"].upstream_task_ids == {"replication.public__orders.ready"}
    with pytest.raises(KeyError, match=r"no table public\.order in replication; did you mean .*public\.orders"):
        group["public.order"]
    assert "report" in DagSerialization.from_dict(DagSerialization.to_dict(mine)).task_dict


def test_a_lake_whose_changes_land_has_a_task_that_merges_them() -> None:
    lands = {"destination": DeltaLake("/lake", options={"merge": "spark"})}
    bounded = shop(until="caught_up", **lands)
    assert bounded.task_dict["merge"].upstream_task_ids == {"apply"}
    assert bounded.task_dict["merge"].outlets == [bounded.task_dict["apply"].alias], "who merges has the news"
    assert bounded.task_dict["apply"].outlets == []
    assert "merge" not in shop(**lands).task_dict
    assert "merge" not in shop(until="caught_up", destination=DeltaLake("/lake")).task_dict
    with DAG("mine", start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        ReplicationTaskGroup("lake", source_conn_id="a", tables=["public.orders"], pipeline_id="mine", **lands)
    assert "lake.merge" in dag.task_dict["lake.caught_up"].upstream_task_ids


def test_beside_a_dag_that_streams_on_a_merge_is_scheduled_by_itself() -> None:
    streaming = shop(destination=DeltaLake("/lake", options={"merge": "spark"}))
    with DAG("merges", schedule="*/30 * * * *") as dag:
        MergeOperator(task_id="merge", replication=streaming.replication)
    text = json.dumps(DagSerialization.to_dict(dag))
    assert '"pipeline_id": "shop"' in text
    assert copy.deepcopy(dag).task_dict["merge"].replication == streaming.replication


def test_every_name_gets_an_id_of_its_own() -> None:
    plain = group_id(TableName("public", "order_items"))
    assert plain == "public__order_items"
    awkward = [
        ("public", "Orders"),
        ("public", "orders"),
        ("a__b", "c"),
        ("a", "b__c"),
        ("s", "ä"),
        ("s", "ö"),
        ("s", "a.b"),
    ]
    ids = [group_id(TableName(*name)) for name in awkward]
    assert len(set(ids)) == len(ids)
    dag = shop(tables=['public."Weird ""Name"', "public.orders", 'public."Orders"'])
    assert len(dag.task_dict) == 2 + 3 * 5


def test_patterns_are_refused_with_the_reason() -> None:
    with pytest.raises(Misdeclared, match="pattern"):
        shop(tables=["public.*"])


def test_an_id_too_long_for_a_slot_is_shortened_and_may_be_given() -> None:
    assert shop(dag_id="a_dag_with_quite_a_long_name").replication.spec.id == "a_dag_with_quite_1238f9"
    with pytest.raises(Misdeclared, match="24"):
        shop(pipeline_id="a_pipeline_with_quite_a_long_name")
    assert shop(dag_id="a_dag_with_quite_a_long_name", pipeline_id="short").replication.spec.id == "short"
    assert shop(dag_id="My-Shop.v2").replication.spec.id == "my_shop_v2"


def test_it_can_be_serialised_and_says_nothing_of_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", "postgresql://u:hush-hush@h/d")
    dag = shop(tables=[Table("public.orders", columns=["id"])], copying=Copying(table_workers=4))
    text = json.dumps(DagSerialization.to_dict(dag))
    assert "public__orders.data_sync" in text
    [apply] = [task["__var"] for task in json.loads(text)["dag"]["tasks"] if task["__var"]["task_id"] == "apply"]
    assert apply["pipeline_id"] == "shop", "by which the replication page finds it"
    assert "hush" not in text


def test_connections_may_be_templates_and_what_is_replicated_may_not() -> None:
    dag = shop(source_conn_id="{{ var.value.where }}_shop", spark_conn_id="{{ var.value.spark }}")
    task = dag.task_dict["public__orders.data_sync"]
    task.render_template_fields({"var": {"value": {"where": "test", "spark": "there"}}})
    assert task.replication.connections.source == task.replication.connections.state == "test_shop"
    assert (task.replication.connections.destination, task.replication.spark_conn_id) == ("replica_db", "there")
    with pytest.raises(Misdeclared):
        shop(pipeline_id="{{ var.value.where }}")


def test_how_a_run_ends_is_checked_when_it_is_declared() -> None:
    with pytest.raises(Misdeclared, match=r'until: it must be None or "caught_up"; did you mean "caught_up"\?'):
        shop(until="caughtup")
    with pytest.raises(Misdeclared, match=r"rotate_after: it must be None, text or a timedelta, not a whole number"):
        shop(rotate_after=3600)
    with pytest.raises(Misdeclared, match=r"rotate_after: it must be longer than nothing"):
        shop(rotate_after=timedelta())
    with pytest.raises(Misdeclared, match=r"rotate_after: it must not be negative"):
        shop(rotate_after=timedelta(seconds=-1))
    with pytest.raises(Misdeclared, match=r'rotate_after: "1d" cannot be read: write a number and one of'):
        shop(rotate_after="1d")


@pytest.mark.parametrize("given", ["12h", timedelta(hours=12)])
def test_durations_are_text_or_timedeltas_wherever_they_are_declared(given: str | timedelta) -> None:
    dag = shop(rotate_after=given, streaming=Streaming(min_interval=given, grace=given, outage=given))
    apply = dag.task_dict["apply"]
    assert apply.rotate_after == 12 * 3600
    assert apply.replication.spec.stream.min_interval == 12 * 3600
    (watcher,) = replica_changes("shop", "public.orders", state_conn_id="state", at_most_every=given).watchers
    assert watcher.trigger.serialize()[1]["at_most_every"] == 12 * 3600


def test_there_is_no_task_that_merges_what_does_not_land() -> None:
    with pytest.raises(Misdeclared, match=r"do not land to be merged.*options=\{\"merge\": \"spark\"\}"):
        MergeOperator(task_id="merge", replication=shop().replication)


def test_a_dag_or_group_is_not_taken_for_its_declaration() -> None:
    lands = {"destination": DeltaLake("/lake", options={"merge": "spark"})}
    with DAG("mine", start_date=datetime(2026, 1, 1, tzinfo=UTC)):
        group = ReplicationTaskGroup("lake", source_conn_id="a", tables=["public.orders"], **lands)
        for given, kind in ((shop(**lands), "ReplicationDag"), (group, "ReplicationTaskGroup")):
            words = rf"replication: it must be a declaration, not a {kind}\. Pass its `\.replication`\."
            with pytest.raises(Misdeclared, match=words):
                MergeOperator(task_id="merge", replication=given)
        with pytest.raises(Misdeclared, match=r"it must be a declaration, not text\. Correct the declaration"):
            MergeOperator(task_id="merge", replication="shop")


def test_tasks_name_the_tables_that_they_read() -> None:
    dag = shop(tables=["public.orders", "sales.items"])
    orders, items = (source_asset("shop_db", TableName(*name)) for name in (("public", "orders"), ("sales", "items")))
    assert dag.task_dict["apply"].inlets == [orders, items]
    assert dag.task_dict["sales__items.data_sync"].inlets == [items]
    assert items.uri == "pgetl-source://shop_db/sales/items"


PARSE = """
import sys, time
from airflow.sdk import DAG, Asset, AssetAlias, BaseHook, BaseOperator, BaseOperatorLink, TaskGroup
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk.bases.sensor import BaseSensorOperator
from airflow.providers.standard.operators.empty import EmptyOperator
DAG("warm").task_group, Asset("warm://asset")
before = set(sys.modules)
start = time.process_time()
from airflow_provider_pgetl import CheckOperator, DestroyOperator, Postgres, ReplicationDag, ResyncOperator
tables = [f"public.t{n}" for n in range(200)]
big = ReplicationDag("big", source_conn_id="a", destination=Postgres("b"), tables=tables)
with DAG("chores"):
    for operator in (CheckOperator, DestroyOperator, ResyncOperator):
        operator(task_id=operator.__name__, replication=big.replication)
spent = time.process_time() - start
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(spent, *sorted(new & {"psycopg", "pyspark", "sqlalchemy", "pyarrow", "numpy", "alembic", "py4j"}))
"""


def test_parsing_two_hundred_tables_takes_under_a_second_and_imports_no_driver() -> None:
    said = subprocess.run([sys.executable, "-c", PARSE], capture_output=True, text=True, check=True).stdout
    spent, *imported = said.splitlines()[-1].split()
    assert imported == []
    assert float(spent) < 1.0


def test_the_surface_is_lazy_and_complete() -> None:
    program = (
        "import sys, airflow_provider_pgetl as p\n"
        "assert 'airflow' not in sys.modules\n"
        "for name in p.__all__: getattr(p, name)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
