"""What a person is shown of a pipeline."""

from __future__ import annotations

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
from airflow_provider_pgetl.engine.monitoring.snapshots import TableDescription, describe
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
