"""The supervisor of the streaming worker, with the real worker as its child."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_provider_pgetl.connections import environment
from airflow_provider_pgetl.declarations import Postgres, Replication, declare
from airflow_provider_pgetl.engine.config.jobs import MODULE, Ending, Order
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.phases import Failed
from airflow_provider_pgetl.engine.model.reports import nobody
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.monitoring.watching import StateWatcher
from airflow_provider_pgetl.engine.pipeline import Pipeline
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from airflow_provider_pgetl.triggers import child, supervisor, supervisor_decisions
from airflow_provider_pgetl.triggers import child as processes
from airflow_provider_pgetl.triggers.child import Child
from airflow_provider_pgetl.triggers.pgetl import ApplyTrigger
from airflow_provider_pgetl.triggers.supervisor import Supervision
from airflow_provider_pgetl.triggers.waiting import watcher
from tests.provider.conftest import AskedAirflow
from tests.provider.running import Lines, TaskInstance, first, pipeline_of
from tests.waiting import until_in_loop

pytestmark = pytest.mark.parametrize("source_server", [16], indirect=True)


@pytest.fixture
def replication(small_shop: Databases) -> Replication:
    """Prepared; nothing copied."""
    declared = declare("shop", source_conn_id="shop_db", tables=["public.orders"], destination=Postgres("replica_db"))
    with closing(pipeline_of(declared)) as pipeline:
        pipeline.prepare()
    return declared


def children() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if MODULE in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


@asynccontextmanager
async def running(trigger: ApplyTrigger) -> AsyncIterator[asyncio.Task[Any]]:
    task = asyncio.create_task(first(trigger))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def streamed(databases: Databases) -> bool:
    query = "select expires > now() from pgetl.pipelines"
    return bool((databases.source.execute(query) or [(False,)])[0][0])


def test_a_killed_child_is_replaced_and_cancelling_leaves_none(replication: Replication, small_shop: Databases) -> None:
    async def scenario() -> None:
        async with running(ApplyTrigger(replication.as_json())) as task:
            await until_in_loop(lambda: streamed(small_shop))
            (child,) = children()
            child.send_signal(signal.SIGKILL)
            await until_in_loop(lambda: [one.pid for one in children()] not in ([], [child.pid]))
            assert not task.done()
        assert children() == []

    asyncio.run(scenario(), debug=True)
    assert len(small_shop.source.execute("select 1 from pg_replication_slots where slot_name like 'pgetl_shop%'")) == 1


def test_a_rotated_stream_goes_on_until_the_next_trigger_stands_ready(
    replication: Replication, small_shop: Databases
) -> None:
    async def scenario() -> None:
        async with running(ApplyTrigger(replication.as_json(), rotate_at=time.time() + 3.0)) as task:
            await until_in_loop(lambda: streamed(small_shop))
            (first,) = children()
            assert await asyncio.wait_for(task, 120) == {"status": "rotated"}
        assert children() == [first]
        async with running(ApplyTrigger(replication.as_json())):
            await until_in_loop(
                lambda: [one.pid for one in children()] not in ([], [first.pid]) and len(children()) == 1
            )
            await until_in_loop(lambda: streamed(small_shop))
        assert children() == []

    began = time.monotonic()
    asyncio.run(scenario(), debug=True)
    assert time.monotonic() - began < child.LONGEST_SECONDS


def test_a_rotated_stream_that_nobody_takes_over_ends(
    replication: Replication, small_shop: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "LONGEST_SECONDS", 1.0)

    async def scenario() -> None:
        async with running(ApplyTrigger(replication.as_json(), rotate_at=time.time() + 3.0)) as task:
            assert await asyncio.wait_for(task, 120) == {"status": "rotated"}
        await until_in_loop(lambda: children() == [], 20)
        assert not streamed(small_shop)

    asyncio.run(scenario(), debug=True)


def test_a_rotated_stream_goes_on_while_its_task_waits_for_a_worker(
    replication: Replication, small_shop: Databases, asked_airflow: AskedAirflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does for as long as its DAG is paused."""
    monkeypatch.setattr(child, "LONGEST_SECONDS", 1.0)
    monkeypatch.setattr(child, "_LOOK_SECONDS", 0.3)
    trigger = ApplyTrigger(replication.as_json(), rotate_at=time.time() + 3.0, run="shop/run_1")
    trigger.task_instance = TaskInstance("shop", "apply")  # type: ignore[assignment]

    async def scenario() -> None:
        asked_airflow.states["apply"] = "scheduled"
        async with running(trigger) as task:
            assert await asyncio.wait_for(task, 120) == {"status": "rotated"}
        await asyncio.sleep(4.0)
        assert len(children()) == 1
        assert streamed(small_shop)
        asked_airflow.states["apply"] = "success"
        await until_in_loop(lambda: children() == [], 20)

    asyncio.run(scenario(), debug=True)


