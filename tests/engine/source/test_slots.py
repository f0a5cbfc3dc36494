"""Slots: found exactly, set free, dropped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from threading import Timer

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import pq

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import parse_lsn
from airflow_provider_pgetl.engine.source.connecting import Connection, command, connect, connect_replication
from airflow_provider_pgetl.engine.source.range_reading import imported_snapshot
from airflow_provider_pgetl.engine.source.server import flushed_position
from airflow_provider_pgetl.engine.source.slots import (
    MAX_BYTES,
    SlotName,
    apply_slot,
    copy_slot,
    create_slot,
    drop_slot,
    find_slot,
    list_slots,
    list_unused,
    release_slot,
)
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Server
from tests.raising import raises


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
    with raises(ErrorKind.SLOT_IN_USE, match=f"{name} is in use by process {slot.active_pid}"):
        drop_slot(connection, name, patience=0.2)
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


# -- How a slot comes to be, and why it sometimes does not. ------------------------------------------------------------

on_15_too = pytest.mark.parametrize("source_server", [15, 16, 18], indirect=True)


@on_15_too
def test_the_snapshot_is_of_the_consistent_point(
    connection: Connection, replication: pq.abc.PGconn, source: Database
) -> None:
    source.execute("create table t (id int); insert into t values (1)")
    made = create_slot(replication, connection, f"s_{source.name}", export_snapshot=True)
    source.execute("insert into t values (2)")
    with imported_snapshot(connection, made.snapshot):
        assert connection.execute("select count(*) from public.t").fetchone() == (1,)
    slot = find_slot(connection, made.name)
    assert slot is not None
    assert slot.confirmed == made.consistent_point


@on_15_too
def test_without_a_snapshot_the_session_is_free_at_once(
    connection: Connection, replication: pq.abc.PGconn, source: Database
) -> None:
    made = create_slot(replication, connection, f"s_{source.name}")
    assert made.snapshot is None
    assert command(replication, "select 1", "")[0] == ("1",)


@pytest.mark.parametrize("source_server", [18], indirect=True)
def test_a_slot_for_failover(connection: Connection, replication: pq.abc.PGconn, source: Database) -> None:
    made = create_slot(replication, connection, f"s_{source.name}", failover=True)
    slot = find_slot(connection, made.name)
    assert slot is not None
    assert slot.failover


def test_an_open_transaction_holds_it_up_and_is_named(
    connection: Connection, replication: pq.abc.PGconn, source: Database
) -> None:
    source.execute("create table t (id int)")
    name = f"s_{source.name}"
    with source.connect(autocommit=False, application_name="nightly report") as writer:
        writer.execute("insert into t values (1)")
        with pytest.raises(PgetlError) as caught:
            create_slot(replication, connection, name, patience=0.3)
        blocker = (
            f"process {writer.info.backend_pid} (nightly report, user postgres) in database {source.name}, since 2"
        )
        assert blocker in caught.value.message
        assert caught.value.transient
        assert find_slot(connection, name) is None
        writer.rollback()
    assert create_slot(replication, connection, name, export_snapshot=True).snapshot


def test_a_server_that_crashes_meanwhile_is_trouble_that_passes() -> None:
    with Server.start(16) as server:
        source = server.create_database("source")
        source.execute("create table t (id int)")
        replication = connect_replication(source.uri, "test")
        with closing(connect(source.uri, "test")) as connection, source.connect(autocommit=False) as writer:
            writer.execute("insert into t values (1)")
            crash = Timer(0.3, server.kill)
            crash.start()
            with pytest.raises(PgetlError) as caught:
                create_slot(replication, connection, "s")
            crash.join()
            writer.close()
        replication.finish()
    assert caught.value.kind is ErrorKind.CONNECTION
    assert caught.value.transient


def test_a_transaction_of_another_database_holds_it_up_too(
    connection: Connection, replication: pq.abc.PGconn, source: Database
) -> None:
    with source.server.connect("postgres", autocommit=False, application_name="elsewhere") as writer:
        writer.execute("select pg_current_xact_id()")
        with pytest.raises(PgetlError, match=r"\(elsewhere, user postgres\) in database postgres"):
            create_slot(replication, connection, f"s_{source.name}", patience=0.3)


def test_a_transaction_that_ends_in_time_does_not_matter(
    connection: Connection, replication: pq.abc.PGconn, source: Database
) -> None:
    with source.connect(autocommit=False) as writer:
        writer.execute("select pg_current_xact_id()")
        ending = Timer(0.3, writer.rollback)
        ending.start()
        assert create_slot(replication, connection, f"s_{source.name}", patience=3600)
        ending.join()


def test_a_prepared_transaction_is_named() -> None:
    with Server.start(18, {"max_prepared_transactions": 5}) as server:
        server.create_database("two_phase")
        uri = server.uri("two_phase")
        with server.connect("two_phase", autocommit=False) as writer:
            writer.execute("select pg_current_xact_id()")
            writer.execute("prepare transaction 'half done'")
        with connect(uri, "pgetl test") as connection, closing(_Session(uri)) as session:
            with pytest.raises(PgetlError, match="prepared transaction 'half done'"):
                create_slot(session.pgconn, connection, "s", patience=0.3)
            connection.execute("rollback prepared 'half done'")


class _Session:
    def __init__(self, uri: str) -> None:
        self.pgconn = connect_replication(uri, "pgetl test")
        self.close = self.pgconn.finish


def test_a_name_that_is_taken(connection: Connection, replication: pq.abc.PGconn, source: Database) -> None:
    create_slot(replication, connection, f"s_{source.name}")
    with raises(ErrorKind.SLOT_IN_USE, match="already exists"):
        create_slot(replication, connection, f"s_{source.name}")


@pytest.mark.parametrize(
    ("settings", "kind", "remedy"),
    [
        ({"wal_level": "replica"}, ErrorKind.PREFLIGHT, "wal_level = logical"),
        ({"max_replication_slots": 1}, ErrorKind.RESOURCES, "max_replication_slots"),
    ],
)
def test_a_server_that_cannot(settings: dict[str, str | int], kind: ErrorKind, remedy: str) -> None:
    with Server.start(16, settings) as server:
        uri = server.uri()
        with connect(uri, "pgetl test") as connection, closing(_Session(uri)) as session:
            if "max_replication_slots" in settings:
                create_slot(session.pgconn, connection, "first")
            with pytest.raises(PgetlError) as caught:
                create_slot(session.pgconn, connection, "second")
    assert caught.value.kind is kind
    assert remedy in caught.value.remedy


# -- Names of slots are taken apart into exactly what they were put together from. -------------------------------------

pipelines = st.from_regex(r"[a-z0-9_]{1,24}", fullmatch=True)
instances = st.from_regex(r"[a-z0-9]{1,10}", fullmatch=True)
attempts = st.integers(1, 10**9)


@given(pipelines, instances, attempts)
def test_names_read_back(pipeline: str, instance: str, attempt: int) -> None:
    assert SlotName.parse(apply_slot(pipeline, instance)) == SlotName(pipeline, instance)
    assert SlotName.parse(copy_slot(pipeline, instance, attempt)) == SlotName(pipeline, instance, attempt)


@given(st.from_regex(r"pgetl_[a-z0-9_]{1,30}", fullmatch=True))
def test_what_comes_apart_can_be_put_together_again(text: str) -> None:
    parsed = SlotName.parse(text)
    assert parsed is None or str(parsed) == text


def test_a_namesake_with_a_longer_name_is_another() -> None:
    parsed = SlotName.parse(apply_slot("shop_eu", "x1"))
    assert parsed == SlotName("shop_eu", "x1")
    assert parsed is not None
    assert parsed.pipeline != "shop"


@pytest.mark.parametrize("text", ["pgetl_shop_x1_c007", "pgetl_shop_x1_c0", "pgetl_shop_x1_", "mine_shop_x1_apply"])
def test_others_names_are_nobodys(text: str) -> None:
    assert SlotName.parse(text) is None


@pytest.mark.parametrize(("pipeline", "instance"), [("Shop", "x1"), ("sh-op", "x1"), ("", "x1"), ("shop", "x_1")])
def test_what_no_slot_may_be_called_is_refused(pipeline: str, instance: str) -> None:
    with pytest.raises(PgetlError, match="cannot be part of a slot's name"):
        apply_slot(pipeline, instance)


def test_a_name_that_is_too_long_is_refused_not_cut() -> None:
    with raises(ErrorKind.CONFIG, match=f"longer than {MAX_BYTES} bytes"):
        copy_slot("s" * 50, "abcdef12", 7)
