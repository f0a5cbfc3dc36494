"""Room for one more copy, asked for by several who do not know of each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from airflow_provider_pgetl.engine.config.spec import CopySpec, DestinationSpec, PipelineSpec, SourceSpec, TableSpec
from airflow_provider_pgetl.engine.copy.claims import Claims
from airflow_provider_pgetl.engine.model.phases import DataSync, Init
from airflow_provider_pgetl.engine.model.reports import nobody
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.pipeline import Pipeline
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases

A, B, C = (TableName("public", name) for name in ("a", "b", "c"))
pytestmark = pytest.mark.parametrize("source_server", [16], indirect=True)


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


def test_a_reserved_table_is_in_data_sync_before_anything_is_started(pipeline: Pipeline) -> None:
    with pipeline.admitted_copy(B) as job:
        assert job is not None
        assert [table.source for table in job.tables] == [B]
        state = pipeline.state(B)
        assert isinstance(state.phase, DataSync)
        assert state.attempt == job.attempt
        assert pipeline.store.live_attempts() == {job.attempt}
    assert pipeline.store.live_attempts() == set()


def test_what_was_not_copied_by_the_end_goes_back_to_init(pipeline: Pipeline) -> None:
    with pipeline.admitted_copy(B):
        pass
    pipeline.bury_dead_copies()
    assert isinstance(pipeline.state(B).phase, Init)


def test_there_is_room_for_so_many_and_no_more(pipeline: Pipeline) -> None:
    with ExitStack() as stack:
        jobs = [stack.enter_context(pipeline.admitted_copy(table)) for table in (A, B, C)]
    assert [job is not None for job in jobs] == [True, True, False]


def test_nobody_is_given_a_table_twice(pipeline: Pipeline) -> None:
    with pipeline.admitted_copy(A) as first, pipeline.admitted_copy(A) as second:
        assert first is not None
        assert second is None


def test_a_live_copy_keeps_its_table_whatever_number_another_has(pipeline: Pipeline) -> None:
    store = pipeline.store
    with pipeline.admitted_copy(A) as job:
        assert job is not None
        later = Claims(store, store.start_attempt(60.0), nobody)
        later.start([A, B])
        assert later.held == {B}
        assert "attempt" in later.left_out[A]
        assert pipeline.state(A).attempt == job.attempt


def test_a_dead_copy_loses_its_table(pipeline: Pipeline) -> None:
    store = pipeline.store
    dead = Claims(store, store.start_attempt(0.0), nobody)
    dead.start([A])
    later = Claims(store, store.start_attempt(60.0), nobody)
    later.start([A])
    assert later.holds(A)