def test_a_paused_stream_lets_go_of_its_slot_keeps_its_lease_and_goes_on_when_it_is_resumed(
    replication: Replication, small_shop: Databases
) -> None:
    def slot_is_read() -> bool:
        query = "select active from pg_replication_slots where slot_name like 'pgetl_shop%'"
        return small_shop.source.execute(query) == [(True,)]

    def tell(verb: Callable[[Pipeline], object]) -> None:
        with closing(pipeline_of(replication)) as it:
            verb(it)

    async def scenario() -> None:
        async with running(ApplyTrigger(replication.as_json())) as task:
            await until_in_loop(slot_is_read)
            (child,) = children()
            await asyncio.to_thread(tell, Pipeline.pause)
            assert not slot_is_read(), "when it returns, nothing is streamed"
            await asyncio.sleep(2.0)
            assert streamed(small_shop)
            assert not slot_is_read()
            await asyncio.to_thread(tell, Pipeline.resume)
            await until_in_loop(slot_is_read, 10)

            def change_of_mind(pipeline: Pipeline) -> None:
                for _ in range(5):
                    pipeline.store.set_paused(True)
                    time.sleep(0.2)
                    pipeline.store.set_paused(False)

            await asyncio.to_thread(tell, change_of_mind)
            await asyncio.sleep(1.0)
            await until_in_loop(slot_is_read, 10)
            assert not task.done()
            assert children() == [child], "it is the same worker all the time"

    asyncio.run(scenario(), debug=True)


def test_it_does_not_rotate_while_a_table_of_the_run_is_on_its_way(
    replication: Replication, small_shop: Databases
) -> None:
    (table,) = replication.tables
    copiers = [supervisor_decisions.Copier(table, "public__orders.data_sync", ("prepare",)).as_json()]
    trigger = ApplyTrigger(replication.as_json(), rotate_at=time.time() + 1.0, run="shop/run_1", copiers=copiers)

    def give_up() -> None:
        with closing(pipeline_of(replication)) as it:
            it.store.apply({table: Failed(it.store.tables()[table].state.generation, "It cannot be copied.")})

    async def scenario() -> Any:
        async with running(trigger) as task:
            await until_in_loop(lambda: streamed(small_shop))
            await asyncio.sleep(2.0)
            assert not task.done()
            await asyncio.to_thread(give_up)
            event = await asyncio.wait_for(task, 120)
        child.relieve(("shop_db", "shop"))
        await until_in_loop(lambda: children() == [], 20)
        return event

    assert asyncio.run(scenario(), debug=True) == {"status": "rotated"}


