"""Rows per second that `pgetl verify` compares, of a table that is equal on both sides.

    python -m tests.benchmarks.verify [--rows 2000000] [--runs 2]

Source, destination and verification share the machine. Beside it, what reading the same rows costs alone: the source's
COPY to nowhere, in the same ranges. CPU time is told of this process and of all sessions of the server; on a machine
that does nothing else, two cores have it done in half of their sum.

Measured, of a million rows of ten columns, on two cores that had much else to do: into a lake 1.2 s of our CPU time and
0.6 s of the server's, into Postgres 0.1 s and 1.9 s.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil

from airflow_provider_pgetl.engine.config.spec import DestinationSpec, PipelineSpec, SourceSpec, TableSpec
from airflow_provider_pgetl.engine.source.catalog import read_tables
from airflow_provider_pgetl.engine.source.connecting import connect
from airflow_provider_pgetl.engine.source.range_reading import copy_blocks, plan_ranges, range_query
from airflow_provider_pgetl.engine.verify.source_rows import RANGE_BYTES
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Server
from tests.benchmarks.copy import SERVER, TABLE, _fill
from tests.without_spark import LocalPipeline


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.verify")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--runs", type=int, default=2)
    given = parser.parse_args()
    with Server.start(16, SERVER) as server, tempfile.TemporaryDirectory() as folder:
        source, replica = server.create_database("shop"), server.create_database("replica")
        _fill(source, given.rows)
        os.environ["PGETL_BENCH_SOURCE"], os.environ["PGETL_BENCH_DESTINATION"] = source.uri, replica.uri
        lake = DestinationSpec("delta", str(Path(folder) / "lake"))
        for destination in (DestinationSpec("postgres", "env:PGETL_BENCH_DESTINATION"), lake):
            with _caught_up(destination) as pipeline:
                for _ in range(given.runs):
                    _measure("the source's COPY alone", server, given.rows, lambda: _read_alone(source))
                    kind = destination.type
                    _measure(f"verify, {kind}", server, given.rows, lambda: _verify(pipeline, given.rows))


@contextmanager
def _caught_up(destination: DestinationSpec) -> Iterator[LocalPipeline]:
    table = TableSpec(str(TABLE))
    spec = PipelineSpec(f"to_{destination.type}", (table,), SourceSpec("env:PGETL_BENCH_SOURCE"), destination)
    with closing(LocalPipeline(spec)) as pipeline:
        pipeline.run(until_caught_up=True, stop=threading.Event())
        yield pipeline


def _verify(pipeline: LocalPipeline, rows: int) -> None:
    (found,) = pipeline.verify().tables
    assert (found.verdict, found.rows) == ("equal", rows), found


def _read_alone(source: Database) -> None:
    with connect(source.uri, "bench") as connection:
        (published,) = read_tables(connection, ["p"], [TABLE])
        for one in plan_ranges(published.leaves, RANGE_BYTES):
            for _ in copy_blocks(connection, range_query(published.schema, one, "csv")):
                pass


def _measure(what: str, server: Server, rows: int, work: Callable[[], None]) -> None:
    begun, ours, theirs = time.perf_counter(), time.process_time(), _cpu_of_sessions(server)
    work()
    wall, ours = time.perf_counter() - begun, time.process_time() - ours
    time.sleep(1.0)  # sessions end after they were closed
    theirs = _cpu_of_sessions(server) - theirs
    rates = f"{rows / wall / 1000:5.0f} k rows/s, {2 * rows / (ours + theirs) / 1000:5.0f} k on two cores alone"
    print(f"{what:24} {wall:6.2f} s, {ours:5.2f} s CPU of ours, {theirs:5.2f} s of the server; {rates}", flush=True)


def _cpu_of_sessions(server: Server) -> float:
    """Of those that have ended."""
    number = int((server.data / "postmaster.pid").read_text().split()[0])
    times = psutil.Process(number).cpu_times()
    return float(times.children_user + times.children_system)


if __name__ == "__main__":
    main()
