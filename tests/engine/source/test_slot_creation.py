"""How a slot comes to be, and why it sometimes does not."""

from contextlib import closing
from threading import Timer

import pytest
from psycopg import pq

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.source.connecting import Connection, command, connect, connect_replication
from airflow_provider_pgetl.engine.source.reading import imported_snapshot
from airflow_provider_pgetl.engine.source.slot_creation import create_slot
from airflow_provider_pgetl.engine.source.slots import find_slot
from tests.postgres_servers import Database, Server

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
    with pytest.raises(PgetlError, match="already exists") as caught:
        create_slot(replication, connection, f"s_{source.name}")
    assert caught.value.kind is ErrorKind.SLOT_IN_USE


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
