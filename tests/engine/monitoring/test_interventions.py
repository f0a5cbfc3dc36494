"""What a person does to a pipeline by its state alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from airflow_provider_pgetl.engine.model.errors import ErrorKind
from airflow_provider_pgetl.engine.model.phases import CopyStarted, DataSync, Init
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.monitoring import interventions
from airflow_provider_pgetl.engine.state.store import Store, open_store
from airflow_provider_pgetl.testing.servers.postgres_servers import Database
from tests.raising import raises

ORDERS, NOTES = TableName("public", "orders"), TableName("public", "notes")


def anybody(owner: str | None) -> bool:
    del owner
    return True


@pytest.fixture
def store(state_database: Database) -> Iterator[Store]:
    with closing(open_store(state_database.uri, "shop")) as store:
        store.register(ORDERS, 2, None)
        store.register(NOTES, 3, None)
        yield store


def test_a_pipeline_is_paused_and_resumed(store: Store, state_database: Database) -> None:
    interventions.pause(state_database.uri, "shop", anybody)
    store.load()
    assert store.pipeline().paused is not None
    interventions.resume(state_database.uri, "shop", anybody)
    store.load()
    assert store.pipeline().paused is None


def test_a_table_is_copied_again_under_a_new_generation(store: Store, state_database: Database) -> None:
    store.apply({ORDERS: CopyStarted(1, store.start_attempt(60.0))})
    assert isinstance(store.tables()[ORDERS].state.phase, DataSync)
    before, others = store.tables()[ORDERS].state.generation, store.tables()[NOTES].state
    interventions.copy_again(state_database.uri, "shop", [ORDERS], anybody)
    store.load()
    state = store.tables()[ORDERS].state
    assert isinstance(state.phase, Init)
    assert state.generation > before
    assert store.tables()[NOTES].state == others


def test_where_nobody_streams_a_former_worker_is_fenced_off(store: Store, state_database: Database) -> None:
    epoch = store.pipeline().epoch
    interventions.copy_again(state_database.uri, "shop", [ORDERS], anybody)
    store.load()
    assert store.pipeline().epoch > epoch
    lease = store.acquire_lease("me", 60.0)
    assert lease is not None
    interventions.copy_again(state_database.uri, "shop", [NOTES], anybody)
    store.load()
    assert store.pipeline().epoch == lease.epoch, "who streams lets go of the table by itself"


def test_a_table_that_there_is_not_moves_no_other(store: Store, state_database: Database) -> None:
    before = store.tables()[ORDERS].state
    with raises(ErrorKind.USAGE, match="Pipeline shop has no table public.gone"):
        interventions.copy_again(state_database.uri, "shop", [ORDERS, TableName("public", "gone")], anybody)
    store.load()
    assert store.tables()[ORDERS].state == before


def test_the_pipeline_of_another_owner_is_left_alone(store: Store, state_database: Database) -> None:
    store.set_owner("theirs@there", instead_of=None)
    with raises(ErrorKind.OCCUPIED, match="belongs to theirs@there"):
        interventions.pause(state_database.uri, "shop", lambda owner: owner == "ours@here")
    store.load()
    assert store.pipeline().paused is None


def test_a_pipeline_that_never_ran_is_not_created(store: Store, state_database: Database) -> None:
    with raises(ErrorKind.USAGE, match="has not run yet"):
        interventions.pause(state_database.uri, "other", anybody)
    assert state_database.execute("select id from pgetl.pipelines") == [("shop",)]


def test_nor_are_the_tables_of_a_state(state_database: Database) -> None:
    with raises(ErrorKind.USAGE, match="has not run yet"):
        interventions.pause(state_database.uri, "shop", anybody)
    assert state_database.execute("select count(*) from pg_namespace where nspname = 'pgetl'") == [(0,)]


def test_a_state_of_another_release_is_not_touched(store: Store, state_database: Database) -> None:
    state_database.execute("update pgetl.schema_version set version_num = '0001'")
    with raises(ErrorKind.CONFIG, match=r"another version \(0001\)"):
        interventions.pause(state_database.uri, "shop", anybody)
    store.load()
    assert store.pipeline().paused is None
