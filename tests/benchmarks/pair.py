"""A source with two destinations of the same table: one fed by native logical replication, one by our worker."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from airflow_provider_pgetl.engine.config.spec import DestinationSpec, PipelineSpec, SourceSpec, TableSpec
from airflow_provider_pgetl.engine.pipeline import Pipeline
from airflow_provider_pgetl.testing.servers.postgres_servers import Server

_SOURCE, _DESTINATION = "PGETL_BENCH_SOURCE", "PGETL_BENCH_DESTINATION"
_NATIVE_SLOT = "native"


@dataclass(frozen=True, slots=True)
class Pair:
    """URIs of the three databases, and the pipeline between the first and the last."""

    source: str
    native: str
    ours: str
    table: str
    pipeline: Pipeline

    @classmethod
    @contextmanager
    def started(cls, major: int, ddl: str, table: str, directory: Path | None = None) -> Iterator[Pair]:
        settings = {"max_wal_size": "8GB", "shared_buffers": "512MB", "checkpoint_timeout": "30min"}
        with (
            Server.start(major, settings=settings, directory=directory) as left,
            Server.start(major, settings=settings, directory=directory) as right,
        ):
            left.create_database("source")
            for name in ("native", "ours"):
                right.create_database(name)
            source, native, ours = left.uri("source"), right.uri("native"), right.uri("ours")
            os.environ[_SOURCE], os.environ[_DESTINATION] = source, ours
            for uri in (source, native):
                _execute(uri, ddl)
            yield cls(source, native, ours, table, Pipeline(_spec(table)))

    def stream(self, stop: threading.Event) -> None:
        self.pipeline.stream(until_caught_up=False, stop=stop)

    def enable_native(self) -> None:
        _execute(self.native, "alter subscription bench enable")

    def disable_native(self) -> None:
        _execute(self.native, "alter subscription bench disable")

    def expect_equal(self) -> None:
        query = f"select count(*), sum(hashtextextended(t::text, 0)) from {self.table} t"
        sums = {uri: _execute(uri, query) for uri in (self.source, self.native, self.ours)}
        assert len(set(sums.values())) == 1, sums


def _spec(table: str) -> PipelineSpec:
    destination = DestinationSpec("postgres", f"env:{_DESTINATION}")
    return PipelineSpec("bench", (TableSpec(f"public.{table}"),), SourceSpec(f"env:{_SOURCE}"), destination)


@contextmanager
def native_subscription(pair: Pair) -> Iterator[None]:
    """Made disabled; its slot holds every change from here on."""
    _execute(pair.source, f"create publication native for table {pair.table}")
    _execute(pair.source, f"select pg_create_logical_replication_slot('{_NATIVE_SLOT}', 'pgoutput')")
    _execute(
        pair.native,
        f"create subscription bench connection '{pair.source}' publication native with "
        f"(create_slot = false, slot_name = '{_NATIVE_SLOT}', enabled = false, copy_data = false, binary = true)",
    )
    yield
    _execute(pair.native, "alter subscription bench disable")
    _execute(pair.native, "alter subscription bench set (slot_name = none)")
    _execute(pair.native, "drop subscription bench")


@contextmanager
def our_pipeline(pair: Pair) -> Iterator[None]:
    """The empty table copied and Ready; the worker is not running."""
    pair.pipeline.run(until_caught_up=True, stop=threading.Event())
    yield
    pair.pipeline.close()


def _execute(uri: str, statement: str) -> tuple[object, ...] | None:
    with psycopg.connect(uri, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchone() if cursor.description else None
