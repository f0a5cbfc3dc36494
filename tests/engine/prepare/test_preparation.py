"""Two that prepare at once: what one of them has made, the other does not take away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_pgetl.engine import context as engine_context
from airflow_provider_pgetl.engine.config.spec import DestinationSpec, PipelineSpec, SourceSpec, TableSpec
from airflow_provider_pgetl.engine.context import PipelineContext
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.phases import CopyFinished, CopyStarted, Reset, phase_name
from airflow_provider_pgetl.engine.model.positions import Boundary, HighWater
from airflow_provider_pgetl.engine.model.reports import nobody
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.prepare.gaps import Gaps
from airflow_provider_pgetl.engine.prepare.preparation import follow_declaration, prepare, take_up
from airflow_provider_pgetl.engine.source.connecting import Connection, connect
from airflow_provider_pgetl.engine.source.server import Present, read_lineage
from airflow_provider_pgetl.engine.source.slots import Slot, deciding, find_slot
from airflow_provider_pgetl.engine.state.decisions import CEILING
from airflow_provider_pgetl.engine.state.memory_store import MemoryStore
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases

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
def context(source: Database) -> PipelineContext:
    return PipelineContext(SPEC, MemoryStore("shop"), nobody, source.uri, None, {})


def make_slot(context: PipelineContext, connection: Connection) -> Slot:
    """As another that prepares would."""
    connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [context.apply_slot])
    made = the_slot(context, connection)
    context.store.record_progress(CEILING, made.confirmed or Boundary(0))
    return made


def the_slot(context: PipelineContext, connection: Connection) -> Slot:
    slot = find_slot(connection, context.apply_slot)
    assert slot is not None
    return slot


def await_its_turn(connection: Connection) -> None:
    """Until somebody else has asked for the lock."""
    asks = "select from pg_stat_activity where query like '%%pg_try_advisory_lock%%' and pid <> pg_backend_pid()"
    deadline = time.monotonic() + 60
    while connection.execute(asks).fetchone() is None:
        assert time.monotonic() < deadline, "nobody has asked"
        time.sleep(0.02)


def test_a_worker_that_goes_on_while_the_lineage_is_read_is_no_restored_source(
    context: PipelineContext, source: Database, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(context, streaming=True)

    def read(*arguments: Any) -> Present:
        present = read_lineage(*arguments)
        source.execute("insert into orders select generate_series(1, 100)")
        ((end,),) = source.execute("select pg_current_wal_flush_lsn()::text")
        context.store.record_progress(CEILING, Boundary.parse(end))
        return present

    monkeypatch.setattr(engine_context, "read_lineage", read)
    judged = Gaps(context)
    judged.judge_lineage(context.over(connection))
    judged.settle(context.over(connection))
    assert find_slot(connection, context.apply_slot) is not None


def test_a_slot_that_was_made_since_it_was_missed_stays(context: PipelineContext, connection: Connection) -> None:
    prepare(context, streaming=False)
    with ThreadPoolExecutor() as threads:
        with deciding(connection, context.apply_slot):
            second = threads.submit(prepare, context, streaming=True)
            await_its_turn(connection)
            made = make_slot(context, connection)
        second.result(60)
    assert the_slot(context, connection) == made


def test_no_slot_is_made_under_tables_that_have_come_to_depend_on_another(
    context: PipelineContext, connection: Connection
) -> None:
    prepare(context, streaming=False)
    with ThreadPoolExecutor() as threads:
        with deciding(connection, context.apply_slot):
            second = threads.submit(prepare, context, streaming=True)
            await_its_turn(connection)
            context.store.apply({ORDERS: CopyStarted(1, context.store.start_attempt(60.0, "somebody else"))})
            context.store.apply({ORDERS: CopyFinished(1, 1, Boundary(1))})
        with pytest.raises(PgetlError, match="Tables went on while the slot"):
            second.result(60)
    assert find_slot(connection, context.apply_slot) is None


def test_a_slot_that_was_made_since_another_cluster_was_found_stays(
    context: PipelineContext, connection: Connection
) -> None:
    prepare(context, streaming=True)
    lineage = context.store.pipeline().lineage
    assert lineage is not None
    context.store.record_lineage(replace(lineage, system="another"))
    first, second = Gaps(context), Gaps(context)
    for judge in (first, second):
        judge.judge_lineage(context.over(connection))
    first.settle(context.over(connection))
    assert find_slot(connection, context.apply_slot) is None
    made = make_slot(context, connection)
    second.settle(context.over(connection))
    assert the_slot(context, connection) == made


def test_a_source_that_was_set_back_is_refused_also_when_its_wal_has_come_further(
    context: PipelineContext, connection: Connection
) -> None:
    """Until what is lost is copied again: nothing that could be asked shows it any more."""
    prepare(context, streaming=True)
    context.store.apply({ORDERS: CopyStarted(1, context.store.start_attempt(60.0, "a copy"))})
    context.store.apply({ORDERS: CopyFinished(1, 1, Boundary(1))})
    context.store.raise_high_water({ORDERS: HighWater(1, Boundary(1 << 60))})
    with pytest.raises(PgetlError, match="before 10000000/0 which was already seen"):
        prepare(context, streaming=True)
    lineage = context.store.pipeline().lineage
    assert lineage is not None
    assert "it was restored" in (lineage.ended or "")
    context.store.apply({ORDERS: Reset(1)})
    prepare(context, streaming=True)
    lineage = context.store.pipeline().lineage
    assert lineage is not None
    assert lineage.ended is None


# -- tables that are declared while a worker runs ---------------------------------------------------------------------

NOTES = TableName("public", "notes")


def declared(context: PipelineContext, *names: str) -> PipelineContext:
    return replace(context, spec=replace(SPEC, tables=tuple(TableSpec(name) for name in names)))


def published(connection: Connection) -> set[str]:
    query = "select tablename from pg_publication_tables where pubname = 'pgetl_shop'"
    return {str(name) for (name,) in connection.execute(query)}


def test_a_table_is_taken_up_and_the_others_stay_as_they_are(
    context: PipelineContext, source: Database, connection: Connection
) -> None:
    prepare(context, streaming=True)
    attempt = context.store.start_attempt(60.0, "somebody else")
    context.store.apply({ORDERS: CopyStarted(1, attempt)})
    context.store.apply({ORDERS: CopyFinished(1, attempt, Boundary(1))})
    before, slot = context.store.tables()[ORDERS], the_slot(context, connection)
    source.execute("create table notes (id int primary key)")

    take_up(declared(context, "public.orders", "public.notes"), NOTES)
    context.store.load()
    assert context.store.tables()[ORDERS] == before
    assert phase_name(context.store.tables()[NOTES].state.phase) == "Init"
    assert context.store.tables()[NOTES].membership is not None
    assert published(connection) == {"orders", "notes"}
    assert the_slot(context, connection).name == slot.name
    prepare(declared(context, "public.orders", "public.notes"), streaming=False)
    assert context.store.tables()[ORDERS] == before


def test_what_is_removed_goes_with_what_is_taken_up(
    context: PipelineContext, source: Database, connection: Connection
) -> None:
    prepare(context, streaming=True)
    source.execute("create table notes (id int primary key)")
    take_up(declared(context, "public.notes"), NOTES)
    assert set(context.store.tables()) == {NOTES}
    assert published(connection) == {"notes"}


def test_what_is_declared_about_alterations_reaches_a_run_that_goes_on(context: PipelineContext) -> None:
    prepare(context, streaming=True)
    attempt = context.store.start_attempt(60.0, "somebody else")
    context.store.apply({ORDERS: CopyStarted(1, attempt)})
    context.store.apply({ORDERS: CopyFinished(1, attempt, Boundary(1))})
    before = context.store.tables()[ORDERS]
    tables = (TableSpec("public.orders", resync="on_incompatible_change"),)
    otherwise = replace(context, spec=replace(SPEC, tables=tables))
    follow_declaration(otherwise)
    context.store.load()
    after = context.store.tables()[ORDERS]
    assert before.selection is not None
    assert after == replace(before, selection=replace(before.selection, policy=tables[0].policy))
    prepare(otherwise, streaming=True)
    assert context.store.tables()[ORDERS] == after


def test_several_that_take_up_at_once_do_it_once(
    context: PipelineContext, source: Database, connection: Connection
) -> None:
    prepare(context, streaming=True)
    names = [f"public.t{number}" for number in range(5)]
    for name in names:
        source.execute(f"create table {name} (id int primary key)")
    more = declared(context, "public.orders", *names)
    with ThreadPoolExecutor() as threads:
        for each in [threads.submit(take_up, more, TableName(*name.split("."))) for name in names]:
            each.result(60)
    assert published(connection) == {"orders", *(name.removeprefix("public.") for name in names)}
    assert len(context.store.tables()) == 6


def test_a_table_that_is_not_fit_is_refused_and_nothing_is_changed(
    context: PipelineContext, source: Database, connection: Connection
) -> None:
    prepare(context, streaming=True)
    source.execute("create table notes (id int)")
    with pytest.raises(PgetlError, match="replica identity"):
        take_up(declared(context, "public.notes"), NOTES)
    assert set(context.store.tables()) == {ORDERS}
    assert published(connection) == {"orders"}


def test_a_gap_of_another_table_is_left_for_prepare_to_find(
    context: PipelineContext, source: Database, connection: Connection
) -> None:
    prepare(context, streaming=True)
    attempt = context.store.start_attempt(60.0, "somebody else")
    context.store.apply({ORDERS: CopyStarted(1, attempt)})
    context.store.apply({ORDERS: CopyFinished(1, attempt, Boundary(1))})
    before = context.store.tables()[ORDERS].membership
    source.execute("alter publication pgetl_shop drop table orders")
    source.execute("create table notes (id int primary key)")
    take_up(declared(context, "public.orders", "public.notes"), NOTES)
    assert context.store.tables()[ORDERS].membership == before, (
        "published again, it is another row: changes are missing"
    )
    with pytest.raises(PgetlError, match="Changes may be missing"):
        prepare(declared(context, "public.orders", "public.notes"), streaming=True)
