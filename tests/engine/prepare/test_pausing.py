"""A pause, as whoever pauses may rely on it: nothing arrives any more, and nobody waits for what is no stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from airflow_provider_pgetl.engine.config.spec import DestinationSpec, PipelineSpec, SourceSpec, TableSpec
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.pipeline import Pipeline
from airflow_provider_pgetl.engine.prepare import lifecycle
from airflow_provider_pgetl.engine.runtime.processes import this_process
from airflow_provider_pgetl.engine.source.slots import copy_slot
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from tests.waiting import until
from tests.without_spark import LocalPipeline

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("source_server", [16], indirect=True)]


@pytest.fixture
def pipeline(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    """Copied and caught up with."""
    monkeypatch.setenv("S", databases.source.uri)
    monkeypatch.setenv("D", databases.destination.uri)
    databases.source.execute("create table a (id int primary key)")
    databases.source.execute("insert into a select generate_series(1, 10)")
    with closing(opened()) as it:
        it.run(until_caught_up=True, stop=threading.Event())
        yield it


def opened() -> Pipeline:
    spec = PipelineSpec("shop", (TableSpec("public.a"),), SourceSpec("env:S"), DestinationSpec("postgres", "env:D"))
    return LocalPipeline(spec)


@contextmanager
def streaming() -> Iterator[None]:
    """A worker of its own, as in another process."""
    stop = threading.Event()
    with closing(opened()) as worker:
        worker.store.load()
        thread = threading.Thread(
            target=worker.stream, kwargs={"until_caught_up": False, "stop": stop, "lease_patience": None}
        )
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(60)
            assert not thread.is_alive()


def is_read(databases: Databases) -> bool:
    return bool(databases.source.execute("select 1 from pg_replication_slots where active"))


def rows(databases: Databases) -> int:
    ((count,),) = databases.destination.execute("select count(*) from a")
    return int(count)


def test_who_takes_over_in_a_pause_streams_nothing_at_all(pipeline: Pipeline, databases: Databases) -> None:
    """Its view of the state is from before the pause: it has only waited for the lease."""
    held = pipeline.store.acquire_lease("elsewhere/0/0/4711/1", 3600.0)
    assert held is not None
    with streaming():
        time.sleep(1.5)
        pipeline.store.set_paused(True)
        databases.source.execute("insert into a values (11)")
        pipeline.store.release_lease(held.epoch)
        until(lambda: pipeline.store.lease() is not None)
        for _ in range(150):
            assert not any(thread.name == "pgetl apply" for thread in threading.enumerate())
            time.sleep(0.01)
        assert rows(databases) == 10
        pipeline.resume()
        until(lambda: rows(databases) == 11)


def test_who_holds_the_pipeline_may_stream_until_it_says_otherwise(pipeline: Pipeline) -> None:
    """A stream between two connections reads no slot, and may be writing."""
    held = pipeline.store.acquire_lease("elsewhere/0/0/4711/1", 3600.0)
    assert held is not None
    pauses = threading.Thread(target=pipeline.pause)
    pauses.start()
    pauses.join(3.0)
    assert pauses.is_alive()
    with closing(opened()) as later:
        later.store.release_lease(held.epoch)
    pauses.join(10.0)
    assert not pauses.is_alive()


def test_a_stream_that_is_cut_off_just_then_connects_no_more(pipeline: Pipeline, databases: Databases) -> None:
    """Time and again, as it takes only a moment to connect."""
    cut = "select pg_terminate_backend(active_pid) from pg_replication_slots where active"
    with streaming():
        for number in range(11, 16):
            until(lambda: is_read(databases))
            databases.source.execute(cut)
            pipeline.pause()
            databases.source.execute(f"insert into a values ({number})")
            time.sleep(1.0)
            assert rows(databases) == number - 1
            pipeline.resume()
            until(lambda: rows(databases) == number)  # noqa: B023  called here and now


def test_a_write_that_takes_long_has_ended_when_a_pause_has_begun(
    pipeline: Pipeline, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and application_name like 'pgetl shop %'"
    with streaming():
        until(lambda: is_read(databases))
        with databases.destination.connect(autocommit=False) as somebody:
            somebody.execute("lock table a in access exclusive mode")
            databases.source.execute("insert into a values (11)")
            until(lambda: bool(databases.destination.execute(waits)))
            monkeypatch.setattr(lifecycle, "PATIENCE_SECONDS", 8.0)
            with pytest.raises(PgetlError, match="its streams have not ended"):
                pipeline.pause()
            somebody.rollback()
        pipeline.pause()
        assert rows(databases) == 11
        databases.source.execute("insert into a values (12)")
        time.sleep(1.5)
        assert rows(databases) == 11
        pipeline.resume()
        until(lambda: rows(databases) == 12)


def test_a_slot_that_a_copy_is_making_is_no_stream(pipeline: Pipeline, databases: Databases) -> None:
    """It waits for transactions of others, which may last."""
    attempt = pipeline.store.start_attempt(60.0, this_process())
    name = copy_slot("shop", pipeline.store.pipeline().instance, attempt)
    make = "select pg_create_logical_replication_slot(%s, 'pgoutput')"
    with databases.source.connect(autocommit=False) as somebody:
        somebody.execute("insert into a values (11)")
        making = threading.Thread(target=databases.source.execute, args=(make, [name]))
        making.start()
        until(lambda: is_read(databases))
        pauses = threading.Thread(target=pipeline.pause)
        pauses.start()
        pauses.join(10.0)
        has_begun = not pauses.is_alive()
        somebody.rollback()
    making.join(30.0)
    pauses.join(30.0)
    assert has_begun
    databases.source.execute("select pg_drop_replication_slot(%s)", [name])
