"""What a page displays of a pipeline and of a table, as it is read from the state database."""

from __future__ import annotations

from contextlib import closing

import pytest

from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.phases import CopyStarted, Init, TableState, phase_name
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.results import RESOLUTIONS, Measurement
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.model.verification import Difference, TableVerified
from airflow_provider_pgetl.engine.monitoring.surveys import TableHistory, survey, survey_history
from airflow_provider_pgetl.engine.state.store import DestinationMetadata, open_store
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


def test_its_history_is_read_in_the_resolution_that_is_asked_for(state_database: Database) -> None:
    store = open_store(state_database.uri, "shop")
    store.record_measurement(Measurement(10, 0.5, changes=7, memory_bytes=99))
    found = [survey(state_database.uri, "shop", resolution) for resolution in RESOLUTIONS]
    for each, resolution in zip(found, RESOLUTIONS, strict=True):
        assert each is not None
        (measured,) = each.measured
        assert (measured.lag_seconds, measured.changes, measured.memory_bytes) == (0.5, 7, 99)
        assert each.now <= measured.at <= each.now + resolution.seconds
    store.close()


def test_a_state_of_an_earlier_version_has_no_history(state_database: Database) -> None:
    with closing(open_store(state_database.uri, "shop")) as store:
        store.register(ORDERS, 2, None)
    state_database.execute("drop table pgetl.measurements, pgetl.verifications; alter table pgetl.tables drop inserts")
    found = survey(state_database.uri, "shop")
    assert found is not None
    assert found.measured == ()
    assert [one.verified for one in found.tables] == [None]
    assert survey_history(state_database.uri, "shop", ORDERS).verifications == ()


def test_what_was_verified_last_is_told_of_each_table_without_its_rows(state_database: Database) -> None:
    with closing(open_store(state_database.uri, "shop")) as store:
        for table in (ORDERS, NOTES):
            store.register(table, 2, None)
        row = Difference("missing", {"id": "secret"})
        first = TableVerified(ORDERS, "different", Boundary(5), 100.0, rows=10, missing=1, differences=(row,))
        store.record_verified([first])
        store.record_verified([TableVerified(ORDERS, "equal", Boundary(9), 200.0, rows=11)])
    found = survey(state_database.uri, "shop")
    assert found is not None
    notes, orders = found.tables
    assert notes.verified is None
    assert orders.verified is not None
    assert (orders.verified.verdict, orders.verified.position, orders.verified.rows) == ("equal", Boundary(9), 11)
    history = survey_history(state_database.uri, "shop", ORDERS).verifications
    assert [(one.verdict, one.missing, one.differences) for one in history] == [("different", 1, ()), ("equal", 0, ())]


def test_a_table_s_past_is_told_in_order(state_database: Database) -> None:
    store = open_store(state_database.uri, "shop")
    assert survey_history(state_database.uri, "shop", ORDERS) == TableHistory()
    store.register(ORDERS, 2, None)
    attempt = store.start_attempt(60.0)
    store.apply({ORDERS: CopyStarted(store.tables()[ORDERS].state.generation, attempt)})
    store.store_schema(ORDERS, Boundary(5), schema_of(ORDERS))
    found = survey_history(state_database.uri, "shop", ORDERS)
    store.close()
    assert [phase_name(entry.phase) for entry in found.phases] == ["Init", "DataSync"]
    init, copying = found.phases
    assert init.lasted == pytest.approx(copying.at - init.at)
    assert copying.attempt == attempt
    assert [at for at, _ in found.versions] == [Boundary(5)]
