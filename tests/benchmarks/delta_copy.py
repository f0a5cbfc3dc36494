"""Copying one large table into a Delta table: ours on Spark, beside Spark's JDBC source with Spark's Parquet writer,
and DuckDB's postgres scanner writing Parquet.

    python -m tests.benchmarks.delta_copy [--rows 4000000] [--runs 3]

All read the same table of the same server; ours and Spark's run in the same session, of two tasks, which is started and
warmed before the clock. Spark's JDBC source reads the same ranges of the heap, each as one partition, with a fetch size
of 10,000. Ours includes slot, snapshot, statistics and the Delta commit; the others end with files in a folder.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from airflow_provider_pgetl.engine.config.jobs import CopyJob, CopyTable
from airflow_provider_pgetl.engine.config.spec import CopySpec, DestinationSpec, PipelineSpec, SourceSpec, TableSpec
from airflow_provider_pgetl.engine.copy.attempt import copy_group
from airflow_provider_pgetl.engine.spark.executors import SparkExecutors
from airflow_provider_pgetl.engine.state.store import open_store
from airflow_provider_pgetl.testing.servers.postgres_servers import PASSWORD, Database, Server
from tests.benchmarks.copy import SERVER, TABLE, _fill

PGJDBC = Path("/usr/share/java/postgresql.jar")
OURS, SPARK, DUCKDB = "ours on Spark", "Spark JDBC → Spark Parquet", "DuckDB scanner → Parquet"


def main() -> None:
    given = _arguments()
    with Server.start(16, SERVER) as server, tempfile.TemporaryDirectory() as folder:
        source = server.create_database("shop")
        os.environ["PGETL_BENCH_SOURCE"] = source.uri
        _fill(source, given.rows)
        with _warm_spark() as spark:
            ways: dict[str, Callable[[Path], int]] = {OURS: lambda place: _ours(spark, source, place)}
            if PGJDBC.exists():
                ways[SPARK] = lambda place: _by_jdbc(spark, source, place)
            if _scanner():
                ways[DUCKDB] = lambda place: _by_duckdb(source, place)
            seconds = {name: [] for name in ways}
            for _ in range(given.runs):
                for name, way in ways.items():
                    seconds[name].append(_measured(way, Path(folder) / "place", given.rows))
    _report(seconds, given.rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.delta_copy")
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--runs", type=int, default=3)
    return parser.parse_args()


def _measured(way: Callable[[Path], int], place: Path, rows: int) -> float:
    shutil.rmtree(place, ignore_errors=True)
    begun = time.perf_counter()
    found = way(place)
    seconds = time.perf_counter() - begun
    assert found in (rows, -1), found
    return seconds


@contextmanager
def _warm_spark() -> Iterator[SparkSession]:
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR")
    if PGJDBC.exists():
        builder = builder.config("spark.jars", str(PGJDBC)).config("spark.driver.extraClassPath", str(PGJDBC))
    session = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.memory", "2g").getOrCreate()
    session.sparkContext.parallelize(range(4), 4).map(lambda number: number).collect()
    yield session
    session.stop()


def _ours(spark: SparkSession, source: Database, place: Path) -> int:
    spec = PipelineSpec(
        id="bench",
        tables=(TableSpec("public.events"),),
        source=SourceSpec("env:PGETL_BENCH_SOURCE", publication="p", manage_publication=False),
        destination=DestinationSpec("delta", uri=str(place)),
    )
    store = open_store("memory:", "bench")
    store.register(TABLE, source.execute("select 'events'::regclass::oid::int8")[0][0], None)
    job = CopyJob(spec, (CopyTable(TABLE, TABLE),), snapshot_only=True)
    result = copy_group(job, store, SparkExecutors(spark.sparkContext))
    assert result.published == (TABLE,), result
    return DeltaTable(str(place / "public" / "events")).count()


def _by_jdbc(spark: SparkSession, source: Database, place: Path) -> int:
    """The ranges of `range_bytes` that ours reads, as the predicates of as many partitions."""
    ((blocks,),) = source.execute("select pg_relation_size('events') / 8192")
    pieces = max(1, round(blocks * 8192 / CopySpec().range_bytes))
    edges = [blocks * piece // pieces for piece in range(pieces)]
    ends = [f" and ctid < '({edge},0)'" for edge in edges[1:]] + [""]
    predicates = [f"ctid >= '({first},0)'{end}" for first, end in zip(edges, ends, strict=True)]
    address = f"jdbc:postgresql://127.0.0.1:{source.server.port}/{source.name}"
    properties = {"user": "postgres", "password": PASSWORD, "fetchsize": "10000", "driver": "org.postgresql.Driver"}
    spark.read.jdbc(address, "events", predicates=predicates, properties=properties).write.parquet(str(place))
    return -1


def _scanner() -> Path | None:
    """The extension that the wheel brings."""
    found = importlib.util.find_spec("duckdb_extension_postgres_scanner")
    places = (found.submodule_search_locations if found else None) or ()
    return next((file for place in places for file in Path(place).rglob("postgres_scanner.duckdb_extension")), None)


def _by_duckdb(source: Database, place: Path) -> int:
    with duckdb.connect(config={"threads": 2}) as connection:
        connection.execute(f"load '{_scanner()}'")
        connection.execute(f"attach '{source.uri}' as source (type postgres, read_only)")
        connection.execute(f"copy source.public.events to '{place}' (format parquet, per_thread_output)")
    return -1


def _report(seconds: dict[str, list[float]], rows: int) -> None:
    medians = {name: statistics.median(runs) for name, runs in seconds.items()}
    for name, runs in seconds.items():
        every = ", ".join(f"{run:.1f}" for run in runs)
        ratio = medians[name] / medians[OURS]
        print(f"{name:28} {medians[name]:6.1f} s {rows / medians[name] / 1000:6.0f} k rows/s  ({every})"
              f"  ours is {ratio:.2f} x as fast")  # fmt: skip


if __name__ == "__main__":
    main()
