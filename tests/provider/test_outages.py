"""Servers that are out of reach for a while: tasks wait without a worker slot, and for no longer than is declared."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred

from airflow_provider_pgetl import DeltaLake, LagSensor, MergeOperator, PhaseSensor, Postgres, ReplicationDag, Streaming
from airflow_provider_pgetl.completion_records import run_of
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.pipeline import Pipeline
from airflow_provider_pgetl.operators.data_sync import DataSyncOperator
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from airflow_provider_pgetl.triggers.pgetl import ApplyTrigger, OutageTrigger
from tests.provider.running import MiniAirflow, TaskInstance, executed, first, first_stored, pipeline_of

NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"
pytestmark = pytest.mark.parametrize("source_server", [16], indirect=True)


def shop(**streaming: Any) -> ReplicationDag:
    return ReplicationDag(
        "shop",
        source_conn_id="shop_db",
        tables=["public.orders"],
        destination=Postgres("replica_db"),
        streaming=Streaming(**streaming),
    )


def prepared(dag: ReplicationDag) -> Pipeline:
    pipeline = pipeline_of(dag.replication)
    pipeline.prepare()
    return pipeline


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["SHOP_DB", "REPLICA_DB"])
def test_prepare_waits_for_a_server_and_goes_on_when_it_is_there(
    small_shop: Databases, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    there = os.environ[f"AIRFLOW_CONN_{lost}"]
    monkeypatch.setenv(f"AIRFLOW_CONN_{lost}", NOWHERE)
    with MiniAirflow(shop()) as airflow:
        running = airflow.start("prepare")
        time.sleep(12.0)
        assert not running.done()
        monkeypatch.setenv(f"AIRFLOW_CONN_{lost}", there)
        ran = running.result(60).must_succeed()
    assert {type(trigger) for trigger in ran.deferrals} == {OutageTrigger}


@pytest.mark.parametrize("step", ["init", "data_sync", "finished_copy", "sync_done", "ready"])
def test_a_table_s_task_waits_and_not_for_longer_than_is_declared(
    small_shop: Databases, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    dag = shop(outage=timedelta(minutes=10))
    prepared(dag).close()
    task_id = f"public__orders.{step}"
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", NOWHERE)
    waiting = executed(dag, task_id)
    assert isinstance(waiting, TaskDeferred)
    assert isinstance(waiting.trigger, OutageTrigger)
    assert waiting.trigger.until == pytest.approx(time.time() + 600, abs=30)
    assert waiting.timeout is None
    assert waiting.kwargs is not None

    again = executed(dag, task_id, waiting.method_name, event={"reachable": True}, **waiting.kwargs)
    assert isinstance(again, TaskDeferred), "it was reachable only for a moment"
    assert again.trigger.pause > waiting.trigger.pause
    assert again.trigger.until == waiting.trigger.until

    begun = {**waiting.kwargs, "since": time.time() - 601}
    outlasted = executed(dag, task_id, waiting.method_name, event={"reachable": False}, **begun)
    assert isinstance(outlasted, AirflowFailException)
    assert "No connection to the source" in str(outlasted)
    assert "It has been so for 10 min 01 s, longer than `outage`" in str(outlasted)


def test_an_apply_whose_stream_has_ended_waits_to_conclude(
    small_shop: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag = shop(outage=timedelta(minutes=10))
    prepared(dag).close()
    there, event = os.environ["AIRFLOW_CONN_SHOP_DB"], {"status": "rotated", "rotate_at": 1.0, "told": []}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", NOWHERE)
    waiting = executed(dag, "apply", "execute_complete", event=event)
    assert isinstance(waiting, TaskDeferred)
    assert isinstance(waiting.trigger, OutageTrigger)
    assert waiting.kwargs is not None
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", there)
    assert executed(dag, "apply", waiting.method_name, event={"reachable": True}, **waiting.kwargs) == "rotated"
    with closing(prepared(dag)) as pipeline:
        assert "apply" in pipeline.store.completions(run_of({"run_id": "r", "ti": TaskInstance("shop", "apply")}))


def test_a_retry_that_was_due_is_made_once_though_an_outage_follows_it(
    small_shop: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag, task = shop(), "public__orders.data_sync"
    prepared(dag).close()
    there = os.environ["AIRFLOW_CONN_SHOP_DB"]
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", NOWHERE)
    before = executed(dag, task, "resume", event={"due": True})
    assert isinstance(before, TaskDeferred)
    assert before.kwargs is not None
    assert before.kwargs["arguments"] == {"event": {"due": True}}

    def is_cut_off(*_: object) -> None:
        raise PgetlError(ErrorKind.CONNECTION, "No connection to the source.")

    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", there)
    monkeypatch.setattr(DataSyncOperator, "_bring_on", is_cut_off)
    behind = executed(dag, task, "resume", event={"due": True})
    assert isinstance(behind, TaskDeferred)
    assert behind.kwargs is not None
    assert behind.kwargs["arguments"] == {"event": {}}


def test_a_merge_waits(small_shop: Databases, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lake = DeltaLake(str(tmp_path), options={"merge": "spark"})
    dag = ReplicationDag("shop", source_conn_id="shop_db", tables=["public.orders"], destination=lake)
    merge = MergeOperator(task_id="another_merge", replication=dag.replication, dag=dag)
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", NOWHERE)
    waiting = executed(dag, merge.task_id)
    assert isinstance(waiting, TaskDeferred)
    assert isinstance(waiting.trigger, OutageTrigger)


def test_what_a_person_must_settle_is_not_waited_for(small_shop: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", small_shop.source.uri.replace("postgresql://", "postgresql://x", 1))
    assert isinstance(executed(shop(), "prepare"), AirflowFailException)


@pytest.mark.parametrize(
    "sensor",
    [
        lambda: PhaseSensor(task_id="wait", pipeline="shop", table="public.orders", state_conn_id="shop_db"),
        lambda: LagSensor(task_id="wait", pipeline="shop", max_lag="10s", state_conn_id="shop_db"),
    ],
)
def test_sensors_of_other_dags_wait(
    small_shop: Databases, monkeypatch: pytest.MonkeyPatch, sensor: Callable[[], Any]
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", NOWHERE)
    with pytest.raises(TaskDeferred):
        sensor().execute({})


# -- the trigger ------------------------------------------------------------------------------------------------------


def outage(**options: Any) -> OutageTrigger:
    return OutageTrigger("shop", shop().replication.connections.as_json(), pause=0.2, **options)


def test_it_fires_when_all_servers_take_connections(small_shop: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    there = os.environ["AIRFLOW_CONN_REPLICA_DB"]
    monkeypatch.setenv("AIRFLOW_CONN_REPLICA_DB", NOWHERE)

    async def scenario() -> Any:
        task = asyncio.create_task(first_stored(outage()))
        await asyncio.sleep(2.0)
        assert not task.done()
        monkeypatch.setenv("AIRFLOW_CONN_REPLICA_DB", there)
        return await asyncio.wait_for(task, 30)

    assert asyncio.run(scenario(), debug=True) == {"reachable": True}


def test_what_a_person_must_settle_ends_the_wait(small_shop: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task is to say it."""
    monkeypatch.setenv("AIRFLOW_CONN_REPLICA_DB", small_shop.destination.uri.replace("/destination", "/nothing"))
    event = asyncio.run(asyncio.wait_for(first_stored(outage(until=time.time() + 5.0)), 30))
    assert event == {"reachable": True}


