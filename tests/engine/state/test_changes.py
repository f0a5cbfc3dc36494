"""A store object reads what it does not know yet, and notices when what it knows is not true any more."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_pgetl.engine.model.errors import Fenced
from airflow_provider_pgetl.engine.model.phases import CopyStarted, Refused, Reset
from airflow_provider_pgetl.engine.model.positions import Boundary, HighWater
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.state import schema
from airflow_provider_pgetl.engine.state.store import (
    DestinationMetadata,
    FoundTable,
    Registration,
    Store,
    TableRecord,
    open_store,
)
from airflow_provider_pgetl.testing.servers.postgres_servers import Database
from tests.engine.state.conftest import World
from tests.engine.state.samples import AWKWARD, CUSTOMERS, ORDERS, TERMS, schema_of

TABLES = (ORDERS, CUSTOMERS, AWKWARD)
PLACE = DestinationMetadata(TableName("archive", "orders"), Boundary(7), applied=False)


def known(store: Store) -> tuple[object, ...]:
    schemas = {table: dict(versions) for table, versions in store.schemas().items() if versions}
    return store.tables(), schemas, {table: store.destination_metadata(table) for table in TABLES}


CHANGES: dict[str, Callable[[Store], object]] = {
    "phase": lambda store: store.apply({ORDERS: Reset(1)}),
    "registration": lambda store: store.register(ORDERS, 9, 9, TERMS),
    "high water": lambda store: store.raise_high_water({ORDERS: HighWater(1, Boundary(5))}),
    "acknowledged": lambda store: store.acknowledge({ORDERS: 1}),
    "schema": lambda store: store.store_schema(ORDERS, Boundary(3), schema_of(ORDERS, "id", "total")),
    "place": lambda store: store.store_places({ORDERS: replace(PLACE, applied=True)}),
    "copy begun": lambda store: store.begin_copies({ORDERS: FoundTable(9, 9, Boundary(7), schema_of(ORDERS), PLACE)}),
    "copy state cleared": lambda store: store.clear_copy_state(ORDERS),
    "deleted": lambda store: store.delete_table(ORDERS),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_another_has_changed_is_shown_after_a_load_and_told_by_its_table(world: World, change: str) -> None:
    store = world.open()
    store.register_all({table: Registration(number, None) for number, table in enumerate(TABLES, 1)})
    for table in TABLES:
        store.store_schema(table, Boundary(1), schema_of(table, "id"))
        store.store_schema(table, Boundary(2), schema_of(table, "id", "name"))
        store.store_places({table: PLACE})
    other, changed = world.open(), store.changed_tables()
    CHANGES[change](other)
    assert changed.take() == frozenset()
    store.load()
    assert changed.take() == {ORDERS}
    assert changed.take() == frozenset()
    assert known(store) == known(other) == known(world.open())


def test_own_changes_are_told_as_well_and_one_that_is_refused_is_none(store: Store) -> None:
    changed = store.changed_tables()
    store.register(ORDERS, 1, None)
    store.register(CUSTOMERS, 2, None)
    assert changed.take() == {ORDERS, CUSTOMERS}
    store.apply({ORDERS: Reset(7)})
    assert changed.take() == frozenset()


def test_a_table_that_was_deleted_and_came_back_has_nothing_of_before(world: World) -> None:
    store, other = world.open(), world.open()
    store.register(ORDERS, 1, None)
    store.store_schema(ORDERS, Boundary(1), schema_of(ORDERS, "id"))
    other.load()
    store.delete_table(ORDERS)
    store.register(ORDERS, 2, None)
    other.load()
    assert known(other) == known(store)
    assert other.schema(ORDERS, Boundary(9)) is None
    assert other.tables()[ORDERS].state.generation == 2


def test_of_events_told_together_each_table_takes_its_own(world: World) -> None:
    store = world.open()
    store.register(ORDERS, 1, None)
    store.register(CUSTOMERS, 2, None)
    answers = store.apply_each({ORDERS: Reset(1), CUSTOMERS: Reset(5), AWKWARD: Reset(1)})
    assert isinstance(answers[CUSTOMERS], Refused)
    assert isinstance(answers[AWKWARD], Refused)
    states = {table: record.state.generation for table, record in world.open().tables().items()}
    assert states == {ORDERS: 2, CUSTOMERS: 1}


def test_events_told_together_by_a_superseded_worker_are_all_refused(store: Store) -> None:
    store.register(ORDERS, 1, None)
    store.raise_epoch()
    (answer,) = store.apply_each({ORDERS: Reset(1)}, epoch=0).values()
    assert isinstance(answer, Refused)
    assert store.tables()[ORDERS].state.generation == 1


def test_a_copy_that_begins_with_a_table_that_is_gone_brings_it_not_back(world: World) -> None:
    store = world.open()
    store.begin_copies({ORDERS: FoundTable(1, None, Boundary(7), schema_of(ORDERS), PLACE)})
    assert known(world.open()) == known(store) == ({}, {}, dict.fromkeys(TABLES))


# -- a state that was restored ----------------------------------------------------------------------------------------


@pytest.mark.servers
@pytest.mark.parametrize("went_on", [0, 30], ids=["older", "further than before"])
def test_a_restored_state_is_refused_while_it_is_older_and_else_read_anew(
    state_database: Database, went_on: int
) -> None:
    """Once it has gone on, the numbers of its changes say nothing about what was known before."""
    store = open_store(state_database.uri, "shop")
    store.register_all({ORDERS: Registration(1, None), CUSTOMERS: Registration(2, None)})
    tables = ("pipelines", "tables", "history", "changes")
    for table in tables:
        state_database.execute(f"create table public.{table} as table pgetl.{table}")
    store.apply({ORDERS: CopyStarted(1, 1)})
    store.store_schema(ORDERS, Boundary(1), schema_of(ORDERS, "id"))
    state_database.execute("truncate pgetl.pipelines cascade")
    for table in tables:
        overriding = "overriding system value" if table == "pipelines" else ""
        state_database.execute(f"insert into pgetl.{table} {overriding} table public.{table}")
    other = open_store(state_database.uri, "shop")
    for number in range(went_on):
        other.register(CUSTOMERS, 10 + number, None)
    changed = store.changed_tables()
    if went_on == 0:
        for act in (
            lambda: store.record_progress("ceiling", Boundary(5)),
            lambda: store.raise_high_water({ORDERS: HighWater(1, Boundary(5))}),
            lambda: store.apply({CUSTOMERS: CopyStarted(1, 1)}),
            store.load,
        ):
            with pytest.raises(Fenced, match="was set back to an earlier one"):
                act()
        assert other.progress("ceiling") is None
    else:
        store.load()
        assert known(store) == known(other)
        assert ORDERS in changed.take()
    for each in (store, other):
        each.close()


# -- what a load costs ------------------------------------------------------------------------------------------------


@pytest.mark.servers
def test_a_load_reads_what_has_changed_and_no_more(state_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = (open_store(state_database.uri, "shop") for _ in range(2))
    tables = [TableName("public", f"t{number}") for number in range(200)]
    store.register_all({table: Registration(number, None) for number, table in enumerate(tables, 1)})
    for table in tables[:3]:
        store.store_schema(table, Boundary(1), schema_of(table, "id"))
    other.load()
    read: list[TableName] = []
    known_schema = other.schemas()[tables[0]]
    record_of = schema.record_of

    def counted(row: Any) -> TableRecord:
        read.append(schema.name_of(row))
        return record_of(row)

    store.apply({tables[7]: Reset(1)})
    monkeypatch.setattr(schema, "record_of", counted)
    other.load()
    other.load()
    assert read == [tables[7]]
    assert other.schemas()[tables[0]] is known_schema
    assert other.tables()[tables[7]].state.generation == 2
    for each in (store, other):
        each.close()
