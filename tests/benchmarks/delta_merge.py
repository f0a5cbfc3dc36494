"""Merging changes into a Delta table: how fast, how the cost of a commit grows with the table, in how much memory.

    python -m tests.benchmarks.delta_merge [--rows 4000000] [--changes 1000000] [--sizes 1,4,16] [--updates …]

* A backlog of mixed changes (a third each of inserts, updates and deletes), on keys spread over the whole table, is
  received from a real slot and merged as fast as it goes, beside `pg_recvlogical` to /dev/null over the same slot's
  changes. Both stand for what a worker must keep up with.
* One commit of 1,000 updates on spread keys into tables of several sizes.
* Peak resident memory, of a process of its own that does the first.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg

from airflow_provider_pgetl.engine.changes.batch import EventBatch, Move, Target, sealed_rows
from airflow_provider_pgetl.engine.config.spec import CopySpec
from airflow_provider_pgetl.engine.copy.rows import text_batches
from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.source.catalog import read_tables
from airflow_provider_pgetl.engine.source.connecting import connect
from airflow_provider_pgetl.engine.source.range_reading import copy_blocks, plan_ranges, range_query
from airflow_provider_pgetl.engine.wal.assembler import Assembler
from airflow_provider_pgetl.engine.wal.pgoutput import Keepalive
from airflow_provider_pgetl.engine.wal.replication_stream import ReplicationStream
from airflow_provider_pgetl.engine.wal.spool import Budget, Sealed, Spool
from airflow_provider_pgetl.testing.comparing import count_in_delta
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Server
from tests.benchmarks.wal_receive import pg_recvlogical

TABLE = TableName("public", "items")
SERVER = {"max_wal_size": "8GB", "shared_buffers": "512MB", "wal_level": "logical"}
COLUMNS = (
    "id bigint primary key, kind int not null, at timestamptz not null, name text, amount numeric(12,2), rate float8"
)
VALUES = "g % 100, timestamptz '2024-01-01' + g * interval '1 s', 'item ' || md5(g::text), g % 1000 / 7.0, g / 3.0"
MEMORY = 256 << 20


def main() -> None:
    given = _arguments()
    if given.child:
        _merge_backlog(given.child, Path(given.place), given.slot, given.updates)
        return
    with Server.start(16, SERVER) as server, tempfile.TemporaryDirectory() as folder:
        database = server.create_database("shop")
        _fill(database, given.rows)
        _copy(database, Path(folder))
        _change(database, given.rows, given.changes)
        _against_recvlogical(database, Path(folder), given.changes, given.updates)
        for millions in map(int, given.sizes.split(",")):
            _cost_of_a_commit(database, Path(folder) / str(millions), millions * 1_000_000, given.updates)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.delta_merge")
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--sizes", default="1,4")
    parser.add_argument("--updates", default="rewrite")
    for name in ("--child", "--place", "--slot"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    return parser.parse_args()


def _fill(database: Database, rows: int) -> None:
    database.execute(f"drop table if exists items; create table items ({COLUMNS})")
    database.execute(f"insert into items select g, {VALUES} from generate_series(2, 2 * {rows}, 2) g")
    database.execute("vacuum analyze items")
    if not database.execute("select 1 from pg_publication"):
        database.execute("create publication p for all tables")


def _change(database: Database, rows: int, changes: int) -> None:
    """Transactions of ten thousand changes; every third key is new, changed, or gone."""
    database.execute("select pg_create_logical_replication_slot('s', 'pgoutput')")
    step, each = 2 * rows // (changes // 3), 10_000
    for first in range(0, changes // 3, each // 3):
        keys = f"generate_series({first}, {min(first + each // 3, changes // 3) - 1}) n"
        database.execute(
            f"insert into items select g, {VALUES} from (select n * {step} + 1 as g from {keys}) s;"
            f"update items set name = 'changed ' || id, rate = -rate where id in (select n * {step} + 2 from {keys});"
            f"delete from items where id in (select n * {step} + 4 from {keys})"
        )


def _copy(database: Database, place: Path) -> None:
    """The table as it is now, in ranges of the default size."""
    destination = DeltaDestination(str(place), "bench")
    with connect(database.uri, "bench") as connection:
        (published,) = read_tables(connection, ["p"], [TABLE])
        target = Target("bench", published.schema, 1)
        destination.begin_copy(target, 1)
        for one in plan_ranges(published.leaves, CopySpec().range_bytes):
            blocks = copy_blocks(connection, range_query(published.schema, one, "csv"))
            batches = text_batches(published.schema, blocks)
            destination.write_range_rows(target, 1, one.number, Boundary(1), batches)
        destination.finish_copy(target, 1, Boundary(1))
        destination.claim("bench", 1)


def _against_recvlogical(database: Database, place: Path, changes: int, updates: str) -> None:
    point = Boundary.parse(database.execute("select pg_current_wal_flush_lsn()::text")[0][0])
    for name in ("theirs", "ours"):
        database.execute("select pg_copy_logical_replication_slot('s', %s)", [name])
    begun = time.perf_counter()
    pg_recvlogical(database, "theirs", point)
    theirs = time.perf_counter() - begun
    seconds, peak = _as_a_worker(database, place, "ours", updates)
    print(f"pg_recvlogical to /dev/null {theirs:6.1f} s {changes / theirs / 1000:6.0f} k changes/s")
    print(f"received and merged         {seconds:6.1f} s {changes / seconds / 1000:6.0f} k changes/s"
          f"  {theirs / seconds:.2f} x  peak memory {peak >> 10} MB", flush=True)  # fmt: skip
    ((rows,),) = database.execute("select count(*) from items")
    assert count_in_delta(place / "public" / "items") == rows


def _as_a_worker(database: Database, place: Path, slot: str, updates: str) -> tuple[float, int]:
    """Seconds, and kilobytes at most, of a process that is as small as a worker makes itself."""
    worker = "from airflow_provider_pgetl.engine.runtime.processes import return_memory; return_memory();"
    main = "from tests.benchmarks.delta_merge import main; main()"
    command = [sys.executable, "-c", f"{worker} {main}", "--child", database.uri, "--place", str(place), "--slot", slot]
    command += ["--updates", updates]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    return float(said[0]), int(said[1])


def _merge_backlog(uri: str, place: Path, slot: str, updates: str) -> None:
    """What a worker does, one batch in flight while the next is gathered, with only the parts that cost."""
    from concurrent.futures import Future, ThreadPoolExecutor

    destination = DeltaDestination(str(place), "bench", {"updates": updates})
    with psycopg.connect(uri, autocommit=True) as session:
        point = Boundary.parse(session.execute("select pg_current_wal_flush_lsn()::text").fetchone()[0])  # type: ignore[index]  # one row
    with connect(uri, "bench") as connection:
        (published,) = read_tables(connection, ["p"], [TABLE])
    target = Target("bench", published.schema, 1)
    begun = time.perf_counter()
    pgconn = psycopg.pq.PGconn.connect(f"{uri}?replication=database&client_encoding=UTF8".encode())
    position, reached, writing = Boundary(1), False, None
    with ReplicationStream.start(pgconn, slot, ("p",), binary=False) as stream, ThreadPoolExecutor(1) as pool:
        budget = Budget(MEMORY // 2)
        assembler: Assembler[int] = Assembler(lambda oid, _: oid, lambda: Spool(budget))
        end = position
        while not reached:
            for event in assembler.feed_many(stream.receive(1)):
                reached = reached or (isinstance(event, Keepalive) and event.position >= point)
                end = event.end if hasattr(event, "end") else end
            idle = not assembler.in_transaction and (writing is None or writing.done())
            if end > position and (reached or (idle and assembler.nbytes > MEMORY // 2)):
                if writing is not None:
                    writing.result()
                steps = assembler.take().steps
                batch = EventBatch("bench", 1, {TABLE: Move(target, position, end)}, _Steps(published.schema, steps))
                writing: Future[None] | None = pool.submit(destination.write_events, batch)
                position = end
        if writing is not None:
            writing.result()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(time.perf_counter() - begun, peak)


class _Steps:
    def __init__(self, schema: object, steps: object) -> None:
        self._schema, self._steps = schema, steps

    def __iter__(self) -> object:
        for step in self._steps:  # type: ignore[attr-defined]  # a spool
            assert isinstance(step, Sealed)
            yield sealed_rows(self._schema, step.data, step.lengths, step.commits, step.ordinals)  # type: ignore[arg-type]


def _cost_of_a_commit(database: Database, place: Path, rows: int, updates: str) -> None:
    _fill(database, rows)
    _copy(database, place)
    database.execute("select pg_create_logical_replication_slot('one', 'pgoutput')")
    database.execute(f"update items set rate = 0 where id % {2 * rows // 1000} = 0")
    seconds, peak = _as_a_worker(database, place, "one", updates)
    print(f"1,000 spread updates into {rows // 1_000_000:3} M rows {seconds:6.1f} s, peak {peak >> 10} MB", flush=True)
    database.execute("select pg_drop_replication_slot('one')")


if __name__ == "__main__":
    os.environ.setdefault("PGETL_BENCH", "1")
    main()
