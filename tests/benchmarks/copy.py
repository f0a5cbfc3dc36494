"""Copying one large table: ours on Spark, beside `psql COPY binary | psql COPY binary`.

    python -m tests.benchmarks.copy [--rows 4000000] [--runs 3]

Both copy the same table between the same two servers, and both end with a table that has its primary key. psql is
measured with the key in place from the start and with the key added afterwards; the faster of the two counts. The Java
machine and its Python workers are started before the clock: that takes some seconds, whatever the table.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark import SparkConf, SparkContext

from airflow_provider_pgetl.engine.config.jobs import CopyJob, CopyTable
from airflow_provider_pgetl.engine.config.spec import CopySpec, DestinationSpec, PipelineSpec, SourceSpec, TableSpec
from airflow_provider_pgetl.engine.copy.attempt import copy_group
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.spark.executors import SparkExecutors
from airflow_provider_pgetl.engine.state.store import open_store
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Server

TABLE = TableName("public", "events")
COLUMNS = (
    "id bigint not null, customer int not null, at timestamptz not null, kind text not null, amount numeric(12,2),"
    " rate float8, active boolean not null, code char(8), note text, day date"
)
ROWS = """
    insert into events select g, g % 100000, timestamptz '2024-01-01' + g * interval '1 s', 'kind ' || g % 17,
        (g % 1000000) / 7.0, g / 3.0, g % 3 = 0, lpad((g % 99999999)::text, 8, '0'),
        case when g % 5 > 0 then md5(g::text) end, date '2024-01-01' + (g % 365)::int
    from generate_series(1, {rows}) g
"""
SERVER = {"shared_buffers": "256MB", "max_wal_size": "4GB", "maintenance_work_mem": "256MB"}


def main() -> None:
    given = _arguments()
    with Server.start(16, SERVER) as first, Server.start(18, SERVER) as second:
        source, destination = first.create_database("shop"), second.create_database("shop")
        os.environ |= {"PGETL_BENCH_SOURCE": source.uri, "PGETL_BENCH_DESTINATION": destination.uri}
        _fill(source, given.rows)
        ways: dict[str, Callable[[], float]] = {
            "psql | psql, key in place": lambda: _by_psql(source, destination, key_first=True),
            "psql | psql, key afterwards": lambda: _by_psql(source, destination, key_first=False),
        }
        with _warm_spark() as context:
            ways["ours on Spark"] = lambda: _by_spark(context, source, given.rows, given.range_bytes)
            seconds = {name: [] for name in ways}
            for _ in range(given.runs):
                for name, way in ways.items():
                    seconds[name].append(_measured(way, destination, given.rows))
    _report(seconds, given.rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.copy")
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--range-bytes", type=int, default=CopySpec().range_bytes)
    return parser.parse_args()


def _fill(source: Database, rows: int) -> None:
    source.execute(f"create table events ({COLUMNS})")
    source.execute(ROWS.format(rows=rows))
    source.execute("alter table events add primary key (id)")
    source.execute("vacuum analyze events")
    source.execute("create publication p for table events")


def _measured(way: Callable[[], float], destination: Database, rows: int) -> float:
    destination.execute("drop table if exists events")
    destination.execute("drop schema if exists pgetl cascade")
    destination.execute("checkpoint")
    seconds = way()
    key = "select count(*) from pg_index where indrelid = 'events'::regclass and indisprimary"
    assert destination.execute(key) == [(1,)]
    assert destination.execute("select count(*) from events") == [(rows,)]
    return seconds


def _by_psql(source: Database, destination: Database, *, key_first: bool) -> float:
    begun = time.perf_counter()
    destination.execute(f"create table events ({COLUMNS})")
    if key_first:
        destination.execute("alter table events add primary key (id)")
    out = ["psql", "--no-psqlrc", source.uri, "-c", "copy events to stdout (format binary)"]
    into = ["psql", "--no-psqlrc", destination.uri, "-c", "copy events from stdin (format binary)"]
    with subprocess.Popen(out, stdout=subprocess.PIPE) as reader:
        subprocess.run(into, stdin=reader.stdout, stdout=subprocess.DEVNULL, check=True)
    if not key_first:
        destination.execute("alter table events add primary key (id)")
    return time.perf_counter() - begun


@contextmanager
def _warm_spark() -> Iterator[SparkContext]:
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    settings = {
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
    }
    conf = SparkConf().setMaster("local[2]").setAll(list(settings.items()))
    with SparkContext(conf=conf) as context:
        context.parallelize(range(4), 4).map(lambda number: number).collect()
        yield context


def _by_spark(context: SparkContext, source: Database, rows: int, range_bytes: int) -> float:
    spec = PipelineSpec(
        id="bench",
        tables=(TableSpec("public.events"),),
        source=SourceSpec("env:PGETL_BENCH_SOURCE", publication="p", manage_publication=False),
        destination=DestinationSpec("postgres", uri="env:PGETL_BENCH_DESTINATION"),
        copy=CopySpec(range_bytes=range_bytes),
    )
    store = open_store("memory:", "bench")
    store.register(TABLE, source.execute("select 'events'::regclass::oid::int8")[0][0], None)
    begun = time.perf_counter()
    result = copy_group(CopyJob(spec, (CopyTable(TABLE, TABLE),), snapshot_only=True), store, SparkExecutors(context))
    assert result.published == (TABLE,), result
    return time.perf_counter() - begun


def _report(seconds: dict[str, list[float]], rows: int) -> None:
    medians = {name: statistics.median(runs) for name, runs in seconds.items()}
    best = min(median for name, median in medians.items() if name.startswith("psql"))
    for name, runs in seconds.items():
        every = ", ".join(f"{run:.1f}" for run in runs)
        rate = rows / medians[name] / 1000
        print(f"{name:30} {medians[name]:6.1f} s  {rate:6.0f} k rows/s  {best / medians[name]:5.2f} x   ({every})")


if __name__ == "__main__":
    main()
