"""Events out of the stream: a watched replica's asset is updated when its table has changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import AssetWatcher

from airflow_provider_pgetl import replica_asset, replica_changes
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.phases import (
    CameNear,
    CaughtUp,
    CopyFinished,
    CopyStarted,
    Event,
    Failed,
    TakenOver,
    TargetChosen,
)
from airflow_provider_pgetl.engine.model.positions import Boundary, Counted, HighWater, RowCounts
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.monitoring.watching import ReplicaChange, change_of, record_announced
from airflow_provider_pgetl.engine.state.decisions import CEILING
from airflow_provider_pgetl.engine.state.store import Store, open_store
from airflow_provider_pgetl.testing.builders import sample_schema
from airflow_provider_pgetl.testing.servers.postgres_servers import Database
from airflow_provider_pgetl.triggers.pgetl import ChangesTrigger

ORDERS = TableName("public", "orders")
COPIED = Boundary.parse("0/1000")


@pytest.fixture
def store(state: Database) -> Iterator[Store]:
    """Where the table has been copied, and is Ready."""
    store = open_store(state.uri, "shop")
    store.register(ORDERS, 1, None)
    to_ready: list[Event] = [
        CopyStarted(1, 1),
        CopyFinished(1, 1, COPIED),
        CameNear(1, COPIED, 1),
        TargetChosen(1, COPIED, 1),
        CaughtUp(1, COPIED, COPIED, 1),
        TakenOver(1, COPIED),
    ]
    for event in to_ready:
        store.apply({ORDERS: event})
    stream_to(store, "0/1000")
    yield store
    store.close()


def stream_to(store: Store, position: str, changed: str | None = None) -> None:
    """As a worker notes it. `changed`: where the last change of the table ended, if there was another."""
    store.raise_high_water({ORDERS: HighWater(1, Boundary.parse(changed or position))})
    store.record_progress(CEILING, Boundary.parse(position))


class Watching:
    """A trigger as the triggerer has it, and the positions that it has announced."""

    def __init__(self, at_most_every: float = 0.1) -> None:
        _, kwargs = ChangesTrigger("shop", "state", [ORDERS.schema, ORDERS.name], at_most_every).serialize()
        self._events: AsyncIterator[Any] = ChangesTrigger(**kwargs).run()
        self.payloads: list[dict[str, Any]] = []
        self._task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for event in self._events:
            self.payloads.append(event.payload)

    @property
    def positions(self) -> list[str]:
        return [payload["position"] for payload in self.payloads]

    async def until(self, *positions: str) -> None:
        give_up_at = time.monotonic() + 60
        while self.positions != [*positions]:
            assert time.monotonic() < give_up_at, self.positions
            assert not self._task.done(), self._task.exception()
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChangesTrigger, "least_seconds", 0.0)


@pytest.mark.servers
def test_each_change_is_announced_once_with_its_position(store: Store) -> None:
    async def scenario() -> list[dict[str, Any]]:
        watching = Watching()
        await watching.until("0/1000")
        await asyncio.to_thread(stream_to, store, "0/2000")
        await watching.until("0/1000", "0/2000")
        await asyncio.to_thread(stream_to, store, "0/3000", "0/2000")  # others have changed
        await asyncio.sleep(6.0)
        await watching.stop()
        return watching.payloads

    payloads = asyncio.run(scenario())
    assert [one["position"] for one in payloads] == ["0/1000", "0/2000"]
    assert payloads[0] == {
        "pipeline": "shop", "table": "public.orders", "position": "0/1000", "generation": 1, "schema_from": None,
        "committed": None, "rows": None,
    }  # fmt: skip


@pytest.mark.servers
def test_a_version_that_is_only_known_so_far_is_not_the_one_that_the_replica_has(store: Store) -> None:
    for start in ("0/800", "0/1800", "0/2000", "0/2800"):
        store.store_schema(ORDERS, Boundary.parse(start), sample_schema())

    async def scenario() -> list[dict[str, Any]]:
        watching = Watching()
        await watching.until("0/1000")
        await asyncio.to_thread(stream_to, store, "0/2000")
        await watching.until("0/1000", "0/2000")
        await watching.stop()
        return watching.payloads

    assert [one["schema_from"] for one in asyncio.run(scenario())] == ["0/800", "0/1800"]


@pytest.mark.servers
def test_changes_within_the_time_are_one_event(store: Store) -> None:
    async def scenario() -> None:
        watching = Watching(at_most_every=4.0)
        await watching.until("0/1000")
        for number in range(2, 6):
            await asyncio.to_thread(stream_to, store, f"0/{number}000")
        await asyncio.sleep(2.0)
        assert watching.positions == ["0/1000"]
        await watching.until("0/1000", "0/5000")
        await watching.stop()

    asyncio.run(scenario())


@pytest.mark.servers
def test_a_triggerer_that_takes_over_repeats_nothing_and_misses_nothing(store: Store) -> None:
    async def scenario() -> None:
        first = Watching()
        await first.until("0/1000")
        await asyncio.sleep(1.0)
        await first.stop()
        second = Watching()
        await asyncio.sleep(2.0)
        assert second.positions == []
        await second.stop()
        await asyncio.to_thread(stream_to, store, "0/2000")
        third = Watching()
        await third.until("0/2000")
        await third.stop()

    asyncio.run(scenario())


@pytest.mark.servers
def test_what_a_run_has_announced_is_no_news_and_the_other_way_round(store: Store) -> None:
    store.record_announced("shop/run", {ORDERS: "1/0/1000"})

    async def scenario() -> None:
        watching = Watching()
        await asyncio.sleep(2.0)
        assert watching.positions == []
        await asyncio.to_thread(stream_to, store, "0/2000")
        await watching.until("0/2000")
        await asyncio.sleep(1.0)
        await watching.stop()

    asyncio.run(scenario())
    assert store.announced("another") == {ORDERS: "1/0/2000"}


def counted_to(store: Store, position: str, since: str, rows: RowCounts, commit_time: int | None = None) -> None:
    counted = Counted(Boundary.parse(since), Boundary.parse(position), rows, commit_time)
    store.raise_high_water({ORDERS: HighWater(1, counted.upto, counted)})


@pytest.mark.servers
def test_an_event_says_what_has_come_since_the_last_one_if_all_of_it_was_counted(store: Store, state: Database) -> None:

    def announced() -> ReplicaChange | None:
        change = asyncio.run(change_of(state.uri, "shop", ORDERS))
        if change is not None:
            asyncio.run(record_announced(state.uri, "shop", ORDERS, change, "asset watcher"))
        return change

    def rows() -> RowCounts | None:
        change = announced()
        assert change is not None
        return change.rows

    assert rows() is None, "the copy itself"
    counted_to(store, "0/2000", "0/1000", RowCounts(inserts=5))
    assert rows() is None, "the last announcement had no counts"
    counted_to(store, "0/3000", "0/1000", RowCounts(inserts=7, updates=1))
    counted_to(store, "0/4000", "0/1000", RowCounts(inserts=7, updates=1, truncates=1), commit_time=1_000_000)
    change = announced()
    assert change is not None
    assert change.rows == RowCounts(inserts=2, updates=1, truncates=1)
    assert change.committed == datetime(2000, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert announced() is None
    counted_to(store, "0/5000", "0/4800", RowCounts(deletes=1))
    assert rows() is None, "a worker has died in between"
    counted_to(store, "0/6000", "0/4800", RowCounts(deletes=3))
    assert rows() == RowCounts(deletes=2)
    store.record_announced("shop/run", {ORDERS: "1/0/6000"})
    counted_to(store, "0/7000", "0/4800", RowCounts(deletes=4))
    assert rows() is None, "a run has announced in between"


@pytest.mark.servers
def test_an_errored_table_is_no_news(store: Store) -> None:
    store.apply({ORDERS: Failed(1, "broken")})

    async def scenario() -> None:
        watching = Watching()
        await asyncio.to_thread(stream_to, store, "0/2000")
        await asyncio.sleep(6.0)
        assert watching.positions == []
        await watching.stop()

    asyncio.run(scenario())


@pytest.mark.servers
def test_a_state_that_goes_away_is_waited_for(store: Store, state: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a connection that is changed is looked up again."""
    monkeypatch.setattr("airflow_provider_pgetl.triggers.waiting._QUIET_SECONDS", 1.0)
    monkeypatch.setattr("airflow_provider_pgetl.triggers.waiting._PAUSE_SECONDS", 0.2)

    async def scenario() -> None:
        monkeypatch.setenv("AIRFLOW_CONN_STATE", state.uri.replace(state.name, "not_there"))
        watching = Watching()
        await asyncio.sleep(2.0)
        monkeypatch.setenv("AIRFLOW_CONN_STATE", state.uri)
        await asyncio.to_thread(stream_to, store, "0/2000")
        await watching.until("0/2000")
        await watching.stop()

    asyncio.run(scenario())


def test_the_asset_is_the_replica_s_with_a_watcher() -> None:
    asset = replica_changes("shop", "public.orders", state_conn_id="state", at_most_every=timedelta(minutes=5))
    assert asset.uri == replica_asset("shop", "public.orders").uri
    (watcher,) = asset.watchers
    assert isinstance(watcher, AssetWatcher)
    assert watcher.trigger.serialize() == (
        "airflow_provider_pgetl.triggers.pgetl.ChangesTrigger",
        {"pipeline": "shop", "state_conn_id": "state", "table": ["public", "orders"], "at_most_every": 300.0},
    )


def test_less_than_a_second_is_refused() -> None:
    with pytest.raises(PgetlError, match="at_most_every"):
        replica_changes("shop", "public.orders", state_conn_id="state", at_most_every=timedelta(0))
