"""Waiting on the store in an event loop that is shared with everybody else."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import ref

import pytest
from airflow.triggers.base import BaseTrigger

from airflow_provider_pgetl.engine.model.phases import CopyFinished, CopyStarted, DataSync, Phase, TableState
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.monitoring.snapshots import PipelineSnapshot
from airflow_provider_pgetl.engine.monitoring.watching import StateWatcher
from airflow_provider_pgetl.engine.state.store import Store, open_store
from airflow_provider_pgetl.testing.servers.postgres_servers import Database
from airflow_provider_pgetl.triggers.pgetl import AdmissionTrigger, LagTrigger, PhaseTrigger, StreamTrigger
from airflow_provider_pgetl.triggers.waiting import Silence, watcher
from tests.provider.conftest import AskedAirflow
from tests.provider.running import first_stored
from tests.waiting import until_in_loop

TABLES = [TableName("public", f"t{number:03}") for number in range(100)]
CONNECTIONS = "select count(*) from pg_stat_activity where application_name = 'pgetl shop watcher' and datname = %s"


@pytest.fixture
def store(state: Database) -> Iterator[Store]:
    store = open_store(state.uri, "shop")
    for number, table in enumerate(TABLES):
        store.register(table, number + 1, None)
    yield store
    store.close()


def waiting(table: TableName, *phases: str, until: float | None = None) -> PhaseTrigger:
    return PhaseTrigger("shop", "state", [table.schema, table.name], list(phases), until)


async def held_watcher() -> ref[StateWatcher]:
    """That of a trigger that has begun: before, nobody holds one."""
    give_up_at = time.monotonic() + 60
    while time.monotonic() < give_up_at:
        found = ref(await watcher("state", "shop"))
        if found() is not None:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError("no trigger has begun")


def test_a_hundred_waits_cost_one_connection_and_hardly_any_time(store: Store, state: Database) -> None:
    async def scenario() -> tuple[int, float, list[Any]]:
        tasks = [asyncio.create_task(first_stored(waiting(table, "FinishedCopy", "Errored"))) for table in TABLES]
        await until_in_loop(lambda: state.execute(CONNECTIONS, [state.name])[0][0])
        await asyncio.sleep(1.0)
        connections = state.execute(CONNECTIONS, [state.name])[0][0]
        began = time.process_time()
        await asyncio.sleep(2.0)
        spent = (time.process_time() - began) / 2.0
        await asyncio.to_thread(finish, store)
        events = await asyncio.wait_for(asyncio.gather(*tasks), 60)
        await until_in_loop(lambda: state.execute(CONNECTIONS, [state.name]) == [(0,)])
        return connections, spent, events

    connections, spent, events = asyncio.run(scenario(), debug=True)
    assert connections == 1
    assert spent < 0.1
    assert events == [{"phase": "FinishedCopy"}] * len(TABLES)


def finish(store: Store) -> None:
    store.apply({table: CopyStarted(1, 1) for table in TABLES})
    store.apply({table: CopyFinished(1, 1, Boundary.parse("0/1000")) for table in TABLES})


def test_a_table_that_is_not_there_is_not_waited_for(store: Store) -> None:
    assert asyncio.run(first_stored(waiting(TableName("public", "gone"), "Ready"))) == {"phase": None}


def test_a_wait_with_an_end_ends_at_it(store: Store) -> None:
    until = time.time() + 1.0
    event = asyncio.run(first_stored(waiting(TABLES[0], "Ready", until=until)))
    assert event == {"phase": None, "due": True}
    assert time.time() >= until


def test_a_pipeline_that_has_never_run_is_waited_for(state: Database) -> None:
    async def scenario() -> Any:
        task = asyncio.create_task(first_stored(waiting(TABLES[0], "Init")))
        await asyncio.sleep(0.5)
        assert not task.done()
        store = await asyncio.to_thread(open_store, state.uri, "shop")
        store.register(TABLES[0], 1, None)
        store.close()
        return await asyncio.wait_for(task, 60)

    assert asyncio.run(scenario()) == {"phase": "Init"}


def test_a_broken_connection_is_replaced(store: Store, state: Database) -> None:
    async def scenario() -> Any:
        task = asyncio.create_task(first_stored(waiting(TABLES[0], "DataSync")))
        await asyncio.sleep(1.0)
        state.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'pgetl shop watcher'"
        )
        await asyncio.sleep(0.2)
        await asyncio.to_thread(store.apply, {TABLES[0]: CopyStarted(1, 1)})
        return await asyncio.wait_for(task, 60)

    assert asyncio.run(scenario()) == {"phase": "DataSync"}


def test_a_watch_goes_on_with_what_changes_after_its_first_look(store: Store, state: Database) -> None:
    def is_in(picture: PipelineSnapshot, phase: type[Phase]) -> bool:
        return isinstance(picture.states[TABLES[1]].phase, phase)

    async def scenario() -> Mapping[TableName, TableState]:
        watched = StateWatcher(state.uri, "shop")
        keep = asyncio.create_task(watched.wait(lambda picture: TABLES[0] not in picture.states))
        assert TABLES[0] in (await asyncio.wait_for(watched.wait(lambda _: True), 60)).states
        await asyncio.to_thread(store.apply, {TABLES[1]: CopyStarted(1, 1)})
        await asyncio.wait_for(watched.wait(lambda picture: is_in(picture, DataSync)), 60)
        await asyncio.to_thread(store.delete_table, TABLES[0])
        return (await asyncio.wait_for(keep, 60)).states

    states = asyncio.run(scenario())
    assert states == {table: record.state for table, record in store.tables().items()}
    assert TABLES[0] not in states


def test_an_error_that_nobody_has_foreseen_ends_every_wait(store: Store, state: Database) -> None:
    def puzzled(picture: PipelineSnapshot) -> bool:
        raise ZeroDivisionError

    async def scenario() -> None:
        watched = StateWatcher(state.uri, "shop")
        for conditions in ((lambda _: False, puzzled), (puzzled,)):
            waits = [asyncio.create_task(watched.wait(condition)) for condition in conditions]
            done, left = await asyncio.wait(waits, timeout=60)
            assert not left
            assert {type(one.exception()) for one in done} == {ZeroDivisionError}
        assert await asyncio.wait_for(watched.wait(lambda _: True), 60), "it watches again"

    asyncio.run(scenario())


def test_a_password_that_was_changed_is_forgotten_with_the_last_wait_of_its_time(
    store: Store, state: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        task = asyncio.create_task(first_stored(waiting(TABLES[0], "DataSync")))
        old = await held_watcher()
        monkeypatch.setenv("AIRFLOW_CONN_STATE", f"{state.uri}?keepalives_count=9")
        assert old() is not await watcher("state", "shop")
        await asyncio.to_thread(store.apply, {TABLES[0]: CopyStarted(1, 1)})
        assert await asyncio.wait_for(task, 60) == {"phase": "DataSync"}
        del task
        # The loop closes the generator of a trigger that has fired.
        await until_in_loop(lambda: gc.collect() is not None and old() is None)

    asyncio.run(scenario())


# -- while nobody streams ---------------------------------------------------------------------------------------------


def with_apply(trigger: type[BaseTrigger], *arguments: Any, grace: float = 0.5) -> BaseTrigger:
    """Of a run that has an `apply`."""
    table = [TABLES[0].schema, TABLES[0].name]
    return trigger("shop", "state", table, *arguments, run="shop/run_1", apply="apply", grace=grace)


def test_nothing_is_copied_while_the_pipeline_is_paused_and_the_log_says_why(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    trigger = AdmissionTrigger("shop", "state", [TABLES[0].schema, TABLES[0].name], 5)
    monkeypatch.setattr(trigger.log, "warning", said.append)
    store.set_paused(True)

    async def scenario() -> Any:
        task = asyncio.create_task(anext(trigger.run()))
        await asyncio.sleep(1.5)
        assert not task.done()
        assert said == ["The pipeline is paused; this task waits until it is resumed."]
        await asyncio.to_thread(store.set_paused, False)
        return (await asyncio.wait_for(task, 30)).payload

    assert asyncio.run(scenario()) == {"due": False}


WAITS = [(PhaseTrigger, ["Ready"]), (AdmissionTrigger, 0)]


@pytest.mark.parametrize(("trigger", "argument"), WAITS)
def test_a_wait_ends_when_nobody_streams_and_the_apply_of_its_run_has_ended(
    store: Store, asked_airflow: AskedAirflow, trigger: type[BaseTrigger], argument: Any
) -> None:
    asked_airflow.states = {"apply": "success"}
    event = asyncio.run(asyncio.wait_for(first_stored(with_apply(trigger, argument)), 60))
    assert event["unstreamed"] == "success"
    assert event["seconds"] >= 0.5


@pytest.mark.parametrize(("trigger", "argument"), WAITS)
def test_a_wait_goes_on_while_the_apply_of_its_run_is_to_come_or_another_run_has_one(
    store: Store, asked_airflow: AskedAirflow, trigger: type[BaseTrigger], argument: Any
) -> None:
    async def scenario() -> Any:
        asked_airflow.states = {"apply": "up_for_retry"}
        task = asyncio.create_task(first_stored(with_apply(trigger, argument)))
        await asyncio.sleep(5.0)
        assert not task.done()
        asked_airflow.alive_elsewhere = 1
        asked_airflow.states = {"apply": "success"}
        await asyncio.sleep(5.0)
        assert not task.done()
        asked_airflow.alive_elsewhere = 0
        return await asyncio.wait_for(task, 60)

    assert asyncio.run(scenario())["unstreamed"] == "success"


@pytest.mark.slow
def test_a_wait_goes_on_while_somebody_streams(store: Store, asked_airflow: AskedAirflow) -> None:
    """Whoever that is."""
    asked_airflow.states = {"apply": "failed"}

    async def scenario() -> Any:
        lease = store.acquire_lease("worker", 60.0)
        assert lease is not None
        task = asyncio.create_task(first_stored(with_apply(PhaseTrigger, ["Ready"], grace=6.0)))
        await asyncio.sleep(12.0)
        assert not task.done()
        await asyncio.to_thread(store.release_lease, lease.epoch)
        return await asyncio.wait_for(task, 60)

    assert asyncio.run(scenario())["unstreamed"] == "failed"


def test_a_wait_ends_also_where_the_state_cannot_be_read(
    state: Database, asked_airflow: AskedAirflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_airflow.states = {"apply": "failed"}
    monkeypatch.setenv("AIRFLOW_CONN_STATE", "postgresql://nobody@127.0.0.1:1/nothing")
    event = asyncio.run(asyncio.wait_for(first_stored(with_apply(PhaseTrigger, ["Ready"])), 60))
    assert event["unstreamed"] == "failed"


def test_an_apply_that_is_to_be_cleared_is_waited_for_until_its_time_is_up(asked_airflow: AskedAirflow) -> None:
    asked_airflow.states = {"apply": "success"}
    trigger = StreamTrigger("shop/run_1", "apply", time.time() + 1.0)
    assert asyncio.run(asyncio.wait_for(first_stored(trigger), 30)) == {"streamed": False}

    async def scenario() -> Any:
        task = asyncio.create_task(first_stored(StreamTrigger("shop/run_1", "apply", time.time() + 60.0)))
        await asyncio.sleep(3.0)
        assert not task.done()
        asked_airflow.states = {"apply": None}
        return await asyncio.wait_for(task, 30)

    assert asyncio.run(scenario()) == {"streamed": True}


def test_a_silence_is_asked_about_for_each_grace_and_told_once_a_minute() -> None:
    silence = Silence(180.0, 0.0)
    assert [now for now in range(0, 400, 2) if silence.is_to_be_asked(now)] == [180, 360]
    assert [now for now in range(0, 200, 2) if silence.is_to_be_told(now)] == [60, 120, 180]
    silence.end(500.0)
    assert not silence.is_to_be_asked(679.0)
    assert silence.is_to_be_asked(680.0)


# -- turns ------------------------------------------------------------------------------------------------------------


def admission(table: TableName, capacity: int = 1) -> AdmissionTrigger:
    return AdmissionTrigger("shop", "state", [table.schema, table.name], capacity)


def test_while_all_room_is_taken_nobody_comes_back_and_then_one_does_first(store: Store) -> None:
    async def scenario() -> None:
        attempt = store.start_attempt(60.0)
        store.apply({table: CopyStarted(1, attempt) for table in TABLES[2:]})
        tasks = [asyncio.create_task(first_stored(admission(table))) for table in TABLES[:3]]
        await asyncio.sleep(1.0)
        assert not any(task.done() for task in tasks)
        await asyncio.to_thread(store.apply, {t: CopyFinished(1, attempt, Boundary.parse("0/9")) for t in TABLES[2:]})
        await asyncio.to_thread(store.end_attempt, attempt)
        # The third was copied by another; for the others the group that catches up takes the capacity.
        await asyncio.wait_for(tasks[2], 60)
        await asyncio.sleep(0.5)
        assert [task.done() for task in tasks] == [False, False, True]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(scenario())


def test_room_that_is_left_unused_is_offered_to_the_next(store: Store) -> None:
    async def scenario() -> list[TableName]:
        came: list[TableName] = []
        for table in TABLES[:2]:
            asyncio.create_task(first_stored(admission(table))).add_done_callback(
                lambda _, table=table: came.append(table)
            )
        await until_in_loop(lambda: came)
        assert came == [TABLES[0]], "the next one waits a moment"
        await until_in_loop(lambda: len(came) == 2)
        return came

    assert asyncio.run(scenario()) == list(TABLES[:2])


# -- lag --------------------------------------------------------------------------------------------------------------


def test_a_lag_is_within_its_limit_only_while_somebody_streams(store: Store) -> None:
    async def scenario() -> Any:
        task = asyncio.create_task(first_stored(LagTrigger("shop", "state", 1000, None)))
        await asyncio.to_thread(store.record_lag, 10, 0.1)
        await asyncio.sleep(1.0)
        assert not task.done()
        await asyncio.to_thread(store.acquire_lease, "worker", 60.0)
        return await asyncio.wait_for(task, 60)

    assert asyncio.run(scenario()) == {"within": True}
