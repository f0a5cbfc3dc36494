"""Two that prepare at once: what one of them has made, the other does not take away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from airflow_provider_pgetl.engine.config import DestinationSpec, PipelineSpec, SourceSpec, TableSpec
from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.phases import CopyFinished, CopyStarted
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.reports import nobody
from airflow_provider_pgetl.engine.source.connecting import Connection, connect
from airflow_provider_pgetl.engine.source.slots import Slot, deciding, find_slot
from airflow_provider_pgetl.engine.state.memory import MemoryStore
from airflow_provider_pgetl.engine.sync.desk import CEILING
from airflow_provider_pgetl.engine.sync.gaps import Gaps
from airflow_provider_pgetl.engine.sync.prepare import prepare
from airflow_provider_pgetl.engine.sync.site import Site
from airflow_provider_pgetl.engine.tables import TableName
from tests.postgres_servers import Database, Databases

pytestmark = pytest.mark.servers

ORDERS = TableName("public", "orders")
SPEC = PipelineSpec("shop", (TableSpec("public.orders"),), SourceSpec("env:SOURCE"), DestinationSpec("memory"))


@pytest.fixture
def source(databases: Databases) -> Database:
    databases.source.execute("create table orders (id int primary key)")
    return databases.source


@pytest.fixture
def connection(source: Database) -> Iterator[Connection]:
    with connect(source.uri, "pgetl test somebody else") as connection:
        yield connection


@pytest.fixture
def site(source: Database) -> Site:
    return Site(SPEC, MemoryStore("shop"), nobody, source.uri, None, {})


def make_slot(site: Site, connection: Connection) -> Slot:
    """As another that prepares would."""
    connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [site.apply_slot])
    made = the_slot(site, connection)
    site.store.record_progress(CEILING, made.confirmed or Boundary(0))
    return made


def the_slot(site: Site, connection: Connection) -> Slot:
    slot = find_slot(connection, site.apply_slot)
    assert slot is not None
    return slot


def await_its_turn(connection: Connection) -> None:
    """Until somebody else has asked for the lock."""
    asks = "select from pg_stat_activity where query like '%%pg_try_advisory_lock%%' and pid <> pg_backend_pid()"
    deadline = time.monotonic() + 30
    while connection.execute(asks).fetchone() is None:
        assert time.monotonic() < deadline, "nobody has asked"
        time.sleep(0.02)


def test_a_slot_that_was_made_since_it_was_missed_stays(site: Site, connection: Connection) -> None:
    prepare(site, streaming=False)
    with ThreadPoolExecutor() as threads:
        with deciding(connection, site.apply_slot):
            second = threads.submit(prepare, site, streaming=True)
            await_its_turn(connection)
            made = make_slot(site, connection)
        second.result(30)
    assert the_slot(site, connection) == made


def test_no_slot_is_made_under_tables_that_have_come_to_depend_on_another(site: Site, connection: Connection) -> None:
    prepare(site, streaming=False)
    with ThreadPoolExecutor() as threads:
        with deciding(connection, site.apply_slot):
            second = threads.submit(prepare, site, streaming=True)
            await_its_turn(connection)
            site.store.apply({ORDERS: CopyStarted(1, site.store.start_attempt(60.0, "somebody else"))})
            site.store.apply({ORDERS: CopyFinished(1, 1, Boundary(1))})
        with pytest.raises(PgetlError, match="Tables went on while the slot"):
            second.result(30)
    assert find_slot(connection, site.apply_slot) is None


def test_a_slot_that_was_made_since_another_cluster_was_found_stays(site: Site, connection: Connection) -> None:
    prepare(site, streaming=True)
    lineage = site.store.pipeline().lineage
    assert lineage is not None
    site.store.record_lineage(replace(lineage, system="another"))
    first, second = Gaps(site), Gaps(site)
    for judge in (first, second):
        judge.judge_lineage(connection)
    first.settle(connection)
    assert find_slot(connection, site.apply_slot) is None
    made = make_slot(site, connection)
    second.settle(connection)
    assert the_slot(site, connection) == made
