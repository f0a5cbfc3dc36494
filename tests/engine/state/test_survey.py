"""What a person is shown of a pipeline."""

from __future__ import annotations

import pytest

from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.phases import Init, TableState
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.state.opening import open_store
from airflow_provider_pgetl.engine.state.protocol import DestinationMetadata
from airflow_provider_pgetl.engine.state.survey import survey
from airflow_provider_pgetl.engine.tables import TableName
from tests.postgres_servers import Database

ORDERS, NOTES, COPY = TableName("public", "orders"), TableName("public", "notes"), TableName("sales", "orders")


def test_a_database_that_knows_of_nothing_stays_as_it_is(state_database: Database) -> None:
    assert survey(state_database.uri, "shop") is None
    assert state_database.execute("select count(*) from pg_namespace where nspname = 'pgetl'") == [(0,)]


def test_it_tells_of_the_pipeline_s_tables_alone(state_database: Database) -> None:
    other, store = open_store(state_database.uri, "other"), open_store(state_database.uri, "shop")
    other.register(TableName("public", "theirs"), 1, None)
    store.register(ORDERS, 2, None)
    store.register(NOTES, 3, None)
    store.store_destination_metadata(ORDERS, DestinationMetadata(COPY, Boundary(1), details={"rows": 7}))
    store.acquire_lease("me", 60.0)
    store.record_lag(100, 2.5)
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
    assert 0 <= orders.age < 60


def test_a_server_that_is_not_there_is_an_error_that_names_it() -> None:
    with pytest.raises(PgetlError, match=r"127\.0\.0\.1") as caught:
        survey("postgresql://me:hush@127.0.0.1:1/d", "shop")
    assert "hush" not in str(caught.value)
