"""A standby as source: decoded from PostgreSQL 16 on, and told when something only the primary can do is missing."""

import time
from collections.abc import Iterator
from threading import Thread

import pytest

from airflow_provider_pgetl.engine.config.spec import DestinationSpec, PipelineSpec, SourceSpec, TableSpec
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.positions import compare
from airflow_provider_pgetl.engine.source.connecting import Connection, connect, connect_replication
from airflow_provider_pgetl.engine.source.preflight import check
from airflow_provider_pgetl.engine.source.range_reading import imported_snapshot
from airflow_provider_pgetl.engine.source.server import Present, read_lineage
from airflow_provider_pgetl.engine.source.slots import create_slot, drop_slot, find_slot
from airflow_provider_pgetl.engine.state.store import open_store
from airflow_provider_pgetl.testing.servers.postgres_servers import Server
from tests.standby import start_standby
from tests.waiting import until

pytestmark = pytest.mark.servers

SPEC = PipelineSpec(
    "shop",
    (TableSpec("public.t"),),
    SourceSpec("env:SOURCE", publication="mine", manage_publication=False),
    DestinationSpec("memory"),
    state_uri="env:STATE",
)


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Server, Server]]:
    """A primary, and a standby that follows it. Both have the database `shop`."""
    with Server.start(16) as primary:
        shop = primary.create_database("shop")
        shop.execute("create table t (id int primary key); insert into t values (1)")
        with start_standby(primary) as standby:
            yield primary, standby


@pytest.fixture
def standby(pair: tuple[Server, Server]) -> Iterator[Connection]:
    with connect(pair[1].uri("shop"), "pgetl test") as connection:
        yield connection


def test_preflight_asks_for_the_publication_and_is_then_content(
    pair: tuple[Server, Server], standby: Connection
) -> None:
    assert [one.problem for one in check(standby, SPEC) if one.severity == "error"] == [
        "There is no publication mine, and `manage_publication` is false."
    ]
    with pair[0].connect("shop") as primary:
        primary.execute("create publication mine for table t")
    until(lambda: standby.execute("select from pg_publication").fetchall())
    assert [one.problem for one in check(standby, SPEC) if one.severity != "note"] == []


def test_a_slot_with_a_snapshot_is_made_on_it(pair: tuple[Server, Server], standby: Connection) -> None:
    """It waits until the primary says which transactions are running."""
    replication = connect_replication(pair[1].uri("shop"), "pgetl test")

    def log_snapshots() -> None:
        with pair[0].connect("shop") as primary:
            while find_slot_quietly(pair[1]) is None:
                primary.execute("select pg_log_standby_snapshot()")
                time.sleep(0.1)

    snapshot_logging = Thread(target=log_snapshots)
    snapshot_logging.start()
    try:
        made = create_slot(replication, standby, "on_standby", export_snapshot=True, patience=30)
    finally:
        snapshot_logging.join()
    with imported_snapshot(standby, made.snapshot):
        assert standby.execute("select count(*) from public.t").fetchone() == (1,)
    replication.finish()
    assert drop_slot(standby, "on_standby")


def find_slot_quietly(server: Server) -> object:
    with server.connect("shop") as connection:
        slot = find_slot(connection, "on_standby")
        return slot if slot and slot.confirmed else None


def lineage_of(server: Server) -> Present:
    replication = connect_replication(server.uri("shop"), "pgetl test")
    try:
        return read_lineage(replication, "lineage")
    finally:
        replication.finish()


def test_it_has_its_primarys_lineage(pair: tuple[Server, Server], standby: Connection) -> None:
    with pair[0].connect("shop") as primary:
        primary.execute("create publication lineage")
    here = lineage_of(pair[0])
    until(lambda: standby.execute("select from pg_publication where pubname = 'lineage'").fetchall())
    there = lineage_of(pair[1])
    assert here.lineage == there.lineage
    assert compare(here.lineage, there.lineage, here.wal_end, there.wal_end) is None


def test_it_cannot_hold_the_state(pair: tuple[Server, Server]) -> None:
    with pytest.raises(PgetlError, match=r"read-only transaction\. Name the primary in its URI"):
        open_store(pair[1].uri("shop"), "shop")
