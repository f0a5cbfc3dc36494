"""What DAGs do to a pipeline now and then: look at it, have it copied again, take it down."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred
from airflow.sdk import DAG

from airflow_provider_pgetl import (
    CheckOperator,
    DestroyOperator,
    PauseOperator,
    Postgres,
    ReplicationDag,
    ResumeOperator,
    ResyncOperator,
    Table,
    VerifyOperator,
)
from airflow_provider_pgetl.connections import environment
from airflow_provider_pgetl.engine.config.validation import Misdeclared
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.pipeline import Pipeline
from airflow_provider_pgetl.engine.source.connecting import connect_replication
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from airflow_provider_pgetl.triggers import child
from airflow_provider_pgetl.triggers.pgetl import OutageTrigger
from tests.provider.running import MiniAirflow, Ran, pipeline_of
from tests.without_spark import LocalPipeline

NOWHERE = "postgresql://me:hunter2@127.0.0.1:1/nothing"
TABLES = ["public.customers", "public.orders"]
LEFT_OVER = "pgetl_sales_abc234_apply"
pytestmark = pytest.mark.parametrize("source_server", [16], indirect=True)


def shop(dag_id: str = "shop", **options: Any) -> ReplicationDag:
    given = {"tables": TABLES, "pipeline_id": "shop", **options}
    return ReplicationDag(dag_id, source_conn_id="shop_db", destination=Postgres("replica_db"), **given)


def prepare(dag: ReplicationDag) -> None:
    with MiniAirflow(dag) as airflow:
        airflow.run("prepare").must_succeed()


def run(operator: type, replicated: ReplicationDag, **options: Any) -> Ran:
    """One run of a DAG that consists of this task."""
    with DAG("chores", start_date=datetime(2026, 1, 1, tzinfo=UTC), schedule=None) as dag:
        operator(task_id="chore", replication=replicated.replication, **options)
    with MiniAirflow(dag) as airflow:
        return airflow.run("chore")


@contextmanager
def opened(dag: ReplicationDag) -> Iterator[Pipeline]:
    pipeline = pipeline_of(dag.replication)
    try:
        pipeline.store.load()
        yield pipeline
    finally:
        pipeline.close()


def generations(dag: ReplicationDag) -> dict[str, int]:
    with opened(dag) as pipeline:
        return {str(table): record.state.generation for table, record in pipeline.store.tables().items()}


def slots(databases: Databases) -> list[str]:
    query = "select slot_name::text from pg_replication_slots where database = current_database()"
    return [name for (name,) in databases.source.execute(query)]


def publications(databases: Databases) -> int:
    return len(databases.source.execute("select pubname from pg_publication"))


# -- check ------------------------------------------------------------------------------------------------------------


def test_check_answers_what_it_finds_and_names_slots_that_are_left_over(small_shop: Databases) -> None:
    dag = shop()
    prepare(dag)
    small_shop.source.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [LEFT_OVER])
    findings = run(CheckOperator, dag).must_succeed().value
    assert "error" not in {finding["severity"] for finding in findings}
    (found,) = [finding for finding in findings if finding["problem"].startswith("The slot ")]
    assert found["severity"] == "warning"
    assert found["problem"].startswith(f"The slot {LEFT_OVER} retains ")
    assert f"SELECT pg_drop_replication_slot('{LEFT_OVER}');" in found["remedy"]
    assert len(slots(small_shop)) == 2, "nothing was dropped"


def test_check_fails_with_what_stands_in_the_way_and_answers_it_all_the_same(small_shop: Databases) -> None:
    ran = run(CheckOperator, shop(tables=["public.orders", "public.custmers"]))
    assert isinstance(ran.error, AirflowFailException)
    assert "There is no table public.custmers in the source" in str(ran.error)
    assert "pgetl " not in str(ran.error)
    errors = [finding for finding in ran.pushed["return_value"] if finding["severity"] == "error"]
    assert [finding["table"] for finding in errors] == ["public.custmers"]


def test_check_does_not_wait_for_a_server_and_tells_no_secret(
    small_shop: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_REPLICA_DB", NOWHERE)
    ran = run(CheckOperator, shop())
    assert ran.deferrals == []
    assert "No connection to the destination" in str(ran.error)
    assert "hunter2" not in f"{ran.error} {ran.pushed}"


def test_what_keeps_it_from_looking_is_a_finding_too(small_shop: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state's server that is out of reach, and then a connection that Airflow does not have."""
    for value, problem in ((NOWHERE, "No connection to "), (None, "There is no Airflow connection 'shop_db'")):
        monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", value) if value else monkeypatch.delenv("AIRFLOW_CONN_SHOP_DB")
        ran = run(CheckOperator, shop())
        assert problem in str(ran.error)
        (finding,) = ran.pushed["return_value"]
        assert finding["severity"] == "error"
        assert finding["problem"].startswith(problem)
        assert "hunter2" not in f"{ran.error} {ran.pushed}"


