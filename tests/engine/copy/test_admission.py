"""The pool of copies of a run: what it cannot get over ends it, and whoever waits for its copies hears of it."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.config.jobs import CopyJob, CopyResult, Running
from airflow_provider_pgetl.engine.config.spec import CopySpec, DestinationSpec, PipelineSpec, SourceSpec, TableSpec
from airflow_provider_pgetl.engine.context import PipelineContext
from airflow_provider_pgetl.engine.copy.admission import CopyPool, form_groups
from airflow_provider_pgetl.engine.copy.claims import Claims
from airflow_provider_pgetl.engine.model.errors import ErrorKind
from airflow_provider_pgetl.engine.model.phases import DataSync, Init
from airflow_provider_pgetl.engine.model.reports import nobody
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.pipeline import Pipeline
from airflow_provider_pgetl.engine.prepare.preparation import Prepared
from airflow_provider_pgetl.engine.state.memory_store import MemoryStore
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from tests.raising import raises

ORDERS = TableName("public", "orders")
SPEC = PipelineSpec("shop", (TableSpec("public.orders"),), SourceSpec("env:SOURCE"), DestinationSpec("memory"))


def launch(job: CopyJob) -> Running[CopyResult]:
    raise ZeroDivisionError(f"{len(job.tables)} table")


def test_a_defect_ends_the_pool_and_is_told_to_whoever_waits_for_it() -> None:
    store = MemoryStore("shop")
    store.register(ORDERS, 1, 2)
    context = PipelineContext(SPEC, store, nobody, "", None, {})
    stop = threading.Event()
    pool = CopyPool(context, Prepared({ORDERS: ORDERS}, {ORDERS: 8192}), launch, stop)
    pool.start()
    assert stop.wait(60)
    pool.join()
    with raises(ErrorKind.INTERNAL, match="The pool of copies met ZeroDivisionError: 1 table"):
        pool.busy()


# -- room for one more copy, asked for by several who do not know of each other ----------------------------------------


A, B, C = (TableName("public", name) for name in ("a", "b", "c"))


@pytest.fixture
def pipeline(databases: Databases) -> Iterator[Pipeline]:
    """Three tables, each a group of its own, and room for two."""
    for table in (A, B, C):
        databases.source.execute(f"create table {table.sql} (id int primary key)")
        databases.source.execute(f"insert into {table.sql} select generate_series(1, 1000)")
    spec = PipelineSpec(
        "shop",
        (TableSpec("public.*"),),
        SourceSpec("env:S"),
        DestinationSpec("postgres", "env:D"),
        copy=CopySpec(table_workers=2, group_bytes=8192),
    )
    pipeline = Pipeline(spec, environment={"S": databases.source.uri, "D": databases.destination.uri})
    pipeline.prepare()
    yield pipeline
    pipeline.close()


@pytest.mark.parametrize("source_server", [16], indirect=True)
def test_a_reserved_table_is_in_data_sync_before_anything_is_started(pipeline: Pipeline) -> None:
    with pipeline.admitted_copy(B) as job:
        assert job is not None
        assert [table.source for table in job.tables] == [B]
        state = pipeline.state(B)
        assert isinstance(state.phase, DataSync)
        assert state.attempt == job.attempt
        assert pipeline.store.live_attempts() == {job.attempt}
    assert pipeline.store.live_attempts() == set()


@pytest.mark.parametrize("source_server", [16], indirect=True)
def test_what_was_not_copied_by_the_end_goes_back_to_init(pipeline: Pipeline) -> None:
    with pipeline.admitted_copy(B):
        pass
    pipeline.roll_back_dead_copies()
    assert isinstance(pipeline.state(B).phase, Init)


@pytest.mark.parametrize("source_server", [16], indirect=True)
def test_there_is_room_for_so_many_and_no_more(pipeline: Pipeline) -> None:
    with ExitStack() as stack:
        jobs = [stack.enter_context(pipeline.admitted_copy(table)) for table in (A, B, C)]
    assert [job is not None for job in jobs] == [True, True, False]


@pytest.mark.parametrize("source_server", [16], indirect=True)
def test_nobody_is_given_a_table_twice(pipeline: Pipeline) -> None:
    with pipeline.admitted_copy(A) as first, pipeline.admitted_copy(A) as second:
        assert first is not None
        assert second is None


@pytest.mark.parametrize("source_server", [16], indirect=True)
def test_a_live_copy_keeps_its_table_whatever_number_another_has(pipeline: Pipeline) -> None:
    store = pipeline.store
    with pipeline.admitted_copy(A) as job:
        assert job is not None
        later = Claims(store, store.start_attempt(60.0), nobody)
        later.start([A, B])
        assert later.held == {B}
        assert "attempt" in later.left_out[A]
        assert pipeline.state(A).attempt == job.attempt


@pytest.mark.parametrize("source_server", [16], indirect=True)
def test_a_dead_copy_loses_its_table(pipeline: Pipeline) -> None:
    store = pipeline.store
    dead = Claims(store, store.start_attempt(0.0), nobody)
    dead.start([A])
    later = Claims(store, store.start_attempt(60.0), nobody)
    later.start([A])
    assert later.holds(A)


# -- which tables share a snapshot -------------------------------------------------------------------------------------


LIMIT = 100
sizes_of_tables = st.dictionaries(
    st.builds(TableName, st.sampled_from(["a", "b"]), st.text(max_size=3)), st.integers(0, 3 * LIMIT), max_size=30
)


def names(**sizes: int) -> dict[TableName, int]:
    return {TableName("public", name): size for name, size in sizes.items()}


def test_a_big_table_is_alone_and_small_ones_share() -> None:
    groups = form_groups(names(big=500, small=30, tiny=1, half=60), LIMIT)

    assert [[table.name for table in group] for group in groups] == [["big"], ["half", "small", "tiny"]]


def test_no_tables_no_groups() -> None:
    assert form_groups({}, LIMIT) == []


@given(sizes_of_tables)
def test_every_table_is_in_exactly_one_group(sizes: Mapping[TableName, int]) -> None:
    grouped = [table for group in form_groups(sizes, LIMIT) for table in group]

    assert sorted(grouped) == sorted(sizes)


@given(sizes_of_tables)
def test_only_single_tables_exceed_the_limit(sizes: Mapping[TableName, int]) -> None:
    for group in form_groups(sizes, LIMIT):
        assert len(group) == 1 or sum(sizes[table] for table in group) <= LIMIT


@given(sizes_of_tables)
def test_no_two_groups_fit_into_one(sizes: Mapping[TableName, int]) -> None:
    filled = sorted(sum(sizes[table] for table in group) for group in form_groups(sizes, LIMIT))

    assert len(filled) < 2 or filled[0] + filled[1] > LIMIT


@given(sizes_of_tables, st.randoms(use_true_random=False))
def test_the_order_of_declaration_does_not_matter(sizes: Mapping[TableName, int], shuffler: random.Random) -> None:
    shuffled = list(sizes.items())
    shuffler.shuffle(shuffled)

    assert form_groups(dict(shuffled), LIMIT) == form_groups(sizes, LIMIT)