def test_it_fires_when_its_time_is_up(small_shop: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", NOWHERE)
    event = asyncio.run(asyncio.wait_for(first_stored(outage(until=time.time() + 1.0)), 30))
    assert event == {"reachable": False}


# -- apply ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [pytest.param("SHOP_DB", marks=pytest.mark.slow), "REPLICA_DB"])
def test_apply_stays_deferred_and_streams_when_the_server_is_there(
    small_shop: Databases, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    dag = shop()
    there = os.environ[f"AIRFLOW_CONN_{lost}"]

    async def scenario(pipeline: Pipeline) -> None:
        monkeypatch.setenv(f"AIRFLOW_CONN_{lost}", NOWHERE)
        task = asyncio.create_task(first(ApplyTrigger(dag.replication.as_json())))
        try:
            await asyncio.sleep(10.0)
            assert not task.done()
            monkeypatch.setenv(f"AIRFLOW_CONN_{lost}", there)
            give_up_at = time.monotonic() + 60
            while await asyncio.to_thread(pipeline.store.lag) is None:
                assert not task.done()
                assert time.monotonic() < give_up_at
                await asyncio.sleep(0.5)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    with closing(prepared(dag)) as pipeline:
        asyncio.run(scenario(pipeline), debug=True)


def test_apply_ends_when_an_outage_lasts_too_long(small_shop: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    dag = shop(outage="1s")
    prepared(dag).close()
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", NOWHERE)
    event = asyncio.run(asyncio.wait_for(first(ApplyTrigger(dag.replication.as_json())), 60))
    assert (event["status"], event["kind"]) == ("failed", "store")
    assert "It has been so for" in event["message"]