def test_a_child_that_dies_with_its_order_on_its_lips_tells_no_secret(
    replication: Replication, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stand_in.py").write_text("import sys\nsys.exit(f'unforeseen: {sys.stdin.readline()}')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(processes, "MODULE", "stand_in")

    async def scenario() -> str:
        supervision = Supervision(ApplyTrigger(replication.as_json()))
        _, last_words = await supervision._run_child(await supervision._order())
        return last_words

    last_words = asyncio.run(scenario())
    assert "unforeseen: " in last_words
    assert "not%20a%20secret" not in last_words
    assert "***" in last_words


def test_no_secret_is_in_its_serialised_form_nor_in_any_argument(
    replication: Replication, small_shop: Databases
) -> None:
    password = "not%20a%20secret"
    trigger = ApplyTrigger(replication.as_json(), run="shop/run_1", copiers=[])
    text = json.dumps(trigger.serialize())
    assert password not in text
    assert "not a secret" not in text

    async def scenario() -> None:
        async with running(trigger):
            await until_in_loop(lambda: streamed(small_shop))
            (child,) = children()
            assert not any("secret" in word for word in child.cmdline())
            assert not any(name.startswith("PGETL_") for name in child.environ())

    asyncio.run(scenario(), debug=True)


def test_a_connection_of_the_wrong_type_is_an_end_with_a_remedy(
    replication: Replication, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_REPLICA_DB", "mysql://h/d")
    event = asyncio.run(first(ApplyTrigger(replication.as_json())))
    assert (event["status"], event["kind"]) == ("failed", "config")
    assert "mysql" in event["message"]


def test_a_connection_that_is_gone_when_its_password_is_refused_is_such_an_end(
    replication: Replication, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(supervision: Supervision, order: Order) -> tuple[Ending, str]:
        monkeypatch.delenv("AIRFLOW_CONN_REPLICA_DB")
        return Ending("authentication", "The password is wrong."), ""

    monkeypatch.setattr(Supervision, "_run_child", refused)
    event = asyncio.run(first(ApplyTrigger(replication.as_json())))
    assert (event["status"], event["kind"]) == ("failed", "config")
    assert "no Airflow connection 'replica_db'" in event["message"]


# -- leases of others -------------------------------------------------------------------------------------------------


def test_a_lease_that_another_holds_is_waited_for(replication: Replication, small_shop: Databases) -> None:
    pipeline = pipeline_of(replication)
    held = pipeline.store.acquire_lease("elsewhere/0/0/4711/1", 3600.0)
    assert held is not None
    lines = Lines()

    async def scenario() -> None:
        trigger = ApplyTrigger(replication.as_json())
        trigger._log = lines
        async with running(trigger) as task:
            await until_in_loop(lambda: lines.has("process 4711 on elsewhere"))
            assert not task.done()
            await asyncio.to_thread(pipeline.store.release_lease, held.epoch)
            await until_in_loop(lambda: (lease := pipeline.store.lease()) is not None and lease.epoch > held.epoch)
            assert not task.done()

    with closing(pipeline):
        asyncio.run(scenario(), debug=True)


def test_a_worker_that_another_has_fenced_ends_and_its_trigger_waits_for_the_other(
    replication: Replication, small_shop: Databases
) -> None:
    """The other may be of the same task, which must not be told that it has failed."""
    pipeline = pipeline_of(replication)
    lines = Lines()

    async def scenario() -> None:
        trigger = ApplyTrigger(replication.as_json())
        trigger._log = lines
        async with running(trigger) as task:
            await until_in_loop(lambda: streamed(small_shop))
            (child,) = children()
            await asyncio.to_thread(pipeline.store.raise_epoch)
            assert await asyncio.to_thread(pipeline.store.acquire_lease, "elsewhere/0/0/4711/1", 3600.0)
            await until_in_loop(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
            await until_in_loop(lambda: lines.has("process 4711 on elsewhere"))
            assert not task.done()
            assert lines.has("was fenced and is started again")

    with closing(pipeline):
        asyncio.run(scenario(), debug=True)


def test_a_worker_whose_supervisor_stands_still_ends_and_lets_the_lease_go(
    replication: Replication, small_shop: Databases
) -> None:
    async def scenario() -> Ending | None:
        given = environment(replication.connections)
        child = await Child.start(Order(replication.spec, given, beat_seconds=6.0), nobody)
        try:
            await until_in_loop(lambda: streamed(small_shop))
            await asyncio.sleep(8.0)
            assert await asyncio.to_thread(streamed, small_shop), "it hears the beats"
            child._beats.cancel()
            return await asyncio.wait_for(child.ending(), 30)
        finally:
            child.kill()

    assert asyncio.run(scenario(), debug=True) == Ending(stopped=True, abandoned=True)
    assert not streamed(small_shop)


# -- tables that nobody is left to copy -------------------------------------------------------------------------------


@pytest.fixture
def catching_up(replication: Replication, monkeypatch: pytest.MonkeyPatch) -> ApplyTrigger:
    """Of a run whose `data_sync` has failed for good."""
    monkeypatch.setattr(supervisor, "_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(supervisor_decisions, "_FAILED_SECONDS", 0.0)
    states = {"run_1": {"data_sync": "failed"}}
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", lambda **_: states)
    copier = supervisor_decisions.Copier(replication.tables[0], "data_sync", ()).as_json()
    return ApplyTrigger(replication.as_json(), until_caught_up=True, run="shop/run_1", copiers=[copier])


def troubled(monkeypatch: pytest.MonkeyPatch, *troubles: Exception) -> None:
    """The state can be watched only after these."""
    left = list(troubles)

    async def watched(state_conn_id: str, pipeline: str) -> StateWatcher:
        if left:
            raise left.pop(0)
        return await watcher(state_conn_id, pipeline)

    monkeypatch.setattr(supervisor, "watcher", watched)


@pytest.mark.parametrize(
    "here",
    [
        TableName("public", "orders"),
        # Its trigger began after the edit: `apply` was retried, cleared, or told somebody of an Errored table.
        TableName("public", "items"),
    ],
)
def test_a_table_that_is_taken_out_of_the_dag_s_file_interrupts_the_stream(
    here: TableName, replication: Replication, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_EDIT_SECONDS", 0.2)
    task = "public__orders.data_sync"
    states: dict[str, dict[str, str]] = {"run_1": {task: "success"}}
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", lambda **_: states)
    copier = supervisor_decisions.Copier(here, f"public__{here.name}.data_sync", ()).as_json()
    trigger = ApplyTrigger(replication.as_json(), rotate_at=4e9, run="shop/run_1", copiers=[copier])

    async def scenario() -> Any:
        async with running(trigger) as task:
            await asyncio.sleep(1.0)
            assert not task.done()
            states["run_1"][task] = "removed"
            event = await asyncio.wait_for(task, 60)
        child.relieve(("shop_db", "shop"))
        await until_in_loop(lambda: children() == [], 20)
        return event

    assert asyncio.run(scenario()) == {"status": "edited", "rotate_at": 4e9}


def test_a_run_that_cannot_catch_up_ends_even_if_that_could_not_be_seen_atfirst(
    catching_up: ApplyTrigger, monkeypatch: pytest.MonkeyPatch
) -> None:
    troubled(monkeypatch, PgetlError(ErrorKind.CONFIG, "There is no Airflow connection 'shop_db'."))
    event = asyncio.run(asyncio.wait_for(first(catching_up), 120))
    assert event == {"status": "copy_needed", "tables": ["public.orders"]}


def test_a_look_that_fails_for_good_fails_the_task_and_leaves_no_child(
    catching_up: ApplyTrigger, monkeypatch: pytest.MonkeyPatch
) -> None:
    troubled(monkeypatch, ZeroDivisionError("unforeseen"))
    with pytest.raises(ZeroDivisionError, match="unforeseen"):
        asyncio.run(asyncio.wait_for(first(catching_up), 120))
    assert children() == []
