"""What a person is shown of a pipeline."""

from __future__ import annotations

import pytest

from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.phases import (
    CameNear,
    CaughtUp,
    CopyFinished,
    CopyStarted,
    Init,
    TableState,
    TakenOver,
    TargetChosen,
)
from airflow_provider_pgetl.engine.model.positions import Boundary, HighWater
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.monitoring.snapshots import TableDescription, describe, survey
from airflow_provider_pgetl.engine.state.store import (
    APPLY_CEILING,
    DestinationMetadata,
    FoundTable,
    Registration,
    open_store,
)
from airflow_provider_pgetl.testing.servers.postgres_servers import Database
from tests.engine.state.samples import schema_of

ORDERS, NOTES, COPY = TableName("public", "orders"), TableName("public", "notes"), TableName("sales", "orders")


def test_a_database_that_knows_of_nothing_stays_as_it_is(state_database: Database) -> None:
    assert survey(state_database.uri, "shop") is None
    assert state_database.execute("select count(*) from pg_namespace where nspname = 'pgetl'") == [(0,)]


def test_it_tells_of_the_pipeline_s_tables_alone(state_database: Database) -> None:
    other, store = open_store(state_database.uri, "other"), open_store(state_database.uri, "shop")
    other.register(TableName("public", "theirs"), 1, None)
    store.register(ORDERS, 2, None)
    store.register(NOTES, 3, None)
    store.store_places({ORDERS: DestinationMetadata(COPY, Boundary(1), details={"rows": 7})})
    store.acquire_lease("me", 60.0)
    store.record_lag(100, 2.5)
    store.set_paused(True)
    state_database.execute("update pgetl.history set at = at - interval '1 hour' where table_name = 'orders'")
    found = survey(state_database.uri, "shop")
    store.close()
    other.close()

    assert found is not None
    assert found.streamed
    assert found.lag is not None
    assert (found.lag.bytes, found.lag.seconds) == (100, 2.5)
    assert [each.table for each in found.tables] == [NOTES, ORDERS]
    notes, orders = found.tables
    assert (notes.destination, notes.rows) == (None, None)
    assert (orders.destination, orders.rows, orders.state) == (COPY, 7, TableState(Init()))
    assert 0 <= notes.age < 60
    assert 3600 <= orders.age < 3660
    assert found.paused
    assert found.instances.keys() == {"other", "shop"}


def test_a_server_that_is_not_there_is_an_error_that_names_it() -> None:
    with pytest.raises(PgetlError, match=r"127\.0\.0\.1") as caught:
        survey("postgresql://me:hush@127.0.0.1:1/d", "shop")
    assert "hush" not in str(caught.value)


def test_single_tables_are_described_as_they_were_last_copied(state_database: Database) -> None:
    assert describe(state_database.uri, "shop", [ORDERS], 5) == {}
    store = open_store(state_database.uri, "shop")
    assert describe(state_database.uri, "shop", [ORDERS], 5) == {}, "there is no such table"
    store.register_all({table: Registration(1, None) for table in (ORDERS, NOTES)})
    known = describe(state_database.uri, "shop", [ORDERS], 5)
    assert known == {ORDERS: TableDescription(TableState(Init()))}, (
        "nothing is known of it, and nobody asked for the other"
    )

    earlier, later = schema_of(ORDERS, "id"), schema_of(ORDERS, "id", "mood")
    place = DestinationMetadata(COPY, Boundary(0x20), details={"rows": 7, "bytes": 8192})
    attempt = store.start_attempt(60.0)
    store.apply({ORDERS: CopyStarted(1, attempt)})
    store.begin_copies({ORDERS: FoundTable(1, None, Boundary(0x20), earlier, place)})
    store.store_schema(ORDERS, Boundary(0x100), later)
    store.apply({ORDERS: CopyFinished(1, attempt, Boundary(0x20))})
    found = describe(state_database.uri, "shop", [ORDERS], 5)[ORDERS]
    assert (found.schema, found.position, found.rows, found.bytes) == (later, Boundary(0x20), 7, 8192)

    end = Boundary(0x40)
    for event in (CameNear(1, Boundary(0x30)), TargetChosen(1, end), CaughtUp(1, end, end), TakenOver(1, end)):
        store.apply({ORDERS: event})
    store.raise_high_water({ORDERS: HighWater(attempt - 1, Boundary(0x999))})
    assert describe(state_database.uri, "shop", [ORDERS], 5)[ORDERS].position == Boundary(0x20)
    store.raise_high_water({ORDERS: HighWater(attempt, Boundary(0x50))})
    assert describe(state_database.uri, "shop", [ORDERS], 5)[ORDERS].position == Boundary(0x50)
    store.record_progress(APPLY_CEILING, Boundary(0x60))
    found = describe(state_database.uri, "shop", [ORDERS], 5)[ORDERS]
    assert (found.state, found.position) == (store.tables()[ORDERS].state, Boundary(0x60))
    store.close()
