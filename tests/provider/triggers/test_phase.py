"""Waiting on the store in an event loop that is shared with everybody else."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any
from weakref import ref

import pytest
from airflow.triggers.base import BaseTrigger

from airflow_provider_pgetl.engine.phases import CopyFinished, CopyStarted
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.state.opening import open_store
from airflow_provider_pgetl.engine.state.protocol import Store
from airflow_provider_pgetl.engine.state.watching import Picture, Watcher
from airflow_provider_pgetl.engine.tables import TableName
from airflow_provider_pgetl.triggers.lag import LagTrigger
from airflow_provider_pgetl.triggers.phase import PhaseTrigger
from airflow_provider_pgetl.triggers.turn import TurnTrigger
from airflow_provider_pgetl.triggers.watchers import watcher
from tests.conftest import PostgresServers
from tests.postgres_servers import Database

TABLES = [TableName("public", f"t{number:03}") for number in range(100)]
CONNECTIONS = "select count(*) from pg_stat_activity where application_name = 'pgetl shop watcher' and datname = %s"


@pytest.fixture
def state(postgres_servers: PostgresServers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    server = postgres_servers[16]
    database = server.create_database(f"waiting_{time.monotonic_ns()}")
    monkeypatch.setenv("AIRFLOW_CONN_STATE", database.uri)
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")
    yield database
    server.drop_database(database.name)


@pytest.fixture
def store(state: Database) -> Iterator[Store]:
    store = open_store(state.uri, "shop")
    for number, table in enumerate(TABLES):
        store.register(table, number + 1, None)
    yield store
    store.close()


def waiting(table: TableName, *phases: str, until: float | None = None) -> PhaseTrigger:
    return PhaseTrigger("shop", "state", [table.schema, table.name], list(phases), until)


async def first(trigger: BaseTrigger) -> Any:
    """Of the trigger as another process would have it."""
    _, kwargs = trigger.serialize()
    events: AsyncIterator[Any] = type(trigger)(**kwargs).run()
    async for event in events:
        return event.payload
    raise AssertionError("no event")


def test_a_hundred_waits_cost_one_connection_and_hardly_any_time(store: Store, state: Database) -> None:
    async def scenario() -> tuple[int, float, list[Any], int]:
        tasks = [asyncio.create_task(first(waiting(table, "FinishedCopy", "Errored"))) for table in TABLES]
        await asyncio.sleep(1.5)
        connections = state.execute(CONNECTIONS, [state.name])[0][0]
        began = time.process_time()
        await asyncio.sleep(5.0)
        spent = (time.process_time() - began) / 5.0
        await asyncio.to_thread(finish, store)
        events = await asyncio.wait_for(asyncio.gather(*tasks), 20)
        await asyncio.sleep(0.3)
        return connections, spent, events, state.execute(CONNECTIONS, [state.name])[0][0]

    connections, spent, events, left = asyncio.run(scenario(), debug=True)
    assert connections == 1
    assert spent < 0.02
    assert events == [{"phase": "FinishedCopy"}] * len(TABLES)
    assert left == 0


def finish(store: Store) -> None:
    store.apply({table: CopyStarted(1, 1) for table in TABLES})
    store.apply({table: CopyFinished(1, 1, Boundary.parse("0/1000")) for table in TABLES})


def test_a_table_that_is_not_there_is_not_waited_for(store: Store) -> None:
    assert asyncio.run(first(waiting(TableName("public", "gone"), "Ready"))) == {"phase": None}


def test_a_wait_with_an_end_ends_at_it(store: Store) -> None:
    began = time.monotonic()
    event = asyncio.run(first(waiting(TABLES[0], "Ready", until=time.time() + 1.0)))
    assert event == {"phase": None, "due": True}
    assert 0.8 < time.monotonic() - began < 5.0


def test_a_pipeline_that_has_never_run_is_waited_for(state: Database) -> None:
    async def scenario() -> Any:
        task = asyncio.create_task(first(waiting(TABLES[0], "Init")))
        await asyncio.sleep(0.5)
        assert not task.done()
        store = await asyncio.to_thread(open_store, state.uri, "shop")
        store.register(TABLES[0], 1, None)
        store.close()
        return await asyncio.wait_for(task, 15)

    assert asyncio.run(scenario()) == {"phase": "Init"}


def test_a_broken_connection_is_replaced(store: Store, state: Database) -> None:
    async def scenario() -> Any:
        task = asyncio.create_task(first(waiting(TABLES[0], "DataSync")))
        await asyncio.sleep(1.0)
        state.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'pgetl shop watcher'"
        )
        await asyncio.sleep(0.2)
        await asyncio.to_thread(store.apply, {TABLES[0]: CopyStarted(1, 1)})
        return await asyncio.wait_for(task, 15)

    assert asyncio.run(scenario()) == {"phase": "DataSync"}


def test_an_error_that_nobody_has_foreseen_ends_every_wait(store: Store, state: Database) -> None:
    def puzzled(picture: Picture) -> bool:
        raise ZeroDivisionError

    async def scenario() -> None:
        watched = Watcher(state.uri, "shop")
        for conditions in ((lambda _: False, puzzled), (puzzled,)):
            waits = [asyncio.create_task(watched.wait(condition)) for condition in conditions]
            done, left = await asyncio.wait(waits, timeout=10)
            assert not left
            assert {type(one.exception()) for one in done} == {ZeroDivisionError}
        assert await asyncio.wait_for(watched.wait(lambda _: True), 10), "it watches again"

    asyncio.run(scenario())


def test_a_password_that_was_changed_is_forgotten_with_the_last_wait_of_its_time(
    store: Store, state: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        task = asyncio.create_task(first(waiting(TABLES[0], "DataSync")))
        await asyncio.sleep(0.5)
        old = ref(await watcher("state", "shop"))
        assert old() is not None
        monkeypatch.setenv("AIRFLOW_CONN_STATE", f"{state.uri}?keepalives_count=9")
        assert old() is not await watcher("state", "shop")
        await asyncio.to_thread(store.apply, {TABLES[0]: CopyStarted(1, 1)})
        assert await asyncio.wait_for(task, 15) == {"phase": "DataSync"}
        del task
        await asyncio.sleep(0.1)  # the loop closes the generator of a trigger that has fired
        gc.collect()
        assert old() is None

    asyncio.run(scenario())


# -- turns ------------------------------------------------------------------------------------------------------------


def turn(table: TableName, room: int = 1) -> TurnTrigger:
    return TurnTrigger("shop", "state", [table.schema, table.name], room)


def test_while_all_room_is_taken_nobody_comes_back_and_then_one_does_first(store: Store) -> None:
    async def scenario() -> None:
        attempt = store.start_attempt(60.0)
        store.apply({table: CopyStarted(1, attempt) for table in TABLES[2:]})
        tasks = [asyncio.create_task(first(turn(table))) for table in TABLES[:3]]
        await asyncio.sleep(1.0)
        assert not any(task.done() for task in tasks)
        await asyncio.to_thread(store.apply, {t: CopyFinished(1, attempt, Boundary.parse("0/9")) for t in TABLES[2:]})
        await asyncio.to_thread(store.end_attempt, attempt)
        await asyncio.sleep(1.0)
        # The third was copied by another; for the others the group that catches up takes the room.
        assert [task.done() for task in tasks] == [False, False, True]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(scenario())


def test_room_that_is_left_unused_is_offered_to_the_next(store: Store) -> None:
    async def scenario() -> tuple[float, float]:
        began = time.monotonic()
        tasks = [asyncio.create_task(first(turn(table))) for table in TABLES[:2]]
        await asyncio.wait_for(tasks[0], 10)
        one = time.monotonic() - began
        await asyncio.wait_for(tasks[1], 15)
        return one, time.monotonic() - began

    one, two = asyncio.run(scenario())
    assert one < 2.5
    assert two - one > 2.0


# -- lag --------------------------------------------------------------------------------------------------------------


def test_a_lag_is_within_its_limit_only_while_somebody_streams(store: Store) -> None:
    async def scenario() -> Any:
        task = asyncio.create_task(first(LagTrigger("shop", "state", 1000, None)))
        await asyncio.to_thread(store.record_lag, 10, 0.1)
        await asyncio.sleep(1.0)
        assert not task.done()
        await asyncio.to_thread(store.acquire_lease, "worker", 60.0)
        return await asyncio.wait_for(task, 15)

    assert asyncio.run(scenario()) == {"within": True}