def test_a_state_in_the_source_is_known_to_be_there(small_shop: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default, and where the source is named for it."""
    published = "create publication everything for all tables with (publish_via_partition_root = true)"
    small_shop.source.execute(published)
    monkeypatch.setenv("AIRFLOW_CONN_ELSEWHERE", small_shop.destination.uri)
    for state, warned in ((None, True), ("shop_db", True), ("elsewhere", False)):
        dag = shop(publication="everything", manage_publication=False, state_conn_id=state)
        problems = [finding["problem"] for finding in run(CheckOperator, dag).must_succeed().value]
        assert any("the pipeline's own state is among them" in problem for problem in problems) is warned
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", NOWHERE)
    assert "No connection to the source " in str(run(CheckOperator, shop()).error)


def test_findings_are_told_in_the_words_of_airflow(small_shop: Databases, capsys: pytest.CaptureFixture[str]) -> None:
    ran = run(CheckOperator, shop(manage_publication=False))
    logged = capsys.readouterr().out
    for said in (logged, str(ran.pushed), str(ran.error)):
        assert "let pgetl do so with `manage_publication=True`" in said


# -- resync -----------------------------------------------------------------------------------------------------------


def test_resync_has_the_tables_that_are_named_copied_again(small_shop: Databases) -> None:
    dag = shop()
    prepare(dag)
    before = generations(dag)
    assert run(ResyncOperator, dag, tables=["public.orders"]).must_succeed().value == ["public.orders"]
    named = generations(dag)
    assert named["public.orders"] > before["public.orders"]
    assert named["public.customers"] == before["public.customers"]
    assert run(ResyncOperator, dag).must_succeed().value == TABLES
    assert all(generation > named[table] for table, generation in generations(dag).items())


@pytest.mark.parametrize("tables", ["public.orders", [["public.orders"]], [None]])
def test_resync_refuses_what_names_no_table(small_shop: Databases, tables: Any) -> None:
    """As templates and XComs may come to."""
    with DAG("chores", start_date=datetime(2026, 1, 1, tzinfo=UTC), schedule=None) as dag:
        chore = ResyncOperator(task_id="chore", replication=shop().replication, tables=[])
    chore.tables = tables
    with MiniAirflow(dag) as airflow:
        ran = airflow.run("chore")
    assert isinstance(ran.error, AirflowFailException)
    assert "`tables` has come to" in str(ran.error)


def test_resync_of_no_table_says_so(small_shop: Databases, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(shop())
    before = generations(shop())
    assert run(ResyncOperator, shop(), tables=[]).must_succeed().value == []
    assert "No table is named, so none is copied again." in capsys.readouterr().out
    assert generations(shop()) == before


def test_resync_of_a_pipeline_without_tables_fails(small_shop: Databases) -> None:
    """It has not been prepared, or its state is elsewhere."""
    ran = run(ResyncOperator, shop())
    assert isinstance(ran.error, AirflowFailException)
    assert "Pipeline shop has no tables that could be copied again. It has none yet: `prepare` takes" in str(ran.error)


def test_resync_takes_no_table_back_where_one_is_not_the_pipeline_s(small_shop: Databases) -> None:
    dag = shop()
    prepare(dag)
    before = generations(dag)
    ran = run(ResyncOperator, dag, tables=["public.orders", "public.custmers"])
    assert isinstance(ran.error, AirflowFailException)
    assert 'has no table public.custmers; did you mean "public.customers"? Browse → Replication' in str(ran.error)
    assert generations(dag) == before


def test_a_paused_pipeline_copies_nothing_until_it_is_resumed(small_shop: Databases) -> None:
    dag = shop()
    prepare(dag)
    run(PauseOperator, dag).must_succeed()
    with opened(dag) as pipeline:
        with pipeline.admitted_copy(TableName("public", "orders")) as job:
            assert job is None
        assert pipeline.status().paused is not None
    assert "paused" in {finding["problem"].split()[-1].rstrip(".") for finding in run(CheckOperator, dag).value}
    assert run(ResumeOperator, dag).must_succeed().value is True
    assert run(ResumeOperator, dag).must_succeed().value is False
    with opened(dag) as pipeline, pipeline.admitted_copy(TableName("public", "orders")) as job:
        assert job is not None


def test_which_tables_may_be_a_template(airflow_connections: Databases) -> None:
    with DAG("chores", start_date=datetime(2026, 1, 1, tzinfo=UTC), schedule=None):
        chore = ResyncOperator(task_id="chore", replication=shop().replication, tables=["{{ params.table }}"])
        with pytest.raises(Misdeclared, match=r"tables: it must be a list, not text"):
            ResyncOperator(task_id="text", replication=shop().replication, tables="public.orders")
        with pytest.raises(Misdeclared, match=r"tables: it must be names, not Table"):
            ResyncOperator(task_id="spec", replication=shop().replication, tables=[Table("public.orders")])  # type: ignore[list-item]
    chore.render_template_fields({"params": {"table": "public.orders"}})  # type: ignore[typeddict-item]
    assert chore.tables == ["public.orders"]


@contextmanager
def streamed(databases: Databases, slot: str) -> Iterator[None]:
    """A session that streams from the slot."""
    pgconn = connect_replication(databases.source.uri, "pgetl test apply")
    options = "(proto_version '1', publication_names 'pgetl_shop')"
    assert pgconn.exec_(f"START_REPLICATION SLOT {slot} LOGICAL 0/0 {options}".encode()).status == 8
    yield
    pgconn.finish()


# -- both ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", [CheckOperator, PauseOperator, ResyncOperator, DestroyOperator])
def test_a_pipeline_of_another_owner_is_left_alone_until_it_is_adopted(small_shop: Databases, operator: type) -> None:
    owner = shop("stock")
    prepare(owner)
    before = generations(owner)
    ran = run(operator, shop())
    assert isinstance(ran.error, AirflowFailException)
    assert "Pipeline shop belongs to stock" in str(ran.error)
    assert 'declare `adopt="stock"` here' in str(ran.error)
    with opened(owner) as pipeline:
        assert pipeline.status().paused is None
    assert (generations(owner), len(slots(small_shop)), publications(small_shop)) == (before, 1, 2)
    run(operator, shop(adopt="stock")).must_succeed()
    assert slots(small_shop) == [] or operator is not DestroyOperator


@pytest.mark.parametrize("operator", [ResyncOperator, DestroyOperator, VerifyOperator])
def test_a_server_that_is_away_is_waited_for(
    airflow_connections: Databases, monkeypatch: pytest.MonkeyPatch, operator: type
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", NOWHERE)
    with DAG("chores", start_date=datetime(2026, 1, 1, tzinfo=UTC), schedule=None):
        chore = operator(task_id="chore", replication=shop().replication)
    with pytest.raises(TaskDeferred) as deferred:
        chore.execute({})
    assert isinstance(deferred.value.trigger, OutageTrigger)
    assert deferred.value.kwargs is not None
    assert deferred.value.kwargs["call"] == "execute"
    assert "hunter2" not in str(deferred.value.trigger.serialize())


# -- verify -----------------------------------------------------------------------------------------------------------


def caught_up(dag: ReplicationDag) -> None:
    prepare(dag)
    spec, known = dag.replication.spec, {**os.environ, **environment(dag.replication.connections)}
    with closing(LocalPipeline(spec, environment=known)) as pipeline, pytest.MonkeyPatch.context() as patch:
        for name, value in known.items():
            patch.setenv(name, value)
        pipeline.run(until_caught_up=True, stop=threading.Event())


def test_verify_answers_what_is_equal_and_fails_where_rows_differ(
    small_shop: Databases, capsys: pytest.CaptureFixture[str]
) -> None:
    dag = shop()
    caught_up(dag)
    found = run(VerifyOperator, dag).must_succeed().value
    assert found["equal"]
    assert [(table["table"], table["verdict"], table["rows"]) for table in found["tables"]] == [
        ("public.customers", "equal", 200),
        ("public.orders", "equal", 2000),
    ]
    small_shop.destination.execute("update customers set name = 'of nobody' where id = 17")
    ran = run(VerifyOperator, dag, tables=["public.customers"], repair=True)
    assert isinstance(ran.error, AirflowFailException)
    assert "public.customers: DIFFERENT (1 changed) up to" in str(ran.error)
    assert ran.pushed["return_value"]["repaired"] == ["public.customers"]
    said = f"{ran.error} {ran.pushed} {capsys.readouterr().out}"
    assert "17: name" in said
    assert "of nobody" not in said, "values are for those who ask for them"
    ran = run(VerifyOperator, dag, sample=0.5)
    assert "public.customers was not compared: it is Init, and not Ready." in str(ran.error)
    assert "pgetl " not in str(ran.error)


@pytest.mark.parametrize("wrong", [{"sample": 0}, {"sample": 1.5}, {"rate": 0}, {"tables": "public.orders"}])
def test_verify_refuses_what_means_nothing(airflow_connections: Databases, wrong: dict[str, Any]) -> None:
    with DAG("chores", start_date=datetime(2026, 1, 1, tzinfo=UTC), schedule=None), pytest.raises(Misdeclared):
        VerifyOperator(task_id="chore", replication=shop().replication, **wrong)


# -- destroy ----------------------------------------------------------------------------------------------------------


def test_destroy_leaves_nothing_but_the_destination_s_data(small_shop: Databases) -> None:
    """And may be done again, by a retry or a Clear."""
    dag = shop()
    prepare(dag)
    small_shop.destination.execute("create table orders (id int); insert into orders values (1)")
    (slot,) = slots(small_shop)
    removed = run(DestroyOperator, dag).must_succeed().value
    assert {f"Slot {slot}.", "Publication pgetl_shop.", "The state of pipeline shop."} <= set(removed)
    assert (slots(small_shop), publications(small_shop)) == ([], 0)
    assert small_shop.source.execute("select to_regclass('pgetl.pipelines')") == [(None,)]
    assert small_shop.destination.execute("select id from orders") == [(1,)]
    assert run(DestroyOperator, dag).must_succeed().value == []


def test_destroy_refuses_a_pipeline_that_is_streamed(small_shop: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "OVER_SECONDS", 1.0)
    dag = shop()
    prepare(dag)
    with opened(dag) as pipeline:
        assert pipeline.store.acquire_lease("another worker", 60.0) is not None
        ran = run(DestroyOperator, dag)
    assert isinstance(ran.error, AirflowFailException)
    assert str(ran.error).startswith(
        "Pipeline shop is being streamed by another worker. Pause its DAG and mark `apply` as failed first."
    )
    assert len(slots(small_shop)) == 1


def test_destroy_waits_for_a_stream_that_ends_by_itself(
    small_shop: Databases, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker that a rotation has left streams on for half a minute."""
    prepare(shop())
    with opened(shop()) as pipeline:
        held = pipeline.store.acquire_lease("another worker", 60.0)
        assert held is not None
        ends = threading.Timer(4.0, pipeline.store.release_lease, (held.epoch,))
        ends.start()
        ran = run(DestroyOperator, shop())
        ends.join()
    ran.must_succeed()
    said = capsys.readouterr().out
    assert said.count("Pipeline shop is being streamed by another worker. That is waited for, for 40 s.") == 1


def elsewhere(databases: Databases, monkeypatch: pytest.MonkeyPatch, dag_id: str = "shop") -> ReplicationDag:
    """The same pipeline, by a declaration that names another database for its state."""
    monkeypatch.setenv("AIRFLOW_CONN_ELSEWHERE", databases.destination.uri)
    return shop(dag_id, state_conn_id="elsewhere")


@pytest.mark.parametrize("looked_before", [False, True])
def test_destroy_takes_nothing_from_a_pipeline_whose_state_is_elsewhere(
    small_shop: Databases, monkeypatch: pytest.MonkeyPatch, looked_before: bool
) -> None:
    prepare(shop())
    (slot,) = slots(small_shop)
    mistaken = elsewhere(small_shop, monkeypatch, "stock")
    if looked_before:  # which makes a state there
        run(CheckOperator, mistaken)
    with streamed(small_shop, slot) if looked_before else nullcontext():
        ran = run(DestroyOperator, mistaken)
    assert isinstance(ran.error, AirflowFailException)
    assert f"The slot {slot} at the source is of pipeline shop" in str(ran.error)
    assert "Point `state_conn_id` at the connection of the database that has it" in str(ran.error)
    assert small_shop.destination.execute("select pipeline from pgetl.destination_fence") == [("shop",)]
    assert (len(slots(small_shop)), publications(small_shop)) == (1, 2)


def test_destroy_tells_of_a_slot_that_an_earlier_state_has_left(
    small_shop: Databases, capsys: pytest.CaptureFixture[str]
) -> None:
    dag = shop()
    prepare(dag)
    small_shop.source.execute("select pg_create_logical_replication_slot('pgetl_shop_abc234_apply', 'pgoutput')")
    run(DestroyOperator, dag).must_succeed()
    assert slots(small_shop) == ["pgetl_shop_abc234_apply"]
    assert "The slot pgetl_shop_abc234_apply stays" in capsys.readouterr().out


def test_destroy_does_not_say_that_nothing_is_left_where_it_could_not_look(
    small_shop: Databases, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(shop())
    monkeypatch.setenv("AIRFLOW_CONN_REPLICA_DB", NOWHERE)
    for _ in range(2):
        run(DestroyOperator, shop()).must_succeed()
    said = capsys.readouterr().out
    assert said.count("The destination still remembers the pipeline") == 2
    assert "Nothing is left" not in said
    assert "hunter2" not in said
