"""Slots: found exactly, set free, dropped."""

from collections.abc import Iterator

import pytest
from psycopg import pq

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.positions import parse_lsn
from airflow_provider_pgetl.engine.source.connecting import Connection, connect_replication
from airflow_provider_pgetl.engine.source.lineage import flushed_position
from airflow_provider_pgetl.engine.source.slot_names import SlotName, apply_slot, copy_slot
from airflow_provider_pgetl.engine.source.slots import drop_slot, find_slot, list_slots, list_unused, release_slot
from tests.postgres_servers import Database, Server


@pytest.fixture
def instance(source: Database) -> str:
    """One that no other test uses: slots are the whole server's."""
    return source.name.replace("_", "")


def make_slot(source: Database, name: str) -> None:
    source.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [name])


@pytest.fixture
def stream(source: Database, instance: str) -> Iterator[pq.abc.PGconn]:
    """A session that streams from the apply slot of pipeline `shop`."""
    name = apply_slot("shop", instance)
    make_slot(source, name)
    source.execute("create publication p")
    pgconn = connect_replication(source.uri, "pgetl test apply")
    options = "(proto_version '1', publication_names 'p')"
    assert pgconn.exec_(f"START_REPLICATION SLOT {name} LOGICAL 0/0 {options}".encode()).status == 8
    yield pgconn
    pgconn.finish()


def test_a_pipeline_sees_its_own_slots_and_no_namesakes(
    connection: Connection, source: Database, instance: str
) -> None:
    names = [apply_slot("shop", instance), copy_slot("shop", instance, 12)]
    others = [apply_slot("shop_eu", instance), apply_slot("shop", f"{instance}x"), f"pgetl_shop_{instance}_c012"]
    for name in names + others:
        make_slot(source, name)
    found = list_slots(connection, "shop", instance)
    assert set(found) == {SlotName("shop", instance), SlotName("shop", instance, 12)}
    assert sorted(slot.name for slot in found.values()) == sorted(names)


def test_slots_of_another_database_are_not_ours(connection: Connection, source: Database, instance: str) -> None:
    other = source.server.create_database(f"{source.name}_other")
    try:
        make_slot(other, apply_slot("shop", instance))
        assert list_slots(connection, "shop", instance) == {}
        assert find_slot(connection, apply_slot("shop", instance)) is None
    finally:
        source.server.drop_database(other.name)


def test_a_slot_says_how_it_is(connection: Connection, source: Database, instance: str) -> None:
    name = apply_slot("shop", instance)
    make_slot(source, name)
    slot = find_slot(connection, name)
    assert slot is not None
    ((confirmed,),) = source.execute(
        "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s", [name]
    )
    assert slot.confirmed is not None
    assert slot.confirmed.lsn == parse_lsn(confirmed)
    assert (slot.active_pid, slot.wal_status, slot.lost, slot.failover) == (None, "reserved", None, False)


@pytest.mark.parametrize("major", [15, 16, 18])
def test_a_slot_whose_wal_is_gone_is_lost(major: int) -> None:
    with Server.start(major, {"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB"}) as server:
        source = server.create_database("lossy")
        make_slot(source, "pgetl_shop_x_apply")
        with server.connect("lossy") as connection:
            for _ in range(6):
                source.execute("select pg_switch_wal(), pg_logical_emit_message(false, 'x', 'y')")
            source.execute("checkpoint")
            slot = find_slot(connection, "pgetl_shop_x_apply")
    assert slot is not None
    assert slot.lost is not None


@pytest.mark.usefixtures("stream")
def test_slots_that_nobody_uses_are_found_whosever_they_are(
    connection: Connection, source: Database, instance: str
) -> None:
    names = [SlotName("shop", instance, 3), SlotName("sales_eu", f"{instance}x")]
    for name in [*map(str, names), f"theirs_{source.name}"]:
        make_slot(source, name)
    found = list_unused(connection)
    assert set(found) == set(names), "neither what is streamed from, nor what others have made"
    source.execute("select pg_logical_emit_message(true, 'pgetl test', repeat('x', 100000))")
    assert all((slot.retained(flushed_position(connection)) or 0) >= 100_000 for slot in found.values())


def test_an_idle_slot_is_dropped_and_dropping_again_is_no_error(
    connection: Connection, source: Database, instance: str
) -> None:
    name = copy_slot("shop", instance, 1)
    make_slot(source, name)
    assert drop_slot(connection, name)
    assert find_slot(connection, name) is None
    assert not drop_slot(connection, name)


@pytest.mark.usefixtures("stream")
def test_a_slot_in_use_is_left_alone_and_its_user_named(connection: Connection, instance: str) -> None:
    name = apply_slot("shop", instance)
    slot = find_slot(connection, name)
    assert slot is not None
    with pytest.raises(PgetlError, match=f"{name} is in use by process {slot.active_pid}") as caught:
        drop_slot(connection, name, patience=0.2)
    assert caught.value.kind is ErrorKind.SLOT_IN_USE
    assert find_slot(connection, name) == slot


@pytest.mark.usefixtures("stream")
def test_a_slot_in_use_is_dropped_where_that_is_asked_for(connection: Connection, instance: str) -> None:
    assert drop_slot(connection, apply_slot("shop", instance), terminate=True)


def test_releasing_ends_the_stream_and_keeps_the_slot(
    connection: Connection, stream: pq.abc.PGconn, instance: str
) -> None:
    name = apply_slot("shop", instance)
    release_slot(connection, name)
    slot = find_slot(connection, name)
    assert slot is not None
    assert slot.active_pid is None
    while stream.get_copy_data(0)[0] > 0:
        pass
    ended = stream.get_result()
    assert ended is not None
    assert ended.error_field(pq.DiagnosticField.SQLSTATE) == b"57P01"
    release_slot(connection, name)
